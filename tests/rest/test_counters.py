"""The route by which an instance that stands by gets orders to read counters: for those of the present term alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lark_controller.accounting.shares.messages import LONGEST_ANSWER, GarbledError
from lark_controller.api.instances import Standing
from lark_controller.api.missed_switches import LONGEST_QUESTION
from lark_controller.rest.forwarding import questions as counters
from lark_controller.rest.forwarding.origin import HEADER, Head, Origin, sealed
from lark_controller.rest.forwarding.questions import (
    COUNTERS,
    MEDIA,
    READER,
    SWITCHES,
    Questions,
    authorization,
    is_good,
)
from tests.fixtures.fake_controls import bearer
from tests.rest.test_handed_on import AWAY, GENERATION, KEY, OTHER, Controller

READERS_ID = "00000000000000b0"
TERM = Standing(True, GENERATION, 0.0, key=KEY)


@pytest.fixture
def active(tmp_path: Path) -> Iterator[Controller]:
    with ExitStack() as ends:
        made = Controller(tmp_path / "a")
        ends.callback(made.server.stop)
        yield made


@pytest.fixture
def standby(tmp_path: Path, active: Controller) -> Iterator[Controller]:
    made = Controller(tmp_path / "b")
    made.stand_by(active.url)
    yield made
    made.server.stop()


def questions(standby: Controller) -> Questions:
    return Questions(standby.way, lambda: standby.controls.instances.place, COUNTERS, READERS_ID)


def refused(controller: Controller) -> float:
    return float(controller.metrics.counters_read.labels("refused")._value.get())


def test_an_answer_is_brought_and_an_order_given(active: Controller, standby: Controller) -> None:
    asks = questions(standby)
    active.controls.counters.order = b"\0order" * 20_000
    assert asks.ask(b"") == active.controls.counters.order
    assert asks.ask(b"\0answer\xff" * 50_000) == active.controls.counters.order
    assert active.controls.counters.answers == [(READERS_ID, b""), (READERS_ID, b"\0answer\xff" * 50_000)]
    assert refused(active) == 0


def ask(controller: Controller, body: str, signed: str | None = None, **changed: Any) -> int:
    """The status of a question whose header and field are as they should be, but for what is changed."""
    key, generation = str(changed.get("key", KEY)), int(str(changed.get("generation", GENERATION)))
    term = replace(TERM, key=changed.get("code", KEY), generation=changed.get("term", GENERATION))
    field = str(
        changed.get("field", authorization(term, COUNTERS, READERS_ID, (body if signed is None else signed).encode()))
    )
    head = Head("POST", str(changed.get("target", COUNTERS)), field)
    headers = {HEADER: sealed(key, generation, Origin(""), head), "Authorization": field, "Content-Type": MEDIA}
    headers[READER] = str(changed.get("reader", READERS_ID))
    if changed.get("bare"):
        del headers[HEADER]
    return controller.ask("POST", COUNTERS, body, headers)[0]


def test_whoever_has_not_the_terms_key_gets_nothing(active: Controller) -> None:
    assert ask(active, "answer") == 200
    taken = len(active.controls.counters.answers)
    # Of a header that no controller of this term has made the server is to hand on nothing at all.
    assert ask(active, "answer", key=OTHER) == 503
    assert ask(active, "answer", generation=GENERATION - 1) == 503
    assert ask(active, "answer", target="/v1/jobs") == 503
    assert ask(active, "answer", bare=True) == 403
    assert ask(active, "answer", bare=True, field=bearer("operate")["Authorization"]) == 403
    # Another key, term, body and instance's name, with a header that one which stands by has made for a stranger.
    assert ask(active, "answer", code=OTHER) == 403
    assert ask(active, "answer", term=GENERATION - 1) == 403
    assert ask(active, "answer", signed="another") == 403
    assert ask(active, "answer", reader="00000000000000c0") == 403
    assert ask(active, "answer", field=bearer("operate")["Authorization"]) == 403
    assert len(active.controls.counters.answers) == taken
    assert refused(active) == 10


def test_one_that_stands_by_hands_on_what_a_stranger_answers_and_the_active_one_takes_nothing_of_it(
    active: Controller, standby: Controller
) -> None:
    for key in (KEY[::-1], OTHER):
        field = authorization(replace(TERM, key=key), COUNTERS, READERS_ID, b"answer")
        headers = {"Authorization": field, "Content-Type": MEDIA, READER: READERS_ID}
        assert standby.ask("POST", COUNTERS, "answer", headers)[0] == 403
    assert standby.counted("answered") == 2
    assert active.controls.counters.answers == []
    assert refused(active) == 2


def test_another_form_of_accounts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    field = authorization(TERM, COUNTERS, READERS_ID, b"answer")
    assert is_good(field, TERM, COUNTERS, READERS_ID, b"answer")
    assert not is_good(field, TERM, SWITCHES, READERS_ID, b"answer")
    for other in (replace(TERM, active=False), replace(TERM, key=""), replace(TERM, generation=GENERATION + 1)):
        assert not is_good(field, other, COUNTERS, READERS_ID, b"answer")
    for name in ("FORMAT", "__version__"):
        with monkeypatch.context() as patch:
            patch.setattr(counters, name, "other")
            assert not is_good(field, TERM, COUNTERS, READERS_ID, b"answer")


def test_a_body_that_is_too_long_or_no_answer_is_refused(
    active: Controller, standby: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert questions(standby).ask(bytes(LONGEST_ANSWER + 1)) is None
    assert active.controls.counters.answers == []
    active.controls.error = GarbledError("cut short")
    assert ask(active, "answer") == 400
    assert questions(standby).ask(b"answer") is None
    active.controls.error = None
    # Of an answer without end no more is taken than an order may have.
    active.controls.counters.order = bytes(LONGEST_ANSWER + 1)
    assert questions(standby).ask(b"") is None


def test_one_that_stands_by_or_is_active_itself_gives_and_asks_for_nothing(
    active: Controller, standby: Controller
) -> None:
    assert ask(standby, "answer") == 503
    assert standby.controls.counters.answers == []
    assert questions(active).ask(b"") is None
    standby.stand_by(AWAY)
    assert questions(standby).ask(b"") is None
    standby.controls.instances.place = Standing(False, GENERATION, 0.0, "a", active.url, "stands by", "")
    assert questions(standby).ask(b"") is None
    assert active.controls.counters.answers == []


def test_switches_are_asked_for_on_a_path_of_their_own(active: Controller, standby: Controller) -> None:
    asks = Questions(standby.way, lambda: standby.controls.instances.place, SWITCHES, READERS_ID)
    assert asks.ask(bytes(16)) == active.controls.missed_switches.order
    assert active.controls.missed_switches.answers == [(READERS_ID, bytes(16))]
    assert asks.ask(bytes(LONGEST_QUESTION + 8)) is None
    # A code of the one path is none of the other.
    field = authorization(TERM, COUNTERS, READERS_ID, bytes(16))
    headers = {HEADER: sealed(KEY, GENERATION, Origin(""), Head("POST", SWITCHES, field)), "Authorization": field}
    headers |= {"Content-Type": MEDIA, READER: READERS_ID}
    assert active.ask("POST", SWITCHES, bytes(16).decode(), headers)[0] == 403
    assert active.ask("POST", SWITCHES, bytes(16).decode(), bearer("operate"))[0] == 403
    active.controls.error = ValueError("15 bytes")
    assert asks.ask(bytes(15)) is None
    assert len(active.controls.missed_switches.answers) == 1
