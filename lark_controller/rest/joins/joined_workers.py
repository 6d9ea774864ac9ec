"""The join tokens and the workers' tokens that are in force, as this instance has read them last from the database.

A request asks the values in memory alone. A thread asks the database each second for what has changed, so that every
instance accepts a worker that has joined at another, and refuses one whose token was revoked there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from lark_common import log
from lark_common.errors import StoreError
from lark_common.threads import StoppableThread
from lark_controller.api.joins import JoinRecords
from lark_controller.rest.tokens import Scope, Token

# Seconds between two questions for what has changed. The active instance alone changes anything, and asks after each
# change of its own: for it nothing is ever late.
SECONDS: Final = 1.0


class JoinedWorkers:
    """The tokens that are in force. Thread-safe.

    While the database cannot be asked, what was known stays: jobs go on, and nobody can revoke anything either.
    """

    def __init__(self, records: JoinRecords, clock: Callable[[], float] = time.time, seconds: float = SECONDS) -> None:
        self._records = records
        self._clock = clock
        self._seconds = seconds
        self._lock = threading.Lock()
        self._revision = 0
        # By hash; and the hash of each host (in small letters), of each join token.
        self._tokens: dict[str, Token] = {}
        self._hosts: dict[str, str] = {}
        self._made: dict[str, tuple[str, float]] = {}
        self._trouble = ""
        self.thread = StoppableThread("lark-joined", self._run)

    def find(self, sha256: str) -> Token | None:
        """The token of a worker that has joined, by its hash."""
        return self._tokens.get(sha256)

    def join_id(self, sha256: str) -> str | None:
        """The id of the join token with this hash; None where there is none, or it has expired."""
        now = self._clock()
        with self._lock:
            # There are as few as can be good at a time.
            return next((name for name, (own, end) in self._made.items() if own == sha256 and end > now), None)

    def refresh(self) -> None:
        """Take in what has changed in the database. Raises StoreError."""
        with self._lock:
            # Changes are taken in in the order of the requests.
            found = self._records.changes(self._revision)
            if found is None:
                return
            # Requests go on finding what is in force while all is read anew.
            tokens, hosts, made = ({}, {}, {}) if found.whole else (self._tokens, self._hosts, self._made)
            for folded in found.revoked:
                tokens.pop(hosts.pop(folded, ""), None)
            for worker in found.joined:
                folded = worker.host.lower()
                before = hosts.get(folded)
                hosts[folded] = worker.sha256
                tokens[worker.sha256] = Token(
                    worker.host, worker.sha256, frozenset((Scope.HOOK,)), hosts=(worker.host,)
                )
                if before is not None and before != worker.sha256:
                    tokens.pop(before, None)
            now = self._clock()
            gone = {name for name, (_, end) in made.items() if end <= now}
            for name in gone.union(found.removed):
                made.pop(name, None)
            made.update(found.made)
            self._tokens, self._hosts, self._made = tokens, hosts, made
            self._revision = found.revision

    def _run(self) -> None:
        while not self.thread.pause(self._seconds):
            try:
                self.refresh()
            except StoreError as error:
                if str(error) != self._trouble:
                    log.event("joined workers not read, the former stay", level=log.ERROR, error=error)
                self._trouble = str(error)
            except Exception as error:
                # An unexpected error must not stop this thread: a token that is revoked later would stay good.
                log.failure("joined workers not read", error)
            else:
                self._trouble = ""
