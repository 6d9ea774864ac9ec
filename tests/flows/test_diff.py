"""The difference between a switch's flows and the desired ones, and flows that somebody else changed on it."""

from __future__ import annotations

from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.diff import diff, drift
from lark_controller.flows.model import Changes, Flow, FlowData, FlowKey, Meter, Program, match


def flow(number: int, category: Category = Category.JOB, *, table: int = 0, goto: int | None = 1) -> Flow:
    return Flow(FlowKey(table, 10, match(in_port=number)), FlowData(cookie(category, number), goto=goto))


FIRST, SECOND, THIRD = flow(1), flow(2), flow(3)
CHANGED = flow(1, goto=2)


def test_what_is_missing_or_different_is_set_and_the_rest_goes() -> None:
    meters = Meter(1, 100, 10), Meter(2, 200, 20), Meter(3, 300, 30)
    desired = Program.of([FIRST, SECOND], meters[:2])
    installed = Program.of([CHANGED, SECOND, THIRD], [Meter(1, 5, 10), meters[2]])
    assert diff(desired, installed) == Changes(
        meters_set=meters[:2], meters_new=frozenset({2}), flows_set=(FIRST,), flows_gone=(THIRD.key,), meters_gone=(3,)
    )
    assert not diff(desired, desired)


def test_flows_are_set_from_the_last_table_and_go_from_the_first() -> None:
    flows = [flow(1, table=table) for table in (1, 0, 2)]
    assert [one.key.table for one in diff(Program.of(flows), Program()).flows_set] == [2, 1, 0]
    assert [key.table for key in diff(Program(), Program.of(flows)).flows_gone] == [0, 1, 2]


def test_what_another_changed_is_drift() -> None:
    desired = Program.of([FIRST, SECOND])
    found = drift(desired, desired, Program.of([CHANGED, THIRD]))
    assert found.flows_set == (FIRST, SECOND)
    assert found.flows_gone == (THIRD.key,)
    assert not drift(desired, desired, desired)


def test_what_changes_while_the_dump_is_taken_is_no_drift() -> None:
    for then, now in (
        ([FIRST], [FIRST, SECOND]),
        ([FIRST, SECOND], [FIRST]),
        ([FIRST, SECOND], [FIRST, flow(2, goto=9)]),
    ):
        for installed in ([FIRST], [FIRST, SECOND], [FIRST, flow(2, goto=9)]):
            assert not drift(Program.of(then), Program.of(now), Program.of(installed))


def test_what_was_learned_or_decided_on_packets_is_no_drift() -> None:
    passing = [flow(8, Category.LEARNED), flow(9, Category.REACTIVE)]
    assert not drift(Program.of([FIRST]), Program.of([FIRST]), Program.of([FIRST, *passing]))


def test_meters_drift_too() -> None:
    desired = Program.of([], [Meter(1, 100, 10)])
    found = drift(desired, desired, Program.of([], [Meter(2, 5, 5)]))
    assert (found.meters_set, found.meters_gone) == ((Meter(1, 100, 10),), (2,))
