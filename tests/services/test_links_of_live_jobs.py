"""The access links of workers with live jobs are shown whichever came first, the topology or the jobs."""

from __future__ import annotations

from pathlib import Path

from lark_controller.controller import Controller
from tests.fixtures.controllers import running
from tests.services.test_reservations import POLICY, start

FIXED = POLICY.replace("default: {switch: core1}", "default: {switch: core1, capacity: 700}")
ACCESS = {"access:worker1", "access:worker3"}


def links(controller: Controller) -> set[str]:
    return {each.name for each in controller.reservations.links().items} & {*ACCESS, "access:worker4"}


def test_links_of_workers_with_live_jobs_are_shown_after_a_start_and_a_policy(tmp_path: Path) -> None:
    without = POLICY[: POLICY.index("topology:")]
    with running(tmp_path, without) as controller:
        start(controller, 1, more=" ")
        start(controller, 3, host=3, more=" ")
        gone = start(controller, 4, host=4, more=" ")
        controller.jobs.end(gone.id, "hook")
        assert links(controller) == set()
        controller.policy.put(FIXED, "ops")
        assert links(controller) == ACCESS
        assert controller.reservations.access_rate("worker3") == 700
    with running(tmp_path, FIXED) as controller:
        assert links(controller) == ACCESS
