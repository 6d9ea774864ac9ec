"""Workers that have joined by join tokens: the records that all instances on one database share. Hashes alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

# Join tokens that are good at a time, and the hosts of one.
MOST_TOKENS: Final = 64
MOST_HOSTS: Final = 4096


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


@dataclass(frozen=True, slots=True)
class JoinedWorker:
    """The token of a worker that has joined, good for that host alone. ``at`` is seconds since 1970; ``peer`` and
    ``join_id`` say from where and by which join token it came, ``""`` where that is not known (a former release has
    let it join)."""

    host: str
    sha256: str
    at: float
    peer: str = ""
    join_id: str = ""


@dataclass(frozen=True, slots=True)
class ForeignJoin:
    """A token of somebody else's by which one host may join, such as HTCondor's: its SHA-256, the host, and when it was
    made (seconds since 1970)."""

    sha256: str
    host: str
    made: float

    @property
    def id(self) -> str:
        """Its name where join tokens have ids."""
        return f"jwt-{self.sha256[:12]}"


@dataclass(frozen=True, slots=True)
class JoinChanges:
    """Changes since a revision: the join tokens that were made (id to hash and end) and removed, the workers that have
    joined, and the hosts whose tokens were revoked. ``whole`` is True where it is all that there is."""

    revision: int
    whole: bool
    made: Mapping[str, tuple[str, float]]
    removed: Collection[str]
    joined: Sequence[JoinedWorker]
    revoked: Collection[str]


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Hosts and ids of join tokens that came out of the files of a former release; others were known, or revoked."""

    workers: tuple[str, ...]
    join_tokens: tuple[str, ...]


class JoinRecords(Protocol):
    """The join tokens, and the tokens of workers that have joined. Thread-safe; every method raises StoreError, and
    those that change something are in the audit trail. Times are seconds since 1970."""

    def add(self, token: JoinToken, now: float) -> None:
        """Keep a new join token. Raises BusyError where too many are good already."""

    def remove(self, join_id: str, actor: str, now: float) -> None:
        """Take a join token out of force; what has joined by it stays. Raises NotFoundError."""

    def use(self, join_id: str, host: str, peer: str, sha256: str, now: float) -> str:
        """Let a host join with the hash of its own token, in place of the one that it had; returns the host's name as
        the join token has it. Again with the same hash, it changes nothing.

        Raises NotFoundError where the join token is for other hosts or is gone, StateError where the host has used it
        with another token of its own, or its own token was revoked or is another host's.
        """

    def use_foreign(self, join: ForeignJoin, host: str, peer: str, sha256: str, now: float) -> str:
        """As :meth:`use`, by a token that was not made here: it must be younger than what the host has joined by."""

    def revoke(self, host: str, actor: str, now: float) -> None:
        """Refuse a worker's token from now on. Raises NotFoundError."""

    def listed(self, now: float) -> tuple[JoinToken, ...]:
        """The join tokens that are good, the first to expire first."""

    def workers(self) -> tuple[JoinedWorker, ...]:
        """The workers that have joined, by host."""

    def changes(self, seen: int) -> JoinChanges | None:
        """The changes since a revision (0: all); None where there are none, or no tables yet."""

    def take_over(
        self, tokens: Collection[JoinToken], workers: Collection[JoinedWorker], place: str, now: float
    ) -> TakenOver:
        """Keep the tokens that a former release had in files of ``place``. What is known already stays as it is."""
