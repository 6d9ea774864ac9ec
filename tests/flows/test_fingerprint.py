"""Equal fingerprints stand for equal programs, in every process; and markers carry them."""

from __future__ import annotations

import cProfile
import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from ipaddress import IPv4Address, IPv6Address
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.runs import AddressType, NetworkType, RunKey
from lark_controller.flows.desired import Desired
from lark_controller.flows.fingerprint import Fingerprints
from lark_controller.flows.marker import MARKERS, MOST_RULES, Marker, read_marker
from lark_controller.flows.model import Program
from lark_controller.flows.placement import Placed, Switch
from lark_controller.flows.transition import Transition
from lark_controller.jobs.external import External, Opening
from lark_controller.jobs.job import Facts, Job, JobState
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.policies.model import Decision, NamedScitag, SliceKey, SwitchRole
from lark_controller.policies.transfer_rules import TransferTerms
from lark_controller.qos.worker_queues import Claim
from tests.flows.test_desired import EDGES, FULL, OPEN, POLICIES, TO_HOST, TO_WAN, a_job, a_switch, apply, jobs, steps
from tests.flows.test_transition import VARIANTS, play

CODE = b"code"


def with_edges(text: str) -> Desired:
    desired = Desired(load(text))
    for datapath in EDGES:
        desired.set_switch(a_switch(text, datapath), (f"worker{datapath}",))
    return desired


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(POLICIES), steps)
def test_equal_fingerprints_stand_for_equal_programs(text: str, history: list[Any]) -> None:
    desired, live = with_edges(text), dict[int, Job]()
    decider, of = Decider(desired.policy), Fingerprints(desired, CODE).of
    seen: dict[tuple[int, int], Program] = {}
    for step in history:
        if step[0] == "ports":
            datapath, ports = step[1]
            desired.set_switch(a_switch(text, datapath, ports), (f"worker{datapath}",))
        else:
            play(desired, decider, [step], live)
        for datapath in EDGES:
            program = desired.build(datapath)
            assert seen.setdefault((datapath, of(datapath)), program) == program


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(POLICIES), steps)
def test_the_same_jobs_have_the_same_fingerprint_in_whatever_order_they_came(text: str, history: list[Any]) -> None:
    desired, live = with_edges(text), dict[int, Job]()
    decider = Decider(desired.policy)
    play(desired, decider, [step for step in history if step[0] in ("put", "remove")], live)
    again = with_edges(text)
    for job in sorted(live.values(), key=lambda each: -each.number):
        again.put(job, decider.of(job))
    for datapath in EDGES:
        assert Fingerprints(desired, CODE).of(datapath) == Fingerprints(again, CODE).of(datapath)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(POLICIES), steps, steps)
def test_a_copy_of_now_stays_as_it_is_and_leads_to_what_comes(text: str, history: list[Any], later: list[Any]) -> None:
    desired, live = with_edges(text), dict[int, Job]()
    decider = Decider(desired.policy)
    play(desired, decider, [step for step in history if step[0] in ("put", "remove")], live)
    held = {datapath: desired.program(datapath) for datapath in EDGES}
    of = Fingerprints(desired, CODE).of
    fingerprints = {datapath: of(datapath) for datapath in EDGES}
    kept = Desired.as_of_now(desired)
    play(desired, decider, [step for step in later if step[0] in ("put", "remove")], live)
    for datapath, program in held.items():
        assert kept.build(datapath) == program
        assert Fingerprints(kept, CODE).of(datapath) == fingerprints[datapath]
        assert apply(program, Transition(kept, desired).changes(datapath)) == desired.build(datapath)


@settings(max_examples=60, deadline=None)
@given(st.permutations(VARIANTS), st.lists(jobs, max_size=8))
def test_programs_of_two_policies_differ_in_their_fingerprints(texts: list[str], some: list[Job]) -> None:
    one, other = (with_edges(text) for text in texts[:2])
    for desired in (one, other):
        decider = Decider(desired.policy)
        for job in some:
            desired.put(job, decider.of(job))
    for datapath in EDGES:
        if Fingerprints(one, CODE).of(datapath) == Fingerprints(other, CODE).of(datapath):
            assert one.build(datapath) == other.build(datapath)


# Another value for each property of a job, a decision and a switch.
JOB: dict[str, Any] = {
    "number": 8, "run": RunKey("s#9.0#1", 1, "slot9"), "id": "another", "owner": "bob", "user": "bob", "group": "atlas",
    "cluster": 9, "proc": 9, "host": "worker2", "network_type": NetworkType.NAT, "address_type": AddressType.DHCP,
    "ipv4": IPv4Address("10.64.0.99"), "ipv6": IPv6Address("2001:db8:64::9"), "ipv4_block": None, "ipv6_block": None,
    "datapath": 2, "port": "p9", "mac": "02:00:00:00:00:99", "vlan": 9, "bandwidth": 9.0, "inbound": False,
    "outbound": False, "state": JobState.PENDING, "reason": "why", "lease_until": 9.0, "created": 9.0,
    "facts": Facts((("owner", '"bob"'),)), "quarantine": "why", "vouched": True, "reserved": (TO_WAN,),
    "external": (
        External(IPv4Address("198.51.100.1"), (Opening("any"),)),
        External(IPv6Address("2001:db8:64::7"), (Opening("any"),)),
    ),
}  # fmt: skip
DECISION: dict[str, Any] = {
    "blocked": True, "slice": SliceKey(2, "other"), "wan": 1, "group": "cms", "inbound": False, "outbound": False,
    "quarantine": "why", "accounted": False, "because": (), "bandwidth": None, "scitag": NamedScitag(9, 9),
    "transfers": TransferTerms(rate=9.0),
}  # fmt: skip
SWITCH: dict[str, Any] = {
    "datapath": 1, "name": "another", "role": SwitchRole.EDGE, "ports": MappingProxyType({"p7": 999, "uplink": 1}),
    "uplinks": (1, 40), "lan": (5,), "wan": (), "normal": False, "tracks": False, "max_meter": 3, "max_rules": 0,
    "local_mac": 5, "speeds": MappingProxyType({1: 10.0}), "group_control": None, "backups": MappingProxyType({}),
    "handed_over": frozenset({"wan"}),
}  # fmt: skip


