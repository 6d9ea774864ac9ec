"""Jobs as REST shows them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from lark_common.classads.ads import JobAd, MachineAd
from lark_common.runs import EndedBy, JobNumber
from lark_controller.accounting.usage import JobUsage
from lark_controller.api.described import Dpid
from lark_controller.jobs.job import Job, JobState, Standing
from lark_controller.policies.model import Decision


@dataclass(frozen=True, slots=True)
class Registered:
    """The answer to a POST: the job, and whether this post made it (False: the same run was there already)."""

    job: Job
    created: bool


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A live job that is not enforced."""

    job: str
    state: JobState
    reason: str


@dataclass(frozen=True, slots=True)
class Renewed:
    """The leases of a host's jobs: when they end unless they are renewed again, in seconds since 1970; the jobs that do
    not live on this host here, which are to be posted again; and those of the others that are not enforced."""

    lease_until: float
    missing: tuple[str, ...] = ()
    unsettled: tuple[Unsettled, ...] = ()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A switch, or a worker, that has not confirmed a job's flows, and the reason. ``datapath`` is 16 hexadecimal
    digits."""

    datapath: Annotated[Dpid | None, "The switch; null where it is the job's worker, or no switch is known yet"]
    reason: Annotated[str, "The reason"]


@dataclass(frozen=True, slots=True)
class Confirmation:
    """The switches that hold a job's flows (confirmed by barrier), and those that do not yet."""

    job: Job
    confirmed: tuple[str, ...] = ()
    waiting: tuple[Waiting, ...] = ()


@dataclass(frozen=True, slots=True)
class TransferState:
    """The state of the terms of a job's transfers: in place by its worker's word, or not, with the reason."""

    enforced: Annotated[bool, "Its worker has confirmed that they are in place, as they are now"]
    reason: Annotated[str, "Why not, empty where it has"] = ""


@dataclass(frozen=True, slots=True)
class JobDetail:
    """A job with the policy's decision, the switches' confirmations, and the ads as they were posted (old syntax).

    ``policy_version`` is the version that the decision is by: the one in force, and of a job that is over the one that
    was then, as long as it can be read.
    ``transfers`` is None where no rule is about what HTCondor moves for it.
    """

    job: Job
    decision: Decision
    confirmation: Confirmation
    policy_version: int
    job_ad: str = ""
    machine_ad: str = ""
    ended: float | None = None
    usage: JobUsage | None = None
    transfers: TransferState | None = None


# The word for a job that is enforced, and of which nothing passes by a rule of the policy: no state in the store.
BLOCKED: Final = "blocked"


@dataclass(frozen=True, slots=True)
class JobFilter:
    """The jobs that a list holds; None is any. ``state`` is a JobState value, ``"live"`` (the default) or
    :data:`BLOCKED`, and ``group`` is a group in any case, with its subgroups. ``numbered`` is a cluster.

    ``newest`` puts the job that was registered last first.
    """

    owner: str | None = None
    group: str | None = None
    host: str | None = None
    state: str | None = "live"
    global_job_id: str | None = None
    newest: bool = False
    user: str | None = None
    numbered: JobNumber | None = None


