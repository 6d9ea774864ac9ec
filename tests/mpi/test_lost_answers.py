"""Shares of reserved flows whose answers are lost, between service and controller or between program and service."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from lark_common.errors import AdError
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError
from lark_worker.life.own_reservations import OwnReservations
from lark_worker.life.shares import Requests, Shares
from lark_worker.records.records import Record
from lark_worker.records.shares import ShareFiles

JOB = Record("a" * 16, 1, "boot", 7, 0, "s#1.0#1", 1, "slot1@w", "alice", "ns", "veth", "", "ovs_bridge", "", "")
PEER, OTHER = "b" * 16, "c" * 16


class Controller:
    """A controller with so many Mb/s, and the link to it, on which answers are lost."""

    def __init__(self, capacity: float = 100.0) -> None:
        self.capacity, self.reserved = capacity, dict[str, dict[str, Any]]()
        # Answers that are lost before or after the request has taken effect.
        self.lose: list[str] = []

    def passed(self, call: Callable[[Any], dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        lost = self.lose.pop(0) if self.lose else ""
        if lost == "before":
            raise AwayError("it is away")
        status, document = 200, dict[str, Any]()
        try:
            document = call(self)
        except KeyError:
            status = 404
        except ValueError as error:
            status, document = 409, {"detail": str(error)}
        if lost == "after":
            raise AwayError("it went away")
        return status, document

    def reserve(
        self, source: str, destination: str, rate: float, duration: float | None, wait: float, *, steady: bool
    ) -> dict[str, Any]:
        if any(each["peer"] == destination for each in self.reserved.values()):
            raise ValueError("it is for the same flow")
        self._check(rate)
        reservation = f"{len(self.reserved):016x}"
        made = {"id": reservation, "job": source, "peer": destination, "rate": rate, "steady": steady}
        self.reserved[reservation] = made
        return dict(made)

    def change_reservation(self, reservation: str, **change: Any) -> dict[str, Any]:
        found = self.reserved[reservation]
        self._check(change["rate"] - found["rate"])
        found |= {name: value for name, value in change.items() if name != "duration"}
        return dict(found)

    def release(self, reservation: str) -> dict[str, Any]:
        return self.reserved.pop(reservation)

    def reservation(self, reservation: str, wait: float = 0.0) -> dict[str, Any]:
        return dict(self.reserved[reservation])

    def watch_paths(self, host: str) -> dict[str, Any]:
        return {"paths": [{"reservation": each["id"], **each} for each in self.reserved.values()]}

    def _check(self, more: float) -> None:
        if more > self.capacity - sum(self.rates()):
            raise ValueError("no room")

    def rates(self) -> list[float]:
        return [each["rate"] for each in self.reserved.values()]


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def shares(controller: Controller, tmp_path: Path) -> Shares:
    return started(controller, tmp_path)


def started(
    controller: Controller,
    folder: Path,
    clock: Callable[[], float] = time.monotonic,
    is_live: Callable[[str], bool] = lambda _job: True,
) -> Shares:
    """The shares of a service that has started, with what one before has left in the folder."""
    link = cast("ControllerLink", controller)
    made = Shares(link, OwnReservations(link), ShareFiles(folder / "shares"), is_live, clock)
    made.resume({JOB.id})
    return made


def wish(rate: float, peer: str = PEER) -> dict[str, Any]:
    return {"destination": peer, "rate": rate, "duration": 60}


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_share_is_there_once_though_the_first_answer_was_lost(
    controller: Controller, shares: Shares, lost: str
) -> None:
    controller.lose = [lost]
    with pytest.raises(AwayError):
        shares.reserve(JOB, wish(30), 0, 77)
    assert controller.rates() == ([30] if lost == "after" else [])
    status, made = shares.reserve(JOB, wish(30), 0, 77)
    assert (status, made["rate"], controller.rates()) == (201, 30, [30])
    assert made["id"].endswith("s77")
    # Another communicator's comes on top, and each is given back by itself.
    second = shares.reserve(JOB, wish(20), 0, 78)[1]
    assert controller.rates() == [50]
    assert shares.release(JOB, made["id"])[0] == 200
    assert controller.rates() == [20]
    assert shares.release(JOB, second["id"])[0] == 200
    assert controller.rates() == []


def test_what_somebody_else_reserved_meanwhile_is_nobodys_share(controller: Controller, shares: Shares) -> None:
    controller.lose = ["before"]
    with pytest.raises(AwayError):
        shares.reserve(JOB, wish(30), 0, 77)
    controller.reserve(JOB.id, PEER, 40.0, None, 0, steady=False)
    assert shares.reserve(JOB, wish(30), 0, 77) == (409, {"detail": "it is for the same flow"})
    assert shares.reserve(JOB, wish(10, OTHER), 0, 77)[0] == 201
    assert controller.rates() == [40, 10]


def test_a_request_that_is_repeated_gets_the_share_that_it_has(controller: Controller, shares: Shares) -> None:
    first = shares.reserve(JOB, wish(30), 0, 77)
    assert shares.reserve(JOB, wish(30), 0, 77) == first
    assert shares.reserve(JOB, wish(30), 0, None)[1]["id"] != first[1]["id"]
    assert controller.rates() == [60]


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_change_counts_once_though_its_answer_was_lost(controller: Controller, shares: Shares, lost: str) -> None:
    one, other = (shares.reserve(JOB, wish(rate), 0)[1]["id"] for rate in (20, 10))
    controller.lose = ["", lost]
    with pytest.raises(AwayError):
        shares.change(JOB, one, {"rate": 50, "duration": 60})
    # As the libraries do: again, then renewals.
    for _ in range(3):
        assert shares.change(JOB, one, {"rate": 50, "duration": 60})[1]["rate"] == 50
        assert controller.rates() == [60]
    assert shares.show(JOB, other)[1]["rate"] == 10
    controller.lose = ["", lost]
    with pytest.raises(AwayError):
        shares.release(JOB, one)
    shares.change(JOB, other, {"rate": 10, "duration": 60})
    if lost == "before":
        assert shares.release(JOB, one)[0] == 200
    assert controller.rates() == [10]
    # A third one's request is not counted twice either.
    controller.lose = ["", lost]
    with pytest.raises(AwayError):
        shares.reserve(JOB, wish(25), 0, 99)
    assert shares.reserve(JOB, wish(25), 0, 99)[1]["rate"] == 25
    assert controller.rates() == [35]


def test_a_refused_change_leaves_the_shares_as_they_were(controller: Controller, shares: Shares) -> None:
    one = shares.reserve(JOB, wish(80), 0)[1]["id"]
    assert shares.reserve(JOB, wish(30), 0)[0] == 409
    assert shares.change(JOB, one, {"rate": 101, "duration": 60})[0] == 409
    assert (shares.show(JOB, one)[1]["rate"], controller.rates()) == (80, [80])


@pytest.mark.parametrize("share", ["yes", 0, -1, 1.5, 10**12, None, []])
def test_a_share_is_true_or_a_number(controller: Controller, tmp_path: Path, share: Any) -> None:
    requests = Requests(cast("ControllerLink", controller), lambda: None, tmp_path, lambda _job: True)
    with pytest.raises(AdError, match="share: true, or a number of 1 to 999999999999, is accepted"):
        requests.reserve(JOB, json.dumps({**wish(1), "share": share}).encode(), 0)
    assert controller.rates() == []
