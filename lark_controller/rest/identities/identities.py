"""The bearers of JWTs (RFC 7519): who they are and what they may, by the word of an issuer: :class:`Identities`.

PyJWT reads and verifies; here is which key, which algorithms and which claims count. A token is bounded before any of
it is read, and what it has of keys itself (``jku``, ``x5u``, ``jwk``, ``x5c``) is not looked at.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt

from lark_common import log
from lark_common.errors import LarkError, SettingError, UnreadableError
from lark_common.rereading import Rereading
from lark_common.threads import StoppableThread
from lark_controller.rest.identities.file import Issuer, read
from lark_controller.rest.identities.issuer_keys import IssuerKeys
from lark_controller.rest.identities.keys import Keys, KeysFile, SigningKeys, mark
from lark_controller.rest.tokens import LONGEST, Scope, Token, Tokens, is_user, secret_in

# The most that the clocks of issuer and controller differ, in seconds.
LEEWAY: Final = 60
# A token that was verified counts as such for so long; then its issuer's key is asked for again.
VERIFIED_SECONDS: Final = 60.0
# Tokens that are remembered, those used last.
REMEMBERED: Final = 4096
# 9999-12-31: the last time that a date can be.
_LAST: Final = 253_402_300_799

_FORM: Final = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_SUBJECT: Final = re.compile(r"[ -~]{1,255}")
_HOST: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
# Claims that are lists of words in a text (RFC 8693, RFC 9068).
_LISTS: Final = frozenset({"scope", "scp"})

_REASONS: Final[tuple[tuple[type[jwt.PyJWTError], str], ...]] = (
    (jwt.ExpiredSignatureError, "it has expired"),
    (jwt.ImmatureSignatureError, "it is not valid yet"),
    (jwt.InvalidAudienceError, "it is for another audience"),
    (jwt.InvalidSignatureError, "its signature is not its issuer's"),
)


class RefusedTokenError(LarkError):
    """A JWT that proves nothing; the reason has no text of the token's own."""


_Issuers = Mapping[str, tuple[Issuer, Keys]]


@dataclass(frozen=True, slots=True)
class _Known:
    """A token that was verified, at ``at`` of the clock; until ``expires`` it stands for who asks."""

    token: Token
    at: float
    expires: float


