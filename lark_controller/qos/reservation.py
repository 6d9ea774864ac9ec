"""A reservation: bandwidth that was promised to a job or a flow, and what it holds of each link."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from lark_common.runs import Network
from lark_controller.qos.topology import KILO, Demand


class ReservationKind(StrEnum):
    """``job``: a job's RequestBandwidth, towards and from it. ``flow``: from one source to one destination."""

    JOB = "job"
    FLOW = "flow"


def words(kind: ReservationKind, kbps: int, source: str, destination: str) -> str:
    """A reservation in words."""
    rate = f"{kbps / KILO:g} Mb/s"
    if kind is ReservationKind.JOB:
        return f"RequestBandwidth = {rate} on {source}"
    return f"{rate} from {source} to {destination}"


@dataclass(frozen=True, slots=True)
class Booking:
    """A reservation before it is admitted.

    ``job`` is the id of the job whose reservation it is: its RequestBandwidth, or a flow that it sends; ``peer`` the id
    of the job that a flow goes to. The reservation ends with either. ``source`` and ``destination`` are nodes of the
    topology; ``target`` the destination's addresses, empty for the WAN. ``until`` is seconds since 1970, None for as
    long as its jobs live. ``steady``: the rate is the most as well. ``to_host``: it goes to a host of the topology,
    whatever addresses the policy gives it. ``demand`` is what it would take.
    """

    kind: ReservationKind
    kbps: int
    source: str
    destination: str
    demand: Demand
    job: str | None = None
    peer: str | None = None
    target: tuple[Network, ...] = ()
    until: float | None = None
    steady: bool = False
    to_host: bool = False

    @property
    def what(self) -> str:
        """The reservation in words."""
        return words(self.kind, self.kbps, self.source, self.destination)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A reservation that was admitted; what :class:`Booking` has, and what it holds: kb/s by channel.

    ``number`` is the store's; ``id`` 16 hexadecimal digits. ``actor`` made it, at ``created`` (seconds since 1970).
    """

    number: int
    id: str
    kind: ReservationKind
    kbps: int
    source: str
    destination: str
    holds: Mapping[str, int]
    job: str | None = None
    peer: str | None = None
    target: tuple[Network, ...] = ()
    until: float | None = None
    created: float = 0.0
    actor: str = ""
    steady: bool = False
    to_host: bool = False

    @property
    def rate(self) -> float:
        """The rate in Mb/s."""
        return self.kbps / KILO


@dataclass(frozen=True, slots=True)
class ReservationPage:
    """One page of a list in order of number, and the cursor of the next (None: this is the last)."""

    reservations: tuple[Reservation, ...]
    next_cursor: str | None = None
