"""The clock of leases, and what is promised until a time while that clock is set."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from lark_common.errors import NotFoundError
from lark_controller.api.external import ExternalState, ExternalWish
from lark_controller.api.reservations import Change, Wish
from lark_controller.services.lease_clock import DOUBTFUL, LeaseClock
from tests.fixtures.controllers import running
from tests.services.test_reservations import POLICY, start

DAY = 86_400.0


class Hands:
    """A machine's clock and its evenly running one; for tests to move."""

    def __init__(self) -> None:
        self.wall = self.steady = 1000.0

    def pass_by(self, seconds: float) -> None:
        """Let time pass."""
        self.wall += seconds
        self.steady += seconds

    def clock(self) -> LeaseClock:
        """A clock of leases that follows these."""
        return LeaseClock(lambda: self.wall, lambda: self.steady)


@pytest.mark.parametrize("jump", [DAY, -DAY])
def test_a_promise_is_over_by_both_clocks_while_one_may_yet_be_set_right(jump: float) -> None:
    hands = Hands()
    clock = hands.clock()
    hands.pass_by(10)
    assert (clock.earliest(), clock.latest()) == (1010, 1010)
    hands.wall += jump
    # Set again and again, it is doubtful from the last time on, and the clock of before the first counts.
    for _ in range(3):
        hands.pass_by(DOUBTFUL - 1)
        found = {hands.wall, hands.wall - jump}
        assert (clock(), clock.earliest(), clock.latest()) == (hands.wall, min(found), max(found))
        hands.wall += 60
        jump += 60
        clock()
    hands.pass_by(DOUBTFUL + 1)
    assert clock.earliest() == clock.latest() == clock() == hands.wall


def test_a_clock_that_was_set_right_again_is_the_only_one() -> None:
    hands = Hands()
    clock = hands.clock()
    hands.wall += DAY
    clock()
    hands.wall -= DAY
    hands.pass_by(5)
    assert clock.earliest() == clock.latest() == hands.wall


def test_a_reservation_and_an_address_last_as_long_as_was_said_however_the_clock_is_set(tmp_path: Path) -> None:
    external = "external: {pools: {public: [198.51.100.64/28]}, rules: [{pool: public, open: [tcp]}]}\n"
    ahead = [0.0]
    with running(tmp_path, POLICY + external) as controller:
        clock = controller._feed.clock = LeaseClock(lambda: time.time() + ahead[0])
        job = start(controller, 1)
        ahead[0] = -DAY
        before = controller.reservations.reserve(Wish("worker2", "files.example", 1, 3600), "ops", False)
        ahead[0] = 0.0
        assert before.until is not None
        assert before.until > time.time() + 3500
        made = controller.reservations.reserve(Wish(job.id, "wan", 1, 3600), "ops", False)
        address = controller.external.associate(ExternalWish(job.id, seconds=3600), "ops").association
        ahead[0] = DAY
        for _ in range(2):
            controller.reservations.expire(clock.earliest())
            controller.external.expire(clock.earliest())
            assert controller.reservations.find(before.id).rate == 1
            assert controller.reservations.change(made.id, Change(rate=2), "ops", False).rate == 2
            assert controller.external.standing(address).state is not ExternalState.OVER
            ahead[0] = 0.0
        later = time.monotonic() + DOUBTFUL + 1
        clock = controller._feed.clock = LeaseClock(lambda: time.time() + DAY, lambda: later)
        controller.reservations.expire(clock.earliest())
        with pytest.raises(NotFoundError):
            controller.reservations.find(made.id)


def test_what_is_written_while_a_clock_is_doubtful_has_the_machines_time(tmp_path: Path) -> None:
    external = (
        "external: {quarantine: 7200, pools: {public: [198.51.100.64/28]}, rules: [{pool: public, open: [tcp]}]}\n"
    )
    ahead, passed = [-DAY], [0.0]
    with running(tmp_path, POLICY + external) as controller:
        clock = controller._feed.clock = LeaseClock(
            lambda: time.time() + ahead[0] + passed[0], lambda: time.monotonic() + passed[0]
        )
        job = start(controller, 1)
        short = controller.reservations.reserve(Wish("worker2", "files.example", 1, 60), "ops", False)
        # It was a day behind, and is set right.
        ahead[0] = 0.0
        made = controller.reservations.reserve(Wish(job.id, "wan", 1, 3600), "ops", False)
        address = controller.external.associate(ExternalWish(job.id, reservation=made.id), "ops").association
        controller.reservations.change(made.id, Change(rate=2), "ops", False)
        controller.reservations.release(made.id, "ops", False)
        passed[0] = 61.0
        controller.reservations.expire(clock.earliest())
        began, lines = time.time(), controller._store.trail.page(None, None, 100).entries
        assert [line.action for line in lines if line.subject == short.id] == ["expire", "reserve"]
        assert {"reserve", "associate", "change", "release", "dissociate"} <= {line.action for line in lines}
        assert all(abs(line.at - began) < 3600 for line in lines)
        assert abs(made.created - began) < 3600
        assert abs(address.created - began) < 3600
        # The address rests as long as the policy has it, whatever the clock of before was.
        passed[0] = DOUBTFUL + 1
        controller.external.expire(clock.earliest())
        over = controller.external.find(address.id)
        assert over.released is not None
        assert over.free is not None
        assert over.free > began + 7000
        (pool,) = controller.external.pools()
        assert (pool.used, pool.quarantined) == (0, 1)
