"""The names of jobs that HTCondor's users have, and the one job that such a name means.

A word is CLUSTER.PROC (``103.0``), CLUSTER alone of a cluster of one job, both with the access point where two have it
(``submit1#103.0``, ``103.0@submit1``), a GlobalJobId, a job's id, or the first digits of one. A live job comes before
those that have ended.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final

from lark_common.errors import AmbiguousError, Candidate, NotFoundError
from lark_common.runs import access_point, names, number_in_word
from lark_controller.jobs.job import Job, shown_state
from lark_controller.reconcile.progress import as_now
from lark_controller.services.node_patterns import node_of
from lark_controller.store.queries import Called
from lark_controller.store.store import Runs

ACCEPTED: Final = (
    "accepted: CLUSTER.PROC (103.0), CLUSTER (103) of one job, with the access point (submit1#103.0 or 103.0@submit1), "
    "a GlobalJobId, a job's id, or at least its first 4 digits"
)
# A name has no more runs looked at than these; what has more is answered from the newest.
_LOOKED_AT: Final = 200
_LISTED: Final = 10

_ID: Final = re.compile(r"[0-9a-f]{16}")
_PREFIX: Final = re.compile(r"[0-9a-fA-F]{4,16}")


class JobNames:
    """Finds the job that a word names. ``now`` is a job in the state that it has this moment, where the store may not
    have it yet, and ``isolated`` tells whether nothing of it passes. Thread-safe."""

    def __init__(self, runs: Runs, now: Callable[[str], Job | None], isolated: Callable[[int], bool]) -> None:
        self._runs = runs
        self._now = now
        self._isolated = isolated

    def id_of(self, word: str, owner: str | None = None, any_node: bool = False) -> str:
        """The id of that job; a whole id is not looked up. With ``owner`` it is, and the jobs of others are as if
        there were none. With ``any_node`` a word may mean all nodes of one parallel job, of which it is the first.
        Raises NotFoundError, AmbiguousError, StoreError."""
        if _ID.fullmatch(word):
            if owner is not None and ((job := self._runs.find(word)) is None or job.owner != owner):
                raise NotFoundError(f"no job has the id {word}")
            return word
        found = chosen(as_now(job, self._now(job.id)) for job in self._candidates(word, owner))
        if not found:
            raise NotFoundError(f"no job is called {word}; {ACCEPTED}")
        if any_node and len({job.run.global_job_id for job in found}) == 1:
            return min(found, key=lambda job: (-job.run.started, node_of(job) or 0, job.number)).id
        if len(found) > 1:
            listed = tuple(
                Candidate(job.id, full_name(job), job.run.global_job_id, job.run.slot, self._word(job))
                for job in found[:_LISTED]
            )
            raise AmbiguousError(word, listed, more=len(found) > _LISTED)
        return found[0].id

    def _word(self, job: Job) -> str:
        return shown_state(job, self._isolated(job.number))

    def _candidates(self, word: str, owner: str | None) -> list[Job]:
        if not word.isprintable():
            return []
        number = number_in_word(word)
        found = [] if number is None else self._runs.with_number(number, _LOOKED_AT, owner)
        if _PREFIX.fullmatch(word):
            # A number may be both: neither is taken for the other, since a word ends a quarantine, too.
            ids = {job.id for job in found}
            begun = self._runs.with_prefix(word.lower(), _LOOKED_AT, owner)
            return found + [job for job in begun if job.id not in ids]
        if found or (number is not None and number.proc is not None):
            return found
        return self._runs.with_global_id(word, _LOOKED_AT, owner) if "#" in word else []


def chosen(jobs: Iterable[Job]) -> list[Job]:
    """The jobs that a name means: those that live, or else of each GlobalJobId the run that started last, which for a
    parallel job is one for each slot."""
    found = list(jobs)
    if live := [job for job in found if job.live]:
        return live
    last: dict[str, int] = {}
    for job in found:
        last[job.run.global_job_id] = max(job.run.started, last.get(job.run.global_job_id, 0))
    return [job for job in found if job.run.started == last[job.run.global_job_id]]


def names_of(jobs: Iterable[Called]) -> dict[str, str]:
    """The names of jobs that are shown together, by id."""
    return names((each.id, f"{each.cluster}.{each.proc}", each.global_job_id) for each in jobs)


def full_names_of(jobs: Iterable[Called]) -> dict[str, str]:
    """CLUSTER.PROC of jobs by id, each with the access point in front as far as the GlobalJobId has it."""
    return {
        each.id: f"{point}#{each.cluster}.{each.proc}"
        if (point := access_point(each.global_job_id))
        else f"{each.cluster}.{each.proc}"
        for each in jobs
    }


def live_names(jobs: Iterable[Job]) -> dict[str, str]:
    """:func:`names_of` for jobs as they are held in memory."""
    return names((job.id, job.called, job.run.global_job_id) for job in jobs)


def full_name(job: Job) -> str:
    """CLUSTER.PROC with the access point in front, as far as the GlobalJobId has it."""
    return f"{access_point}#{job.called}" if (access_point := job.run.access_point) else job.called
