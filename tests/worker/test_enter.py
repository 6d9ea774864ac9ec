"""lark-enter and the wrapper's note: who waits for the service, and what HTCondor's starter finds."""

from __future__ import annotations

import json
import shutil
import socket
import stat
import threading
from pathlib import Path

import pytest

from lab.namespaces import temporary_directory
from lab.openvswitch import OpenVSwitch
from tests.fixtures.full_queue import fill_queue
from tests.fixtures.ovs import a_net
from tests.worker.pool import NOBODY, POLICY, Pool, Starter, a_pool, eventually

pytestmark = pytest.mark.ovs


def enter(pool: Pool, starter: Starter, program: str, seconds: int = 20) -> tuple[int, str, Path]:
    """Status and output of lark-enter as the wrapper leaves things to it; and the note."""
    file, note = starter.scratch / "environment", starter.scratch / ".job_wrapper_failure"
    note.write_text("Lark: sudo does not start it\n")
    file.write_bytes(f"PATH=/usr/bin:/bin\0_CONDOR_WRAPPER_ERROR_FILE={note}\0".encode())
    for path in (note, file):
        shutil.chown(path, NOBODY, NOBODY)
    starter.scratch.chmod(0o711)
    script = pool.folder / f"enter-{seconds}"
    script.write_text(pool.enter.read_text().replace("SECONDS = 20", f"SECONDS = {seconds}"))
    script.chmod(0o755)
    status, said = starter.run(f"SUDO_UID={NOBODY} SUDO_GID={NOBODY} {script} {file} {program}")
    return status, said, note


def mode(starter: Starter) -> int:
    return stat.S_IMODE(starter.scratch.stat().st_mode)


