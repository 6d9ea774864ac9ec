"""The directory against the pool's ads: honest jobs are never quarantined, lies are found, silence changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.htcondor.compare import Word, follow, judge, why_kept
from lark_controller.htcondor.slots import MOST_OF_JOB, Reading, Slot, parent_of, reading, slot_of
from lark_controller.jobs.job import Job
from tests.fixtures.databases import NOW, a_run
from tests.fixtures.work import assert_linear

MARGIN = 60.0
SLOT = "slot1_1@worker1"
HOST = "worker1"


def a_job(number: int = 1, created: float = NOW, **changes: object) -> Job:
    run = a_run(number, slot=SLOT, host=HOST, created=created)
    return replace(run, **changes)  # type: ignore[arg-type]  # fields of Job


def a_slot(job: Job | None = None, **changes: object) -> Slot:
    made = Slot(SLOT, HOST, NOW + 100)
    if job is not None:
        made = replace(
            made, global_job_id=job.run.global_job_id, owner=job.owner, group=job.group, started=job.run.started
        )
    return replace(made, **changes)  # type: ignore[arg-type]  # fields of Slot


def said(*slots: Slot, at: float = NOW + 100) -> Reading:
    return reading(at, NOW - 1e6, slots)


# -- what one ad says ------------------------------------------------------------------------------------------------


def test_the_same_job_by_the_same_owner_in_the_same_group_agrees_however_old_the_ad_is() -> None:
    job = a_job()
    assert judge(job, said(a_slot(job, as_of=NOW - 500)), MARGIN).word is Word.AGREES


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"owner": "mallory"}, "is mallory's, it is registered as user1's"),
        ({"group": "group_cms"}, "is in group_cms, it is registered in group0"),
        ({"group": ""}, "is in no group, it is registered in group0"),
        ({"machine": "worker2"}, "is on worker2, the job names worker1"),
    ],
)
def test_what_never_changes_counts_at_once(changes: dict[str, object], says: str) -> None:
    job = a_job()
    verdict = judge(job, said(a_slot(job, **{"as_of": NOW - 500, **changes})), MARGIN)
    assert (verdict.word, says in verdict.reason) == (Word.CONTRADICTS, True)
    assert follow(job, verdict, None, NOW, MARGIN).quarantine == verdict.reason


@pytest.mark.parametrize("changes", [{"owner": ""}, {"group": None}, {"started": 0}])
def test_what_an_ad_does_not_say_is_no_contradiction(changes: dict[str, object]) -> None:
    job = a_job()
    assert judge(job, said(a_slot(job, **changes)), MARGIN).word is Word.AGREES


@pytest.mark.parametrize("other", [None, a_job(2)])
def test_a_slot_with_another_job_or_none_counts_when_it_is_newer_and_stays_so(other: Job | None) -> None:
    job = a_job()
    assert judge(job, said(a_slot(other, as_of=NOW + 59)), MARGIN).word is Word.SILENT
    verdict = judge(job, said(a_slot(other, as_of=NOW + 61)), MARGIN)
    assert verdict.word is Word.DOUBTS
    first = follow(job, verdict, None, NOW + 100, MARGIN)
    assert (first.quarantine, first.doubted) == ("", NOW + 100)
    assert not follow(job, verdict, first.doubted, NOW + 159, MARGIN).quarantine
    assert follow(job, verdict, first.doubted, NOW + 160, MARGIN).quarantine == verdict.reason


def test_a_dynamic_slot_that_its_parent_does_not_list_is_doubted() -> None:
    job = a_job()
    parent = Slot("slot1@worker1", HOST, NOW + 61, children=frozenset({"slot1_2@worker1"}))
    assert judge(job, said(parent), MARGIN).word is Word.DOUBTS
    assert judge(job, said(replace(parent, children=frozenset({SLOT}))), MARGIN).word is Word.SILENT
    assert judge(job, said(replace(parent, children=None)), MARGIN).word is Word.SILENT
    assert judge(job, said(replace(parent, as_of=NOW + 59)), MARGIN).word is Word.SILENT


def test_a_job_that_runs_elsewhere_is_doubted_unless_it_may_be_a_parallel_one() -> None:
    job = a_job()
    elsewhere = a_slot(job, name="slot1_1@worker2", machine="worker2")
    assert judge(job, said(elsewhere), MARGIN).word is Word.SILENT
    assert judge(job, said(replace(elsewhere, universe=11)), MARGIN).word is Word.SILENT
    assert judge(job, said(replace(elsewhere, universe=5)), MARGIN).word is Word.DOUBTS
    assert judge(job, said(replace(elsewhere, started=job.run.started + 1)), MARGIN).word is Word.DOUBTS
    assert judge(job, said(replace(elsewhere, universe=5), a_slot(job)), MARGIN).word is Word.AGREES


def test_another_run_of_the_job_on_its_slot_is_doubted_when_it_is_newer() -> None:
    job = a_job()
    later = job.run.started + 100
    assert judge(job, said(a_slot(job, started=later)), MARGIN).word is Word.DOUBTS
    assert judge(job, said(a_slot(job, started=later, as_of=NOW)), MARGIN).word is Word.SILENT


def test_agreement_releases_and_an_operators_word_outweighs_the_pools() -> None:
    quarantined = a_job(quarantine="why")
    assert follow(quarantined, judge(quarantined, said(a_slot(quarantined)), MARGIN), NOW, NOW, MARGIN).lift
    vouched = a_job(vouched=True)
    verdict = judge(vouched, said(a_slot(vouched, owner="x")), MARGIN)
    assert follow(vouched, verdict, None, NOW, MARGIN).quarantine == ""


def test_one_job_in_ever_so_many_slots_costs_no_more_than_linear_and_few_are_kept() -> None:
    """Root on a worker may advertise as many slots as it likes, each with the same job."""

    def slots(count: int) -> list[Slot]:
        return [Slot(f"slot{number}@{HOST}", HOST, NOW, "submit#1.0#1") for number in range(count)]

    assert_linear(lambda found: said(*found), slots, 4000)
    assert len(said(*slots(MOST_OF_JOB + 10)).runs["submit#1.0#1"]) == MOST_OF_JOB


def test_a_slots_ad_is_read() -> None:
    ad = {
        "Name": SLOT, "Machine": HOST, "LastHeardFrom": 1000, "MyCurrentTime": 990, "GlobalJobId": "s#1.0#1",
        "RemoteOwner": "alice@example", "AccountingGroup": "group_cms.alice", "SlotType": "Dynamic",
    }  # fmt: skip
    assert slot_of(ad) == Slot(SLOT, HOST, 990, "s#1.0#1", 0, "alice", "group_cms")
    assert slot_of({**ad, "AccountingGroup": "group_cms.alice@example"}) == slot_of(ad)
    assert slot_of({**ad, "AccountingGroup": "alice"}) == Slot(SLOT, HOST, 990, "s#1.0#1", 0, "alice", "")
    bare = {name: value for name, value in ad.items() if name != "AccountingGroup"}
    assert slot_of(bare) == Slot(SLOT, HOST, 990, "s#1.0#1", 0, "alice", None)
    full = slot_of({**bare, "Owner": "bob", "JobCurrentStartDate": 7, "JobUniverse": 5})
    assert full == Slot(SLOT, HOST, 990, "s#1.0#1", 7, "bob", "", 5)
    parent = slot_of({**bare, "Name": "slot1@worker1", "SlotType": "Partitionable", "ChildName": [SLOT]})
    assert parent is not None
    assert parent.children == frozenset({SLOT})
    for missing in ("Name", "Machine"):
        assert slot_of({name: value for name, value in ad.items() if name != missing}) is None
    assert slot_of({"Name": SLOT, "Machine": HOST}) is None
    # What JSON calls Infinity and NaN: one ad of such must not keep the others from being read.
    odd = slot_of({**bare, "JobCurrentStartDate": float("inf"), "JobUniverse": float("nan")})
    assert odd is not None
    assert (odd.started, odd.universe) == (0, None)
    assert parent_of(SLOT) == "slot1@worker1"
    assert parent_of("slot1@worker1") is None


# -- leases ----------------------------------------------------------------------------------------------------------


def kept(job: Job, pool: Reading | None, now: float = NOW + 2000) -> str:
    return why_kept(job, pool, now, margin=MARGIN, ad_seconds=600)


def test_a_lapsed_lease_ends_nothing_that_the_pool_confirms_or_cannot_be_asked_about() -> None:
    job = a_job()
    assert "cannot be asked" in kept(job, None)
    assert "it runs" in kept(job, said(a_slot(job)))
    assert "older than the job" in kept(job, said(a_slot(as_of=NOW - 10)))
    parent = Slot("slot1@worker1", HOST, NOW + 100, children=frozenset({SLOT}))
    assert "slot is in the pool" in kept(job, said(parent))
    assert "no newer ad of its worker" in kept(job, said(replace(parent, as_of=NOW - 10, children=None)))
    assert "just started" in kept(job, reading(NOW + 2000, NOW + 1900, ()))


def test_a_lapsed_lease_ends_what_the_pool_does_not_know_or_contradicts() -> None:
    job = a_job()
    assert kept(job, said(a_slot())) == ""
    assert kept(job, said(a_slot(job, owner="x"))) == ""
    assert kept(job, said()) == ""
    assert kept(job, said(Slot("slot2@worker1", HOST, NOW + 100))) == ""


# -- histories -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A job on a slot, honestly registered a little after its start and taken out a little after its end."""

    job: Job
    slot: str
    start: float
    end: float
    gone: float


