"""Shares of reserved flows outlive the worker service, at whatever moment it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lark_worker.errors import AwayError, CallerError
from lark_worker.life.shares import MOST_FLOWS
from lark_worker.records import shares as files
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
             '{"id": 10, "whole": true, "shares": [[1, 20, 60, false]], "over": [], "doubt": null}',
             '{"id": null, "whole": true, "shares": [[1, 20, 60, false]], "over": [], "doubt": null}',
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


def test_a_job_that_asks_for_ever_others_has_so_many_files(controller: Controller, tmp_path: Path) -> None:
    """As while the controller is away: nobody knows yet which of them are there."""
    now = 1000.0
    shares = started(controller, tmp_path, lambda: now)
    kept = shares.reserve(JOB, wish(20) | {"duration": 3600}, 0)[1]["id"]
    for number in range(2 * MOST_FLOWS):
        controller.lose = ["after" if number % 2 else "before"]
        now += 0.2
        with pytest.raises(AwayError):
            shares.reserve(JOB, wish(0.001, f"{number:016x}"), 0, 7)
    assert len(list((tmp_path / "shares").iterdir())) == MOST_FLOWS
    assert sum(map(len, shares._flows.values())) == MOST_FLOWS
    # One that has been asked for lately is still found, and one in whose place another came is known from its renewal.
    last = f"{2 * MOST_FLOWS - 1:016x}"
    shares.release(JOB, shares.reserve(JOB, wish(0.001, last), 0, 7)[1]["id"])
    assert last not in {each["peer"] for each in controller.reserved.values()}
    assert shares.change(JOB, kept, {"rate": 20, "duration": 3600})[0] == 200
    assert shares.release(JOB, kept)[0] == 200
    assert PEER not in {each["peer"] for each in controller.reserved.values()}


def test_shares_that_are_over_make_room_first(controller: Controller, tmp_path: Path) -> None:
    now = 1000.0
    shares = started(controller, tmp_path, lambda: now)
    shares.reserve(JOB, wish(20) | {"duration": 3600}, 0)
    for number in range(MOST_FLOWS):
        shares.reserve(JOB, wish(0.001, f"{number:016x}"), 0, 7)
        now += 1.0
    assert file_of(tmp_path).exists()
    assert not file_of(tmp_path, f"{0:016x}").exists()


@pytest.mark.parametrize("answer", ["", "after"])
def test_a_request_that_is_under_way_at_the_end_of_its_job_leaves_no_file(
    controller: Controller, tmp_path: Path, answer: str
) -> None:
    over, link = False, controller.passed
    shares = started(controller, tmp_path, is_live=lambda _job: not over)

    def ends(call: Callable[[Any], dict[str, Any]]) -> tuple[int, dict[str, Any]]:
        nonlocal over
        if not over:
            over = True
            shares.forget(JOB.id)
        return link(call)

    controller.lose = [answer]
    controller.passed = ends  # type: ignore[method-assign]
    with contextlib.suppress(AwayError):
        shares.reserve(JOB, wish(20), 0)
    # One that had come in before it, and begins now.
    with contextlib.suppress(AwayError):
        shares.reserve(JOB, wish(20, OTHER), 0)
    assert list((tmp_path / "shares").iterdir()) == []
    assert shares._flows == {}


def test_a_flow_whose_shares_come_and_go_keeps_a_small_file(tmp_path: Path) -> None:
    """Of one that was reserved by itself, so that the service takes it for one of a former run."""
    flow = files.SharedFlow((JOB.id, PEER), "0a", whole=False)
    for number in range(10**12 - 9999, 10**12):
        flow.become({number: files.Share(1.0, 60.0, 60.0, False)})
    files.ShareFiles(tmp_path / "shares").write(flow)
    assert file_of(tmp_path).stat().st_size < 20_000
    assert not flow.may_be_unknown(5)


def test_a_full_disk_is_told_once(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shares = started(controller, tmp_path)

    def full(_fd: int, _mode: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        # When the new file is there already.
        patch.setattr(os, "fchmod", full)
        for peer in (PEER, OTHER):
            shares.reserve(JOB, wish(20, peer), 0)
        assert list((tmp_path / "shares").iterdir()) == []
    assert [record.message for record in caplog.records].count("shares of a reservation cannot be kept on disk") == 1
    shares.reserve(JOB, wish(20), 0)
    assert file_of(tmp_path).exists()


def test_a_disk_that_has_become_read_only_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "read-only", str(folder)], check=True)
    try:
        kept = files.ShareFiles(folder)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        for number in range(3):
            kept.write(files.SharedFlow((JOB.id, PEER), "0a", whole=True, over={number}))
            kept.remove((JOB.id, OTHER))
    finally:
        subprocess.run(["umount", str(folder)], check=True)
    assert [record.message for record in caplog.records] == ["shares of a reservation cannot be kept on disk"]


def test_the_receivers_that_a_job_names_are_not_interned(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.12.0 to 3.12.6 keep each interned text for ever, such as the parts of a ``Path``."""
    shares = started(controller, tmp_path)
    interned: list[str] = []

    def intern(text: str) -> str:
        interned.append(text)
        return text

    with monkeypatch.context() as patch:
        patch.setattr(sys, "intern", intern)
        shares.release(JOB, shares.reserve(JOB, wish(20), 0)[1]["id"])
        assert shares.reserve(JOB, wish(1000, OTHER), 0)[0] == 409
    assert [text for text in interned if PEER in text or OTHER in text] == []
