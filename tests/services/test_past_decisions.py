"""The decision for a job that is over is by the policy under which it ended."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.fixtures.controllers import POLICY, post, running


def blocking(owner: str) -> str:
    """A policy under which nothing of a user's jobs passes."""
    return f"{POLICY}  - block: {{when: 'Owner == \"{owner}\"'}}\n"


def test_a_later_policy_changes_nothing_of_what_is_said(tmp_path: Path) -> None:
    with running(tmp_path, blocking("mallory")) as controller:
        jobs = [post(controller, number, owner).job for number, owner in enumerate(("alice", "mallory", "bob"), 1)]
        before = [controller.jobs.detail(job.id) for job in jobs]
        assert [each.decision.blocked for each in before] == [False, True, False]
        for job in jobs[:2]:
            controller.jobs.end(job.id, "test")
        second = controller.policy.put(blocking("alice"), "test")
        after = [controller.jobs.detail(job.id) for job in jobs]
        assert [each.decision for each in after[:2]] == [each.decision for each in before[:2]]
        first = second.version - 1
        assert [each.policy_version for each in after] == [first, first, second.version]
        # Of those that end now it is the one in force now.
        controller.jobs.end(jobs[2].id, "test")
        assert controller.jobs.detail(jobs[2].id).policy_version == second.version


def test_a_policy_that_cannot_be_read_any_more_is_not_needed(tmp_path: Path) -> None:
    with running(tmp_path, blocking("alice")) as controller:
        job = post(controller, 1, "alice").job
        controller.jobs.end(job.id, "test")
        second = controller.policy.put(blocking("bob"), "test")
        with sqlite3.connect(tmp_path / "lark.db") as database:
            database.execute("UPDATE policy_versions SET text = 'version: 0' WHERE version < ?", [second.version])
        found = controller.jobs.detail(job.id)
        assert (found.policy_version, found.decision.blocked) == (second.version, False)
