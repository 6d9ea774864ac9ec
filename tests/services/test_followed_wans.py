"""Reservations to the WAN through changes of policy, at a running controller: they are counted where packets leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_common.errors import CapacityError, PathError
from lark_controller.api.reservations import Change, Wish
from lark_controller.controller import Controller
from tests.fixtures.controllers import planned, running
from tests.services.test_reservations import POLICY, start

NOT_STEERED = POLICY.replace("carol", "nobody")
UP_TO_WAN = POLICY.replace("topology:", "topology:\n  reserves: wan")


def trunks(controller: Controller) -> dict[str, float]:
    """The rates reserved towards the WAN, by link."""
    links = controller.reservations.links().items
    return {each.name: each.reserved for each in links if each.target.startswith("wan")}


@pytest.mark.parametrize("destination", ["wan", "198.18.0.0/16"])
def test_a_reserved_flow_follows_where_a_new_policy_steers_its_job(tmp_path: Path, destination: str) -> None:
    with running(tmp_path, POLICY) as controller:
        carol = start(controller, 1, "carol")
        made = controller.reservations.reserve(Wish(carol.id, destination, 90), "hook", True)
        assert set(made.holds) == {"access:worker1 worker1>core1", "fast core1>wan-fast"}
        assert made.destination == "wan"
        controller.policy.put(NOT_STEERED, "ops")
        assert trunks(controller) == {"internet": 90, "fast": 0}
        (found,) = controller.reservations.sent_by(carol.id)
        assert set(found.holds) == {"access:worker1 worker1>core1", "internet core1>wan"}
        assert (found.id, found.destination) == (made.id, "wan")
        # It has its place there, and is changed there.
        with pytest.raises(CapacityError, match="link internet"):
            controller.reservations.change(made.id, Change(101), "hook", True)
        controller.reservations.change(made.id, Change(100), "hook", True)
        controller.policy.put(POLICY, "ops")
        assert trunks(controller) == {"internet": 0, "fast": 100}
        assert controller.reservations.change(made.id, Change(900), "hook", True).rate == 900
    with running(tmp_path, POLICY) as controller:
        assert trunks(controller) == {"internet": 0, "fast": 900}


def test_a_wan_that_is_named_stays_that_one(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        carol, alice = start(controller, 1, "carol"), start(controller, 2)
        for job in (carol, alice):
            controller.reservations.reserve(Wish(job.id, "wan-fast", 50), "hook", True)
        controller.policy.put(NOT_STEERED, "ops")
        assert trunks(controller) == {"internet": 0, "fast": 100}


def test_what_a_path_carries_is_that_of_the_wan_to_which_a_job_is_steered(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        carol, alice = start(controller, 1, "carol"), start(controller, 2, host=3, more="AvailBandwidth = 2000")
        rate = controller.reservations.path_rate
        assert (rate(carol, "wan"), rate(alice, "wan"), rate(alice, "wan-fast")) == (1000, 100, 1000)
        assert rate(alice, "wan-old") is None


def test_a_groups_port_steers_no_reservation(tmp_path: Path) -> None:
    """It is where the group has its queue: the job's packets leave as others do."""
    groups = "groups: {default: {port: wan-fast, ceiling: 20}}\n"
    with running(tmp_path, UP_TO_WAN + groups) as controller:
        alice = start(controller, 1, rate=20)
        controller.reservations.reserve(Wish(alice.id, "wan", 30), "hook", True)
        start(controller, 2, "carol", rate=20)
        assert trunks(controller) == {"internet": 50, "fast": 20}


DEFAULTS = NOT_STEERED.replace("default: {switch: core1}", "default: {switch: core1, capacity: 1000}").replace(
    "topology:", "  - bandwidth: {mode: cap}\ntopology:"
)


def test_a_wan_that_gets_another_name_has_what_was_reserved_to_the_wan(tmp_path: Path) -> None:
    renamed = DEFAULTS.replace("[core1, wan]", "[core1, wan-main]")
    steered = renamed.replace("nobody", "alice")
    with running(tmp_path, DEFAULTS) as controller:
        job = start(controller, 1)
        for destination, rate in (("wan", 60), ("198.51.100.7", 30)):
            controller.reservations.reserve(Wish(job.id, destination, rate), "hook", True)
        controller.reservations.reserve(Wish("files.example", "wan", 5, 600.0), "ops", False)
        for policy, reserved in ((renamed, (95, 0)), (steered, (5, 90)), (renamed, (95, 0))):
            assert planned(controller, policy) == ()
            controller.policy.put(policy, "ops")
            assert trunks(controller) == {"internet": reserved[0], "fast": reserved[1]}
        assert {each.name for each in controller.reservations.links().items if each.name.startswith("access:")} == {
            "access:files.example", "access:worker1", "access:worker2",
        }  # fmt: skip
        with pytest.raises(CapacityError, match="link internet"):
            controller.reservations.reserve(Wish(start(controller, 2).id, "wan", 6), "hook", True)


def test_a_named_wan_that_is_gone_is_a_path_that_is_gone(tmp_path: Path) -> None:
    gone = DEFAULTS.replace("[core1, wan-fast]", "[core1, wan-new]")
    why = "the policy's topology has no WAN wan-fast; it has wan, wan-new"
    with running(tmp_path, DEFAULTS) as controller:
        job = start(controller, 1)
        made = controller.reservations.reserve(Wish(job.id, "wan-fast", 90), "hook", True)
        assert planned(controller, gone) == (
            f"1 reservation has no path any more, and would count on no link, such as {made.id} from job 1.0 to "
            f"wan-fast: {why}",
        )
        controller.reservations.reserve(Wish("wan-fast", job.id, 5), "ops", False)
        assert any(each.startswith("2 reservations have no path") for each in planned(controller, gone))
        controller.policy.put(gone, "ops")
        found = controller.reservations.page(None, None, 10).reservations
        assert [dict(each.holds) for each in found] == [{}, {}]
        # The default of hosts makes no link to it, and none is reserved there.
        assert {each.reserved for each in controller.reservations.links().items} == {0}
        with pytest.raises(PathError, match=why):
            controller.reservations.reserve(Wish(job.id, "Wan-Fast", 1), "hook", True)
        with pytest.raises(PathError, match=why):
            controller.reservations.change(made.id, Change(91), "hook", True)
        assert planned(controller, gone) == ()
        # It counts again once there is such a WAN.
        controller.policy.put(DEFAULTS, "ops")
        assert trunks(controller)["fast"] == 90
