from __future__ import annotations

import hashlib
from datetime import date
from pathlib import Path

import pytest

from lark_common import rereading
from lark_common.errors import SettingError
from lark_controller.rest.app import FAILURES
from lark_controller.rest.context import NOTES
from lark_controller.rest.tokens import Scope, Tokens, add, read
from tests.fixtures.descriptors import no_descriptors
from tests.fixtures.fake_controls import TOKENS, bearer, post_body, write_tokens
from tests.fixtures.rest_app import make_api


def test_a_token_has_a_rate_of_its_own(tmp_path: Path) -> None:
    api = make_api(tmp_path, rate_limit="0.1", rate_burst="2")
    assert [api.get("/v1/groups").status_code for _ in range(3)] == [200, 200, 429]
    assert int(api.get("/v1/groups").headers["Retry-After"]) >= 1
    assert api.get("/v1/groups", "operate").status_code == 200
    assert api.client.get("/healthz").status_code == 200


def test_failed_attempts_are_limited_but_lock_nobody_out(tmp_path: Path) -> None:
    api = make_api(tmp_path)
    wrong = {"Authorization": "Bearer wrong"}
    statuses = [api.client.get("/v1/groups", headers=wrong).status_code for _ in range(FAILURES + 5)]
    assert statuses[:FAILURES] == [401] * FAILURES
    assert 429 in statuses
    assert api.get("/v1/groups").status_code == 200


def test_failed_attempts_from_ever_other_addresses_of_one_network_are_those_of_one(tmp_path: Path) -> None:
    api = make_api(tmp_path)

    def status(address: str) -> int:
        sent = {"headers": {"Authorization": "Bearer wrong"}, "environ_base": {"REMOTE_ADDR": address}}
        return api.client.get("/v1/groups", **sent).status_code

    assert [status(f"2001:db8:0:1::{number:x}") for number in range(2 * FAILURES)].count(401) == FAILURES
    assert status("2001:db8:0:2::1") == 401


def test_a_busy_server_still_says_that_it_lives(tmp_path: Path) -> None:
    api = make_api(tmp_path, waiting_posts="1", rest_threads="9")
    places = api.app.extensions["lark"].requests
    taken = 0
    while places.take():
        taken += 1
    busy = api.get("/v1/groups")
    assert busy.status_code == 503
    assert busy.headers["Retry-After"] == "1"
    assert api.client.get("/healthz").status_code == 200
    for _ in range(taken):
        places.give()
    # Requests that failed gave their place back, too.
    assert [api.get("/v1/nowhere").status_code for _ in range(20)] == [404] * 20
    assert [api.get("/v1/groups").status_code for _ in range(20)] == [200] * 20


def test_a_post_beyond_the_cap_is_answered_at_once(tmp_path: Path) -> None:
    api = make_api(tmp_path, waiting_posts="1", rest_threads="9")
    api.controls.gate.clear()
    with api.app.extensions["lark"].waits.place():
        answer = api.post(post_body(), path="/v1/jobs?wait=30")
    assert (answer.status_code, answer.json["state"]) == (201, "registering")
    assert b"lark_waits_refused_total 1.0" in api.metrics.render()


def test_reservations_that_wait_leave_places_to_jobs_that_start(tmp_path: Path) -> None:
    api = make_api(tmp_path)
    job = api.register()
    limits = api.app.extensions["lark"]
    while limits.reserves.take():
        pass
    api.controls.gate.clear()
    wish = {"source": job["addresses"][0]["address"], "destination": "10.64.0.9", "rate": 5}
    answer = api.client.post("/v1/reservations?wait=30", json=wish, headers=bearer("operate"))
    assert answer.status_code == 201, answer.json
    assert limits.reserves.most <= limits.waits.most / 4


def test_one_token_that_reads_takes_a_part_of_the_waiting_places(tmp_path: Path) -> None:
    api = make_api(tmp_path)
    limits = api.app.extensions["lark"]
    while limits.asks.take("read"):
        pass
    path = f"/v1/switches/{api.get('/v1/switches').json['switches'][0]['datapath']}/flows"
    busy = api.get(path)
    assert (busy.status_code, busy.headers["Retry-After"]) == (503, "1")
    assert "the token read waits" in busy.json["detail"]
    assert api.get(path, "operate").status_code == 200
    assert limits.asks.most + limits.watches.most < limits.waits.most / 2
    # Another revision is not waited for by one that reads: the answer comes at once.
    while limits.watches.take("read"):
        pass
    api.controls.gate.clear()
    rules = f"/v1/hosts/w1/rules?wait=30&after={api.controls.workers.revision}"
    assert api.get(rules).status_code == 200
    assert api.controls.gate.waiting == 0


