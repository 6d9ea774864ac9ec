"""The file of issuers whose JWTs the API accepts (``LARK_JWT_FILE``): where their keys are, what their claims allow.

It is read at the start, and again when it changes. It holds no secret, and whoever may write it may do everything: a
file that group or others may write is refused, as is one with any mistake.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import yaml

from lark_common.errors import SettingError, UnreadableError
from lark_controller.rest.tokens import LOADER, Scope

# A key each: the kinds of keys that these algorithms are for, and of those the curves. None with a secret that is
# shared, which a public key could be taken for.
KINDS: Final[Mapping[str, tuple[str, str | None]]] = {
    **{f"{family}{bits}": ("RSA", None) for family in ("RS", "PS") for bits in (256, 384, 512)},
    "ES256": ("EC", "P-256"),
    "ES384": ("EC", "P-384"),
    "ES512": ("EC", "P-521"),
    "EdDSA": ("OKP", "Ed25519"),
}
# Of tokens that HTCondor makes.
CONDOR_ALGORITHM: Final = "HS256"
EVERYONE: Final = "everyone"

_DEFAULT: Final = ("RS256", "ES256")
_KEYS: Final = (
    "issuer", "audience", "algorithms", "keys", "ca", "signing_keys", "user", "domain", "host", "joins", "scopes"
)  # fmt: skip
_WORD: Final = re.compile(r"[!-~]{1,512}")
_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,252}[A-Za-z0-9])?")
_MOST: Final = 32
_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Rule:
    """A scope, and the claims that give it: each with the words of which it is to have one. No claims: everyone's."""

    scope: Scope
    claims: tuple[tuple[str, frozenset[str]], ...] = ()


@dataclass(frozen=True, slots=True)
class Issuer:
    """An issuer of bearers' identities.

    The keys are in ``keys`` (a file, a JWKS), in ``signing_keys`` (a directory, HTCondor's), or else the issuer is
    asked for them, over TLS by the authorities in ``ca``. The claim ``user`` has the Owner of the bearer's jobs (with
    ``@domain`` behind it, where a domain is given), the claim ``host`` the worker for which a hook's token is good;
    that worker may join by it where ``joins`` is true.
    """

    name: str
    rules: tuple[Rule, ...]
    audience: tuple[str, ...] = ()
    algorithms: tuple[str, ...] = _DEFAULT
    keys: Path | None = None
    ca: Path | None = None
    signing_keys: Path | None = None
    user: str = "sub"
    domain: str | None = None
    host: str | None = None
    joins: bool = False


def read(path: Path) -> tuple[Issuer, ...]:
    """The issuers of a file. Raises SettingError, with every mistake in it."""
    try:
        with path.open("rb") as file:
            if os.fstat(file.fileno()).st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise SettingError(f"{path}: group or others may write it; accepted: mode 0644 or 0600")
            text = file.read(_BYTES + 1)
        if len(text) > _BYTES:
            raise SettingError(f"{path}: longer than {_BYTES} bytes")
        document = yaml.load(text.decode("utf-8"), LOADER)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{path}: cannot be read: it is no text in UTF-8") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SettingError(f"{path}: not YAML: {error}") from None
    entries = document.get("issuers") if isinstance(document, dict) and set(document) == {"issuers"} else None
    if not isinstance(entries, list) or not 0 < len(entries) <= _MOST:
        raise SettingError(f"{path}: `issuers:` and a list of 1 to {_MOST} of them are expected")
    mistakes: list[str] = []
    found: dict[str, Issuer] = {}
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("issuer"), str):
            mistakes.append(f"issuer {number}: `issuer:` with its name, the claim iss, is expected")
            continue
        name = entry["issuer"]
        wrong = [f"{name}: {mistake}" for mistake in _mistakes(entry)]
        if name in found:
            wrong.append(f"{name}: twice; its scopes go together in one entry")
        mistakes += wrong
        if not wrong:
            found[name] = _issuer(entry)
    if mistakes:
        raise SettingError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return tuple(found.values())


