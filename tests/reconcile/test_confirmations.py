"""Who waits for which job's confirmation."""

from __future__ import annotations

from lark_controller.reconcile.confirmations import Confirmations, FlowsAt
from lark_controller.reconcile.workers import WorkerStates


def test_whoever_has_given_up_is_not_called_and_not_kept() -> None:
    seen, called = Confirmations(), []
    seen.blocked(7, FlowsAt(1), "is away")

    def patient() -> None:
        called.append("patient")

    def impatient() -> None:
        called.append("impatient")

    for waiter in (patient, impatient):
        seen.when_settled(7, waiter)
    seen.stop_waiting(7, impatient)
    seen.stop_waiting(8, impatient)
    assert seen.confirmed(7, FlowsAt(1))
    assert called == ["patient"]
    seen.stop_waiting(7, impatient)


def test_a_revision_that_is_no_number_confirms_nothing() -> None:
    states = WorkerStates()
    states.changed("worker1", [7])
    start = states.revision("worker1").partition(".")[0]
    for count in ("", "x", "-1", "1.5", "9" * 5000, "²"):
        assert states.confirmed("worker1", f"{start}.{count}") == []
    states.forget("worker1", 7)
    states.changed("worker1", [8])
    assert states.confirmed("worker1", states.revision("worker1")) == [8]


def test_a_revision_that_was_never_given_out_confirms_nothing() -> None:
    states = WorkerStates()
    states.changed("worker1", [7])
    start, _, count = states.revision("worker1").partition(".")
    assert states.confirmed("worker1", f"{start}.{int(count) + 1}") == []
    assert states.confirmed("worker1", f"{start}.{count}") == [7]
