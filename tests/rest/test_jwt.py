from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_controller.api.metrics import Metrics
from lark_controller.cli import main as cli
from lark_controller.rest.app import create_app
from lark_controller.rest.identities import identities as module
from lark_controller.rest.identities.identities import Identities, RefusedTokenError, known_callers
from lark_controller.rest.server.waitress_server import Server
from lark_controller.rest.tokens import LONGEST, Scope, Tokens
from lark_controller.settings import load
from tests.fixtures import issuers as made
from tests.fixtures.fake_controls import FakeControls, post_body, write_tokens
from tests.fixtures.issuers import ISSUER, key, public, raw, token, write_issuers, write_keys
from tests.fixtures.rest_app import Api
from tests.rest.test_routes import assert_problem

SCOPES = {
    "operate": {"groups": "network-operators"},
    "read": {"groups": ["auditors", "network-readers"], "scope": "lark.read"},
    "hook": {"scope": "lark.hook"},
    "self": "everyone",
}


def entry_of(directory: Path, **changed: Any) -> dict[str, Any]:
    return {
        "issuer": ISSUER, "audience": made.AUDIENCE, "keys": str(directory / "keys.json"),
        "user": "preferred_username", "host": "machine", "scopes": SCOPES, **changed,
    }  # fmt: skip


def make(directory: Path, **changed: Any) -> tuple[Identities, Path]:
    keys = write_keys(directory / "keys.json", public(key(), "one"), public(key("ec"), "two"))
    return Identities.of_file(write_issuers(directory / "jwt.yaml", entry_of(directory, **changed))), keys


def api_of(directory: Path, identities: Identities, **overrides: str) -> Api:
    controls, metrics = FakeControls(), Metrics()
    tokens = write_tokens(directory / "tokens.yaml")
    app = create_app(controls, load({}, overrides), Tokens(tokens), metrics, identities)
    return Api(app, controls, app.test_client(), metrics, tokens)