def _issuer(entry: Mapping[str, Any]) -> Issuer:
    """The issuer of an entry without mistakes."""
    condor = "signing_keys" in entry
    return Issuer(
        name=entry["issuer"],
        rules=tuple(_rule(Scope(word), claims) for word, claims in entry["scopes"].items()),
        audience=_words(entry.get("audience", ())),
        algorithms=(CONDOR_ALGORITHM,) if condor else _words(entry.get("algorithms", _DEFAULT)),
        keys=_path(entry.get("keys")),
        ca=_path(entry.get("ca")),
        signing_keys=_path(entry.get("signing_keys")),
        user=entry.get("user", "sub"),
        domain=entry.get("domain", entry["issuer"] if condor else None),
        host=entry.get("host", "sub" if condor else None),
        joins=entry.get("joins", False),
    )


def _rule(scope: Scope, claims: Any) -> Rule:
    if claims == EVERYONE:
        return Rule(scope)
    return Rule(scope, tuple((claim, frozenset(_words(words))) for claim, words in claims.items()))


def _words(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _path(value: str | None) -> Path | None:
    return None if value is None else Path(value)


def _mistakes(entry: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"unknown key {key}; accepted: {', '.join(_KEYS)}" for key in entry if key not in _KEYS)
    condor = "signing_keys" in entry
    if not _WORD.fullmatch(entry["issuer"]):
        yield "issuer: printable ASCII without spaces is accepted"
    elif not condor and "keys" not in entry and not _is_address(entry["issuer"]):
        yield "issuer: https://host/… is accepted, or any name with keys: or signing_keys:"
    for name in ("keys", "ca", "signing_keys"):
        if name in entry and not (isinstance(entry[name], str) and entry[name].startswith("/")):
            yield f"{name}: an absolute path is accepted"
    if sum(name in entry for name in ("keys", "signing_keys", "ca")) > 1:
        yield "one of keys, signing_keys and ca is accepted"
    if condor:
        yield from (f"{name}: not with signing_keys" for name in ("audience", "algorithms") if name in entry)
    elif not _are_words(entry.get("audience")):
        yield "audience: the API's name in the claim aud, or a list of them, is needed"
    if "algorithms" in entry and not (
        _are_words(entry["algorithms"]) and all(each in KINDS for each in _words(entry["algorithms"]))
    ):
        yield f"algorithms: accepted: {', '.join(KINDS)}"
    for name in ("user", "host"):
        if name in entry and not _are_words(entry[name], one=True):
            yield f"{name}: the name of a claim is accepted"
    if not isinstance(entry.get("joins", False), bool):
        yield "joins: true or false is accepted"
    if "domain" in entry and not (isinstance(entry["domain"], str) and _NAME.fullmatch(entry["domain"])):
        yield "domain: what stands behind the @ of a user's name is accepted, such as pool.example"
    yield from _scope_mistakes(entry.get("scopes"), has_host=condor or "host" in entry)
    if entry.get("joins") is True and isinstance(entry.get("scopes"), Mapping) and Scope.HOOK not in entry["scopes"]:
        yield "joins: needs the scope hook, whose worker may join"


def _scope_mistakes(scopes: Any, *, has_host: bool) -> Iterator[str]:
    if not isinstance(scopes, Mapping) or not scopes:
        yield "scopes: `SCOPE: {CLAIM: WORD}` is expected"
        return
    for scope, claims in scopes.items():
        if scope not in tuple(map(str, Scope)):
            yield f"scopes: {scope!r}; accepted: {', '.join(Scope)}"
        elif claims == EVERYONE and scope not in (Scope.SELF, Scope.READ):
            yield f"scopes: {scope}: {EVERYONE} is accepted for self and read alone"
        elif claims != EVERYONE and not (
            isinstance(claims, Mapping)
            and claims
            and all(_are_words(claim, one=True) and _are_words(words) for claim, words in claims.items())
        ):
            yield f"scopes: {scope}: `{{CLAIM: WORD}}`, `{{CLAIM: [WORD, …]}}` or, for self and read, {EVERYONE}"
        if scope == Scope.HOOK and not has_host:
            yield "scopes: hook: needs `host:`, the claim that has the worker's name"


def _are_words(value: Any, *, one: bool = False) -> bool:
    words = value if isinstance(value, list) and value and not one else [value]
    return all(isinstance(word, str) and _WORD.fullmatch(word) for word in words)


def _is_address(text: str) -> bool:
    try:
        parts = urlsplit(text)
        return (
            parts.scheme == "https"
            and bool(parts.hostname)
            and (parts.port is None or parts.port > 0)
            and not (parts.query or parts.fragment or "@" in parts.netloc)
        )
    except ValueError:
        return False
