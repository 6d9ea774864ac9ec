"""Bandwidth of a worker's jobs that have no port on a switch: what the worker's own queues are to be. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Final

from lark_common.runs import NetworkType
from lark_common.worker_rules import RULED, ReservedShare, Share, Uplink, WayOut, WaysOut
from lark_controller.flows.placement import Placed
from lark_controller.jobs.job import Job, ReservedFlow
from lark_controller.policies.model import InboundShares, Policy
from lark_controller.qos.queues import DEFAULT_QUEUE, Queue
from lark_controller.qos.worker_queues import Claim, QueueDemand, carried, flow_demand, worker_queue_plan

# The queue of demands that have none of their own.
_NO_QUEUE: Final = 0


@dataclass(frozen=True, slots=True)
class WorkerShares:
    """The shares of a worker's jobs.

    ``uplinks`` are None where nothing is known of them though a job is limited. ``inward`` limits what is sent to a
    job, by its id; ``short`` has, by job id, the reason why a job's bandwidth cannot be promised.
    """

    uplinks: Mapping[str, Uplink] | None = field(default_factory=lambda: MappingProxyType({}))
    inward: Mapping[str, Share] = field(default_factory=lambda: MappingProxyType({}))
    short: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def is_limited(placed: Placed) -> bool:
    """True if a job's bandwidth is enforced, or it has reserved some as a sender."""
    if placed.decision.isolated:
        return False
    return _rate(placed) is not None or any(not each.incoming for each in placed.job.reserved)


def flows_away(present: Iterable[Placed]) -> Iterator[tuple[Placed, ReservedFlow]]:
    """The reserved flows from and to these jobs of one worker, each with its job; without those between two of them,
    which take no uplink."""
    present = list(present)
    ends = Counter(each.number for placed in present for each in placed.job.reserved)
    for placed in present:
        for each in placed.job.reserved:
            if ends[each.number] == 1:
                yield placed, each


def has_parts(present: Iterable[Placed]) -> bool:
    """True where each of these jobs of one worker that is not limited has a queue with its part of what is left: a
    flow of one of them has its own part, or a job beside them."""
    present = list(present)
    if some_exceed(present):
        return True
    flows = flows_away(placed for placed in present if placed.job.reserved)
    return any(flow_demand(at.job, each, _NO_QUEUE, at.decision.bandwidth).is_floor for at, each in flows)


def some_exceed(present: Iterable[Placed]) -> bool:
    """True where one of these jobs of one worker may exceed what it is guaranteed, and another is not limited."""
    free = exceeds = False
    # All jobs of a worker pass here with each that comes.
    for placed in present:
        share, requested = placed.decision.bandwidth, placed.job.bandwidth
        if share is None or (requested or share.default) is None:
            free = True
        elif share.borrows and not exceeds:
            exceeds = share.ceiling != share.rate(requested)
        if free and exceeds:
            return True
    return False


def worker_shares(policy: Policy, host: str, jobs: Iterable[Placed], out: WaysOut | None) -> WorkerShares:
    """The shares of these jobs of one worker, whose interfaces that lead away are ``out``; None: it has reported
    none."""
    present = [placed for placed in jobs if not placed.decision.isolated]
    if not any(is_limited(placed) for placed in present):
        return WorkerShares()
    if out is None:
        return WorkerShares(None)
    keys: list[str] = []
    ways = _chosen(policy, out)
    demands = list(_demands(present, keys, ways, shared=bool(policy.bandwidths)))
    known = {
        name: each if policy.edge_speed is None else policy.edge_speed
        for name, each in out.speeds.items()
        if any(name in names for names in ways.values())
    }
    inbound = policy.edge_inbound if policy.bandwidths else InboundShares.OPEN
    plan = worker_queue_plan(demands, carried(known, policy, host, demands), inbound)
    parts = {each.number for each in demands if each.claim.is_part} - {_NO_QUEUE}
    jobs_of = {Claim.of_job(placed.job.number): placed.job.id for placed in present}
    jobs_of |= {Claim.of_flow(each.number): placed.job.id for placed in present for each in placed.job.reserved}
    return WorkerShares(
        {
            name: Uplink(
                plan.ports[name].rate,
                _share(plan.ports[name].queues[DEFAULT_QUEUE]),
                {
                    keys[number - 1]: _share(queue)
                    for number, queue in plan.ports[name].queues.items()
                    if number != DEFAULT_QUEUE and number not in parts
                },
                {
                    keys[number - 1]: _share(queue)
                    for number, queue in plan.ports[name].queues.items()
                    if number in parts
                },
            )
            for name in known
            if name in plan.ports
        },
        {
            placed.job.id: _share(plan.ports[placed.job.id].queues[DEFAULT_QUEUE])
            for placed in present
            if placed.job.id in plan.ports
        },
        {jobs_of[claim]: why for claim, why in plan.short.items()},
    )


def reserved_shares(job: Job) -> tuple[ReservedShare, ...]:
    """The flows that a job has reserved, each with the key of its share."""
    return tuple(ReservedShare(_key(job, each), each.target) for each in job.reserved if not each.incoming)


def _chosen(policy: Policy, out: WaysOut) -> Mapping[NetworkType, frozenset[str]]:
    """The uplinks of jobs of each network type: of each way those that the policy names, or else all of it. So none is
    without a queue because the policy names the interfaces of another way alone."""
    every = frozenset(out.speeds)
    chosen: dict[NetworkType, frozenset[str]] = {}
    for way in out.ways or [WayOut(kind, every) for kind in RULED]:
        names = way.uplinks & every
        named = frozenset(name for name in names if _is_uplink(name, policy))
        chosen[way.network_type] = chosen.get(way.network_type, frozenset()) | (named or names)
    return chosen


def _demands(
    present: list[Placed], keys: list[str], ways: Mapping[NetworkType, frozenset[str]], *, shared: bool
) -> Iterable[QueueDemand]:
    """The demands of the jobs; ``keys`` receives the key of each that has a queue. ``shared``: what comes in is shared
    among all jobs."""
    for placed, each in flows_away(present):
        number = _NO_QUEUE
        if not each.incoming:
            keys.append(_key(placed.job, each))
            number = len(keys)
        names = ways.get(placed.job.network_type, frozenset())
        yield replace(flow_demand(placed.job, each, number, placed.decision.bandwidth), uplinks=names)
    parts = has_parts(present)
    for placed in present:
        job, rate, share = placed.job, _rate(placed), placed.decision.bandwidth
        names = ways.get(job.network_type, frozenset())
        if rate is not None and share is not None:
            keys.append(job.id)
            claim = Claim.of_job(job.number)
            yield QueueDemand(claim, len(keys), job.id, rate, share.borrows, share.ceiling, uplinks=names)
            continue
        if parts:
            keys.append(job.id)
        if parts or shared:
            number = len(keys) if parts else _NO_QUEUE
            yield QueueDemand(Claim.of_part(job.number), number, job.id, uplinks=names)


def _rate(placed: Placed) -> float | None:
    share = placed.decision.bandwidth
    return None if share is None else share.rate(placed.job.bandwidth)


def _key(job: Job, flow: ReservedFlow) -> str:
    return f"{job.id}/{flow.number}"


def _is_uplink(name: str, policy: Policy) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in policy.edge_uplinks)


def _share(queue: Queue) -> Share:
    return Share(queue.least, queue.most, queue.burst)
