"""Requests that wait for a job's confirmation."""

from __future__ import annotations

import cProfile
import random
from functools import partial

from lark_controller.reconcile.confirmations import Awaited, Confirmations, FlowsAt
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


def test_whoever_waits_for_reserved_flows_is_called_once_for_them_or_for_all_or_the_jobs_end() -> None:
    seen, called = Confirmations(), list[str]()
    for number in (7, 8, 9):
        seen.blocked(number, FlowsAt(1), "is away")
        seen.when_settled(number, partial(called.append, f"job {number}"))
        seen.when_settled(number, partial(called.append, f"flows {number}"), of_flows=True)

    def gone() -> None:
        called.append("gone")

    seen.when_settled(7, gone, of_flows=True)
    seen.stop_waiting(7, gone)
    seen.flows_settled(7)
    assert called == ["flows 7"]
    seen.confirmed(7, FlowsAt(1))
    seen.confirmed(8, FlowsAt(1))
    seen.forget(9)
    seen.flows_settled(8)
    assert called == ["flows 7", "job 7", "job 8", "flows 8", "job 9", "flows 9"]
    for number in (7, 8):
        seen.forget(number)
    assert len(seen) == 0


def test_what_a_job_does_not_need_any_more_is_not_waited_for_and_its_confirmation_counts_for_nothing() -> None:
    for more in (1, 20):
        seen, called = Confirmations(), list[int]()
        for datapath in range(2, 2 + more):
            seen.blocked(7, FlowsAt(datapath), "is away")
        seen.sent(7, FlowsAt(1))
        seen.when_settled(7, partial(called.append, 7))
        assert seen.under_way(7, FlowsAt(1))
        assert not seen.under_way(7, FlowsAt(2))
        assert not seen.unneeded(7, FlowsAt(1))
        assert not seen.unneeded(7, FlowsAt(1))
        assert not seen.confirmed(7, FlowsAt(1))
        assert FlowsAt(1) not in {*seen.waiting(7), *seen.done(7)}
        assert seen.waiting_for(FlowsAt(1)) == 0
        assert not called
        settled = [seen.unneeded(7, FlowsAt(datapath)) for datapath in range(2, 2 + more)]
        assert settled == [False] * (more - 1) + [True]
        assert called == [7]
        assert seen.open() == []
        seen.forget(7)
        assert len(seen) == 0


def test_a_switch_is_awaited_while_a_caller_waits_for_a_job_that_waits_for_it() -> None:
    seen = Confirmations()
    for number in range(7, 200):
        seen.sent(number, FlowsAt(number))
    assert not seen.is_awaited(FlowsAt(199))
    for number in (8, 199):
        seen.when_settled(number, lambda: None)
    assert [seen.is_awaited(FlowsAt(datapath)) for datapath in (6, 7, 8, 199)] == [False, False, True, True]
    seen.confirmed(199, FlowsAt(199))
    assert not seen.is_awaited(FlowsAt(199))


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


def _calls_for(switches: int) -> float:
    """The calls of functions for one switch of a job that so many switches confirm."""
    seen = Confirmations()
    profile = cProfile.Profile()
    profile.enable()
    for datapath in range(switches):
        seen.sent(7, FlowsAt(datapath))
    for datapath in range(switches):
        settled = seen.confirmed(7, FlowsAt(datapath))
        assert settled == (datapath == switches - 1)
        assert not seen.stuck(7)
    profile.disable()
    return sum(each.callcount for each in profile.getstats()) / switches


def test_a_confirmation_costs_the_same_however_many_switches_a_job_waits_for() -> None:
    assert _calls_for(2000) < 1.5 * _calls_for(20)


def test_many_switches_of_a_job_are_told_apart_as_few_are() -> None:
    for seed in range(20):
        rng, seen = random.Random(seed), Confirmations()
        # What is to be seen: barriers that are out, and the reason, by what is awaited.
        wanted: dict[Awaited, tuple[int, str]] = {}
        called: list[int] = []
        for step in range(400):
            what = FlowsAt(rng.randrange(rng.choice((4, 40))))
            out, reason = wanted.get(what, (0, ""))
            if step % 50 == 0:
                seen.when_settled(7, partial(called.append, step))
            match rng.randrange(7):
                case 0 | 1:
                    seen.sent(7, what)
                    wanted[what] = out + 1, "has not confirmed yet"
                case 2:
                    seen.blocked(7, what, "is away")
                    wanted[what] = 0, "is away"
                case 3:
                    assert set(seen.lost(what, "is gone")) == ({7} if reason else set())
                    if reason:
                        wanted[what] = 0, "is gone"
                case 4 if step % 3 == 0:
                    for each in list(wanted):
                        list(seen.synced(each))
                        wanted[each] = (0, "") if not wanted[each][0] else wanted[each]
                case _:
                    if reason:
                        wanted[what] = max(0, out - 1), reason if out > 1 else ""
                    settled = seen.confirmed(7, what)
                    assert settled == bool(reason and not any(why for _, why in wanted.values()))
            assert seen.waiting(7) == {each: why for each, (_, why) in wanted.items() if why}
            assert set(seen.done(7)) == {each for each, (_, why) in wanted.items() if not why}
            assert seen.awaits(7, what) == wanted.get(what, (0, ""))[1]
            assert seen.stuck(7) == (bool(seen.waiting(7)) and not any(out for out, _ in wanted.values()))
            assert seen.open() == ([7] if seen.waiting(7) else [])
            assert bool(seen.awaited()) <= bool(seen.waiting(7))
            assert seen.is_awaited(what) == (bool(seen.awaited()) and what in seen.waiting(7))
        seen.forget(7)
        assert len(called) == 8
        assert len(seen) == 0


def test_jobs_that_begin_together_lack_what_each_lacks_by_itself() -> None:
    for many in (1, 2, 12):
        lacking = [(FlowsAt(datapath), f"{datapath} is away") for datapath in range(many)]
        together, singly = Confirmations(), Confirmations()
        for seen in (together, singly):
            seen.sent(8, FlowsAt(0))
        for numbers in ([1, 2, 3], [8, 9]):
            together.begin(numbers, lacking)
            for number in numbers:
                for what, reason in lacking:
                    singly.blocked(number, what, reason)
        for number in (1, 2, 3, 8, 9):
            assert together.waiting(number) == singly.waiting(number) == dict(lacking)
        assert sorted(together.open()) == sorted(singly.open())
        for seen in (together, singly):
            assert [set(seen.synced(what)) for what, _ in lacking] == [set()] * (many - 1) + [{1, 2, 3, 8, 9}]
            assert not seen.open()
