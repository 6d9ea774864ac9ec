"""The join tokens, and the hosts that have used them: a file in the state directory, of hashes alone.

A join token is good for the hosts that it names, for each of them once, until it expires. The worker that has joined
by it may ask again with the same token of its own, since an answer can be lost.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from lark_common.errors import BusyError, NotFoundError, SettingError, StateError
from lark_controller.rest import whole_files

# Join tokens that are good at a time, and the hosts of one.
MOST_TOKENS: Final = 64
MOST_HOSTS: Final = 4096
# Seconds for which one may be good.
SHORTEST, LONGEST = 60.0, 604_800.0
_ID_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class Joined:
    """A host's use of a join token: its time (seconds since 1970), the address that it came from, and the SHA-256 of
    the token that the worker has made for itself."""

    at: float
    peer: str
    sha256: str


@dataclass(frozen=True, slots=True)
class JoinToken:
    """A join token without its secret. ``expires`` is seconds since 1970; ``hosts`` has each host's use of it, None
    where there was none yet; ``actor`` is the name of the token by which it was made."""

    id: str
    sha256: str
    expires: float
    actor: str
    hosts: Mapping[str, Joined | None]


class JoinTokens:
    """The join tokens of a file that this controller alone writes. Thread-safe.

    Raises SettingError at construction where the file cannot be read, and from every method that writes where it
    cannot be written; then nothing has changed.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = _read(path)

    def add(self, hosts: Sequence[str], seconds: float, actor: str) -> tuple[JoinToken, str]:
        """Make a join token for these hosts; returns it with its secret, which is kept nowhere.

        Raises BusyError where too many are good already.
        """
        secret = secrets.token_urlsafe(32)
        with self._lock:
            known = self._good()
            if len(known) >= MOST_TOKENS:
                raise BusyError(f"{MOST_TOKENS} join tokens are good already; remove one (lark join remove ID)")
            made = JoinToken(
                secrets.token_hex(_ID_BYTES), _digest(secret), self._clock() + seconds, actor, dict.fromkeys(hosts)
            )
            self._write({**known, made.id: made})
        return made, secret

    def listed(self) -> tuple[JoinToken, ...]:
        """Those that have not expired, the first to expire first."""
        with self._lock:
            return tuple(sorted(self._good().values(), key=lambda token: (token.expires, token.id)))

    def remove(self, join_id: str) -> None:
        """Take a join token out of force; what has joined by it stays. Raises NotFoundError."""
        with self._lock:
            known = self._good()
            if known.pop(join_id, None) is None:
                raise NotFoundError(f"there is no join token {join_id}")
            self._write(known)

    def find(self, secret: str) -> JoinToken | None:
        """The join token whose secret this is; None where there is none, or it has expired."""
        digest = _digest(secret)
        with self._lock:
            return next((token for token in self._good().values() if token.sha256 == digest), None)

    def use(self, join_id: str, host: str, peer: str, sha256: str) -> str:
        """Note that a host joins, with the hash of its own token; returns the host's name as it was given.

        Raises NotFoundError where the token is for other hosts or is gone, StateError where the host has used it with
        another token of its own.
        """
        with self._lock:
            known = self._good()
            token = known.get(join_id)
            name = next((each for each in token.hosts if each.lower() == host.lower()), None) if token else None
            if token is None or name is None:
                raise NotFoundError(f"the join token is not for {host}; make one: lark join add {host}")
            before = token.hosts[name]
            if before is not None and before.sha256 != sha256:
                when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(before.at))
                raise StateError(
                    f"the join token was used for {name} already, at {when} from {before.peer}. If that was not this "
                    f"machine, remove {name} from workers.yaml on the controller; for a new installation make another "
                    f"token: lark join add {name}"
                )
            if before is None:
                hosts = {**token.hosts, name: Joined(self._clock(), peer, sha256)}
                self._write({**known, join_id: replace(token, hosts=hosts)})
            return name

    def _good(self) -> dict[str, JoinToken]:
        now = self._clock()
        return {name: token for name, token in self._tokens.items() if token.expires > now}

    def _write(self, tokens: dict[str, JoinToken]) -> None:
        document = {
            token.id: {
                "sha256": token.sha256,
                "expires": token.expires,
                "actor": token.actor,
                "hosts": {
                    host: None if used is None else {"at": used.at, "peer": used.peer, "sha256": used.sha256}
                    for host, used in token.hosts.items()
                },
            }
            for token in tokens.values()
        }
        try:
            whole_files.replace(self._path, json.dumps(document, indent=1) + "\n")
        except OSError as error:
            raise SettingError(f"{self._path}: cannot be written: {error.strerror or error}") from None
        self._tokens = tokens


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path) -> dict[str, JoinToken]:
    content = whole_files.read(path)
    if content is None:
        return {}
    try:
        document: dict[str, Any] = json.loads(content)
        return {
            str(name): JoinToken(
                str(name),
                str(each["sha256"]),
                float(each["expires"]),
                str(each["actor"]),
                {
                    str(host): None if used is None else Joined(float(used["at"]), str(used["peer"]), used["sha256"])
                    for host, used in each["hosts"].items()
                },
            )
            for name, each in document.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise SettingError(f"{path}: it has no join tokens; remove the file to begin with none") from None
