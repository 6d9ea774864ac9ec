"""The links that a job or a requested flow takes from the topology, and the ends that a text names."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Any

import pytest

from lark_common.errors import PathError
from lark_common.runs import NetworkType, RunKey
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.decide import decide
from lark_controller.policies.file import load
from lark_controller.policies.model import Decision, Policy
from lark_controller.qos.booking import End, demand_of, end_of, flow_booking, job_booking, promise, wan_node
from lark_controller.qos.reservation import Booking, Reservation, ReservationKind, ReservationPage
from lark_controller.qos.topology import Demand, Topology

SITE = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8, "2001:db8::/32"]}
switches:
  core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-Fast: 3}}
topology:
  links:
    trunk: {between: [rack, core], capacity: 1Gbit}
    wan: {between: [core, wan], capacity: 500}
    wan-fast: {between: [core, wan-fast], capacity: 500}
  hosts:
    w1: {switch: rack, capacity: 1000}
    w2: {switch: rack, capacity: 1000, duplex: half}
    store: {switch: core, capacity: 10Gbit, addresses: [10.0.0.5, 10.0.1.0/24]}
"""
STEERED = """
policies:
  - wan: {when: 'Owner == "carol"', port: wan-Fast}
  - wan: {when: 'Owner == "eve"', action: drop}
"""
LIMITED = """
policies:
  - bandwidth: {default: 10Mbit, maximum: 200Mbit, when: 'Owner != "root"'}
"""


def site(text: str = SITE) -> tuple[Policy, Topology]:
    policy = load(text)
    assert policy.topology is not None
    return policy, Topology(policy.topology, {})


def a_job(number: int = 1, owner: str = "alice", **changes: Any) -> Job:
    run = RunKey(f"s#{number}.0#1", 1, f"slot{number}")
    facts = Facts((("acctgroup", f'"{changes.get("group", "cms")}"'), ("owner", f'"{owner}"')))
    job = Job(
        number, run, run.id, owner, owner, "cms", number, 0, "W1",
        ipv4=IPv4Address("10.64.0.0") + number, ipv6=IPv6Address("2001:db8::") + number, facts=facts, bandwidth=100.0,
    )  # fmt: skip
    return replace(job, **changes)


def nobody(_: str) -> None:
    """The live job of an id or an address, where none lives."""


def taken(demand: Demand) -> dict[str, int]:
    return {channel.key: kbps for channel, kbps in demand}


def test_a_job_takes_its_access_link_both_ways() -> None:
    policy, topology = site()
    job = a_job()
    booked = job_booking(job, policy, topology)
    assert booked is not None
    assert booked == Booking(ReservationKind.JOB, 100_000, "w1", "w1", booked.demand, job=job.id)
    assert taken(booked.demand) == {"access:w1 w1>rack": 100_000, "access:w1 rack>w1": 100_000}
    half = job_booking(a_job(host="w2"), policy, topology)
    assert half is not None
    assert taken(half.demand) == {"access:w2": 200_000}
    assert booked.what == "RequestBandwidth = 100 Mb/s on w1"


def test_a_job_may_take_the_whole_way_to_the_wan() -> None:
    policy, topology = site(SITE.replace("topology:", "topology:\n  reserves: wan"))
    booked = job_booking(a_job(), policy, topology)
    assert booked is not None
    assert (booked.source, booked.destination) == ("w1", "wan")
    both = (
        "access:w1 w1>rack",
        "trunk rack>core",
        "wan core>wan",
        "wan wan>core",
        "trunk core>rack",
        "access:w1 rack>w1",
    )
    assert taken(booked.demand) == dict.fromkeys(both, 100_000)


