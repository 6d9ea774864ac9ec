"""Turns at the processor: who calculates next, and how many do so at a time. Time and processor are counters here."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from dataclasses import dataclass, field

import pytest

from lark_common.turns import (
    ASKING,
    AT_ONCE,
    AT_WORK,
    LONGEST_REST,
    PORTION,
    SHARE,
    STEP,
    Elsewhere,
    Turn,
    Turns,
    aside,
    by_portions,
    give_way,
    next_turn,
)


@dataclass
class Machine:
    """A processor and a clock that go on when a call says so."""

    used: float = 0.0
    now: float = 0.0
    slept: list[float] = field(default_factory=list)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def turns(self, most: int = 6, most_of_one: int = 2, ahead: Turns | None = None) -> Turns:
        return Turns(most, most_of_one, lambda: self.used, lambda: self.now, self.sleep, ahead)

    def work(self, turn: Turn, seconds: float) -> None:
        with turn:
            self.used += seconds
            self.now += seconds


def ask(turns: Turns, begun: list[tuple[str, Turn]], caller: str, address: str = "") -> None:
    turns.ask(caller, address, lambda turn: begun.append((caller + address, turn)))


def test_few_calculate_at_a_time_and_fewer_of_one() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns(most=3)
    for caller in "aaaabb":
        ask(turns, begun, caller)
    assert [name for name, _ in begun] == ["a", "a", "b"]
    machine.work(begun[0][1], 0.01)
    # The one that has had none yet.
    assert [name for name, _ in begun] == ["a", "a", "b", "b"]
    while len(begun) < 6:
        machine.work(begun[len(begun) - 3][1], 0.01)
    assert Counter(name for name, _ in begun) == {"a": 4, "b": 2}


def test_the_next_is_of_the_caller_and_of_the_address_that_has_had_least() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns(most=1)
    for _ in range(40):
        ask(turns, begun, "hook", "busy")
    ask(turns, begun, "hook", "quiet")
    for _ in range(40):
        ask(turns, begun, "script")
    at = 0
    while at < len(begun):
        machine.work(begun[at][1], 0.004 if begun[at][0] == "script" else 0.001)
        at += 1
    names = [name for name, _ in begun]
    assert len(names) == 81
    # By processor time, not by calls: four of the one for one of the other.
    assert 25 <= names[:40].count("hookbusy") <= 35
    assert names.index("hookquiet") < 8


def test_one_that_was_away_has_no_credit_for_it() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns(most=1)
    for number in range(50):
        ask(turns, begun, "always")
        machine.work(begun[number][1], 0.001)
    for caller in ("always", "back") * 20:
        ask(turns, begun, caller)
    for at in range(50, 90):
        machine.work(begun[at][1], 0.001)
    assert 8 <= [name for name, _ in begun[50:70]].count("back") <= 12


def test_one_that_uses_much_waits_for_others_and_has_its_share_while_they_ask() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns()
    for _ in range(3):
        ask(turns, begun, "much")
    machine.work(begun[0][1], 2 * AT_ONCE)
    machine.work(begun[1][1], 0.01)
    assert machine.slept == []  # nobody else asks
    ask(turns, begun, "few")
    assert [name for name, _ in begun] == ["much", "much", "much", "few"]
    for _ in range(100):
        ask(turns, begun, "much")
    assert len(begun) == 4  # while the third calculates, and the other
    machine.work(begun[3][1], 0.001)
    assert len(begun) == 4
    started, worked = machine.now, 0.0
    while machine.now < started + 4:
        ask(turns, begun, "few")
        at = len(begun)
        machine.work(begun[at - 1][1], 0.0001)
        much = [turn for name, turn in begun if name == "much"][-1]
        machine.work(much, 0.05)
        worked += 0.05
    assert worked / (machine.now - started) < SHARE * 1.2
    assert max(machine.slept) <= LONGEST_REST


def test_a_caller_alone_is_not_charged_for_it_later() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns()
    for _ in range(1000):
        ask(turns, begun, "alone")
        machine.work(begun[-1][1], 1.0)
    machine.now += AT_ONCE / SHARE + 0.1
    ask(turns, begun, "other")
    ask(turns, begun, "alone")
    assert [name for name, _ in begun[-2:]] == ["other", "alone"]


def test_a_caller_alone_has_two_turns_however_much_it_uses() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns()
    for _ in range(10):
        ask(turns, begun, "alone")
    machine.now += ASKING
    for number in range(8):
        assert len(begun) == number + 2
        machine.work(begun[number][1], 1.0)
    assert machine.slept == []


def test_a_thread_that_waits_leaves_its_turn_and_needs_none_to_come_back() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns(most=1)
    for caller in "ab":
        ask(turns, begun, caller)
    assert len(begun) == 1
    with begun[0][1], aside(), aside():
        assert len(begun) == 2
        # It may hold a lock that the other waits for.
    with aside():
        next_turn()  # a thread without a turn


def test_where_much_is_left_after_a_wait_another_turn_is_waited_for() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns(most=1)
    for caller in "abc":
        ask(turns, begun, caller)
    came_back = threading.Event()

    def first() -> None:
        with begun[0][1]:
            with aside():
                pass
            next_turn()
            came_back.set()

    thread = threading.Thread(target=first)
    thread.start()
    # b began during the wait; c and then a again are behind it.
    while len(begun) < 2 or not any(share.line for share in turns._all.of.values()):
        pass
    assert not came_back.wait(0.05)
    machine.work(begun[1][1], 0.001)
    at = 2
    while not came_back.wait(0.01):
        if at < len(begun):
            machine.work(begun[at][1], 0.001)
            at += 1
    thread.join()


def test_callers_without_number_are_forgotten() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns()
    for number in range(20_000):
        ask(turns, begun, f"{number % 7}", f"{number}")
        machine.work(begun.pop()[1], 0.0001)
    assert sum(len(share.of) for share in turns._all.of.values()) <= 7 * 1025


def busy_reader(machine: Machine, turns: Turns, begun: list[tuple[str, Turn]]) -> Turn:
    """The turn of a caller that has used up what it has at once."""
    for _ in range(20):
        ask(turns, begun, "reader")
        machine.work(begun.pop()[1], AT_ONCE / 4)
        machine.now += 1e-6
    ask(turns, begun, "reader")
    return begun.pop()[1]


def test_one_that_uses_much_stands_still_between_portions_while_a_call_ahead_is_at_work() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    ahead = machine.turns()
    reader = busy_reader(machine, behind := machine.turns(ahead=ahead), begun)
    with reader:
        machine.used += 0.01
        reader.give_way()
        machine.slept.clear()
        ask(ahead, begun, "post")
        reader.give_way()
        # Neither for ever, whatever goes ahead, nor as long as it would have rested for what it has used.
        assert 0.0 < sum(machine.slept) <= AT_ONCE + STEP
    assert not behind.at_work()


def test_one_that_uses_little_does_not_stand_still() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    ahead = machine.turns()
    turns = machine.turns(ahead=ahead)
    ask(ahead, begun, "post")
    ask(turns, begun, "dashboard")
    with begun[-1][1] as turn:
        for _ in range(5):
            machine.used += 0.001
            turn.give_way()
    assert machine.slept == []


def test_a_call_ahead_that_only_waits_for_a_switch_keeps_nobody() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    ahead = machine.turns()
    reader = busy_reader(machine, machine.turns(ahead=ahead), begun)
    ask(ahead, begun, "post")
    machine.now += 2 * AT_WORK
    with reader:
        machine.slept.clear()
        machine.used += 0.01
        reader.give_way()
    assert [each for each in machine.slept if each == STEP] == []


def test_one_that_uses_much_begins_when_no_call_of_one_that_uses_little_is_at_work() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns()
    much = busy_reader(machine, turns, begun)
    ask(turns, begun, "few")
    few = begun[-1][1]
    with few, aside():
        # It waits for what another thread does, and comes back before the other has worked for long.
        machine.slept.clear()
        with much:
            stood = sum(machine.slept)
            assert 0.0 < stood <= AT_ONCE + STEP
            machine.used += 2 * AT_ONCE
        # To stand still is a part of the rest.
        assert sum(machine.slept) == pytest.approx(2 * AT_ONCE * (1 / SHARE - 1))
    machine.slept.clear()
    ask(turns, begun, "much")
    machine.now += 2 * AT_WORK
    with begun[-1][1]:
        pass
    assert [each for each in machine.slept if each == STEP] == []


def test_of_two_that_use_much_neither_stands_still_for_the_other() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns()
    for caller in ("first", "second"):
        ask(turns, begun, caller)
        begun[-1][1].charge(3 * AT_ONCE)
    with begun[0][1], aside(), begun[1][1]:
        assert machine.slept == []


def test_outside_of_a_turn_portions_are_the_values() -> None:
    give_way()
    assert list(by_portions(range(100))) == list(range(100))


def test_what_another_thread_works_for_a_call_is_its_callers_and_rested_for() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns(most=1)
    ask(turns, begun, "reader")
    ask(turns, begun, "reader")
    # The connections' thread and the loop have worked much more for them than their own threads.
    begun[0][1].charge(AT_ONCE)
    turns.others_ask()
    machine.work(begun[0][1], 0.001)
    rest = (AT_ONCE + 0.001) * (1 / SHARE - 1)
    assert machine.slept == [pytest.approx(rest)]
    machine.slept.clear()
    # It has rested for that.
    turns.others_ask()
    machine.work(begun[1][1], 0.001)
    assert sum(machine.slept) < 0.01


def test_a_charge_that_comes_after_the_call_counts_as_well() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns(most=1)
    ask(turns, begun, "reader")
    machine.work(begun[0][1], 0.001)
    begun[0][1].charge(0.02)
    ask(turns, begun, "reader")
    ask(turns, begun, "reader")
    ask(turns, begun, "other")
    machine.work(begun[1][1], 0.001)
    assert [name for name, _ in begun] == ["reader", "reader", "other"]


def test_work_elsewhere_is_measured_there_and_charged_by_the_calls_own_thread() -> None:
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns(ahead=machine.turns())
    ask(turns, begun, "reader")
    turn = begun[0][1]
    spent = Elsewhere(lambda: machine.used)

    def work(seconds: float) -> str:
        machine.used += seconds
        return "answer"

    async def in_steps() -> str:
        work(0.25)
        await asyncio.sleep(0)
        machine.used += 100.0 if spent.seconds < 0.25 else 0.0
        return work(0.25)

    async def failing() -> None:
        work(0.5)
        await asyncio.sleep(0)
        raise ValueError("the work's own")

    with turn:
        used = turn.shares[0].used
        assert spent.measured(lambda: work(0.5)) == "answer"
        assert asyncio.run(spent.measured_steps(in_steps())) == "answer"
        with pytest.raises(ValueError, match="the work's own"):
            asyncio.run(spent.measured_steps(failing()))
        assert turn.shares[0].used == used
        spent.charge()
        assert turn.shares[0].used == pytest.approx(used + 1.5)
    spent.charge()
    assert spent.seconds == 0.0


def test_one_that_gives_way_rests_for_as_long_as_its_call_took_by_the_clock() -> None:
    """While the processor is short, a quarter of its time would be most of what there is."""
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns(ahead=machine.turns())
    ask(turns, begun, "reader")
    turns.others_ask()
    with begun[0][1]:
        machine.used += 2 * AT_ONCE
        machine.now += 3 * AT_ONCE
        with aside():
            machine.now += AT_ONCE
        turns.others_ask()
    assert machine.slept == [pytest.approx(3 * AT_ONCE * (1 / SHARE - 1))]


def test_one_that_gives_way_has_its_share_by_the_clock() -> None:
    """A thread that waits for the interpreter again and again hardly calculates, and keeps others from it too."""
    machine, begun = Machine(), list[tuple[str, Turn]]()
    turns = machine.turns(ahead=machine.turns())
    ask(turns, begun, "reader")
    turns.others_ask()
    with begun[0][1]:
        machine.now += 2 * AT_ONCE
    assert machine.slept == [pytest.approx(2 * AT_ONCE * (1 / SHARE - 1))]


def test_a_list_gives_way_by_the_time_that_it_took_and_before_its_first_entry_too() -> None:
    machine, begun, ahead = Machine(), list[tuple[str, Turn]](), list[tuple[str, Turn]]()
    first = machine.turns()
    turns = machine.turns(ahead=first)
    ask(turns, begun, "reader")

    def go_on(seconds: float) -> None:
        machine.used += seconds
        machine.now += seconds

    with begun[0][1]:
        go_on(2 * AT_ONCE)  # what the list is made of
        ask(first, ahead, "post")
        entries = by_portions(range(3))
        next(entries)
        stood = [each for each in machine.slept if each == STEP]
        assert stood
        go_on(PORTION / 2)
        next(entries)
        assert [each for each in machine.slept if each == STEP] == stood
        with ahead[0][1]:
            go_on(PORTION)
            next(entries)
        assert len(machine.slept) > len(stood)
