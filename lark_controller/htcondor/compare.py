"""The directory against the pool: which registered jobs the pool confirms, and which it contradicts. Pure.

The pool's ads may be minutes old, so an attribute that an ad lacks, or an ad from before the registration, is no
evidence. What can be an ad that is late counts only when it stands for a while (``margin`` seconds); what cannot,
counts at once: a run's Owner and group never change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from lark_controller.htcondor.slots import PARALLEL, Reading, Slot, parent_of
from lark_controller.jobs.job import Job


class Word(Enum):
    """The pool's statement on a job: it agrees, it contradicts, it contradicts unless its ads are late, or nothing."""

    AGREES = auto()
    CONTRADICTS = auto()
    DOUBTS = auto()
    SILENT = auto()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on one job, and the sentence for it."""

    word: Word
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Action:
    """The action on a verdict: quarantine the job for ``quarantine``, or lift that; ``doubted`` is since when the pool
    has doubted it without a break (None: it does not)."""

    quarantine: str = ""
    lift: bool = False
    doubted: float | None = None


SILENT = Verdict(Word.SILENT)


def judge(job: Job, pool: Reading, margin: float) -> Verdict:
    """Judges a job by a reading. ``margin`` is how far clocks may differ and ads be late, in seconds."""
    fresh = _newer_than(job.created + margin)
    slot = pool.slots.get(job.run.slot)
    if slot is not None:
        if slot.machine.lower() != job.host.lower():
            return Verdict(Word.CONTRADICTS, f"in the pool, {slot.name} is on {slot.machine}, the job names {job.host}")
        if slot.global_job_id == job.run.global_job_id:
            return _same_job(job, slot, fresh)
        if fresh(slot):
            return Verdict(Word.DOUBTS, f"in the pool, {slot.name} runs {_runs(slot)}")
    elsewhere = _elsewhere(job, pool, fresh)
    if elsewhere is not None:
        return Verdict(Word.DOUBTS, f"in the pool, the job runs on {elsewhere.name}")
    parent = None if slot is not None or (name := parent_of(job.run.slot)) is None else pool.slots.get(name)
    if parent is not None and parent.children is not None and fresh(parent) and job.run.slot not in parent.children:
        return Verdict(Word.DOUBTS, f"in the pool, {parent.name} has no slot {job.run.slot}")
    return SILENT


def follow(job: Job, verdict: Verdict, doubted: float | None, now: float, margin: float) -> Action:
    """Derives the action on a verdict; ``doubted`` is the last step's. An operator's decision outweighs the pool's."""
    if verdict.word is Word.AGREES:
        return Action(lift=bool(job.quarantine))
    if verdict.word is Word.SILENT:
        return Action()
    since = now if doubted is None else doubted
    if job.quarantine or job.vouched or (verdict.word is Word.DOUBTS and now - since < margin):
        return Action(doubted=since)
    return Action(quarantine=verdict.reason, doubted=since)


def why_kept(job: Job, pool: Reading | None, now: float, *, margin: float, ad_seconds: float) -> str:
    """The reason why a job lives on though its lease is over; ``""`` where there is none.

    ``pool`` is None where the pool cannot be asked. ``ad_seconds`` is how old ads may be, in seconds: so long a
    collector that has just started, or an ad that has not come since, is no evidence.
    """
    if pool is None:
        return "the pool cannot be asked"
    word = judge(job, pool, margin).word
    if word is Word.AGREES:
        return "it runs in the pool"
    if word is not Word.SILENT:
        return ""
    if job.run.slot in pool.slots:
        return "the pool's ad of its slot is older than the job"
    parent = pool.slots.get(parent_of(job.run.slot) or "")
    if parent is not None and parent.children is not None and job.run.slot in parent.children:
        return "its slot is in the pool"
    last = pool.machines.get(job.host.lower())
    if last is not None:
        return "" if last > job.created + margin else "the pool has no newer ad of its worker"
    return "the collector has just started" if now - pool.began < ad_seconds else ""


def _newer_than(time: float) -> Callable[[Slot], bool]:
    return lambda slot: slot.as_of > time


def _same_job(job: Job, slot: Slot, fresh: Callable[[Slot], bool]) -> Verdict:
    if slot.owner and slot.owner != job.owner:
        reason = f"in the pool, the job on {slot.name} is {slot.owner}'s, it is registered as {job.owner}'s"
        return Verdict(Word.CONTRADICTS, reason)
    if slot.group is not None and slot.group != job.group:
        in_pool, registered = slot.group or "no group", job.group or "no group"
        reason = f"in the pool, the job on {slot.name} is in {in_pool}, it is registered in {registered}"
        return Verdict(Word.CONTRADICTS, reason)
    if slot.started and job.run.started and slot.started != job.run.started:
        if fresh(slot):
            return Verdict(Word.DOUBTS, f"in the pool, {slot.name} has another run of the job")
        return SILENT
    return Verdict(Word.AGREES)


def _elsewhere(job: Job, pool: Reading, fresh: Callable[[Slot], bool]) -> Slot | None:
    """Another slot that has the job. The nodes of a parallel job share a GlobalJobId and a start."""
    for slot in pool.runs.get(job.run.global_job_id, ()):
        if slot.name == job.run.slot or not fresh(slot):
            continue
        alone = slot.universe is not None and slot.universe != PARALLEL
        if alone or (job.run.started and slot.started > job.run.started):
            return slot
    return None


def _runs(slot: Slot) -> str:
    if not slot.global_job_id:
        return "no job"
    return slot.global_job_id + (f" of {slot.owner}" if slot.owner else "")
