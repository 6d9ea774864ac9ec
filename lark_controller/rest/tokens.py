"""Bearer tokens (RFC 6750): a file of names, SHA-256 hashes, scopes, hosts, users and expiry dates.

One line a token, ``name: {sha256: …, scopes: [hook], hosts: [worker1.example], expires: 2027-01-01}``. The file holds
no token, only hashes; it must not be readable by group or world, since its writer may do everything.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

from lark_common import log
from lark_common.errors import SettingError, UnreadableError
from lark_common.rereading import Rereading
from lark_controller.rest.whole_files import replace

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,252}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_HOST: Final = re.compile(r"[A-Za-z0-9*]([A-Za-z0-9._*-]{0,252}[A-Za-z0-9*])?")
# An Owner of HTCondor: it stands in texts and in names of tokens, where spaces would mislead.
_USER: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@+=-]{0,254}")
_KEYS: Final = frozenset({"sha256", "scopes", "hosts", "user", "expires"})
# Ten times as quick where PyYAML has its C parts: the file has a line for every worker.
LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Final = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
# Characters of the longest token that is looked at.
LONGEST: Final = 16_384
# Names in one line of the log.
_NAMED: Final = 10
# Digits of a file's digest: enough to tell that two files differ.
_DIGITS: Final = 16


class Scope(StrEnum):
    """The permissions of a token. ``hook``: to register, renew and end jobs, to reserve what they send, and to read a
    job or a reservation by its id. ``read``: to read everything. ``operate``: to read everything, to change the policy,
    and to reserve anything. ``self``: to read what concerns the jobs of one user. ``gateway``: to read the translations
    of external addresses, and to confirm them."""

    HOOK = "hook"
    READ = "read"
    OPERATE = "operate"
    SELF = "self"
    GATEWAY = "gateway"


@dataclass(frozen=True, slots=True)
class Token:
    """A token as the file has it, or a JWT (then without a hash). ``expires`` is seconds since 1970, None for never;
    ``hosts`` are those whose jobs a hook's token is good for, each a name or a pattern with one ``*``, None for every
    host; ``user`` is the Owner whose jobs a token with the scope ``self`` is for. ``joins`` is when a JWT was made by
    which its host may join, None of all others."""

    name: str
    sha256: str
    scopes: frozenset[Scope]
    expires: float | None = None
    hosts: tuple[str, ...] | None = None
    user: str | None = None
    joins: float | None = None

    @property
    def is_good_for_every_host(self) -> bool:
        """True of a hook's token that is bound to no host: its holder acts for all jobs of the pool."""
        return Scope.HOOK in self.scopes and (self.hosts is None or "*" in self.hosts)

    def allows(self, accepted: Iterable[Scope]) -> bool:
        """True where one of the scopes is the token's; operate includes read."""
        held = self.scopes | {Scope.READ} if Scope.OPERATE in self.scopes else self.scopes
        return not held.isdisjoint(accepted)


class Tokens:
    """The tokens of a file, read again when the file changes. Safe to use from several threads.

    ``joined`` finds the tokens of workers that have joined, by their hashes. A file that became unusable changes
    nothing (the error is logged); a file that is gone holds no tokens. Tokens that are good for every host are named in
    the log.

    Raises:
        SettingError: at construction, with every mistake in the file.
    """

    def __init__(
        self,
        path: Path,
        clock: Callable[[], float] = time.time,
        joined: Callable[[str], Token | None] = lambda _sha256: None,
    ) -> None:
        self._joined = joined
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        seen = _identity(path)
        self._file = Rereading(seen)
        self._tokens: dict[str, Token] = {}
        self._digest = ""
        self._take(() if seen is None else read(path))
        if seen is None:
            log.event("no tokens", level=log.WARNING, file=path, hint="lark token NAME --scope hook")

    def find(self, secret: str) -> Token | None:
        """The token whose secret this is, expired ones too.

        It is found by its hash. How long that takes may say something of the hash, of which nobody can choose a part.
        """
        if len(secret) > LONGEST:
            return None
        sha256 = hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
        return self._current().get(sha256) or self._joined(sha256)

    def digest(self) -> str:
        """A digest of the file's tokens, the same wherever they are the same in any order; of no secret."""
        self._current()
        return self._digest

    def expired(self, token: Token) -> bool:
        """True from the token's expiry date on."""
        return token.expires is not None and self._clock() >= token.expires

    def _current(self) -> Mapping[str, Token]:
        seen = _identity(self._path)
        if self._file.is_due(seen):
            with self._lock:
                if self._file.is_due(seen):
                    self._reload(seen)
        return self._tokens

    def _reload(self, seen: tuple[int, ...] | None) -> None:
        try:
            self._take(() if seen is None else read(self._path))
            log.event("tokens read", file=self._path, tokens=len(self._tokens))
        except SettingError as error:
            if self._file.failed(seen, error, again=isinstance(error, UnreadableError)):
                log.event("tokens not read, the former stay", level=log.ERROR, file=self._path, error=error)
            return
        self._file.done(seen)

    def _take(self, tokens: Iterable[Token]) -> None:
        found = {token.sha256: token for token in tokens}
        unbound = [token.name for token in found.values() if token.is_good_for_every_host]
        if unbound:
            log.event(
                "tokens are good for every host",
                level=log.WARNING,
                names=",".join(unbound[:_NAMED]),
                tokens=len(unbound),
                hint="lark token NAME --scope hook --host HOST",
            )
        self._tokens = found
        lines = sorted(map(_line, found.values()))
        self._digest = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]


