"""A token with the scope self shows its user's jobs, and nothing of anybody else's."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from lark_common.errors import SettingError
from lark_controller.accounting.usage import NOTHING
from lark_controller.api.drops import Drop, DropsByDown
from lark_controller.api.usage import UsageRow
from lark_controller.cli import main as cli
from lark_controller.jobs.job import JobState
from lark_controller.rest.context import WATCHING_USERS
from lark_controller.rest.own_jobs import CONTRADICTED
from lark_controller.rest.tokens import Scope, Tokens, add, read
from tests.fixtures.fake_controls import bearer
from tests.fixtures.fake_usage import a_pair
from tests.fixtures.rest_app import Api, make_api
from tests.rest.test_routes import assert_problem

UNKNOWN = "00000000000000ff"


@pytest.fixture
def api(tmp_path: Path) -> Api:
    """Jobs of alice and bob, with drops, reservations, use and a trail of both; the token is alice's."""
    made = make_api(tmp_path)
    alice, bob = made.register(1, "alice"), made.register(2, "bob")
    for number, job in ((1, alice), (2, bob)):
        wish = {"source": job["id"], "destination": "wan", "rate": 1}
        answer = made.client.post("/v1/reservations", json=wish, headers=bearer("hook"))
        assert answer.status_code == 201
        drop = Drop(
            5.0, f"job {number}.0 of {job['owner']}", "jobs outside the slice", 'slice when Owner == "bob"', "slice",
            "out", 1.7e9, line=7, job=job["id"], name=f"{number}.0", global_job_id=job["global_job_id"],
            owner=job["owner"], host="worker1.example",
        )  # fmt: skip
        made.controls.drops.drops.append(drop)
    made.controls.drops.drops.append(Drop(9.0, "jobs of the group bobs", "the WAN", "full", "group", "out", 1.7e9))
    made.controls.usage.history = [UsageRow(NOTHING, 1.7e9, 1.8e9, user="alice@example")]
    made.controls.audit.note("carol", "quarantine", alice["id"], "in the pool, slot1 runs submit#2.0 of bob")
    return made


def ids(api: Api) -> tuple[str, str]:
    alice, bob = (job.id for job in api.controls.jobs.known.values())
    return alice, bob


def show(api: Api, path: str) -> Any:
    return api.get(path, scope="self")


# Every route of the scope, with a job of alice's, of bob's and of nobody's in its place.
BY_JOB = [
    "/v1/jobs/{job}",
    "/v1/jobs/{job}?fresh=true",
    "/v1/jobs/{job}/rates",
    "/v1/jobs/{job}/advice",
    "/v1/jobs/{job}/pairs",
    "/v1/jobs/{job}/pairs?application=true",
    "/v1/audit?subject={job}",
    "/v1/reservations?job={job}",
    "/v1/explain?src={job}&dst=192.0.2.1",
    "/v1/explain?src=192.0.2.1&dst={job}",
]


@pytest.mark.parametrize("path", BY_JOB)
def test_anothers_job_is_as_one_that_is_not_there(api: Api, path: str) -> None:
    alice, bob = ids(api)
    jobs = api.controls.jobs.known
    assert show(api, path.format(job=alice)).status_code == 200
    unknown = show(api, path.format(job=UNKNOWN))
    assert_problem(unknown, 404)
    number, global_id = f"{jobs[bob].cluster}.{jobs[bob].proc}", jobs[bob].run.global_job_id.replace("#", "%23")
    for word, other in (
        (bob, UNKNOWN), (bob[:8], UNKNOWN[:8]), (number, "9.0"), (global_id, global_id.replace("2.0", "9.0")),
    ):  # fmt: skip
        named, nobody = show(api, path.format(job=word)), show(api, path.format(job=other))
        assert (named.status_code, nobody.status_code) == (404, 404)
        assert named.text.replace(word.replace("%23", "#"), "") == nobody.text.replace(other.replace("%23", "#"), "")
        assert set(named.headers.keys()) == set(nobody.headers.keys())


