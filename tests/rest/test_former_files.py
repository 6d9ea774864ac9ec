"""The files of join tokens of a former release: taken over into the database once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lark_common.errors import SettingError
from lark_controller.api.joins import Joined, JoinedWorker
from lark_controller.rest.joins.former_files import JOINS, TAKEN, WORKERS, FormerFiles
from lark_controller.rest.joins.joined_workers import JoinedWorkers
from lark_controller.store import Store
from tests.fixtures.databases import sqlite_with_tables

NOW = 1_700_000_000.0
A, B, S = "a" * 64, "b" * 64, "5" * 64
# As the former release has written them.
TOKENS = {
    "0123456789ab": {
        "sha256": S,
        "expires": NOW + 3600,
        "actor": "alice",
        "hosts": {"worker1.example": {"at": NOW - 60, "peer": "10.0.0.1", "sha256": A}, "worker2.example": None},
    },
    "ba9876543210": {"sha256": "6" * 64, "expires": NOW - 1, "actor": "alice", "hosts": {"worker3.example": None}},
}
LINES = f"""\
worker1.example: {{sha256: {A}, scopes: [hook], hosts: [worker1.example]}}
worker9.example: {{sha256: {B}, scopes: [hook], hosts: [worker9.example]}}
"""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(sqlite_with_tables(tmp_path / "lark.db"))
    yield opened
    opened.close()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    directory = tmp_path / "state"
    directory.mkdir()
    write(directory)
    return directory


def write(directory: Path, lines: str = LINES) -> None:
    for name, content in ((JOINS, json.dumps(TOKENS)), (WORKERS, lines)):
        (directory / name).write_text(content)
        (directory / name).chmod(0o600)


def files(directory: Path) -> Iterator[str]:
    return iter(sorted(path.name for path in directory.iterdir()))


def take(state: Path, store: Store) -> None:
    FormerFiles(state, lambda: NOW).take(store.joins, "a")


def test_what_they_have_is_taken_over_and_they_get_another_name(state: Path, store: Store) -> None:
    written = (state / WORKERS).stat().st_mtime
    take(state, store)
    assert list(files(state)) == [JOINS + TAKEN, WORKERS + TAKEN]
    (token,) = store.joins.listed(NOW)
    assert (token.id, token.sha256, token.expires, token.actor) == ("0123456789ab", S, NOW + 3600, "alice")
    assert token.hosts == {"worker1.example": Joined(NOW - 60, "10.0.0.1", A), "worker2.example": None}
    assert store.joins.workers() == (
        JoinedWorker("worker1.example", A, NOW - 60, "10.0.0.1", "0123456789ab"),
        JoinedWorker("worker9.example", B, written),
    )
    known = JoinedWorkers(store.joins, lambda: NOW)
    known.refresh()
    assert known.join_id(S) == "0123456789ab"
    found = known.find(B)
    assert found is not None
    assert (found.name, found.hosts) == ("worker9.example", ("worker9.example",))


def test_a_second_time_changes_nothing(state: Path, store: Store) -> None:
    take(state, store)
    store.joins.revoke("worker9.example", "alice", NOW)
    before = store.joins.workers(), store.joins.listed(NOW), len(store.trail.page("joins", None, 100).entries)
    # The rename was lost, or another machine has a copy.
    write(state)
    take(state, store)
    assert (store.joins.workers(), store.joins.listed(NOW)) == before[:2]
    assert len(store.trail.page("joins", None, 100).entries) == before[2]
    assert list(files(state)) == [JOINS + TAKEN, WORKERS + TAKEN]
    # And without files nothing is asked for.
    take(state, store)
    take(state.parent / "none", store)


def test_a_file_that_goes_before_the_takeover_counts_no_longer(state: Path, store: Store) -> None:
    found = FormerFiles(state, lambda: NOW)
    (state / WORKERS).unlink()
    found.take(store.joins, "a")
    assert store.joins.workers() == ()
    assert list(files(state)) == [JOINS + TAKEN]


@pytest.mark.parametrize("content", ["[]", "{", '{"a": 1}', '{"a": {"sha256": 1}}', "nul\0"])
def test_a_file_that_is_none_is_refused_at_the_start(state: Path, content: str) -> None:
    (state / JOINS).write_text(content)
    with pytest.raises(SettingError, match=r"joins\.json: it has no join tokens; remove the file"):
        FormerFiles(state)


@pytest.mark.parametrize(
    "line",
    [
        f"boss: {{sha256: {A}, scopes: [operate]}}",
        f"every: {{sha256: {A}, scopes: [hook]}}",
        f"worker1.example: {{sha256: {A}, scopes: [hook], hosts: [worker2.example]}}",
        f"worker1.example: {{sha256: {A}, scopes: [hook], hosts: [worker1.example], expires: 2999-01-01}}",
    ],
)
def test_a_line_that_joining_has_not_made_is_not_lost(state: Path, line: str) -> None:
    write(state, f"{line}\n")
    with pytest.raises(SettingError, match=r"joining has not made this line; move it into tokens\.yaml"):
        FormerFiles(state)


def test_a_file_that_others_may_read_is_refused(state: Path) -> None:
    (state / WORKERS).chmod(0o640)
    with pytest.raises(SettingError, match="group or others may read"):
        FormerFiles(state)
