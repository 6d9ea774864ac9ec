"""What the controller says of itself: the frozen answers that REST, the command line and the pages show.

:class:`Controls` is the whole of what REST may ask; ``lark_controller.controller.Controller`` answers.
Every call may be made from any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lark_common.classads.ads import JobAd, MachineAd
from lark_common.errors import Mistake
from lark_common.runs import EndedBy
from lark_controller.api.groups import GroupStatus
from lark_controller.api.jobs import Confirmation, JobDetail, JobFilter, JobPage, Registered
from lark_controller.api.policy import AuditPage, Plan, PolicyVersion
from lark_controller.api.reservations import Reserving
from lark_controller.api.switches import Explanation, FlowFilter, FlowPage, SwitchStatus
from lark_controller.api.usage import Accounts
from lark_controller.api.workers import HostStatus
from lark_controller.jobs.job import Job, JobState


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether the controller can do its work; ``reasons`` say what is missing."""

    ready: bool
    reasons: tuple[str, ...] = ()


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
        """End a job's quarantine on an operator's word, for as long as the job lives.

        Raises NotFoundError where no such job lives, StateError where it is in no quarantine.
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
