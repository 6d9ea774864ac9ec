"""Switches, jobs and the controller come and go: what stays, what goes, what is said."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lab.postgres import PostgresServer
from lab.run import run
from lark_controller.flows.cookies import Category, cookie
from tests.fixtures.openflow import make_authority, make_certificate
from tests.fixtures.service import (
    WORKER1,
    WORKER2,
    Lark,
    Site,
    wait,
)

pytestmark = pytest.mark.ovs

RULES = ("slice: {by: Owner}", "wan: {when: 'Owner == \"bob\"', action: drop}")


@pytest.fixture
def site(ovs: OpenVSwitch) -> Iterator[Site]:
    with Net() as net:
        site = Site(ovs, net, {"a": WORKER1, "b": WORKER1, "d": WORKER2})
        yield site
        for bridge in site.bridges.values():
            ovs.vsctl("--if-exists", "del-br", bridge)


@pytest.fixture
def directory() -> Iterator[Path]:
    with temporary_directory() as made:
        yield Path(made)


@pytest.fixture
def lark(site: Site, directory: Path) -> Iterator[Lark]:
    lark = Lark(directory, site.policy(*RULES))
    lark.start()
    yield lark
    lark.stop()


def mine(counters: dict[str, int]) -> dict[str, int]:
    """Counters of flows of Lark's own, but for markers."""
    return {flow: n for flow, n in counters.items() if "cookie=0x1a4b" in flow and "cookie=0x1a4b0c" not in flow}


def all_flows(site: Site) -> dict[int, list[str]]:
    return {datapath: site.flows(datapath) for datapath in site.bridges}


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def test_a_restart_changes_nothing_and_loses_nothing(
    site: Site, directory: Path, database: str, request: pytest.FixtureRequest
) -> None:
    environ: dict[str, Any] = {}
    if database == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        environ["LARK_DATABASE_URL"] = server.new_database()
    lark = Lark(directory, site.policy(*RULES), **environ)
    lark.start()
    try:
        site.connect(lark)
        jobs = site.runs(lark, {"a": "alice", "b": "bob", "d": "alice"})
        assert site.matrix("a", "b", "d") == {"a>d", "d>a"}
        before, flows = {dp: mine(site.counters(dp)) for dp in site.bridges}, all_flows(site)

        lark.stop()
        assert site.matrix("a", "b", "d") == {"a>d", "d>a"}
        assert site.reached([("a", "wan1"), ("b", "wan1")]) == {
            ("a", "wan1"): (True, True), ("b", "wan1"): (False, False),
        }  # fmt: skip
        assert all_flows(site) == flows
        workers = sorted(set(site.home.values()))
        marked = {datapath: site.flows(datapath, Category.MARKER) for datapath in workers}
        assert {len(found) for found in marked.values()} == {1}

        lark.start()
        lark.wait_in_sync(*site.bridges)
        # Nothing was sent, so the markers stand as they did.
        assert {datapath: site.flows(datapath, Category.MARKER) for datapath in workers} == marked
        assert all_flows(site) == flows
        after = {dp: mine(site.counters(dp)) for dp in site.bridges}
        for datapath, counted in before.items():
            assert {flow: n for flow, n in counted.items() if after[datapath][flow] < n} == {}
        found = {job["id"]: job for job in lark.live()}
        assert set(found) == {job["id"] for job in jobs.values()}
        wait(lambda: {job["state"] for job in lark.live()} == {"enforced"})
        assert site.matrix("a", "b", "d") == {"a>d", "d>a"}
        lark.end(jobs["a"])
        lark.end(jobs["d"])
        wait(lambda: not site.port_flows("a") and not site.port_flows("d"))
    finally:
        lark.stop()


