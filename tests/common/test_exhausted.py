"""Files that have changed while they could not be read."""

from __future__ import annotations

from lark_common.exhausted import AGAIN_SECONDS, Rereading


def test_a_change_that_could_not_be_read_is_read_some_seconds_later() -> None:
    now = [100.0]
    file = Rereading("old", lambda: now[0])
    assert not file.is_due("old")
    assert file.is_due("new")
    file.failed()
    assert not file.is_due("new")
    now[0] += AGAIN_SECONDS
    assert file.is_due("new")
    file.seen = "new"
    assert not file.is_due("new")
