from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import jwt
import pytest

from lark_common.errors import SettingError
from lark_controller.cli import main as cli
from lark_controller.rest.identities.file import Issuer, Rule, read
from lark_controller.rest.identities.identities import Identities, RefusedTokenError
from lark_controller.rest.tokens import Scope
from tests.fixtures import issuers as made
from tests.fixtures.fake_controls import post_body
from tests.fixtures.issuers import ISSUER, key, public, write_condor_keys, write_issuers, write_keys
from tests.fixtures.service import Lark
from tests.rest.test_jwt import NOW, SCOPES, api_of, bearing

# HTCondor's own tokens


def condor(directory: Path, **changed: Any) -> Identities:
    entry = {
        "issuer": "pool.example", "signing_keys": str(write_condor_keys(directory / "passwords.d")),
        "scopes": {"hook": {"scope": "condor:/ADVERTISE_STARTD"}, "self": "everyone"}, **changed,
    }  # fmt: skip
    return Identities.of_file(write_issuers(directory / "jwt.yaml", entry))


def test_tokens_that_htcondor_made(tmp_path: Path) -> None:
    identities = condor(tmp_path)
    alice, worker = identities.token(made.CONDOR_ALICE), identities.token(made.CONDOR_WORKER)
    assert (alice.scopes, alice.user, alice.hosts) == (frozenset({Scope.SELF}), "alice", None)
    assert (worker.scopes, worker.user, worker.hosts) == (frozenset({Scope.HOOK}), None, ("worker1.example",))
    with pytest.raises(RefusedTokenError, match="lacks the claim"):
        identities.token(made.CONDOR_FOREVER)
    api = api_of(tmp_path, identities)
    posted = api.client.post(
        "/v1/jobs", data=post_body(), content_type="text/plain", headers=bearing(made.CONDOR_WORKER)
    )
    assert posted.status_code == 201


@pytest.mark.parametrize(
    "kid", ["../POOL", "/etc/passwd", ".", "..", "", "POOL/", "pipe", "open", "nowhere", "x" * 300]
)
def test_a_key_of_htcondors_is_a_file_of_its_directory(tmp_path: Path, kid: str) -> None:
    identities = condor(tmp_path)
    os.mkfifo(tmp_path / "passwords.d" / "pipe", 0o600)
    (tmp_path / "passwords.d" / "open").write_bytes(b"key")
    (tmp_path / "passwords.d" / "open").chmod(0o644)
    secret = jwt.encode(
        {"iss": "pool.example", "sub": "condor@pool.example", "exp": NOW + 86_400}, b"x" * 32, "HS256", {"kid": kid}
    )
    with pytest.raises(RefusedTokenError, match="key"):
        identities.token(secret)


def test_a_token_of_htcondors_kind_for_an_audience_or_by_rsa_is_refused(tmp_path: Path) -> None:
    identities = condor(tmp_path)
    found = identities._issuers["pool.example"][1].find("POOL", "HS256")
    assert isinstance(found, bytes)
    said: dict[str, Any] = {"iss": "pool.example", "sub": "alice@pool.example", "exp": NOW + 86_400}
    assert identities.token(jwt.encode(said, found, "HS256", {"kid": "POOL"})).user == "alice"
    assert identities.token(jwt.encode(said, found, "HS256")).user == "alice"
    for wrong in (
        jwt.encode(said | {"aud": "lark"}, found, "HS256", {"kid": "POOL"}),
        jwt.encode(said, key(), "RS256", {"kid": "POOL"}),
        jwt.encode(said, b"y" * 32, "HS256", {"kid": "POOL"}),
        jwt.encode(said | {"sub": "alice@other.example"}, found, "HS256", {"kid": "POOL"}),
    ):
        try:
            assert not identities.token(wrong).scopes
        except RefusedTokenError:
            continue


