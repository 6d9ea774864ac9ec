"""Policy versions and plans, as REST shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from lark_common.errors import Mistake


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
    """What a policy file would change on the running pool. ``refusals`` say why it could not be put in force,
    ``warnings`` what it would refuse of jobs that come.
    """

    digest: str
    jobs_examined: int
    jobs_changed: int
    jobs: tuple[JobChange, ...] = ()
    switches: tuple[SwitchPlan, ...] = ()
    refusals: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class PolicyControls(Protocol):
    """Operations on the policy. Thread-safe."""

    @property
    def version(self) -> PolicyVersion:
        """The policy in force."""

    def mistakes(self, text: str) -> tuple[Mistake, ...]:
        """Every mistake in a policy text; empty where it is valid."""

    def warnings(self, text: str) -> tuple[str, ...]:
        """What a valid policy text refuses every job that asks for bandwidth for. Raises PolicyError."""

    def plan(self, text: str) -> Plan:
        """What a policy text would change. Raises PolicyError."""

    def put(self, text: str, actor: str, instead_of: str | None = None) -> PolicyVersion:
        """Put a policy in force; with ``instead_of`` only in place of the one with that digest.

        Raises PolicyError, RuleLimitError, UnsupportedError, ChangedError; then nothing has changed.
        """
