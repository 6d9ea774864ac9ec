"""Garbage is collected a little at a time, and everything is looked at where memory has grown."""

from __future__ import annotations

import errno
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

from lark_controller.cli.garbage import GROWN, GROWN_AT_ONCE, MOST, SHARE, SPARE, Garbage, taken

MIB = 1 << 20


class Ring:
    """An object that refers to itself."""

    def __init__(self) -> None:
        self.own = self


class Machine:
    """A clock, and a process's memory."""

    def __init__(self) -> None:
        self.now = 0.0
        self.memory = 100 * MIB
        self.used = 0.0
        # Seconds of the processor, and of waiting for the interpreter, that pass with each look at the time of either.
        self.works = self.waits = 0.0
        # How often free memory was given back.
        self.spared = 0

    def spare(self) -> None:
        """Give free memory back."""
        self.spared += 1

    def clock(self) -> float:
        """The time."""
        self.now += self.waits
        return self.now

    def spent(self) -> float:
        """The processor time."""
        self.used += self.works
        self.now += self.works + self.waits
        return self.used


def rings(count: int) -> weakref.WeakSet[Ring]:
    """So many pieces of garbage."""
    return weakref.WeakSet([Ring() for _ in range(count)])


@pytest.fixture
def machine() -> Iterator[Machine]:
    gc.collect()
    gc.disable()
    yield Machine()
    gc.enable()


@pytest.fixture
def garbage(machine: Machine) -> Iterator[Garbage]:
    made = Garbage(lambda: machine.memory, machine.clock, machine.spent, machine.spare)
    made.start()
    # Its turns are the tests'.
    made.thread.stop()
    made.turn()
    yield made
    made.stop()


def test_what_has_come_since_the_last_turn_is_looked_at_once(garbage: Garbage) -> None:
    gone, kept = rings(100), Ring()
    assert len(gone) == 100
    garbage.turn()
    assert not gone
    # A collection of what is new does not find it any more.
    assert not any(each is kept for generation in (0, 1) for each in gc.get_objects(generation))
    assert any(each is kept for each in gc.get_objects(2))


def test_where_much_has_come_it_waits_until_memory_has_grown(machine: Machine, garbage: Garbage) -> None:
    much, held = rings(100), [Ring() for _ in range(2 * MOST)]
    garbage.turn()
    assert len(much) == 100
    del held
    few = rings(10)
    garbage.turn()
    assert not few
    assert len(much) == 100
    part, size = GROWN_AT_ONCE
    machine.memory += int(machine.memory * part) + size + 1
    garbage.turn()
    assert not much


def test_everything_is_looked_at_where_memory_stays_grown(machine: Machine, garbage: Garbage) -> None:
    """A change of policy takes more for a while."""
    part, size, seconds = GROWN
    old, before = Ring(), machine.memory
    garbage.turn()
    seen = weakref.ref(old)
    del old
    more = int(before * part) + size + 1
    for memory, passed, there in (
        (before + more, 0.0, True),
        (before + more, seconds - 1, True),
        (before, 0.0, True),
        (before + more, 2.0, True),
        (before + more, seconds - 1, True),
        (before + more, 2.0, False),
    ):
        machine.memory, machine.now = memory, machine.now + passed
        garbage.turn()
        assert (seen() is not None) == there
    # What it has then is no more than it needs.
    old = Ring()
    garbage.turn()
    seen = weakref.ref(old)
    del old
    machine.now += 2 * seconds
    garbage.turn()
    assert seen() is not None


def test_memory_that_has_become_less_is_what_it_grows_from(machine: Machine, garbage: Garbage) -> None:
    old = Ring()
    garbage.turn()
    seen = weakref.ref(old)
    del old
    part, size = GROWN_AT_ONCE
    machine.memory //= 2
    garbage.turn()
    machine.memory += int(machine.memory * part) + size + 1
    garbage.turn()
    assert seen() is None


def test_free_memory_is_given_back_where_there_is_some_more(machine: Machine, garbage: Garbage) -> None:
    more, seconds = SPARE
    machine.now += seconds
    machine.memory += more
    garbage.turn()
    assert machine.spared == 0
    machine.memory += 1
    garbage.turn()
    garbage.turn()
    assert machine.spared == 1
    machine.now += seconds
    garbage.turn()
    assert machine.spared == 2
    part, size = GROWN_AT_ONCE
    machine.memory += int(machine.memory * part) + size
    garbage.turn()
    assert machine.spared == 3


def test_collections_take_a_small_part_of_the_time(machine: Machine, garbage: Garbage) -> None:
    machine.works = 1.0
    first = rings(1)
    garbage.turn()
    assert not first
    machine.works = 0.0
    second = rings(1)
    garbage.turn()
    machine.now += SHARE - 3
    garbage.turn()
    assert len(second) == 1
    machine.now += 2
    third = rings(1)
    garbage.turn()
    assert not third


def test_a_collection_that_others_interrupt_takes_no_more_of_the_time(machine: Machine, garbage: Garbage) -> None:
    machine.waits = 1.0
    for _ in range(3):
        found = rings(10)
        garbage.turn()
        assert not found


def test_memory_that_cannot_be_asked_for_is_asked_for_again(machine: Machine) -> None:
    # None: no descriptor is free.
    answers: list[int | None] = [machine.memory]

    def memory() -> int:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if answer is None:
            raise OSError(errno.EMFILE, "Too many open files")
        return answer

    made = Garbage(memory, machine.clock)
    made.start()
    made.thread.stop()
    few, answers[0] = rings(10), None
    made.turn()
    assert not few
    # It cannot be asked for after a collection of everything either, which is not repeated for that.
    part, size = GROWN_AT_ONCE
    grown = int(machine.memory * (1 + part)) + size + 1
    answers[:] = [grown, None, grown]
    old = Ring()
    made.turn()
    made.turn()
    seen = weakref.ref(old)
    del old
    made.turn()
    assert seen() is not None
    made.stop()


def test_memory_that_was_moved_to_the_swap_is_taken_too(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("Name:\tlark: a\nVmPeak:\t  9000000 kB\nVmRSS:\t    2048 kB\nVmSwap:\t    1024 kB\nThreads:\t3\n")
    assert taken(status) == 3 * MIB
    # Some kernels have no swap.
    status.write_text("VmRSS:\t    2048 kB\n")
    assert taken(status) == 2 * MIB
    before, held = taken(), bytearray(b"x") * (64 * MIB)
    assert taken() - before > 60 * MIB
    assert len(held) == 64 * MIB


def test_python_collects_by_itself_but_in_between() -> None:
    made = Garbage()
    assert gc.isenabled()
    made.start()
    try:
        assert not gc.isenabled()
        assert made.thread.is_alive()
    finally:
        made.stop()
    assert gc.isenabled()
    assert not made.thread.is_alive()