def test_a_service_that_starts_again_is_waited_for(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    pool.stop_service()
    found: list[tuple[int, str, Path]] = []
    thread = threading.Thread(target=lambda: found.append(enter(pool, starter, "/bin/ls /sys/class/net")))
    thread.start()
    eventually((starter.scratch / "environment").exists)
    pool.start_service()
    thread.join(20)
    status, said, note = found[0]
    assert (status, note.exists(), mode(starter)) == (0, False, 0o700), said


def test_a_queue_that_somebody_has_filled_is_waited_for(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    pool.stop_service()
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(pool.socket))
        pool.socket.chmod(0o666)
        listening.listen(0)
        found: list[tuple[int, str, Path]] = []
        thread = threading.Thread(target=lambda: found.append(enter(pool, starter, "/bin/true")))
        with fill_queue(pool.socket):
            thread.start()
            eventually((starter.scratch / "environment").exists)
            # It has not given up by then.
            thread.join(1)
        listening.settimeout(20)
        heard = b""
        while not heard:
            with listening.accept()[0] as caller:
                heard = caller.recv(4096)
                if heard:
                    caller.sendall(b'HTTP/1.1 403 Forbidden\r\n\r\n{"detail": "heard"}')
        thread.join(20)
    status, said, _ = found[0]
    assert (status, "heard" in said) == (122, True), said


def test_where_the_service_stays_away_the_starter_finds_the_reason(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    pool.stop_service()
    status, said, note = enter(pool, starter, "/bin/true", seconds=1)
    assert status == 122
    assert "the worker service cannot be asked" in said
    # Whoever is not the job's user reads it as well.
    assert "cannot be asked" in note.read_text()
    assert (stat.S_IMODE(note.stat().st_mode), mode(starter)) == (0o644, 0o711)


def test_a_program_that_cannot_be_started_is_no_failure_of_the_wrapper(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    status, said, note = enter(pool, starter, "/nonexistent")
    assert (status, note.exists(), mode(starter)) == (122, False, 0o700)
    assert "/nonexistent: No such file or directory" in said


def test_a_jobs_namespace_has_the_sites_kernel_parameters_and_starts_without_those_that_are_none(
    ovs: OpenVSwitch,
) -> None:
    given = "net.ipv4.tcp_rmem=4096 131072 16777216,net.core.somaxconn=8192,net.ipv4.no_such_parameter=1"
    with temporary_directory() as folder, a_net(ovs) as net, a_pool(Path(folder), ovs, net, job_sysctls=given) as pool:
        starter = pool.starter(1, "alice")
        pool.hook(starter, "start", "alice", 1)
        for name, value in (("ipv4/tcp_rmem", "4096\t131072\t16777216"), ("core/somaxconn", "8192")):
            assert value in enter(pool, starter, f"/bin/cat /proc/sys/net/{name}")[1]
            assert value not in Path("/proc/sys/net", name).read_text()


def test_a_job_has_its_external_address_in_its_environment_and_asks_for_another(ovs: OpenVSwitch) -> None:
    section = (
        "external: {pools: {public: [198.51.100.64/30]}, quarantine: 0, zones: {x.org: 0}, "
        "rules: [{when: 'Owner == \"alice\"', pool: public, open: [tcp], names: '{name}.{owner}.x.org'}]}\n"
    )
    with temporary_directory() as folder, a_net(ovs) as net, a_pool(Path(folder), ovs, net, POLICY + section) as pool:
        alice, bob = pool.starter(1, "alice"), pool.starter(2, "bob")
        said = pool.hook(
            alice,
            "start",
            "alice",
            1,
            'RequestExternalAddress = true\nExternalPorts = "tcp/80, tcp/443"\nExternalName = "web"',
        )
        assert 'LarkExternalAddressIPv4 = "198.51.100.64"' in said
        assert "LarkExternalAddress" not in pool.hook(bob, "start", "bob", 2)
        assert 'LarkExternalPorts = "tcp/80, tcp/443"\nLarkExternalName = "web.alice.x.org"\n' in said
        lines = enter(pool, alice, "/usr/bin/env")[1].splitlines()
        assert {line for line in lines if line.startswith("LARK_EXTERNAL")} == {
            "LARK_EXTERNAL_ADDRESS=198.51.100.64",
            "LARK_EXTERNAL_PORTS=tcp/80 tcp/443",
            "LARK_EXTERNAL_NAME=web.alice.x.org",
        }
        assert "LARK_EXTERNAL" not in enter(pool, bob, "/usr/bin/env")[1]

        def ask(
            starter: Starter, method: str, path: str = "", body: object = None, of: str = "external-addresses"
        ) -> tuple[int, dict[str, object]]:
            data = "" if body is None else f" -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
            url = f"http://lark/v1/{of}{path}"
            command = f"curl -s -w '|%{{http_code}}' --unix-socket {pool.socket} -X {method}{data} {url}"
            answer, _, status = starter.as_user(command)[1].strip().rpartition("|")
            return int(status), json.loads(answer)

        status, has = ask(alice, "POST")
        assert (status, has["address"], has["open"]) == (200, "198.51.100.64", ["tcp/80", "tcp/443"])
        free = ask(alice, "GET", of="external-pools")[1]
        assert free == {"pools": [{"name": "public", "total": 4, "used": 1, "quarantined": 0, "free": 3}]}
        path = f"/{has['id']}"
        for method in ("GET", "DELETE"):
            assert ask(bob, method, path)[0] == 404
        status, refused = ask(bob, "POST", body={"open": ["tcp/80"]})
        assert (status, refused["type"]) == (409, "urn:lark:problem:external-address")
        assert ask(alice, "POST", body={"open": "tcp/80"})[0] == 422
        assert ask(alice, "POST", body={"job": "another"})[0] == 422
        assert ask(alice, "POST", body={"name": ["web"]})[0] == 422
        assert ask(alice, "POST", body={"name": "Web"})[1]["name"] == "web.alice.x.org"
        assert ask(alice, "POST", body={"name": "other"})[0] == 409
        assert ask(alice, "DELETE", path)[1]["why"] == "released"
        assert ask(alice, "DELETE", path)[0] == 200
        assert ask(alice, "POST", body={"open": ["tcp/81"], "seconds": 60})[1]["open"] == ["tcp/81"]
        held = pool.hook(pool.starter(3, "bob"), "start", "bob", 3, "RequestExternalAddress = true")
        assert "HookStatusCode = 10" in held
        assert "no rule of the policy" in held