def test_a_policy_reload_touches_only_flows_that_differ(site: Site, lark: Lark) -> None:
    site.connect(lark)
    site.runs(lark, {"a": "alice", "b": "bob", "d": "alice"})
    assert site.matrix("a", "b", "d") == {"a>d", "d>a"}
    before = {dp: mine(site.counters(dp)) for dp in site.bridges}
    text = site.policy(*RULES, "block: {when: 'Owner == \"bob\"'}")
    plan = lark.request("POST", "/v1/policy/plan", text, "application/yaml")
    assert plan.status == 200
    lark.put_policy(text)
    wait(lambda: site.reached([("b", "wan1")]))
    for datapath, counted in before.items():
        now = mine(site.counters(datapath))
        stayed = [flow for flow in counted if flow in now]
        assert len(stayed) > len(counted) / 3
        assert [flow for flow in stayed if now[flow] < counted[flow]] == []
    alices = [flow for flow in before[WORKER1] if f"in_port={site.ports['a']}," in flow]
    now = mine(site.counters(WORKER1))
    assert alices
    assert [flow for flow in alices if flow not in now] == []
    assert sum(now[flow] for flow in alices) >= sum(before[WORKER1][flow] for flow in alices) > 0


def test_a_bad_policy_changes_nothing(site: Site, lark: Lark) -> None:
    site.connect(lark)
    site.runs(lark, {"a": "alice", "b": "bob"})
    flows, version = all_flows(site), lark.get("/v1/policy")["version"]
    bad = site.policy("block: {when: 'Owner =='}", "slice: {bye: Owner}")
    answer = lark.request("PUT", "/v1/policy", bad, "application/yaml")
    assert answer.status == 422
    assert len(answer.body["mistakes"]) >= 2
    lark.policy_file.write_text(bad)
    lark.service.policy_file.reload()
    assert all_flows(site) == flows
    assert lark.get("/v1/policy")["version"] == version


def test_the_policy_file_is_read_again_when_it_changes(site: Site, lark: Lark) -> None:
    site.connect(lark)
    site.runs(lark, {"a": "alice", "b": "alice"})
    lark.policy_file.write_text(site.policy("block: {when: 'Owner == \"alice\"'}"))
    wait(lambda: "block" in lark.get("/v1/policy")["text"])
    lark.wait_in_sync(*site.bridges)
    assert site.matrix("a", "b") == set()


def test_wait_says_which_switch_is_away_and_it_is_enforced_when_it_connects(site: Site, lark: Lark) -> None:
    for bridge in (site.bridges[WORKER2], site.bridges[0xC0]):
        site.ovs.set_controller(bridge, lark.target)
    lark.wait_in_sync(WORKER2, 0xC0)
    answer = lark.post(site.ads("a", "alice"), 0.3)
    assert answer.status == 201
    assert answer.body["state"] == "pending"
    assert [waiting["datapath"] for waiting in answer.body["waiting"]] == [f"{WORKER1:016x}"]
    assert "connected" in answer.body["waiting"][0]["reason"]
    site.run(lark, "d", "alice")
    assert site.matrix("a", "d") == set()

    site.ovs.set_controller(site.bridges[WORKER1], lark.target)
    wait(lambda: lark.get(f"/v1/jobs/{answer.body['id']}")["state"] == "enforced")
    assert site.matrix("a", "d") == {"a>d", "d>a"}

    # Nobody listens there. (Open vSwitch drops its flows where the last controller is taken out of its configuration.)
    site.ovs.set_controller(site.bridges[WORKER1], "tcp:127.0.0.1:1")
    wait(lambda: not lark.switch(WORKER1)["connected"])
    shown = lark.get(f"/v1/jobs/{answer.body['id']}")
    assert shown["state"] == "pending"
    assert "not connected" in shown["reason"]
    assert site.matrix("a", "d") == {"a>d", "d>a"}