class Identities:
    """The bearers by the word of these issuers. Thread-safe; no call waits for an issuer.

    With ``path``, the file that has them, they are read again when it changes: what it no longer has counts no longer.
    A file that became unusable, or is gone, changes nothing (the error is logged). Raises SettingError at construction,
    where keys on disk cannot be used.
    """

    def __init__(
        self, issuers: tuple[Issuer, ...], clock: Callable[[], float] = time.time, path: Path | None = None
    ) -> None:
        self._clock = clock
        self._path = path
        self._file = Rereading(() if path is None else mark(path))
        self._issuers = {each.name: (each, _keys_of(each)) for each in issuers}
        self._runs = False
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, _Known] = OrderedDict()

    @classmethod
    def of_file(cls, path: Path) -> Identities:
        """The bearers by the word of a file's issuers. Raises SettingError."""
        before = mark(path)
        made = cls(read(path), path=path)
        # A change of the file meanwhile is read with the next token.
        made._file.done(before)
        return made

    @property
    def name(self) -> str:
        """The name of a thread that has ended; of all of them where none has."""
        return next((thread.name for thread in self.threads if not thread.is_alive()), "lark-keys")

    def is_alive(self) -> bool:
        """True while every issuer's thread lives."""
        return all(thread.is_alive() for thread in self.threads)

    @property
    def threads(self) -> tuple[StoppableThread, ...]:
        """The threads that live from start to stop."""
        return _threads(self._issuers, frozenset())

    def start(self) -> None:
        """Start to ask issuers for their keys."""
        with self._lock:
            self._runs = True
            for thread in self.threads:
                thread.start()
        log.event("JWTs are accepted", issuers=" ".join(self._issuers))

    def stop(self) -> None:
        """Stop asking."""
        with self._lock:
            self._runs = False
        for thread in self.threads:
            thread.stop(patience=1.0)

    def token(self, secret: str) -> Token:
        """The rights of a bearer. Raises RefusedTokenError."""
        if len(secret) > LONGEST:
            raise RefusedTokenError(f"it is longer than {LONGEST} bytes")
        if not _FORM.fullmatch(secret):
            raise RefusedTokenError("it is no JWT of three parts")
        self._read_again()
        digest, now = hashlib.sha256(secret.encode()).digest(), self._clock()
        known = self._remembered(digest)
        if known is not None and now < known.expires and 0 <= now - known.at < VERIFIED_SECONDS:
            return known.token
        issuers = self._issuers
        token = self._verified(secret, issuers)
        if token.expires is not None:
            self._remember(digest, _Known(token, now, token.expires + LEEWAY), issuers)
        return token

    def seen(self, secret: str) -> Token | None:
        """The rights of a bearer whose token was verified before; None for any other. Cheap: nothing is verified."""
        if len(secret) > LONGEST or not secret.isascii():
            return None
        known = self._remembered(hashlib.sha256(secret.encode()).digest())
        return known.token if known is not None and self._clock() < known.expires else None

    def _remembered(self, digest: bytes) -> _Known | None:
        with self._lock:
            known = self._known.get(digest)
            if known is not None:
                self._known.move_to_end(digest)
            return known

    def _remember(self, digest: bytes, known: _Known, issuers: _Issuers) -> None:
        with self._lock:
            if issuers is not self._issuers:
                # Of issuers that are others by now.
                return
            self._known[digest] = known
            self._known.move_to_end(digest)
            if len(self._known) > REMEMBERED:
                self._known.popitem(last=False)

    def _read_again(self) -> None:
        if self._path is None or not self._file.is_due(mark(self._path)):
            return
        with self._lock:
            before = mark(self._path)
            if not self._file.is_due(before):
                return
            try:
                self._take(read(self._path))
            except SettingError as error:
                if self._file.failed(before, error, again=isinstance(error, UnreadableError)):
                    for line in str(error).splitlines():
                        log.event("issuers not read, the former stay", level=log.ERROR, file=self._path, error=line)
                return
            self._file.done(before)
        log.event("issuers read", file=self._path, issuers=" ".join(self._issuers))

    def _take(self, issuers: tuple[Issuer, ...]) -> None:
        """Put these issuers in force; those that did not change keep their keys. Raises SettingError, with nothing
        changed."""
        former = self._issuers
        found = {
            each.name: former[each.name] if former.get(each.name, (None,))[0] == each else (each, _keys_of(each))
            for each in issuers
        }
        kept = {id(keys) for _, keys in former.values()} & {id(keys) for _, keys in found.values()}
        if self._runs:
            for thread in _threads(found, kept):
                thread.start()
        self._issuers = found
        self._known.clear()
        for thread in _threads(former, kept):
            thread.stop(patience=0.0)

    def _verified(self, secret: str, issuers: _Issuers) -> Token:
        try:
            shown = jwt.decode_complete(secret, options={"verify_signature": False})
            name, algorithm, kid = shown["payload"].get("iss"), shown["header"].get("alg"), shown["header"].get("kid")
            if not isinstance(name, str) or name not in issuers:
                raise RefusedTokenError("its issuer is not accepted here")
            issuer, keys = issuers[name]
            if algorithm not in issuer.algorithms:
                raise RefusedTokenError("its algorithm is not accepted for its issuer")
            key = keys.find(kid, algorithm)
            if key is None:
                raise RefusedTokenError("its key is not known, or not yet")
            claims = jwt.decode(
                secret,
                key,
                algorithms=[algorithm],
                # Of no audience at all, as HTCondor's: one that has an audience is somebody else's.
                audience=issuer.audience or None,
                issuer=name,
                leeway=LEEWAY,
                options={"require": ["iss", "sub", "exp", *(["aud"] if issuer.audience else [])]},
            )
        except jwt.MissingRequiredClaimError as error:
            # One of those that are required above, and no text of the token's.
            raise RefusedTokenError(f"it lacks the claim {error.claim}") from None
        except jwt.PyJWTError as error:
            reason = next((words for kind, words in _REASONS if isinstance(error, kind)), "it is no valid JWT")
            raise RefusedTokenError(reason) from None
        except (ValueError, TypeError, RecursionError, OverflowError):
            raise RefusedTokenError("it is no valid JWT") from None
        return _token(issuer, claims)


