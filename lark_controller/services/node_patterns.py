"""The patterns that submit files of parallel jobs ask for (RequestMpiBandwidth), booked as the nodes register.

Each node of such a job is a job here, and they have the GlobalJobId in common. The first one to register is admitted
only where there is room for the whole pattern, between the hosts that HTCondor has chosen; each later one brings the
flows between it and those that are there. So where others take the room meanwhile, that node is refused, and HTCondor
takes the whole job back.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from lark_common.classads.ads import JobAd
from lark_common.errors import AdError, ApartError, PathError
from lark_controller.jobs.job import Facts, Job
from lark_controller.qos.booking import End, flow_booking
from lark_controller.qos.pattern import ATTRIBUTE, NodePattern, node_pattern
from lark_controller.qos.reservation import Booking
from lark_controller.qos.topology import KILO, Channel, Demand, Topology

# The attribute of a run's ad with its number among the nodes of its job.
NODE: Final = "Node"
# Nodes of a job; how many flows they have is the pattern's limit.
MOST_NODES: Final = 4_096
_FACT: Final = ATTRIBUTE.lower()


@dataclass(frozen=True, slots=True)
class PatternBookings:
    """A node's part of a pattern: the flows to be booked, and the ``rest`` of the pattern, for which there is to be
    room as well. ``what`` are its words."""

    what: str = ""
    flows: tuple[Booking, ...] = ()
    rest: Demand = ()


NONE: Final = PatternBookings()


class NodePatterns:
    """The nodes that live, by job; the caller holds the feed's lock. ``live`` finds a live job by its id."""

    def __init__(self, live: Callable[[str], Job | None]) -> None:
        self._live = live
        # Ids by node, by what the nodes of a job have in common; and that by id.
        self._nodes: dict[tuple[str, int], dict[int, str]] = {}
        self._of: dict[str, tuple[tuple[str, int], int]] = {}

    def note(self, job: Job) -> None:
        """Take in a live job, if it is a node of one with a pattern."""
        # Of every job that is put, so what most jobs have not comes first.
        if not _asks(job.facts):
            return
        node = node_of(job)
        if node is not None:
            key = (job.run.global_job_id, job.run.started)
            self._nodes.setdefault(key, {})[node] = job.id
            self._of[job.id] = key, node

    def note_all(self, jobs: Iterable[Job]) -> None:
        """:meth:`note` of all live jobs, many of which have the same facts."""
        # By identity, as long as the jobs are there that have them.
        asking: dict[int, tuple[Facts, bool]] = {}
        for job in jobs:
            facts = job.facts
            if (known := asking.get(id(facts))) is None:
                known = asking[id(facts)] = facts, _asks(facts)
            if known[1]:
                self.note(job)

    def forget(self, job_id: str) -> None:
        """Forget a job that is over."""
        key, node = self._of.pop(job_id, (None, 0))
        if key is not None and (nodes := self._nodes.get(key)) is not None and nodes.get(node) == job_id:
            del nodes[node]
            if not nodes:
                del self._nodes[key]

    def bookings(
        self,
        job: Job,
        ad: JobAd,
        topology: Topology,
        reserved: Callable[[str, str], bool],
        check: Callable[[Job, End], None],
    ) -> PatternBookings:
        """The bookings of a node that registers; ``reserved`` is true for a flow between two jobs that has been
        booked, and ``check`` raises ApartError for one of which nothing would pass. Raises AdError, PathError,
        ApartError."""
        if ad.mpi_bandwidth is None:
            return NONE
        count = ad.nodes or 1
        if count > MOST_NODES:
            raise AdError(ATTRIBUTE, f"the job has {count} nodes; at most {MOST_NODES} are accepted")
        pattern = node_pattern(ad.mpi_bandwidth, count)
        node = ad.node
        if not pattern.rates or node is None or node >= count:
            return NONE
        if not job.has_pool_address and any(node in pair for pair in pattern.rates):
            raise PathError(f"{ATTRIBUTE}: job {job.called} has no address of its own")
        others = self._others(job, node)
        what = f'{ATTRIBUTE} = "{pattern.text}"'
        flows = _flows(pattern, {**others, node: job}, node, topology, reserved, check)
        rest = () if others else _rest(pattern, node, job, ad.hosts, topology)
        return PatternBookings(what, flows, rest)

    def _others(self, job: Job, node: int) -> dict[int, Job]:
        nodes = self._nodes.get((job.run.global_job_id, job.run.started), {})
        found = {each: self._live(job_id) for each, job_id in nodes.items() if each != node}
        return {each: other for each, other in found.items() if other is not None and other.id != job.id}


def _asks(facts: Facts) -> bool:
    """True for the facts of a job that asks for a pattern."""
    return any(name == _FACT for name, _ in facts.job)


def node_of(job: Job) -> int | None:
    """A job's number among the nodes of a parallel job; None where it is none."""
    text = dict(job.facts.job).get(NODE.lower(), "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 7 else None


def _flows(
    pattern: NodePattern,
    nodes: Mapping[int, Job],
    node: int,
    topology: Topology,
    reserved: Callable[[str, str], bool],
    check: Callable[[Job, End], None],
) -> tuple[Booking, ...]:
    """The bookings of the flows from and to a node whose other end is there, and has its address."""
    found = []
    for other in nodes:
        for here, there in ((node, other), (other, node)):
            kbps = pattern.rates.get((here, there))
            if kbps is None or here == there:
                continue
            source, target = nodes[here], nodes[there]
            if source.host.lower() == target.host.lower() or not target.addresses or reserved(source.id, target.id):
                continue
            try:
                check(source, _end(target))
            except ApartError as error:
                # The two are called alike, and their user has asked for no flow by name.
                raise ApartError(f"{ATTRIBUTE}: node {here} to node {there}, {error}") from None
            booking = flow_booking(_end(source), _end(target), kbps / KILO, None, topology, steady=pattern.steady)
            found.append(booking)
    return tuple(found)


def _end(job: Job) -> End:
    return End(job.host.lower(), job, tuple(ip_network(address) for address in job.addresses))


def _rest(pattern: NodePattern, node: int, job: Job, slots: Collection[str], topology: Topology) -> Demand:
    """The demand of a whole pattern at the hosts of these slots, in order of nodes; nothing where that is not known."""
    hosts = [slot.rpartition("@")[2].lower() for slot in slots]
    if not hosts or max(max(pair) for pair in pattern.rates) >= len(hosts) or hosts[node] != job.host.lower():
        return ()
    total: dict[Channel, int] = {}
    for (here, there), kbps in pattern.rates.items():
        if hosts[here] != hosts[there]:
            for channel, more in topology.flow(hosts[here], hosts[there], kbps):
                total[channel] = total.get(channel, 0) + more
    return tuple(total.items())
