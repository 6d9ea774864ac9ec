"""Turns a request of a job or an operator into its demand on each link. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final

from lark_common.errors import PathError
from lark_common.runs import AddressType, Network, NetworkType
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.decide import decide
from lark_controller.policies.model import Decision, Policy, Reserves, WanAction
from lark_controller.policies.switches import WAN
from lark_controller.policies.topology import is_wan
from lark_controller.qos.reservation import Booking, Reservation, ReservationKind
from lark_controller.qos.topology import Demand, Topology, requested_rate

# The live job of an id or an address, None where there is none.
Finder = Callable[[str], Job | None]
# The policy's decision for a job with these facts.
Deciding = Callable[[Facts], Decision]
NO_TOPOLOGY: Final = "the policy declares no topology, so nothing can be reserved"


@dataclass(frozen=True, slots=True)
class End:
    """One end of a flow: its node in the topology, the job that it is, and its addresses (empty for the WAN).
    ``follows``: it is the WAN wherever the sender's packets leave, and ``node`` the one where they do so now.
    ``whole``: it is a host of the topology, with all the addresses that the policy gives it."""

    node: str
    job: Job | None = None
    networks: tuple[Network, ...] = ()
    follows: bool = False
    whole: bool = False

    @property
    def name(self) -> str:
        """The name that a reservation keeps: a policy may let packets leave by another WAN."""
        return WAN if self.follows else self.node

    @property
    def called(self) -> str:
        """The job, the host, or the addresses, in words."""
        if self.job is not None:
            return f"job {self.job.called}"
        return self.node if self.whole or not self.networks else ", ".join(map(str, self.networks))


def job_booking(job: Job, policy: Policy, topology: Topology, decided: Deciding | None = None) -> Booking | None:
    """The booking of a job's RequestBandwidth, by the policy's ``bandwidth`` rules (default, maximum); None where it
    asks for none. ``decided`` keeps the policy's decisions. Raises PathError."""
    rate = job_rate(job, policy, decided)
    if rate is None:
        return None
    node = job.host.lower()
    to = wan_node(job, policy, topology, decided) if topology.spec.reserves is Reserves.WAN else node
    return Booking(ReservationKind.JOB, rate, node, to, _job_demand(topology, node, to, rate), job=job.id)


def promise(job: Job, policy: Policy, topology: Topology, decided: Deciding) -> Booking | None:
    """As :func:`job_booking`, of a job that lives already: where no path is known it takes nothing."""
    try:
        return job_booking(job, policy, topology, decided)
    except PathError:
        rate, node = job_rate(job, policy, decided), job.host.lower()
        return None if rate is None else Booking(ReservationKind.JOB, rate, node, node, (), job=job.id)


def job_rate(job: Job, policy: Policy, decided: Deciding | None) -> int | None:
    """The rate that is booked for a job, in kb/s; None: it asks for none, and no rule gives it one."""
    rate = job.bandwidth
    if policy.bandwidths:
        decision = decide(job.facts, policy) if decided is None else decided(job.facts)
        if decision.bandwidth is not None:
            rate = decision.bandwidth.rate(job.bandwidth)
    return requested_rate(rate) if rate and job.network_type is not NetworkType.NONE else None


def flow_booking(
    source: End, destination: End, rate: float, until: float | None, topology: Topology, *, steady: bool = False
) -> Booking:
    """The booking of a flow; ``rate`` is Mb/s. Raises PathError."""
    kbps = requested_rate(rate)
    _check_versions(source, destination)
    return Booking(
        ReservationKind.FLOW,
        kbps,
        source.name,
        destination.name,
        topology.flow(source.node, destination.node, kbps),
        job=None if source.job is None else source.job.id,
        peer=None if destination.job is None else destination.job.id,
        target=destination.networks,
        until=until,
        steady=steady,
        to_host=destination.whole,
    )


def demand_of(
    reservation: Reservation,
    topology: Topology | None,
    policy: Policy | None,
    find: Finder,
    kbps: int | None = None,
    decided: Deciding | None = None,
) -> Demand:
    """The demand of a reservation on a topology by a policy, at another rate where one is given; ``find`` has the jobs
    that send. Raises PathError."""
    if topology is None or policy is None:
        raise PathError(NO_TOPOLOGY)
    rate = reservation.kbps if kbps is None else kbps
    source, to = reservation.source, reservation.destination
    sender = None if reservation.job is None else find(reservation.job)
    if reservation.kind is ReservationKind.JOB:
        to = to if to == source else present_node(to, sender, policy, topology, decided)
        return _job_demand(topology, source, to, rate)
    if reservation.job is None:
        source = present_node(source, None, policy, topology, decided)
    if reservation.peer is None:
        # Addresses outside of the site are no certain WAN's, whatever the name is that was kept.
        to = present_node(WAN if reservation.target and is_wan(to) else to, sender, policy, topology, decided)
    return topology.flow(source, to, rate)


