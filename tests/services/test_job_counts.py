"""Live jobs by state: each once, blocked ones and ones without a network apart from those that work."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_controller.api.jobs import BLOCKED, JobCounts, JobFilter
from lark_controller.controller import Controller
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.services import jobs as jobs_service
from tests.fixtures.controllers import an_edge, connect, post, running, until

RULES = """
version: 1
networks: {jobs: [10.64.0.0/16]}
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner}
"""
NONE = 'LarkNetworkType = "none"'


def test_each_job_is_counted_once_and_in_the_word_that_it_is_shown_with(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, RULES) as controller:
        connect(network, controller, an_edge())
        post(controller, 1, "alice")
        blocked = post(controller, 2, "mallory").job
        # No rule is for a job without a network: it is not blocked either.
        without = [post(controller, number, "mallory", more=NONE, port=None).job for number in (3, 4)]
        # Nobody knows yet what becomes of one whose switch is away.
        away = post(controller, 5, "mallory", datapath=2).job
        until(lambda: controller.jobs.counts().pending == 1)
        until(lambda: controller.jobs.counts().registering == 0)
        found = controller.jobs.counts()
        assert found == JobCounts(pending=1, enforced=2, no_network=2, blocked=1, isolated=2)
        assert found.live == 5
        assert set(controller.jobs.isolated([blocked, *without, away])) == {blocked.number, away.number}
        controller._registration.quarantine(without[0].id, "the pool knows another owner", "pool")
        until(lambda: controller.jobs.counts().quarantined == 1)
        assert controller.jobs.counts() == JobCounts(
            pending=1, enforced=2, no_network=1, quarantined=1, blocked=1, isolated=3
        )
        controller.policy.put(RULES.replace("mallory", "nobody"), "test")
        until(lambda: controller.jobs.counts().isolated == 1)
        assert controller.jobs.counts().blocked == 0
        for job in without:
            controller.jobs.end(job.id, "test")
        until(lambda: controller.jobs.counts() == JobCounts(pending=1, enforced=2))
    # A start counts the same.
    with running(tmp_path, RULES) as controller:
        connect(network, controller, an_edge())
        post(controller, 6, "mallory", more=NONE, port=None)
        until(lambda: controller.jobs.counts() == JobCounts(pending=1, enforced=2, no_network=1, blocked=1, isolated=2))


@pytest.mark.parametrize("most", [2, 1_000])
def test_blocked_jobs_are_listed_as_they_are_counted(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Page by page in both orders, with what else is chosen, however few numbers a statement names."""
    monkeypatch.setattr(jobs_service, "_MOST_AMONG", most)
    monkeypatch.setattr(jobs_service, "_FIRST_NUMBERS", 1)

    def listed(controller: Controller, limit: int = 1, **chosen: object) -> list[str]:
        found, cursor = list[str](), None
        while True:
            page = controller.jobs.page(JobFilter(state=BLOCKED, **chosen), cursor, limit)  # type: ignore[arg-type]
            found += [job.called for job in page.jobs]
            assert all(job.state == "enforced" for job in page.jobs)
            if (cursor := page.next_cursor) is None:
                return found

    with running(tmp_path, RULES) as controller:
        ports = {1: "uplink", PORT_LOCAL: "br"} | {10 + number: f"p{number}" for number in range(1, 7)}
        connect(network, controller, FakeSwitch(1, ports))
        owners = ["mallory", "alice", "mallory", "mallory", "bob", "mallory"]
        posted = [post(controller, number, owner).job for number, owner in enumerate(owners, 1)]
        post(controller, 7, "mallory", more=NONE, port=None)
        post(controller, 8, "mallory", datapath=2)
        until(lambda: controller.jobs.counts() == JobCounts(pending=1, enforced=6, no_network=1, blocked=4, isolated=5))
        blocked = [job.called for job in posted if job.owner == "mallory"]
        for limit in (1, 2, 3, 4, 100):
            assert listed(controller, limit) == blocked
            assert listed(controller, limit, newest=True) == blocked[::-1]
        assert listed(controller, owner="mallory", host=posted[0].host) == blocked
        assert listed(controller, owner="mallory", newest=True) == blocked[::-1]
        assert listed(controller, owner="alice") == []
        # In quarantine a job is shown as that, and is none of these.
        controller._registration.quarantine(posted[0].id, "the pool knows another owner", "pool")
        until(lambda: controller.jobs.counts().quarantined == 1)
        assert listed(controller) == blocked[1:]
        controller.policy.put(RULES.replace("mallory", "bob"), "test")
        until(lambda: controller.jobs.counts().blocked == 1)
        until(lambda: listed(controller) == [posted[4].called])