def test_a_name_that_two_have_is_the_users_own(api: Api) -> None:
    alice, bob = ids(api)
    jobs = api.controls.jobs.known
    jobs[bob] = replace(jobs[bob], cluster=1, proc=0)
    assert_problem(api.get("/v1/jobs/1.0"), 409, "ambiguous")
    assert show(api, "/v1/jobs/1.0").json["id"] == alice


def test_addresses_are_those_of_own_jobs(api: Api) -> None:
    alice, bob = (api.controls.jobs.known[each].ipv4 for each in ids(api))
    assert show(api, f"/v1/addresses/{alice}").json["owner"] == "alice"
    other, nobody = show(api, f"/v1/addresses/{bob}"), show(api, "/v1/addresses/10.64.9.9")
    assert_problem(other, 404)
    assert other.text.replace(str(bob), "") == nobody.text.replace("10.64.9.9", "")
    assert show(api, f"/v1/explain?src={alice}&dst={bob}").status_code == 200
    assert_problem(show(api, f"/v1/explain?src={bob}&dst=192.0.2.1"), 404)
    # Another's job is none for an end, even where the other end is an own one.
    assert_problem(show(api, f"/v1/explain?src={alice}&dst={ids(api)[1]}"), 404)


def test_reservations_are_those_of_own_jobs(api: Api) -> None:
    known = api.controls.reservations.known
    own, other = sorted(known)
    listed = show(api, "/v1/reservations").json["reservations"]
    assert [each["id"] for each in listed] == [own]
    assert show(api, f"/v1/reservations/{own}").status_code == 200
    assert_problem(show(api, f"/v1/reservations/{other}"), 404)
    assert show(api, f"/v1/reservations/{other}").text.replace(other, "") == show(
        api, f"/v1/reservations/{UNKNOWN}"
    ).text.replace(UNKNOWN, "")
    # A receiver that is another's job stays unnamed, and so does who made it.
    known[own] = replace(known[own], peer=ids(api)[1], actor="carol", target=(ip_network("10.64.0.2/32"),))
    shown = show(api, f"/v1/reservations/{own}").json
    assert (shown["peer"], shown["peer_name"], shown["actor"]) == (None, None, "")
    for method in ("PATCH", "DELETE"):
        answer = api.client.open(f"/v1/reservations/{own}", method=method, json={}, headers=bearer("self"))
        assert_problem(answer, 403, "scope")


def test_lists_are_those_of_own_jobs(api: Api) -> None:
    alice, bob = ids(api)
    assert [job["id"] for job in show(api, "/v1/jobs").json["jobs"]] == [alice]
    assert [job["id"] for job in show(api, "/v1/jobs?owner=alice&state=any").json["jobs"]] == [alice]
    problem = assert_problem(show(api, "/v1/jobs?owner=bob"), 403, "scope")
    assert "alice alone" in problem["detail"]
    job = api.controls.jobs.known[bob].run.global_job_id.replace("#", "%23")
    assert show(api, f"/v1/jobs?global_job_id={job}").json["jobs"] == []
    api.controls.drops.down = (DropsByDown("wan-fast", ("core1",), 1),)
    drops = show(api, "/v1/drops").json
    # The policy's names of ports and switches are for operators.
    assert drops["down"] == [{"port": "", "switches": [], "jobs": 1}]
    assert api.get("/v1/drops").json["down"] == [{"port": "wan-fast", "switches": ["core1"], "jobs": 1}]
    assert [drop["job"] for drop in drops["drops"]] == [alice]
    assert drops["away"] is None
    assert drops["drops"][0]["rule"] == "slice (policy line 7)"
    assert_problem(show(api, "/v1/audit"), 422, "parameters")


@pytest.mark.parametrize(
    ("query", "status", "user"),
    [
        ("by=user", 200, "alice@example"),
        ("by=job", 200, "alice@example"),
        ("by=user&user=alice", 200, "alice@example"),
        ("by=user&user=alice@example", 200, "alice@example"),
        ("by=user&user=bob@example", 403, None),
        ("by=job&user=bob", 403, None),
        ("by=group", 403, None),
        ("by=host", 403, None),
        ("", 403, None),
    ],
)
def test_use_is_that_of_the_user(api: Api, query: str, status: int, user: str | None) -> None:
    answer = show(api, f"/v1/usage?{query}")
    assert answer.status_code == status, answer.text
    asked = api.controls.usage.asked
    assert (None if asked is None else asked.user) == user