# the file

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"audience": None}, "audience"),
    ({"audience": []}, "audience"),
    ({"algorithms": ["none"]}, "algorithms: accepted: RS256"),
    ({"algorithms": ["HS256"]}, "algorithms"),
    ({"algorithms": "RS1"}, "algorithms"),
    ({"keys": "keys.json"}, "absolute path"),
    ({"keys": "/nowhere/keys.json"}, "No such file"),
    ({"keys": "/k", "ca": "/c"}, "one of keys"),
    ({"keys": "/k", "signing_keys": "/c"}, "one of keys"),
    ({"issuer": "http://login.example", "keys": None}, "https://"),
    ({"issuer": "https://a@login.example", "keys": None}, "https://"),
    ({"issuer": "https://login.example?x", "keys": None}, "https://"),
    ({"issuer": "https://login.example:x", "keys": None}, "https://"),
    ({"issuer": "two words"}, "without spaces"),
    ({"issuer": 7}, "issuer 1"),
    ({"user": 7}, "user: the name of a claim"),
    ({"domain": "a b"}, "domain"),
    ({"role": {}}, "unknown key role"),
    ({"scopes": None}, "scopes"),
    ({"scopes": {}}, "scopes"),
    ({"scopes": {"admin": {"a": "b"}}}, "accepted: hook, read, operate, self, gateway"),
    ({"scopes": {"operate": "everyone"}}, "for self and read alone"),
    ({"scopes": {"hook": "everyone"}}, "for self and read alone"),
    ({"scopes": {"operate": {}}}, "operate"),
    ({"scopes": {"operate": {"groups": []}}}, "operate"),
    ({"scopes": {"operate": {"groups": [True]}}}, "operate"),
    ({"scopes": {"operate": True}}, "operate"),
    ({"scopes": {"hook": {"a": "b"}}, "host": None}, "needs `host:`"),
    ({"joins": "yes"}, "joins: true or false"),
    ({"joins": True, "scopes": {"self": "everyone"}}, "joins: needs the scope hook"),
    ({"joins": True, "scopes": 7}, "scopes"),
]


@pytest.mark.parametrize(("changed", "words"), MISTAKES)
def test_mistakes_in_the_file_are_refused(tmp_path: Path, changed: dict[str, Any], words: str) -> None:
    keys = write_keys(tmp_path / "keys.json", public(key(), "one"))
    entry = {
        "issuer": ISSUER, "audience": "lark", "keys": str(keys), "host": "machine", "scopes": SCOPES, **changed
    }  # fmt: skip
    entry = {name: value for name, value in entry.items() if value is not None}
    with pytest.raises(SettingError, match=words):
        Identities.of_file(write_issuers(tmp_path / "jwt.yaml", entry))


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "jwt.yaml"
    for text in ("", "issuers: []", "issuers: {}", "- a", "a: [", "[" * 5000, "issuers: [a]", "issuers: [2027-13-01]"):
        path.write_text(text)
        with pytest.raises(SettingError):
            read(path)
    with pytest.raises(SettingError, match="cannot be read"):
        read(tmp_path / "none.yaml")
    entry = {"issuer": ISSUER, "audience": "lark", "scopes": SCOPES, "host": "machine"}
    with pytest.raises(SettingError, match="twice"):
        read(write_issuers(path, entry, entry))
    write_issuers(path, entry).chmod(0o620)
    with pytest.raises(SettingError, match="may write it"):
        read(path)


def test_the_example_is_read_as_it_is_meant(tmp_path: Path) -> None:
    entry = {
        "issuer": "https://cilogon.example/sci",
        "audience": ["a", "b"],
        "scopes": {"read": {"scope": "lark.read"}},
    }
    assert read(write_issuers(tmp_path / "jwt.yaml", entry)) == (
        Issuer(
            "https://cilogon.example/sci",
            (Rule(Scope.READ, (("scope", frozenset({"lark.read"})),)),),
            ("a", "b"),
        ),
    )


def test_a_bad_file_keeps_the_controller_from_starting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("version: 1\n")
    (tmp_path / "jwt.yaml").write_text("issuers: []\n")
    monkeypatch.setenv("LARK_JWT_FILE", str(tmp_path / "jwt.yaml"))
    monkeypatch.setenv("LARK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("LARK_POLICY_FILE", str(policy))
    monkeypatch.setenv("LARK_REST_LISTEN", "127.0.0.1:0")
    monkeypatch.setenv("LARK_OPENFLOW_LISTEN", "127.0.0.1:0")
    assert cli.main(["run"]) == cli.USAGE
    assert "jwt.yaml" in capsys.readouterr().err


def test_a_controller_runs_with_issuers(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys.json", public(key(), "one"))
    away = {"issuer": "https://localhost:1/away", "audience": "lark", "scopes": {"self": "everyone"}}
    entry = {"issuer": ISSUER, "audience": "lark", "keys": str(keys), "scopes": {"read": {"groups": "readers"}}}
    file = write_issuers(tmp_path / "jwt.yaml", entry, away)
    lark = Lark(tmp_path, "version: 1\n", LARK_JWT_FILE=str(file))
    lark.start()
    try:
        lark.token = made.token(groups=["readers"])
        for _ in range(2):
            assert lark.get("/v1/token")["name"] == f"f81d4fae by {ISSUER}"
        lark.token = made.token(groups=["others"])
        assert lark.request("GET", "/v1/jobs").status == 403
        lark.token = made.token(iss="https://localhost:1/away")
        assert "not known, or not yet" in lark.request("GET", "/v1/jobs").body["detail"]
    finally:
        lark.stop()
