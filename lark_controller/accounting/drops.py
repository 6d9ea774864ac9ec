"""The rate at which packets of live jobs are dropped now. Frozen values."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple


class DropRate(NamedTuple):
    """Packets a second between the last two readings: by rules of the policy, and by the job's own queues."""

    policy_in: float = 0.0
    policy_out: float = 0.0
    rate_in: float = 0.0
    rate_out: float = 0.0


# A rate of all its members in their order, without a call of Python.
drop_rate_of: Final[Callable[[Iterable[float]], DropRate]] = partial(tuple.__new__, DropRate)


class Dropping(NamedTuple):
    """A job whose packets are dropped, with its group of the policy, as of ``at`` (seconds since 1970).

    ``number`` and ``job`` are the job's number and id; ``since`` is the time of the reading before.
    """

    number: int
    job: str
    group: str
    rate: DropRate
    at: float
    since: float


@dataclass(frozen=True, slots=True)
class DropSum:
    """The jobs whose packets are dropped now, and how many packets a second that is."""

    jobs: int
    packets: float
