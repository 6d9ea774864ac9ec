"""Shares of a reserved flow that nobody has renewed in time, while others of the flow live."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_worker.errors import AwayError, CallerError
from lark_worker.life.shares import AGAIN, MOST_AT_A_TIME, Shares
from tests.mpi.test_lost_answers import JOB, OTHER, PEER, Controller, started, wish


class Time:
    """A clock that stands."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def controller() -> Controller:
    return Controller()


@pytest.fixture
def shares(controller: Controller, time: Time, tmp_path: Path) -> Shares:
    return started(controller, tmp_path, time)


def test_a_late_renewal_takes_nothing_of_another_communicators_share(
    controller: Controller, shares: Shares, time: Time
) -> None:
    kept = shares.reserve(JOB, wish(30) | {"duration": 300}, 0)[1]["id"]
    late = shares.reserve(JOB, wish(30) | {"duration": 2}, 0)[1]["id"]
    assert controller.rates() == [60]
    time.now += 4
    for _ in range(2):
        with pytest.raises(CallerError, match="it may be over"):
            shares.change(JOB, late, {"rate": 30, "duration": 300})
        with pytest.raises(CallerError, match="it may be over"):
            shares.show(JOB, late)
        with pytest.raises(CallerError, match="it may be over"):
            shares.release(JOB, late)
    assert (shares.show(JOB, kept)[1]["rate"], controller.rates()) == (30, [30])
    # What is asked for anew comes on top, as a whole.
    anew = shares.reserve(JOB, wish(30) | {"duration": 300}, 0)[1]["id"]
    assert controller.rates() == [60]
    assert shares.release(JOB, anew)[0] == 200
    assert controller.rates() == [30]


def test_a_share_that_has_been_over_is_none_of_a_former_run(controller: Controller, time: Time, tmp_path: Path) -> None:
    """Also of a flow of which the service does not know all shares, since its file was lost."""
    shares = started(controller, tmp_path, time)
    kept, late, third = (shares.reserve(JOB, wish(rate), 0)[1]["id"] for rate in (30, 20, 10))
    (tmp_path / "shares" / f"{JOB.id}-{PEER}.json").unlink()
    shares = started(controller, tmp_path, time)
    assert shares.change(JOB, kept, {"rate": 30, "duration": 300})[0] == 200
    assert shares.change(JOB, late, {"rate": 20, "duration": 2})[0] == 200
    time.now += 4
    with pytest.raises(CallerError):
        shares.change(JOB, late, {"rate": 20, "duration": 300})
    assert controller.rates() == [40]
    assert shares.change(JOB, third, {"rate": 10, "duration": 300})[0] == 200
    assert controller.rates() == [40]


def test_no_share_is_taken_for_one_of_a_former_run_beyond_what_is_reserved(
    controller: Controller, time: Time, tmp_path: Path
) -> None:
    shares = started(controller, tmp_path, time)
    kept = shares.reserve(JOB, wish(30) | {"duration": 300}, 0)[1]["id"]
    late = shares.reserve(JOB, wish(30.0004) | {"duration": 2}, 0)[1]["id"]
    time.now += 4
    shares.change(JOB, kept, {"rate": 30, "duration": 300})
    assert controller.rates() == [30]
    # What this run has seen to be over is lost with the file and the service.
    (tmp_path / "shares" / f"{JOB.id}-{PEER}.json").unlink()
    shares = started(controller, tmp_path, time)
    shares.change(JOB, kept, {"rate": 30, "duration": 300})
    with pytest.raises(CallerError):
        shares.change(JOB, late, {"rate": 30.0004, "duration": 300})
    assert controller.rates() == [30]
    # What a controller rounds is no difference.
    controller.reserved["0" * 16]["rate"] = 59.999
    assert shares.change(JOB, late, {"rate": 30.0004, "duration": 300})[0] == 200


def test_what_nobody_renews_is_given_back_without_a_request(controller: Controller, shares: Shares, time: Time) -> None:
    kept = shares.reserve(JOB, wish(30) | {"duration": 86400}, 0)[1]["id"]
    shares.reserve(JOB, wish(20) | {"duration": 10}, 0)
    shares.reserve(JOB, wish(10) | {"duration": 20}, 0)
    shares.reserve(JOB, wish(5, OTHER) | {"duration": 10}, 0)
    for seconds, rates in ((9.9, [60, 5]), (0.2, [40, 5]), (10, [30, 5])):
        time.now += seconds
        shares.give_back()
        assert controller.rates() == rates
    # A single share's end is the reservation's, which the controller sees to: nothing is asked.
    controller.lose = ["before"]
    shares.give_back()
    assert controller.lose == ["before"]
    controller.lose = []
    assert shares.release(JOB, kept)[0] == 200
    assert controller.rates() == [5]


@pytest.mark.parametrize("lost", [["before"], ["", "before"], ["", "after"]])
def test_what_could_not_be_given_back_is_tried_again_after_a_while(
    controller: Controller, shares: Shares, time: Time, lost: list[str]
) -> None:
    kept = shares.reserve(JOB, wish(30) | {"duration": 86400}, 0)[1]["id"]
    shares.reserve(JOB, wish(20) | {"duration": 10}, 0)
    time.now += 11
    controller.lose = list(lost)
    with pytest.raises(AwayError):
        shares.give_back()
    # Not at once: the controller is asked about no flow each second.
    controller.lose = ["before"]
    shares.give_back()
    assert controller.lose == ["before"]
    controller.lose = []
    time.now += AGAIN
    shares.give_back()
    assert controller.rates() == [30]
    assert shares.release(JOB, kept)[0] == 200
    assert controller.rates() == []


def test_a_flow_that_somebody_else_has_ended_is_asked_about_once(
    controller: Controller, shares: Shares, time: Time
) -> None:
    kept = shares.reserve(JOB, wish(30) | {"duration": 86400}, 0)[1]["id"]
    shares.reserve(JOB, wish(20) | {"duration": 10}, 0)
    controller.reserved.clear()
    time.now += 11
    shares.give_back()
    time.now += 2 * AGAIN
    controller.lose = ["before"]
    shares.give_back()
    assert controller.lose == ["before"]
    controller.lose = []
    with pytest.raises(CallerError):
        shares.change(JOB, kept, {"rate": 30, "duration": 300})
    assert shares.reserve(JOB, wish(30), 0)[0] == 201
    assert controller.rates() == [30]


def test_many_flows_are_asked_about_some_at_a_time(controller: Controller, shares: Shares, time: Time) -> None:
    flows = 2 * MOST_AT_A_TIME
    for number in range(flows):
        for duration in (60, 10):
            shares.reserve(JOB, wish(0.5, f"{number:016x}") | {"duration": duration}, 0)
    time.now += 11
    # Those that are refused, which should not be, keep no others waiting.
    controller.capacity = -1000.0
    shares.give_back()
    assert controller.rates().count(0.5) == 0
    controller.capacity = 100.0
    shares.give_back()
    assert controller.rates() == MOST_AT_A_TIME * [1.0] + MOST_AT_A_TIME * [0.5]
    time.now += AGAIN
    shares.give_back()
    assert controller.rates() == flows * [0.5]


def test_a_job_that_asks_at_the_moment_does_not_hold_up_the_others(
    controller: Controller, shares: Shares, time: Time
) -> None:
    for duration in (60, 10):
        shares.reserve(JOB, wish(20) | {"duration": duration}, 0)
    time.now += 11
    with shares._of(JOB.id):
        shares.give_back()
        assert controller.rates() == [40]
    shares.give_back()
    assert controller.rates() == [20]
