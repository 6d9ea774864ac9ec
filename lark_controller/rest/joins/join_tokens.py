"""The join tokens, and the hosts that have used them: hashes alone, in the database that all instances share.

A join token is good for the hosts that it names, for each of them once, until it expires. The worker that has joined
by it may ask again with the same token of its own, since an answer can be lost.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final

from lark_common.errors import NotFoundError
from lark_controller.api.joins import ForeignJoin, JoinedWorker, JoinRecords, JoinToken
from lark_controller.rest.joins.joined_workers import JoinedWorkers

# Seconds for which one may be good.
SHORTEST, LONGEST = 60.0, 604_800.0
_ID_BYTES: Final = 6


class JoinTokens:
    """The join tokens, and the tokens of workers that have joined by them. Thread-safe.

    ``known`` is called with each change before it is answered. Every method but :meth:`find` raises StoreError where
    the database is away.
    """

    def __init__(self, records: JoinRecords, known: JoinedWorkers, clock: Callable[[], float] = time.time) -> None:
        self._records = records
        self._known = known
        self._clock = clock

    def add(self, hosts: Sequence[str], seconds: float, actor: str) -> tuple[JoinToken, str]:
        """Make a join token for these hosts; returns it with its secret, which is kept nowhere.

        Raises BusyError where too many are good already.
        """
        secret, now = secrets.token_urlsafe(32), self._clock()
        made = JoinToken(secrets.token_hex(_ID_BYTES), _digest(secret), now + seconds, actor, dict.fromkeys(hosts))
        self._records.add(made, now)
        self._known.refresh()
        return made, secret

    def listed(self) -> tuple[JoinToken, ...]:
        """Those that are good, the first to expire first."""
        return self._records.listed(self._clock())

    def remove(self, join_id: str, actor: str) -> None:
        """Take a join token out of force; what has joined by it stays. Raises NotFoundError."""
        self._records.remove(join_id, actor, self._clock())
        self._known.refresh()

    def find(self, secret: str) -> str | None:
        """The id of the join token whose secret this is; None where there is none, or it has expired. Asks no
        database; whether it is good still is decided when it is used."""
        return self._known.join_id(_digest(secret))

    def use(self, join: str | ForeignJoin, host: str, peer: str, sha256: str) -> str:
        """Let a host join with the hash of its own token, which is good from now on, by the join token of an id or by
        somebody else's; returns the host's name as it was given.

        Raises NotFoundError where the join token is for other hosts or is gone, StateError where the host has used it
        with another token of its own, or its own is refused.
        """
        now = self._clock()
        if isinstance(join, ForeignJoin):
            name = self._records.use_foreign(join, host, peer, sha256, now)
        else:
            name = self._records.use(join, host, peer, sha256, now)
        self._known.refresh()
        return name

    def workers(self) -> tuple[JoinedWorker, ...]:
        """The workers that have joined, by host."""
        return self._records.workers()

    def revoke(self, host: str, actor: str) -> str:
        """Refuse a worker's token from now on; returns its host. ``host`` may lack the domain where one worker alone is
        called so. Raises NotFoundError."""
        meant = self._meant(host)
        self._records.revoke(meant, actor, self._clock())
        self._known.refresh()
        return meant

    def _meant(self, host: str) -> str:
        names = {worker.host.lower(): worker.host for worker in self._records.workers()}
        asked = host.lower()
        found = [name for folded, name in names.items() if folded.partition(".")[0] == asked]
        if asked in names or not found:
            return host
        if len(found) > 1:
            raise NotFoundError(f"several workers are called {host}: {', '.join(found)}; say which, with its domain")
        return found[0]


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
