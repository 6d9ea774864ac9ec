"""The rates of live jobs now, added up by subject.

Sums are kept as rates change, so that asking for those of 200,000 jobs costs what is answered.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import add, attrgetter, itemgetter
from typing import Any, Final, TypeAlias

from lark_controller.accounting.account import Account
from lark_controller.accounting.columns import added
from lark_controller.accounting.numeric import Numbers, np, sums_by
from lark_controller.accounting.usage import IDLE, Rate


@dataclass(frozen=True, slots=True)
class Flowing:
    """The rates of the live jobs of one subject now. ``name`` is the group's, user's, host's, access
    point's or the id of a job, which is found by its ``job_name``."""

    name: str
    rate: Rate
    jobs: int
    group: str | None = None
    user: str | None = None
    host: str | None = None
    global_job_id: str | None = None
    job_name: str | None = None


# The group, user, host and access point under which a job's rates are added up.
Subject: TypeAlias = tuple[str, str, str, str]
_Key = tuple[str, str | None]
_JOBS: Final = len(Rate._fields)
# The names in an account that each of the sums is kept by, in their order, and the key of these.
_BY: Final[tuple[tuple[Callable[[Account], Any], Callable[[Any], _Key]], ...]] = (
    (attrgetter("group"), lambda group: (group, group)),
    (attrgetter("user", "group"), lambda names: names),
    (attrgetter("host"), lambda host: (host, None)),
    (attrgetter("access_point"), lambda point: (point, None)),
)
# Columns that wait to be added up, of 64 bytes each.
_LATER: Final = 2048


class Rates:
    """The rates of live jobs by group (AcctGroup), by user in a group, by host, and by access point (in lower case);
    not thread-safe."""

    def __init__(self) -> None:
        # By kind and key: the sums of the four rates, and how many jobs they are of.
        self._sums: dict[str, dict[_Key, list[int]]] = {
            "group": {}, "user": {}, "host": {}, "access_point": {}
        }  # fmt: skip
        # Differences that are not added up yet, a column for each account: many switches' have few sums.
        self._whose: list[Account] = []
        self._later: list[Numbers] = []

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

    def change_later(self, accounts: Sequence[Account], deltas: Numbers) -> None:
        """Add the differences of accounts' rates, each as :meth:`change` has it, before a sum is asked for."""
        self._whose += accounts
        self._later.append(deltas)
        if len(self._whose) >= _LATER:
            self._add_up()

    def _add_up(self) -> None:
        if not self._whose:
            return
        whose, deltas, self._whose, self._later = self._whose, np.concatenate(self._later, axis=1), [], []
        for sums, (names_of, key_of) in zip(self._sums.values(), _BY, strict=True):
            for names, delta in sums_by(list(map(names_of, whose)), deltas).items():
                _change(sums, key_of(names), delta)

    def of(self, by: str) -> dict[str, Rate]:
        """The rates of all hosts or access points, by name."""
        self._add_up()
        return {name: Rate(*sums[:_JOBS]) for (name, _), sums in self._sums[by].items()}

    def most(self, by: str, limit: int) -> list[Flowing]:
        """The ``limit`` groups, users, hosts or access points whose jobs send and receive most, the most first."""
        self._add_up()
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
    # Of no job. Not by their number alone: some of the rates may be among those that are added up later.
    if not any(known):
        del sums[key]


def most_moving(accounts: Iterable[Account], limit: int, hosts: Collection[str] = ()) -> tuple[Flowing, ...]:
    """The ``limit`` jobs that send and receive most, the most first; of these ``hosts`` alone, in lower case, where
    there are any."""
    chosen_from = filter(lambda account: account.host.lower() in hosts, accounts) if hosts else accounts
    busy = [(rate.moving, rate, account) for account in chosen_from if (rate := account.rate) is not IDLE]
    chosen = heapq.nlargest(limit, busy, key=itemgetter(0))
    chosen.sort(key=lambda each: (-each[0], each[2].id))
    return tuple(
        Flowing(account.id, rate, 1, account.group, account.user, account.host, account.global_job_id)
        for _, rate, account in chosen
    )