def test_a_port_that_appears_after_the_post(site: Site, lark: Lark) -> None:
    site.connect(lark)
    site.run(lark, "d", "alice")
    wait(lambda: site["a"].port in {each["name"] for each in lark.switch(WORKER1)["ports"]})
    site.ovs.del_port(site.bridges[WORKER1], site["a"].port)
    # The switch's notice is on its way.
    wait(lambda: site["a"].port not in {each["name"] for each in lark.switch(WORKER1)["ports"]})
    answer = lark.post(site.ads("a", "alice"), 0.3)
    assert answer.body["state"] == "pending", answer
    assert site["a"].port in answer.body["reason"]
    site.ports["a"] = site.ovs.add_port(site.bridges[WORKER1], site["a"].port)
    wait(lambda: lark.get(f"/v1/jobs/{answer.body['id']}")["state"] == "enforced")
    assert site.matrix("a", "d") == {"a>d", "d>a"}

    site.ovs.del_port(site.bridges[WORKER1], site["a"].port)
    wait(lambda: lark.get(f"/v1/jobs/{answer.body['id']}")["state"] == "pending")
    wait(lambda: site.port_flows("a") == [])


def test_conflicts_new_runs_and_parallel_nodes(site: Site, lark: Lark) -> None:
    site.connect(lark)
    job = site.run(lark, "a", "alice", number=500)
    same = lark.post(site.ads("a", "alice", number=500))
    assert (same.status, same.body["id"], same.body["state"]) == (200, job["id"], "enforced")

    stolen = f'LarkInnerAddressIPv4="{site["a"].ipv4}"'
    answer = lark.post(site.ads("b", "bob", machine=stolen))
    assert answer.status == 409, answer
    assert answer.body["holder"] == job["id"]
    outside = lark.post(site.ads("b", "bob", machine='LarkInnerAddressIPv4="172.16.0.1"'))
    assert outside.status == 422, outside
    taken = lark.post(site.ads("b", "bob", machine=f'LarkExternalInterface="{site["a"].port}"'))
    assert taken.status == 409, taken

    # Nodes of a parallel job on other slots are runs of their own.
    node = lark.post(site.ads("b", "alice", number=500))
    assert (node.status, node.body["state"]) == (201, "enforced"), node
    assert node.body["id"] != job["id"]
    assert site.matrix("a", "b") == {"a>b", "b>a"}

    # A new run on the same slot and port ends the old one, and inherits nothing of its slice.
    new = site.run(lark, "a", "bob")
    assert lark.get(f"/v1/jobs/{job['id']}")["state"] == "ended"
    assert lark.get(f"/v1/addresses/{site['a'].ipv4}")["id"] == new["id"]
    assert site.matrix("a", "b") == set()
    late = lark.end(job["id"])
    assert late["state"] == "ended"
    assert site.port_flows("a")


def test_a_rule_limit_refuses_the_job_whole(site: Site, lark: Lark) -> None:
    site.connect(lark)
    frame = len(site.flows(WORKER1))
    lark.put_policy(site.policy(*RULES, max_rules=frame + 50))
    site.run(lark, "a", "alice")
    held = site.flows(WORKER1)
    answer = lark.post(site.ads("b", "bob"))
    assert answer.body["state"] == "refused", answer
    assert str(frame + 50) in answer.body["reason"]
    assert "worker1" in answer.body["reason"]
    assert site.flows(WORKER1) == held
    assert lark.request("GET", f"/v1/addresses/{site['b'].ipv4}").status == 404
    refused = lark.request("PUT", "/v1/policy", site.policy(*RULES, max_rules=20), "application/yaml")
    assert refused.status == 409, refused
    assert site.flows(WORKER1) == held


def test_a_lease_that_nobody_renews_ends_the_job(site: Site, directory: Path) -> None:
    lark = Lark(directory, site.policy(*RULES), changed={"lease_seconds": 2.0})
    lark.start()
    try:
        site.connect(lark)
        kept, left = site.run(lark, "a", "alice"), site.run(lark, "b", "bob")

        def is_over() -> bool:
            assert lark.request("POST", f"/v1/jobs/{kept['id']}/renew").status == 200
            return bool(lark.get(f"/v1/jobs/{left['id']}")["state"] == "ended")

        wait(is_over)
        wait(lambda: not site.port_flows("b"))
        assert site.port_flows("a")
    finally:
        lark.stop()