def known_callers(tokens: Tokens, identities: Identities | None) -> Callable[[str], Token | None]:
    """Finds the token in an Authorization header without verifying any; None where there is none, it has expired, or
    it is a JWT that nobody has shown before."""

    def known(header: str) -> Token | None:
        secret = secret_in(header)
        if secret is None:
            return None
        token = tokens.find(secret)
        if token is not None:
            return None if tokens.expired(token) else token
        return None if identities is None else identities.seen(secret)

    return known


def _threads(issuers: _Issuers, without: Collection[int]) -> tuple[StoppableThread, ...]:
    """The threads that ask issuers, but those of keys with these ids."""
    return tuple(
        keys.thread for _, keys in issuers.values() if isinstance(keys, IssuerKeys) and id(keys) not in without
    )


def _keys_of(issuer: Issuer) -> Keys:
    if issuer.signing_keys is not None:
        return SigningKeys(issuer.signing_keys)
    if issuer.keys is not None:
        return KeysFile(issuer.keys, issuer.algorithms)
    return IssuerKeys(issuer.name, issuer.algorithms, issuer.ca)


def _token(issuer: Issuer, claims: Mapping[str, Any]) -> Token:
    """The rights by claims that were verified."""
    subject, expires = claims["sub"], claims["exp"]
    if not isinstance(subject, str) or not _SUBJECT.fullmatch(subject):
        raise RefusedTokenError("its claim sub is no text of at most 255 printable characters")
    if isinstance(expires, bool) or not isinstance(expires, int | float) or expires > _LAST:
        raise RefusedTokenError("its claim exp is no time")
    scopes = {rule.scope for rule in issuer.rules if all(_has(claims, *each) for each in rule.claims)}
    user, host = _user(issuer, claims), _host(issuer, claims)
    if host is None:
        scopes.discard(Scope.HOOK)
    if user is None or scopes - {Scope.SELF}:
        # A bearer with another scope is not confined.
        scopes.discard(Scope.SELF)
    who = subject if user in (None, subject) else f"{user} ({subject})"
    bound = host is not None and Scope.HOOK in scopes
    return Token(
        name=f"{who} by {issuer.name}",
        sha256="",
        scopes=frozenset(scopes),
        expires=float(expires),
        hosts=(host,) if bound and host is not None else None,
        user=user if Scope.SELF in scopes else None,
        joins=_made(claims) if bound and issuer.joins else None,
    )


def _made(claims: Mapping[str, Any]) -> float | None:
    """The time at which a token was made; None where it does not say it."""
    made = claims.get("iat")
    return float(made) if isinstance(made, int | float) and not isinstance(made, bool) and made <= _LAST else None


def _has(claims: Mapping[str, Any], claim: str, words: frozenset[str]) -> bool:
    """True if a claim is one of these words, or a list with one of them."""
    value = claims.get(claim)
    if isinstance(value, str):
        return not words.isdisjoint(value.split(" ") if claim in _LISTS else (value,))
    return isinstance(value, list) and any(isinstance(word, str) and word in words for word in value)


def _user(issuer: Issuer, claims: Mapping[str, Any]) -> str | None:
    """The Owner of the bearer's jobs; None where the token does not say it as is expected."""
    value = claims.get(issuer.user)
    if not isinstance(value, str):
        return None
    if issuer.domain is not None:
        if not value.endswith(f"@{issuer.domain}"):
            return None
        value = value.removesuffix(f"@{issuer.domain}")
    return value if is_user(value) else None


def _host(issuer: Issuer, claims: Mapping[str, Any]) -> str | None:
    """The worker for which the token is good; None where it does not say it."""
    value = None if issuer.host is None else claims.get(issuer.host)
    if not isinstance(value, str):
        return None
    if issuer.domain is not None:
        value = value.removesuffix(f"@{issuer.domain}")
    return value if _HOST.fullmatch(value) else None
