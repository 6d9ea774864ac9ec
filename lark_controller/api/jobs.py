"""Jobs as REST shows them."""

from __future__ import annotations

from dataclasses import dataclass

from lark_controller.accounting.usage import JobUsage
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Decision


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a POST: the job, and whether this post made it (False: the same run was there already)."""

    job: Job
    created: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """A switch that has not confirmed a job's flows, and why. ``datapath`` is 16 hexadecimal digits."""

    datapath: str
    reason: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Which switches hold a job's flows (confirmed by barrier), and which do not yet."""

    job: Job
    confirmed: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with what the policy decided, what the switches say, and the ads as they were posted (old syntax)."""

    job: Job
    decision: Decision
    confirmation: Confirmation
    job_ad: str = ""
    machine_ad: str = ""
    ended: float | None = None
    usage: JobUsage | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list holds; None is any. ``state`` is a JobState value, or ``"live"`` (the default).

    ``newest`` puts the job that was registered last first.
    """

    owner: str | None = None
    group: str | None = None
    host: str | None = None
    state: str | None = "live"
    global_job_id: str | None = None
    newest: bool = False


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a list in order of registration, and the cursor of the next (None: this is the last)."""

    jobs: tuple[Job, ...]
    next_cursor: str | None = None