def state(change: Callable[[Job, Decision, Switch], tuple[Job, Decision, Switch]], text: str) -> Desired:
    desired = Desired(load(text))
    job = a_job(7, ipv6=IPv6Address("2001:db8:64::7"), group="other", owner="dave")
    given_switch = a_switch(text, 1)
    job, decision, switch = change(job, Decider(desired.policy).of(job), given_switch)
    desired.set_switch(switch, ("worker1",))
    desired.put(job, decision)
    return desired


@pytest.mark.parametrize("text", [FULL, OPEN])
@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, each.name) for kind in (Job, Decision, Switch) for each in fields(kind)],
    ids=lambda each: each if isinstance(each, str) else each.__name__,
)
def test_each_property_that_changes_a_program_changes_its_fingerprint(kind: type[Any], name: str, text: str) -> None:
    def changed(*parts: Any) -> Any:
        value = {Job: JOB, Decision: DECISION, Switch: SWITCH}[kind][name]
        return tuple(replace(each, **{name: value}) if isinstance(each, kind) else each for each in parts)

    one, other = state(lambda *parts: parts, text), state(changed, text)
    if one.build(1) != other.build(1):
        assert Fingerprints(one, CODE).of(1) != Fingerprints(other, CODE).of(1)


def test_the_name_of_an_open_address_concerns_no_edge() -> None:
    own = IPv6Address("2001:db8:64::7")

    def fingerprint(*given: External) -> int:
        desired = with_edges(FULL)
        job = a_job(7, ipv6=own, external=given)
        desired.put(job, Decider(desired.policy).of(job))
        return Fingerprints(desired, CODE).of(1)

    plain = fingerprint(External(own, (Opening("any"),)))
    assert plain == fingerprint(External(own, (Opening("any"),), "web.example.org", 9))
    assert plain != fingerprint(External(own, (Opening("icmp"),)))
    assert plain != fingerprint()


def test_a_fingerprint_is_also_of_jobs_that_have_other_queues() -> None:
    desired, job = with_edges(FULL), a_job(7, reserved=(TO_HOST,))
    desired.put(job, Decider(desired.policy).of(job))
    of = Fingerprints(desired, CODE).of
    (placed,) = desired.jobs_at(1)
    queued: Placed = replace(placed, reserved=((TO_HOST.target, 40000),))
    expected = of(1, jobs=[queued])
    assert expected != of(1)
    desired.set_queue(Claim.of_flow(TO_HOST.number), 40000, 7)
    assert of(1) == expected


def test_another_code_and_another_software_of_the_switch_have_other_fingerprints() -> None:
    desired = with_edges(FULL)
    assert Fingerprints(desired, b"one").of(1) != Fingerprints(desired, b"other").of(1)
    assert Fingerprints(desired, CODE).of(1, "3.1.0") != Fingerprints(desired, CODE).of(1, "3.3.0")


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    source = (
        "from tests.flows.test_fingerprint import *\n"
        "desired = with_edges(FULL)\n"
        "for number in range(1, 9):\n"
        "    job = a_job(number, owner=f'user{number % 3}', reserved=(TO_HOST,))\n"
        "    desired.put(job, Decider(desired.policy).of(job))\n"
        "print(Fingerprints(desired, CODE).of(1))\n"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", source], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_a_fingerprint_costs_a_small_part_of_a_program() -> None:
    desired = with_edges(FULL)
    decider = Decider(desired.policy)
    for number in range(1, 19):
        desired.put(job := a_job(number, owner=f"user{number}"), decider.of(job))
    of = Fingerprints(desired, CODE).of
    of(1)
    assert 8 * calls(lambda: of(1)) < calls(lambda: desired.build(1))


def calls(work: Callable[[], object]) -> int:
    profile = cProfile.Profile()
    profile.runcall(work)
    return sum(entry.callcount for entry in profile.getstats())


@given(st.integers(0, (1 << 64) - 1), st.integers(0, MOST_RULES), st.booleans(), st.booleans(), st.integers(0, 253))
def test_a_marker_is_read_as_it_was_written(
    fingerprint: int, rules: int, normal: bool, tracks: bool, table: int
) -> None:
    marker = Marker(fingerprint, rules, normal, tracks)
    flow = marker.flow(table)
    assert flow.key.table == table
    assert flow.data.cookie & MARKERS[1] == MARKERS[0]
    assert read_marker(flow.key.match, flow.data.cookie) == marker


def test_what_is_no_marker_is_not_read_as_one() -> None:
    desired = with_edges(FULL)
    desired.put(a_job(7), Decider(desired.policy).of(a_job(7)))
    assert all(read_marker(key.match, data.cookie) is None for key, data in desired.build(1).flows.items())
    flow = Marker(1, 2, True, True).flow(3)
    assert read_marker((), flow.data.cookie) is None
