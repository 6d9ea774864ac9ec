"""The treatments of jobs' transfers: those that each worker is asked for, and those that it has confirmed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from lark_common.transfers import MOST_NAME, SharedRate, Treatment
from lark_controller.api.jobs import TransferState
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Policy
from lark_controller.policies.transfer_rules import TransferTerms

UNHEARD: Final = "the worker has not confirmed that it enforces this"
# Jobs whose worker's word is kept before the ended ones among them are looked for.
_MANY: Final = 1024


class Said(NamedTuple):
    """A worker's word on a job's transfers: the treatment in place, or why there is none."""

    treatment: Treatment | None
    trouble: str = ""


class Treatments:
    """The reports of all workers, by the job's number, as far as the answers asked for nothing else; thread-safe.
    ``is_live`` is true of live jobs' numbers."""

    def __init__(self, is_live: Callable[[int], bool]) -> None:
        self._is_live = is_live
        self._lock = threading.Lock()
        self._said: dict[int, Said] = {}
        self._most = _MANY

    def note(self, said: Mapping[int, Said], asked: Mapping[int, Treatment]) -> None:
        """Keep a worker's report of its jobs, which is answered with the treatments that are ``asked`` for (a job
        without: none)."""
        with self._lock:
            for number, word in said.items():
                if (wanted := asked.get(number)) is None:
                    self._said.pop(number, None)
                else:
                    # The answer takes out what is in place, also where another policy asks for that again by then.
                    self._said[number] = word if word.treatment == wanted else Said(None, word.trouble)
            if len(self._said) > self._most:
                self._said = {number: each for number, each in self._said.items() if self._is_live(number)}
                # At most twice as many as live, so that each is looked at a bounded number of times.
                self._most = max(_MANY, 2 * len(self._said))

    def state(self, job: Job, terms: TransferTerms | None, policy: Policy) -> TransferState | None:
        """The state of a job's transfers under these terms; None where no rule is about them."""
        if terms is None:
            return None
        with self._lock:
            said = self._said.get(job.number, Said(None))
        if said.treatment == treatment(terms, policy, job.run.access_point):
            return TransferState(enforced=True)
        return TransferState(enforced=False, reason=said.trouble or UNHEARD)


def treatment(terms: TransferTerms, policy: Policy, access_point: str) -> Treatment:
    """The treatment that the worker of a job of this access point is asked for."""
    dscp = next((each.dscp for each in policy.transfer_marks if each[:2] == (terms.group, terms.port)), None)
    if dscp is None:
        dscp = next((group.dscp for group in policy.groups if group.name == terms.group), None)
    limits = (
        (f"group {terms.group}", terms.group_rate),
        (f"access point {access_point}", terms.access_point_rate),
    )
    shared = tuple(SharedRate(name[:MOST_NAME], _bits(rate)) for name, rate in limits if rate is not None)
    return Treatment(None if terms.rate is None else _bits(terms.rate), dscp, terms.block, shared)


def _bits(megabits: float) -> int:
    return round(1_000_000 * megabits)