def bearing(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


@pytest.fixture
def identities(tmp_path: Path) -> Identities:
    return make(tmp_path)[0]


# claims that are changed, the scopes, the user and the hosts that come of them
ROLES: list[tuple[dict[str, Any], set[str], str | None, tuple[str, ...] | None]] = [
    ({}, {"self"}, "alice", None),
    ({"groups": ["network-operators"]}, {"operate"}, None, None),
    ({"groups": "network-operators"}, {"operate"}, None, None),
    ({"groups": ["other", "network-operators", 7, None, {}]}, {"operate"}, None, None),
    ({"groups": "network-operators other"}, {"self"}, "alice", None),
    ({"groups": {"network-operators": True}}, {"self"}, "alice", None),
    ({"groups": True}, {"self"}, "alice", None),
    ({"groups": ["auditors"]}, {"self"}, "alice", None),
    ({"groups": ["auditors"], "scope": "openid lark.read"}, {"read"}, None, None),
    ({"groups": ["auditors"], "scope": ["openid", "lark.read"]}, {"read"}, None, None),
    ({"groups": ["auditors"], "scope": "lark.readx"}, {"self"}, "alice", None),
    ({"groups": ["auditors"], "scope": "LARK.READ"}, {"self"}, "alice", None),
    ({"scope": "lark.hook", "machine": "w1.example"}, {"hook"}, None, ("w1.example",)),
    ({"scope": "lark.hook", "machine": "*"}, {"self"}, "alice", None),
    ({"scope": "lark.hook", "machine": ["w1"]}, {"self"}, "alice", None),
    ({"scope": "lark.hook"}, {"self"}, "alice", None),
    ({"preferred_username": None}, set(), None, None),
    ({"preferred_username": ["alice"]}, set(), None, None),
    ({"preferred_username": ""}, set(), None, None),
    ({"preferred_username": "al ice"}, set(), None, None),
    ({"preferred_username": "alice\n"}, set(), None, None),
    ({"preferred_username": "alice@other.example"}, {"self"}, "alice@other.example", None),
]


@pytest.mark.parametrize(("changed", "scopes", "user", "hosts"), ROLES)
def test_claims_give_scopes(
    identities: Identities, changed: dict[str, Any], scopes: set[str], user: str | None, hosts: tuple[str, ...] | None
) -> None:
    found = identities.token(token(**changed))
    assert (set(map(str, found.scopes)), found.user, found.hosts) == (scopes, user, hosts)
    assert found.name.endswith(f" by {ISSUER}")
    assert not found.is_good_for_every_host


def test_a_domain_is_cut_from_a_name_and_another_is_nobodys(tmp_path: Path) -> None:
    identities, _ = make(tmp_path, user="email", domain="pool.example")
    assert identities.token(token(email="alice@pool.example")).user == "alice"
    for other in ("alice@evil.example", "alice", "alice@evil@pool.example", "@pool.example", "alice@xpool.example"):
        found = identities.token(token(email=other))
        assert found.user in (None, "alice@evil")
        assert found.user != "alice"


def test_names_tell_subjects_and_issuers_apart(identities: Identities) -> None:
    first, second = identities.token(token()), identities.token(token(sub="other"))
    assert first.name == f"alice (f81d4fae) by {ISSUER}"
    assert second.name == f"alice (other) by {ISSUER}"


# Of the collection; a whole run may come to these tests an hour later.
NOW = int(time.time())
# What is refused, by the claims that are changed.
CLAIMS: list[tuple[dict[str, Any], str]] = [
    ({"exp": NOW - 61}, "expired"),
    ({"nbf": NOW + 86_400}, "not valid yet"),
    ({"iat": NOW + 86_400}, "not valid yet"),
    ({"aud": "other"}, "audience"),
    ({"aud": ["other", "third"]}, "audience"),
    ({"aud": []}, "lacks the claim|audience"),
    ({"aud": [1, "lark"]}, "it"),
    ({"aud": {"lark": 1}}, "it"),
    ({"aud": None}, "lacks the claim aud"),
    ({"aud": "LARK"}, "audience"),
    ({"exp": None}, "lacks the claim exp"),
    ({"sub": None}, "lacks the claim sub"),
    ({"sub": 7}, "it"),
    ({"sub": ""}, "it"),
    ({"sub": "x" * 256}, "sub"),
    ({"sub": "a\nb"}, "sub"),
    ({"sub": "ä"}, "sub"),
    ({"exp": str(NOW + 300)}, "exp"),
    ({"exp": True}, "it"),
    ({"exp": [1]}, "it"),
    ({"exp": 10**400}, "exp"),
    ({"exp": float("inf")}, "it"),
    ({"exp": float("nan")}, "it"),
    ({"nbf": "soon"}, "it"),
    ({"iss": f"{ISSUER}/"}, "issuer"),
    ({"iss": ISSUER.upper()}, "issuer"),
    ({"iss": [ISSUER]}, "issuer"),
    ({"iss": None}, "issuer"),
    ({"iss": "https://evil.example"}, "issuer"),
]


@pytest.mark.parametrize(("changed", "words"), CLAIMS)
def test_claims_that_are_refused(identities: Identities, changed: dict[str, Any], words: str) -> None:
    try:
        secret = token(**changed)
    except (TypeError, ValueError):
        # What PyJWT itself does not write.
        said = json.dumps(made.claims(**changed)).encode()
        signed = jwt.api_jws.PyJWS().encode(said, key(), "RS256", {"kid": "one"})
        secret = signed
    with pytest.raises(RefusedTokenError, match=words):
        identities.token(secret)


@pytest.mark.parametrize(("claim", "seconds"), [("exp", -20), ("nbf", 40), ("iat", 40), ("exp", 300.5)])
def test_clocks_may_differ_by_a_minute(identities: Identities, claim: str, seconds: float) -> None:
    assert identities.token(token(**dict[str, Any]({claim: time.time() + seconds}))).scopes == {Scope.SELF}


def test_one_of_several_audiences_is_enough(identities: Identities) -> None:
    assert identities.token(token(aud=["other", "lark"])).scopes == {Scope.SELF}


def _signed(alg: str, secret: bytes, payload: bytes) -> str:
    head = raw(json.dumps({"alg": alg, "kid": "one"}).encode(), payload).rpartition(".")[0]
    digest = hmac.new(secret, head.encode(), hashlib.sha256).digest()
    return f"{head}.{raw(b'', b'', digest).rpartition('.')[2]}"


def _payload(**changed: Any) -> bytes:
    return json.dumps(made.claims(**changed)).encode()


def _pem() -> bytes:
    found: bytes = (
        key().public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return found


OTHER = rsa.generate_private_key(65537, 2048)
ATTACKS: dict[str, Callable[[], str]] = {
    "none": lambda: raw(b'{"alg":"none","kid":"one"}', _payload()),
    "none without a signature": lambda: raw(b'{"alg":"none"}', _payload()).rpartition(".")[0] + ".",
    "NONE": lambda: raw(b'{"alg":"NoNe","kid":"one"}', _payload()),
    "no algorithm": lambda: raw(b'{"kid":"one"}', _payload()),
    "a list of algorithms": lambda: raw(b'{"alg":["RS256"],"kid":"one"}', _payload()),
    "HS256 by the public key": lambda: _signed("HS256", _pem(), _payload()),
    "HS256 by nothing": lambda: _signed("HS256", b"", _payload()),
    "another key": lambda: token(OTHER),
    "another key, in the header": lambda: token(OTHER, header={"kid": "one", "jwk": public(OTHER, "one")}),
    "another key, by jku": lambda: token(OTHER, header={"kid": "one", "jku": "https://evil.example/keys"}),
    "another key, by x5u": lambda: token(OTHER, header={"kid": "one", "x5u": "https://evil.example/c", "x5c": ["x"]}),
    "an algorithm that is not accepted": lambda: token(algorithm="RS512"),
    "PS256 by the same key": lambda: token(algorithm="PS256"),
    "the key of another algorithm": lambda: token(header={"kid": "two"}),
    "ES256 by the RSA key's id": lambda: token(key("ec"), "ES256", {"kid": "one"}),
    "an unknown key": lambda: token(header={"kid": "three"}),
    "a path for a key": lambda: token(header={"kid": "../../etc/passwd"}),
    "a key of NUL": lambda: token(header={"kid": "one\0"}),
    "a number for a key": lambda: raw(b'{"alg":"RS256","kid":1}', _payload()),
    "a list for a key": lambda: raw(b'{"alg":"RS256","kid":["one"]}', _payload()),
    "a critical extension": lambda: token(header={"kid": "one", "crit": ["exp"], "exp": 1}),
    "a detached payload": lambda: raw(b'{"alg":"RS256","kid":"one","b64":false,"crit":["b64"]}', b""),
    "a claim set that was changed": lambda: _resigned(token(), _payload(groups=["network-operators"])),
    "the signature cut": lambda: token()[:-8],
    "two parts": lambda: token().rpartition(".")[0],
    "four parts": lambda: token() + ".x",
    "five parts": lambda: "a.b.c.d.e",
    "empty parts": lambda: "..",
    "no base64": lambda: token().replace(".", ".*", 1),
    "padding": lambda: token() + "==",
    "a line end": lambda: token() + "\n",
    "a JSON list": lambda: raw(b'["RS256"]', b"[]"),
    "a JSON text": lambda: raw(b'"RS256"', b'"x"'),
    "deep JSON in the header": lambda: raw(b"[" * 3000, b"{}"),
    "deep JSON in the claims": lambda: raw(b'{"alg":"RS256","kid":"one"}', b'{"a":' * 1800),
    "long numbers": lambda: raw(b'{"alg":"RS256","kid":"one"}', b'{"exp":' + b"9" * 6000 + b"}"),
    "no UTF-8": lambda: raw(b"\xff\xfe", b"\xff"),
    "half a surrogate pair": lambda: raw(b'{"alg":"RS256","kid":"\\ud800"}', _payload()),
    "too long": lambda: token(more="x" * LONGEST),
}


def _resigned(signed: str, payload: bytes) -> str:
    head, _, signature = signed.split(".")
    return f"{head}.{raw(b'', payload).split('.')[1]}.{signature}"


@pytest.mark.parametrize("attack", ATTACKS)
def test_attacks(identities: Identities, attack: str) -> None:
    secret = ATTACKS[attack]()
    began = time.thread_time()
    with pytest.raises(RefusedTokenError) as refused:
        identities.token(secret)
    assert time.thread_time() - began < 0.5
    assert "\n" not in str(refused.value)
    assert str(refused.value).isascii()
    assert identities.seen(secret) is None


def test_of_a_claim_that_is_there_twice_one_counts_for_all(identities: Identities) -> None:
    payload = _payload()[:-1] + b', "groups": ["network-operators"], "groups": ["others"]}'
    signed = jwt.api_jws.PyJWS().encode(payload, key(), "RS256", {"kid": "one"})
    assert identities.token(signed).scopes == {Scope.SELF}
    payload = _payload(iss="https://evil.example")[:-1] + f', "iss": "{ISSUER}"}}'.encode()
    # Signed by the issuer's own key: it says the last.
    assert identities.token(jwt.api_jws.PyJWS().encode(payload, key(), "RS256", {"kid": "one"})).user == "alice"


@settings(max_examples=300, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
        ).map(lambda value: json.dumps(value).encode()),
        st.dictionaries(
            st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "jti", "groups", "scope", "preferred_username"]),
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text(max_size=8)
            | st.lists(st.text(max_size=4)),
        ).map(lambda value: json.dumps(made.claims() | value).encode()),
    ),
    st.sampled_from([b'{"alg":"RS256","kid":"one"}', b'{"alg":"RS256"}', b"{}", b"7"]),
    st.booleans(),
)
def test_no_token_makes_the_controller_fail(
    tmp_path_factory: pytest.TempPathFactory, payload: bytes, header: bytes, signed: bool
) -> None:
    if not _FUZZED:
        _FUZZED.append(make(tmp_path_factory.mktemp("fuzz"))[0])
    secret = raw(header, payload)
    if signed:
        secret = jwt.api_jws.PyJWS().encode(payload, key(), "RS256", {"kid": "one"})
    try:
        found = _FUZZED[0].token(secret)
    except RefusedTokenError:
        return
    assert signed
    assert found.name.endswith(f" by {ISSUER}")