def test_a_user_name_of_another_owners_is_not_the_users(api: Api) -> None:
    # What a worker's root has registered: alice's job, charged to bob.
    alice, _ = ids(api)
    jobs = api.controls.jobs.known
    jobs[alice] = replace(jobs[alice], user="bob@example")
    assert show(api, "/v1/usage?by=user").status_code == 200
    assert api.controls.usage.asked is not None
    assert api.controls.usage.asked.user == "alice"


def test_a_quarantine_is_told_without_whose_the_slot_is(api: Api) -> None:
    alice, _ = ids(api)
    jobs = api.controls.jobs.known
    why = "in the pool, slot1 runs submit#2.0 of bob"
    jobs[alice] = replace(jobs[alice], state=JobState.QUARANTINED, quarantine=why, reason=why)
    for shown in (show(api, f"/v1/jobs/{alice}").json, show(api, "/v1/jobs").json["jobs"][0]):
        assert shown["state"] == "quarantined"
        assert shown["reason"] == CONTRADICTED
    assert api.get(f"/v1/jobs/{alice}").json["reason"] == why


def test_no_answer_has_a_word_of_anybody_else(api: Api) -> None:
    alice, bob = ids(api)
    job = api.controls.jobs.known[bob]
    api.controls.usage.reserved = [a_pair(alice, bob, own=False)]
    secrets = ["bob", "carol", bob, job.run.global_job_id, str(job.ipv4), job.run.slot]
    seen = 0
    for path in (
        "/v1/token", "/v1/jobs", "/v1/jobs?state=any&order=newest", f"/v1/jobs/{alice}", f"/v1/jobs/{alice}/rates",
        f"/v1/jobs/{alice}/advice", f"/v1/jobs/{alice}/pairs?application=true",
        f"/v1/addresses/{api.controls.jobs.known[alice].ipv4}",
        f"/v1/audit?subject={alice}", "/v1/drops",
        "/v1/reservations", f"/v1/reservations?job={alice}", "/v1/usage?by=user", "/v1/usage?by=job",
        f"/v1/explain?src={alice}&dst=192.0.2.1",
    ):  # fmt: skip
        answer = show(api, path)
        assert answer.status_code == 200, answer.text
        for secret in secrets:
            assert secret not in answer.text, path
        seen += 1
    assert seen == 15
    shown = show(api, f"/v1/jobs/{alice}").json
    assert shown["machine_ad"] == ""
    assert [because["when"] for because in shown["decision"]["because"]] == [""]
    entries = show(api, f"/v1/audit?subject={alice}").json["entries"]
    assert (entries[0]["action"], entries[0]["actor"], entries[0]["detail"]) == ("quarantine", "", "")


def test_entries_on_a_jobs_own_external_address_are_shown_as_they_are(api: Api) -> None:
    alice, _ = ids(api)
    for action, detail in (("associate", "203.0.113.66 of pool public: tcp/80"), ("no external address", "of bob")):
        api.controls.audit.note("carol", action, alice, detail)
    entries = show(api, f"/v1/audit?subject={alice}").json["entries"][:2]
    assert [(each["action"], each["actor"], each["detail"]) for each in entries] == [
        ("no external address", "", ""),
        ("associate", "", "203.0.113.66 of pool public: tcp/80"),
    ]


def test_cursors_of_others_lists_reveal_nothing(api: Api) -> None:
    for number in range(3, 6):
        api.register(number, "bob")
    cursor = api.get("/v1/jobs?limit=2").json["next_cursor"]
    assert show(api, f"/v1/jobs?cursor={cursor}").json["jobs"] == []
    page = show(api, "/v1/jobs?limit=1").json
    assert (len(page["jobs"]), page["next_cursor"]) == (1, None)


