"""Host bandwidth: what a worker's jobs request, as queues at its uplinks and at the jobs' own ports. Pure.

Away from the worker every limited job has a queue of its own at each uplink, and all others share the default queue:
its rate is what is left, it may use what is idle, and it takes nothing that was requested. Towards a job its own port
limits it. A reserved flow that is not steady gets its rate, and an even part of what is left. Where there is one, each
job that asked for nothing has a queue with such a part, too: a queue that they shared would have the parts of all as
soon as one of them sends, before a flow borrows anything. The same holds of a job that may exceed what it is guaranteed
beside one that asked for nothing; jobs with guarantees alone share what is left by borrowing, in proportion to these.
So a job that reserves is not worse off than one beside it that does not, whichever of its flows it uses: queues of one
level cannot keep what one of them leaves idle for its job, so a part is a flow's, and not its job's. Nothing on a
worker can queue what comes in before it came over the link; so the guarantees of others hold towards jobs because no
other job gets more than the rest (policy: ``edge.inbound``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from lark_controller.jobs.job import Job, ReservedFlow
from lark_controller.policies.model import Duplex, HostBandwidth, InboundShares, Policy
from lark_controller.qos.queues import DEFAULT_QUEUE, PortQueues, Queue, bits
from lark_controller.qos.topology import KILO, access_link

# The least rate of the default queue, as a share of the link: over it the worker talks to its pool and to the switch's
# controller, and HTB serves a queue up to its own rate whatever the others do.
LEAST_REST: Final = 0.01
# The first two digits that parts of what is left may have.
_STEPS: Final = (80, 60, 50, 40, 30, 25, 20, 15, 12, 10)


class Way(Enum):
    """The directions in which a demand counts: both for a job's bandwidth, one for a flow that is reserved."""

    BOTH = "both"
    OUT = "out"
    IN = "in"


class Claim(NamedTuple):
    """The owner of a queue: a job's, or that of a reserved flow. Claims are ordered: flows were admitted, so they come
    before jobs, and the older before the younger. ``is_part``: of what nobody has requested, to which nobody has a
    right."""

    is_job: bool
    number: int
    is_part: bool = False

    @classmethod
    def of_job(cls, number: int) -> Claim:
        """The claim of the job of that number."""
        return cls(True, number)

    @classmethod
    def of_flow(cls, number: int) -> Claim:
        """The claim of the flow whose reservation has that number."""
        return cls(False, number)

    @classmethod
    def of_part(cls, number: int) -> Claim:
        """The claim of the job of that number, which asked for nothing, to its part of what is left."""
        return cls(True, number, True)


@dataclass(frozen=True, slots=True)
class QueueDemand:
    """The queue that one job or reserved flow needs at its worker.

    ``rate`` is in Mb/s, None for a job that is not limited. ``number`` is its queue at the uplinks (0: none of its
    own), ``port`` the name of its own port (None: nothing is done towards it). ``borrows`` is True where ``rate`` is
    guaranteed and not the limit; ``ceiling`` (Mb/s) then is the limit, None the link. ``job`` is the number of the job
    at this end of a flow (``way`` is not BOTH). Where the link cannot hold all, the last ``claim`` comes short.
    ``uplinks`` are those by which it leaves, None where that may be any: at others it comes short of nothing.
    """

    claim: Claim
    number: int
    port: str | None
    rate: float | None = None
    borrows: bool = False
    ceiling: float | None = None
    way: Way = Way.BOTH
    job: int | None = None
    uplinks: frozenset[str] | None = None

    def leaves_by(self, name: str) -> bool:
        """True if it may leave by the uplink of that name."""
        return self.uplinks is None or name in self.uplinks

    @property
    def is_floor(self) -> bool:
        """True for a flow whose rate is guaranteed, and has a part of what is left on top."""
        return self.way is Way.OUT and self.borrows

    @property
    def may_exceed(self) -> bool:
        """True for a job's bandwidth that is guaranteed, and not all that it may send: where there are parts of what is
        left it has one on top."""
        return self.way is Way.BOTH and self.borrows and self.ceiling != self.rate