def present_node(
    node: str, sender: Job | None, policy: Policy, topology: Topology, decided: Deciding | None = None
) -> str:
    """The node of the topology that a name means which is no job's host. Raises PathError."""
    if node == WAN:
        return wan_node(sender, policy, topology, decided)
    if is_wan(node) and not topology.has(node):
        # It is no host, which the topology's default could be for.
        raise PathError(f"the policy's topology has no WAN {node}; it has {', '.join(topology.wans) or 'none'}")
    return node


def end_of(text: str, find: Finder, sender: Job | None, policy: Policy, topology: Topology) -> End:
    """The end that a text names: a job's id or address, a host or WAN of the topology, or an address or network.

    ``sender`` is the job whose policy determines the WAN port of its traffic. Raises PathError.
    """
    job = find(text)
    if job is not None:
        if job.network_type is NetworkType.NONE:
            raise PathError(f"job {job.called} has no network of its own, so nothing can be reserved for it")
        if job.has_pool_address and not job.addresses:
            raise PathError(f"job {job.called} has no address yet")
        own = job.addresses if job.has_pool_address else ()
        return End(job.host.lower(), job, tuple(ip_network(address) for address in own))
    node = text.lower()
    if is_wan(node):
        return End(present_node(node, sender, policy, topology), follows=node == WAN)
    node = topology.called(text)
    if topology.has(node):
        addresses = topology.addresses(node)
        if sender is not None and not addresses:
            raise PathError(
                f"the policy's topology has no addresses of {node}, so which packets go there is not known; give "
                f"topology.hosts.{node} addresses, or name a job there"
            )
        return End(node, None, addresses, whole=True)
    try:
        network = ip_network(text)
    except ValueError:
        raise PathError(
            f"{text} is neither a live job, nor a host or WAN of the policy's topology, nor an address"
        ) from None
    host = topology.host_at(ip_address(network.network_address))
    if host is not None:
        return End(host, None, (network,))
    if any(network.overlaps(each) for each in policy.local_networks if each.version == network.version):
        raise PathError(f"{text} is no WAN address, and no live job or host of the policy's topology has it")
    return End(wan_node(sender, policy, topology), None, (network,), follows=True)


def sent_versions(sender: Job) -> frozenset[int]:
    """The IP versions of which a job may send packets: one with DHCP, or without an address yet, may get any."""
    if sender.address_type is AddressType.DHCP or not sender.addresses:
        return frozenset((4, 6))
    return frozenset(address.version for address in sender.addresses)


def why_no_version(sender: Job, networks: tuple[Network, ...], called: str) -> str:
    """The reason why no packet of a job goes to addresses (``called`` so) of the other IP version alone; "" where one
    may."""
    sent, received = sent_versions(sender), {network.version for network in networks}
    if not received or sent & received:
        return ""
    return (
        f"job {sender.called} has IPv{max(sent)} alone and {called} IPv{max(received)} alone, so no packet "
        "goes from one to the other"
    )


def why_no_version_between(sender: Job, receiver: Job) -> str:
    """The same of two jobs."""
    if receiver.address_type is AddressType.DHCP:
        # An address of the other version may come.
        return ""
    return why_no_version(sender, tuple(map(ip_network, receiver.addresses)), f"job {receiver.called}")


def _check_versions(source: End, destination: End) -> None:
    """Raise PathError for a job's flow to another job or to addresses of which it has not the IP version."""
    if source.job is None:
        return
    if destination.job is not None:
        why = why_no_version_between(source.job, destination.job) if destination.networks else ""
    else:
        why = why_no_version(source.job, destination.networks, destination.called)
    if why:
        raise PathError(why)


def wan_node(job: Job | None, policy: Policy, topology: Topology, decided: Deciding | None = None) -> str:
    """The WAN that a job's traffic takes: where a rule steers it, else the only one, or ``wan``, or the first to which
    no rule steers. A group's port steers nothing. Raises PathError."""
    wans = topology.wans
    if not wans:
        raise PathError("no link of the policy's topology leads to a WAN")
    chosen = None if job is None else _steered(job, policy, decided)
    if chosen is not None and chosen.lower() in wans:
        return chosen.lower()
    if WAN in wans:
        return WAN
    others = {rule.port.lower() for rule in policy.wans if rule.port is not None}
    return next((wan for wan in wans if wan not in others), wans[0])


def _steered(job: Job, policy: Policy, decided: Deciding | None) -> str | None:
    if not policy.wans:
        return None
    decision = decide(job.facts, policy) if decided is None else decided(job.facts)
    rule = policy.wans[decision.wan - 1] if decision.wan else None
    return rule.port if rule is not None and rule.action is WanAction.STEER else None


def _job_demand(topology: Topology, node: str, to: str, kbps: int) -> Demand:
    return topology.host(node, kbps) if node == to else topology.both_ways(node, to, kbps)
