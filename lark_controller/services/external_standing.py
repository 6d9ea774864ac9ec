"""The state of a live job's external address in the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from lark_common.runs import Address
from lark_controller.api.external import ExternalStanding, ExternalState
from lark_controller.jobs.external import Association, closed_by
from lark_controller.jobs.job import Directory, Job, JobState

# The reason why no packet reaches a job, by its number, by an external address of it that its switches have (``""``:
# one does).
WhyUnreached: TypeAlias = Callable[[int, Address], str]


def nothing_known(_number: int, _address: Address) -> str:
    """Know nothing of switches."""
    return ""


def standing_of(
    directory: Directory, job: Job, association: Association, why_unreached: WhyUnreached
) -> ExternalStanding:
    """The state of an association of a live job that is not over."""
    state, reason = directory.standing(job.number)
    if why := directory.closed.get(job.number, {}).get(association.address):
        return ExternalStanding(ExternalState.CLOSED, why)
    if state is JobState.QUARANTINED:
        return ExternalStanding(ExternalState.CLOSED, f"the job is in quarantine: {reason}")
    # After a start the store's word stands until the cores are here.
    if state is JobState.ENFORCED and (why := closed_by(reason, association.address)):
        return ExternalStanding(ExternalState.CLOSED, why)
    if state is not JobState.ENFORCED:
        return ExternalStanding(ExternalState.PENDING, reason)
    # A link goes and comes: the address keeps its name, as it does while its core is away.
    if why := why_unreached(job.number, association.address):
        return ExternalStanding(ExternalState.PENDING, why)
    return ExternalStanding(ExternalState.OPEN)
