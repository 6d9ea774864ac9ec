"""Flows that a job has reserved while rules of the policy, or its quarantine, let nothing of it pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_controller.api.reservations import Wish
from lark_controller.controller import Controller
from lark_controller.jobs.job import QUARANTINED, Job, JobState, Standing
from tests.fixtures.controllers import running, until
from tests.services.test_enforced_reservations import BRIDGED, put_in_place
from tests.services.test_reservations import POLICY, left, start

BLOCKED = POLICY.replace("policies:", "policies:\n  - block: {when: 'Owner == \"alice\"'}")
CLOSED = POLICY.replace(
    "policies:", "policies:\n  - connectivity: {when: 'Owner == \"alice\"', inbound: deny, outbound: deny}"
)
LINE = next(number for number, line in enumerate(BLOCKED.splitlines(), 1) if "alice" in line)


def standing(controller: Controller, job: Job) -> Standing | None:
    """The standing of what a job has reserved, once its worker has confirmed its rules."""
    put_in_place(controller, job)
    return controller.jobs.reserved(job.id)


@pytest.mark.parametrize(
    ("policy", "why"), [(BLOCKED, "it is blocked"), (CLOSED, "its connections are closed in both directions")]
)
def test_what_a_job_has_reserved_is_not_enforced_while_nothing_of_it_passes(
    tmp_path: Path, policy: str, why: str
) -> None:
    nothing = f"nothing of the job passes: {why} (policy line {LINE})"
    pending, enforced = Standing(JobState.PENDING, nothing), Standing(JobState.ENFORCED)
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1, more=BRIDGED)
        controller.reservations.reserve(Wish(job.id, "10.0.0.5", 20.0), "test", of_job=True)
        until(lambda: standing(controller, job) == enforced)
        controller.policy.put(policy, "ops")
        until(lambda: standing(controller, job) == pending)
        (path,) = controller.reservations.paths(job.host).items
        assert path.pending == nothing
        # Its own RequestBandwidth has the same rule.
        assert controller.jobs.why_nothing_passes(job) == nothing
        # The job itself is as its rules are, and its part of the links stays.
        until(lambda: controller.jobs.found(job.id).state is JobState.ENFORCED)
        assert left(controller, "access:worker1", "worker1").reserved == 20
        # So it is of what it reserves meanwhile, and after a start.
        late = start(controller, 2, more=BRIDGED)
        controller.reservations.reserve(Wish(late.id, "10.0.0.5", 20.0), "test", of_job=True)
        until(lambda: standing(controller, late) == pending)
    with running(tmp_path, policy) as controller:
        until(lambda: standing(controller, job) == standing(controller, late) == pending)
        controller.policy.put(POLICY, "ops")
        until(lambda: standing(controller, job) == standing(controller, late) == enforced)
        assert [each.pending for each in controller.reservations.paths(job.host).items] == ["", ""]
        assert controller.jobs.why_nothing_passes(job) == ""
        controller._registration.quarantine(job.id, "its address is another's", "ops")
        until(lambda: standing(controller, job) == Standing(JobState.QUARANTINED, QUARANTINED))
        assert controller.jobs.why_nothing_passes(job) == "nothing of the job passes: it is in quarantine"
