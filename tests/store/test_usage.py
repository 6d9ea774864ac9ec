"""Usage of jobs in the store: written once, added up by time, asked in pages, removed when it is old."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sqlalchemy import Connection, Table

from lark_common.classads.values import MAX_NAME_BYTES
from lark_common.errors import NotFoundError, StoreError
from lark_controller.accounting.buckets import DAY, HOUR, MINUTE, width_for
from lark_controller.accounting.entry import Entry
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import CountKind, FlowReading, PortReading
from lark_controller.accounting.usage import MOST, JobUsage, Peak, Usage
from lark_controller.api.usage import UsageFilter, UsagePage, UsageRow
from lark_controller.store import Store, bulk, queries
from lark_controller.store.database import connect
from lark_controller.store.schema import metadata
from lark_controller.store.usage import new_use, write
from tests.fixtures.databases import NOW, a_run

DAY_ONE = 1_700_006_400  # a midnight in UTC
USE = Usage(1, 2, 3, 4, 1, 2, 3, 4, 9, 10, 11, 12, 13)


def entry(number: int = 1, at: float = DAY_ONE + 30, new: Usage = USE, **changes: object) -> Entry:
    made = Entry(
        number=number,
        job_id=f"{number:016x}",
        owner=f"user{number % 3}",
        user=f"user{number % 3}@example",
        group=f"group{number % 2}",
        host=f"worker{number}",
        since=DAY_ONE - 100.0,
        begun=at,
        at=at,
        usage=new,
        new=new,
        readings='{"at":1}',
        final=False,
    )
    return made._replace(**changes)  # type: ignore[arg-type]  # the fields are named in each call


def asked(store: Store, by: str, start: float, end: float, bucket: str | None = None, **chosen: Any) -> UsagePage:
    seconds = width_for(start, end, bucket)
    return store.usage.page(UsageFilter(by, start, end, seconds, bucket, **chosen), None, 1000)


def times(usage: Usage, count: int) -> Usage:
    return Usage(*(value * count for value in usage))


def test_new_use_is_added_and_readings_are_replaced(store: Store) -> None:
    store.usage.write([entry(), entry(2)])
    store.usage.write([entry(at=DAY_ONE + 90, usage=times(USE, 2), readings='{"at":2}')])
    first, second = store.usage.unended()
    assert (first.number, Usage(*first.sums), first.readings) == (1, times(USE, 2), '{"at":2}')
    assert Usage(*second.sums) == USE
    assert store.usage.of_jobs([1, 2, 3]) == {
        1: JobUsage(times(USE, 2), at=DAY_ONE + 90),
        2: JobUsage(USE, at=DAY_ONE + 30),
    }
    store.usage.write([entry(at=DAY_ONE + 99, new=Usage(), readings="", final=True)])
    assert [each.number for each in store.usage.unended()] == [2]
    assert store.usage.of_jobs([1])[1].final
    store.usage.finish([2])
    assert list(store.usage.unended()) == []
    assert store.usage.of_jobs([2]) == {2: JobUsage(USE, at=DAY_ONE + 30, final=True)}


def test_a_job_whose_end_was_none_lives_on_and_others_ends_stay(store: Store) -> None:
    store.usage.write([entry(), entry(2), entry(3)])
    store.usage.write([entry(1, new=Usage(), readings="", final=True), entry(2, new=Usage(), readings="", final=True)])
    store.usage.write([entry(1, at=DAY_ONE + 90, new=Usage(), readings='{"at":3}'), entry(3), entry(4)])
    assert [(each.number, each.readings) for each in store.usage.unended()] == [
        (1, '{"at":3}'), (3, '{"at":1}'), (4, '{"at":1}')
    ]  # fmt: skip
    assert {number: each.final for number, each in store.usage.of_jobs([1, 2, 3, 4]).items()} == {
        1: False, 2: True, 3: False, 4: False
    }  # fmt: skip


def test_on_sqlite_the_use_of_jobs_that_live_on_changes_no_index(tmp_path: Path) -> None:
    database = connect(f"sqlite:///{tmp_path}/some.db")
    metadata.create_all(database.engine)
    use = new_use([entry(), entry(2)])
    with database.engine.connect() as connection, connection.begin():
        write(connection, use)
        handle = connection.connection.driver_connection
        assert handle is not None
        steps: list[str] = []
        handle.set_trace_callback(steps.append)
        write(connection, use)
        handle.set_trace_callback(None)
        (step,) = (step for step in steps if step.startswith("INSERT INTO usage_jobs"))
        update = [opcode for (_, opcode, *_) in connection.exec_driver_sql(f"EXPLAIN {step}")]
    assert "Insert" in update
    assert "IdxDelete" not in update
    database.engine.dispose()


@pytest.mark.parametrize("table", ["usage_jobs", "usage"])
def test_use_that_breaks_off_in_the_middle_is_written_once_by_the_next_try(
    store: Store, table: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.usage.write([entry(), entry(2)])
    entries = [entry(1, at=DAY_ONE + 90), entry(2, at=DAY_ONE + 90, final=True, readings=""), entry(3)]
    add = bulk.add

    def breaks_off(connection: Connection, of: Table, *rest: Any, **more: Any) -> int:
        written = add(connection, of, *rest, **more)
        if of.name == table:
            raise OSError("broken off")
        return written

    monkeypatch.setattr(bulk, "add", breaks_off)
    with pytest.raises(StoreError):
        store.usage.write(entries)
    assert [(each.number, Usage(*each.sums)) for each in store.usage.unended()] == [(1, USE), (2, USE)]
    monkeypatch.undo()
    store.usage.write(entries)
    found = store.usage.of_jobs([1, 2, 3])
    assert [(found[number].usage, found[number].final) for number in (1, 2, 3)] == [
        (times(USE, 2), False), (times(USE, 2), True), (USE, False)
    ]  # fmt: skip
    (day,) = {each.start: each for each in asked(store, "host", DAY_ONE, DAY_ONE + DAY, host="worker1").rows}.values()
    assert day.usage == times(USE, 2)


def test_names_with_the_signs_of_a_copy_come_back_as_they_are(store: Store) -> None:
    names = ["a\tb", "a\\tb", "a\nb\r", "\\.", "\\N", "%d %s", ""]
    store.usage.write([entry(number, user=name, host=f"h{name}") for number, name in enumerate(names)])
    rows = asked(store, "job", DAY_ONE - DAY, DAY_ONE + DAY).rows
    assert {(row.user, row.host) for row in rows} == {(name, f"h{name}") for name in names}
    assert {row.user for row in asked(store, "user", DAY_ONE, DAY_ONE + DAY).rows} == set(names)


def test_peaks_are_replaced_and_stay_with_jobs_that_have_ended(store: Store) -> None:
    store.usage.write([entry(), entry(2, peak=Peak(5, 6))])
    store.usage.write([entry(peak=Peak(7, 3)), entry(2, new=Usage(), peak=Peak(5, 9), readings="", final=True)])
    store.usage.finish([1])
    found = store.usage.of_jobs([1, 2])
    assert (found[1].peak, found[2].peak) == (Peak(7, 3), Peak(5, 9))
    store.usage.write([entry(3, peak=Peak(MOST, MOST))])
    assert store.usage.of_jobs([3])[3].peak == Peak(MOST, MOST)


def test_counters_that_are_nonsense_keep_nobody_elses_use_from_being_written(store: Store) -> None:
    ledger = Ledger()
    for number in (1, 4, 7):
        ledger.begin(replace(a_run(number), number=number), "default")
    for step, said in enumerate((2**63 - 1, 0, 2**63 - 1, 2**64 - 1)):
        for number in (1, 4):
            ledger.read(
                number, NOW + step, PortReading(said, said, said, said), [FlowReading(CountKind.WAN_IN, said, said)]
            )
    ledger.read(7, NOW + 1, PortReading(1, 2, 3, 4))
    for _ in range(2):
        store.usage.write(ledger.entries([1, 4, 7]))
    found = store.usage.of_jobs([1, 7])
    assert found[1].usage.bytes_in == MOST
    assert found[7].usage.bytes_in == 8
    (row,) = asked(store, "host", NOW - DAY, NOW + DAY).rows
    assert row.usage.bytes_in >= MOST


def test_the_longest_names_fit_into_every_index(store: Store) -> None:
    # PostgreSQL presses repetitions together before it looks whether a key fits.
    chosen = Random(1)
    name = "".join(chr(chosen.randrange(0x400, 0x500)) for _ in range(MAX_NAME_BYTES // 2))
    store.usage.write([entry(group=name, user=name, owner=name, host=name)])
    assert asked(store, "user", DAY_ONE, DAY_ONE + DAY).rows[0].group == name


@pytest.mark.parametrize("by", ["host", "job"])
def test_a_host_is_asked_for_without_its_domain(store: Store, by: str) -> None:
    for number, host in ((1, "worker1.example"), (2, "worker2.example"), (3, "worker1.elsewhere")):
        job = store.runs.register(a_run(number, host=host), "", "", "hook", NOW).job
        store.usage.write([entry(job.number, job_id=job.id, host=host)])

    def hosts(word: str) -> set[str | None]:
        rows = asked(store, by, DAY_ONE - DAY, DAY_ONE + DAY, host=word).rows
        return {row.host for row in rows}

    assert hosts("worker2") == hosts("worker2.example") == {"worker2.example"}
    assert hosts("worker1") == {"worker1.example", "worker1.elsewhere"}
    assert hosts("worker1.example") == {"worker1.example"}
    assert hosts("worker") == set()


@pytest.mark.parametrize("named", [500, 0])
@pytest.mark.parametrize("by", ["group", "user", "job"])
def test_a_group_is_asked_for_in_any_case_with_its_subgroups(
    store: Store, monkeypatch: pytest.MonkeyPatch, by: str, named: int
) -> None:
    """Also where users have made more subgroups than a statement names."""
    monkeypatch.setattr(queries, "_MOST_NAMED", named)
    for number, group in enumerate(("group_cms", "GROUP_CMS", "group_cms.prod", "group_cmsx"), 1):
        job = store.runs.register(a_run(number, group=group), "", "", "hook", NOW).job
        store.usage.write([entry(job.number, job_id=job.id, group=group)])

    def groups(word: str) -> set[str | None]:
        return {row.group for row in asked(store, by, DAY_ONE - DAY, DAY_ONE + DAY, group=word).rows}

    assert groups("group_cms") == groups("Group_CMS") == {"group_cms", "GROUP_CMS", "group_cms.prod"}
    assert groups("group_cms.PROD") == {"group_cms.prod"}
    assert groups("group") == set()


def test_names_with_any_character_are_written_as_they_are(store: Store) -> None:
    name = "a\tb\\c\nd\re\\N 'x' \"ü\" 🐦 \\."
    for _ in range(2):
        store.usage.write([entry(user=name, group=name, host=name, readings=name), entry(2, user="\\N", group="")])
    first, second = store.usage.unended()
    assert (first.readings, Usage(*first.sums), Usage(*second.sums)) == (name, times(USE, 2), times(USE, 2))
    rows = asked(store, "user", DAY_ONE, DAY_ONE + HOUR).rows
    assert sorted((row.user, row.group, row.usage) for row in rows) == sorted(
        [(name, name, times(USE, 2)), ("\\N", "", times(USE, 2))]
    )


def test_each_width_has_every_use_once(store: Store) -> None:
    for minute in range(0, 48 * 60, 30):
        store.usage.write([entry(number, DAY_ONE + minute * 60 + 1) for number in (1, 2, 3)])
    end = DAY_ONE + 2 * DAY
    for by in ("group", "user", "host"):
        for bucket, rows in (("minute", 96), ("hour", 48), ("day", 2)):
            page = asked(store, by, DAY_ONE, end, bucket)
            total = Usage()
            for row in page.rows:
                total = total.plus(row.usage)
            assert total == times(USE, 3 * 96), (by, bucket)
            assert len({row.start for row in page.rows}) == rows
            assert {row.end - row.start for row in page.rows} == {page.seconds}
    groups = asked(store, "group", DAY_ONE, end).rows
    assert groups == (
        UsageRow(times(USE, 96), DAY_ONE, end, group="group0"),
        UsageRow(times(USE, 192), DAY_ONE, end, group="group1"),
    )
    assert asked(store, "group", DAY_ONE + HOUR, DAY_ONE + 2 * HOUR, group="group1").rows == (
        UsageRow(times(USE, 4), DAY_ONE + HOUR, DAY_ONE + 2 * HOUR, group="group1"),
    )


@pytest.mark.parametrize(("first", "last"), [(0, 96), (5, 90), (24, 72), (30, 40), (23, 49), (70, 96)])
def test_one_sum_over_a_stretch_is_the_sum_of_its_hours(store: Store, first: int, last: int) -> None:
    for hour in range(96):
        store.usage.write([entry(1, DAY_ONE + hour * HOUR + 7, Usage(bytes_in=2**hour % 1_000_003))])
    start, end = DAY_ONE + first * HOUR, DAY_ONE + last * HOUR
    (whole,) = asked(store, "group", start, end).rows
    assert whole.usage.bytes_in == sum(2**hour % 1_000_003 for hour in range(first, last))
    assert whole.usage.bytes_in == sum(row.usage.bytes_in for row in asked(store, "group", start, end, "hour").rows)


def test_users_are_told_apart_by_group(store: Store) -> None:
    store.usage.write([entry(1), entry(4), entry(7, user="user1@example")])
    rows = asked(store, "user", DAY_ONE, DAY_ONE + HOUR).rows
    assert [(row.user, row.group, row.usage.bytes_in) for row in rows] == [
        ("user1@example", "group0", 1),
        ("user1@example", "group1", 2),
    ]
    assert len(asked(store, "user", DAY_ONE, DAY_ONE + HOUR, group="group1").rows) == 1
    assert asked(store, "user", DAY_ONE, DAY_ONE + HOUR, user="nobody").rows == ()


def test_jobs_come_in_the_order_of_their_end_and_live_ones_last(store: Store) -> None:
    for number in range(1, 8):
        store.usage.write([entry(number, at=DAY_ONE + 1000 - number, final=number != 4)])
    jobs = asked(store, "job", DAY_ONE, DAY_ONE + HOUR).rows
    assert [int(row.job or "", 16) for row in jobs] == [7, 6, 5, 3, 2, 1, 4]
    assert [row.final for row in jobs] == [True] * 6 + [False]
    assert [row.end for row in jobs][-1] == DAY_ONE + 996
    assert [int(row.job or "", 16) for row in asked(store, "job", DAY_ONE, DAY_ONE + HOUR, group="group1").rows] == [
        7, 5, 3, 1,
    ]  # fmt: skip
    assert len(asked(store, "job", DAY_ONE, DAY_ONE + HOUR, host="worker4").rows) == 1
    # Only who lived in that time: job 4 lives still.
    assert [row.job for row in asked(store, "job", DAY_ONE + 2000, DAY_ONE + 3000).rows] == [f"{4:016x}"]
    assert asked(store, "job", DAY_ONE - 500, DAY_ONE - 200).rows == ()


@pytest.mark.parametrize("by", ["group", "user", "host"])
@pytest.mark.parametrize("bucket", ["minute", "hour", None])
def test_all_that_is_chosen_together_is_the_sum_of_its_rows(store: Store, by: str, bucket: str | None) -> None:
    for number in range(1, 12):
        names: dict[str, Any] = {
            "group": f"group_cms.u{number % 3}",
            "user": f"u{number % 3}@x",
            "host": f"w{number % 2}",
        }
        store.usage.write([entry(number, DAY_ONE + number * 400, **names)])
    chosen = UsageFilter(by, DAY_ONE, DAY_ONE + 2 * HOUR, width_for(DAY_ONE, DAY_ONE + HOUR, bucket), bucket)
    some: dict[str, Any] = {
        "group": {"group": "group_cms"},
        "user": {"user": "u1@x", "group": "group_cms"},
        "host": {"host": "w1"},
    }[by]
    for which in ({}, some):
        apart = store.usage.page(replace(chosen, **which), None, 1000).rows
        sums: dict[float, Usage] = {}
        for row in apart:
            sums[row.start] = sums.get(row.start, Usage()).plus(row.usage)
        whole = replace(chosen, **which, together=True)
        rows = store.usage.page(whole, None, 1000).rows
        assert {row.start: row.usage for row in rows} == sums
        assert [row.start for row in rows] == sorted(sums)
        assert {(row.group, row.user, row.host) for row in rows} == {(None, None, None)}
        first = store.usage.page(whole, None, 2)
        rest = () if first.next_cursor is None else store.usage.page(whole, first.next_cursor, 1000).rows
        assert (*first.rows, *rest) == rows
    assert store.usage.page(replace(chosen, start=0.0, end=60.0, together=True), None, 10).rows == ()
    with pytest.raises(NotFoundError, match="cursor"):
        store.usage.page(replace(chosen, together=True), "bm9uc2Vuc2U", 3)
    assert store.usage.page(replace(chosen, bucket=None, together=True), "W10", 3).rows == ()


@pytest.mark.parametrize(("by", "bucket"), [("job", None), ("group", "minute"), ("user", None), ("host", "hour")])
def test_pages_hold_every_row_once(store: Store, by: str, bucket: str | None) -> None:
    for number in range(1, 12):
        store.usage.write([entry(number, DAY_ONE + number * 400, final=number % 4 != 0)])
    chosen = UsageFilter(by, DAY_ONE, DAY_ONE + 2 * HOUR, width_for(DAY_ONE, DAY_ONE + HOUR, bucket), bucket)
    whole = store.usage.page(chosen, None, 1000)
    found: list[UsageRow] = []
    cursor = None
    while True:
        page = store.usage.page(chosen, cursor, 3)
        found.extend(page.rows)
        cursor = page.next_cursor
        if cursor is None:
            break
    assert tuple(found) == whole.rows
    assert len(found) > 3
    with pytest.raises(NotFoundError, match="cursor"):
        store.usage.page(chosen, "bm9uc2Vuc2U", 3)


@pytest.mark.parametrize("parts", ['["\\ud800", "x"]', '["\\u0000", "x"]', "[" * 100_000])
def test_a_cursor_that_no_database_takes_is_none(store: Store, parts: str) -> None:
    chosen = UsageFilter("user", DAY_ONE, DAY_ONE + HOUR, HOUR, None)
    with pytest.raises(NotFoundError, match="cursor"):
        store.usage.page(chosen, base64.urlsafe_b64encode(parts.encode()).decode().rstrip("="), 3)


def test_what_is_old_goes_width_by_width(store: Store) -> None:
    store.usage.write([entry(1, DAY_ONE + 30, final=True), entry(2, DAY_ONE + 3 * DAY, final=True), entry(3)])
    assert store.usage.prune({}, 0.0) == 0
    assert store.usage.prune({MINUTE: DAY_ONE + DAY, HOUR: DAY_ONE + DAY}, DAY_ONE + DAY) == 11
    assert asked(store, "group", DAY_ONE, DAY_ONE + DAY, "minute").rows == ()
    assert asked(store, "group", DAY_ONE, DAY_ONE + DAY, "day").rows != ()
    assert set(store.usage.of_jobs([1, 2, 3])) == {2, 3}
