"""What the controller says of itself: the frozen answers that REST, the command line and the pages show.

:class:`Controls` is the whole of what REST may ask; ``lark_controller.controller.Controller`` answers.
Every call may be made from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from lark_controller.accounting.questions import Accounts
from lark_controller.accounting.usage import IDLE, NOTHING, JobUsage, Rate, Usage
from lark_controller.ads import JobAd, MachineAd
from lark_controller.errors import Mistake
from lark_controller.host_rules import HostRules
from lark_controller.jobs import EndedBy, Job, JobState
from lark_controller.policies.model import Decision
from lark_controller.qos.reservations import Reservation, ReservationPage


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a POST: the job, and whether this post made it (False: the same run was there already)."""

    job: Job
    created: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """A switch that has not confirmed a job's flows, and why. ``datapath`` is 16 hexadecimal digits."""

    datapath: str
    reason: str


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Which switches hold a job's flows (confirmed by barrier), and which do not yet."""

    job: Job
    confirmed: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with what the policy decided, what the switches say, and the ads as they were posted (old syntax)."""

    job: Job
    decision: Decision
    confirmation: Confirmation
    job_ad: str = ""
    machine_ad: str = ""
    ended: float | None = None
    usage: JobUsage | None = None


@dataclass(frozen=True, slots=True)
class JobFilter:
    """Which jobs a list holds; None is any. ``state`` is a JobState value, or ``"live"`` (the default).

    ``newest`` puts the job that was registered last first.
    """

    owner: str | None = None
    group: str | None = None
    host: str | None = None
    state: str | None = "live"
    global_job_id: str | None = None
    newest: bool = False


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a list in order of registration, and the cursor of the next (None: this is the last)."""

    jobs: tuple[Job, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class PortStatus:
    """A switch's port; ``job`` is the id of the job behind it, ``role`` one of local, uplink, job, closed, or the name
    that the policy gives it."""

    number: int
    name: str
    role: str
    job: str | None = None


@dataclass(frozen=True, slots=True)
class SwitchProblem:
    """Something that a switch refused or lacks, and the flow and job that caused it; ``at`` in seconds since 1970."""

    at: float
    problem: str
    flow: str = ""
    job: str | None = None


@dataclass(frozen=True, slots=True)
class SwitchStatus:
    """A switch as the controller sees it.

    ``in_sync`` is True only when everything desired was confirmed by barrier after a complete dump. ``desired`` is
    the number of flows that Lark wants there, ``installed`` what the last dump or confirmation counted, ``max_rules``
    the limit (0: none). ``drift`` counts flows that periodic checks found changed by somebody else.
    """

    datapath: str
    name: str
    role: str
    connected: bool
    in_sync: bool
    address: str = ""
    host: str = ""
    description: str = ""
    desired: int = 0
    installed: int = 0
    max_rules: int = 0
    jobs: int = 0
    normal: bool = True
    max_meter: int = 0
    drift: int = 0
    packet_ins: int = 0
    since: float | None = None
    reason: str = ""
    ports: tuple[PortStatus, ...] = ()
    problems: tuple[SwitchProblem, ...] = ()


@dataclass(frozen=True, slots=True)
class FlowStatus:
    """One flow on a switch, in words, with the policy that asked for it.

    ``state``: installed, missing (desired, not there), foreign (there, not Lark's) or desired (the switch was not
    asked). ``origin`` is a sentence; ``job`` the id of the job it belongs to, if it is one job's. ``packets`` and
    ``bytes`` are None where not read.
    """

    table: int
    table_name: str
    priority: int
    match: str
    actions: str
    cookie: str
    origin: str
    state: str
    job: str | None = None
    packets: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class FlowFilter:
    """Which flows of a switch a list holds: those of a live job's id, of a table, those that have a text in their words
    (whatever the case). ``None`` and ``""`` are any."""

    job: str | None = None
    table: int | None = None
    text: str = ""


class FlowTable(NamedTuple):
    """A table, and how many flows of it a list holds."""

    number: int
    name: str
    flows: int


@dataclass(frozen=True, slots=True)
class FlowPage:
    """One page of a switch's flows in packet order; ``tables`` counts the whole list, whatever table was chosen."""

    flows: tuple[FlowStatus, ...]
    tables: tuple[FlowTable, ...] = ()
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A policy that was put in force: its text, digest (SHA-256), when (seconds since 1970) and by whom."""

    version: int
    text: str
    digest: str
    at: float
    actor: str


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job that a new policy would treat otherwise; ``changes`` are sentences."""

    job_id: str
    owner: str
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """What a new policy would change on one switch; ``sample`` holds the first lines, ``+ …`` and ``- …``."""

    datapath: str
    name: str
    added: int
    changed: int
    removed: int
    total: int
    max_rules: int = 0
    sample: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a policy file would change on the running pool. ``refusals`` say why it could not be put in force."""

    digest: str
    jobs_examined: int
    jobs_changed: int
    jobs: tuple[JobChange, ...] = ()
    switches: tuple[SwitchPlan, ...] = ()
    refusals: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One step of an explanation: where (a switch and table, or ``directory``, ``pool``, ``policy``), what, the proof.

    ``flow`` is the flow in words, ``packets`` and ``bytes`` its counters where they could be read.
    """

    where: str
    text: str
    flow: str = ""
    packets: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Whether a packet from ``src`` reaches ``dst``, in words, step by step.

    ``verdict``: forwarded, dropped or unknown (a switch concerned cannot be asked). ``reason`` is one sentence.
    """

    src: str
    dst: str
    verdict: str
    reason: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """What changed, when (seconds since 1970) and by whom. ``subject`` is a job id, ``policy`` or a datapath id."""

    number: int
    at: float
    actor: str
    action: str
    subject: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class AuditPage:
    """One page of the audit trail, newest first, and the cursor of the next page."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """An accounting group of the running policy and how many live jobs it takes.

    ``rate`` is what they send and receive now, ``usage`` what they and others before have since this controller's
    start. ``core_drops`` are the packets that the group's queues and meters on cores dropped since then.
    """

    name: str
    jobs: int
    dscp: int
    queue: int | None = None
    guarantee: float | None = None
    ceiling: float | None = None
    port: str | None = None
    rate: Rate = IDLE
    usage: Usage = NOTHING
    core_drops: int = 0


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """One direction of a link of the declared topology, or a half-duplex link as a whole (``source`` and ``target``
    are ``""``). Rates are Mb/s; ``best_effort`` is what is left for traffic without a reservation."""

    name: str
    source: str
    target: str
    duplex: str
    capacity: float
    reserved: float

    @property
    def best_effort(self) -> float:
        """Less than 0 where a new policy made the link smaller than what was reserved before."""
        return round(self.capacity - self.reserved, 3)


@dataclass(frozen=True, slots=True)
class Wish:
    """A reserved flow that somebody asks for: from and to (a job id, an address, a host or a WAN of the topology), in
    Mb/s, for so many seconds (None: as long as its jobs live)."""

    source: str
    destination: str
    rate: float
    duration: float | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """What is to change of a reservation: its rate (Mb/s, None: as it is), and its end: with ``reschedule`` it ends
    ``duration`` seconds from now (None: with its jobs)."""

    rate: float | None = None
    duration: float | None = None
    reschedule: bool = False


@dataclass(frozen=True, slots=True)
class HostStatus:
    """The rules that a worker enforces for its jobs without a port on a switch; None where they are known already.

    ``revision`` changes with the rules; ``waiting`` are the ids of the jobs whose rules the worker has not confirmed.
    """

    host: str
    revision: str
    rules: HostRules | None = None
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the controller can do its work; ``reasons`` say what is missing."""

    ready: bool
    reasons: tuple[str, ...] = ()


class Reserving(Protocol):
    """What REST may ask of reservations. Thread-safe; every call raises StoreError where the database is away."""

    def reserve(self, wish: Wish, actor: str, of_job: bool) -> Reservation:
        """Reserve a flow; ``of_job`` accepts only flows that a live job sends.

        Raises CapacityError, PathError, NotFoundError.
        """

    def find(self, reservation_id: str) -> Reservation:
        """A valid reservation. Raises NotFoundError."""

    def page(self, job: str | None, cursor: str | None, limit: int) -> ReservationPage:
        """Valid reservations, of all or of one job. Raises NotFoundError for a cursor that is none."""

    def change(self, reservation_id: str, change: Change, actor: str, of_job: bool) -> Reservation:
        """Change a reservation's rate, end or both, as a whole. Raises CapacityError, PathError, NotFoundError."""

    def release(self, reservation_id: str, actor: str, of_job: bool) -> Reservation:
        """Release a reservation. Raises NotFoundError, and PathError where ``of_job`` is true and it is no job's."""

    def links(self) -> tuple[LinkStatus, ...]:
        """What the links of the declared topology carry, and what is reserved and left of each."""


class Controls(Protocol):
    """What REST may ask of the controller. All calls are thread-safe and none blocks on a switch but ``confirm``,
    ``flows`` and ``explain``, which take a time limit in seconds."""

    def register(self, job_ad: JobAd, machine_ad: MachineAd, actor: str) -> Registered:
        """Take a run in. Raises AdError, AddressError, StoreError."""

    def confirm(self, job_id: str, timeout: float) -> Confirmation:
        """Wait up to ``timeout`` seconds until the switches concerned hold the job's flows. Raises NotFoundError."""

    def renew(self, job_id: str, actor: str) -> Job:
        """Renew a live job's lease. Raises NotFoundError where no such job lives."""

    def end(self, job_id: str, actor: str, exit_ad: str = "", by: EndedBy = EndedBy.HOOK) -> Job:
        """End a job; of an ended job the same again. Raises NotFoundError for an id never seen."""

    def forged(self, job_id: str, actor: str, detail: str) -> None:
        """Write into the audit trail that a worker refused a forged ad for this job. Raises StoreError."""

    def lift(self, job_id: str, actor: str) -> Job:
        """End a job's quarantine on an operator's word, for as long as the job lives; of a job in none the same again.

        Raises NotFoundError where no such job lives.
        """

    def job(self, job_id: str) -> JobDetail:
        """A live or ended job. Raises NotFoundError."""

    def read_counters(self, job_id: str, timeout: float) -> None:
        """Read a live job's counters at its switch now, where it is at one that answers. Raises SwitchError."""

    def jobs(self, chosen: JobFilter, cursor: str | None, limit: int) -> JobPage:
        """A page of jobs. Raises NotFoundError for a cursor that is none."""

    def job_counts(self) -> Mapping[JobState, int]:
        """How many live jobs there are in each state; cheap, since every scrape of the metrics asks."""

    @property
    def accounts(self) -> Accounts:
        """What jobs use of the network."""

    def job_at(self, address: str) -> JobDetail:
        """The live job behind an address. Raises NotFoundError."""

    def switches(self) -> tuple[SwitchStatus, ...]:
        """All switches that are declared or have been connected."""

    def switch(self, datapath: str) -> SwitchStatus:
        """One switch, by datapath id (hexadecimal) or name. Raises NotFoundError."""

    def flows(self, datapath: str, chosen: FlowFilter, cursor: str | None, limit: int, timeout: float) -> FlowPage:
        """A page of a switch's flows, desired and installed. Raises NotFoundError, also for a cursor that is none."""

    def policy(self) -> PolicyVersion:
        """The policy in force."""

    def check_policy(self, text: str) -> tuple[Mistake, ...]:
        """Every mistake in a policy text; empty where it is valid."""

    def plan_policy(self, text: str) -> Plan:
        """What a policy text would change. Raises PolicyError."""

    def put_policy(self, text: str, actor: str, instead_of: str | None = None) -> PolicyVersion:
        """Put a policy in force; with ``instead_of`` only in place of the one with that digest.

        Raises PolicyError, RuleLimitError, UnsupportedError, ChangedError; then nothing has changed.
        """

    def groups(self) -> tuple[GroupStatus, ...]:
        """The accounting groups of the policy in force."""

    @property
    def reservations(self) -> Reserving:
        """What is reserved, and for whom."""

    def host_rules(self, host: str, after: str, timeout: float) -> HostStatus:
        """A worker's rules, once their revision is another than ``after``; after ``timeout`` seconds in any case."""

    def host_confirmed(
        self, host: str, revision: str, refused: Mapping[str, str], late: Sequence[str] = ()
    ) -> HostStatus:
        """A worker has a revision in place, but for the jobs that it refuses (id, reason) and those not made yet."""

    def explain(self, src: str, dst: str, timeout: float) -> Explanation:
        """Why a packet from ``src`` reaches ``dst`` or not; each an address or a job id.

        Raises NotFoundError, AdError.
        """

    def audit(self, subject: str | None, cursor: str | None, limit: int) -> AuditPage:
        """The audit trail, newest first."""

    def ready(self) -> Readiness:
        """Whether store, policy and OpenFlow listener are up."""
