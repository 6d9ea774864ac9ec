"""Live jobs by state: each once, blocked ones and ones without a network apart from those that work."""

from __future__ import annotations

from pathlib import Path

from fake_switch.switch import FakeNetwork
from lark_controller.api.jobs import JobCounts
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
