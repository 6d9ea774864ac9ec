"""A core's work for groups: queues, meters, an administrator's queues; and its warnings."""

from __future__ import annotations

import pytest

from lark_common.errors import PolicyError
from lark_controller.policies.file import load
from lark_controller.policies.model import GroupControl, Policy
from lark_controller.qos.groups import GroupPort, group_plan, notices, shortcomings, treatments
from lark_controller.qos.queues import Queue

PORTS = {"w1": GroupPort("wan", 1000.0), "w2": GroupPort("wan-fast", 500.0), "l": GroupPort(None, 10_000.0)}


def policy(*groups: str, core: str = "") -> Policy:
    ports = "{lan: 1, wan: {port: 2, speed: 1Gbit}, wan-fast: 3}"
    head = f'version: 1\nswitches:\n  c: {{datapath: "00000000000000c0", role: core, ports: {ports}{core}}}\ngroups:\n'
    return load(head + "".join(f"  {group}\n" for group in groups))


def test_queues_by_port_with_the_rest_for_everybody_else() -> None:
    plan = group_plan(
        policy(
            "cms: {port: wan, guarantee: 250, ceiling: 400, priority: 2, dscp: 18}",
            "atlas: {guarantee: 100, dscp: 20}",
            "low: {priority: -1, dscp: 8}",
            "marked: {dscp: 4}",
        ),
        PORTS,
    )
    million = 1_000_000
    assert plan.ports["w1"].queues == {
        18: Queue(250 * million, 400 * million, 0),
        20: Queue(100 * million, 1000 * million, 1),
        8: Queue(0, 1000 * million, 2),
        0: Queue(650 * million, 1000 * million, 1),
    }
    assert plan.ports["w2"].queues.keys() == {20, 8, 0}
    assert plan.ports["l"].queues.keys() == {18, 20, 8, 0}
    assert plan.short == ()


def test_what_a_port_cannot_hold_is_said() -> None:
    plan = group_plan(policy("a: {guarantee: 400, dscp: 1}", "b: {guarantee: 300, dscp: 2}"), PORTS)
    (remark,) = plan.short
    assert str(remark) == "group b: port w2 of 500 Mb/s has 100 Mb/s left for a guarantee of 300; it has none there"
    assert remark.group == "b"
    assert plan.ports["w2"].queues[2].least == 0
    whole = group_plan(policy("a: {guarantee: 400, dscp: 1}", "b: {guarantee: 100, dscp: 2}"), PORTS)
    assert whole.short == ()
    assert whole.ports["w2"].queues[2].least == 100_000_000
    unknown = group_plan(policy("a: {guarantee: 400}"), {"w1": GroupPort("wan", None)})
    assert not unknown.ports
    assert "the speed of port w1 is not known" in unknown.short[0].text


def test_a_queue_is_used_once_it_stands() -> None:
    text = policy("a: {guarantee: 1, dscp: 1, queue: 7}", "b: {ceiling: 2, dscp: 2}")
    found = list(treatments(text, 100, GroupControl.QUEUES, frozenset({2})))
    assert [(each.dscp, each.queue, each.rate) for each in found] == [(2, 2, None)]
    found = list(treatments(text, 100, GroupControl.PREPROVISIONED))
    assert [(each.dscp, each.queue, each.rate) for each in found] == [(1, 7, None)]
    found = list(treatments(text, 100))
    assert [(each.dscp, each.queue, each.rate) for each in found] == [(1, 7, None), (2, None, 2000)]


def test_what_a_switch_cannot_do_is_said() -> None:
    text = policy("cms: {ceiling: 200, guarantee: 100, dscp: 1}", "cms.prod: {ceiling: 150, dscp: 2}")
    assert [str(line).split(" Mb/s")[0] for line in shortcomings(text, 1)] == ["group cms.prod: ceiling 150"]
    assert len(list(shortcomings(text, 0, GroupControl.PREPROVISIONED))) == 2
    assert not list(shortcomings(text, 0, GroupControl.QUEUES))
    assert [str(line).split(",")[0] for line in notices(text, GroupControl.METERS)] == [
        "group cms: guarantee 100 Mb/s is not given",
        "group cms.prod: what it sends is not counted in the ceiling of cms (200 Mb/s)",
    ]
    assert len(list(notices(text, GroupControl.QUEUES))) == 1


def test_guarantees_that_no_port_can_hold_are_a_mistake_of_the_policy() -> None:
    with pytest.raises(PolicyError) as caught:
        policy(
            "a: {port: wan, guarantee: 600}", "b: {guarantee: 500}", "c: {port: wan-fast, guarantee: 800}",
            core=", groups_by: queues",
        )  # fmt: skip
    (mistake,) = caught.value.mistakes
    assert (mistake.line, mistake.key) == (6, "groups.b.guarantee")
    assert "1100 Mb/s are guaranteed on port wan of c, which has 1000" in mistake.problem
    with pytest.raises(PolicyError, match="is above the 1000 Mb/s of port wan"):
        policy("a: {port: wan, ceiling: 2Gbit}", core=", groups_by: queues")