@pytest.mark.parametrize(
    ("asked", "owner", "kbps"),
    [(None, "alice", 10_000), (0.0, "alice", 10_000), (150.5, "alice", 150_500), (900.0, "alice", 200_000),
     (None, "root", None), (900.0, "root", 900_000)],
)  # fmt: skip
def test_a_policy_gives_a_default_and_a_maximum(asked: float | None, owner: str, kbps: int | None) -> None:
    policy, topology = site(SITE + LIMITED)
    decided: list[Facts] = []

    def remembered(facts: Facts) -> Decision:
        decided.append(facts)
        return decide(facts, policy)

    job = a_job(owner=owner, bandwidth=asked)
    for booked in (job_booking(job, policy, topology), job_booking(job, policy, topology, remembered)):
        assert (None if booked is None else booked.kbps) == kbps
    assert decided == [job.facts]


def test_no_more_is_booked_than_a_job_can_have() -> None:
    policy, topology = site(SITE + "policies:\n  - bandwidth: {mode: guarantee, ceiling: 50Mbit}\n")
    booked = job_booking(a_job(), policy, topology)
    assert booked is not None
    assert taken(booked.demand) == {"access:w1 w1>rack": 50_000, "access:w1 rack>w1": 50_000}


def test_what_asks_for_nothing_or_has_no_network_takes_nothing() -> None:
    policy, topology = site()
    assert job_booking(a_job(bandwidth=None), policy, topology) is None
    assert job_booking(a_job(network_type=NetworkType.NONE), policy, topology) is None
    assert promise(a_job(bandwidth=None), policy, topology, lambda facts: decide(facts, policy)) is None


def test_a_live_job_without_a_path_takes_nothing_of_any_link() -> None:
    policy, topology = site()
    lost = a_job(host="Elsewhere")
    with pytest.raises(PathError, match="no host"):
        job_booking(lost, policy, topology)

    def decided(facts: Facts) -> Decision:
        return decide(facts, policy)

    assert promise(lost, policy, topology, decided) == Booking(
        ReservationKind.JOB, 100_000, "elsewhere", "elsewhere", (), job=lost.id
    )
    assert promise(replace(lost, bandwidth=None), policy, topology, decided) is None
    assert promise(a_job(), policy, topology, decided) == job_booking(a_job(), policy, topology)


def test_a_flow_takes_one_direction() -> None:
    _, topology = site()
    one, other = a_job(1), a_job(2, host="w2")
    target = (ip_network("10.64.0.2/32"),)
    booked = flow_booking(End("w1", one), End("w2", other, target), 50.0005, 99.0, topology)
    assert booked == Booking(
        ReservationKind.FLOW, 50_001, "w1", "w2", booked.demand, one.id, other.id, target, until=99.0
    )
    assert taken(booked.demand) == {"access:w1 w1>rack": 50_001, "access:w2": 50_001}
    assert booked.what == "50.001 Mb/s from w1 to w2"
    alone = flow_booking(End("wan"), End("store"), 1, None, topology)
    assert (alone.job, alone.peer, alone.target, alone.until) == (None, None, (), None)