def test_one_token_of_all_hooks_takes_the_last_counters_of_many_jobs_at_once(tmp_path: Path) -> None:
    api = make_api(tmp_path)
    job = api.post(post_body()).json["id"]
    while api.app.extensions["lark"].asks.take("hook"):
        pass
    assert api.get(f"/v1/jobs/{job}?fresh=true", "hook").status_code == 200


def test_tokens_are_made_stored_as_hashes_and_found(tmp_path: Path) -> None:
    path = tmp_path / "etc" / "tokens.yaml"
    secret = add(path, "pool", {Scope.HOOK}, date(2999, 1, 1))
    other = add(path, "ops", {Scope.OPERATE})
    assert path.stat().st_mode & 0o777 == 0o600
    assert secret not in path.read_text()
    tokens = Tokens(path)
    found = tokens.find(secret)
    assert found is not None
    assert (found.name, found.allows([Scope.HOOK]), found.allows([Scope.READ])) == ("pool", True, False)
    operator = tokens.find(other)
    assert operator is not None
    assert operator.allows([Scope.READ])
    assert tokens.find(secret + "x") is None
    with pytest.raises(SettingError, match="already"):
        add(path, "pool", {Scope.READ})
    with pytest.raises(SettingError, match="name"):
        add(path, "a: b", {Scope.READ})


def test_a_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.yaml")
    path.chmod(0o640)
    with pytest.raises(SettingError, match="chmod 600"):
        Tokens(path)


def test_all_mistakes_in_a_tokens_file_are_named(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    path.write_text("a: {sha256: short, scopes: [fly]}\nb: {scopes: [hook], expiry: x}\nc: 3\n")
    path.chmod(0o600)
    with pytest.raises(SettingError) as caught:
        read(path)
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1] for line in lines] == ["a", "a", "b", "b", "c"]


def test_a_changed_file_is_read_again_and_a_bad_one_changes_nothing(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.yaml")
    api = make_api(tmp_path)
    digest = hashlib.sha256(b"fresh").hexdigest()
    fresh = {"Authorization": "Bearer fresh"}
    assert api.client.get("/v1/groups", headers=fresh).status_code == 401
    path.write_text(f"fresh: {{sha256: {digest}, scopes: [read]}}\n")
    assert api.client.get("/v1/groups", headers=fresh).status_code == 200
    assert api.client.get("/v1/groups", headers=bearer("read")).status_code == 401
    for rubbish in (
        "rubbish: [",
        f"rubbish: {{sha256: {digest}, scopes: [read], expires: 2027-02-30}}",
        f"rubbish: {{sha256: {digest}, scopes: [[read]]}}",
        "[" * 5000,
    ):
        path.write_text(rubbish)
        assert api.client.get("/v1/groups", headers=fresh).status_code == 200
    path.unlink()
    assert api.client.get("/v1/groups", headers=fresh).status_code == 401


def test_notes_of_a_hook_without_end_do_not_fill_the_audit_trail(tmp_path: Path) -> None:
    api = make_api(tmp_path)
    job = api.register()["id"]

    def noted(path: str, address: str = "192.0.2.1") -> int:
        headers = {**bearer("hook"), "Content-Type": "text/plain"}
        place = {"REMOTE_ADDR": address}
        return api.client.post(path, data="a claim", headers=headers, environ_overrides=place).status_code

    statuses = [noted(f"/v1/jobs/{number:016x}/forgery") for number in range(2 * NOTES)]
    assert statuses[:NOTES] == [200] * NOTES
    assert statuses.count(429) >= NOTES - 10
    assert noted(f"/v1/jobs/{job}/limited") == 429
    assert sum(entry.action == "forged ad" for entry in api.controls.audit.trail) <= NOTES + 10
    # Another worker, with the same token, has its own.
    assert noted(f"/v1/jobs/{job}/limited", "192.0.2.2") == 200


def test_a_token_taken_away_while_no_descriptor_is_left_is_refused_once_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rereading, "AGAIN_SECONDS", 0.0)
    path = write_tokens(tmp_path / "tokens.yaml")
    tokens = Tokens(path)
    path.write_text("")
    with no_descriptors():
        assert tokens.find(TOKENS["read"]) is not None
    assert tokens.find(TOKENS["read"]) is None


def test_tokens_stay_good_while_their_file_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rereading, "AGAIN_SECONDS", 0.0)
    path = write_tokens(tmp_path / "tokens.yaml")
    tokens = Tokens(path)
    path.rename(tmp_path / "away")
    path.symlink_to(path)
    assert tokens.find(TOKENS["read"]) is not None
    with pytest.raises(SettingError, match="cannot be read"):
        Tokens(path)
    path.unlink()
    assert tokens.find(TOKENS["read"]) is None
    (tmp_path / "away").rename(path)
    assert tokens.find(TOKENS["read"]) is not None
