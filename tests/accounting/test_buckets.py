"""Buckets of time: all use of a job is in a minute, an hour and a day, spread over the time that it came in."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_controller.accounting.buckets import DAY, HOUR, MINUTE, Subject, buckets, width_for
from lark_controller.accounting.readings import PortReading
from lark_controller.accounting.usage import NOTHING, Usage
from tests.accounting.test_ledger import job, opened
from tests.fixtures.databases import NOW


def test_use_goes_into_a_minute_an_hour_and_a_day_of_group_user_and_host() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 0, 0), port_age=10.0)
    found = buckets(ledger.entries([1]))
    assert len(found) == 9
    at = int(NOW + 10)
    assert {(each.seconds, each.start) for each in found} == {(w, at - at % w) for w in (MINUTE, HOUR, DAY)}
    owner = job()
    assert {each.subject for each in found} == {
        Subject("group", owner.group, owner.group),
        Subject("user", owner.user, owner.group),
        Subject("host", owner.host, ""),
    }
    assert {each.usage for each in found} == {Usage(bytes_out=500, packets_out=5)}


@settings(deadline=None)
@given(
    begun=st.integers(0, 200),
    lasts=st.integers(0, 2000),
    new=st.tuples(*(st.integers(0, 10**12) for _ in Usage._fields)),
)
def test_use_is_spread_over_the_minutes_of_its_readings_and_none_is_lost(
    begun: int, lasts: int, new: tuple[int, ...]
) -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 0, 0), port_age=10.0)
    (made,) = ledger.entries([1])
    used = Usage(*new).bounded()
    entry = made._replace(begun=NOW + begun, at=NOW + begun + lasts, new=used)
    found = [each for each in buckets([entry]) if each.subject.kind == "host"]
    for width in (MINUTE, HOUR, DAY):
        some = [each for each in found if each.seconds == width]
        total = NOTHING
        for each in some:
            total = total.plus(each.usage)
        assert total == used
        assert all(entry.at - 900 - width < each.start <= entry.at for each in some)
        assert all(each.usage == each.usage.bounded() for each in some)
    whole = [each.usage.bytes_in for each in found if each.seconds == MINUTE][1:-1]
    # A stream whose rate does not change has the same in each minute, but for what is rounded.
    assert not whole or max(whole) - min(whole) <= 2


def test_no_part_of_a_minute_is_more_than_its_whole() -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 0, 0), port_age=10.0)
    (made,) = ledger.entries([1])
    end = float(int(NOW) // MINUTE * MINUTE + HOUR)
    used = Usage(bytes_out=10, packets_out=10, wan_bytes_out=9, wan_packets_out=9)
    found = buckets([made._replace(begun=end - 15 * MINUTE, at=end, new=used)])
    minutes = [each.usage for each in found if each.subject.kind == "host" and each.seconds == MINUTE]
    assert [each for each in minutes if each != each.bounded()] == []
    assert (sum(each.packets_out for each in minutes), sum(each.wan_packets_out for each in minutes)) == (10, 9)


@pytest.mark.parametrize(
    ("seconds", "minutes"), [(0, 1), (60, 1), (120, 2), (840, 14), (900, 15), (901, 15), (3600, 15), (10**6, 15)]
)
def test_use_since_long_before_is_of_the_last_quarter_of_an_hour(seconds: int, minutes: int) -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(5, 500, 0, 0), port_age=10.0)
    (made,) = ledger.entries([1])
    end = float(int(NOW) // MINUTE * MINUTE + 10**7 // MINUTE * MINUTE)
    entry = made._replace(begun=end - seconds, at=end, new=Usage(bytes_in=900 * 1000))
    found = {
        each.start: each.usage.bytes_in
        for each in buckets([entry])
        if each.subject.kind == "host" and each.seconds == MINUTE
    }
    first = int(end) - MINUTE * minutes if seconds else int(end)
    assert (min(found), len(found), sum(found.values())) == (first, minutes, 900_000)
    assert max(found.values()) - min(found.values()) <= 1


def test_a_steady_stream_is_level_whenever_it_is_written() -> None:
    """Counters are read every 10 seconds and written once a minute, some seconds later each time."""
    ledger = opened()
    sums: dict[int, int] = {}
    write_at = 60.0
    for turn in range(1, 200):
        at = 10.0 * turn
        if at >= write_at:
            for each in buckets(entries := ledger.entries(ledger.changed())):
                if each.subject.kind == "host" and each.seconds == MINUTE:
                    sums[each.start] = sums.get(each.start, 0) + each.usage.bytes_out
            ledger.wrote(entries)
            write_at += 60.9
        ledger.read(1, NOW + at, PortReading(turn, 1000 * turn, 0, 0), port_age=at)
    whole = [size for _, size in sorted(sums.items())][1:-2]
    assert len(whole) > 20
    assert set(whole) <= {5999, 6000, 6001}


@pytest.mark.parametrize(
    ("hours", "wanted", "width"),
    [
        (1, None, MINUTE),
        (6, None, MINUTE),
        (7, None, HOUR),
        (24 * 62, None, HOUR),
        (24 * 63, None, DAY),
        (1, "day", DAY),
    ],
)
def test_which_buckets_answer(hours: int, wanted: str | None, width: int) -> None:
    assert width_for(NOW, NOW + hours * HOUR, wanted) == width


@pytest.mark.parametrize(
    ("seconds", "width"),
    [(0, MINUTE), (6 * HOUR, MINUTE), (6 * HOUR + 1, HOUR), (62 * DAY, HOUR), (62 * DAY + 1, DAY)],
)
def test_the_width_of_buckets_follows_the_stretch(seconds: int, width: int) -> None:
    assert width_for(1000, 1000 + seconds, None) == width
    assert [width_for(1000, 1000 + seconds, name) for name in ("minute", "hour", "day")] == [60, 3600, 86400]


def test_jobs_of_one_subject_are_added_up_in_an_order_that_is_the_same() -> None:
    ledger = opened(2)
    ledger.begin(job(1), "g")
    for number in (1, 2):
        ledger.read(number, NOW + 10, PortReading(number, 100 * number, 0, 0), port_age=10.0)
    entries = ledger.entries([2, 1])
    found = buckets(entries)
    assert found == sorted(found) == buckets(entries[::-1])
    host = [each.usage for each in found if each.subject.kind == "host"]
    assert host == [Usage(bytes_out=300, packets_out=3)] * 3
    assert {each.usage.bytes_out for each in found if each.subject.kind == "user"} == {100, 200}


def test_nothing_new_is_in_no_bucket() -> None:
    assert buckets(opened().entries([1])) == []
