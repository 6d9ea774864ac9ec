"""The hook with the URLs of several controllers: ``docs/reference/several-controllers.md``."""

from __future__ import annotations

import os

import pytest

from tests.fixtures.hook import ACCEPTED, ID, TOKEN, Hook, reply
from tests.fixtures.several import CLOSED, controllers, listed, problem, standby

OK = reply(201, ACCEPTED)


@pytest.mark.parametrize("state", ["standby", "refused", "hangs", "TLS", "database", "proxy", "dies"])
def test_a_start_is_answered_by_the_other_one_without_a_retry(hook: Hook, state: str) -> None:
    with controllers(OK, state, "answers") as found:
        outcome = hook.run("start", url=listed(found), LARK_RETRIES="0", LARK_TIMEOUT="8")
        assert outcome.ad["LarkJobId"] == ID
        assert len(found[1].asked) == 1
        assert found[1].asked[0].headers["Authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize("action", ["update", "exit"])
def test_the_end_and_the_renewal_move_too(hook: Hook, action: str) -> None:
    with controllers(reply(200, ACCEPTED), "dies", "answers") as found:
        hook.run(action, url=" , ".join(each.url for each in found), LARK_RETRIES="0")
        assert [each.path for each in found[0].asked] == [each.path for each in found[1].asked]


def test_a_refusal_is_an_answer(hook: Hook) -> None:
    with controllers(problem("ad", 422), "answers", "answers") as found:
        assert hook.run("start", url=listed(found)).ad["HookStatusCode"] == 10
        assert not found[1].asked


def test_one_that_stands_by_is_waited_for_without_a_retry(hook: Hook) -> None:
    with controllers(OK, "standby") as found:
        found[0].answers += [standby(), OK]
        outcome = hook.run("start", url=f"{CLOSED} {found[0].url}/", LARK_RETRIES="0")
        assert outcome.ad["LarkJobId"] == ID
        assert len(found[0].asked) == 3


def test_one_that_stands_by_for_ever_is_waited_for_until_the_time_is_over(hook: Hook) -> None:
    with controllers(OK, "standby", "standby") as found:
        outcome = hook.run("start", url=listed(found), LARK_TIMEOUT="3", LARK_RETRIES="0")
        assert "standby" in str(outcome.ad["LarkReason"])
        assert 1 <= len(found[1].asked) <= 4


def test_a_time_of_day_that_is_set_back_makes_nobody_wait_for_longer(hook: Hook) -> None:
    programs, asked = hook.folder / "programs", hook.folder / "asked"
    programs.mkdir()
    # The first answer is a day after all others.
    script = f"#!/bin/sh\nif [ -e {asked} ]; then echo 1700000000; else : >{asked}; echo 1700086400; fi\n"
    (programs / "date").write_text(script)
    (programs / "date").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    with controllers(OK, "standby") as found:
        outcome = hook.run("start", url=listed(found), LARK_TIMEOUT="2", LARK_RETRIES="0", PATH=path, limit=20)
        assert "standby" in str(outcome.ad["LarkReason"])


def test_retries_go_over_all(hook: Hook) -> None:
    with controllers(OK, "dies", "dies", "standby") as found:
        found[2].answers = [problem("store")]
        hook.run("start", url=listed(found), LARK_RETRIES="1")
        assert [len(each.asked) for each in found] == [2, 2, 2]


def test_the_one_that_answered_is_asked_first_for_the_second_id(hook: Hook) -> None:
    (hook.folder / "scratch" / ".lark_job_id.slot1_2").write_text("0123456789abcdef\n")
    with controllers(reply(404), "dies", "answers") as found:
        hook.run("exit", url=listed(found))
        assert [len(each.asked) for each in found] == [1, 2]


def test_an_answer_leads_to_no_other_url(hook: Hook) -> None:
    with controllers(OK, "standby", "answers", "answers") as (lying, honest, stranger):
        lying.answers = [standby(stranger.url)]
        hook.run("start", url=listed([lying, honest]))
        assert (len(honest.asked), len(stranger.asked)) == (1, 0)


def test_what_stands_in_a_list_is_no_pattern(hook: Hook) -> None:
    outcome = hook.run("start", url="http://* /*")
    assert "LARK_URL: /* does not begin with" in str(outcome.ad["LarkReason"])


def test_all_that_hang_take_the_time_of_one(hook: Hook) -> None:
    with controllers(OK, "hangs", "hangs", "hangs") as found:
        outcome = hook.run(
            "start", url=listed(found), LARK_TIMEOUT="4", LARK_WAIT="0", limit=20, LARK_ON_FAILURE="hold"
        )
        assert outcome.ad["HookStatusCode"] == 20
        assert "no answer" in str(outcome.ad["HookStatusMessage"])