def flow_demand(job: Job, flow: ReservedFlow, number: int, share: HostBandwidth | None) -> QueueDemand:
    """The demand of a flow that is reserved from or to a job, in the queue of that number.

    Unless it is steady it borrows, up to what the policy gives the job altogether (``share``): nothing more than its
    rate where that is a limit.
    """
    rate = flow.kbps / KILO
    borrows, ceiling = not flow.steady and not flow.incoming, None
    if borrows and share is not None and share.rate(job.bandwidth) is not None:
        borrows, ceiling = share.borrows, None if share.ceiling is None else max(share.ceiling, rate)
    way = Way.IN if flow.incoming else Way.OUT
    return QueueDemand(Claim.of_flow(flow.number), number, None, rate, borrows, ceiling, way, job.number)


@dataclass(frozen=True, slots=True)
class QueuePlan:
    """The queues of a worker's ports, by the port's name, and what cannot be promised, by claim."""

    ports: Mapping[str, PortQueues] = field(default_factory=lambda: MappingProxyType({}))
    short: Mapping[Claim, str] = field(default_factory=lambda: MappingProxyType({}))


def worker_queue_plan(
    demands: Iterable[QueueDemand], uplinks: Mapping[str, float | None], inbound: InboundShares = InboundShares.SPLIT
) -> QueuePlan:
    """The plan for a worker with these uplinks (name: speed in Mb/s, None where it is not known).

    No queue stands at an uplink while no demand has one. A demand that the link cannot hold beside those before it
    gets no guarantee, is limited to its rate unless it is a flow that borrows, and is named in ``short``; so is every
    demand while the speed of an uplink by which it leaves is not known.
    """
    jobs = sorted(demands, key=lambda demand: demand.claim)
    limited = [(each, each.rate) for each in jobs if each.rate is not None and each.way is not Way.IN]
    parts = [each for each in jobs if each.claim.is_part and each.number]
    if not limited and not parts:
        return QueuePlan()
    short: dict[Claim, str] = {}
    ports: dict[str, PortQueues] = {}
    known = [speed for speed in uplinks.values() if speed is not None]
    for each, _ in limited:
        if why := why_none({name: speed for name, speed in uplinks.items() if each.leaves_by(name)}):
            short[each.claim] = why
    for name, speed in uplinks.items():
        if speed is not None:
            ports[name] = _uplink(limited, parts, name, speed, short)
    # A job may use any uplink, so what comes in is promised by the slowest.
    link = min(known, default=None)
    ports |= _inbound(jobs, link, short, inbound)
    return QueuePlan(MappingProxyType(ports), MappingProxyType(short))


def why_none(uplinks: Mapping[str, float | None]) -> str:
    """The reason why nothing can be promised at these uplinks of a worker; ``""`` where something can."""
    if not uplinks:
        return "the worker has no uplink as the policy describes them"
    unknown = max((name for name, speed in uplinks.items() if speed is None), default=None)
    return "" if unknown is None else f"the speed of uplink {unknown} is not known; the policy can say it (speed)"


def carried(
    speeds: Mapping[str, float | None], policy: Policy, host: str, demands: Iterable[QueueDemand]
) -> dict[str, float | None]:
    """The rate of each uplink away from the worker, in Mb/s: its speed, and no more than the policy's topology gives
    the worker. Of a half-duplex link, what is promised towards the worker is not there."""
    link = access_link(policy.topology, host)
    if link is None or link.capacity is None:
        return dict(speeds)
    most = link.capacity
    if link.duplex is Duplex.HALF:
        towards = sum(each.rate for each in demands if each.rate is not None and each.way is not Way.OUT)
        most = max(most - towards, most * LEAST_REST)
    return {name: most if speed is None else min(speed, most) for name, speed in speeds.items()}


