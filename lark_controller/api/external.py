"""External addresses, as REST takes and shows them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

from lark_common.runs import Address, Network
from lark_controller.jobs.external import Association, Opening, PoolState
from lark_controller.jobs.job import Job


@dataclass(frozen=True, slots=True)
class ExternalWish:
    """A request for an external address: the job's id, the openings (empty: all that the policy lets it have), for how
    many seconds (None: as long as the policy lets it), the family, 4 or 6 (None: IPv4 where a rule gives that), the
    label of its name in the DNS (``""``: none), and the id of the job's reservation with which it ends (``""``:
    none)."""

    job: str
    openings: tuple[Opening, ...] = ()
    seconds: float | None = None
    family: int | None = None
    name: str = ""
    reservation: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """The answer to a request: the job's external address, and whether this request made it (False: the job had it)."""

    association: Association
    created: bool


class ExternalState(StrEnum):
    """The state of an external address: ``pending`` until its job's switches have confirmed and while the WAN port for
    it is down, ``open``, ``closed`` where a switch does not have it, ``over``."""

    PENDING = "pending"
    OPEN = "open"
    CLOSED = "closed"
    OVER = "over"


class ExternalStanding(NamedTuple):
    """The state of an external address, and the reason where it is not open."""

    state: ExternalState
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ExternalPage:
    """One page of associations, and the cursor of the next (None: this is the last); it may be empty before that."""

    associations: tuple[Association, ...]
    next_cursor: str | None = None


class Translation(NamedTuple):
    """An external address with the job's own address behind it, and what is open."""

    external: Address
    inside: Address
    openings: tuple[Opening, ...]

    @classmethod
    def of(cls, job: Job | None) -> Translation | None:
        """The translation of a job's external IPv4 address; None while nobody is to reach it there."""
        if job is None or not job.external or job.ipv4 is None or job.quarantine:
            return None
        external = next((each for each in job.external if each.address.version == 4), None)
        return None if external is None else cls(external.address, job.ipv4, external.openings)


class GatewayWord(NamedTuple):
    """The word of a plain Linux gateway: its name, the networks of its pools, the revision of translations that its
    kernel has (``""``: none), the seconds in which the next word is due, and the addresses that it does not translate
    all the same."""

    name: str
    pools: tuple[Network, ...]
    revision: str
    seconds: float
    lacks: frozenset[Address] = frozenset()


@dataclass(frozen=True, slots=True)
class TranslationChanges:
    """The news for a gateway: the ``revision`` that it has then, the translations that are new or others, and the
    addresses that are ``gone``. ``whole``: it forgets what it had before; ``more``: the rest follows at once."""

    revision: str
    whole: bool
    more: bool
    translations: tuple[Translation, ...]
    gone: tuple[Address, ...]


class ExternalControls(Protocol):
    """Operations on external addresses. Thread-safe; every call raises StoreError where the database is away."""

    def associate(self, wish: ExternalWish, actor: str) -> Given:
        """Give a live job an external address; it keeps the one that it has.

        Raises ExternalAddressError where it cannot have one, StateError where it has one on other terms, NotFoundError.
        """

    def refused(self, job_id: str, actor: str, reason: str, foreign: bool = False) -> None:
        """Write into the audit trail that a request for a job was refused, once in a while for each job, or for each
        actor who asks for ``foreign`` ones."""

    def release(self, association_id: str, actor: str) -> Association:
        """End an association; one that is over stays as it is. Raises NotFoundError where there never was one."""

    def find(self, association_id: str) -> Association:
        """An association, also one that is over. Raises NotFoundError."""

    def page(
        self, job: str | None = None, owner: str | None = None, cursor: str | None = None, limit: int = 1000
    ) -> ExternalPage:
        """A page of the associations that are not over, of all, of one job or of one user's jobs, in the order in which
        they were made. Raises NotFoundError for a cursor that is none."""

    def standing(self, association: Association) -> ExternalStanding:
        """The state of an association in the network."""

    def pools(self) -> tuple[PoolState, ...]:
        """The state of each pool of the policy."""

    def translations(self, revision: str, wait: float) -> TranslationChanges:
        """The changes of translations after a revision, once there are any; after ``wait`` seconds in any case."""

    def translated(self, word: GatewayWord) -> None:
        """A gateway confirms what it translates."""
