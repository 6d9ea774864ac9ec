"""The guarantee that a bandwidth rule's default gives to jobs that ask for none, through changes of policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_controller.api.reservations import Change, Wish
from lark_controller.controller import Controller
from lark_controller.jobs.job import Job
from lark_controller.qos.reservation import ReservationKind
from tests.fixtures.controllers import running
from tests.services.test_reservations import POLICY, left, start


def ruled(rule: str) -> str:
    return POLICY.replace("policies:", f"policies:\n  - bandwidth: {{mode: cap{rule}}}")


def rates(controller: Controller, job: Job) -> list[float]:
    found = controller.reservations.page(job.id, None, 10).reservations
    return [each.rate for each in found if each.kind is ReservationKind.JOB]


@pytest.mark.parametrize(
    "after",
    [
        POLICY,
        ruled(""),
        ruled(", default: 5, when: 'Owner == \"carol\"'"),
        POLICY.partition("topology:")[0],
    ],
)
def test_a_default_ends_with_its_rule(tmp_path: Path, after: str) -> None:
    with running(tmp_path, ruled(", default: 5")) as controller:
        silent, asking, changed = start(controller, 1), start(controller, 2, rate=50), start(controller, 3)
        flow = controller.reservations.reserve(Wish(silent.id, "10.0.0.5", 20), "hook", True)
        (of_changed,) = controller.reservations.page(changed.id, None, 10).reservations
        controller.reservations.change(of_changed.id, Change(7), "ops", False)
        controller.policy.put(ruled(", default: 10"), "ops")
        assert [rates(controller, job) for job in (silent, asking, changed)] == [[10], [50], [7]]
        controller.policy.put(after, "ops")
        # What was asked for stays, as what an operator has set and what a job has reserved.
        assert [rates(controller, job) for job in (silent, asking, changed)] == [[], [50], [7]]
        assert controller.reservations.find(flow.id).rate == 20
        controller.policy.put(POLICY, "ops")
        assert left(controller, "access:worker1", "core1").reserved == 57
        assert left(controller, "access:worker1", "worker1").reserved == 77
        # Nobody has the rest: it is there for a job to come.
        assert start(controller, 4, rate=923).live
    with running(tmp_path, POLICY) as controller:
        assert left(controller, "access:worker1", "worker1").best_effort == 0


def test_a_default_comes_back_with_its_rule(tmp_path: Path) -> None:
    with running(tmp_path, ruled(", default: 5")) as controller:
        job = start(controller, 1)
        for policy, rate in ((POLICY, []), (ruled(", default: 5"), [5]), (ruled(", maximum: 5"), [])):
            controller.policy.put(policy, "ops")
            assert rates(controller, job) == rate
        controller.jobs.end(job.id, "hook")
        assert left(controller, "access:worker1", "worker1").reserved == 0
