"""Join a site by a join token: over TLS, with the authority that the token names, and keys that are made here.

The token of the worker, and its private key, are made on this machine and never leave it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lark_common.client import Client, ProblemError, UnreachableError
from lark_common.controllers import urls
from lark_common.errors import SettingError
from lark_common.settings_table import lines_of
from lark_worker.errors import AwayError, NetworkError, RefusedError
from lark_worker.given_controllers import MOST, TIMEOUT, Shown, has_all
from lark_worker.network.commands import run
from lark_worker.records.atomic_file import write_atomically
from lark_worker.settings import PREFIX, table

MARK: Final = "lark1"
# Characters of another host's name in an error.
_LONGEST_HOST: Final = 64
# Settings that a controller does not give: programs that root runs, and places on this machine.
OWN: Final = frozenset(
    PREFIX + name.upper()
    for name in (
        "url", "token_file", "ca_file", "cert_file", "key_file", "socket", "state_dir", "ovs_database", "script",
        "namespace_script", "startd_address_file", "starters", "startds",
    )
)  # fmt: skip
URL: Final = PREFIX + "URL"
# These reach beyond their line of a file of settings (systemd.exec(5), EnvironmentFile), and could hide those behind.
_QUOTING: Final = frozenset("\"'\\")
# Seconds before its end from which a certificate is made anew.
_SOON: Final = 30 * 86_400
_TRUST: Final = "ca.pem"
_KEY: Final = "switch.key"
_CERTIFICATE: Final = "switch.pem"
_TOKEN: Final = "worker.token"


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A join token: the SHA-256 of the authority's certificates as the controller shows them, and the secret."""

    pin: bytes
    secret: str


@dataclass(frozen=True, slots=True)
class Joined:
    """A worker that has joined: its name, settings, the port to which its switch connects, and that on which its
    database is to listen (None: on none)."""

    host: str
    settings: Mapping[str, str]
    openflow_port: int
    ovsdb_port: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """The directory of a worker's files, and their paths."""

    directory: Path

    @property
    def authority(self) -> Path:
        """The certificates that it trusts."""
        return self.directory / _TRUST

    @property
    def key(self) -> Path:
        """Its private key."""
        return self.directory / _KEY

    @property
    def certificate(self) -> Path:
        """Its certificate."""
        return self.directory / _CERTIFICATE

    @property
    def token(self) -> Path:
        """Its token."""
        return self.directory / _TOKEN

    @property
    def settings(self) -> Path:
        """Its settings."""
        return self.directory / "worker.env"


def read_join_token(text: str) -> JoinToken:
    """The parts of a join token. Raises SettingError."""
    mark, _, rest = text.strip().partition(".")
    pin, _, secret = rest.partition(".")
    with suppress(ValueError, binascii.Error):
        digest = base64.b64decode(pin + "=", altchars=b"-_", validate=True)
        if mark == MARK and len(digest) == hashlib.sha256().digest_size and secret.isascii() and len(secret) > 1:
            return JoinToken(digest, secret)
    raise SettingError("--join: it is no join token; accepted: all of what `lark join add` has printed (lark1.….…)")


def verify(controllers: Iterable[str], place: Place) -> None:
    """Look whether each controller has a certificate of the worker's authority, with its name. Raises AwayError."""
    for url in controllers:
        try:
            Client(url, None, place.authority, TIMEOUT, whole=True, most=MOST).authority()
        except UnreachableError as error:
            raise AwayError(
                f"{error} It has the right authority; does its certificate have the name in --controller?"
            ) from None
        except ProblemError as error:
            raise AwayError(f"{url}: {error}") from None


