"""Join tokens, and what is signed for the workers that join by them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from flask.testing import FlaskClient

from lark_common.errors import BusyError, NotFoundError, SettingError, StateError
from lark_common.settings_table import lines_of
from lark_controller.rest import tokens
from lark_controller.rest.app import create_app
from lark_controller.rest.joins import certificates
from lark_controller.rest.joins.join_tokens import MOST_TOKENS, JoinTokens
from lark_controller.rest.joins.joining import WORKERS, Joining
from lark_controller.rest.tokens import Tokens
from lark_controller.settings import load
from tests.fixtures.fake_controls import FakeControls
from tests.fixtures.site import SetUp

HOST, OTHER = "worker1.example", "Worker2.example"
A, B = "a" * 64, "b" * 64
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


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def join_tokens(tmp_path: Path, clock: Clock) -> JoinTokens:
    return JoinTokens(tmp_path / "joins.json", clock)


def test_a_token_is_good_until_its_end_also_after_a_restart(
    join_tokens: JoinTokens, clock: Clock, tmp_path: Path
) -> None:
    made, secret = join_tokens.add([HOST], 3600, "alice")
    again = JoinTokens(tmp_path / "joins.json", clock)
    assert again.find(secret) == join_tokens.find(secret) == made
    clock.now += 3599
    assert again.use(made.id, HOST.upper(), "10.0.0.1", A) == HOST
    clock.now += 1
    assert again.find(secret) is None
    assert again.listed() == ()
    with pytest.raises(NotFoundError):
        again.use(made.id, HOST, "10.0.0.1", A)


USES: list[tuple[list[tuple[str, str]], type[Exception] | None]] = [
    ([(HOST, A)], None),
    ([(HOST, A), (HOST, A)], None),
    ([(HOST, A), (HOST, B)], StateError),
    ([(HOST, A), (HOST.upper(), B)], StateError),
    ([(HOST, A), (OTHER, A)], None),
    ([(HOST, A), (OTHER.lower(), B)], None),
    ([("worker3.example", A)], NotFoundError),
    ([("", A)], NotFoundError),
    ([("*", A)], NotFoundError),
]


@pytest.mark.parametrize(("uses", "refused"), USES)
def test_each_host_joins_once(
    join_tokens: JoinTokens, uses: list[tuple[str, str]], refused: type[Exception] | None
) -> None:
    made, _ = join_tokens.add([HOST, OTHER], 3600, "alice")
    *before, last = uses
    for host, digest in before:
        join_tokens.use(made.id, host, "10.0.0.1", digest)
    if refused is None:
        join_tokens.use(made.id, last[0], "10.0.0.1", last[1])
    else:
        with pytest.raises(refused):
            join_tokens.use(made.id, last[0], "10.0.0.1", last[1])


def test_of_two_at_the_same_time_one_joins(join_tokens: JoinTokens) -> None:
    made, _ = join_tokens.add([HOST], 3600, "alice")
    outcomes: list[str] = []

    def use(digest: str) -> None:
        try:
            outcomes.append(join_tokens.use(made.id, HOST, "10.0.0.1", digest))
        except StateError:
            outcomes.append("refused")

    threads = [threading.Thread(target=use, args=(f"{number:064x}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 7 + [HOST]


def test_tokens_are_bounded_and_removed_ones_are_gone(join_tokens: JoinTokens) -> None:
    made = [join_tokens.add([HOST], 3600, "alice") for _ in range(MOST_TOKENS)]
    with pytest.raises(BusyError):
        join_tokens.add([HOST], 3600, "alice")
    first, secret = made[0]
    join_tokens.remove(first.id)
    assert join_tokens.find(secret) is None
    with pytest.raises(NotFoundError):
        join_tokens.remove(first.id)
    join_tokens.add([HOST], 3600, "alice")


@pytest.mark.parametrize("content", ["[]", "{", '{"a": 1}', '{"a": {"sha256": 1}}', "nul\0"])
def test_a_file_that_is_none_is_refused_at_the_start(tmp_path: Path, content: str) -> None:
    (tmp_path / "joins.json").write_text(content)
    with pytest.raises(SettingError, match=r"joins\.json: it has no join tokens; remove the file"):
        JoinTokens(tmp_path / "joins.json")


def test_two_workers_that_join_at_a_time_both_have_their_tokens(tmp_path: Path) -> None:
    path = tmp_path / "workers.yaml"
    hosts = [f"worker{number}.example" for number in range(20)]
    threads = [threading.Thread(target=tokens.bind, args=(path, host, f"{len(host):064x}")) for host in hosts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {token.hosts for token in tokens.read(path)} == {(host,) for host in hosts}


@pytest.fixture
def site(tmp_path: Path) -> SetUp:
    made = SetUp(tmp_path / "lark")
    made.options = ("--name", "lark.example", "--networks", "10.64.0.0/16", "--joins")
    assert made() == 0
    return made


def joining(site: SetUp, **overrides: str) -> Joining:
    settings = lines_of((site.directory / "lark.env").read_text())
    return Joining(load(settings, {"state_dir": str(site.directory / "state"), **overrides}))


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
def test_of_a_request_the_key_alone_is_taken(site: SetUp, make: Callable[[], Any]) -> None:
    key = make()
    signed = admitted(joining(site), request(key, "lark.example", "*.example", authority=True))
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
def test_requests_that_are_not_signed(site: SetUp, case: str) -> None:
    made = joining(site)
    join_token, secret = made.join_tokens.add([HOST], 3600, "alice")
    with pytest.raises(ValueError, match=r"accepted: a request in PEM, signed with its own EC"):
        made.admit(join_token.id, HOST, "10.0.0.1", A, REFUSED[case]())
    # The token is as it was.
    found = made.join_tokens.find(secret)
    assert found is not None
    assert found.hosts == {HOST: None}
    assert tokens.read(site.directory / "state" / WORKERS) == ()


@pytest.fixture
def client(site: SetUp) -> FlaskClient:
    settings = load(lines_of((site.directory / "lark.env").read_text()), {"state_dir": str(site.directory / "state")})
    made = Joining(settings)
    app = create_app(FakeControls(), settings, Tokens(settings.tokens_file, joined=made.workers_file), joining=made)
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
def test_settings_that_do_not_fit_are_refused_at_the_start(site: SetUp, case: str) -> None:
    other = SetUp(site.directory / "other")
    assert other("--joins") == 0
    (name, path), message = MISTAKES[case]
    overrides = {name: str(site.directory / path)}
    if name == "openflow_tls_ca":
        overrides["join_key"] = str(site.directory / "other/ca/ca.key")
    with pytest.raises(SettingError, match=message):
        joining(site, **overrides)


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
