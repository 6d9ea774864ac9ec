"""Flows of jobs themselves: told of and marked in their own networks, within limits, and seen at a core's WAN port."""

from __future__ import annotations

import contextlib
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import TypeVar

import pytest

from lab.namespaces import Host, Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_common.scitags import LABEL_MASK, Scitag
from lark_worker.errors import NetworkError
from lark_worker.network.commands import inside, run
from lark_worker.transfers import own_flows, own_labels, reports
from lark_worker.transfers.book import Turns
from lark_worker.transfers.own_flows import OwnFlows
from lark_worker.transfers.own_labels import Label, OwnLabels
from tests.fixtures.service import wait
from tests.worker.pool import Pool, a_pool
from tests.worker.test_bridge_nat import BRIDGE, NAT, a_site
from tests.worker.test_fireflies import ONE, TWO, receiving
from tests.worker.test_flow_labels import CMS, PREFIX, Capture
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs
Made = TypeVar("Made")
FAR = {4: "10.9.0.9", 6: "3fff:9::9"}


def within(namespace: str, make: Callable[[], Made]) -> Made:
    """A thing that was made in a namespace."""
    made: list[Made] = []
    inside(namespace, lambda: made.append(make()))
    return made[0]


def listening(namespace: str, address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return within(namespace, lambda: socket.create_server((address, 0), family=family))


def call(namespace: str, server: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Both ends of a connection to a server, the caller's first."""
    here = within(namespace, lambda: socket.create_connection(server.getsockname()[:2], 20))
    return here, server.accept()[0]


def send(sender: socket.socket, taker: socket.socket, count: int) -> None:
    sender.sendall(bytes(count))
    while count:
        count -= len(taker.recv(count))


@pytest.fixture
def joined(net: Net) -> tuple[Host, Host, Host]:
    """Two jobs and a host far away, on one bridge."""
    bridge = net.bridge("b")
    made = [
        net.host(name, addresses=[f"10.9.0.{number}/24", f"3fff:9::{number}/64"])
        for name, number in (("one", 1), ("two", 2), ("far", 9))
    ]
    for each in made:
        run(["ip", "link", "set", each.port, "master", bridge])
    return made[0], made[1], made[2]


@pytest.fixture
def flows() -> Iterator[OwnFlows]:
    made = OwnFlows()
    yield made
    made.close()


@pytest.mark.parametrize("version", [4, 6])
def test_a_jobs_connections_are_found_counted_and_over(
    joined: tuple[Host, Host, Host], flows: OwnFlows, version: int
) -> None:
    one, two, far = joined
    places = {ONE: one.namespace, TWO: two.namespace}
    assert flows.look(places, 1.0, lambda *_: True) == ([], [])
    with listening(far.namespace, FAR[version]) as server, listening(one.namespace, "10.9.0.1") as own:
        here, there = call(one.namespace, server)
        send(here, there, 5000)
        # Its other end is the far host, or it is of two, and nobody wants it.
        call(two.namespace, server)
        unwanted = call(two.namespace, own)
        wait(lambda: flows.look(places, 2.0, lambda each, key: key == ONE and each.ports[1] == there_port(server))[0])
        (flow,) = flows.flows()
        assert (flow.key, flow.since, str(flow.connection.remote)) == (ONE, 2.0, FAR[version])
        send(there, here, 700)
        here.close()
        there.close()
        over: list[int] = []

        def ended() -> bool:
            over.extend(each.connection.received for each in flows.look(places, 3.0, lambda *_: False).over)
            return bool(over)

        wait(ended)
        # Beginning and end count as a byte each.
        assert 700 <= over[0] <= 702
        assert len(flows) == 0
        # One that begins and ends between two looks began after the one before.
        here, there = call(one.namespace, server)
        send(here, there, 30)
        here.close()
        there.close()
        found: list[Turns] = []

        def short() -> bool:
            found.append(flows.look(places, 4.0, lambda each, key: key == ONE and each.ports[1] == there_port(server)))
            return bool(found[-1].over)

        wait(short)
        assert [each.since for turns in found for each in turns.over] in ([3.0], [4.0])
        assert sum(len(turns.found) for turns in found) == 1
        for each in unwanted:
            each.close()
    # A job that is over, or that has no network any more.
    assert flows.look({}, 5.0, lambda *_: True) == ([], [])
    assert flows.look({ONE: "nonexistent"}, 6.0, lambda *_: True) == ([], [])


def there_port(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def test_one_jobs_flood_is_bounded_and_costs_no_other_its_messages(
    joined: tuple[Host, Host, Host], flows: OwnFlows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_flows, "MOST_OF_JOB", 5)
    monkeypatch.setattr(own_flows, "BURST", 8.0)
    monkeypatch.setattr(own_flows, "RATE", 1e-9)
    monkeypatch.setattr(own_flows, "MOST_READ", 40)
    one, two, far = joined
    places = {ONE: one.namespace, TWO: two.namespace}
    flows.look(places, 1.0, lambda *_: True)
    with contextlib.ExitStack() as ends, listening(far.namespace, FAR[4]) as server:
        for _ in range(60):
            for each in call(one.namespace, server):
                ends.enter_context(each)
        for each in call(two.namespace, server):
            ends.enter_context(each)
        found = flows.look(places, 2.0, lambda *_: True).found
        assert [each.key for each in found].count(ONE) == 5
        assert [each.key for each in found].count(TWO) == 1
        assert flows.beyond > 0
    told = 5
    for at in range(3, 20):
        told += [each.key for each in flows.look(places, float(at), lambda *_: True).found].count(ONE)
    # Short connections are no way around it.
    assert told <= 8
    wait(lambda: flows.look(places, 30.0, lambda *_: True) == ([], []))
    assert len(flows) == 0


def labels_at(far: Host) -> Capture:
    return within(far.namespace, lambda: Capture("eth0"))


def test_all_that_a_job_sends_is_marked_and_what_stays_near_is_not(
    joined: tuple[Host, Host, Host], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, far = joined
    live = {one.namespace, two.namespace}
    marker = tmp_path / "labelled"
    labels, capture = OwnLabels(PREFIX, marker), labels_at(far)
    try:
        with listening(far.namespace, FAR[6]) as server:
            here, there = call(one.namespace, server)
            other, taker = call(two.namespace, server)
            ports = here.getsockname()[1], other.getsockname()[1]

            def label(number: int, sender: socket.socket, receiver: socket.socket) -> int:
                seen = len(capture.seen)
                send(sender, receiver, 9)
                wait(lambda: any(each[0] == number for each in capture.seen[seen:]))
                return [each[2] for each in capture.seen[seen:] if each[0] == number][-1]

            before = label(ports[0], here, there)
            for mark in (CMS, Scitag(511, 63), Scitag(256, 32)):
                labels.put({one.namespace: Label(mark, ())}, live)
                assert len(labels) == 1
                assert marker.exists()
                now = label(ports[0], here, there)
                assert (now & LABEL_MASK, now & ~LABEL_MASK) == (mark.label, before & ~LABEL_MASK)
                # The other job has none.
                assert label(ports[1], other, taker) & LABEL_MASK != mark.label
            # Networks of which nobody is to know, whatever else is in them.
            silent = tuple(map(ip_network, ("3fff:9::/64", "3fff::/16", "10.0.0.0/8", "fe80::/10")))
            labels.put({one.namespace: Label(CMS, silent)}, live)
            assert label(ports[0], here, there) == before
            labels.put({one.namespace: Label(CMS, ())}, live)
            # A service that was killed has left it, and the next one wants none.
            OwnLabels(PREFIX, marker).put({}, live)
            assert label(ports[0], here, there) == before
            assert not marker.exists()
            # A network that takes no table is tried again after a while, and holds up no other.
            again = OwnLabels(PREFIX, marker)
            monkeypatch.setattr(own_labels, "AGAIN_SECONDS", 0.0)
            wanted = {"nonexistent": Label(CMS, ()), one.namespace: Label(CMS, ())}
            again.put(wanted, {*live, "nonexistent"})
            assert len(again) == 1
            assert label(ports[0], here, there) & LABEL_MASK == CMS.label
            with monkeypatch.context() as broken:
                broken.setattr(own_labels, "run", refuse)
                again.put({one.namespace: Label(Scitag(4, 4), ())}, live)
                assert len(again) == 0
            again.put({one.namespace: Label(Scitag(4, 4), ())}, live)
            assert label(ports[0], here, there) & LABEL_MASK == Scitag(4, 4).label
            again.put({}, live)
            assert label(ports[0], here, there) == before
            for each in (here, there, other, taker):
                each.close()
    finally:
        capture.close()


def refuse(*_: object) -> str:
    raise NetworkError("nft -f -: Operation not supported")


SCITAGS = """
scitags: {collectors: ["127.0.0.1:PORT"], ongoing: 5, labels: true, jobs: true, flows: FLOWS}
policies:
  - scitags: {experiment: 3, activity: 12, requested: [15], when: 'Owner == "alice"'}
"""
CORE = """
version: 1
edge: {uplinks: [UPLINK]}
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  local: [10.0.0.0/8, "2001:db8::/32"]
  hosts: [10.64.0.1, "2001:db8:64::1"]
switches:
  core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2}}
"""
LINUX = """
version: 1
networks: {jobs: [10.64.0.0/16, "2001:db8:64::/48"], local: [10.0.0.0/8], hosts: [10.64.0.1, "2001:db8:64::1"]}
"""


@contextmanager
def behind_a_core(ovs: OpenVSwitch, net: Net) -> Iterator[tuple[Pool, Host]]:
    """A worker with Open vSwitch, a core switch, and a host at the core's WAN port that is the jobs' router, too."""
    far = net.host("far", addresses=["10.64.0.1/16", "192.0.2.5/24", "2001:db8:64::1/48", "3fff::5/64"])
    edge_end, core_end = net.link("le", "lc")
    core = net.name("c")
    policy = CORE.replace("UPLINK", edge_end)
    with (
        temporary_directory() as folder,
        a_pool(Path(folder), ovs, net, policy, gateways="10.64.0.1,2001:db8:64::1", counter_seconds="0.2") as pool,
    ):
        ovs.add_port(pool.bridge, edge_end)
        ovs.add_bridge(core, 0xC0, f"tcp:127.0.0.1:{pool._ports[0]}")
        ovs.add_port(core, core_end, 1)
        ovs.add_port(core, far.port, 2)
        try:
            yield pool, far
        finally:
            ovs.vsctl("del-br", core)


def start(pool: Pool, kind: str, owner: str, number: int, more: str = "") -> str:
    """Start a job; its namespace."""
    said = pool.hook(pool.starter(number, owner, kind), "start", owner, number, more)
    job = value(said, "LarkJobId")
    # The hook's own wait may be over before a busy worker has its rules in place.
    wait(lambda: pool.client.job(job)["state"] == "enforced")
    return f"{pool.prefix}-{job}"


@pytest.mark.parametrize("address", ["192.0.2.5", "3fff::5"])
def test_marks_are_seen_at_a_cores_wan_port_and_flows_are_told_from_start_to_end(
    ovs: OpenVSwitch, net: Net, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports, "AGAIN_SECONDS", 1.0)
    with behind_a_core(ovs, net) as (pool, far), receiving() as collector:
        scitags = SCITAGS.replace("PORT", str(collector.port)).replace("FLOWS", "wan")
        policy = pool.client.policy()["text"] + scitags
        pool.client.put_policy(policy)
        alice = start(pool, "", "alice", 1, "ScitagActivity = 15\n")
        bob = start(pool, "", "bob", 2)
        worker, mark = pool.worker, Scitag(3, 15)
        assert worker is not None
        wait(lambda: len(worker.fireflies._own_labels) == 1)
        capture = labels_at(far)
        with listening(far.namespace, address) as server:
            here, there = call(alice, server)
            other, taker = call(bob, server)
            send(here, there, 50_000)
            send(other, taker, 50_000)
            wait(lambda: collector.states()[:2] == ["start", "ongoing"], limit=60)
            send(there, here, 7000)
            if ":" in address:
                ports = here.getsockname()[1], other.getsockname()[1]
                found = capture.labels(ports[0])
                assert found
                assert {each & LABEL_MASK for each in found} == {mark.label}
                # From the first packet on, with the sender's own entropy; bob's are his kernel's.
                assert len({each & ~LABEL_MASK for each in found}) == 1
                assert mark.label not in {each & LABEL_MASK for each in capture.labels(ports[1])}
            here.close()
            there.close()
            wait(lambda: collector.states()[-1] == "end", limit=60)
            other.close()
            taker.close()
        capture.close()
        last = collector.seen[-1]
        assert {each["flow-id"]["dst-ip"] for each in collector.seen} == {address}
        assert (
            ip_address(last["flow-id"]["src-ip"])
            in (ip_network("10.64.0.0/16"), ip_network("2001:db8:64::/48"))[":" in address]
        )
        assert last["context"] == {"experiment-id": 3, "activity-id": 15, "application": "lark"}
        assert 50_000 <= last["usage"]["sent"] <= 50_002
        assert 7000 <= last["usage"]["received"] <= 7002
        # Without jobs: true nothing of it is left, in networks of jobs that run.
        pool.client.put_policy(policy.replace("jobs: true, flows", "jobs: false, flows"))
        wait(lambda: len(worker.fireflies._own_labels) == 0, limit=60)
        listed = subprocess.run(
            ["ip", "netns", "exec", alice, "nft", "list", "tables"], capture_output=True, text=True, check=True
        )
        assert "scitags" not in listed.stdout


@pytest.mark.parametrize(("kind", "address"), [(BRIDGE, "2001:db8:64::1"), (BRIDGE, "10.64.0.1"), (NAT, "10.0.0.1")])
def test_other_kinds_of_network_have_the_same_but_for_addresses_behind_nat(
    ovs: OpenVSwitch, net: Net, kind: str, address: str
) -> None:
    with a_site(ovs, net, LINUX, counter_seconds="0.2") as (pool, site), receiving() as collector:
        policy = LINUX + SCITAGS.replace("PORT", str(collector.port)).replace("FLOWS", "all")
        pool.client.put_policy(policy)
        alice = start(pool, kind, "alice", 1)
        worker = pool.worker
        assert worker is not None
        wait(lambda: len(worker.fireflies._own_labels) == 1)
        capture = Capture(site.bridge)
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.create_server((address, 0), family=family) as server:
            here, there = call(alice, server)
            send(here, there, 5000)
            if kind == BRIDGE:
                wait(lambda: collector.states()[:1] == ["start"], limit=60)
            port = here.getsockname()[1]
            if ":" in address:
                wait(lambda: capture.labels(port))
                assert {each & LABEL_MASK for each in capture.labels(port)} == {CMS.label}
            here.close()
            there.close()
            if kind == BRIDGE:
                wait(lambda: collector.states() == ["start", "end"], limit=60)
                assert collector.seen[-1]["flow-id"]["dst-ip"] == address
            else:
                # The address is one that nobody on the way has seen.
                looked = worker.fireflies._looked
                wait(lambda: worker.fireflies._looked > looked, limit=60)
                assert collector.seen == []
        capture.close()


def test_a_job_without_a_network_has_no_flows(ovs: OpenVSwitch, net: Net) -> None:
    with temporary_directory() as folder, a_pool(Path(folder), ovs, net, counter_seconds="0.2") as pool:
        policy = "version: 1\n" + SCITAGS.replace("PORT", "9").replace("FLOWS", "all")
        pool.client.put_policy(policy)
        start(pool, 'NetworkType = "none"\n', "alice", 1)
        worker = pool.worker
        assert worker is not None
        wait(lambda: worker.fireflies._known != {} and worker.fireflies._looked > 0)
        looked = worker.fireflies._looked
        wait(lambda: worker.fireflies._looked > looked)
        assert len(worker.fireflies._own_labels) == 0
        assert worker.fireflies._own._jobs == {}