def _uplink(
    limited: list[tuple[QueueDemand, float]],
    parts: list[QueueDemand],
    name: str,
    speed: float,
    short: dict[Claim, str],
) -> PortQueues:
    link, promised = bits(speed), 0
    sharing = [each.number for each in parts if each.leaves_by(name)]
    has_parts = bool(sharing) or any(each.is_floor and each.leaves_by(name) for each, _ in limited)
    borrowing: list[int] = []
    queues: dict[int, Queue] = {}
    for each, rate in limited:
        wanted = bits(rate)
        fits = promised + wanted <= link
        if not fits and each.leaves_by(name):
            left = (link - promised) / 1e6
            short[each.claim] = (
                f"uplink {name} of {speed:g} Mb/s has {left:g} Mb/s left, and this job needs {rate:g}; it is limited "
                f"to what it needs, without a guarantee"
            )
            if each.is_floor:
                short[each.claim] = short[each.claim].partition(";")[0] + "; it has no guarantee"
        promised += wanted if fits else 0
        most = _most(each, link) if each.borrows and (fits or each.is_floor) else wanted
        queues[each.number] = Queue(wanted if fits else 0, min(most, link))
        if (each.is_floor or each.may_exceed) and each.leaves_by(name):
            borrowing.append(each.number)
    rest = link - promised
    if has_parts:
        rest = _even_part(rest, len(borrowing) + len(sharing) + 1)
        for number in borrowing:
            least, most, _ = queues[number]
            queues[number] = Queue(min(least + rest, most), most)
        queues |= dict.fromkeys(sharing, Queue(rest, link))
    queues[DEFAULT_QUEUE] = Queue(max(rest, round(link * LEAST_REST)), link)
    return PortQueues(link, MappingProxyType(queues))


def _even_part(free: int, queues: int) -> int:
    """The part of what is ``free`` that each of so many queues has for certain, as a number of :data:`_STEPS`: of many
    changes of what is free or of the number, few change the queues of all. What is left over by that is for all, as
    what is idle is."""
    part = max(free, 0) // queues
    scale = 10 ** max(len(str(part)) - 2, 0)
    return next((step * scale for step in _STEPS if step * scale <= part), part)


def _most(demand: QueueDemand, link: int) -> int:
    return link if demand.ceiling is None else min(bits(demand.ceiling), link)


def _inbound(
    jobs: list[QueueDemand], link: float | None, short: Mapping[Claim, str], inbound: InboundShares
) -> dict[str, PortQueues]:
    """Each job's own port, once something is promised towards a job: a cap is its rate; a job that may exceed it gets
    an even part of the rate that no job has requested. What is reserved for flows to the job comes on top."""
    if not any(each.rate is not None and each.way is not Way.OUT for each in jobs):
        # Nothing is promised towards anybody that others could take.
        return {}
    towards: dict[int | None, int] = {}
    for each in jobs:
        if each.way is Way.IN and each.rate is not None:
            towards[each.job] = towards.get(each.job, 0) + bits(each.rate)
    sharers = [each for each in jobs if each.way is Way.BOTH and (each.rate is None or each.borrows)]
    promised = sum(
        bits(each.rate)
        for each in jobs
        if each.rate is not None and each.way is not Way.OUT and each.claim not in short
    )
    part = None
    if link is not None and inbound is InboundShares.SPLIT and sharers:
        part = max(bits(link) - promised, round(bits(link) * LEAST_REST)) // len(sharers)
    ports = {}
    for each in jobs:
        if each.way is not Way.BOTH:
            continue
        most: int | None = None
        if each.rate is not None and (not each.borrows or each.claim in short):
            most = bits(each.rate)
        elif part is not None:
            most = part if each.rate is None else min(bits(each.rate) + part, _most(each, bits(link or 0)))
        elif each.ceiling is not None and each.rate is not None:
            most = bits(each.ceiling)
        if most is not None and each.port is not None:
            most += towards.get(each.claim.number, 0)
            most = most if link is None else min(most, bits(link))
            ports[each.port] = PortQueues(most, MappingProxyType({DEFAULT_QUEUE: Queue(most, most)}))
    return ports
