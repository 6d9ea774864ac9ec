"""Shares of reserved flows outlive the worker service, at whatever moment it ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_worker.errors import AwayError, CallerError
from tests.mpi.test_lost_answers import JOB, OTHER, PEER, Controller, started, wish


def file_of(folder: Path, peer: str = PEER) -> Path:
    return folder / "shares" / f"{JOB.id}-{peer}.json"


@pytest.fixture
def controller() -> Controller:
    return Controller()


def test_each_share_is_given_back_by_itself_though_nobody_has_renewed_it_since(
    controller: Controller, tmp_path: Path
) -> None:
    shares = started(controller, tmp_path)
    one, other, third = (shares.reserve(JOB, wish(rate), 0)[1]["id"] for rate in (20, 30, 10))
    shares = started(controller, tmp_path)
    assert shares.release(JOB, other)[1]["rate"] == 30
    assert controller.rates() == [30]
    # Another communicator of the same jobs comes on top at once.
    fourth = shares.reserve(JOB, wish(5), 0)[1]["id"]
    assert controller.rates() == [35]
    shares = started(controller, tmp_path)
    for share, left in ((one, [15]), (third, [5]), (fourth, [])):
        assert shares.release(JOB, share)[0] == 200
        assert controller.rates() == left
    assert not file_of(tmp_path).exists()


@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_service_that_dies_while_the_controller_is_asked_finds_out(
    controller: Controller, tmp_path: Path, lost: str
) -> None:
    """As a test of it an answer is lost; what the service has in memory is lost with it."""
    controller.lose = [lost]
    with pytest.raises(AwayError):
        started(controller, tmp_path).reserve(JOB, wish(30), 0, 77)
    assert started(controller, tmp_path).reserve(JOB, wish(30), 0, 77)[1]["rate"] == 30
    assert controller.rates() == [30]
    controller.lose = ["", lost]
    with pytest.raises(AwayError):
        started(controller, tmp_path).reserve(JOB, wish(20), 0, 78)
    second = started(controller, tmp_path).reserve(JOB, wish(20), 0, 78)[1]["id"]
    assert (second.endswith("s78"), controller.rates()) == (True, [50])
    controller.lose = ["", lost]
    with pytest.raises(AwayError):
        started(controller, tmp_path).change(JOB, second, {"rate": 40, "duration": 60})
    assert started(controller, tmp_path).change(JOB, second, {"rate": 40, "duration": 60})[1]["rate"] == 40
    assert controller.rates() == [70]
    controller.lose = ["", lost]
    with pytest.raises(AwayError):
        started(controller, tmp_path).release(JOB, second)
    if lost == "before":
        assert started(controller, tmp_path).release(JOB, second)[0] == 200
    else:
        with pytest.raises(CallerError):
            started(controller, tmp_path).release(JOB, second)
    assert controller.rates() == [30]


def test_a_share_whose_process_died_before_is_given_back_after_its_time(controller: Controller, tmp_path: Path) -> None:
    now = 1000.0
    shares = started(controller, tmp_path, lambda: now)
    kept = shares.reserve(JOB, wish(20) | {"duration": 300}, 0)[1]["id"]
    shares.reserve(JOB, wish(30) | {"duration": 60}, 0)
    now += 50
    shares = started(controller, tmp_path, lambda: now)
    now += 59
    shares.change(JOB, kept, {"rate": 20, "duration": 300})
    assert controller.rates() == [50]
    now += 2
    shares.change(JOB, kept, {"rate": 20, "duration": 300})
    assert controller.rates() == [20]


def test_renewals_write_nothing(controller: Controller, tmp_path: Path) -> None:
    shares = started(controller, tmp_path)
    made = shares.reserve(JOB, wish(20), 0)[1]["id"]
    before = file_of(tmp_path).stat()
    for _ in range(3):
        assert shares.change(JOB, made, {"rate": 20, "duration": 60, "steady": False})[0] == 200
    assert file_of(tmp_path).stat() == before
    assert shares.change(JOB, made, {"rate": 20, "duration": 60, "steady": True})[0] == 200
    assert file_of(tmp_path).stat() != before


def test_no_file_stays_of_what_is_over(controller: Controller, tmp_path: Path) -> None:
    shares = started(controller, tmp_path)
    shares.reserve(JOB, wish(20), 0)
    shares.reserve(JOB, wish(20, OTHER), 0)
    assert shares.reserve(JOB, wish(100, "d" * 16), 0)[0] == 409
    assert {path.name for path in (tmp_path / "shares").iterdir()} == {
        file_of(tmp_path).name,
        file_of(tmp_path, OTHER).name,
    }
    shares.forget(JOB.id)
    assert list((tmp_path / "shares").iterdir()) == []
    # A job that has ended while no service was there.
    shares.reserve(JOB, wish(20, "e" * 16), 0)
    shares.resume(set())
    assert list((tmp_path / "shares").iterdir()) == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"id": 1}', '{"id": "", "whole": true, "shares": [], "over": [], "doubt": null}',
             '{"id": "0a", "whole": true, "shares": [[1, NaN, 60, false]], "over": [], "doubt": null}',
             '{"id": "0a/../b", "whole": true, "shares": [], "over": [], "doubt": null}',
             '{"id": "0a", "whole": true, "shares": [[1, 5]], "over": [], "doubt": null}']
)  # fmt: skip
def test_what_a_disk_has_damaged_is_removed_and_shares_are_known_from_their_renewals(
    controller: Controller, tmp_path: Path, text: str
) -> None:
    shares = started(controller, tmp_path)
    one, other = (shares.reserve(JOB, wish(rate), 0)[1]["id"] for rate in (20, 30))
    file_of(tmp_path).write_text(text)
    shares = started(controller, tmp_path)
    assert not file_of(tmp_path).exists()
    assert shares.change(JOB, one, {"rate": 20, "duration": 60})[0] == 200
    assert shares.change(JOB, other, {"rate": 30, "duration": 60})[0] == 200
    assert controller.rates() == [50]
    # From then on they are on disk again.
    shares = started(controller, tmp_path)
    assert shares.release(JOB, one)[0] == 200
    assert controller.rates() == [30]


def test_a_disk_that_takes_nothing_refuses_nobody(controller: Controller, tmp_path: Path) -> None:
    shares = started(controller, tmp_path)
    one = shares.reserve(JOB, wish(20), 0)[1]["id"]
    # In the place of the new file; root writes into any directory.
    (tmp_path / "shares" / f"{JOB.id}-{PEER}.new").mkdir()
    other = shares.reserve(JOB, wish(30), 0)[1]["id"]
    # What stands there of before would be wrong.
    assert not file_of(tmp_path).exists()
    assert [shares.release(JOB, share)[0] for share in (one, other)] == [200, 200]
    assert controller.rates() == []
