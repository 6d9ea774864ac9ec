"""The queue of a packet when flows of its job are reserved, and a worker's queues then."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from ipaddress import ip_address, ip_network

import pytest

from lab.openvswitch import OpenVSwitch
from lark_controller.flows.model import ETH_IPV4, ETH_IPV6, Flow, SetField, SetQueue
from lark_controller.flows.placement import Placed
from lark_controller.flows.queue_choice import queue_flows
from lark_controller.flows.wan import local_networks
from lark_controller.policies.file import load
from lark_controller.policies.model import Decision
from lark_controller.qos.queues import DEFAULT_QUEUE, FIRST_JOB_QUEUE, FIRST_RESERVED_QUEUE, Queue
from lark_controller.qos.worker_queues import Claim, QueueDemand, Way, worker_queue_plan
from tests.fixtures.databases import a_run
from tests.fixtures.service import (
    WORKER1,
    Answer,
    Lark,
    Site,
    enforcing,
    wait,
)
from tests.switches.test_queues_ovs import (
    bandwidth,
    chosen,
    post,
    queues,
    rows,
)

LOCAL = local_networks(load('version: 1\nnetworks: {local: [10.0.0.0/8, "2001:db8::/32"]}\n'))


def taken(flows: list[Flow], destination: str) -> int | None:
    """The queue of a packet to an address: that of the flow with the highest priority that matches it."""
    address = ip_address(destination)
    best: tuple[int, int | None] | None = None
    for flow in flows:
        fields = {term.name: term for term in flow.key.match}
        assert fields.pop("in_port").value == 3
        if fields.pop("eth_type").value != (ETH_IPV4 if address.version == 4 else ETH_IPV6):
            continue
        matches = all(int(address) & term.mask == term.value for term in fields.values())
        queue = next((action.queue for action in flow.data.actions if isinstance(action, SetQueue)), None)
        if matches:
            assert best is None or best[0] != flow.key.priority
            best = max(best or (0, None), (flow.key.priority, queue))
    return None if best is None else best[1]


@pytest.mark.parametrize("own", [None, 7])
def test_the_most_special_reservation_decides(own: int | None) -> None:
    reserved = (
        ((), 100),
        ((ip_network("10.1.0.0/16"), ip_network("2001:db8:1::/48")), 101),
        ((ip_network("10.1.2.3/32"),), 102),
        ((ip_network("192.0.2.0/24"),), 103),
    )
    flows = list(queue_flows(Placed(a_run(), Decision(), 1, 3, own, reserved), LOCAL, 1, 9))
    assert len({flow.key for flow in flows}) == len(flows)
    assert all(flow.data.actions[0] == SetField("ip_dscp", 9) for flow in flows)
    for destination, queue in (
        ("198.51.100.1", 100),
        ("2001:db9::1", 100),
        ("10.9.9.9", own),
        ("2001:db8::9", own),
        ("169.254.0.1", own),
        ("10.1.9.9", 101),
        ("2001:db8:1::5", 101),
        ("10.1.2.3", 102),
        ("192.0.2.200", 103),
    ):
        assert taken(flows, destination) == queue, destination


def test_without_queues_there_are_no_flows() -> None:
    assert list(queue_flows(Placed(a_run(), Decision(), 1, 3), LOCAL, 1, 9)) == []
    assert list(queue_flows(Placed(a_run(), Decision(), 1, None, 7), LOCAL, 1, 9)) == []


def test_what_is_reserved_for_flows_is_promised_one_way() -> None:
    demands = [
        QueueDemand(Claim.of_job(5), 0, "p5"),
        QueueDemand(Claim.of_flow(1), FIRST_RESERVED_QUEUE + 1, None, 30.0, way=Way.OUT),
        QueueDemand(Claim.of_flow(2), 0, None, 20.0, way=Way.IN),
    ]
    plan = worker_queue_plan(demands, {"up": 100.0})
    assert plan.ports["up"].queues == {
        FIRST_RESERVED_QUEUE + 1: Queue(30_000_000, 30_000_000),
        DEFAULT_QUEUE: Queue(70_000_000, 100_000_000),
    }
    # What comes in is promised to the receiver, so the unlimited job gets what is left.
    assert plan.ports["p5"].rate == 80_000_000


def ask(lark: Lark, method: str, path: str, body: object = None) -> Answer:
    return lark.request(method, path, None if body is None else json.dumps(body), "application/json")


def topology(site: Site, text: str, duplex: str = "full") -> str:
    return (
        site.policy(text)
        + f"topology:\n  duplex: {duplex}\n  hosts: {{default: {{switch: s, capacity: 200}}}}\n"
        + ("  links: {out: {between: [s, wan], capacity: 1000}}\n")
    )


def numbers(flows: list[str]) -> set[int]:
    """The queues that flows choose."""
    return {int(flow.split("set_queue:")[1].split(",")[0]) for flow in flows}


@pytest.fixture
def started(ovs: OpenVSwitch) -> Iterator[tuple[Site, Lark]]:
    hosts = {"a": WORKER1, "b": WORKER1}
    sliced = partial(topology, text="slice: {by: Owner}")
    with enforcing(ovs, hosts, sliced, core=False, uplink=True, queues=True) as made:
        yield made


@pytest.mark.ovs
def test_a_reserved_flow_has_a_queue_from_its_reservation_to_its_end(
    started: tuple[Site, Lark], ovs: OpenVSwitch
) -> None:
    site, lark = started
    uplink = site.net.name("ue1")
    job = post(site, lark, "a", "alice", number=7)
    assert (job["state"], queues(ovs)) == ("enforced", {})
    wish = {"source": job["id"], "destination": "192.0.2.1", "rate": 50, "steady": True}
    made = ask(lark, "POST", "/v1/reservations", wish)
    assert made.status == 201, made
    wait(lambda: chosen(site))
    number = int(chosen(site)[0].split("set_queue:")[1].split(",")[0])
    assert number >= FIRST_RESERVED_QUEUE
    assert queues(ovs) == {uplink: {0: (150, 200), number: (50, 50)}}
    assert "nw_dst=192.0.2.1 " in chosen(site)[0]
    before = {row["_uuid"][1] for row in rows(ovs, "queue")}
    path = f"/v1/reservations/{made.body['id']}"
    assert ask(lark, "PATCH", path, {"rate": 75}).status == 200
    wait(lambda: queues(ovs) == {uplink: {0: (125, 200), number: (75, 75)}})
    assert {row["_uuid"][1] for row in rows(ovs, "queue")} == before
    # What is left is for all, and nobody waits for another's part.
    assert ask(lark, "PATCH", path, {"rate": 80, "steady": False}).status == 200
    parts = [FIRST_JOB_QUEUE + each for each in (1, 2)]
    wait(lambda: queues(ovs) == {uplink: {0: (40, 200), parts[0]: (40, 200), number: (120, 200)}})
    other = post(site, lark, "b", "bob", number=8)
    assert other["state"] == "enforced"
    shared = {uplink: {0: (30, 200), **dict.fromkeys(parts, (30, 200)), number: (110, 200)}}
    wait(lambda: queues(ovs) == shared and numbers(chosen(site)) == {number, *parts})
    lark.stop()
    lark.start()
    lark.wait_in_sync(WORKER1)
    assert (queues(ovs), numbers(chosen(site))) == (shared, {number, *parts})
    # Parts that come back before their queues have gone are chosen again.
    for steady in (True, False) * 3:
        assert ask(lark, "PATCH", path, {"steady": steady}).status == 200
    wait(lambda: queues(ovs) == shared and numbers(chosen(site)) == {number, *parts})
    assert ask(lark, "PATCH", path, {"rate": 75, "steady": True}).status == 200
    wait(lambda: queues(ovs) == {uplink: {0: (125, 200), number: (75, 75)}})
    assert numbers(chosen(site)) == {number}
    assert {row["_uuid"][1] for row in rows(ovs, "queue")} == before
    lark.stop()
    lark.start()
    lark.wait_in_sync(WORKER1)
    assert f"set_queue:{number}" in chosen(site)[0]
    assert ask(lark, "DELETE", path).status == 200
    wait(lambda: not queues(ovs) and not rows(ovs, "queue") and not chosen(site))


@pytest.mark.ovs
def test_a_job_that_ends_takes_its_reserved_flows_along(started: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = started
    job = post(site, lark, "a", "alice", number=7)
    for destination in ("wan", "192.0.2.1"):
        wish = {"source": job["id"], "destination": destination, "rate": 50}
        assert ask(lark, "POST", "/v1/reservations", wish).status == 201
    again = ask(lark, "POST", "/v1/reservations", {"source": job["id"], "destination": "wan", "rate": 1})
    assert (again.status, again.body["type"]) == (422, "urn:lark:problem:topology")
    # Each flow has one, and what the job sends besides.
    wait(lambda: len(numbers(chosen(site))) == 3)
    lark.end(job)
    wait(lambda: not queues(ovs) and not chosen(site))
    assert {each["reserved"] for each in lark.get("/v1/links")["links"]} == {0}


@pytest.mark.ovs
def test_what_stays_inside_a_worker_takes_no_queue(started: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = started
    job = post(site, lark, "a", "alice")
    post(site, lark, "b", "alice")
    wish = {"source": job["id"], "destination": site["b"].ipv4, "rate": 5000}
    made = ask(lark, "POST", "/v1/reservations", wish)
    assert (made.status, made.body["holds"]) == (201, [])
    assert queues(ovs) == {}


@pytest.mark.ovs
def test_what_a_job_reserves_as_a_sender_limits_nobodys_receiving(started: tuple[Site, Lark], ovs: OpenVSwitch) -> None:
    site, lark = started
    lark.put_policy(topology(site, "bandwidth: {mode: guarantee}", "full"))
    job = post(site, lark, "a", "alice")
    post(site, lark, "b", "alice")
    made = ask(lark, "POST", "/v1/reservations", {"source": job["id"], "destination": "192.0.2.1", "rate": 50})
    assert made.status == 201
    wait(lambda: any(least >= 50 for least, _ in queues(ovs).get(site.net.name("ue1"), {}).values()))
    assert set(queues(ovs)) == {site.net.name("ue1")}


@pytest.mark.ovs
def test_of_a_half_duplex_link_the_sender_has_what_is_not_promised_towards_it(
    started: tuple[Site, Lark], ovs: OpenVSwitch
) -> None:
    site, lark = started
    lark.put_policy(topology(site, "bandwidth: {mode: cap}", "half"))
    post(site, lark, "a", "alice", **bandwidth(60))
    wait(lambda: (140, 140) not in queues(ovs).get(site.net.name("ue1"), {}).values() and queues(ovs))
    assert sorted(queues(ovs)[site.net.name("ue1")].values()) == [(60, 60), (80, 140)]
