"""Shares of a reserved flow that nobody has renewed in time, while others of the flow live."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_worker.errors import CallerError
from lark_worker.life.shares import Shares
from tests.mpi.test_lost_answers import JOB, PEER, Controller, started, wish


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
