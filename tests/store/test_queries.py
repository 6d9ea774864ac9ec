"""The store's answers: lists, ads, facts, the audit trail, policy versions; and the rest after pruning."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_common.errors import NotFoundError
from lark_common.runs import JobNumber
from lark_controller.api.jobs import JobFilter
from lark_controller.api.policy import PolicyVersion
from lark_controller.jobs.job import Facts, Job, JobState
from lark_controller.store import Pruned, Store, queries
from lark_controller.store.cursors import cursor_for, number_in
from lark_controller.store.rows import facts_from, facts_text
from tests.fixtures.databases import NOW, a_run


@pytest.fixture
def thirty(store: Store) -> list[Job]:
    """Thirty runs, every fifth of them ended."""
    jobs = [
        store.runs.register(a_run(number), f"job {number}", f"machine {number}", "hook", NOW).job
        for number in range(30)
    ]
    for index in range(0, 30, 5):
        ended = store.runs.end(jobs[index].id, NOW + index, "exited", "", "hook")
        assert ended is not None
        jobs[index] = ended
    return jobs


@pytest.mark.parametrize(
    "chosen",
    [
        JobFilter(),
        JobFilter(state=None),
        JobFilter(state="ended"),
        JobFilter(state="registering", owner="user1"),
        JobFilter(owner="user1", state=None),
        JobFilter(group="group1"),
        JobFilter(host="worker2", state=None),
        JobFilter(owner="user2", group="group0", host="worker0"),
        JobFilter(global_job_id="schedd.example#7.0#1000"),
        JobFilter(owner="nobody"),
        JobFilter(numbered=JobNumber(7), state=None),
        JobFilter(numbered=JobNumber(7, access_point="schedd")),
        JobFilter(numbered=JobNumber(7, access_point="other")),
        JobFilter(host="worker"),
    ],
)
def test_pages_hold_what_the_filter_chooses_once_and_in_order(
    store: Store, thirty: list[Job], chosen: JobFilter
) -> None:
    def fits(job: Job) -> bool:
        return (
            chosen.owner in (None, job.owner)
            and chosen.group in (None, job.group)
            and chosen.host in (None, job.host)
            and chosen.global_job_id in (None, job.run.global_job_id)
            and (chosen.numbered is None or chosen.numbered.cluster == job.cluster)
            and (chosen.numbered is None or chosen.numbered.access_point in (None, "schedd"))
            and (chosen.state in (None, job.state) or (chosen.state == "live" and job.live))
        )

    seen: list[Job] = []
    cursor = None
    while True:
        page = store.runs.page(chosen, cursor, 4)
        assert len(page.jobs) <= 4
        seen += page.jobs
        cursor = page.next_cursor
        if cursor is None:
            break
        assert len(page.jobs) == 4
    assert seen == [job for job in thirty if fits(job)]
    first = store.runs.page(replace(chosen, newest=True), None, 4)
    second = (
        () if first.next_cursor is None else store.runs.page(replace(chosen, newest=True), first.next_cursor, 4).jobs
    )
    assert [*first.jobs, *second] == seen[::-1][:8]


def test_a_host_is_found_without_its_domain(store: Store) -> None:
    hosts = ["worker1.example", "worker10.example", "worker1", "worker2.example", "worker2.other", "worker2x.example"]
    for number, host in enumerate(hosts):
        store.runs.register(a_run(number, host=host), "", "", "hook", NOW)

    def found(name: str) -> list[str]:
        return [job.host for job in store.runs.page(JobFilter(host=name), None, 10).jobs]

    assert found("worker1.example") == ["worker1.example"]
    assert found("worker10") == ["worker10.example"]
    assert found("worker2") == ["worker2.example", "worker2.other"]
    # A host that is called exactly so is meant alone.
    assert found("worker1") == ["worker1"]
    assert found("worker") == found("worker_") == found("%") == []
    # Case is none of a name, unless two hosts differ in it alone.
    assert found("WORKER10.Example") == found("Worker10") == ["worker10.example"]
    assert found("Worker1") == ["worker1"]
    store.runs.register(a_run(9, host="WORKER1"), "", "", "hook", NOW)
    assert (found("worker1"), found("WORKER1")) == (["worker1"], ["WORKER1"])
    assert sorted(found("Worker1")) == ["WORKER1", "worker1"]


@pytest.mark.parametrize("cursor", ["", "x", "n12", "bjE5OTk=", "bi0x", "bjAx", "🐦", "A" * 1000, cursor_for(1) + "\n"])
def test_a_cursor_that_is_none_is_not_found(store: Store, cursor: str) -> None:
    with pytest.raises(NotFoundError, match="cursor"):
        store.runs.page(JobFilter(), cursor, 10)
    with pytest.raises(NotFoundError, match="cursor"):
        store.trail.page(None, cursor, 10)


@given(st.integers(min_value=0, max_value=2**63 - 1))
def test_a_cursor_holds_its_number(number: int) -> None:
    assert number_in(cursor_for(number)) == number


def test_live_jobs_are_the_live_ones_in_order_and_may_be_left_half_read(store: Store, thirty: list[Job]) -> None:
    live = [job for job in thirty if job.live]
    assert list(store.runs.live()) == live
    for _ in range(100):
        half = store.runs.live()
        assert next(half) == live[0]
        half.close()
    reading = store.runs.live()
    next(reading)
    assert store.runs.renew(live[0].id, NOW)
    assert len(list(reading)) == len(live) - 1


def test_equal_facts_are_one_object(store: Store, thirty: list[Job]) -> None:
    jobs = list(store.runs.live())
    assert len({id(job.facts) for job in jobs}) == len({job.facts for job in jobs}) == 3


words = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
pairs = st.lists(st.tuples(words, words), max_size=4).map(tuple)


@given(pairs, pairs)
def test_facts_come_back(job: tuple[tuple[str, str], ...], machine: tuple[tuple[str, str], ...]) -> None:
    facts = Facts(job, machine)
    assert facts_from(facts_text(facts)) == facts


def test_short_facts_of_rows_are_one_object_and_long_ones_are_kept_for_no_other_row() -> None:
    for length, shared in ((10, True), (2_000, False)):
        text = facts_text(Facts((("owner", f'"{"u" * length}"'),)))
        assert (facts_from(text) is facts_from(text)) == shared


def test_ads_of_live_runs_and_facts_for_a_new_policy(store: Store, thirty: list[Job]) -> None:
    live = [job for job in thirty if job.live]
    first = store.runs.ads_of_live(0, 10)
    rest = store.runs.ads_of_live(first[-1].number, 100)
    assert [ads.id for ads in first + rest] == [job.id for job in live]
    assert first[0].job_ad == f"job {live[0].cluster}"
    assert first[0].machine_ad == f"machine {live[0].cluster}"

    facts = Facts((("jobprio", "10"),))
    assert store.runs.update_facts([(job.id, facts) for job in live[:5]], "digest") == 5
    stale = store.runs.ads_of_live(0, 100, stale_for="digest")
    assert [ads.id for ads in stale] == [job.id for job in live[5:]]
    assert list(store.runs.live())[:5] == [replace(job, facts=facts) for job in live[:5]]
    made = store.runs.register(a_run(99), "", "", "hook", NOW, facts_for="digest").job
    assert made.id not in {ads.id for ads in store.runs.ads_of_live(0, 100, stale_for="digest")}


def test_ads_and_ending_of_unknown_runs(store: Store, thirty: list[Job]) -> None:
    assert store.runs.ads("0" * 16) is None
    assert store.runs.ending("0" * 16) is None
    assert store.runs.ending(thirty[1].id) is None
    assert store.runs.ads(thirty[0].id) == ("job 0", "machine 0")


def test_what_was_told_lately_is_looked_for_among_the_newest_lines(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lark_controller.store.audit_and_policies.LATELY", 5)
    for number in range(10):
        store.trail.record(NOW + number, "controller", "link up" if number % 2 else "link down", f"s{number}", "")
    assert [each.subject for each in store.trail.lately(["link up"])] == ["s5", "s7", "s9"]
    assert [each.subject for each in store.trail.lately(["link up", "link down"], 1.5)] == ["s8", "s9"]
    assert store.trail.lately(["quarantine"]) == []


def test_the_audit_trail_is_newest_first_and_paged(store: Store) -> None:
    for number in range(7):
        store.trail.record(NOW + number, "alice", "drain", "worker1" if number % 2 else "worker2", f"{number}")
    page = store.trail.page(None, None, 3)
    assert [entry.detail for entry in page.entries] == ["6", "5", "4"]
    assert (page.entries[0].at, page.entries[0].actor, page.entries[0].action) == (NOW + 6, "alice", "drain")
    page = store.trail.page(None, page.next_cursor, 4)
    assert [entry.detail for entry in page.entries] == ["3", "2", "1", "0"]
    assert page.next_cursor is None
    assert [entry.detail for entry in store.trail.page("worker1", None, 10).entries] == ["5", "3", "1"]


def test_policy_versions(store: Store) -> None:
    assert store.trail.latest_policy() is None
    first = store.trail.put_policy("version: 1\n", "d1", "alice", NOW)
    assert store.trail.put_policy("version: 1\n", "d1", "bob", NOW + 1) == first
    second = store.trail.put_policy("version: 1 # 🐦\n", "d2", "bob", NOW + 2)
    third = store.trail.put_policy("version: 1\n", "d1", "bob", NOW + 3)
    assert (first.version, second.version, third.version) == (1, 2, 3)
    assert store.trail.latest_policy() == third == PolicyVersion(3, "version: 1\n", "d1", NOW + 3, "bob")
    assert store.trail.policy(2) == second
    assert store.trail.policy(4) is None
    entries = store.trail.page("policy", None, 10).entries
    assert [(entry.actor, entry.action) for entry in entries] == [
        ("bob", "policy"),
        ("bob", "policy"),
        ("alice", "policy"),
    ]


def test_pruning_removes_what_is_over_and_old(store: Store, thirty: list[Job]) -> None:
    refused = thirty[1]
    store.runs.set_states([(refused.id, JobState.REFUSED, "no capacity")])
    # Of the ended, those of index 0, 5 and 10 ended before NOW + 11; all 30 lines "register" are older than that, too.
    assert store.prune(NOW + 11) == Pruned(runs=3, audit=33)
    assert store.runs.find(thirty[10].id) is None
    assert store.runs.ads(thirty[10].id) is None
    assert store.runs.find(thirty[15].id) == thirty[15]
    assert store.runs.find(refused.id) is not None
    assert store.prune(refused.lease_until + 1) == Pruned(runs=4, audit=3)
    assert store.runs.find(refused.id) is None
    assert list(store.runs.live()) == [job for job in thirty if job.live and job != refused]
    assert store.prune(NOW + 1000) == Pruned(0, 0)


def test_more_rows_than_a_batch(store: Store) -> None:
    for number in range(4500):
        store.trail.record(NOW, "alice", "note", str(number))
    assert store.prune(NOW + 1) == Pruned(0, 4500)


@pytest.mark.parametrize("named", [500, 0])
def test_a_group_is_found_in_any_case_with_its_subgroups(
    store: Store, monkeypatch: pytest.MonkeyPatch, named: int
) -> None:
    """Also where users have made more subgroups than a statement names."""
    monkeypatch.setattr(queries, "_MOST_NAMED", named)
    groups = ["group_cms", "GROUP_CMS", "group_cms.prod", "Group_CMS.Prod.x", "group_cmsx", "group", ""]
    for number, group in enumerate(groups):
        store.runs.register(a_run(number, group=group), "", "", "hook", NOW)

    def found(name: str) -> list[str]:
        return [job.group for job in store.runs.page(JobFilter(group=name), None, 10).jobs]

    assert found("group_cms") == found("Group_CMS") == groups[:4]
    assert found("GROUP_CMS.prod") == groups[2:4]
    assert (found("group"), found("none"), found("group_cm_")) == (["group"], [], [])


def test_jobs_of_one_owner_are_told_apart_by_user(store: Store) -> None:
    for number, user in enumerate(("dave@a.example", "dave@b.example", "dave@a.example")):
        store.runs.register(a_run(number, owner="dave", user=user), "", "", "hook", NOW)
    found = store.runs.page(JobFilter(owner="dave", user="dave@b.example"), None, 10).jobs
    assert [job.user for job in found] == ["dave@b.example"]
