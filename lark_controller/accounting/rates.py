"""The rates of live jobs now, added up by subject.

Sums are kept as rates change, so that asking for those of 200,000 jobs costs what is answered.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add
from typing import Final, TypeAlias

from lark_controller.accounting.columns import added
from lark_controller.accounting.usage import Rate


@dataclass(frozen=True, slots=True)
class Flowing:
    """The rates of the live jobs of one subject now. ``name`` is the group's, user's, host's, access
    point's or job's."""

    name: str
    rate: Rate
    jobs: int
    group: str | None = None
    user: str | None = None
    host: str | None = None
    global_job_id: str | None = None


# The group, user, host and access point under which a job's rates are added up.
Subject: TypeAlias = tuple[str, str, str, str]
_Key = tuple[str, str | None]
_JOBS: Final = len(Rate._fields)


class Rates:
    """The rates of live jobs by group (AcctGroup), by user in a group, by host, and by access point (in lower case);
    not thread-safe."""

    def __init__(self) -> None:
        # By kind and key: the sums of the four rates, and how many jobs they are of.
        self._sums: dict[str, dict[_Key, list[int]]] = {
            "group": {}, "user": {}, "host": {}, "access_point": {}
        }  # fmt: skip

    def change(self, group: str, user: str, host: str, access_point: str, delta: Sequence[int]) -> None:
        """Add the difference of one job's rates, and that of the jobs that send or receive something (1, 0 or -1)."""
        keys = (group, group), (user, group), (host, None), (access_point, None)
        for sums, key in zip(self._sums.values(), keys, strict=True):
            _change(sums, key, delta)

    def change_all(self, deltas: Iterable[tuple[Subject, Sequence[int]]]) -> None:
        """Add the differences of many jobs' rates, each as :meth:`change` has it, in one step for each sum."""
        groups, users, hosts, points = (defaultdict[_Key, list[Sequence[int]]](list) for _ in self._sums)
        for (group, user, host, access_point), delta in deltas:
            groups[group, group].append(delta)
            users[user, group].append(delta)
            hosts[host, None].append(delta)
            points[access_point, None].append(delta)
        for sums, rows in zip(self._sums.values(), (groups, users, hosts, points), strict=True):
            for key, delta in added(rows).items():
                _change(sums, key, delta)

    def of(self, by: str) -> dict[str, Rate]:
        """The rates of all hosts or access points, by name."""
        return {name: Rate(*sums[:_JOBS]) for (name, _), sums in self._sums[by].items()}

    def most(self, by: str, limit: int) -> list[Flowing]:
        """The ``limit`` groups, users, hosts or access points whose jobs send and receive most, the most first."""
        chosen = heapq.nsmallest(
            limit, self._sums[by].items(), key=lambda item: (-Rate(*item[1][:_JOBS]).moving, item[0][0])
        )
        return [
            Flowing(
                name, Rate(*sums[:_JOBS]), sums[_JOBS], group,
                name if by == "user" else None, name if by == "host" else None,
            )
            for (name, group), sums in chosen
        ]  # fmt: skip


def _change(sums: dict[_Key, list[int]], key: _Key, delta: Sequence[int]) -> None:
    known = sums.get(key)
    if known is None:
        known = sums[key] = list(delta)
    else:
        # Called for each busy job and reading: added up in C.
        known[:] = map(add, known, delta)
    if not known[_JOBS]:
        del sums[key]
