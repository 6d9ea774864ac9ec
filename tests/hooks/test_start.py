"""The hook at a job's start: what it posts, and what it makes of each answer and of none."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler

import classad2
import pytest

from lab.run import free_port
from tests.fixtures.hook import (
    ACCEPTED,
    ID,
    PROBLEM,
    TOKEN,
    Hook,
    StandIn,
    raw,
    reply,
)


def test_start_posts_both_ads_and_prints_the_answer(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED)]

    outcome = hook.run("start", url=stand_in.url, LARK_WAIT="5")

    assert outcome.ad == {
        "LarkJobId": ID,
        "LarkState": "enforced",
        "LarkIPv4Address": "10.64.0.7",
        "LarkLease": 600,
    }
    (asked,) = stand_in.asked
    assert (asked.method, asked.path) == ("POST", "/v1/jobs?wait=5")
    assert asked.headers["Accept"] == "text/plain"
    assert asked.headers["Content-Type"].startswith("text/plain")
    assert asked.headers["Authorization"] == f"Bearer {TOKEN}"
    job_ad, machine_ad = asked.body.decode().split("\n------\n")
    assert classad2.parseOne(job_ad)["Owner"] == "alice"
    assert classad2.parseOne(machine_ad)["Name"] == "slot1_2@worker1.example"


def test_the_token_is_on_no_command_line(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED)]
    hook.run("start", url=stand_in.url)
    assert b"/v1/jobs" in stand_in.command_lines  # the request was seen while it ran
    assert TOKEN.encode() not in stand_in.command_lines


@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_refusal_holds_the_job_with_the_reason(hook: Hook, stand_in: StandIn, status: int) -> None:
    stand_in.answers = [reply(status, PROBLEM, "application/problem+json")]

    outcome = hook.run("start", url=stand_in.url, LARK_ON_FAILURE="start")

    assert len(stand_in.asked) == 1  # asking again would not change it
    code = outcome.ad["HookStatusCode"]
    assert isinstance(code, int)
    assert 1 <= code <= 299
    assert outcome.ad["HookStatusMessage"] == ("Lark refused this job: IPv4Address: '10.64.0.7' is held by job f00/ba")


@pytest.mark.parametrize(("member", "code"), [('"refused": "idle"', 310), ('"refused": "hold"', 10)])
def test_a_job_without_room_goes_where_the_site_says(hook: Hook, stand_in: StandIn, member: str, code: int) -> None:
    document = '{"type": "urn:lark:problem:capacity", "detail": "no \\"refused\\":\\"idle\\" room", ' + member + "}"
    stand_in.answers = [reply(409, document, "application/problem+json")]
    outcome = hook.run("start", url=stand_in.url)
    assert outcome.ad["HookStatusCode"] == code
    assert outcome.ad["HookStatusMessage"] == "Lark refused this job: no 'refused':'idle' room"


def test_a_refusal_has_a_question_mark_for_each_character_that_htcondor_would_not_take(
    hook: Hook, stand_in: StandIn
) -> None:
    document = json.dumps({"detail": "Gerät in C:\\u00e9 ist \x1b[31mvoll\n"})
    stand_in.answers = [reply(422, document, "application/problem+json")]
    outcome = hook.run("start", url=stand_in.url)
    assert str(outcome.ad["HookStatusMessage"]).rstrip() == "Lark refused this job: Ger?t in C:/u00e9 ist ?[31mvoll"


def test_a_refusal_in_plain_text_is_read_too(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(422, "Owner: is missing; a job ad needs one\n")]
    outcome = hook.run("start", url=stand_in.url)
    assert outcome.ad["HookStatusMessage"] == "Lark refused this job: Owner: is missing; a job ad needs one"


def test_a_job_registered_but_refused_is_held(hook: Hook, stand_in: StandIn) -> None:
    answer = f'LarkJobId = "{ID}"\nLarkState = "refused"\nLarkReason = "core1: 4096 rules are all in use"\n'
    stand_in.answers = [reply(200, answer)]
    outcome = hook.run("start", url=stand_in.url)
    assert outcome.ad["HookStatusMessage"] == "Lark refused this job: core1: 4096 rules are all in use"


def test_a_run_that_has_ended_does_not_start_without_a_network(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(200, f'LarkJobId = "{ID}"\nLarkState = "ended"\n')]
    outcome = hook.run("start", url=stand_in.url)
    assert str(outcome.ad["HookStatusMessage"]).startswith("Lark refused this job: this run has ended")


@pytest.mark.parametrize("status", [429, 503])
def test_a_passing_failure_is_tried_again(hook: Hook, stand_in: StandIn, status: int) -> None:
    stand_in.answers = [reply(status, "busy"), reply(201, ACCEPTED)]
    outcome = hook.run("start", url=stand_in.url)
    assert outcome.ad["LarkState"] == "enforced"
    assert len(stand_in.asked) == 2


@pytest.mark.parametrize("status", [301, 401, 403, 404])
def test_a_wrong_address_or_token_is_not_the_jobs_fault(hook: Hook, stand_in: StandIn, status: int) -> None:
    stand_in.answers = [reply(status, "no")]
    outcome = hook.run("start", url=stand_in.url)
    assert outcome.ad["LarkState"] == "unmanaged"
    assert len(stand_in.asked) == 1


@pytest.mark.parametrize("choice", ["start", "hold", "idle", "nonsense"])
def test_when_nobody_answers_the_setting_decides(hook: Hook, choice: str) -> None:
    outcome = hook.run("start", url=f"http://127.0.0.1:{free_port()}", LARK_ON_FAILURE=choice, LARK_RETRIES="0")

    if choice == "hold":
        assert 1 <= int(str(outcome.ad["HookStatusCode"])) <= 299
    elif choice == "idle":
        assert int(str(outcome.ad["HookStatusCode"])) >= 300
    else:
        assert outcome.ad["LarkState"] == "unmanaged"
        assert "HookStatusCode" not in outcome.ad
        assert "no answer from http://127.0.0.1:" in str(outcome.ad["LarkReason"])
        return
    assert "no answer from http://127.0.0.1:" in str(outcome.ad["HookStatusMessage"])


def test_a_wait_that_the_controller_does_not_allow_is_not_the_jobs_fault(hook: Hook, stand_in: StandIn) -> None:
    problem = '{"type": "urn:lark:problem:parameters", "detail": "wait: a number of seconds from 0 to 30 is accepted"}'
    stand_in.answers = [reply(422, problem, "application/problem+json")]
    outcome = hook.run("start", url=stand_in.url, LARK_WAIT="60")
    assert outcome.ad["LarkState"] == "unmanaged"
    assert outcome.ad["LarkReason"] == "wait: a number of seconds from 0 to 30 is accepted"


def test_retries_end_with_their_number(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(500, PROBLEM, "application/problem+json")]
    outcome = hook.run("start", url=stand_in.url, LARK_RETRIES="1")
    assert outcome.ad["LarkState"] == "unmanaged"
    assert len(stand_in.asked) == 2


def test_a_controller_that_hangs_does_not_hang_the_job(hook: Hook, stand_in: StandIn) -> None:

    def hang(handler: BaseHTTPRequestHandler) -> None:
        stand_in.released.wait(120)

    stand_in.answers = [hang]
    begun = time.monotonic()
    outcome = hook.run("start", url=stand_in.url, LARK_TIMEOUT="1", LARK_RETRIES="5", LARK_WAIT="0")
    assert outcome.ad["LarkState"] == "unmanaged"
    assert time.monotonic() - begun < 15  # 1 s and what a loaded machine adds; without a bound it would be 120


@pytest.mark.parametrize(
    "answer",
    [
        reply(200, b"<html><script>\nx = 5\nLarkState = 1\n</script></html>", "text/html"),
        reply(200, os.urandom(4096)),
        reply(200, b""),
        reply(200, b"A" * 1_000_000),
        reply(200, 'LarkJobId = "not an id"\nLarkState = "enforced"\n'),
        raw(b"SSH-2.0-OpenSSH_9.2\r\n"),
        raw(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nLarkJobId = "),
        raw(b"\0" * 100),
        raw(b""),
    ],
    ids=["page", "bytes", "empty", "huge", "no-id", "not-http", "cut-off", "nul", "closed"],
)
def test_a_garbled_answer_is_no_answer(
    hook: Hook, stand_in: StandIn, answer: Callable[[BaseHTTPRequestHandler], None]
) -> None:
    stand_in.answers = [answer]
    outcome = hook.run("start", url=stand_in.url, LARK_RETRIES="0")
    assert set(outcome.ad) == {"LarkState", "LarkReason"}
    assert outcome.ad["LarkState"] == "unmanaged"


def test_only_plain_attributes_are_passed_on(hook: Hook, stand_in: StandIn) -> None:
    unwanted = 'HookX = "open\nrm -rf /\nLarkY = strcat("a", "b")\n= 3\nLarkZ = "a\\"; B = \\"c"\n'
    stand_in.answers = [reply(201, ACCEPTED + unwanted)]
    outcome = hook.run("start", url=stand_in.url)
    assert set(outcome.ad) == {"LarkJobId", "LarkState", "LarkIPv4Address", "LarkLease", "LarkZ"}


def test_a_reason_in_utf_8_is_passed_on(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED + 'LarkReason = "wartet auf Zürich"\n')]
    assert hook.run("start", url=stand_in.url).ad["LarkReason"] == "wartet auf Zürich"
