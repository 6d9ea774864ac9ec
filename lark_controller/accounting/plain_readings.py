"""Plain readings of many jobs, and steps that others have calculated of them, taken into the accounts together.

What is the same for all, such as the sums that they are added up in, is changed once and not for each job.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import sub, truediv
from typing import TypeAlias

from lark_controller.accounting.account import SUMS, Account, millis
from lark_controller.accounting.drops import Dropping, drop_rate_of
from lark_controller.accounting.plain import FlowCounts, PortCounts, go_on
from lark_controller.accounting.shown import Rated, Shown
from lark_controller.accounting.unwritten import Unwritten
from lark_controller.accounting.usage import IDLE, rate_of

# A job's number, its port, its counting flows, and the seconds for which the port has been there (None: not known).
JobReading: TypeAlias = tuple[int, PortCounts, Sequence[FlowCounts], float | None]


class PlainReadings:
    """Takes plain readings into the accounts; not thread-safe."""

    def __init__(self, accounts: Mapping[int, Account], shown: Shown, unwritten: Unwritten) -> None:
        self._accounts = accounts
        self._shown = shown
        self._unwritten = unwritten

    def take(self, at: float, readings: Iterable[JobReading]) -> list[JobReading]:
        """Take readings of jobs at ``at``, each job's at most once; returns those that are not plain, of which nothing
        is taken."""
        accounts, changed, dropping = self._accounts, self._unwritten.changed, self._shown.dropping
        unread = self._shown.unread
        keep, moment, others = self._shown.recent.keep, millis(at), list[JobReading]()
        rates = defaultdict[Rated, list[Sequence[int]]](list)
        use = defaultdict[str, list[Sequence[int]]](list)
        for reading in readings:
            number, port, flows, _ = reading
            account = accounts.get(number)
            if account is None or account.final:
                continue
            last, numbers = account.at or account.created, account.numbers
            if not account.started or account.reported or account.restored or at <= last:
                others.append(reading)
                continue
            # Of most it is seen by the first sum.
            written = numbers[0] == numbers[SUMS] and numbers[:SUMS] == numbers[SUMS : 2 * SUMS]
            growth = go_on(numbers, last, at, moment, port, flows)
            if growth is None:
                others.append(reading)
                continue
            rate, new, known_drops, drops, rose = growth
            account.at, before = at, account.rate
            now = rate_of((*rate, before.transfer_inward, before.transfer_outward))
            if not any(now):
                now = IDLE
            if now is not before:
                account.rate = now
                delta = (*map(sub, now, before), (now is not IDLE) - (before is not IDLE))
                if any(delta):
                    subject = account.group, account.user, account.host, account.access_point
                    rates[account.treatment, subject].append(delta)
            keep(number, at, now, False)
            unread.discard(number)
            if drops != known_drops:
                dropped = drop_rate_of(map(truediv, map(sub, drops, known_drops), repeat(at - last)))
                dropping[number] = Dropping(number, account.id, account.treatment, dropped, at, last)
            elif number in dropping:
                del dropping[number]
            if any(new):
                if written:
                    account.unwritten = last
                use[account.treatment].append(new)
                changed[number] = None
            elif rose:
                changed[number] = None
        self._shown.add_all(rates, use)
        return others