@dataclass(frozen=True, slots=True)
class JobPage:
    """One page of a list in order of registration, and the cursor of the next (None: this is the last)."""

    jobs: tuple[Job, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class JobCounts:
    """The number of live jobs in each state. Each is counted once among the first five."""

    registering: Annotated[int, "Flows on their way"] = 0
    pending: Annotated[int, "A switch is away, or the address is not known yet"] = 0
    enforced: Annotated[int, "Confirmed by every switch concerned"] = 0
    no_network: Annotated[int, "Without a network (NetworkType none): there is nothing to enforce"] = 0
    quarantined: Annotated[int, "Contradicted by the pool"] = 0
    blocked: Annotated[int, "Of those that are enforced, nothing passes by a rule of the policy"] = 0
    isolated: Annotated[int, "Of those with a network, nothing passes: by a rule of the policy, or by quarantine"] = 0

    @property
    def live(self) -> int:
        """All of them."""
        return self.registering + self.pending + self.enforced + self.no_network + self.quarantined


class JobControls(Protocol):
    """Operations on jobs. Thread-safe; all but ``counts`` raise StoreError where the database is away."""

    def register(self, job_ad: JobAd, machine_ad: MachineAd, actor: str, running: bool = False) -> Registered:
        """Take a run in; ``running`` where its job has started. Raises AdError, AddressError, CapacityError, PathError,
        ExternalAddressError."""

    def confirm(self, job_id: str, timeout: float, *, of_flows: bool = False) -> Confirmation:
        """Wait up to ``timeout`` seconds until the switches concerned hold the job's flows; ``of_flows`` until what it
        has reserved is enforced, whatever else it waits for. Raises NotFoundError."""

    def reserved(self, job_id: str) -> Standing | None:
        """Tell how far the reserved flows that a live job sends are enforced, as it was seen last; None where no such
        job lives."""

    def renew(self, job_id: str) -> Job:
        """Renew a live job's lease. Raises NotFoundError where no such job lives."""

    def renew_all(self, host: str, job_ids: Sequence[str]) -> Renewed:
        """Renew the leases of a host's live jobs."""

    def end(self, job_id: str, actor: str, exit_ad: str = "", by: EndedBy = EndedBy.HOOK) -> Job:
        """End a job. Idempotent. Raises NotFoundError for an id never seen."""

    def forged(self, job_id: str, actor: str, detail: str) -> None:
        """Write into the audit trail that a worker refused a forged ad for this job."""

    def limited(self, job_id: str, actor: str, detail: str) -> None:
        """Write into the audit trail, and into the problems of its switch, that a job has met a limit of its worker.

        Raises NotFoundError where no such job lives.
        """

    def lift(self, job_id: str, actor: str) -> Job:
        """End a job's quarantine on an operator's word, for as long as the job lives.

        Raises NotFoundError where no such job lives, StateError where it is in no quarantine.
        """

    def named(self, word: str, owner: str | None = None, any_node: bool = False) -> str:
        """The id of the job that a word names, live or ended: CLUSTER.PROC, with its access point where two have it,
        GlobalJobId, id, or the first digits of an id. A whole id is not looked up. With ``owner`` it is, and the jobs
        of others are as if there were none. With ``any_node`` a word that means all nodes of one parallel job is the
        first of them.

        Raises NotFoundError, and AmbiguousError where several jobs are named so.
        """

    def host_called(self, word: str) -> str:
        """The host of jobs, live or ended, that a word names, by the first part of its name where no host has it whole;
        the word itself where it names none or several."""

    def full_names(self, ids: Collection[str]) -> Mapping[str, str]:
        """CLUSTER.PROC of the jobs among these ids, each with its access point as far as that is known."""

    def names(self, ids: Collection[str]) -> Mapping[str, str]:
        """The names of the jobs among these ids, live or ended: CLUSTER.PROC, with the access point where two of them
        have it."""

    def host_of(self, job_id: str) -> str:
        """The host of a live or ended job; cheap for one that lives. Raises NotFoundError."""

    def live(self, job_id: str) -> Job | None:
        """The live job of that id; cheap."""

    def detail(self, job_id: str) -> JobDetail:
        """A live or ended job. Raises NotFoundError."""

    def at(self, address: str, owner: str | None = None) -> JobDetail:
        """The live job (of this owner) behind an address. Raises NotFoundError."""

    def page(self, chosen: JobFilter, cursor: str | None, limit: int) -> JobPage:
        """A page of jobs. Raises NotFoundError for a cursor that is none."""

    def counts(self) -> JobCounts:
        """The number of live jobs in each state; cheap, since every scrape of the metrics asks."""

    def why_nothing_passes(self, job: Job) -> str:
        """The sentence on a live job of which nothing passes; "" where something does."""

    def why_rate_unenforced(self, job: Job) -> str:
        """The sentence on a live job whose RequestBandwidth no rule of the policy enforces; "" where one does."""

    def isolated(self, jobs: Sequence[Job]) -> Collection[int]:
        """The numbers of those of these jobs of which nothing passes: by a rule of the policy, or by quarantine."""

    def read_counters(self, job_id: str, timeout: float) -> None:
        """Read a live job's counters at its switch now, where it is at one that answers. Raises SwitchError."""
