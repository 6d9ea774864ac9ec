"""Policy versions and plans, as REST shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Protocol

from lark_common.errors import Mistake
from lark_controller.api.described import At, Dpid
from lark_controller.policies.compare import Comparison
from lark_controller.policies.reach import Reach


@dataclass(frozen=True, slots=True)
class PolicyVersion:
    """A policy that was put in force: its text, digest (SHA-256), when (seconds since 1970) and by whom."""

    version: Annotated[int, "Its version"]
    text: Annotated[str, "The policy, YAML"]
    digest: Annotated[str, "SHA-256 of its text"]
    at: Annotated[At, "Time when it was put in force"]
    actor: Annotated[str, "A token's name, or policy file"]


@dataclass(frozen=True, slots=True)
class PastPolicy:
    """A version of the policy in the list of all, without its text."""

    version: Annotated[int, "Its version"]
    digest: Annotated[str, "SHA-256 of its text"]
    at: Annotated[At, "Time when it was put in force"]
    actor: Annotated[str, "A token's name, or policy file"]


@dataclass(frozen=True, slots=True)
class PolicyHistory:
    """A page of the policy's versions, newest first."""

    versions: tuple[PastPolicy, ...]
    next_cursor: str | None = None


@dataclass(frozen=True, slots=True)
class Effect:
    """A change that a new policy would make to a number of jobs; ``changes`` are sentences."""

    changes: Annotated[tuple[str, ...], "The changes, in words"]
    jobs: Annotated[int, "For so many jobs"]
    owners: Annotated[int, "Of so many users"]
    example: Annotated[str, "One of these jobs, as CLUSTER.PROC"]
    example_owner: Annotated[str, "That job's owner"]


@dataclass(frozen=True, slots=True)
class JobChange:
    """A job that a new policy would treat otherwise; ``changes`` are sentences."""

    job_id: Annotated[str, "The job's id"]
    owner: Annotated[str, "Its owner"]
    changes: Annotated[tuple[str, ...], "The changes, in words"]
    cluster: Annotated[int, "Its ClusterId"]
    proc: Annotated[int, "Its ProcId"]
    global_job_id: Annotated[str, "Its GlobalJobId"]


@dataclass(frozen=True, slots=True)
class SwitchPlan:
    """A new policy's changes on one switch; ``sample`` holds the first lines, ``+ …`` and ``- …``."""

    datapath: Annotated[Dpid, "The switch"]
    name: Annotated[str, "Its name"]
    added: Annotated[int, "Flows that would come"]
    changed: Annotated[int, "Flows that would change"]
    removed: Annotated[int, "Flows that would go"]
    total: Annotated[int, "Flows that would be there"]
    max_rules: Annotated[int, "Its rule limit, 0 for none"] = 0
    sample: Annotated[tuple[str, ...], "The first of them, + or -"] = ()
    meters: Annotated[int, "Meters that would come, change or go"] = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A policy file's changes on the running pool. ``refusals`` are the reasons why it could not be put in force,
    ``warnings`` its refusals of jobs to come, what it promises that nothing keeps, and the number of switches that are
    away, which it leaves out."""

    digest: Annotated[str, "SHA-256 of the policy's text"]
    jobs_examined: Annotated[int, "Jobs looked at"]
    jobs_changed: Annotated[int, "Jobs that would be treated otherwise"]
    effects: Annotated[tuple[Effect, ...], "Changes for them, the most jobs first"] = ()
    jobs: Annotated[tuple[JobChange, ...], "Those jobs"] = ()
    switches: Annotated[tuple[SwitchPlan, ...], "The switches that would change"] = ()
    refusals: Annotated[tuple[str, ...], "Reasons why it could not be put in force"] = ()
    warnings: Annotated[
        tuple[str, ...], "Refusals of jobs to come, promises that nothing keeps, switches left out"
    ] = ()


class PolicyControls(Protocol):
    """Operations on the policy. Thread-safe."""

    @property
    def version(self) -> PolicyVersion:
        """The policy in force."""

    def history(self, cursor: str | None, limit: int) -> PolicyHistory:
        """A page of all versions, newest first. Raises NotFoundError for a cursor that is none."""

    def past(self, version: int) -> PolicyVersion:
        """One version, in force or not. Raises NotFoundError."""

    def compare(self, old: int, new: int | None = None) -> tuple[PolicyVersion, PolicyVersion, Comparison]:
        """Two versions and how they differ; the second is the one in force by default. Raises NotFoundError."""

    def restore(self, version: int, actor: str, instead_of: str | None = None) -> PolicyVersion:
        """Put the text of an earlier version in force again, as a new version; otherwise as :meth:`put`.

        Raises NotFoundError, too.
        """

    def reach(self) -> Reach:
        """The users with the most live jobs, and whom they reach; some seconds old. Raises BusyError."""

    def mistakes(self, text: str) -> tuple[Mistake, ...]:
        """Every mistake in a policy text; empty where it is valid."""

    def warnings(self, text: str) -> tuple[str, ...]:
        """Warns where a valid policy text refuses every job that asks for bandwidth, or promises what nothing keeps.

        Raises PolicyError.
        """

    def plan(self, text: str) -> Plan:
        """The changes that a policy text would make. Raises PolicyError."""

    def put(self, text: str, actor: str, instead_of: str | None = None) -> PolicyVersion:
        """Put a policy in force; with ``instead_of`` only in place of the one with that digest.

        Raises PolicyError, RuleLimitError, UnsupportedError, ChangedError; then nothing has changed.
        """
