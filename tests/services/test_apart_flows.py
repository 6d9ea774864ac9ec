"""Flows between jobs that rules of the policy keep apart: none is reserved, and one from before is pending."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_common.errors import ApartError
from lark_controller.api.reservations import Wish
from lark_controller.jobs.job import JobState, Standing
from lark_controller.rest.problems import of_error
from tests.fixtures.controllers import running, until
from tests.services.test_blocked_reservations import standing
from tests.services.test_enforced_reservations import BRIDGED
from tests.services.test_reservations import POLICY, left, start

SLICED = POLICY.replace("policies:", "policies:\n  - slice: {by: Owner, when: 'Owner != \"nobody\"'}")
LINE = next(number for number, line in enumerate(SLICED.splitlines(), 1) if "slice:" in line)
APART = f"nothing of it passes: slices keep the two jobs apart (policy line {LINE})"


def rule(text: str) -> str:
    return POLICY.replace("policies:", f"policies:\n  - {text}")


@pytest.mark.parametrize(
    ("policy", "owners", "why"),
    [
        (SLICED, ("alice", "bob"), "slices keep the two jobs apart"),
        (SLICED, ("alice", "nobody"), "slices keep the two jobs apart"),
        (SLICED, ("nobody", "alice"), "slices keep the two jobs apart"),
        (rule("block: {when: 'Owner == \"bob\"'}"), ("alice", "bob"), "the receiver is blocked"),
        (
            rule("connectivity: {when: 'Owner == \"bob\"', inbound: deny, outbound: deny}"),
            ("alice", "bob"),
            "the receiver is closed in both directions",
        ),
        (rule("connectivity: {inbound: deny}"), ("alice", "bob"), "neither job may call the other"),
    ],
)
def test_a_flow_of_which_nothing_would_pass_is_refused_with_the_rule(
    tmp_path: Path, policy: str, owners: tuple[str, str], why: str
) -> None:
    with running(tmp_path, policy) as controller:
        one, other = start(controller, 1, owners[0]), start(controller, 2, owners[1], host=2)
        with pytest.raises(ApartError) as caught:
            controller.reservations.reserve(Wish(one.id, other.id, 5), "test", of_job=False)
        assert str(caught.value) == f"job 1.0 to job 2.0: nothing of it passes: {why} (policy line {LINE})"
        problem = of_error(caught.value)
        assert (problem.status, problem.kind) == (409, "apart")
        # Its address is it as well; nothing is booked.
        with pytest.raises(ApartError, match=why):
            controller.reservations.reserve(Wish(one.id, "10.64.0.2", 5), "test", of_job=True)
        assert left(controller, "access:worker1", "worker1").reserved == 0


@pytest.mark.parametrize(
    ("policy", "owners"),
    [
        (SLICED, ("alice", "alice")),
        (SLICED, ("nobody", "nobody")),
        # Answers pass.
        (rule("connectivity: {when: 'Owner == \"bob\"', inbound: deny}"), ("alice", "bob")),
        (rule("connectivity: {when: 'Owner == \"alice\"', outbound: deny}"), ("alice", "bob")),
        # It waits, as all that it reserves does.
        (rule("block: {when: 'Owner == \"alice\"'}"), ("alice", "bob")),
    ],
)
def test_a_flow_of_which_something_may_pass_is_reserved(tmp_path: Path, policy: str, owners: tuple[str, str]) -> None:
    with running(tmp_path, policy) as controller:
        one, other = start(controller, 1, owners[0]), start(controller, 2, owners[1], host=2)
        made = controller.reservations.reserve(Wish(one.id, other.id, 5), "test", of_job=False)
        assert controller.reservations.apart.why(made.id) == ""


def test_the_rule_is_said_to_whoever_asks_for_the_paths_before_a_queue_that_is_missing(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        one, other = start(controller, 1, "alice"), start(controller, 2, "bob", host=2)
        controller.reservations.reserve(Wish(one.id, other.id, 5), "test", of_job=False)
        until(lambda: controller.reservations.paths("worker1").items[0].pending)
        alone = controller.reservations.paths("worker1").items[0].pending
        controller.policy.put(SLICED, "ops")
        assert controller.reservations.paths("worker1").items[0].pending == f"{APART}; also {alone}"
        # It is the present one.
        controller.policy.put(POLICY, "ops")
        assert controller.reservations.paths("worker1").items[0].pending == alone


def test_one_from_before_such_a_policy_is_pending_until_it_goes(tmp_path: Path) -> None:
    def pending() -> str:
        (path,) = controller.reservations.paths("worker1").items
        return path.pending

    with running(tmp_path, POLICY) as controller:
        one, other = start(controller, 1, "alice", more=BRIDGED), start(controller, 2, "bob", host=2)
        made = controller.reservations.reserve(Wish(one.id, other.id, 5), "test", of_job=False)
        until(lambda: standing(controller, one) == Standing(JobState.ENFORCED))
        assert pending() == controller.reservations.apart.why(made.id) == ""
        controller.policy.put(SLICED, "ops")
        until(lambda: standing(controller, one) == Standing(JobState.ENFORCED))
        assert pending() == controller.reservations.apart.why(made.id) == APART
        # Its room is kept.
        assert left(controller, "access:worker1", "worker1").reserved == 5
    with running(tmp_path, SLICED) as controller:
        assert controller.reservations.apart.why(made.id) == APART
        controller.policy.put(POLICY, "ops")
        assert controller.reservations.apart.why(made.id) == ""
        controller.policy.put(SLICED, "ops")
        controller.jobs.end(other.id, "test")
        assert controller.reservations.apart.why(made.id) == ""