_FUZZED: list[Identities] = []


def test_keys_of_many_kinds(tmp_path: Path) -> None:
    accepted = ["RS256", "ES256", "ES384", "EdDSA"]
    identities, keys = make(tmp_path, algorithms=accepted)
    write_keys(
        keys,
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret"},
        {"kty": "RSA", "kid": "broken"},
        {"kty": "RSA", "kid": "huge", "n": "A" * 100_000, "e": "AQAB"},
        public(rsa.generate_private_key(65537, 1024), "short"),
        public(key(), "encrypts", use="enc"),
        public(key(), "one", alg="RS256", use="sig", key_ops=["verify"]),
        public(key("ec"), "two", x5u="https://evil.example"),
        public(key("ec384"), "three"),
        public(key("ed25519"), "four"),
        "nothing",  # type: ignore[arg-type]
    )
    for kid, kind, algorithm in (("one", "rsa", "RS256"), ("two", "ec", "ES256"), ("four", "ed25519", "EdDSA")):
        assert identities.token(token(key(kind), algorithm, {"kid": kid})).user == "alice"
    # Without an id the one key there is for the algorithm.
    assert identities.token(token(key("ec384"), "ES384", {})).user == "alice"
    for kid in ("broken", "huge", "short", "encrypts", "secret"):
        with pytest.raises(RefusedTokenError, match="key"):
            identities.token(token(header={"kid": kid}))
    secret = _signed("HS256", b"secret", _payload())
    with pytest.raises(RefusedTokenError, match="algorithm"):
        identities.token(secret)


