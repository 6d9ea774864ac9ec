"""Reservations in memory, on one link to the WAN, for tests of the REST API."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_network

from lark_controller.errors import NotFoundError, PathError
from lark_controller.jobs import Job
from lark_controller.policies.model import Duplex, HostSpec, LinkSpec, TopologySpec
from lark_controller.qos.admission import Ledger, held
from lark_controller.qos.reservations import Reservation, ReservationKind, ReservationPage
from lark_controller.qos.topology import KILO, Topology, asked_rate, channels
from lark_controller.status import Change, LinkStatus, Wish

NOW = 1.7e9
TOPOLOGY = Topology(
    TopologySpec(
        (LinkSpec("internet", ("core1", "wan"), 100.0), LinkSpec("bus", ("core1", "core2"), 100.0, Duplex.HALF)),
        default=HostSpec("default", "core1", 1000.0),
    ),
    {},
)


class FakeReservations:
    """``called`` raises what the test wants raised; ``jobs`` are the live ones."""

    def __init__(self, called: Callable[[], None], jobs: Mapping[str, Job]) -> None:
        self._called = called
        self._jobs = jobs
        self.known: dict[str, Reservation] = {}
        self.ledger = Ledger()

    def reserve(self, wish: Wish, actor: str, of_job: bool) -> Reservation:
        self._called()
        job = self._jobs.get(wish.source)
        if job is None and of_job:
            raise PathError(f"{wish.source!a} is no live job")
        number = len(self.known) + 1
        kbps = asked_rate(wish.rate)
        node = "worker1.example" if job is None else job.host
        demand = TOPOLOGY.flow(node, "wan", kbps)
        self.ledger = self.ledger.admit(f"{wish.rate:g} Mb/s from {node} to wan", demand)
        made = Reservation(
            number=number,
            id=f"{number:016x}",
            kind=ReservationKind.FLOW,
            kbps=kbps,
            source=node,
            destination="wan",
            holds=held(demand),
            job=None if job is None else job.id,
            target=(ip_network("192.0.2.1/32"),),
            until=None if wish.duration is None else NOW + wish.duration,
            created=NOW,
            actor=actor,
        )
        self.known[made.id] = made
        return made

    def find(self, reservation_id: str) -> Reservation:
        self._called()
        if reservation_id not in self.known:
            raise NotFoundError(f"no reservation has the id {reservation_id!a}")
        return self.known[reservation_id]

    def page(self, job: str | None, cursor: str | None, limit: int) -> ReservationPage:
        self._called()
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise NotFoundError("That cursor is none of this list.")
        chosen = [e for e in self.known.values() if e.number > int(cursor or 0) and job in (None, e.job, e.peer)]
        more = len(chosen) > limit
        return ReservationPage(tuple(chosen[:limit]), str(chosen[limit - 1].number) if more else None)

    def change(self, reservation_id: str, change: Change, actor: str, of_job: bool) -> Reservation:
        before = self.find(reservation_id)
        if of_job and before.job is None:
            raise PathError("not that of a job")
        kbps = before.kbps if change.rate is None else asked_rate(change.rate)
        demand = TOPOLOGY.flow(before.source, "wan", kbps)
        self.ledger = self.ledger.admit("the change", demand, before.holds)
        until = before.until
        if change.reschedule:
            until = None if change.duration is None else NOW + change.duration
        self.known[before.id] = replace(before, kbps=kbps, holds=held(demand), until=until)
        return self.known[before.id]

    def release(self, reservation_id: str, actor: str, of_job: bool) -> Reservation:
        before = self.find(reservation_id)
        if of_job and before.job is None:
            raise PathError("not that of a job")
        self.ledger = self.ledger.release(before.holds)
        return self.known.pop(reservation_id)

    def links(self) -> tuple[LinkStatus, ...]:
        self._called()
        return tuple(
            LinkStatus(
                each.link,
                each.source,
                each.target,
                str(link.duplex),
                each.capacity / KILO,
                self.ledger.reserved.get(each.key, 0) / KILO,
            )
            for link in TOPOLOGY.declared()
            for each in channels(link)
        )
