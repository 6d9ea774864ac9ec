"""Reserved flows past their end, whose bandwidth is not free yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_common.errors import CapacityError, NotFoundError
from lark_controller.api.reservations import Wish
from lark_controller.controller import Controller
from lark_controller.qos.reservation import Reservation
from tests.fixtures.controllers import running
from tests.services.test_reservations import POLICY, flows, left, start


def test_a_flow_whose_reservation_is_over_is_reserved_anew_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = set[str]()
    # The switch takes its time.
    monkeypatch.setattr(Controller, "_holds", lambda _, reservation: reservation.id in standing)
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1)
        reservations, clock = controller.reservations, controller._feed.clock

        def reserve(rate: float, seconds: float) -> Reservation:
            return reservations.reserve(Wish(job.id, "wan", rate, seconds), "hook", True)

        first = reserve(40.0, 60.0)
        standing.add(first.id)
        now = clock.earliest()
        monkeypatch.setattr(clock, "earliest", lambda: now + 61)
        # Nobody could change it, since it is shown nowhere.
        with pytest.raises(NotFoundError):
            reservations.find(first.id)
        second = reserve(50.0, 600.0)
        assert [each.kbps for each in flows(controller, job)] == [50_000]
        # What the first one held is free once its queue is gone.
        assert left(controller, "internet").reserved == 90
        with pytest.raises(CapacityError):
            reservations.reserve(Wish(job.id, "192.0.2.1", 20.0, 600.0), "hook", True)
        assert reservations.expire(now + 61) == 0
        standing.clear()
        assert reservations.expire(now + 61) == 1
        assert left(controller, "internet").reserved == 50
        assert reservations.find(second.id) == second
