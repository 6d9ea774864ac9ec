"""The use of pairs in the store: rows that are written anew, found by job, and removed when they are old."""

from __future__ import annotations

from lark_controller.accounting.pairs import PairEntry, PairUse
from lark_controller.accounting.usage import MOST
from lark_controller.store import Store
from tests.fixtures.databases import NOW, a_run

USE = PairUse(
    "ab" * 8, "worker2", "10.0.0.2/32 2001:db8::2/128", True, False, 100_000, 50_000, MOST, 2, 3, 4, 5, 6, 7, 1.7e9,
    False, 8,
)  # fmt: skip


def entry(number: int = 1, key: str = "one", use: PairUse = USE, ended_at: float | None = None) -> PairEntry:
    return PairEntry(number, f"{number:016x}", key, use, "" if use.final else '{"flow":7}', ended_at)


def test_rows_are_written_as_they_are_and_replaced(store: Store) -> None:
    wan = USE._replace(peer="", node="wan", target="", steady=False, inside=True)
    store.usage.write_pairs([entry(key="two", use=wan), entry(), entry(2)])
    assert store.usage.pairs_of([1, 2, 3]) == {1: (USE, wan), 2: (USE,)}
    # A commit whose answer is lost is written again.
    for _ in range(2):
        store.usage.write_pairs([entry(use=USE._replace(sent=9, peak=99, left_out=1))])
    assert store.usage.pairs_of([1])[1][0] == USE._replace(sent=9, peak=99, left_out=1)
    store.usage.write_pairs([])
    found = [(each.number, each.id, each.key, each.readings) for each in store.usage.unended_pairs()]
    assert found == [
        (number, f"{number:016x}", key, '{"flow":7}') for number, key in ((1, "one"), (1, "two"), (2, "one"))
    ]
    assert [each.use.node for each in store.usage.unended_pairs()] == ["worker2", "wan", "worker2"]


def test_jobs_that_are_over_have_their_last_use(store: Store) -> None:
    store.usage.write_pairs([entry(), entry(2), entry(3, use=USE._replace(final=True), ended_at=1.7e9 + 50)])
    assert store.usage.finish_pairs([2, 99]) == 2
    assert [each.number for each in store.usage.unended_pairs()] == [1]
    assert {number: pairs[0].final for number, pairs in store.usage.pairs_of([1, 2, 3]).items()} == {
        1: False, 2: True, 3: True,
    }  # fmt: skip


def test_those_who_send_to_a_job_are_found(store: Store) -> None:
    # Every third is of one owner.
    runs = [store.runs.register(a_run(number), "", "", "hook", NOW).job for number in range(1, 10)]
    other = USE._replace(peer="cd" * 8)
    for job in runs:
        use = other if job is runs[3] else USE
        store.usage.write_pairs([entry(job.number, key, use) for key in ("one", "two")])
    mine, owner = [runs[at].id for at in (0, 6)], runs[0].owner
    # A job with two pairs is one of them, and those of others are in nobody's way.
    assert store.usage.senders_to("ab" * 8, owner, 10) == mine
    assert store.usage.senders_to("ab" * 8, owner, 2) == mine
    assert store.usage.senders_to("ab" * 8, owner, 1) == mine[:1]
    assert store.usage.senders_to("ef" * 8, owner, 10) == []
    found = store.runs.with_ids([job.id for job in runs], owner)
    assert {job.id for job in found} == {runs[at].id for at in (0, 3, 6)}


def test_what_is_old_is_removed_with_its_job(store: Store) -> None:
    over = USE._replace(final=True)
    store.usage.write_pairs([entry(number, use=over, ended_at=1.7e9 + number) for number in range(5)])
    store.usage.write_pairs([entry(1, "two", use=over, ended_at=1.7e9 + 1), entry(9)])
    assert store.usage.prune({}, 0.0) == 0
    assert store.usage.prune({}, 1.7e9 + 3) == 4
    assert sorted(store.usage.pairs_of(range(10))) == [3, 4, 9]


def test_many_jobs_are_asked_for_at_once(store: Store) -> None:
    entries = [entry(number) for number in range(2500)]
    for start in range(0, 2500, 500):
        store.usage.write_pairs(entries[start : start + 500])
    assert len(store.usage.pairs_of(range(2500))) == 2500
