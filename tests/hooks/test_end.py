"""The hook while a job runs and at its end: it renews the lease, and finds the job again to end it."""

from __future__ import annotations

import hashlib

import pytest

from lark_common.runs import RunKey
from tests.fixtures.hook import (
    ACCEPTED,
    HOOK,
    ID,
    JOB_AD,
    OTHER_ID,
    PROBLEM,
    Hook,
    StandIn,
    raw,
    reply,
)


def test_update_renews_the_lease(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(200, "")]
    outcome = hook.run("update", url=stand_in.url)
    assert outcome.stdout == ""
    assert [(a.method, a.path, a.body) for a in stand_in.asked] == [("POST", f"/v1/jobs/{ID}/renew", b"")]


def test_update_registers_a_job_whose_start_was_not_heard(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(404, PROBLEM), reply(201, ACCEPTED)]
    outcome = hook.run("update", url=stand_in.url)
    assert outcome.stdout == ""
    assert [(a.method, a.path) for a in stand_in.asked] == [
        ("POST", f"/v1/jobs/{ID}/renew"),
        ("POST", "/v1/jobs?wait=2"),
    ]


@pytest.mark.parametrize("reason", ["exit", "remove", "hold", "evict"])
def test_exit_ends_the_job_with_its_last_ad(hook: Hook, stand_in: StandIn, reason: str) -> None:
    stand_in.answers = [reply(200, "")]
    ad = JOB_AD + "ExitCode = 0\n"
    outcome = hook.run("exit", reason, url=stand_in.url, stdin=ad.encode())
    assert outcome.stdout == ""
    (asked,) = stand_in.asked
    assert (asked.method, asked.path) == ("DELETE", f"/v1/jobs/{ID}")
    assert asked.body.decode().rstrip() == ad.rstrip()


def test_exit_finds_the_job_although_the_start_answer_was_lost(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [raw(b""), reply(204)]
    hook.run("start", url=stand_in.url, LARK_RETRIES="0")
    hook.run("exit", "exit", url=stand_in.url)
    assert stand_in.asked[-1].path == f"/v1/jobs/{ID}"


def test_exit_uses_the_id_that_was_kept_when_the_ads_do_not_tell(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED.replace(ID, OTHER_ID)), reply(200)]
    hook.run("start", url=stand_in.url)
    hook.run("exit", "exit", url=stand_in.url, stdin=b'Owner = "alice"\n')
    assert stand_in.asked[-1].path == f"/v1/jobs/{OTHER_ID}"
    assert not [entry for entry in (hook.folder / "scratch").iterdir() if entry.name.startswith(".lark")]


def test_exit_asks_for_the_kept_id_when_the_computed_one_is_unknown(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED.replace(ID, OTHER_ID)), reply(404), reply(200)]
    hook.run("start", url=stand_in.url)
    hook.run("exit", "exit", url=stand_in.url)
    assert [a.path for a in stand_in.asked[1:]] == [f"/v1/jobs/{ID}", f"/v1/jobs/{OTHER_ID}"]


def test_a_kept_id_that_is_a_link_or_rubbish_is_not_used(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(404)]
    kept = hook.folder / "scratch" / ".lark_job_id.slot1_2"
    victim = hook.folder / "victim"
    victim.write_text(OTHER_ID)
    kept.symlink_to(victim)
    hook.run("exit", "exit", url=stand_in.url, stdin=b"")
    kept.unlink()
    kept.write_text("../../v1/policy\n")
    hook.run("exit", "exit", url=stand_in.url, stdin=b"")
    assert stand_in.asked == []

    stand_in.answers = [reply(201, ACCEPTED)]
    kept.unlink()
    kept.symlink_to(victim)
    hook.run("start", url=stand_in.url)
    assert victim.read_text() == OTHER_ID
    assert kept.read_text().strip() == ID


@pytest.mark.parametrize("status", [400, 413])
def test_an_exit_ad_that_is_not_accepted_ends_the_job_all_the_same(hook: Hook, stand_in: StandIn, status: int) -> None:
    stand_in.answers = [reply(status, "Byte 7 of the body is not UTF-8"), reply(200)]
    hook.run("exit", "exit", url=stand_in.url, stdin=JOB_AD.encode() + b'Title = "\xfc"\n')
    assert [(a.method, a.path) for a in stand_in.asked] == [("DELETE", f"/v1/jobs/{ID}")] * 2
    assert stand_in.asked[1].body == b""


def test_exit_of_a_job_that_nobody_knows_is_harmless(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(404)]
    outcome = hook.run("exit", "exit", url=stand_in.url)
    assert outcome.stdout == ""
    assert "does not know this job" in outcome.stderr


def test_the_name_of_the_link_is_the_action(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(200, ACCEPTED)]
    for name in ("start", "update", "exit"):
        (hook.folder / f"lark-{name}").symlink_to(HOOK)
    hook.run(script=hook.folder / "lark-start", url=stand_in.url)
    hook.run(script=hook.folder / "lark-update", url=stand_in.url)
    hook.run("evict", script=hook.folder / "lark-exit", url=stand_in.url)
    assert [asked.method for asked in stand_in.asked] == ["POST", "POST", "DELETE"]


def test_the_id_is_the_controllers_own(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(200)]
    ad = 'GLOBALJOBID="s#1.0#5"\n   jobcurrentstartdate   =  17  \nOther = "GlobalJobId = 3"\n'
    hook.run("exit", "exit", url=stand_in.url, stdin=ad.encode())
    expected = hashlib.sha256(b"s#1.0#5\n17\nslot1_2@worker1.example").hexdigest()[:16]
    assert stand_in.asked[0].path == f"/v1/jobs/{expected}"


def test_without_a_slots_name_the_id_is_still_the_controllers_own(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(200)]
    for line, slot in (('RemoteHost = "slot3@w9"', "slot3@w9"), ("", "w1")):
        (hook.folder / "machine.ad").write_text('Machine = "w1"\n')
        hook.run("exit", "exit", url=stand_in.url, stdin=f'GlobalJobId = "s#1"\n{line}\n'.encode())
        assert stand_in.asked[-1].path == f"/v1/jobs/{RunKey('s#1', 0, slot).id}"
