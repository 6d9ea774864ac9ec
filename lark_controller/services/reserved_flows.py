"""Reserved flows as the jobs at their ends have them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from ipaddress import ip_network

from lark_common.errors import NotFoundError, PathError
from lark_common.runs import Network
from lark_controller.jobs.job import ReservedFlow
from lark_controller.policies.topology import is_wan
from lark_controller.qos.booking import Finder
from lark_controller.qos.reservation import Reservation, ReservationKind


def as_of_now(reservation: Reservation, find: Finder) -> Reservation:
    """The reservation with the addresses that the live job to which it goes has now: that job may have been posted
    again with others. Where it has none, the last ones."""
    peer = None if reservation.peer is None else find(reservation.peer)
    if peer is None or not peer.has_pool_address or not peer.addresses:
        return reservation
    target = tuple(ip_network(address) for address in peer.addresses)
    return reservation if target == reservation.target else replace(reservation, target=target)


def takes_part_of(flow: Reservation, networks: tuple[Network, ...]) -> bool:
    """True where a reserved flow takes packets of another one of its job, to these addresses (none: to the WAN)."""
    if not networks:
        return not flow.target and is_wan(flow.destination)
    return not set(networks).isdisjoint(flow.target)


def holders_of(job_id: str, flows: Iterable[Reservation]) -> dict[Network, str]:
    """The reservation whose packets go to each address to which a job has reserved; ``flows`` are those from and to it
    in order of number. A policy may give a host an address to which another one goes: the older one has it."""
    holders: dict[Network, str] = {}
    for each in flows:
        if each.job == job_id:
            for network in each.target:
                holders.setdefault(network, each.id)
    return holders


def flows_of(job_id: str, flows: Sequence[Reservation]) -> tuple[ReservedFlow, ...]:
    """The reserved flows from and to a job, of reservations in order of number; without those to a host that has no
    addresses (any more), and to addresses that older ones have: no addresses mean the WAN."""
    holders = holders_of(job_id, flows)
    found = []
    for each in flows:
        if not (each.target or is_wan(each.destination)):
            continue
        if each.job != job_id:
            found.append(ReservedFlow(each.number, each.kbps, incoming=True))
            continue
        target = tuple(network for network in each.target if holders[network] == each.id)
        if target or not each.target:
            found.append(
                ReservedFlow(each.number, each.kbps, target, steady=each.steady, peer=each.peer, node=each.destination)
            )
    return tuple(found)


def check_owner(reservation: Reservation, of_job: bool) -> None:
    """Check that whoever may change the flows that live jobs send alone (``of_job``) names one. Raises PathError."""
    if of_job and (reservation.kind is ReservationKind.JOB or reservation.job is None):
        raise PathError(f"reservation {reservation.id} is not that of a flow that a job sends")


def missing(reservation_id: str) -> NotFoundError:
    """The error where no reservation has this id."""
    return NotFoundError(f"no reservation has the id {reservation_id}; it may be over")
