"""A live job's state, from what it waits for and what speaks against it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lark_common.runs import NetworkType
from lark_controller.jobs.job import Job, JobState


def state_of(
    job: Job, waiting: Mapping[int, str], *, moving: bool, label: Callable[[int], str]
) -> tuple[JobState, str]:
    """The state and the reason for it.

    ``waiting`` holds the datapaths and workers (by number) that have not confirmed, each with the reason (0: no switch
    is known at all); ``moving`` says that nothing but a barrier reply of each is missing; ``label`` names one of them.
    """
    if job.quarantine:
        return JobState.QUARANTINED, job.quarantine
    if waiting:
        datapath, why = min(waiting.items())
        reason = why if datapath == 0 else f"{label(datapath)}: {why}"
        return JobState.REGISTERING if moving else JobState.PENDING, reason
    if not job.addresses and job.network_type is not NetworkType.NONE:
        return JobState.PENDING, f"the address is not known yet ({job.address_type})"
    return JobState.ENFORCED, ""


def as_now(job: Job, now: Job | None) -> Job:
    """A job as the store has it, in the state that it has now; what the store says has ended has ended."""
    if now is None or job.state is JobState.ENDED:
        return job
    return replace(job, state=now.state, reason=now.reason)
