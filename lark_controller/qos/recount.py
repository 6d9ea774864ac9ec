"""The counting of reservations anew by another policy. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import Final

from lark_common.errors import PathError
from lark_common.runs import Network
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Policy
from lark_controller.policies.switches import WAN
from lark_controller.policies.topology import is_wan
from lark_controller.qos.booking import Finder, demand_of, job_rate, promise
from lark_controller.qos.reservation import Booking, Reservation, ReservationKind
from lark_controller.qos.topology import KILO, Channel, Demand, Topology, has_some_of

# Links that a plan names.
MOST: Final = 20


class Recount:
    """The reservations by a policy and its topology (None: it has none); ``find`` has the live jobs, with the facts
    that the policy needs."""

    def __init__(self, policy: Policy, topology: Topology | None, find: Finder) -> None:
        self._policy = policy
        self._topology = topology
        self._find = find
        self._decide = Decider(policy).decide
        self._local = (*policy.local_networks, *policy.job_networks)
        # Many flows go to few addresses.
        self._hosts: dict[Network, str | None] = {}

    def demand(self, reservation: Reservation) -> Demand:
        """The demand of a reservation. Raises PathError."""
        return demand_of(self.followed(reservation), self._topology, self._policy, self._find, decided=self._decide)

    def followed(self, reservation: Reservation) -> Reservation:
        """The reservation as it is now: one to a host of the topology goes to the addresses that are declared, and one
        to an address to the host that has it, or to the WAN."""
        if reservation.to_host:
            return replace(reservation, target=self.target(reservation))
        if reservation.kind is not ReservationKind.FLOW or reservation.peer is not None or not reservation.target:
            return reservation
        to = self._destination(reservation)
        return reservation if to == reservation.destination else replace(reservation, destination=to)

    def target(self, reservation: Reservation) -> tuple[Network, ...]:
        """The addresses to which a reservation goes: one to a host of the topology follows those that are declared."""
        if not reservation.to_host:
            return reservation.target
        return () if self._topology is None else self._topology.addresses(reservation.destination)

    def _destination(self, flow: Reservation) -> str:
        """The host that has an address of a flow, that of before where it has one still; the WAN where none has one,
        and they are not local; that of before where they are."""
        topology, here = self._topology, flow.destination
        if topology is None or has_some_of(topology.spec, here, flow.target):
            return here
        hosts = (self._host_at(each, topology) for each in flow.target)
        if (host := next(filter(None, hosts), None)) is not None:
            return host
        local = (each.version == near.version and each.overlaps(near) for each in flow.target for near in self._local)
        return here if is_wan(here) or any(local) else WAN

    def _host_at(self, network: Network, topology: Topology) -> str | None:
        if network not in self._hosts:
            first, last = (topology.host_at(network[place]) for place in (0, -1))
            self._hosts[network] = first if first == last else None
        return self._hosts[network]

    def promised(self, live: Iterable[Job]) -> dict[str, Booking]:
        """The guarantees to live jobs, by job id; one takes nothing where no path is known for it."""
        return {each.job: each for each in self._promises(live) if each.job is not None}

    def _promises(self, live: Iterable[Job]) -> Iterator[Booking]:
        policy, topology = self._policy, self._topology
        if topology is None:
            return
        for job in live:
            if (job.bandwidth or policy.bandwidths) and (booking := promise(job, policy, topology, self._decide)):
                yield booking

    def is_over(self, reservation: Reservation) -> bool:
        """True of the guarantee that a rule's default gave to a live job, where no rule gives it one any more."""
        if reservation.kind is not ReservationKind.JOB or reservation.job is None:
            return False
        job = self._find(reservation.job)
        return job is not None and job_rate(job, self._policy, self._decide) is None

    def pathless(self, flows: Iterable[Reservation], step: Callable[[], None] = lambda: None) -> Iterator[str]:
        """The sentence on flows that count on links now and would have no path; ``step`` is called between them."""
        count, such = 0, ""
        for each in flows:
            step()
            try:
                # One inside a worker takes no link by any policy.
                _ = each.holds and self.demand(each)
            except PathError as error:
                count += 1
                such = such or f"{self._called(each)}: {error}"
        if count:
            has = "1 reservation has" if count == 1 else f"{count} reservations have"
            yield f"{has} no path any more, and would count on no link, such as {such}"

    def unaddressed(self, flows: Iterable[Reservation], step: Callable[[], None] = lambda: None) -> Iterator[str]:
        """The sentences on flows of jobs that go to addresses of hosts now and would go to none; ``step`` is called
        between them."""
        to_hosts, to_addresses = list[str](), list[str]()
        for each in flows:
            step()
            if each.job is None or each.peer is not None or not each.target:
                continue
            now = self.followed(each)
            if not now.target:
                to_hosts.append(self._called(each))
            elif not is_wan(now.destination) and not self._has_some(now):
                to_addresses.append(self._called(each))
        if to_hosts:
            goes = "1 reservation goes to a host" if len(to_hosts) == 1 else f"{len(to_hosts)} reservations go to hosts"
            yield f"{goes} without addresses in the topology, and would be pending, such as {to_hosts[0]}"
        if to_addresses:
            count = len(to_addresses)
            goes = "1 reservation goes to an address" if count == 1 else f"{count} reservations go to addresses"
            yield f"{goes} that no host of the topology has, and would be pending, such as {to_addresses[0]}"

    def _has_some(self, flow: Reservation) -> bool:
        return self._topology is not None and has_some_of(self._topology.spec, flow.destination, flow.target)

    def _called(self, flow: Reservation) -> str:
        job = None if flow.job is None else self._find(flow.job)
        return f"{flow.id} from {flow.source if job is None else f'job {job.called}'} to {flow.destination}"

    def small_links(
        self, flows: Iterable[Reservation], live: Iterable[Job], step: Callable[[], None] = lambda: None
    ) -> Iterator[str]:
        """The sentences on links on which more would be reserved than they carry, the largest excess first; ``step`` is
        called between reservations."""
        total: Counter[Channel] = Counter()
        for demand in chain(self._demands(flows), (each.demand for each in self._promises(live))):
            step()
            for channel, kbps in demand:
                total[channel] += kbps
        small = [(channel, kbps) for channel, kbps in total.items() if kbps > channel.capacity]
        small.sort(key=lambda each: (each[0].capacity - each[1], each[0]))
        for channel, kbps in small[:MOST]:
            ends = f" from {channel.source} to {channel.target}" if channel.source else ""
            carried, there = channel.capacity / KILO, kbps / KILO
            yield f"link {channel.link}{ends} carries {carried:g} Mb/s, and {there:g} Mb/s would be reserved on it"
        if len(small) > MOST:
            yield f"beside these, of links that carry less than would be reserved on them: {len(small) - MOST}"

    def _demands(self, flows: Iterable[Reservation]) -> Iterator[Demand]:
        for each in flows:
            try:
                yield self.demand(each)
            except PathError:
                # It counts on no link.
                yield ()
