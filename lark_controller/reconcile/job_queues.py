"""The queues of a job at its worker: what it claims, their numbers, and whether what stands there serves it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from lark_controller.jobs.job import Job
from lark_controller.qos.queues import (
    FIRST_JOB_QUEUE,
    FIRST_RESERVED_QUEUE,
    LAST_JOB_QUEUE,
    MAX_QUEUE,
    PortQueues,
    Queue,
    bits,
)
from lark_controller.qos.worker_queues import Claim, QueueDemand, Way


def free_number(claim: Claim, taken: Collection[int]) -> int:
    """A queue number for a claim: the same on every controller unless another has it."""
    first, last = (FIRST_JOB_QUEUE, LAST_JOB_QUEUE) if claim.is_job else (FIRST_RESERVED_QUEUE, MAX_QUEUE)
    count = last - first + 1
    queue = claim.number % count
    while queue + first in taken:
        queue = (queue + 1) % count
    return queue + first


def claims_of(job: Job) -> list[Claim]:
    """The claims of a job to queues at its worker: its bandwidth, and the reserved flows that it sends."""
    return [Claim.of_job(job.number), *(Claim.of_flow(each.number) for each in job.reserved if not each.incoming)]


def serves(held: Queue | None, queue: Queue, demand: QueueDemand) -> bool:
    """True if a queue that stands does what the plan has it for. What a flow gets beyond its rate is another with each
    job that starts, and nobody waits for that."""
    if held is None or held == queue or demand.way is Way.BOTH or demand.rate is None:
        return held == queue
    return held.least >= min(queue.least, bits(demand.rate)) and held._replace(least=queue.least) == queue


def ports_of(demand: QueueDemand, ports: Mapping[str, PortQueues]) -> Iterator[tuple[str, PortQueues]]:
    """The queues of a plan that are one job's: at each uplink one, and all of its own port."""
    for port, shares in ports.items():
        if port == demand.port:
            yield port, shares
        elif demand.number in shares.queues:
            yield port, PortQueues(shares.rate, {demand.number: shares.queues[demand.number]})
