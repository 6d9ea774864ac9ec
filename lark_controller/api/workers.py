"""Workers and their rules as REST shows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from lark_common.scitags import Marks
from lark_common.worker_rules import UNTOLD, WaysOut, WorkerRules
from lark_controller.qos.delivery import Counters


@dataclass(frozen=True, slots=True)
class Delivered:
    """The guarantee (bits a second) and the counters of a job's queue on its worker."""

    promised: int
    counted: Counters


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The rules that a worker enforces for its jobs without a port on a switch; None where they are known already.

    ``revision`` changes with the rules; ``waiting`` are the ids of the jobs whose rules the worker has not confirmed.
    """

    host: str
    revision: str
    rules: WorkerRules | None = None
    waiting: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RuledWorker:
    """A worker that enforces rules itself: its jobs without a port on a switch, and how many of them wait for it."""

    host: str
    jobs: int
    waiting: int


class WorkerControls(Protocol):
    """Operations on workers. Thread-safe; all raise SwitchError where the controller's loop does not answer."""

    def ruled(self) -> tuple[RuledWorker, ...]:
        """The workers that have jobs without a port on a switch."""

    def rules(self, host: str, after: str, timeout: float) -> WorkerStatus:
        """A worker's rules, once their revision is another than ``after``; after ``timeout`` seconds in any case."""

    def confirmed(
        self,
        host: str,
        revision: str,
        refused: Mapping[str, str],
        late: Sequence[str] = (),
        out: WaysOut = UNTOLD,
    ) -> WorkerStatus:
        """Notes that a worker has a revision in place, but for the jobs that it refuses (id, reason) and those not made
        yet; ``out`` are its interfaces that lead away."""

    def marks(self, host: str, job_ids: Sequence[str]) -> Marks:
        """The marks (SciTags) of these live jobs of a worker, and the receivers of reports; jobs that do not live
        there are left out."""

    def delivered(self, host: str, queues: Mapping[tuple[str, str], Delivered]) -> int:
        """Take in the deliveries of a worker's own queues, by the job's id and the queue's name; returns the number of
        guarantees that were missed."""
