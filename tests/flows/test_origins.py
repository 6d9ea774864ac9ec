"""The sentence about whose a flow is and why it is there."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from lark_common.runs import RunKey
from lark_controller.flows.cookies import Category, cookie, count_cookie, counted_by, is_ours, of_job
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import FlowData
from lark_controller.flows.origins import Origin, origin
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.flows.tables import Bits, Core, Edge, combine, table_name
from lark_controller.jobs.job import Facts, Job, ReservedFlow
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.policies.model import HostBandwidth, SliceKey, SwitchRole
from lark_controller.qos.worker_queues import Claim

EDGE = 1
POLICY = """\
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches:
  core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner}
  - wan: {when: 'Owner == "bob"', action: drop, except: [192.0.2.1]}
  - wan: {when: 'Owner == "carol"', port: wan-fast}
  - wan: {action: allow}
  - connectivity: {inbound: requested, outbound: requested}
groups:
  cms: {dscp: 10, ceiling: 1Gbit}
"""


def a_job(number: int, owner: str = "alice", *, asks: bool | None = None, **changes: Any) -> Job:
    run = RunKey(f"s#{number}.0#1", 1, f"slot1_{number}@worker1")
    facts = [("acctgroup", '"cms"'), ("owner", f'"{owner}"')]
    facts += [(name, "false") for name in ("inboundconnectivity", "outboundconnectivity") if asks is False]
    job = Job(
        number, run, run.id, owner, owner, "cms", 100 + number, 7, "worker1", ipv4=IPv4Address("10.64.0.0") + number,
        datapath=EDGE, port=f"p{number}", mac=f"02:00:00:00:00:{number:02x}", facts=Facts(tuple(sorted(facts))),
    )  # fmt: skip
    return replace(job, **changes)


def a_switch(datapath: int = EDGE) -> Switch:
    ports = {"eth0": 1, **{f"p{number}": 10 + number for number in range(1, 9)}}
    return place_switch(load(POLICY), datapath, ports, normal=True, tracks=True, max_meter=64)


def a_desired(*jobs: Job) -> Desired:
    desired, decider = Desired(load(POLICY)), Decider(load(POLICY))
    desired.set_switch(a_switch(), ("worker1",))
    for job in jobs:
        desired.put(job, decider.decide(job.facts))
    return desired


def said(value: int, *jobs: Job, goto: int | None = None, slices: dict[int, SliceKey] | None = None) -> Origin:
    return origin(a_desired(*jobs), slices or {}, FlowData(value, goto=goto))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "not Lark's"),
        (0x1234 << 48, "not Lark's"),
        (cookie(Category.LOCAL_BASE), "base flow, loaded on the worker before any controller"),
        (cookie(Category.SWITCH), "frame of the tables"),
        (cookie(Category.JOB, 9), "job number 9, which is over"),
        (cookie(Category.SLICE), "slice policy: no jobs but those of its own slice"),
        (cookie(Category.SLICE, 3), "a slice that is over"),
        (cookie(Category.WAN), "local networks are not the WAN"),
        (cookie(Category.CLASSIFY), "no job's address comes from outside"),
        (cookie(Category.WAN, 1), "wan drop when Owner == \"bob\" (policy line 8)"),
        (cookie(Category.WAN, 2), "wan steer to wan-fast when Owner == \"carol\" (policy line 9)"),
        (cookie(Category.WAN, 3), "wan allow (policy line 10)"),
        (cookie(Category.CLASSIFY, 1), "wan drop when Owner == \"bob\" (policy line 8)"),
        (cookie(Category.CONNECTIVITY), "connectivity: one-way jobs by connection tracking"),
        (cookie(Category.GROUP, 10), "group cms (policy line 13)"),
        (cookie(Category.GROUP, 11), "jobs without a group"),
        (cookie(Category.REACTIVE, 5), "decided on a PacketIn, gone when idle"),
        (cookie(Category.LEARNED, 5), "learned station"),
        (count_cookie(9, 1), "counts for a job that is over"),
        (0x1A4B_3F_0000000001, "category 63"),
    ],
)  # fmt: skip
def test_what_stands_without_any_job(value: int, text: str) -> None:
    assert said(value) == Origin(text)


def test_the_exception_of_a_drop_is_told_by_where_it_leads() -> None:
    drop = cookie(Category.WAN, 1)
    assert "drop, its exception when" in said(drop, goto=Edge.TRACK).text
    assert "drop when" in said(drop, goto=Edge.DROPS).text
    assert "drop when" in said(cookie(Category.CLASSIFY, 1), goto=Core.WAN).text


def test_a_slice_is_named_by_its_rule_and_value() -> None:
    key = SliceKey(1, '"alice"')
    assert said(cookie(Category.SLICE, 3), slices={3: key}) == Origin('slice Owner = "alice" (policy line 7)')


def test_a_jobs_flow_names_the_job_and_why_it_has_no_network() -> None:
    plain, blocked, closed = a_job(1), a_job(2, "mallory"), a_job(3, asks=False)
    jobs = plain, blocked, closed
    texts = {}
    for job in jobs:
        for value, counts in ((cookie(Category.JOB, job.number), ""), (count_cookie(job.number, 3), "counts for ")):
            text, whose = said(value, *jobs)
            assert whose == job.id
            assert text.startswith(f"{counts}job {100 + job.number}.7 of {job.owner} on slot1_{job.number}@worker1")
            if not counts:
                texts[job.number] = text
    assert texts[1].endswith("@worker1")
    assert texts[2].endswith(', without any network by block when Owner == "mallory" (policy line 6)')
    assert texts[3].endswith(", without any network by connectivity when true (policy line 11)")


def test_a_quarantined_jobs_flow_says_so() -> None:
    desired = a_desired()
    job = a_job(1)
    desired.put(job, replace(Decider(desired.policy).decide(job.facts), quarantine="its slot runs another job"))
    text, _ = origin(desired, {}, FlowData(cookie(Category.JOB, 1)))
    assert text.endswith(", quarantined: its slot runs another job")


def test_cookies_are_ours_unless_they_are_anothers_or_of_the_base() -> None:
    ours = [cookie(category, 3) for category in Category if category is not Category.LOCAL_BASE]
    assert all(map(is_ours, ours))
    assert not is_ours(cookie(Category.LOCAL_BASE))
    assert not is_ours(0)
    assert not is_ours(cookie(Category.JOB, 3) ^ 1 << 48)
    with pytest.raises(ValueError, match="does not fit 40 bits"):
        cookie(Category.JOB, 1 << 40)
    assert cookie(Category.JOB, (1 << 40) - 1) & 0xFFFFFFFFFF == (1 << 40) - 1
    with pytest.raises(ValueError, match="-1 does not fit"):
        cookie(Category.JOB, -1)


def test_what_a_flow_counts_is_in_its_cookie() -> None:
    assert counted_by(count_cookie(77, 5)) == (77, 5)
    assert counted_by(cookie(Category.JOB, 77)) is None
    own, counting = of_job(77)
    every = (1 << 64) - 1
    assert own == (cookie(Category.JOB, 77), every)
    assert all(count_cookie(77, kind) & counting[1] == counting[0] for kind in range(8))
    assert count_cookie(78) & counting[1] != counting[0]


def test_tables_have_names() -> None:
    assert table_name(SwitchRole.EDGE, Edge.SLICE_FROM) == "slice-from"
    assert table_name(SwitchRole.CORE, 1) == "wan"
    assert table_name(SwitchRole.EDGE, 4) == "wan"
    assert table_name(SwitchRole.CORE, 7) == "7"


def test_bits_hold_what_fits() -> None:
    bits = Bits(4, 3)
    assert (bits.mask, bits.put(7), bits.put(0)) == (0x70, (0x70, 0x70), (0, 0x70))
    for value in (8, -1):
        with pytest.raises(ValueError, match=f"{value} does not fit 3 bits"):
            bits.put(value)
    assert combine(bits.put(5), Bits(0, 1).put(1)) == (0x51, 0x71)


def test_a_pool_answers_what_is_at_a_switch() -> None:
    jobs = a_job(3, "bob"), a_job(1), a_job(2), a_job(4, "carol", datapath=7)
    desired = a_desired(*jobs)
    assert [placed.job.number for placed in desired.jobs_at(EDGE)] == [1, 2, 3]
    assert (desired.count_at(EDGE), desired.count_at(7), desired.count_at(8)) == (3, 1, 0)
    assert desired.jobs_at(8) == []
    slices = desired.slices_at(EDGE)
    assert set(slices.values()) == {SliceKey(1, '"alice"'), SliceKey(1, '"bob"')}
    for tag, key in slices.items():
        assert tag > 0
        assert desired.tag_at(EDGE, key) == tag
    assert (
        desired.tag_at(EDGE, None)
        == desired.tag_at(8, SliceKey(1, '"bob"'))
        == desired.tag_at(EDGE, SliceKey(1, '"x"'))
        == 0
    )
    assert desired.slices_at(8) == {}


def test_only_the_job_whose_port_comes_or_goes_is_changed() -> None:
    jobs = a_job(1), a_job(2)
    desired = a_desired(*jobs)
    before = desired.build(EDGE)
    switch = a_switch()
    without = replace(switch, ports={name: number for name, number in switch.ports.items() if name != "p2"})
    gone = desired.set_switch(without)
    after = desired.build(EDGE)
    assert set(gone.flows_gone) == before.flows.keys() - after.flows.keys()
    assert len(gone) == len(gone.flows_gone) > 0
    assert desired.rules[EDGE] == len(after.flows)
    back = desired.set_switch(switch)
    assert {flow.key: flow.data for flow in back.flows_set} == {key: before.flows[key] for key in gone.flows_gone}
    assert (len(back), len(back.flows_gone)) == (len(back.flows_set), 0)
    assert desired.build(EDGE) == before
    moved = desired.set_switch(replace(switch, ports={**switch.ports, "p2": 19}))
    assert moved.flows_set
    assert moved.flows_gone
    assert desired.placed[2].port == 19
    assert not desired.set_switch(replace(switch, ports={**switch.ports, "p2": 19, "other": 30}))


def test_a_slice_has_a_tag_where_it_has_jobs_and_what_went_leaves_nothing() -> None:
    desired = a_desired()
    decider = Decider(desired.policy)
    empty = desired.build(EDGE)
    for job in (a_job(1), a_job(2), a_job(3, "bob")):
        desired.put(job, decider.decide(job.facts))
    alice, bob = SliceKey(1, '"alice"'), SliceKey(1, '"bob"')
    tags = {key: desired.tag_at(EDGE, key) for key in (alice, bob)}
    desired.remove(1)
    assert {key: desired.tag_at(EDGE, key) for key in (alice, bob)} == tags
    desired.remove(2)
    assert desired.slices_at(EDGE) == {desired.tag_at(EDGE, bob): bob}
    desired.remove(3)
    assert desired.slices_at(EDGE) == {}
    assert desired.remove(3) == {}
    assert desired.build(EDGE) == empty


def test_a_job_of_a_host_is_attached_when_its_switch_comes() -> None:
    decider = Decider(load(POLICY))
    desired = Desired(load(POLICY))
    here, gone, elsewhere = (a_job(n, datapath=None, host=host) for n, host in ((1, "w"), (2, "w"), (3, "other")))
    for job in (here, gone, elsewhere):
        assert desired.put(job, decider.decide(job.facts)) == {}
    desired.remove(2)
    changes = desired.set_switch(a_switch(), ("w", "worker1"))
    assert {flow.key: flow.data for flow in changes.flows_set} == desired.build(EDGE).flows
    assert [placed.job.number for placed in desired.jobs_at(EDGE)] == [1]
    assert desired.placed[1].port == 11
    late = a_job(4, datapath=None, host="worker1")
    assert EDGE in desired.put(late, decider.decide(late.facts))


def test_queues_of_a_job_are_noted_before_it_comes_and_forgotten_when_it_goes() -> None:
    desired = a_desired()
    decider = Decider(desired.policy)
    limited = HostBandwidth(borrows=False, default=10.0)
    claim = Claim.of_job(1)
    assert desired.set_queue(claim, 5, 1) == {}
    assert desired.set_queue(claim, 5, 1) == {}
    job = a_job(1)
    desired.put(job, replace(decider.decide(job.facts), bandwidth=limited))
    assert [placed.queue for placed in desired.jobs_at(EDGE)] == [5]
    assert EDGE in desired.set_queue(claim, None, 1)
    assert [placed.queue for placed in desired.jobs_at(EDGE)] == [None]
    assert EDGE in desired.set_queue(claim, 6, 1)
    desired.remove(1)
    assert not desired.queues


@pytest.mark.parametrize(
    ("limited", "changes", "queue"),
    [(True, {}, 5), (False, {}, None), (True, {"port": "p99"}, None), (False, {"port": "p99"}, None)],
)
def test_a_job_has_its_queue_while_it_is_limited_and_at_a_port(
    limited: bool, changes: dict[str, Any], queue: int | None
) -> None:
    desired = a_desired()
    decision = Decider(desired.policy).decide(a_job(1).facts)
    desired.set_queue(Claim.of_job(1), 5, None)
    share = HostBandwidth(borrows=False, default=10.0) if limited else None
    desired.put(a_job(1, **changes), replace(decision, bandwidth=share))
    assert desired.placed[1].queue == queue


def test_a_job_has_the_queues_of_the_flows_that_it_sends() -> None:
    desired = a_desired()
    decider = Decider(desired.policy)
    target = (IPv4Network("192.0.2.0/24"),)
    flows = ReservedFlow(7, 1000, target), ReservedFlow(8, 1000), ReservedFlow(9, 1000, incoming=True)
    for number in (7, 9):
        desired.set_queue(Claim.of_flow(number), 30 + number, 1)
    job = a_job(1, reserved=flows)
    desired.put(job, decider.decide(job.facts))
    assert [placed.reserved for placed in desired.jobs_at(EDGE)] == [((target, 37),)]
    assert EDGE in desired.set_queue(Claim.of_flow(8), 38, 1)
    assert [placed.reserved for placed in desired.jobs_at(EDGE)] == [((target, 37), ((), 38))]
    assert desired.set_queue(Claim.of_flow(9), 39, 1) == {}
