"""The unit of systemd: the service can do its work with what that leaves it."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path

import pytest

from tests.worker.pool import Pool
from tests.worker.test_killed import service, works

UNIT = (Path(__file__).parents[2] / "etc/systemd/lark-worker.service").read_text()


def setting(name: str) -> str:
    found = re.search(rf"^{name}=(.*)$", UNIT, re.MULTILINE)
    assert found, name
    return found.group(1)


@pytest.mark.ovs
@pytest.mark.parametrize("network", ["ovs_bridge", "none"])
def test_a_job_starts_and_ends_with_the_capabilities_and_the_umask_of_the_unit(pool: Pool, network: str) -> None:
    kept = ",".join("+" + name.removeprefix("CAP_").lower() for name in setting("CapabilityBoundingSet").split())
    assert setting("NoNewPrivileges") == "yes"
    below = ["setpriv", f"--bounding-set=-all,{kept}", "--no-new-privs", "sh", "-c"]
    below += [f'umask {setting("UMask")}; exec "$@"', "service"]
    pool.stop_service()
    starter = pool.starter(1, "alice", f'LarkNetworkType = "{network}"\n')
    with service(pool, below=below):
        if network == "ovs_bridge":
            works(pool, starter, 1)
        else:
            pool.hook(starter, "start", "alice", 1)
            assert pool.inside(starter, "ls /proc/sys/net/ipv4/conf")[1].split() == ["all", "default", "lo"]


@pytest.mark.ovs
def test_started_means_that_hooks_are_answered_and_the_watchdog_sees_that_they_are(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (setting("Type"), setting("WatchdogSec")) == ("notify", "60")
    pool.stop_service()
    starter = pool.starter(1, "alice")
    address = pool.folder / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(30)
        monkeypatch.setenv("NOTIFY_SOCKET", str(address))
        monkeypatch.setenv("WATCHDOG_USEC", "300000")
        with service(pool) as running:
            assert systemd.recv(100) == b"READY=1"
            works(pool, starter, 1)
            assert systemd.recv(100) == b"WATCHDOG=1"
            running.send_signal(signal.SIGTERM)
            while (state := systemd.recv(100)) == b"WATCHDOG=1":
                pass
            assert state == b"STOPPING=1"


def test_no_unit_is_given_up_while_what_it_needs_is_away() -> None:
    for name in ("lark-worker", "lark-base-flows", "lark-controller"):
        unit = (Path(__file__).parents[2] / f"etc/systemd/{name}.service").read_text()
        assert "StartLimitIntervalSec=0" in unit.partition("[Service]")[0]
        assert "Restart=" in unit
