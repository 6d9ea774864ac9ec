"""Links and reservations, as REST takes and shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypeVar

from lark_controller.qos.reservation import Reservation, ReservationPage

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One direction of a link of the declared topology, or a half-duplex link as a whole (``source`` and ``target``
    are ``""``). Rates are Mb/s; ``best_effort`` is what is left for traffic without a reservation."""

    name: Annotated[str, "Its name; access:HOST is a host's access link"]
    source: Annotated[str, "From; empty where both directions share the link"]
    target: Annotated[str, "To; empty where both directions share the link"]
    duplex: Annotated[str, "full or half"]
    capacity: Annotated[float, "Its capacity, Mb/s"]
    reserved: Annotated[float, "Its reserved part, Mb/s"]
    ends: Annotated[tuple[str, ...], "Its two ends, also where both directions share the link"]

    @property
    def shared(self) -> bool:
        """True where both directions share the capacity."""
        return not self.source

    @property
    def best_effort(self) -> float:
        """Less than 0 where a new policy made the link smaller than what was reserved before."""
        return round(self.capacity - self.reserved, 3)


@dataclass(frozen=True, slots=True)
class PathStatus:
    """A reserved flow that a live job sends, and what is free beside it."""

    reservation: Annotated[str, "The reservation's id"]
    number: Annotated[int, "The reservation's number, by which its queues are known"]
    job: Annotated[str, "The id of the job that sends"]
    peer: Annotated[str | None, "The id of the job that receives, null where it goes to no job"]
    destination: Annotated[str, "The receiver's node in the topology"]
    rate: Annotated[float, "The reserved rate, Mb/s of L2 bytes"]
    free: Annotated[float | None, "Best effort of its narrowest link, Mb/s; null where it takes none"]
    pending: Annotated[str, "Why it is not enforced; empty where it is, and while its queue is being made"] = ""


@dataclass(frozen=True, slots=True)
class FlowDelivery:
    """The delivery of a reserved flow, by the counters of its queue; all but the first four are null where nobody
    counts it."""

    reservation: Annotated[str, "The reservation's id"]
    job: Annotated[str | None, "The id of the job that sends"]
    peer: Annotated[str | None, "The id of the job that receives, null where it goes to no job"]
    promised: Annotated[float, "The reserved rate, Mb/s of L2 bytes"]
    delivered: Annotated[float | None, "Mb/s of L2 bytes in the last `delivered_seconds`"]
    delivered_seconds: Annotated[float | None, "Seconds between the last two readings"]
    delivered_bytes: Annotated[int | None, "L2 bytes since the queue was made, or was first read here"]
    age: Annotated[float | None, "Seconds since the last reading"]


@dataclass(frozen=True, slots=True)
class Seen(Generic[T]):
    """A list at one time. ``version`` is another where the list is another, and the same where it is the same."""

    version: str
    items: tuple[T, ...]


@dataclass(frozen=True, slots=True)
class Wish:
    """A request for a reserved flow: from and to (a job id, an address, a host or a WAN of the topology), in Mb/s, for
    so many seconds (None: as long as its jobs live). ``steady``: the rate is the most as well; else the flow may use
    what is free, too."""

    source: str
    destination: str
    rate: float
    duration: float | None = None
    steady: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a reservation: its rate (Mb/s, None: as it is), whether it is steady (None: as it is), and its end:
    with ``reschedule`` it ends ``duration`` seconds from now (None: with its jobs)."""

    rate: float | None = None
    duration: float | None = None
    reschedule: bool = False
    steady: bool | None = None


class ApartControls(Protocol):
    """The reserved flows of jobs that rules of the policy keep from their destinations. Thread-safe."""

    def why(self, reservation_id: str) -> str:
        """The reason why nothing of a reserved flow passes between its ends; "" where something does."""


class ReservationControls(Protocol):
    """Operations on reservations. Thread-safe; every call raises StoreError where the database is away."""

    @property
    def apart(self) -> ApartControls:
        """The flows of which the policy lets nothing pass between their ends."""

    def reserve(self, wish: Wish, actor: str, of_job: bool) -> Reservation:
        """Reserve a flow; ``of_job`` accepts only flows that a live job sends.

        Raises CapacityError, PathError, ApartError, NotFoundError.
        """

    def find(self, reservation_id: str, owner: str | None = None) -> Reservation:
        """A valid reservation (of one of this user's jobs). Raises NotFoundError."""

    def page(self, job: str | None, cursor: str | None, limit: int, owner: str | None = None) -> ReservationPage:
        """Valid reservations, of all or of one job; with ``owner`` those alone that are of this user's jobs. Raises
        NotFoundError for a cursor that is none."""

    def change(self, reservation_id: str, change: Change, actor: str, of_job: bool) -> Reservation:
        """Change a reservation's rate, end or both, as a whole. Raises CapacityError, PathError, NotFoundError."""

    def release(self, reservation_id: str, actor: str, of_job: bool) -> Reservation:
        """Release a reservation. Raises NotFoundError, and PathError where ``of_job`` is true and it is no job's."""

    def links(self, after: str = "", wait: float = 0.0) -> Seen[LinkStatus]:
        """The links of the declared topology with capacity, reserved rate and rest, once their version is another than
        ``after``; after ``wait`` seconds in any case."""

    def paths(self, host: str, after: str = "", wait: float = 0.0) -> Seen[PathStatus]:
        """The reserved flows that a host's live jobs send, in the same way."""

    def at(self, job_id: str) -> Sequence[Reservation]:
        """The reserved flows from and to a live job, in order of number."""

    def sent_by(self, job_id: str) -> Sequence[Reservation]:
        """The flows that a live job has reserved and sends, in order of number."""