SLOTS = (SLOT, "slot1_2@worker1", "slot1@worker2")


@st.composite
def histories(draw: st.DrawFn) -> list[Run]:
    runs: list[Run] = []
    for slot in SLOTS:
        time = NOW + draw(st.floats(0, 300))
        for _ in range(draw(st.integers(0, 4))):
            number = len(runs) + 1
            end = time + draw(st.floats(1, 900))
            base = a_run(number, started=int(time), slot=slot, host=slot.partition("@")[2])
            created = time + draw(st.floats(0, 10))
            runs.append(
                Run(replace(base, created=created), slot, time, end, max(created, end) + draw(st.floats(0, 40)))
            )
            time = end + draw(st.floats(0, 200))
    return runs


@st.composite
def observations(draw: st.DrawFn) -> tuple[list[Run], list[Reading]]:
    """A history and readings of it once a minute: of each slot the ad of some moment before, up to ten minutes old,
    by clocks that are off by up to half the margin; some slots have no ad."""
    runs = draw(histories())
    readings = []
    last = dict.fromkeys(SLOTS, NOW - 600)
    for minute in range(draw(st.integers(1, 30))):
        at = NOW + 60 * minute
        slots = []
        for name in SLOTS:
            age = draw(st.one_of(st.just(0.0), st.floats(0, 600)))
            last[name] = true = max(last[name], at - age)
            if draw(st.integers(0, 9)) == 0:
                continue
            here = next((run for run in runs if run.slot == name and run.start <= true < run.end), None)
            heard = true + draw(st.floats(-MARGIN / 2, MARGIN / 2))
            slot = Slot(name, name.partition("@")[2], heard)
            if here is not None:
                job = here.job
                slot = replace(
                    slot, global_job_id=job.run.global_job_id, owner=job.owner, group=job.group, started=job.run.started
                )
            slots.append(slot)
        readings.append(reading(at, NOW - 1e6, draw(st.permutations(slots))))
    return runs, readings