def test_tls_with_certificates_on_both_sides(site: Site, directory: Path) -> None:
    authority = make_authority(directory, "authority")
    other = make_authority(directory, "other")
    certificate, key = make_certificate(directory, "authority", "controller")
    switch, switch_key = make_certificate(directory, "authority", "switch")
    stranger, stranger_key = make_certificate(directory, "other", "stranger")
    assert other.exists()
    lark = Lark(
        directory,
        site.policy(*RULES),
        LARK_OPENFLOW_LISTEN="",
        LARK_OPENFLOW_TLS_LISTEN="127.0.0.1:0",
        LARK_OPENFLOW_TLS_CERT=str(certificate),
        LARK_OPENFLOW_TLS_KEY=str(key),
        LARK_OPENFLOW_TLS_CA=str(authority),
    )
    lark.start()
    try:
        port = lark.service.controller.openflow_tls_addresses[0][1]
        site.ovs.set_tls(stranger_key, stranger, authority)
        for bridge in site.bridges.values():
            site.ovs.set_controller(bridge, f"ssl:127.0.0.1:{port}")
        wait(lambda: "stream_ssl" in site.ovs.log())
        assert [s for s in lark.get("/v1/switches")["switches"] if s["connected"]] == []
        site.ovs.set_tls(switch_key, switch, authority)
        lark.wait_in_sync(*site.bridges)
        site.runs(lark, {"a": "alice", "d": "alice", "b": "bob"})
        assert site.matrix("a", "b", "d") == {"a>d", "d>a"}
    finally:
        lark.stop()
        site.ovs.vsctl("del-ssl")


def test_a_killed_switch_without_a_controller_passes_nothing_for_jobs(own_ovs: OpenVSwitch, directory: Path) -> None:
    script = Path(__file__).parents[2] / "scripts" / "lark-base-flows"
    with Net() as net:
        site = Site(own_ovs, net, {"a": WORKER1, "b": WORKER1, "d": WORKER2})
        uplink = net.name(f"u{WORKER1:x}")
        lark = Lark(directory, site.policy())
        lark.start()
        try:
            site.connect(lark)
            site.runs(lark, {"a": "alice", "b": "alice", "d": "alice"})
            assert len(site.matrix("a", "b", "d")) == 6
            lark.stop()
            own_ovs.restart(kill9=True)
            assert site.matrix("a", "b", "d") == set()
            run(["sh", str(script), site.bridges[WORKER1], uplink], env=own_ovs.environment)
            base = site.flows(WORKER1)
            assert all(f"cookie=0x{cookie(Category.LOCAL_BASE):x}" in flow for flow in base)
            assert site.matrix("a", "b", "d") == set()
            lark.start()
            lark.wait_in_sync(*site.bridges)
            wait(lambda: {job["state"] for job in lark.live()} == {"enforced"})
            assert set(base) < set(site.flows(WORKER1))
            assert len(site.matrix("a", "b", "d")) == 6
        finally:
            lark.stop()


class Process:
    """``lark run`` as a process of its own, that may be killed."""

    def __init__(self, lark: Lark, port: int, rest: int, patience: float = 120) -> None:
        self.rest = rest
        environ = {
            **os.environ,
            **lark.environ,
            "LARK_OPENFLOW_LISTEN": f"127.0.0.1:{port}",
            "LARK_REST_LISTEN": f"127.0.0.1:{rest}",
        }
        command = [sys.executable, "-m", "lark_controller.cli.main", "run"]
        self.process = subprocess.Popen(command, env=environ, stderr=subprocess.DEVNULL)
        if patience:
            wait(self.answers, patience)

    def answers(self) -> bool:
        assert self.process.poll() is None, "lark run has ended"
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.rest}/readyz", timeout=10) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def end(self, number: int) -> int:
        self.process.send_signal(number)
        return self.process.wait(20)


