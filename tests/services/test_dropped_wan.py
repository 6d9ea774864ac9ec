"""Flows to the WAN that a rule of the policy drops: none is reserved, and one from before is pending with the rule."""

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

DROPPED = POLICY.replace("policies:", "policies:\n  - wan: {when: 'Owner == \"alice\"', action: drop}")
EXCEPT = DROPPED.replace("action: drop", 'action: drop, except: [192.0.2.0/28, "2001:db9::/64"]')
LINE = next(number for number, line in enumerate(DROPPED.splitlines(), 1) if "action: drop" in line)
# A job with addresses of both IP versions.
BOTH = 'AvailBandwidth = 1000\nLarkInnerAddressIPv6 = "2001:db8:64::1"'
WHY = f"nothing of it passes: the job's WAN traffic is dropped (policy line {LINE})"


@pytest.mark.parametrize(
    ("policy", "to", "called"),
    [
        (DROPPED, "wan", "wan"),
        (DROPPED, "wan-fast", "wan-fast"),
        (DROPPED, "192.0.2.9", "192.0.2.9/32"),
        (EXCEPT, "192.0.2.16", "192.0.2.16/32"),
        (EXCEPT, "2001:db9:0:1::/64", "2001:db9:0:1::/64"),
    ],
)
@pytest.mark.parametrize("more", [BOTH, f"{BRIDGED}\n{BOTH}"])
def test_a_flow_to_a_wan_that_a_rule_drops_is_refused_with_its_line(
    tmp_path: Path, policy: str, to: str, called: str, more: str
) -> None:
    with running(tmp_path, policy) as controller:
        job = start(controller, 1, more=more)
        with pytest.raises(ApartError) as caught:
            controller.reservations.reserve(Wish(job.id, to, 5), "test", of_job=True)
        assert str(caught.value) == f"job 1.0 to {called}: {WHY}"
        assert (of_error(caught.value).status, of_error(caught.value).kind) == (409, "apart")
        assert left(controller, "access:worker1", "worker1").reserved == 0


@pytest.mark.parametrize(
    ("policy", "to", "owner"),
    [
        # A part of it passes, or all.
        (EXCEPT, "wan", "alice"),
        (EXCEPT, "192.0.2.9", "alice"),
        (EXCEPT, "192.0.2.0/24", "alice"),
        (EXCEPT, "2001:db9::/48", "alice"),
        # No WAN, and another's rule.
        (DROPPED, "10.0.0.5", "alice"),
        (DROPPED, "files.example", "alice"),
        (DROPPED, "wan", "bob"),
        (DROPPED, "wan", "carol"),
        # It waits, as all that the job reserves does.
        (DROPPED.replace("policies:", "policies:\n  - block: {when: 'Owner == \"alice\"'}"), "wan", "alice"),
    ],
)
def test_a_flow_of_which_something_reaches_the_wan_is_reserved(
    tmp_path: Path, policy: str, to: str, owner: str
) -> None:
    with running(tmp_path, policy) as controller:
        made = controller.reservations.reserve(
            Wish(start(controller, 1, owner, more=BOTH).id, to, 5), "test", of_job=True
        )
        assert controller.reservations.apart.why(made.id) == ""


def test_one_to_the_wan_from_before_such_a_rule_is_pending_until_it_goes(tmp_path: Path) -> None:
    def pending() -> list[str]:
        return [path.pending for path in controller.reservations.paths("worker1").items]

    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1, "alice", more=BRIDGED)
        wishes = [Wish(job.id, to, 5) for to in ("192.0.2.9", "198.51.100.1", "files.example")]
        made = [controller.reservations.reserve(wish, "test", of_job=True).id for wish in wishes]
        until(lambda: standing(controller, job) == Standing(JobState.ENFORCED))
        assert pending() == ["", "", ""]
        for policy, expected in ((DROPPED, [WHY, WHY, ""]), (EXCEPT, ["", WHY, ""])):
            controller.policy.put(policy, "ops")
            until(lambda: standing(controller, job) == Standing(JobState.ENFORCED))
            assert pending() == [controller.reservations.apart.why(each) for each in made] == expected
        assert left(controller, "access:worker1", "worker1").reserved == 15
    with running(tmp_path, EXCEPT) as controller:
        assert [controller.reservations.apart.why(each) for each in made] == ["", WHY, ""]
        # What becomes local is no WAN, whatever the reservation is called.
        near = EXCEPT.replace("local: [10.0.0.0/8,", "local: [10.0.0.0/8, 198.51.100.0/24,")
        controller.policy.put(near, "ops")
        assert [controller.reservations.apart.why(each) for each in made] == ["", "", ""]
        controller.policy.put(POLICY, "ops")
        assert [controller.reservations.apart.why(each) for each in made] == ["", "", ""]
