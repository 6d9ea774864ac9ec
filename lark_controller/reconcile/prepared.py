"""The beginning of a controller that takes over: live jobs, and their decisions and places by one policy."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from lark_controller.flows.desired import Desired
from lark_controller.jobs.job import Directory, Job
from lark_controller.policies.decide import Decider


@dataclass(frozen=True, slots=True)
class PreparedDirectory:
    """Live jobs, placed by one policy, before any switch is known."""

    directory: Directory
    decider: Decider
    desired: Desired


def bring_to(desired: Desired, decider: Decider, jobs: Collection[Job]) -> None:
    """Change a desired state without switches to these jobs."""
    for number in desired.placed.keys() - {job.number for job in jobs}:
        desired.remove(number)
    for job in jobs:
        placed = desired.placed.get(job.number)
        if placed is None or placed.job is not job:
            desired.put(job, decider.of(job))