def test_started_means_that_rest_and_switches_are_answered(directory: Path) -> None:
    lark = Lark(directory, "version: 1\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd, socket.create_server(("127.0.0.1", 0)) as held:
        systemd.bind(str(directory / "notify"))
        systemd.settimeout(30)
        lark.environ |= {"NOTIFY_SOCKET": str(directory / "notify"), "WATCHDOG_USEC": "300000"}
        rest = held.getsockname()[1]
        held.close()
        process = Process(lark, 0, rest, patience=0)
        try:
            assert systemd.recv(100).startswith(b"STATUS=active, generation ")
            assert systemd.recv(100) == b"READY=1"
            assert process.answers()
            assert systemd.recv(100) == b"WATCHDOG=1"
        finally:
            process.end(signal.SIGTERM)
        while (state := systemd.recv(100)) == b"WATCHDOG=1":
            pass
        assert state == b"STOPPING=1"


def test_sighup_reads_the_policy_and_kill_9_under_load_loses_nothing(site: Site, lark: Lark) -> None:
    """The process of its own takes the place of the fixture's controller, on its ports and its database."""
    address = lark.service.server.addresses[0]
    port, rest = lark.service.controller.openflow_addresses[0][1], address.port
    lark.stop()
    asker = _Asker(lark, rest)
    process = Process(lark, port, rest)
    try:
        for bridge in site.bridges.values():
            site.ovs.set_controller(bridge, f"tcp:127.0.0.1:{port}")
        wait(lambda: asker.in_sync(site))
        assert asker.post(site.ads("a", "alice")) == "enforced"
        lark.policy_file.write_text(site.policy(*RULES, "block: {when: 'Owner == \"mallory\"'}"))
        process.process.send_signal(signal.SIGHUP)
        wait(lambda: "mallory" in asker.get("/v1/policy")["text"])
        # Posts that nobody waits for, and a kill in their midst.
        for number in range(40):
            address4 = f'LarkInnerAddressIPv4="10.64.1.{number}"\nLarkInnerAddressIPv6="2001:db8:64:0:1::{number}"'
            ads = site.ads("b", f"user{number % 7}", machine=address4, slot=f"slot{number}").replace(
                site["b"].port, f"absent{number}"
            )
            asker.post(ads, 0)
        process.end(signal.SIGKILL)
        process = Process(lark, port, rest)
        wait(lambda: asker.in_sync(site))
        jobs = asker.get("/v1/jobs?limit=1000")["jobs"]
        assert len(jobs) == 41
        assert _desired(asker, site)
        assert process.end(signal.SIGTERM) == 0
    finally:
        process.process.kill()
        process.process.wait()


def _desired(asker: _Asker, site: Site) -> bool:
    """True where every switch holds exactly the desired flows."""
    for datapath in site.bridges:
        flows = asker.get(f"/v1/switches/{datapath:016x}/flows?limit=1000")["flows"]
        if not all(flow["state"] == "installed" for flow in flows):
            return False
    return True


class _Asker:
    """The API of a controller in another process."""

    def __init__(self, lark: Lark, rest: int) -> None:
        self._token = lark.token
        self._url = f"http://127.0.0.1:{rest}"

    def get(self, path: str, body: str | None = None) -> Any:
        request = urllib.request.Request(
            self._url + path,
            data=None if body is None else body.encode(),
            headers={"Authorization": f"Bearer {self._token}", "Content-Type": "text/plain"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def post(self, ads: str, seconds: float = 5) -> str:
        return str(self.get(f"/v1/jobs?wait={seconds:g}", ads)["state"])

    def in_sync(self, site: Site) -> bool:
        switches = self.get("/v1/switches")["switches"]
        return {switch["datapath"] for switch in switches if switch["in_sync"]} >= {
            f"{datapath:016x}" for datapath in site.bridges
        }
