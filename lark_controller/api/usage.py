"""The network use of jobs and groups, for REST."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple, Protocol

from lark_common.runs import Network
from lark_common.transfers import Treatment
from lark_controller.accounting.rates import Flowing
from lark_controller.accounting.readings import TransferCounts, WorkerCounts
from lark_controller.accounting.usage import IDLE, NOTHING, JobUsage, Rate, Usage
from lark_controller.api.reservations import FlowDelivery, Seen
from lark_controller.jobs.job import Job
from lark_controller.qos.advice import Advice
from lark_controller.qos.pair_advice import PairAdvice
from lark_controller.qos.reservation import Reservation


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """The use that a list holds.

    ``by`` is group, user, host or job. ``start`` and ``end`` are seconds since 1970; ``seconds`` the width of the
    buckets that answer, and ``bucket`` its name, or None for one sum over the whole stretch. ``group``, ``user`` and
    ``host`` choose; None is any. Where ``together``, all subjects that are chosen have one row in each bucket.
    """

    by: str
    start: float
    end: float
    seconds: int
    bucket: str | None = None
    group: str | None = None
    user: str | None = None
    host: str | None = None
    together: bool = False


@dataclass(frozen=True, slots=True)
class UsageRow:
    """One subject's use in one stretch of time (seconds since 1970). Members that do not apply are None.

    Of a job, ``start`` and ``end`` are those of the job, and ``final`` is true where it is over.
    """

    usage: Usage
    start: float
    end: float
    job: str | None = None
    owner: str | None = None
    user: str | None = None
    group: str | None = None
    host: str | None = None
    final: bool | None = None


@dataclass(frozen=True, slots=True)
class UsagePage:
    """One page of use, the stretch that it covers (whole buckets), their width, and the cursor of the next page.

    All use until ``counted`` (seconds since 1970) is in it; of later use there may be more to come. ``known_since`` is
    when the installation began, before which nothing was counted: a bucket in which it lies is known from then on.
    """

    rows: tuple[UsageRow, ...]
    start: float
    end: float
    seconds: int | None = None
    next_cursor: str | None = None
    counted: float = 0.0
    known_since: float = 0.0


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """An accounting group of the running policy and how many live jobs it takes.

    ``rate`` is what they send and receive now, ``usage`` what they and others before have since this controller's
    start. ``core_drops`` are the packets that the group's queues and meters on cores dropped since then.
    """

    name: Annotated[str, "Its name"]
    jobs: Annotated[int, "Live jobs that it takes"]
    dscp: Annotated[int, "DSCP that marks its packets"]
    queue: Annotated[int | None, "Queue on the WAN ports"] = None
    guarantee: Annotated[float | None, "Guaranteed rate, Mb/s"] = None
    ceiling: Annotated[float | None, "Highest rate, Mb/s"] = None
    port: Annotated[str | None, "WAN port"] = None
    rate: Annotated[Rate, "Present rate of its jobs"] = IDLE
    usage: Annotated[Usage, "Use by its jobs since this controller became active, and a minute before"] = NOTHING
    core_drops: Annotated[int, "Packets that its queues and meters on cores dropped since it became active"] = 0
    transfer_capacity: Annotated[float | None, "What the site has for transfers of its jobs, Mb/s"] = None
    unkept: Annotated[tuple[str, ...], "What cores do not keep of its rates, each with the switch and the reason"] = ()


@dataclass(frozen=True, slots=True)
class AccessPointStatus:
    """An access point for whose transfers the running policy has a capacity, and what these move now."""

    name: Annotated[str, "Its name, in lower case"]
    transfer_capacity: Annotated[float, "What the site has for transfers of its jobs, Mb/s"]
    rate: Annotated[Rate, "Present rate of its jobs"] = IDLE


class TransferReport(NamedTuple):
    """A worker's sums of a job's transfers, all that is new of which came in the last ``within`` seconds (None: since
    the job's beginning); the treatment that it has in place, or ``trouble``, why it has none. While there is a transfer
    the next report follows in ``interval`` seconds (None: the worker does not say)."""

    counts: TransferCounts
    within: float | None = None
    treatment: Treatment | None = None
    trouble: str = ""
    interval: float | None = None


@dataclass(frozen=True, slots=True)
class TransfersNoted:
    """The jobs of a report that have no open account on that worker, the networks that are not the WAN, and the
    treatments of the report's live jobs that the policy has rules for; None where it has no rule of transfers.
    ``scitags`` is the revision of jobs' marks, empty where flows are reported to nobody."""

    missing: frozenset[str]
    local: tuple[Network, ...]
    treatments: Mapping[str, Treatment] | None = None
    scitags: str = ""


@dataclass(frozen=True, slots=True)
class AdvisedPair:
    """Advice for one pair: the job that sends, and where to.

    ``name`` has both ends in words. ``node`` and ``peer_node`` are the jobs' numbers among the nodes of one parallel
    job, None where they are no nodes of one. ``peer`` is the id of the job at the other end (None: it is no job), and
    ``own_peer`` true where that is the same user's. ``destination`` is the other end in the topology.
    """

    name: str
    job: str
    node: int | None
    peer: str | None
    peer_node: int | None
    own_peer: bool
    destination: str
    advice: PairAdvice


@dataclass(frozen=True, slots=True)
class PairsAdvice:
    """Advice for the pairs of a job, or of an application of so many ``jobs``.

    ``left_out`` is how many reservations, or pairs beyond those of an answer, are in none of them. ``advised`` is the
    rate that would do for each of them, whole Mb/s (None: nothing is known). ``sentence`` has all that in short.
    """

    jobs: int
    pairs: tuple[AdvisedPair, ...]
    left_out: int
    sentence: str
    advised: int | None


class PairsSummary(NamedTuple):
    """Advice for all pairs of a job in a sentence, and the rate that would do for each, whole Mb/s."""

    sentence: str
    advised: int | None


class UsageControls(Protocol):
    """The operations on use. Thread-safe; those that read the database raise StoreError where it is away."""

    @property
    def written(self) -> float:
        """The time when everything was written last, seconds since 1970; the start where it was not yet."""

    def of_jobs(self, jobs: Sequence[Job]) -> Mapping[int, JobUsage]:
        """The use of jobs, by number; those that are not accounted are left out."""

    def of_host(self, host: str, job_ids: Sequence[str]) -> Mapping[str, JobUsage]:
        """The use of these live jobs of a host, by id; those that do not live there or are not accounted are left
        out."""

    def counted(self, job_id: str, report: WorkerCounts, final: bool) -> bool:
        """Takes a worker's counts of a live job; False where the job is not accounted, or is over.

        Raises NotFoundError for an id never seen.
        """

    def transferred(self, host: str, moved: Mapping[str, TransferReport]) -> TransfersNoted:
        """Takes what HTCondor has moved for a worker's jobs, by the job's id."""

    def recent(self, job_id: str) -> Sequence[tuple[float, Rate]]:
        """A live job's rates at its last readings, each with its time (seconds since 1970), the oldest first.

        Raises NotFoundError for an id never seen.
        """

    def advice(self, job_id: str) -> Advice:
        """Advice on a job's RequestBandwidth, by its use so far or to its end, under the policy in force.

        Raises NotFoundError for an id never seen.
        """

    def pairs(self, job_id: str, application: bool) -> PairsAdvice:
        """Advice for each pair of a job: where it sends with bandwidth reserved for that. ``application``: of the whole
        application that it is a part of. Raises NotFoundError for an id never seen."""

    def pairs_summary(self, job_id: str) -> PairsSummary | None:
        """The same in short, for the job's ad; None where there are none, and of a parallel job's nodes but the first.
        Raises NotFoundError for an id never seen."""

    def delivered(self, flows: Sequence[Reservation], after: str = "", wait: float = 0.0) -> Seen[FlowDelivery]:
        """The deliveries of these reserved flows, once they are more than at the version ``after`` and the rates are of
        the last second or two; after ``wait`` seconds in any case. Raises SwitchError."""

    def page(self, chosen: UsageFilter, cursor: str | None, limit: int) -> UsagePage:
        """A page of the history of use. Raises NotFoundError for a cursor that is none."""

    def access_points(self) -> tuple[AccessPointStatus, ...]:
        """The access points for whose transfers the policy in force has a capacity."""

    def flowing(self, by: str, limit: int) -> tuple[Flowing, ...]:
        """The rates of live jobs now, by group, user, host or job: the ``limit`` that send and receive most."""

    def at_switches(self, hosts: Collection[str]) -> Mapping[str, Rate]:
        """The rates of the live jobs of these hosts (in lower case) by the datapath id of their switch; by the host
        those of jobs at none."""

    def groups(self) -> tuple[GroupStatus, ...]:
        """The accounting groups of the policy in force, with what their jobs use."""
