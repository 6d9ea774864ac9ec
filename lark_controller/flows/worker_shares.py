"""Bandwidth of a worker's jobs that have no port on a switch: what the worker's own queues are to be. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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

# Jobs that are neither limited nor have anything reserved are in no class of their own.
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
                    if number != DEFAULT_QUEUE
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
    present: Iterable[Placed], keys: list[str], ways: Mapping[NetworkType, frozenset[str]], *, shared: bool
) -> Iterable[QueueDemand]:
    """The demands of the jobs; ``keys`` receives the key of each that has a queue. A flow between two of them takes no
    uplink."""
    seen: dict[int, int] = {}
    for placed in present:
        for each in placed.job.reserved:
            seen[each.number] = seen.get(each.number, 0) + 1
    floors = any(not each.incoming and not each.steady for placed in present for each in placed.job.reserved)
    for placed in present:
        job = placed.job
        names = ways.get(job.network_type, frozenset())
        for each in job.reserved:
            if seen[each.number] > 1:
                continue
            number = _NO_QUEUE
            if not each.incoming:
                keys.append(_key(job, each))
                number = len(keys)
            yield replace(flow_demand(job, each, number, placed.decision.bandwidth), uplinks=names)
        rate, share, claim = _rate(placed), placed.decision.bandwidth, Claim.of_job(job.number)
        if rate is None or share is None:
            if shared or floors:
                yield QueueDemand(claim, _NO_QUEUE, job.id, uplinks=names)
            continue
        keys.append(job.id)
        yield QueueDemand(claim, len(keys), job.id, rate, share.borrows, share.ceiling, uplinks=names)


def _rate(placed: Placed) -> float | None:
    share = placed.decision.bandwidth
    return None if share is None else share.rate(placed.job.bandwidth)


def _key(job: Job, flow: ReservedFlow) -> str:
    return f"{job.id}/{flow.number}"


def _is_uplink(name: str, policy: Policy) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in policy.edge_uplinks)


def _share(queue: Queue) -> Share:
    return Share(queue.least, queue.most, queue.burst)
