"""The table of ``docs/reference/several-controllers.md``, a line a test."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from lark_common import controllers as several
from lark_common.client import Client, ProblemError, UnreachableError
from lark_common.controllers import urls
from lark_common.errors import SettingError
from tests.fixtures.hook import StandIn, reply
from tests.fixtures.several import CLOSED, controllers, dies, listed, problem, standby

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "several-controllers.md"
LISTS = ("jobs", "switches", "tokens", "workers")
OK = reply(200, json.dumps({"status": "ok", "next_cursor": None, "ready": True} | {name: [] for name in LISTS}))
ID = "0" * 16
# Every call of a client but those that read, and some of these.
CALLS: dict[str, Callable[[Client], Any]] = {
    "register": lambda client: client.register("ad"),
    "renew": lambda client: client.renew(ID),
    "renew_all": lambda client: client.renew_all("host", [ID]),
    "end": lambda client: client.end(ID),
    "forged": lambda client: client.forged(ID, "detail"),
    "limited": lambda client: client.limited(ID, "detail"),
    "lift": lambda client: client.lift(ID),
    "put_policy": lambda client: client.put_policy("version: 1"),
    "restore_policy": lambda client: client.restore_policy(1),
    "check_policy": lambda client: client.check_policy("version: 1"),
    "plan_policy": lambda client: client.plan_policy("version: 1"),
    "confirm_rules": lambda client: client.confirm_rules("host", "1"),
    "confirm_external_translations": lambda client: client.confirm_external_translations({}),
    "delivered": lambda client: client.delivered("host", 1, ()),
    "counters": lambda client: client.counters(ID, {}),
    "transfers": lambda client: client.transfers("host", {}),
    "marks": lambda client: client.marks("host", ()),
    "drain": lambda client: client.drain("lark1"),
    "reserve": lambda client: client.reserve(ID, "wan", 1.0),
    "change_reservation": lambda client: client.change_reservation("1", rate=2.0),
    "release": lambda client: client.release("1"),
    "associate_external_address": lambda client: client.associate_external_address(ID),
    "release_external_address": lambda client: client.release_external_address(ID),
    "add_join_token": lambda client: client.add_join_token(["host"], 60.0),
    "remove_join_token": lambda client: client.remove_join_token("1"),
    "revoke_joined_worker": lambda client: client.revoke_joined_worker("worker1"),
    "join": lambda client: client.join("host", "0", None),
    "use_of": lambda client: client.use_of("host", [ID]),
    "jobs": lambda client: list(client.jobs()),
    "switches": lambda client: client.switches(),
    "worker_rules": lambda client: client.worker_rules("host", "", 1.0),
    "ready": lambda client: client.ready(),
}
ONCE = {"add_join_token", "forged", "limited", "reserve"}
# A state of the first controller, and whether it may have done what it was asked.
STATES = {
    "standby": False,
    "refused": False,
    "TLS": False,
    "hangs": True,
    "database": True,
    "proxy": True,
    "dies": True,
    "nonsense": True,
}


def client(found: list[StandIn], timeout: float = 2.0) -> Client:
    return Client(listed(found), "token", timeout=timeout)


@pytest.mark.parametrize("state", STATES)
def test_what_may_be_asked_again_is_answered_by_the_other_one(state: str) -> None:
    with controllers(OK, state, "answers") as (first, second):
        asking = client([first, second])
        assert asking.register("ad")["status"] == "ok"
        assert [each.method for each in second.asked] == ["POST"]
        asked = len(first.asked)
        asking.register("ad")
        assert (len(first.asked), len(second.asked)) == (asked, 2), "the one that answered last is asked first"


@pytest.mark.parametrize("state", STATES)
def test_what_may_not_be_asked_again_goes_on_where_nothing_was_done(state: str) -> None:
    with controllers(OK, state, "answers") as found:
        if STATES[state] and state != "nonsense":
            with pytest.raises(UnreachableError if state in ("hangs", "dies") else ProblemError):
                client(found).reserve(ID, "wan", 1.0)
        elif STATES[state]:
            with pytest.raises(UnreachableError, match="does not answer as"):
                client(found).reserve(ID, "wan", 1.0)
        else:
            client(found).reserve(ID, "wan", 1.0)
        assert len(found[1].asked) == (0 if STATES[state] else 1)


@pytest.mark.parametrize("call", CALLS)
def test_each_call_is_asked_again_or_not(call: str) -> None:
    with controllers(OK, "dies", "answers") as found:
        if call in ONCE:
            with pytest.raises(UnreachableError):
                CALLS[call](client(found))
        else:
            CALLS[call](client(found))
        assert len(found[1].asked) == (0 if call in ONCE else 1)


def test_the_page_has_every_call_that_changes_something() -> None:
    writes = {"POST", "PUT", "PATCH", "DELETE"}
    source = (Path(__file__).parents[2] / "lark_common" / "client.py").read_text("utf-8")
    bodies = re.split(r"\n    def ", source)[1:]
    changing = {body.split("(")[0] for body in bodies if any(f'"{word}"' in body for word in writes)}
    assert ONCE <= changing <= set(CALLS)
    table = PAGE.read_text("utf-8").partition("## Which requests are made again")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| [^|]* \| (yes|no)", table, re.M))
    assert rows == {name: "no" if name in ONCE else "yes" for name in changing}


@pytest.mark.parametrize("states", [("refused", "hangs"), ("dies", "TLS", "refused"), ("hangs", "hangs", "hangs")])
def test_where_none_answers_the_error_names_each(states: tuple[str, ...]) -> None:
    with controllers(OK, *states) as found:
        began = time.monotonic()
        with pytest.raises(UnreachableError) as caught:
            client(found, 1.5).register("ad", wait=0.5)
        # A bound for a busy machine: those that hang hang for ever.
        assert time.monotonic() - began < 60
        assert all(each.url in str(caught.value) for each in found)


@pytest.mark.parametrize("states", [("standby", "database"), ("database", "standby"), ("database", "refused")])
def test_an_active_one_without_database_says_so_at_once(states: tuple[str, ...]) -> None:
    with controllers(OK, *states) as found, pytest.raises(ProblemError, match="This is store"):
        client(found, 30).register("ad")
    assert [len(each.asked) for each in found if each.url != CLOSED] == [1] * (2 - states.count("refused"))


def test_a_refusal_is_an_answer() -> None:
    with controllers(problem("ad", 422), "answers", "answers") as found:
        with pytest.raises(ProblemError, match="This is ad"):
            client(found).register("ad")
        assert not found[1].asked


@pytest.mark.parametrize("several", [False, True])
def test_one_that_stands_by_is_waited_for(several: bool) -> None:
    with controllers(OK, "standby", *(["refused"] if several else [])) as found:
        found[0].answers += [standby(), OK]
        assert client(found, 30).reserve(ID, "wan", 1.0)
        assert len(found[0].asked) == 3
    with controllers(OK, "standby") as found:
        with pytest.raises((ProblemError, UnreachableError), match="This is standby"):
            client(found, 1.5).switches()
        assert len(found[0].asked) in (1, 2)


def test_the_active_one_that_is_named_is_next_if_it_is_configured() -> None:
    with controllers(OK, "standby", "answers", "answers") as found:
        found[0].answers = [standby(found[2].url + "/")]
        client(found).switches()
        assert [len(each.asked) for each in found] == [1, 0, 1]


@pytest.mark.parametrize("named", [7, ["a"], "http://[", "x" * 1_000_000, None])
def test_an_answer_leads_to_no_other_url(named: object) -> None:
    with controllers(OK, "standby", "answers", "answers") as (lying, honest, stranger):
        for active in (stranger.url, named):
            lying.answers = [problem("standby", active=active)]
            client([lying, honest]).switches()
        assert (len(honest.asked), len(stranger.asked)) == (2, 0)


def test_the_time_that_a_controller_may_hold_a_request_is_for_all_together() -> None:
    with controllers(OK, "hangs", "answers") as found:
        client(found, 2.0).register("ad", wait=1.0)
        waits = [float(parse_qs(urlsplit(each.asked[0].path).query)["wait"][0]) for each in found]
    # Of the two seconds and one more each has a part, the second one what is left.
    assert waits[1] <= 0.5 < waits[0] <= 1.0


@pytest.fixture
def polled() -> Iterator[tuple[StandIn, StandIn]]:
    with controllers(OK, "hangs", "answers") as (first, second):
        yield first, second


def test_a_poll_at_a_controller_that_is_stopped_moves_with_the_next_call(polled: tuple[StandIn, StandIn]) -> None:
    asking = client(list(polled), timeout=2.0)
    answers: list[Any] = []
    poll = threading.Thread(target=lambda: answers.append(asking.worker_rules("host", "", 600.0)))
    poll.start()
    while not polled[0].asked:
        time.sleep(0.01)
    asking.register("ad")
    poll.join(60)
    assert answers
    assert sorted(each.method for each in polled[1].asked) == ["GET", "POST"]


def test_one_that_stands_still_is_left_long_before_its_part_of_the_time_is_over() -> None:
    with controllers(OK, "hangs", "answers") as (still, other):
        asking, began = client([still, other], timeout=600.0), time.monotonic()
        assert asking.switches() == []
        # A bound for a busy machine: its part of the time is 300 s.
        assert time.monotonic() - began < 60
        assert [each.path for each in still.asked] == ["/v1/switches", "/healthz"]


def test_one_that_lives_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "SILENT_SECONDS", 0.1)
    with controllers(OK, "answers", "answers") as (slow, other):

        def slowly(handler: Any) -> None:
            while sum(each.path == "/healthz" for each in slow.asked) < 3:
                time.sleep(0.01)
            OK(handler)

        slow.answers = [slowly, OK]
        assert client([slow, other], timeout=600.0).switches() == []
        assert not other.asked


@pytest.mark.parametrize("call", sorted(ONCE))
def test_what_may_not_be_asked_again_is_not_given_up(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several, "LIVES_SECONDS", 0.1)
    with controllers(OK, "hangs", "answers") as (still, other):
        began = time.monotonic()
        with pytest.raises(UnreachableError):
            CALLS[call](client([still, other], timeout=3.0))
        assert time.monotonic() - began >= 1.5
        assert (len(still.asked), len(other.asked)) == (1, 0)


def test_two_that_die_in_turn() -> None:
    with controllers(OK, "answers", "answers") as found:
        asking = client(found)
        for turn in range(6):
            dead, alive = found[turn % 2], found[1 - turn % 2]
            dead.answers, alive.answers = [dies], [OK]
            before = len(alive.asked)
            asking.register("ad")
            assert len(alive.asked) == before + 1


def test_lists_of_urls() -> None:
    assert urls(" http://a,https://b/ ,\thttp://a\nunix:/c ") == ("http://a", "https://b/", "unix:/c")
    for none in ("", " , "):
        with pytest.raises(SettingError):
            urls(none)
    with pytest.raises(SettingError, match="ftp://b"):
        Client("http://a,ftp://b")