def _line(token: Token) -> str:
    """A token in a line that is the same wherever the token is."""
    scopes = sorted(map(str, token.scopes))
    return repr((token.name, token.sha256, scopes, token.expires, token.hosts, token.user))


def secret_in(header: str) -> str | None:
    """The bearer token in an Authorization header; None where there is none."""
    scheme, _, secret = header.partition(" ")
    return secret.strip() or None if scheme.lower() == "bearer" else None


def is_among(host: str, accepted: Iterable[str]) -> bool:
    """True if a host is one of these names and patterns: ``*`` is any characters, capitals are as small letters."""
    name = host.lower().rstrip(".")
    for each in accepted:
        first, star, last = each.lower().rstrip(".").partition("*")
        if (
            name == first
            if not star
            else len(name) >= len(first + last) and name.startswith(first) and name.endswith(last)
        ):
            return True
    return False


def read(path: Path) -> tuple[Token, ...]:
    """The tokens of a file.

    Raises:
        SettingError: it cannot be read, others may read it, or it has mistakes (all of them are named).
    """
    try:
        with path.open("rb") as file:
            _refuse_shared(path, os.fstat(file.fileno()).st_mode)
            text = file.read().decode("utf-8")
        document = yaml.load(text, LOADER)
    except OSError as error:
        raise UnreadableError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{path}: cannot be read: it is no text in UTF-8") from None
    except yaml.YAMLError as error:
        raise SettingError(f"{path}: not YAML: {error}") from None
    except (ValueError, RecursionError) as error:
        # A date that the calendar does not have; brackets in brackets.
        raise SettingError(f"{path}: a value cannot be read: {error}") from None
    if document is None:
        return ()
    if not isinstance(document, dict):
        raise SettingError(f"{path}: lines `name: {{sha256: …, scopes: [hook], hosts: […]}}` are expected")
    mistakes: list[str] = []
    tokens = tuple(
        token for name, entry in document.items() if (token := _token(str(name), entry, mistakes)) is not None
    )
    if mistakes:
        raise SettingError("\n".join(f"{path}: {mistake}" for mistake in mistakes))
    return tokens


def is_user(word: str) -> bool:
    """True of a word that may be the Owner of a job."""
    return _USER.fullmatch(word) is not None


def add(
    path: Path,
    name: str,
    scopes: Iterable[Scope],
    expires: date | None = None,
    hosts: Sequence[str] | None = None,
    user: str | None = None,
) -> str:
    """Make a token, write its hash to the file (made with mode 0600 if absent) and return the token itself.

    Raises:
        SettingError: name, hosts or date cannot be used, the name is taken, or the file cannot be read or written.
    """
    return add_all(path, {name: hosts}, scopes, expires, user=user)[name]


