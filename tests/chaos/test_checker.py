"""Every promise that the checker stands for can be broken, and it says so."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

from tests.chaos.checker import Evidence, Promise, Reservation, Row, check
from tests.chaos.clock import Clock
from tests.chaos.log import Asked, Entry, Log, Run
from tests.chaos.schedule import Kind, rounds

NOW = 100.0
ONE = Run("s#1", "alice", 1, "slot1@worker1", "job0", 1)
TWO = Run("s#2", "bob", 2, "slot1@worker2", "job0", 1, rate=20)
CHANNEL = "internet core1>wan"


def entry(asked: Asked, run: str, at: float, status: int = 200, said: str = "", state: str = "enforced") -> Entry:
    return Entry(asked, run, at, at + 0.5, status, said, state)


def a_log(*more: Entry) -> Log:
    """Two runs that were posted and acknowledged, and a reservation of the second one."""
    log = Log(patience=30.0)
    for run in (ONE, TWO):
        log.begin(run)
    log.add(entry(Asked.POST, "s#1", 90, 201, "10.64.0.1"))
    log.add(entry(Asked.POST, "s#2", 90, 201, "10.64.0.2"))
    log.add(entry(Asked.RESERVE, "s#2", 92, 201, "r2"))
    for each in more:
        log.add(each)
    return log


SEEN = Evidence(
    rows=(
        Row(1, "s#1", "id1", True, "10.64.0.1", True, (1, "job0")),
        Row(2, "s#2", "id2", True, "10.64.0.2", True, (2, "job0")),
    ),
    reservations=(
        Reservation("r1", True, 20_000, "id2", {CHANNEL: 20_000}),
        Reservation("r2", False, 5_000, "id2", {CHANNEL: 5_000}),
    ),
    reserved={CHANNEL: 25_000},
    capacity={CHANNEL: 100_000},
    used={1: (500, 1000), 2: (50, 0)},
    counted={(1, "job0"): (500, 1000), (2, "job0"): (100, 0)},
    job_sums=(1000, 550),
    sums={("group", 60): (1000, 550), ("user", 60): (1000, 550)},
    desired={1: {"table 0 match a": "output 1", "table 0 match b": "drop"}},
    held={1: {"table 0 match a": "output 1", "table 0 match b": "drop"}},
    wanted_queues={2: {"eth0": "100 in all; 0: 80 to 100, 2: 20 to 20", "job0": "20 in all; 0: 20 to 20"}},
    queues={2: {"eth0": "100 in all; 0: 80 to 100, 2: 20 to 20", "job0": "20 in all; 0: 20 to 20"}},
    policy="version: 1",
)


def broken(log: Log, seen: Evidence) -> list[Promise]:
    return [each.promise for each in check(log, seen, NOW)]


def with_row(number: int, **changes: object) -> Evidence:
    rows = [replace(row, **changes) if row.number == number else row for row in SEEN.rows]  # type: ignore[arg-type]
    return replace(SEEN, rows=tuple(rows))


def test_where_every_promise_is_kept_nothing_is_said() -> None:
    assert check(a_log(), SEEN, NOW) == []


def test_a_controller_that_does_not_run_any_more() -> None:
    assert broken(a_log(), replace(SEEN, running=False)) == [Promise.RUNS]


def test_an_ad_that_is_lost_has_ended_is_another_or_has_another_address() -> None:
    assert broken(a_log(), replace(SEEN, rows=SEEN.rows[1:], used={})) == [Promise.STANDS]
    assert broken(a_log(), with_row(1, live=False)) == [Promise.STANDS]
    assert broken(a_log(), with_row(1, marked=False)) == [Promise.STANDS]
    assert broken(a_log(), with_row(1, address="10.64.0.9")) == [Promise.STANDS]


def test_a_run_that_was_ended_or_refused_or_replaced_and_lives_or_does_not() -> None:
    assert broken(a_log(entry(Asked.END, "s#1", 95)), SEEN) == [Promise.ENDS]
    # Whose end was not answered may live, and may not.
    unknown = a_log(entry(Asked.END, "s#1", 95, 0))
    assert broken(unknown, SEEN) == broken(unknown, with_row(1, live=False)) == []
    later = replace(ONE, name="s#3", started=2)
    for status, promise in ((0, []), (201, []), (409, [Promise.STANDS])):
        log = a_log()
        log.begin(later)
        log.add(entry(Asked.POST, "s#3", 95, status, "10.64.0.1", "ended"))
        assert broken(log, with_row(1, live=False)) == promise
    log = a_log()
    log.begin(later)
    log.add(entry(Asked.POST, "s#3", 95, 409))
    lives = Row(3, "s#3", "id3", True, "10.64.0.3", True, (1, "job0"))
    assert broken(log, replace(SEEN, rows=(*SEEN.rows, lives))) == [Promise.ENDS]


def test_a_run_whose_lease_may_be_over_may_have_ended_and_one_that_was_renewed_may_not() -> None:
    late = NOW + 25
    gone = with_row(1, live=False)
    assert Promise.STANDS not in [each.promise for each in check(a_log(), gone, late)]
    renewed = a_log(entry(Asked.RENEW, "s#1", 99))
    assert Promise.STANDS in [each.promise for each in check(renewed, gone, late)]


def test_a_run_that_lives_and_is_said_to_be_unknown() -> None:
    assert broken(a_log(entry(Asked.RENEW, "s#1", 95, 404)), SEEN) == [Promise.KNOWN]
    assert broken(a_log(entry(Asked.END, "s#1", 94, 0), entry(Asked.RENEW, "s#1", 95, 404)), SEEN) == []


def test_an_address_with_two_owners_in_the_database_or_by_what_was_acknowledged() -> None:
    stranger = Row(3, "s#3", "id3", True, "10.64.0.1", True, (3, "job0"))
    assert broken(a_log(), replace(SEEN, rows=(*SEEN.rows, stranger))) == [Promise.OWNER]
    third = Run("s#3", "carol", 3, "slot1@worker3", "job0", 1)
    doubled, after = a_log(), a_log(entry(Asked.END, "s#1", 93, 0))
    for log in (doubled, after):
        log.begin(third)
        log.add(entry(Asked.POST, "s#3", 95, 201, "10.64.0.1"))
        log.add(entry(Asked.END, "s#3", 97))
    assert broken(doubled, SEEN) == [Promise.OWNER]
    # Once somebody has asked for its end, the address may be another's.
    assert broken(after, SEEN) == []


def test_a_flow_too_many_one_that_is_missing_and_another_one() -> None:
    wanted = SEEN.desired[1]
    for held, word in (
        ({**wanted, "table 0 match c": "drop"}, "1 too many"),
        ({"table 0 match a": "output 1"}, "1 missing"),
        ({**wanted, "table 0 match b": "output 1"}, "1 other"),
        ({}, "2 missing"),
    ):
        (violation,) = check(a_log(), replace(SEEN, held={1: held}), NOW)
        assert violation.promise is Promise.FLOWS
        assert word in violation.what


def test_queues_that_are_missing_left_behind_or_of_another_rate() -> None:
    wanted = SEEN.wanted_queues[2]
    for held, word in (
        ({**wanted, "row 7": "of no port"}, "1 too many"),
        ({"eth0": wanted["eth0"]}, "1 missing"),
        ({**wanted, "job0": "30 in all; 0: 30 to 30"}, "1 other"),
        ({}, "2 missing"),
    ):
        (violation,) = check(a_log(), replace(SEEN, queues={2: held}), NOW)
        assert violation.promise is Promise.QUEUES
        assert word in violation.what


def test_a_link_that_carries_less_than_is_promised() -> None:
    assert broken(a_log(), replace(SEEN, capacity={CHANNEL: 24_999})) == [Promise.CAPACITY]
    assert broken(a_log(), replace(SEEN, capacity={})) == [Promise.CAPACITY]


def test_a_sum_that_is_not_that_of_its_reservations() -> None:
    assert broken(a_log(), replace(SEEN, reserved={CHANNEL: 20_000})) == [Promise.SUMS]
    more = replace(SEEN, reserved={CHANNEL: 25_000, "other": 1}, capacity={CHANNEL: 25_000, "other": 1})
    assert broken(a_log(), more) == [Promise.SUMS]


def test_a_reservation_that_is_lost_released_or_of_no_live_job() -> None:
    first, second = SEEN.reservations
    lost = replace(SEEN, reservations=(first,), reserved={CHANNEL: 20_000})
    assert broken(a_log(), lost) == [Promise.RESERVED]
    asked_back = a_log(entry(Asked.RELEASE, "s#2", 95, 200, "r2"))
    assert broken(asked_back, SEEN) == [Promise.RELEASED]
    assert broken(asked_back, lost) == []
    smaller = replace(SEEN, reservations=(replace(first, kbps=10_000), second))
    assert broken(a_log(), smaller) == [Promise.RESERVED]
    of_nobody = replace(SEEN, reservations=(first, replace(second, job="id9")))
    assert broken(a_log(), of_nobody) == [Promise.RELEASED]


def test_use_that_is_counted_twice() -> None:
    twice = replace(SEEN, used={1: (1000, 1000), 2: (50, 0)})
    assert broken(a_log(), twice) == [Promise.USE]
    # Two jobs at one port, one after the other, that both have what passed it.
    rows = (*SEEN.rows, Row(3, "s#0", "id0", False, "", True, (1, "job0")))
    assert broken(a_log(), replace(SEEN, rows=rows, used={1: (500, 0), 3: (500, 0)})) == [Promise.USE]
    assert broken(a_log(), replace(SEEN, used={9: (1, 1)})) == [Promise.USE]
    assert broken(a_log(), replace(SEEN, sums={("group", 60): (2000, 550)})) == [Promise.USE]


def test_a_policy_that_was_acknowledged_and_is_not_in_force() -> None:
    put = entry(Asked.POLICY, "", 95, 200, "version: 1 # another")
    assert broken(a_log(put), SEEN) == [Promise.POLICY]
    assert broken(a_log(put, entry(Asked.POLICY, "", 96, 0, "version: 1")), SEEN) == []
    assert broken(a_log(replace(put, said="version: 1")), SEEN) == []


def test_the_same_seed_is_the_same_faults_which_overlap_but_for_one_kind_and_end_with_their_round() -> None:
    kinds = tuple(Kind)
    found = rounds(7, [30.0, 60.0], kinds)
    assert found == rounds(7, [30.0, 60.0], kinds) != rounds(8, [30.0, 60.0], kinds)
    overlapping = 0
    for length, faults in zip((30.0, 60.0), found, strict=True):
        assert len(faults) >= length / 10
        assert all(fault.at > 0 and fault.end <= length + 1e-9 for fault in faults)
        for number, fault in enumerate(faults):
            for other in faults[number + 1 :]:
                overlapping += other.at < fault.end
                assert other.kind is not fault.kind or other.at >= fault.end
    assert overlapping
    assert {fault.kind for faults in rounds(1, [60.0], (Kind.KILL,)) for fault in faults} == {Kind.KILL}


def test_every_kind_of_fault_comes_in_every_run_of_a_minute() -> None:
    sqlite = tuple(kind for kind in Kind if kind not in (Kind.STOP, Kind.CRASH, Kind.SESSIONS))
    postgresql = tuple(kind for kind in Kind if kind not in (Kind.DISK, Kind.LOCK))
    for seed in range(1, 501):
        for kinds in (sqlite, postgresql):
            (once,) = rounds(seed, [30.0], kinds)
            assert {fault.kind for fault in once} == set(kinds)
        several = rounds(seed, [30.0, 30.0, 12.0], sqlite)
        assert {fault.kind for faults in several for fault in faults} == set(sqlite)


def test_clocks_that_are_set_back_and_ahead_at_once_are_set_by_the_sum(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    read = struct.Struct("=d").unpack
    for by, seconds, ahead in (("back", -60.0, -60.0), ("ahead", 3600.0, 3540.0), ("back", 0.0, 3600.0)):
        clock.set(by, seconds)
        assert read(clock.path.read_bytes()) == (ahead,)