def test_the_token_says_whose_jobs_it_shows(api: Api) -> None:
    assert show(api, "/v1/token").json == {
        "name": "self", "scopes": ["self"], "expires": None, "hosts": None, "user": "alice"
    }  # fmt: skip


def test_users_have_few_places_together_where_requests_wait(tmp_path: Path) -> None:
    api = make_api(tmp_path, waiting_posts="256", rest_threads="272")
    api.register(1, "alice")
    context = api.app.extensions["lark"]
    for _ in range(16):
        assert context.users.take()
    job = next(iter(api.controls.jobs.known))
    assert_problem(show(api, f"/v1/explain?src={job}&dst=192.0.2.1"), 503, "busy")
    assert api.get(f"/v1/explain?src={job}&dst=192.0.2.1").status_code == 200


def test_users_leave_places_to_workers_where_changes_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There may be as many users as the pool has, each with a token or a credential of its own."""
    api = make_api(tmp_path, waiting_workers="256")
    api.register(1, "alice")
    changes = api.app.extensions["lark"].changes
    users = changes.most // WATCHING_USERS
    for _ in range(users):
        assert changes.take("users", users)
        assert changes.take()
    waits: list[float] = []
    shown = api.controls.usage.delivered

    def delivered(flows: Any, after: str, wait: float) -> Any:
        waits.append(wait)
        return shown(flows, after, wait)

    monkeypatch.setattr(api.controls.usage, "delivered", delivered)
    path = f"/v1/jobs/{next(iter(api.controls.jobs.known))}/delivered?wait=7"
    for scope in ("self", "read", "hook"):
        assert api.get(path, scope=scope).status_code == 200
    assert waits == [0.0, 7.0, 7.0]
    changes.give("users")
    assert show(api, path).status_code == 200
    assert waits[3:] == [7.0]


# the tokens file and the command


@pytest.mark.parametrize(
    ("scopes", "user"),
    [
        ({Scope.SELF}, None),
        ({Scope.SELF}, ""),
        ({Scope.SELF}, "a b"),
        ({Scope.SELF}, "*"),
        ({Scope.SELF, Scope.READ}, "alice"),
        ({Scope.READ}, "alice"),
        ({Scope.HOOK}, "alice"),
    ],
)
def test_a_user_goes_with_the_scope_self_alone(tmp_path: Path, scopes: set[Scope], user: str | None) -> None:
    with pytest.raises(SettingError, match="self"):
        add(tmp_path / "tokens.yaml", "a", scopes, user=user)
    line = json.dumps({"sha256": "0" * 64, "scopes": sorted(scopes), **({} if user is None else {"user": user})})
    (tmp_path / "tokens.yaml").write_text(f"a: {line}\n")
    (tmp_path / "tokens.yaml").chmod(0o600)
    with pytest.raises(SettingError, match="self"):
        read(tmp_path / "tokens.yaml")


@pytest.mark.parametrize("user", ["[alice]", "7", "{a: b}", "true"])
def test_a_user_is_a_text(tmp_path: Path, user: str) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text(f"a: {{sha256: {'0' * 64}, scopes: [self], user: {user}}}\n")
    path.chmod(0o600)
    with pytest.raises(SettingError, match="needs a user"):
        read(path)


def test_the_command_makes_a_users_token_and_takes_it_away(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens.yaml"
    assert cli.main(["token", "alice", "--scope", "self", "--file", str(path)]) == cli.USAGE
    assert "needs a user" in capsys.readouterr().err
    assert cli.main(["token", "alice", "--scope", "self", "--user", "alice", "--file", str(path)]) == cli.OK
    secret = capsys.readouterr().out.strip()
    tokens = Tokens(path)
    found = tokens.find(secret)
    assert found is not None
    assert (found.user, found.scopes) == ("alice", frozenset({Scope.SELF}))
    assert cli.main(["token", "--list", "--file", str(path)]) == cli.OK
    assert "jobs of alice" in capsys.readouterr().out
    path.write_text("")
    assert tokens.find(secret) is None
