"""The translations of external addresses as a log of changes, for gateways that are no switches.

A caller gets the changes since its last question, so an answer is as long as the changes are many. The log has one
entry for each address: a gateway that was away for long gets the last state of each, not all between. Called by
REST threads.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from typing import Final, NamedTuple

from lark_common.log import WARNING, event
from lark_common.runs import Address, Network
from lark_common.turns import aside
from lark_controller.api.external import GatewayWord, Translation, TranslationChanges
from lark_controller.jobs.job import Job

# Entries of one answer, and those of addresses that are over which are kept.
AT_A_TIME: Final = 10_000
MOST_GONE: Final = 65_536
# Seconds that a gateway's word may be late before it is away.
LATE: Final = 10.0

# By the job's id.
Confirmed = tuple[tuple[str, Translation], ...]
Pools = tuple[Network, ...]


class _Entry(NamedTuple):
    """The last change of an address: its number, and what it leads to since (None: nowhere), of which job."""

    revision: int
    translation: Translation | None
    job: str


class _Gateway(NamedTuple):
    """A gateway: its pools, what it lacks of them, the number of the revision that its kernel has (-1: none), and when
    it is away."""

    pools: Pools
    lacks: frozenset[Address]
    confirmed: int
    away: float

    def serves(self, address: Address) -> bool:
        return address not in self.lacks and any(address in network for network in self.pools)


def _nobody(_: object) -> None:
    """Follow nothing."""


class Translations:
    """The translations of live jobs' external IPv4 addresses, and those who wait for others; thread-safe.

    ``served`` takes the networks of all gateways' pools, whenever these are others, and ``confirmed`` of the
    translations that a gateway's kernel has.
    """

    def __init__(
        self, served: Callable[[Pools], object] = _nobody, confirmed: Callable[[Confirmed], object] = _nobody
    ) -> None:
        self._served = served
        self._confirmed = confirmed
        self._gateways: dict[str, _Gateway] = {}
        # Another for each run of the program: revisions of an earlier one mean nothing here.
        self._term = secrets.token_hex(8)
        self._changed = threading.Condition()
        self._open = True
        self._revision = 0
        # By address, in the order of their last changes.
        self._log: dict[Address, _Entry] = {}
        self._gone = 0
        # Translations that were over before this revision are forgotten.
        self._since = 0

    def note(self, before: Job | None, after: Job | None) -> None:
        """Note what a live job was and is (None: not live). The caller holds the feed's lock."""
        old, new = Translation.of(before), Translation.of(after)
        if old == new:
            return
        with self._changed:
            if old is not None and before is not None and (new is None or new.external != old.external):
                known = self._log.get(old.external)
                if known is not None and known.job == before.id:
                    self._put(old.external, None, "")
            if new is not None and after is not None:
                self._put(new.external, new, after.id)
            if self._gone > MOST_GONE:
                self._forget_gone()
            self._changed.notify_all()

    def close(self) -> None:
        """Answer all who wait: the controller stops."""
        with self._changed:
            self._open = False
            self._changed.notify_all()

    def since(self, revision: str, wait: float) -> TranslationChanges:
        """The changes after a revision, once there are any; after ``wait`` seconds in any case. Of a revision that is
        not known everything."""
        end = time.monotonic() + wait
        with self._changed:
            known = self._number_in(revision)
            while self._open and known == self._revision and (left := end - time.monotonic()) > 0:
                with aside():
                    self._changed.wait(left)
                known = self._number_in(revision)
            whole = known < self._since
            start = 0 if whole else known
            newest_first = reversed(self._log.items())
            found = list(takewhile(lambda item: item[1].revision > start, newest_first))
        if whole:
            found = [(address, entry) for address, entry in found if entry.translation is not None]
        chosen = found[-AT_A_TIME:][::-1]
        last = chosen[-1][1].revision if len(chosen) < len(found) else None
        return TranslationChanges(
            f"{self._term}.{self._revision if last is None else last}",
            whole,
            last is not None,
            tuple(entry.translation for _, entry in chosen if entry.translation is not None),
            tuple(address for address, entry in chosen if entry.translation is None),
        )

    def confirm(self, word: GatewayWord) -> None:
        """Note what a gateway's kernel has by now."""
        with self._changed:
            before = self._gateways.get(word.name)
            away = time.monotonic() + word.seconds + LATE
            now = _Gateway(word.pools, word.lacks, self._number_in(word.revision), away)
            self._gateways[word.name] = now
            if before is None or before.pools != now.pools:
                self._tell_served()
            as_before = before is not None and (before.pools, before.lacks) == (now.pools, now.lacks)
            known = before.confirmed if before is not None and as_before else -1
            if known < now.confirmed and (found := tuple(self._had(now, known))):
                self._confirmed(found)

    def forget_away(self) -> None:
        """Forget the gateways that are away. They keep what they have; what comes waits for their return."""
        now = time.monotonic()
        with self._changed:
            gone = [name for name, each in self._gateways.items() if each.away <= now]
            for name in gone:
                event("a gateway of external addresses is away", level=WARNING, gateway=name)
                del self._gateways[name]
            if gone:
                self._tell_served()

    def _had(self, gateway: _Gateway, known: int) -> Iterator[tuple[str, Translation]]:
        """The translations after a revision that a gateway's kernel has."""
        for entry in takewhile(lambda each: each.revision > known, reversed(self._log.values())):
            made = entry.translation
            if made is not None and entry.revision <= gateway.confirmed and gateway.serves(made.external):
                yield entry.job, made

    def _tell_served(self) -> None:
        self._served(tuple({network for each in self._gateways.values() for network in each.pools}))

    def _number_in(self, revision: str) -> int:
        """The number of a revision; -1 for one that is none of this term."""
        term, _, number = revision.partition(".")
        ours = term == self._term and number.isascii() and number.isdecimal() and len(number) < 20
        return int(number) if ours and int(number) <= self._revision else -1

    def _put(self, address: Address, translation: Translation | None, job: str) -> None:
        self._revision += 1
        before = self._log.pop(address, None)
        self._gone += (translation is None) - (before is not None and before.translation is None)
        self._log[address] = _Entry(self._revision, translation, job)

    def _forget_gone(self) -> None:
        """Forget what is over. What there is gets new numbers, so that a caller that gets everything goes on page by
        page."""
        self._since, self._gone = self._revision, 0
        live = [(address, entry) for address, entry in self._log.items() if entry.translation is not None]
        self._log = {}
        for address, entry in live:
            self._put(address, entry.translation, entry.job)