def join(shown: Shown, token: JoinToken, host: str, place: Place) -> Joined:
    """Join by any of the controllers that are there, and write what this worker has got: authority, key, certificate
    and token; the settings name those that are away, too. May be repeated.

    Raises AwayError, RefusedError, NetworkError (openssl) or SettingError, each with what to do.
    """
    if not shown.there:
        why = " ".join(shown.away.values())
        raise AwayError(f"{why} Is --controller right, and may this worker reach that port?")
    _write(place.authority, shown.authority, 0o644)
    verify(shown.there, place)
    own = _own_token(place)
    request = None if has_certificate(place) else _request(place, host)
    there = ",".join(shown.there)
    try:
        client = Client(there, token.secret, place.authority, TIMEOUT, whole=True, most=MOST)
        answer = client.join(host, hashlib.sha256(own.encode()).hexdigest(), request)
    except UnreachableError as error:
        raise AwayError(str(error)) from None
    except ProblemError as error:
        raise RefusedError(str(error)) from None
    try:
        given = _read(answer)
        if given.host.lower() != host.lower():
            raise ValueError(f"it answers for {given.host[:_LONGEST_HOST]!r}")
    except (KeyError, TypeError, ValueError) as error:
        raise AwayError(f"{there} does not answer as a Lark controller does: {error}") from None
    if answer["certificate"] is not None:
        _write(place.certificate, str(answer["certificate"]), 0o600)
    if not has_certificate(place):
        raise RefusedError(f"{place.certificate} is not a certificate of {place.authority} for {place.key}")
    files = {"CA_FILE": place.authority, "TOKEN_FILE": place.token}
    if answer.get("shows_certificate"):
        files |= {"CERT_FILE": place.certificate, "KEY_FILE": place.key}
    settings = {**given.settings, **{PREFIX + name: str(value) for name, value in files.items()}}
    return Joined(given.host, settings, given.openflow_port, given.ovsdb_port)


def has_certificate(place: Place) -> bool:
    """True where the certificate is of the authority, for the key that is there, and lasts for another month."""
    if not all(path.exists() for path in (place.authority, place.key, place.certificate)):
        return False
    try:
        run(["openssl", "verify", "-CAfile", str(place.authority), str(place.certificate)])
        run(["openssl", "x509", "-in", str(place.certificate), "-noout", "-checkend", str(_SOON)])
        signed = run(["openssl", "x509", "-in", str(place.certificate), "-noout", "-pubkey"])
        return signed == run(["openssl", "pkey", "-in", str(place.key), "-pubout"])
    except NetworkError:
        return False


def merged(before: str, given: Mapping[str, str]) -> tuple[str, tuple[str, ...]]:
    """The text of a file of settings with what was given, and the settings of the site's that stay as they are.

    What names this worker's files is replaced, and the controllers' URLs but for a list that has all of them; every
    other setting that the file has is the site's.
    """
    known = lines_of(before)
    if known.get(URL) and has_all(urls(known[URL]), urls(given[URL])):
        given = {**given, URL: known[URL]}
    kept = tuple(name for name in given if name in known and known[name] != given[name] and name not in OWN)
    lines = []
    for line in before.splitlines():
        name = line.partition("=")[0].strip()
        replaced = name in given and name in OWN and "=" in line
        lines.append(f"{name}={given[name]}" if replaced else line)
    lines += [f"{name}={value}" for name, value in given.items() if name not in known]
    return "\n".join(lines) + "\n", kept


def _read(answer: Mapping[str, Any]) -> Joined:
    known = {row.variable for row in table()}
    settings = {}
    for name, value in dict(answer["settings"]).items():
        if name in OWN:
            raise ValueError(f"{name} is not a controller's to give; write it into worker.env")
        if name not in known or not isinstance(value, str) or not value.isprintable():
            raise ValueError(f"{name!r} is no setting of this version's")
        if not _QUOTING.isdisjoint(value):
            raise ValueError(f"{name} has a quotation mark or a backslash, which is no part of a setting")
        settings[name] = value
    port, database = answer["openflow_port"], answer["ovsdb_port"]
    if not all(isinstance(each, int) and 0 < each < 65_536 for each in (port, *_given(database))):
        raise ValueError("no port")
    if answer["certificate"] is not None and not str(answer["certificate"]).startswith("-----BEGIN CERTIFICATE-----"):
        raise ValueError("no certificate")
    return Joined(str(answer["host"]), settings, port, database)


def _given(value: object) -> Iterator[object]:
    if value is not None:
        yield value


def _own_token(place: Place) -> str:
    """The token of this worker: kept before it is sent, so that a second try sends the same."""
    with suppress(FileNotFoundError):
        found = place.token.read_text("ascii").strip()
        if found:
            return found
    made = "lark_" + secrets.token_urlsafe(32)
    _write(place.token, f"{made}\n", 0o600)
    return made


def _request(place: Place, host: str) -> str:
    """A request for a certificate, with the key that is there or a new one."""
    if not place.key.exists():
        key = run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"])
        _write(place.key, key, 0o600)
    return run(["openssl", "req", "-new", "-key", str(place.key), "-subj", f"/CN={host}"])


def _write(path: Path, text: str, mode: int) -> None:
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        if not path.exists() or path.read_text("utf-8", "replace") != text:
            write_atomically(path, text, mode)
    except OSError as error:
        raise SettingError(f"{path}: cannot be written: {error.strerror or error}") from None
