"""A run is at rest when all is well or the same stays broken, however long a look takes; and what remains of it tells
why."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.chaos.checker import Promise, Violation
from tests.chaos.log import Asked, Entry, Log, Run
from tests.chaos.remains import both_sides, in_words, keep
from tests.chaos.rest import Rest
from tests.chaos.schedule import Fault, Kind
from tests.chaos.switches import Fleet

ONE = Violation(Promise.FLOWS, "switch 1: 2 missing")
LESS = Violation(Promise.FLOWS, "switch 1: 1 missing")
TWO = Violation(Promise.QUEUES, "worker 2: 1 missing")


class Nowhere(asyncio.Transport):
    """A connection that takes everything."""

    def write(self, data: object) -> None:
        pass

    def is_closing(self) -> bool:
        return False


def looks(rest: Rest, *found: list[Violation] | None) -> list[bool]:
    return [rest.over(each) for each in found]


def test_a_run_is_over_at_once_where_all_is_well() -> None:
    assert looks(Rest(), []) == [True]
    assert looks(Rest(), [ONE], [ONE], []) == [False, False, True]


def test_what_changes_is_waited_for_and_what_stays_the_same_is_broken() -> None:
    rest = Rest(same=3, most=100)
    assert looks(rest, [ONE, TWO], [ONE, TWO], [LESS, TWO], [LESS, TWO]) == [False] * 4
    assert looks(rest, [TWO, LESS]) == [True]
    assert rest.looks == {LESS: 3, TWO: 5}


def test_a_look_that_could_see_nothing_is_not_one_that_saw_the_same_nor_one_that_saw_that_all_is_well() -> None:
    assert looks(Rest(same=2, most=5), [ONE], None, [ONE], None, None) == [False, False, False, False, True]


def test_what_changes_for_ever_is_broken_in_the_end() -> None:
    rest = Rest(same=3, most=6)
    assert looks(rest, *([ONE], [LESS]) * 3) == [False] * 5 + [True]
    assert rest.looks == {LESS: 1}


def test_what_remains_says_how_often_it_was_found_and_who_is_connected_to_whom(tmp_path: Path) -> None:
    fleet = Fleet(1, 1)
    told = [{"datapath": "0000000000000001", "connected": False, "in_sync": False, "reason": "no answer for 4.0 s"}]
    edge, core = both_sides(fleet, told)
    assert edge.startswith("switch 1: its own connection is closed, 0 flows; at the controller connected=False ")
    assert edge.endswith("reason='no answer for 4.0 s'")
    assert core.startswith("switch c0: ")
    assert "connected=None" in core
    fleet.switches[1].connection_made(Nowhere())
    assert "its own connection is open" in both_sides(fleet, told)[0]

    log = Log(30.0)
    log.begin(Run("s#1", "alice", 1, "slot1@worker1", "job0", 1))
    log.add(Entry(Asked.POST, "s#1", 1.0, 1.5, 201))
    (tmp_path / "lark.log").write_text("a line\n")
    broken = in_words({ONE: 90})
    keep(tmp_path, "sqlite:///x", log, [Fault(1.0, Kind.KILL, 2.0, 0.5)], broken, [edge], tmp_path / "found")
    kept = {path.name: path.read_text() for path in (tmp_path / "found").iterdir()}
    assert kept.keys() == {"lark.log", "asked", "faults", "broken", "switches"}
    assert kept["broken"] == f"{ONE} (found 90 times in a row)\n"
    assert kept["switches"] == f"{edge}\n"
    assert "s#1" in kept["asked"]
    assert "killed" in kept["faults"]
