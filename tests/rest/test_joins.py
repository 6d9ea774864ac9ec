"""Join tokens, and what is signed for the workers that join by them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from flask.testing import FlaskClient

from lark_common.errors import NotFoundError, SettingError, StoreError
from lark_common.settings_table import lines_of
from lark_controller.rest import tokens
from lark_controller.rest.app import create_app
from lark_controller.rest.joins import certificates
from lark_controller.rest.joins.join_tokens import JoinTokens
from lark_controller.rest.joins.joined_workers import JoinedWorkers
from lark_controller.rest.joins.joining import Joining
from lark_controller.rest.tokens import Scope, Token, Tokens
from lark_controller.settings import load
from lark_controller.store import Store
from tests.fixtures.controllers import until
from tests.fixtures.databases import sqlite_with_tables
from tests.fixtures.fake_controls import FakeControls
from tests.fixtures.site import SetUp

HOST, OTHER = "worker1.example", "Worker2.example"
A, B, C = "a" * 64, "b" * 64, "c" * 64
SigningKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def request(key: SigningKey, *names: str, authority: bool = False) -> str:
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody")])
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), False)
    if authority:
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    digest = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, digest).public_bytes(serialization.Encoding.PEM).decode()


def p256() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Counted:
    """The records of a store, with the number of questions; away where a test says so."""

    def __init__(self, store: Store) -> None:
        self.joins = store.joins
        self.asked = 0
        self.away = False

    def __getattr__(self, name: str) -> Any:
        self.asked += 1
        if self.away:
            raise StoreError("The database is away.")
        return getattr(self.joins, name)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Counted]:
    store = Store.open(sqlite_with_tables(tmp_path / "lark.db"))
    yield Counted(store)
    store.close()


def instance(records: Counted, clock: Callable[[], float] = time.time) -> tuple[JoinTokens, JoinedWorkers]:
    """The join tokens of an instance on the database, and the workers that it knows."""
    known = JoinedWorkers(records, clock, seconds=0.01)
    return JoinTokens(records, known, clock), known


def test_a_request_asks_no_database(records: Counted, clock: Clock) -> None:
    join_tokens, known = instance(records, clock)
    made, secret = join_tokens.add([HOST], 3600, "alice")
    assert join_tokens.find(secret) == made.id
    join_tokens.use(made.id, HOST, "10.0.0.1", A)
    before = records.asked
    for _ in range(100):
        assert known.find(A) == Token(HOST, A, frozenset({Scope.HOOK}), hosts=(HOST,))
        assert known.find(B) is None
        assert join_tokens.find(secret) == made.id
        assert join_tokens.find("another") is None
    assert records.asked == before
    clock.now += 3600
    assert join_tokens.find(secret) is None


def test_another_instance_knows_and_refuses_the_same_after_each_look(records: Counted, clock: Clock) -> None:
    join_tokens, own = instance(records, clock)
    others, known = instance(records, clock)
    first, secret = join_tokens.add([HOST, OTHER], 3600, "alice")
    join_tokens.use(first.id, HOST, "10.0.0.1", A)
    known.refresh()
    assert others.find(secret) == first.id
    assert known.find(A) == own.find(A) is not None
    # A host that joins anew has another token, and the former one is nobody's.
    second, _ = others.add([HOST], 3600, "bob")
    others.use(second.id, HOST, "10.0.0.1", B)
    join_tokens.use(first.id, OTHER, "10.0.0.1", C)
    assert [own.find(each) is not None for each in (A, B, C)] == [False, True, True]
    join_tokens.revoke(HOST, "alice")
    join_tokens.remove(first.id, "alice")
    known.refresh()
    for each in (own, known):
        assert [each.find(sha256) is not None for sha256 in (A, B, C)] == [False, False, True]
    assert others.find(secret) is join_tokens.find(secret) is None


def test_a_worker_is_revoked_by_the_first_part_of_its_name_where_no_other_has_it(records: Counted) -> None:
    join_tokens, known = instance(records)
    hosts = ("worker7.one.example", "worker8.one.example", "worker8.two.example")
    made, _ = join_tokens.add(hosts, 3600, "alice")
    for host, sha256 in zip(hosts, (A, B, C), strict=True):
        join_tokens.use(made.id, host, "10.0.0.1", sha256)
    assert join_tokens.revoke("Worker7", "alice") == "worker7.one.example"
    with pytest.raises(NotFoundError, match=r"worker8: worker8\.one\.example, worker8\.two\.example; say which"):
        join_tokens.revoke("worker8", "alice")
    assert join_tokens.revoke("worker8.two.example", "alice") == "worker8.two.example"
    with pytest.raises(NotFoundError, match="no worker worker7 has joined"):
        join_tokens.revoke("worker7", "alice")
    assert [known.find(each) is not None for each in (A, B, C)] == [False, True, False]


def test_what_is_known_stays_while_the_database_is_away(records: Counted) -> None:
    join_tokens, _ = instance(records)
    _, known = instance(records)
    made, _ = join_tokens.add([HOST], 3600, "alice")
    join_tokens.use(made.id, HOST, "10.0.0.1", A)
    known.thread.start()
    until(lambda: known.find(A) is not None)
    records.away = True
    asked = records.asked
    until(lambda: records.asked > asked + 3)
    assert known.find(A) is not None
    with pytest.raises(StoreError):
        join_tokens.revoke(HOST, "alice")
    records.away = False
    join_tokens.revoke(HOST, "alice")
    until(lambda: known.find(A) is None)
    known.thread.stop()


def test_an_unexpected_error_does_not_end_the_thread(records: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    _, known = instance(records)
    failed: list[str] = []

    def fails(_seen: int) -> None:
        failed.append("once")
        raise RuntimeError("not thought of")

    monkeypatch.setattr(records, "changes", fails, raising=False)
    known.thread.start()
    until(lambda: len(failed) > 2)
    assert known.thread.is_alive()
    known.thread.stop()


@pytest.fixture
def site(tmp_path: Path) -> SetUp:
    made = SetUp(tmp_path / "lark")
    made.options = ("--name", "lark.example", "--networks", "10.64.0.0/16", "--joins")
    assert made() == 0
    return made


def joining(site: SetUp, records: Counted, **overrides: str) -> Joining:
    settings = lines_of((site.directory / "lark.env").read_text())
    return Joining(load(settings, {"state_dir": str(site.directory / "state"), **overrides}), instance(records)[0])


def admitted(made: Joining, text: str | None) -> x509.Certificate:
    join_token, _ = made.join_tokens.add([HOST], 3600, "alice")
    answer = made.admit(join_token.id, HOST, "10.0.0.1", A, text)
    assert answer.certificate is not None
    return x509.load_pem_x509_certificate(answer.certificate.encode())


@pytest.mark.parametrize(
    "make",
    [p256, lambda: ec.generate_private_key(ec.SECP384R1()), lambda: rsa.generate_private_key(65537, 2048)],
    ids=["P-256", "P-384", "RSA"],
)
def test_of_a_request_the_key_alone_is_taken(site: SetUp, records: Counted, make: Callable[[], Any]) -> None:
    key = make()
    signed = admitted(joining(site, records), request(key, "lark.example", "*.example", authority=True))
    assert certificates.subject_of(signed).names == (HOST,)
    assert signed.subject.rfc4514_string() == f"CN={HOST}"
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert certificates.belong(signed, key)


def forged() -> str:
    """A request whose signature is of another request."""
    ours = x509.load_pem_x509_csr(request(p256()).encode()).public_bytes(serialization.Encoding.DER)
    damaged = x509.load_der_x509_csr(ours[:-1] + bytes([ours[-1] ^ 1]))
    return damaged.public_bytes(serialization.Encoding.PEM).decode()


REFUSED: dict[str, Callable[[], str]] = {
    "no request": lambda: "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
    "not ASCII": lambda: "é",
    "an Ed25519 key": lambda: request(ed25519.Ed25519PrivateKey.generate()),
    "another curve": lambda: request(ec.generate_private_key(ec.SECP521R1())),
    "a weak key": lambda: request(rsa.generate_private_key(65537, 1024)),
    "somebody else's key": forged,
}


@pytest.mark.parametrize("case", REFUSED)
def test_requests_that_are_not_signed(site: SetUp, records: Counted, case: str) -> None:
    made = joining(site, records)
    join_token, _ = made.join_tokens.add([HOST], 3600, "alice")
    with pytest.raises(ValueError, match=r"accepted: a request in PEM, signed with its own EC"):
        made.admit(join_token.id, HOST, "10.0.0.1", A, REFUSED[case]())
    # The token is as it was.
    (found,) = made.join_tokens.listed()
    assert found.hosts == {HOST: None}
    assert made.join_tokens.workers() == ()


@pytest.fixture
def client(site: SetUp, records: Counted) -> FlaskClient:
    settings = load(lines_of((site.directory / "lark.env").read_text()), {"state_dir": str(site.directory / "state")})
    join_tokens, known = instance(records)
    app = create_app(
        FakeControls(),
        settings,
        Tokens(settings.tokens_file, joined=known.find),
        joining=Joining(settings, join_tokens),
    )
    return app.test_client()


def operator(site: SetUp) -> dict[str, str]:
    return {"Authorization": f"Bearer {(site.directory / 'operator.token').read_text().strip()}"}


@pytest.mark.parametrize("host", ["lark.example", "LARK.example", "operator", "ctl-b"])
def test_nobody_joins_as_the_controller(site: SetUp, client: FlaskClient, host: str) -> None:
    answer = client.post("/v1/joins", json={"hosts": [HOST, host], "seconds": 3600}, headers=operator(site))
    assert answer.status_code == 409, answer.text
    assert host in answer.text


@pytest.mark.parametrize(
    "wish",
    [
        {"hosts": [], "seconds": 3600},
        {"hosts": [HOST, HOST.upper()], "seconds": 3600},
        {"hosts": ["*.example"], "seconds": 3600},
        {"hosts": [f"{'a' * 64}.example"], "seconds": 3600},
        {"hosts": [f"a\n{HOST}"], "seconds": 3600},
        {"hosts": [HOST], "seconds": 59},
        {"hosts": [HOST], "seconds": 604_801},
        {"hosts": [HOST], "seconds": float("nan")},
        {"hosts": HOST, "seconds": 3600},
        {"seconds": 3600},
    ],
)
def test_wishes_that_are_refused(site: SetUp, client: FlaskClient, wish: dict[str, object]) -> None:
    answer = client.post("/v1/joins", json=wish, headers=operator(site))
    assert answer.status_code in (400, 422), answer.text


def test_the_members_of_an_answer_are_those_that_were_joined_with(site: SetUp, client: FlaskClient) -> None:
    made = client.post("/v1/joins", json={"hosts": [HOST], "seconds": 3600}, headers=operator(site)).json
    assert made is not None
    secret = made["token"].split(".")[2]
    headers = {"Authorization": f"Bearer {secret}"}
    answer = client.post("/v1/join", json={"host": HOST, "sha256": A, "request": request(p256())}, headers=headers)
    assert answer.status_code == 200, answer.text
    given: Any = answer.json
    assert given["settings"] == {"LARK_WORKER_NETWORKS": "10.64.0.0/16"}
    assert (given["openflow_port"], given["ovsdb_port"], given["shows_certificate"]) == (6653, None, False)
    assert (
        client.post("/v1/join", json={"host": HOST, "sha256": "x", "request": None}, headers=headers).status_code == 422
    )
    assert client.post("/v1/join", data=b"[" * 9000, headers=headers).status_code in (400, 415)


def test_a_worker_that_was_revoked_is_refused_at_once(site: SetUp, client: FlaskClient) -> None:
    boss = operator(site)
    made: Any = client.post("/v1/joins", json={"hosts": [HOST, OTHER], "seconds": 3600}, headers=boss).json
    own = {"Authorization": "Bearer lark_own"}
    bearer = {"Authorization": f"Bearer {made['token'].split('.')[2]}"}
    sha256 = hashlib.sha256(b"lark_own").hexdigest()
    sent = {"host": HOST, "sha256": sha256, "request": None}
    assert client.get("/v1/joins", headers=own).status_code == 401
    assert client.post("/v1/join", json=sent, headers=bearer).status_code == 200
    # It is known, and may not do what operators do.
    for method, path in (("GET", "/v1/joins"), ("GET", "/v1/joined"), ("DELETE", f"/v1/joined/{HOST}")):
        assert client.open(path, method=method, headers=own).status_code == 403
    (joined,) = client.get("/v1/joined", headers=boss).json["workers"]  # type: ignore[index]
    assert joined.pop("joined_at").endswith("Z")
    assert joined == {"host": HOST, "joined_from": "127.0.0.1", "join_token": made["id"]}
    assert client.delete(f"/v1/joined/{OTHER}", headers=boss).status_code == 404
    assert client.delete(f"/v1/joined/{HOST}", headers=boss).json == {"workers": []}
    assert client.get("/v1/joins", headers=own).status_code == 401
    again = client.post("/v1/join", json=sent, headers=bearer)
    assert again.status_code == 409
    assert "was revoked" in again.text


def test_without_the_setting_nobody_joins(tmp_path: Path) -> None:
    path = tmp_path / "tokens.yaml"
    secret = tokens.add(path, "boss", (tokens.Scope.OPERATE,))
    client = create_app(FakeControls(), load({}), Tokens(path)).test_client()
    boss = {"Authorization": f"Bearer {secret}"}
    for answer in (
        client.post("/v1/joins", json={"hosts": [HOST], "seconds": 3600}, headers=boss),
        client.get("/v1/authority"),
        client.post("/v1/join", json={}),
    ):
        assert answer.status_code == 409
        assert "LARK_JOIN_SETTINGS is not set (lark setup --joins sets it)" in answer.text


MISTAKES = {
    "another authority": (("openflow_tls_ca", "other/ca.pem"), r"which has not signed LARK_REST_TLS_CERT="),
    "another key": (("join_key", "other/ca/ca.key"), r"LARK_JOIN_KEY=.*is for another key than the authority's"),
    "no key": (("join_key", "none"), r"LARK_JOIN_KEY=.*none: there is no such file"),
    "no settings": (("join_settings", "none"), r"LARK_JOIN_SETTINGS=.*none: there is no such file"),
    "other settings": (("join_settings", "lark.env"), r"lark\.env: LARK_\w+: accepted: settings of workers"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_settings_that_do_not_fit_are_refused_at_the_start(site: SetUp, records: Counted, case: str) -> None:
    other = SetUp(site.directory / "other")
    assert other("--joins") == 0
    (name, path), message = MISTAKES[case]
    overrides = {name: str(site.directory / path)}
    if name == "openflow_tls_ca":
        overrides["join_key"] = str(site.directory / "other/ca/ca.key")
    with pytest.raises(SettingError, match=message):
        joining(site, records, **overrides)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"LARK_JOIN_KEY": "/k"}, "LARK_JOIN_KEY: needs LARK_JOIN_SETTINGS"),
        ({"LARK_JOIN_SETTINGS": "/s"}, "LARK_JOIN_SETTINGS: needs LARK_REST_TLS_CERT and LARK_OPENFLOW_TLS_LISTEN"),
    ],
)
def test_workers_join_over_tls_alone(environment: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        load(environment)