def test_keys_on_disk_are_read_again_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    identities, keys = make(tmp_path)
    keys.write_text("{}")
    assert identities.token(token()).user == "alice"
    write_keys(keys, public(OTHER, "new"))
    with pytest.raises(RefusedTokenError):
        identities.token(token(iat=NOW - 1))
    assert identities.token(token(OTHER, header={"kid": "new"})).user == "alice"


def test_a_key_that_is_gone_counts_no_longer_than_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    identities, keys = make(tmp_path)
    secret = token()
    assert identities.token(secret) is identities.token(secret)
    write_keys(keys, public(OTHER, "new"))
    assert identities.token(secret).user == "alice"
    monkeypatch.setattr(module, "VERIFIED_SECONDS", 0.0)
    with pytest.raises(RefusedTokenError):
        identities.token(secret)


def test_what_is_remembered_is_bounded(identities: Identities, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REMEMBERED", 3)
    secrets = [token(key("ec"), "ES256", {"kid": "two"}, sub=f"s{number}") for number in range(6)]
    for secret in secrets:
        identities.token(secret)
    assert [identities.seen(secret) is not None for secret in secrets] == [False] * 3 + [True] * 3
    expires = time.time() + 400
    identities._clock = lambda: expires
    assert identities.seen(secrets[-1]) is None


def test_only_a_token_that_was_verified_has_turns_of_its_own(tmp_path: Path, identities: Identities) -> None:
    tokens = Tokens(write_tokens(tmp_path / "tokens.yaml"))
    known, secret = known_callers(tokens, identities), token()
    assert known(f"Bearer {secret}") is None
    assert known(f"Bearer {token(OTHER)}") is None
    verified = identities.token(secret)
    assert known(f"Bearer {secret}") is verified
    assert known(f"Basic {secret}") is None
    assert known("Bearer") is None
    assert known("Bearer lark_read_secret") is not None
    assert known("Bearer lark_expired_secret") is None
    assert known_callers(tokens, None)(f"Bearer {secret}") is None


# over HTTP


def test_a_jwt_is_accepted_as_a_token_is(tmp_path: Path, identities: Identities) -> None:
    api = api_of(tmp_path, identities)
    shown: Any = api.client.get("/v1/token", headers=bearing(token(groups=["network-operators"])))
    assert shown.status_code == 200
    assert shown.json["scopes"] == ["operate"]
    assert shown.json["name"] == f"alice (f81d4fae) by {ISSUER}"
    put = api.client.put(
        "/v1/policy", data="version: 1\n# new\n", content_type="application/yaml",
        headers=bearing(token(groups=["network-operators"])),
    )  # fmt: skip
    assert put.status_code == 200
    assert put.json is not None
    assert put.json["actor"] == f"alice (f81d4fae) by {ISSUER}"
    # Static tokens go on as they were.
    assert api.get("/v1/jobs").status_code == 200
    assert_problem(api.client.get("/v1/jobs", headers=bearing("lark_nobody")), 401, "token")


def test_a_jwt_of_a_worker_is_good_for_that_worker_alone(tmp_path: Path, identities: Identities) -> None:
    api = api_of(tmp_path, identities)
    for machine, status in (("worker1.example", 201), ("worker2.example", 403)):
        held = bearing(token(scope="lark.hook", machine=machine))
        assert (
            api.client.post("/v1/jobs", data=post_body(), content_type="text/plain", headers=held).status_code == status
        )
        assert_problem(api.client.get("/v1/jobs", headers=held), 403, "scope")


def test_a_jwt_that_gives_nothing_is_refused_by_scope(tmp_path: Path, identities: Identities) -> None:
    api = api_of(tmp_path, identities)
    problem = assert_problem(api.client.get("/v1/token", headers=bearing(token(preferred_username=None))), 403, "scope")
    assert "lacks the scope" in problem["detail"]


def test_a_refused_jwt_gets_the_reason_and_attempts_are_limited(tmp_path: Path, identities: Identities) -> None:
    api = api_of(tmp_path, identities)
    answer = api.client.get("/v1/jobs", headers=bearing(token(exp=NOW - 100)))
    assert "expired" in assert_problem(answer, 401, "token")["detail"]
    assert 'error="invalid_token"' in answer.headers["WWW-Authenticate"]
    for attack in list(ATTACKS.values())[:12]:
        held = {"Authorization": f"Bearer {attack()}"}
        assert api.client.get("/v1/jobs", headers=held).status_code in (401, 429)
    assert api.client.get("/v1/jobs", headers=bearing(token(OTHER))).status_code == 429
    assert api.client.get("/v1/jobs", headers=bearing(token())).status_code == 200


def test_each_subject_has_a_rate_of_its_own(tmp_path: Path, identities: Identities) -> None:
    api = api_of(tmp_path, identities, rate_limit="0.1", rate_burst="2")
    statuses = [
        api.client.get("/v1/token", headers=bearing(token(sub=subject, jti=str(number)))).status_code
        for subject in ("one", "two")
        for number in range(3)
    ]
    assert statuses == [200, 200, 429] * 2


def test_without_issuers_no_jwt_is_accepted(tmp_path: Path) -> None:
    controls = FakeControls()
    app = create_app(controls, load({}), Tokens(write_tokens(tmp_path / "tokens.yaml")), Metrics())
    assert app.test_client().get("/v1/jobs", headers=bearing(token())).status_code == 401


def test_the_command_takes_a_jwt_as_it_takes_a_token(
    tmp_path: Path, identities: Identities, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    api = api_of(tmp_path, identities)
    api.register(1, "alice")
    api.register(2, "bob")
    tokens = Tokens(api.tokens)
    listen = load({}, {"rest_listen": f"unix:{tmp_path}/rest.sock"})
    server = Server(api.app, listen, known_callers(tokens, identities))
    server.start()
    try:
        (tmp_path / "token").write_text(token() + "\n")
        monkeypatch.delenv("LARK_TOKEN", raising=False)
        monkeypatch.setenv("LARK_URL", f"unix:{tmp_path}/rest.sock")
        monkeypatch.setenv("LARK_TOKEN_FILE", str(tmp_path / "token"))
        for _ in range(2):
            assert cli.main(["jobs"]) == cli.OK
            shown = capsys.readouterr().out
            assert "1.0" in shown
            assert "bob" not in shown
        for command in (["drops"], ["jobs", "1.0"], ["reserve", "list"], ["audit", "1.0"]):
            assert cli.main(command) == cli.OK, capsys.readouterr().err
        for command in (["switches"], ["top", "--once"], ["jobs", "2.0"]):
            assert cli.main(command) != cli.OK
    finally:
        server.stop()
