"""The policy file while the controller runs: read when it changes and when somebody asks, whatever goes wrong."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from lark_common.errors import PolicyError, StoreError
from lark_controller.api.instances import Term, Why
from lark_controller.api.metrics import Metrics
from lark_controller.api.policy import PolicyVersion
from lark_controller.cli import run as app
from lark_controller.controller import Controller
from lark_controller.policies.file import load
from lark_controller.services import policy_file as policy_source
from lark_controller.services.policy_file import FILE_ACTOR, PolicyFile, first_policy
from lark_controller.settings import load as settings
from lark_controller.store import Store
from tests.fixtures.controllers import OPEN, OPTIONS, POLICY, until
from tests.fixtures.databases import sqlite_with_tables
from tests.fixtures.descriptors import no_descriptors

MISTAKE = "version: 1\npolicies: [{blok: {}}]\n"


class Watched:
    """A policy file that is watched, and what it was answered with; ``away`` is raised instead where it is set."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.taken: SimpleQueue[str] = SimpleQueue()
        self.away: Exception | None = None
        self.tries = 0
        self.file = PolicyFile(path, self.put)

    def put(self, text: str, actor: str) -> PolicyVersion:
        assert actor == FILE_ACTOR
        self.tries += 1
        if self.away is not None:
            raise self.away
        digest = load(text).digest
        self.taken.put(text)
        return PolicyVersion(2, text, digest, 0.0, actor)


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(policy_source, "WATCH_SECONDS", 0.05)
    (tmp_path / "policy.yaml").write_text(OPEN)
    made = Watched(tmp_path / "policy.yaml")
    made.file.start()
    yield made
    made.file.stop()


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(record.__dict__["lark_fields"].get("error")) for record in caplog.records if record.levelno >= 40]


def test_a_file_that_is_written_again_as_it_was_takes_nothing_back(watched: Watched) -> None:
    os.utime(watched.path)
    other = watched.path.with_name("copy")
    other.write_text(OPEN)
    other.replace(watched.path)
    watched.path.write_text(POLICY)
    assert watched.taken.get(timeout=20) == POLICY
    # What was put over REST meanwhile stays, unless somebody asks for the file.
    os.utime(watched.path)
    watched.path.write_text(OPEN)
    assert watched.taken.get(timeout=20) == OPEN
    watched.file.reload()
    assert watched.taken.get(timeout=20) == OPEN
    assert watched.tries == 3


def test_a_change_and_a_request_are_followed(watched: Watched) -> None:
    watched.file.reload()
    assert watched.taken.get(timeout=20) == OPEN
    watched.path.write_text(POLICY)
    assert watched.taken.get(timeout=20) == POLICY


