"""A worker's word on the treatment of transfers holds until it is answered otherwise."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_common.transfers import Treatment
from lark_controller.accounting.readings import TransferCounts
from lark_controller.api.jobs import TransferState
from lark_controller.api.usage import TransferReport
from lark_controller.controller import Controller
from lark_controller.jobs.job import Job
from lark_controller.services.treatments import UNHEARD
from tests.fixtures.controllers import running
from tests.services.test_reservations import start

BASE = "version: 1\nnetworks: {jobs: [10.64.0.0/16]}\n"
RULED = BASE + "policies: [{transfers: {when: 'Owner == \"alice\"', rate: 8Mbit}}]\n"
OTHERS = {
    "another rate": RULED.replace("8Mbit", "9Mbit"),
    "a rule for others alone": RULED.replace("alice", "bob"),
    "no rule": BASE,
}
ENFORCED = TransferState(enforced=True)


class Worker:
    """A worker that puts in place what it is answered."""

    def __init__(self, controller: Controller, job: Job) -> None:
        self.controller, self.job = controller, job
        self.in_place: Treatment | None = None

    def post(self) -> None:
        counts = TransferCounts(0, 0, 0, 0, 0)
        report = TransferReport(counts, treatment=self.in_place)
        answer = self.controller.usage.transferred(self.job.host, {self.job.id: report})
        self.in_place = (answer.treatments or {}).get(self.job.id)

    def shown(self) -> TransferState | None:
        return self.controller.jobs.detail(self.job.id).transfers


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_a_rule_that_comes_back_is_enforced_once_the_worker_has_said_so_again(tmp_path: Path, other: str) -> None:
    with running(tmp_path, RULED) as controller:
        worker = Worker(controller, start(controller, 1))
        worker.post()
        assert worker.shown() == TransferState(enforced=False, reason=UNHEARD)
        worker.post()
        assert worker.shown() == ENFORCED
        # The worker has heard of nothing else.
        controller.policy.put(other, "ops")
        controller.policy.put(RULED, "ops")
        assert worker.shown() == ENFORCED
        # It is told to do otherwise, which takes the rule out before it says anything more.
        controller.policy.put(other, "ops")
        worker.post()
        controller.policy.put(RULED, "ops")
        assert worker.in_place != Treatment(8_000_000)
        assert worker.shown() == TransferState(enforced=False, reason=UNHEARD)
        worker.post()
        assert worker.shown() == TransferState(enforced=False, reason=UNHEARD)
        worker.post()
        assert worker.shown() == ENFORCED