def add_all(
    path: Path,
    added: Mapping[str, Sequence[str] | None],
    scopes: Iterable[Scope],
    expires: date | None = None,
    keep: Callable[[Mapping[str, str]], None] = lambda _: None,
    user: str | None = None,
) -> dict[str, str]:
    """Make tokens by name, each for these hosts, as :func:`add` does; all or none. ``keep`` is given them before their
    hashes are written. Raises SettingError."""
    words = [str(scope) for scope in sorted(scopes)]
    if expires is not None and (at := _expiry(expires)) is not None and at <= time.time():
        raise SettingError(f"{expires.isoformat()} has passed (UTC); a token that expires then would never be valid")
    present = {token.name for token in read(path)} if path.exists() else set()
    made, lines = {}, []
    for name, hosts in added.items():
        if not _NAME.fullmatch(name):
            raise SettingError(f"{name!r} cannot be a token's name; accepted: letters, digits and . _ @ -, at most 253")
        if name in present:
            raise SettingError(f"{path} has a token {name} already; remove its line first, or take another name")
        mistakes = [] if hosts is None else list(_host_mistakes(list(hosts), words))
        mistakes += _user_mistakes(user, words)
        if mistakes:
            raise SettingError(f"{name}: {mistakes[0]}")
        made[name] = "lark_" + secrets.token_urlsafe(32)
        entry: dict[str, object] = {"sha256": hashlib.sha256(made[name].encode()).hexdigest(), "scopes": words}
        if hosts is not None:
            entry["hosts"] = list(hosts)
        if user is not None:
            entry["user"] = user
        if expires is not None:
            entry["expires"] = expires
        lines.append(f"{_yaml(name)}: {_yaml(entry)}\n")
    keep(made)
    try:
        before = path.read_text("utf-8") if path.exists() else ""
        replace(path, before + ("" if before.endswith("\n") or not before else "\n") + "".join(lines))
    except OSError as error:
        raise SettingError(f"{path}: cannot be written: {error}") from None
    return made


def _yaml(value: object) -> str:
    """A value in one line of YAML."""
    dumped = yaml.dump(value, Dumper=_DUMPER, default_flow_style=True, sort_keys=False, width=1 << 20)
    return str(dumped).partition("\n")[0]


def _identity(path: Path) -> tuple[int, ...] | None:
    """The file's identity, which changes when the file does; None where there is none, empty where it is not known."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    except OSError:
        return ()
    return (found.st_ino, found.st_mtime_ns, found.st_size, found.st_mode, found.st_ctime_ns)


def _refuse_shared(path: Path, mode: int) -> None:
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SettingError(f"{path}: group or others may read or write it; accepted: mode 0600 (chmod 600 {path})")


def _token(name: str, entry: Any, mistakes: list[str]) -> Token | None:
    before = len(mistakes)
    if not _NAME.fullmatch(name):
        mistakes.append(f"{name!r}: letters, digits and . _ @ - are accepted in a name, at most 64")
    if not isinstance(entry, Mapping):
        mistakes.append(f"{name}: `{{sha256: …, scopes: [hook]}}` is expected")
        return None
    mistakes += [
        f"{name}: unknown key {key}; accepted: {', '.join(sorted(_KEYS))}" for key in entry if key not in _KEYS
    ]
    digest = entry.get("sha256")
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        mistakes.append(f"{name}: sha256 must be 64 hexadecimal digits in lower case")
    words = entry.get("scopes")
    known = [str(scope) for scope in Scope]
    if not isinstance(words, list) or not words or any(word not in known for word in words):
        mistakes.append(f"{name}: scopes must be a list of {', '.join(Scope)}")
    hosts = entry.get("hosts")
    if "hosts" in entry:
        mistakes += [f"{name}: {mistake}" for mistake in _host_mistakes(hosts, words)]
    user = entry.get("user")
    mistakes += [f"{name}: {mistake}" for mistake in _user_mistakes(user, words)]
    expires = _expiry(entry.get("expires"))
    if "expires" in entry and expires is None:
        mistakes.append(f"{name}: expires must be a date such as 2027-01-01")
    if len(mistakes) > before:
        return None
    bound = None if hosts is None else tuple(hosts)
    return Token(name, str(digest), frozenset(Scope(word) for word in words or ()), expires, bound, user)


def _host_mistakes(hosts: Any, scopes: Any) -> Iterable[str]:
    if not isinstance(hosts, list) or not hosts or not all(isinstance(host, str) for host in hosts):
        yield "hosts must be a list of names, or of patterns such as *.example"
        return
    wrong = [host for host in hosts if not _HOST.fullmatch(host) or host.count("*") > 1]
    if wrong:
        yield f"hosts: {wrong[0]!r}: a host's name is accepted, or one with a * in it"
    if scopes != [str(Scope.HOOK)]:
        yield "hosts are for tokens with the scope hook alone"


def _user_mistakes(user: Any, scopes: Any) -> Iterable[str]:
    if not isinstance(scopes, list) or (user is None and str(Scope.SELF) not in scopes):
        return
    if scopes != [str(Scope.SELF)]:
        yield "the scope self goes with no other, and a user with it alone"
    elif not isinstance(user, str) or not is_user(user):
        yield "the scope self needs a user, the Owner of jobs as HTCondor has it"


def _expiry(value: Any) -> float | None:
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
    if isinstance(value, date):
        return datetime(value.year, value.month, value.day, tzinfo=UTC).timestamp()
    return None