def test_a_request_without_a_file_is_answered_in_the_log(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.path.unlink()
    watched.file.reload()
    until(lambda: any("cannot be read" in error for error in told(caplog)))
    watched.path.write_text(POLICY)
    assert watched.taken.get(timeout=20) == POLICY


def test_while_the_database_is_away_it_is_tried_again_and_said_once(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.away = StoreError("the database is away")
    watched.path.write_text(POLICY)
    until(lambda: watched.tries >= 3)
    assert told(caplog) == ["the database is away"]
    watched.away = None
    assert watched.taken.get(timeout=20) == POLICY


def test_a_change_while_no_descriptor_is_left_is_read_once_there_is_one(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    watched.path.write_text(POLICY)
    with no_descriptors():
        until(lambda: any("Too many open files" in error for error in told(caplog)))
    assert watched.taken.get(timeout=20) == POLICY


def test_neither_a_mistake_nor_what_nobody_has_thought_of_ends_the_watch(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(PolicyError):
        load(MISTAKE)
    watched.path.write_text(MISTAKE)
    until(lambda: any("blok" in error for error in told(caplog)))
    watched.away = ZeroDivisionError("a mistake")
    watched.path.write_text(OPEN)
    until(lambda: "ZeroDivisionError: a mistake" in told(caplog))
    watched.away = None
    watched.path.write_text(POLICY)
    assert watched.taken.get(timeout=20) == POLICY


def test_a_reload_that_comes_during_the_start_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    class Starting:
        won, serves = True, False
        term = Term(1, 0.0, Why.FIRST)

        def __init__(self, _settings: object, notify: Callable[[int], None], lost: object) -> None:
            os.kill(os.getpid(), signal.SIGHUP)
            happened.append("made")
            self.notify = notify
            self.alive = lambda: True
            self.policy_file = SimpleNamespace(reload=lambda: happened.append("reloaded"))

        def stand_by(self) -> None:
            self.notify(app.WON)

        def serve(self) -> None:
            happened.append("started")
            self.serves = True
            os.kill(os.getpid(), signal.SIGTERM)

        def stop(self, why: Why) -> None:
            happened.append(f"stopped: {why}")

    monkeypatch.setattr(app, "Service", Starting)
    before = {number: signal.getsignal(number) for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
    try:
        assert app.run(settings({})) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert happened == ["made", "started", "reloaded", "stopped: released"]


def test_a_file_counts_where_it_was_changed_and_an_old_one_rolls_nothing_back(store: Store, tmp_path: Path) -> None:
    """Texts are numbered by their age; each line is a start, and what is in force after it."""
    path = tmp_path / "policy.yaml"
    texts = [f"{OPEN}# {number}\n" for number in range(6)]

    def starts(instance: str, file: int) -> int:
        path.write_text(texts[file])
        return texts.index(first_policy(store, path, instance).text)

    def put(number: int) -> None:
        store.trail.put_policy(texts[number], load(texts[number]).digest, "operator", 0.0)

    assert starts("a", 1) == 1
    assert starts("a", 1) == 1
    # Alone, it may go back by its file.
    assert starts("a", 2) == 2
    assert starts("a", 1) == 1
    put(3)
    assert starts("a", 1) == 3
    # Another has a file that it has never read here, old or new; then it is changed, to an old text, and to a new one.
    assert starts("c", 0) == 3
    assert starts("b", 1) == 3
    assert starts("b", 2) == 3
    assert starts("b", 4) == 4
    # The first one's file has not changed; then it has, to an old text; then to a new one.
    assert starts("a", 1) == 4
    assert starts("a", 2) == 4
    assert starts("a", 5) == 5
    assert starts("b", 4) == 5


def test_of_a_database_from_before_instances_the_file_counts_as_before(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(OPEN)
    store.trail.put_policy(OPEN, load(OPEN).digest, FILE_ACTOR, 0.0)
    store.trail.put_policy(POLICY, load(POLICY).digest, "operator", 0.0)
    assert first_policy(store, path, "a").text == POLICY


def test_a_stored_policy_with_a_hidden_rule_is_followed_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It was accepted once: a controller that has it in its database starts."""
    text = f"{OPEN}# harmless\u2028groups: {{default: {{ceiling: 5}}}}\n"
    store = Store.open(sqlite_with_tables(tmp_path / "lark.db"))
    version = store.trail.put_policy(text, load(text, stored=True).digest, "operator", 0.0)
    (tmp_path / "policy.yaml").write_text(text)
    assert first_policy(store, tmp_path / "policy.yaml", "a") == version
    controller = Controller(store, version, OPTIONS, Metrics())
    controller.start()
    try:
        assert [each.name for each in controller.policy.policy.groups] == ["default"]
        with pytest.raises(PolicyError, match=r"line 5.*U\+2028"):
            controller.policy.put(f"{text}# again\n", "operator")
    finally:
        controller.stop()
        store.close()
    warned = [record.__dict__["lark_fields"] for record in caplog.records if "refused in a new one" in record.message]
    assert [(each["version"], each["line"]) for each in warned] == [(1, 5)]
