"""A topology whose links become smaller than what is reserved on them: the plan says so, by link."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lark_controller.api.reservations import Wish
from lark_controller.controller import Controller
from lark_controller.qos import recount
from tests.fixtures.controllers import running
from tests.services.test_reservations import POLICY, start

_SENTENCE = re.compile(
    r"link (\S+)(?: from (\S+) to (\S+))? carries (\S+) Mb/s, and (\S+) Mb/s would be reserved on it"
)
SMALLER = POLICY.replace("capacity: 100}", "capacity: 50}")
NARROW = SMALLER.replace("capacity: 500,", "capacity: 50,").replace("{switch: core1}", "{switch: core1, capacity: 30}")


def planned(controller: Controller, text: str) -> dict[tuple[str, str, str], tuple[float, float]]:
    """The links of which a plan warns, each with what it carries and what would be reserved."""
    found = [_SENTENCE.fullmatch(each) for each in controller.policy.plan(text).warnings]
    return {
        (each[1], each[2] or "", each[3] or ""): (float(each[4]), float(each[5])) for each in found if each is not None
    }


def too_full(controller: Controller) -> dict[tuple[str, str, str], tuple[float, float]]:
    """The links on which more is reserved than they carry."""
    links = controller.reservations.links().items
    return {
        (each.name, each.source, each.target): (each.capacity, each.reserved)
        for each in links
        if each.reserved > each.capacity
    }


@pytest.mark.parametrize("reserves", ["host", "wan"])
def test_a_plan_names_each_link_that_is_too_small_for_what_is_reserved(tmp_path: Path, reserves: str) -> None:
    policy, smaller, narrow = (
        text.replace("topology:", f"topology:\n  reserves: {reserves}") for text in (POLICY, SMALLER, NARROW)
    )
    with running(tmp_path, policy) as controller:
        alice, carol = start(controller, 1, rate=20), start(controller, 2, "carol", rate=20, host=2)
        controller.reservations.reserve(Wish(alice.id, "wan", 60), "hook", True)
        controller.reservations.reserve(Wish(carol.id, "wan", 40), "hook", True)
        # One inside a worker, which takes no link, and one that is over.
        controller.reservations.reserve(Wish("worker2", "worker2", 500, duration=60), "ops", False)
        over = controller.reservations.reserve(Wish("files.example", "wan", 10, duration=60), "ops", False)
        controller.reservations.release(over.id, "ops", False)
        assert planned(controller, policy) == {}
        for text in (smaller, narrow):
            expected = planned(controller, text)
            assert ("internet", "core1", "wan") in expected
            assert (("access:worker2", "", "") in expected) == (text is narrow)
            controller.policy.put(text, "ops")
            assert too_full(controller) == expected


def test_a_plan_names_the_worst_links_and_counts_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recount, "MOST", 1)
    with running(tmp_path, POLICY) as controller:
        alice = start(controller, 1)
        controller.reservations.reserve(Wish(alice.id, "wan", 60), "hook", True)
        found = controller.policy.plan(NARROW).warnings
        assert "link access:worker1 from worker1 to core1 carries 30 Mb/s, and 60 Mb/s would be reserved on it" in found
        assert "beside these, of links that carry less than would be reserved on them: 1" in found
