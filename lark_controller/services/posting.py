"""Posts and ends on their way to the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from lark_common.classads.ads import JobAd, MachineAd
from lark_common.runs import Address
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Policy
from lark_controller.qos.reservation import Booking
from lark_controller.services.node_patterns import PatternBookings
from lark_controller.store import Finish, Post


@dataclass(frozen=True, slots=True)
class PostRequest:
    """A post of a run's ads."""

    job_ad: JobAd
    machine_ad: MachineAd
    actor: str


@dataclass(frozen=True, slots=True)
class EndRequest:
    """A request to end a job."""

    job_id: str
    actor: str
    why: str
    exit_ad: str = ""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A post that may be stored: the job as it is to be, what it books, and the addresses that it was given for it."""

    post: PostRequest
    policy: Policy
    job: Job
    booking: Booking | None
    assigned: tuple[Address, ...]
    unseen: bool
    pattern: PatternBookings


def as_stored(step: Prepared | EndRequest, now: float, digest: str, links: Mapping[str, float]) -> Post | Finish:
    """The request as the store takes it; ``digest`` is of the names that facts were taken for, ``links`` are the speeds
    of workers' links that the store does not have yet."""
    if isinstance(step, EndRequest):
        return Finish(step.job_id, now, step.why, step.exit_ad, step.actor)
    ads = step.post.job_ad.text, step.post.machine_ad.text
    each = step.pattern
    return Post(
        step.job, *ads, step.post.actor, now, digest, step.booking, step.unseen, each.flows, each.what, each.rest,
        links.get(step.job.host.lower()),
    )  # fmt: skip