def follow_all(jobs: list[tuple[Job, float, float]], readings: list[Reading]) -> dict[str, str]:
    """The quarantined jobs in the course of readings; each job with its beginning and end."""
    doubted: dict[str, float] = {}
    found: dict[str, str] = {}
    for pool in readings:
        next_doubted = {}
        for job, comes, goes in jobs:
            if not comes <= pool.at < goes:
                continue
            step = follow(job, judge(job, pool, MARGIN), doubted.get(job.id), pool.at, MARGIN)
            if step.doubted is not None:
                next_doubted[job.id] = step.doubted
            if step.quarantine:
                found.setdefault(job.id, step.quarantine)
        doubted = next_doubted
    return found


@given(observations())
def test_no_honest_job_is_ever_quarantined(seen: tuple[list[Run], list[Reading]]) -> None:
    runs, readings = seen
    assert follow_all([(run.job, run.job.created, run.gone) for run in runs], readings) == {}


@given(observations(), st.sampled_from(["owner", "group", "host"]))
def test_a_job_registered_as_another_is_found_by_the_first_ad_that_names_it(
    seen: tuple[list[Run], list[Reading]], lie: str
) -> None:
    runs, readings = seen
    forged = [(replace(run.job, **{lie: "another"}), run.job.created, run.gone) for run in runs]  # type: ignore[arg-type]  # text
    named = {
        job.id
        for job, comes, goes in forged
        for pool in readings
        if comes <= pool.at < goes
        and (slot := pool.slots.get(job.run.slot)) is not None
        and slot.global_job_id == job.run.global_job_id
    }
    assert named <= set(follow_all(forged, readings))


@given(observations())
def test_a_job_of_which_the_pool_has_never_heard_is_found_once_fresh_ads_stay(
    seen: tuple[list[Run], list[Reading]],
) -> None:
    _, readings = seen
    ghost = replace(a_run(99, slot=SLOT, host=HOST), created=NOW)
    fresh = [SLOT in pool.slots and pool.slots[SLOT].as_of > NOW + MARGIN for pool in readings]
    doubted_twice = any(one and two for one, two in pairwise(fresh))
    assert (ghost.id in follow_all([(ghost, NOW, NOW + 1e6)], readings)) == doubted_twice


@given(observations())
def test_silence_changes_nothing(seen: tuple[list[Run], list[Reading]]) -> None:
    runs, _ = seen
    empty = reading(NOW, NOW, ())
    for run in runs:
        for job in (run.job, replace(run.job, quarantine="why")):
            step = follow(job, judge(job, empty, MARGIN), NOW - 1000, NOW, MARGIN)
            assert (step.quarantine, step.lift) == ("", False)
