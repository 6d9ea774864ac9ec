"""The gateway's unit of systemd: its program works with the unit's settings and rights; and the page's commands."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lab.namespaces import INNER
from lab.run import run
from tests.fixtures.fake_controls import TOKENS, bearer
from tests.fixtures.rest_app import Api
from tests.fixtures.rest_socket import served as over_socket
from tests.fixtures.service import wait
from tests.install.pages import Page
from tests.worker.test_gateway import FIRST, POOL, Site, reached, site

__all__ = ["over_socket", "site"]

pytestmark = pytest.mark.ovs


def test_the_unit_can_do_its_work_by_the_settings_and_the_rules_outlive_it(
    site: Site, over_socket: Api, tmp_path: Path
) -> None:
    job = over_socket.register(1, "alice")["id"]
    wish = {"job": job, "open": ["tcp/80"]}
    over_socket.client.post("/v1/external-addresses", json=wish, headers=bearer("operate"))
    (token := tmp_path / "worker.token").write_text(TOKENS["gateway"])
    token.chmod(0o600)
    unit = (Path(__file__).parents[2] / "etc/systemd/lark-gateway.service").read_text()
    (program, action), capabilities = (
        re.findall(rf"(?m)^{name}=(.*)", unit)[0].split() for name in ("ExecStart", "CapabilityBoundingSet")
    )
    assert (program.rpartition("/")[2], "EnvironmentFile=-/etc/lark/worker.env" in unit) == ("lark-worker", True)
    bounds = ",".join(["-all", *(each.lower().replace("cap_", "+") for each in capabilities)])
    settings = {
        "URL": f"unix:{tmp_path}/rest.sock",
        "TOKEN_FILE": str(token),
        "GATEWAY_WAN": "wan",
        "GATEWAY_POOLS": "198.51.100.64/31",
        "NETWORKS": "10.64.0.0/16,2001:db8:64::/48",
    }
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(30)
        running = subprocess.Popen(
            [
                *("ip", "netns", "exec", site.gateway.namespace),
                *("setpriv", "--bounding-set", bounds, "--no-new-privs"),
                *(sys.executable, "-m", "lark_worker.cli", action, "--seconds", "0.1"),
            ],
            env={
                **os.environ,
                **{f"LARK_WORKER_{name}": value for name, value in settings.items()},
                "NOTIFY_SOCKET": str(tmp_path / "notify"),
            },
        )
        try:
            assert systemd.recv(100) == b"READY=1"
            wait(lambda: "198.51.100.64 . tcp . 80 : 10.64.0.1" in site.listed("ruleset"))
            running.terminate()
            assert running.wait(20) == 0
        finally:
            running.kill()
            running.wait()
    assert "198.51.100.64 . tcp . 80 : 10.64.0.1" in site.listed("ruleset")


def test_a_gateway_to_which_nothing_is_routed_answers_for_the_pool_by_the_pages_commands(site: Site) -> None:
    """Twice, as by somebody who does not know whether that was done."""
    page = Page("external-addresses.md", {"198.51.100.64/27": POOL, "lan0": "lan", "wan0": "wan"})
    run(["ip", "-n", site.out.namespace, "route", "replace", POOL, "dev", INNER])
    site.told.give(FIRST, "10.64.0.1", "tcp/80")
    site.step()
    assert not reached(site, site.a, FIRST, 80)
    for _ in range(2):
        run(["ip", "netns", "exec", site.gateway.namespace, "sh", "-ec", page.block("ip route replace")])
    wait(lambda: reached(site, site.a, FIRST, 80))
    assert not reached(site, site.a, FIRST, 81)
    gone = page.block("systemctl disable --now lark-gateway.service").splitlines()[1]
    run(["ip", "netns", "exec", site.gateway.namespace, "sh", "-ec", gone])
    assert "lark" not in site.listed("ruleset")