def test_what_a_reservation_takes_is_what_was_booked() -> None:
    policy, topology = site()
    job = job_booking(a_job(host="w2"), policy, topology)
    assert job is not None
    for booked in (job, flow_booking(End("w1"), End("w2"), 100, None, topology)):
        kept = Reservation(1, "0" * 16, booked.kind, booked.kbps, booked.source, booked.destination, {})
        assert kept.rate == 100.0
        assert demand_of(kept, topology, policy, nobody) == booked.demand
        other_rate = demand_of(kept, topology, policy, nobody, 7)
        assert [kbps for _, kbps in other_rate] == [kbps * 7 // 100_000 for _, kbps in booked.demand]


def test_the_ends_that_a_text_names() -> None:
    policy, topology = site()
    job, nat = a_job(1), a_job(2, network_type=NetworkType.NAT)
    jobs = {job.id: job, "10.64.0.1": job, nat.id: nat}

    def named(text: str) -> End:
        return end_of(text, jobs.get, None, policy, topology)

    own = (ip_network("10.64.0.1/32"), ip_network("2001:db8::1/128"))
    assert named(job.id) == named("10.64.0.1") == End("w1", job, own)
    assert named(nat.id) == End("w1", nat)
    assert named("WAN-Fast") == End("wan-fast")
    assert named("wan") == End("wan", follows=True)
    with pytest.raises(PathError, match="the policy's topology has no WAN wan7; it has wan, wan-fast"):
        named("wan7")
    assert named("Store") == End("store", None, (ip_network("10.0.0.5/32"), ip_network("10.0.1.0/24")), whole=True)
    assert named("CORE") == End("core", whole=True)
    assert named("10.0.1.9") == End("store", None, (ip_network("10.0.1.9/32"),))
    assert named("198.51.100.0/24") == End("wan", None, (ip_network("198.51.100.0/24"),), follows=True)
    assert named("2001:db9::1") == End("wan", None, (ip_network("2001:db9::1/128"),), follows=True)
    for text in ("10.9.0.1", "0.0.0.0/0", "2001:db8::99"):
        with pytest.raises(PathError, match="is no WAN address"):
            named(text)
    with pytest.raises(PathError, match="neither a live job, nor a host"):
        named("nowhere")


def test_a_job_without_an_address_is_no_end_yet() -> None:
    policy, topology = site()
    job = a_job(ipv4=None, ipv6=None)
    with pytest.raises(PathError, match="has no address yet"):
        end_of(job.id, {job.id: job}.get, None, policy, topology)
    nat = replace(job, network_type=NetworkType.NAT)
    assert end_of(job.id, {job.id: nat}.get, None, policy, topology) == End("w1", nat)
    none = replace(job, network_type=NetworkType.NONE)
    with pytest.raises(PathError, match="has no network of its own"):
        end_of(job.id, {job.id: none}.get, None, policy, topology)


GROUPS = "groups:\n  cms: {port: wan-Fast, dscp: 9, ceiling: 1Mbit}\n"


@pytest.mark.parametrize(
    ("more", "owner", "group", "expected"),
    [
        (STEERED, "carol", "cms", "wan-fast"),
        (STEERED, "alice", "cms", "wan"),
        (STEERED, "eve", "cms", "wan"),
        (GROUPS, "alice", "cms", "wan"),
        (STEERED + GROUPS, "carol", "cms", "wan-fast"),
        (STEERED + GROUPS, "eve", "cms", "wan"),
    ],
)
def test_the_wan_of_a_job_is_where_a_rule_steers_it(more: str, owner: str, group: str, expected: str) -> None:
    policy, topology = site(SITE + more)
    job = a_job(owner=owner, group=group)
    assert wan_node(job, policy, topology) == expected
    assert wan_node(None, policy, topology) == "wan"
    assert end_of("198.51.100.1", lambda _: None, job, policy, topology).node == expected
    assert end_of("Wan", lambda _: None, job, policy, topology).node == expected
    # Another name is that WAN, wherever the job is steered.
    assert end_of("wan-fast", lambda _: None, job, policy, topology) == End("wan-fast")


@pytest.mark.parametrize(("text", "target"), [("wan", ""), ("198.51.100.0/24", "198.51.100.0/24")])
@pytest.mark.parametrize("plain", ["wan", "wan-a", "wan-main"])
def test_a_flow_to_the_wan_follows_its_sender_and_the_names_of_wans(text: str, target: str, plain: str) -> None:
    policy, topology = site(SITE.replace("[core, wan]", f"[core, {plain}]") + STEERED)
    carol, alice = a_job(1, "carol"), a_job(2, "alice")
    jobs = {job.id: job for job in (carol, alice)}
    for job, link in ((carol, "wan-fast core>wan-fast"), (alice, f"wan core>{plain}")):
        end = end_of(text, nobody, job, policy, topology)
        booked = flow_booking(End("w1", job), end, 20, None, topology)
        taken_links = {"access:w1 w1>rack", "trunk rack>core", link}
        assert (booked.destination, {*taken(booked.demand)}) == ("wan", taken_links)
        assert " ".join(map(str, booked.target)) == target
        # Whatever topology and rules there were when it was admitted.
        for destination in ("wan", *(("wan-old",) if target else ())):
            kept = Reservation(
                1, "0" * 16, booked.kind, booked.kbps, "w1", destination, {}, job=job.id, target=booked.target
            )
            assert demand_of(kept, topology, policy, jobs.get) == booked.demand


def test_a_name_that_means_a_wan_is_no_host_of_the_default() -> None:
    defaults = SITE.replace("  hosts:\n", "  hosts:\n    default: {switch: rack, capacity: 1Gbit}\n")
    policy, topology = site(defaults)
    for kind, source, destination in (
        (ReservationKind.FLOW, "w1", "wan-old"),
        (ReservationKind.FLOW, "wan-old", "w1"),
        (ReservationKind.JOB, "w1", "wan-old"),
    ):
        kept = Reservation(1, "0" * 16, kind, 5, source, destination, {})
        with pytest.raises(PathError, match="has no WAN wan-old"):
            demand_of(kept, topology, policy, nobody)
    # A worker may be called so.
    (job, peer) = a_job(1, host="Wanda1"), a_job(2, host="wanda2")
    booked = flow_booking(End("wanda1", job), End("wanda2", peer), 5, None, topology)
    kept = Reservation(1, "0" * 16, booked.kind, booked.kbps, "wanda1", "wanda2", {}, job=job.id, peer=peer.id)
    assert demand_of(kept, topology, policy, {job.id: job}.get) == booked.demand
    own = job_booking(job, policy, topology)
    assert own is not None
    assert (own.source, len(own.demand)) == ("wanda1", 2)


def test_without_a_topology_nothing_is_taken() -> None:
    policy, _ = site()
    kept = Reservation(1, "0" * 16, ReservationKind.FLOW, 5, "w1", "wan", {})
    with pytest.raises(PathError, match="declares no topology"):
        demand_of(kept, None, policy, nobody)


def test_without_a_plain_wan_the_first_is_taken_and_without_any_there_is_no_path() -> None:
    policy, topology = site(SITE.replace("    wan: {between: [core, wan], capacity: 500}\n", ""))
    assert wan_node(None, policy, topology) == "wan-fast"
    policy, topology = site(SITE.replace("[core, wan]", "[core, wan-slow]"))
    assert wan_node(None, policy, topology) == "wan-fast"
    policy, topology = site(SITE.replace("[core, wan]", "[core, west]").replace("[core, wan-fast]", "[core, east]"))
    with pytest.raises(PathError, match="leads to a WAN"):
        wan_node(None, policy, topology)


def test_a_booking_and_a_reservation_of_which_little_is_said() -> None:
    _, topology = site()
    steady = flow_booking(End("w1"), End("wan"), 5, None, topology, steady=True)
    assert (steady.steady, flow_booking(End("w1"), End("wan"), 5, None, topology).steady) == (True, False)
    kept = Reservation(1, "0" * 16, ReservationKind.JOB, 1500, "w1", "w1", {})
    assert (kept.job, kept.peer, kept.target, kept.until) == (None, None, (), None)
    assert (kept.created, kept.actor, kept.steady, kept.rate) == (0.0, "", False, 1.5)
    assert ReservationPage((kept,)).next_cursor is None
    assert [kind.value for kind in ReservationKind] == ["job", "flow"]
    assert End("wan") == End("wan", None, ())


def test_addresses_of_both_versions_are_one_end() -> None:
    policy, topology = site()
    job = a_job(1, ipv6=None)
    assert end_of(job.id, {job.id: job}.get, None, policy, topology).networks == (ip_network("10.64.0.1/32"),)
    with pytest.raises(PathError, match=r"job 1\.0 has no address yet"):
        end_of(job.id, {job.id: replace(job, ipv4=None)}.get, None, policy, topology)
