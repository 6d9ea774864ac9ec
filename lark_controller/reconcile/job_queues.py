"""The queues of a job at its worker: what it claims, their numbers, and whether what stands there serves it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from lark_controller.flows.desired import Desired
from lark_controller.flows.placement import Placed
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


def job_demand(placed: Placed) -> QueueDemand:
    """The demand of a job's bandwidth, or of its part of what is left, without its queue's number (0)."""
    job, share = placed.job, placed.decision.bandwidth
    rate = None if share is None else share.rate(job.bandwidth)
    if share is None or rate is None:
        return QueueDemand(Claim.of_part(job.number), 0, job.port)
    return QueueDemand(Claim.of_job(job.number), 0, job.port, rate, share.borrows, share.ceiling)


def present_at(desired: Desired, datapath: int) -> list[Placed]:
    """The jobs of a switch whose packets may pass it."""
    return [each for each in desired.jobs_at(datapath) if each.port is not None and not each.decision.isolated]


def parts_gone(
    numbers: Mapping[Claim, int], leaving: Collection[Claim], demands: Mapping[Claim, QueueDemand]
) -> dict[Claim, QueueDemand]:
    """The queues of parts that are to go and are not ``leaving`` yet, also those that stood when the switch connected.
    They count for nothing that comes in: their jobs may be here."""
    return {
        claim: QueueDemand(claim, number, None, way=Way.OUT)
        for claim, number in numbers.items()
        if claim.is_part and claim not in leaving and (claim not in demands or not demands[claim].number)
    }


def serves(held: Queue | None, queue: Queue, demand: QueueDemand) -> bool:
    """True if a queue that stands does what the plan has it for. What a job or flow gets beyond its rate is another
    with each job that starts, and nobody waits for that."""
    if held is None or held == queue or demand.rate is None:
        return held == queue
    return held.least >= min(queue.least, bits(demand.rate)) and held._replace(least=queue.least) == queue


def promised(demands: Iterable[QueueDemand], short: Collection[Claim]) -> dict[int, int]:
    """The rate that the owner of each queue was promised, in bits a second, by the queue's number. One that may exceed
    it may have more for certain, as much as there is at the time; so may one that came ``short``, and was promised
    nothing."""
    limited = ((each, each.rate) for each in demands if each.rate is not None)
    return {each.number: 0 if each.claim in short else bits(rate) for each, rate in limited}


def ports_of(demand: QueueDemand, ports: Mapping[str, PortQueues]) -> Iterator[tuple[str, PortQueues]]:
    """The queues of a plan that are one job's: at each uplink one, and all of its own port."""
    for port, shares in ports.items():
        if port == demand.port:
            yield port, shares
        elif demand.number in shares.queues:
            yield port, PortQueues(shares.rate, {demand.number: shares.queues[demand.number]})
