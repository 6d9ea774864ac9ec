"""The hook's settings, from its file and from the environment."""

from __future__ import annotations

import pytest

from tests.fixtures.hook import (
    ACCEPTED,
    Hook,
    StandIn,
    reply,
)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"LARK_URL": "-"}, "neither LARK_URL nor LARK_SOCKET is set"),
        ({"LARK_URL": "ftp://x"}, "does not begin with http"),
        ({"LARK_URL": "http://a\x7fb"}, "characters that a URL may not"),
        ({"LARK_URL": "http://a b"}, "LARK_URL: b does not begin with http"),
        ({"LARK_TOKEN_FILE": "/nonexistent"}, "no token can be read from /nonexistent"),
        ({"LARK_TOKEN_FILE": "/proc/version"}, "is no bearer token"),
    ],
)
def test_wrong_settings_are_said(hook: Hook, settings: dict[str, str], said: str) -> None:
    outcome = hook.run("start", **{"url": "http://127.0.0.1:9", **settings})  # type: ignore[arg-type]  # all are str
    assert outcome.ad["LarkState"] == "unmanaged"
    assert said in str(outcome.ad["LarkReason"])


def test_a_number_out_of_range_takes_the_default(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED)]
    outcome = hook.run(
        "start", url=stand_in.url, LARK_WAIT="61", LARK_TIMEOUT="; reboot", LARK_RETRIES="99999999999999999999"
    )
    assert outcome.ad["LarkState"] == "enforced"
    assert stand_in.asked[0].path == "/v1/jobs?wait=2"
    for name in ("LARK_WAIT", "LARK_TIMEOUT", "LARK_RETRIES"):
        assert name in outcome.stderr


def test_the_settings_file_is_read_and_never_executed(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED)]
    conf = hook.folder / "hook.conf"
    conf.write_text(
        "# where\n"
        f'LARK_URL="{stand_in.url}/"\n'
        f"LARK_TOKEN_FILE={hook.folder}/token\n"
        f"LARK_WAIT=$(touch {hook.folder}/executed)\n"
        f"touch {hook.folder}/executed\n"
        "LARK_COLOUR=blue\n"
        "LARK_ON_FAILURE='idle'"
    )
    conf.chmod(0o644)
    outcome = hook.run("start", LARK_HOOK_CONF=str(conf), LARK_URL="-", LARK_TOKEN_FILE="-")
    assert outcome.ad["LarkState"] == "enforced"
    assert "unknown setting LARK_COLOUR" in outcome.stderr
    assert not (hook.folder / "executed").exists()
    assert stand_in.asked[0].path == "/v1/jobs?wait=2"

    conf.chmod(0o666)
    outcome = hook.run("start", LARK_HOOK_CONF=str(conf), LARK_URL="-", LARK_TOKEN_FILE="-")
    assert "is ignored" in outcome.stderr
    assert "neither LARK_URL nor LARK_SOCKET" in str(outcome.ad["LarkReason"])


def test_the_environment_wins_over_the_file(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED)]
    conf = hook.folder / "hook.conf"
    conf.write_text("LARK_URL=http://127.0.0.1:9\nLARK_WAIT=9\n")
    conf.chmod(0o600)
    hook.run("start", url=stand_in.url, LARK_HOOK_CONF=str(conf), LARK_WAIT="0")
    assert stand_in.asked[0].path == "/v1/jobs?wait=0"
