"""Files that have changed while they could not be read."""

from __future__ import annotations

from lark_common.rereading import AGAIN_SECONDS, Rereading


def test_a_change_that_could_not_be_read_is_read_some_seconds_later() -> None:
    now = [100.0]
    file = Rereading("old", lambda: now[0])
    assert not file.is_due("old")
    assert file.is_due("new")
    assert file.failed("new", OSError("no descriptor"), again=True)
    assert not file.is_due("new")
    now[0] += AGAIN_SECONDS
    assert file.is_due("new")
    file.done("new")
    assert not file.is_due("new")


def test_a_file_that_stays_unreadable_is_logged_once_for_each_reason() -> None:
    file = Rereading("old")
    reasons = ("denied", "denied", "no descriptor", "denied")
    logged = [file.failed("new", OSError(reason), again=True) for reason in reasons]
    assert logged == [True, False, True, True]
    file.done("new")
    assert file.failed("newer", OSError("denied"), again=True)


def test_a_file_whose_content_is_bad_is_read_again_when_it_changes_and_each_time_logged() -> None:
    file = Rereading("old")
    for mark in ("new", "newer"):
        assert file.is_due(mark)
        assert file.failed(mark, ValueError("no tokens"), again=False)
        assert not file.is_due(mark)
