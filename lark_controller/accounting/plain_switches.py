"""Plain readings of a switch's jobs, taken into the accounts by columns.

What is left for each job by itself is what it is shown with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, compress
from operator import attrgetter
from struct import Struct
from typing import Final, cast

from lark_controller.accounting.account import PORT, SIZE, SUMS, Account, millis
from lark_controller.accounting.drops import Dropping, drop_rate_of
from lark_controller.accounting.numeric import Bools, Counts, Floats, Numbers, any_of, np, sums_by
from lark_controller.accounting.plain_matrix import LARGEST, Grown, go_on_all
from lark_controller.accounting.shown import Shown
from lark_controller.accounting.switch_reading import SwitchReading
from lark_controller.accounting.unwritten import Unwritten
from lark_controller.accounting.usage import IDLE, Rate, rate_of

_number: Final[Callable[[Account], int]] = attrgetter("number")
_treatment: Final[Callable[[Account], str]] = attrgetter("treatment")
_ROW: Final = Struct(f"{8 * SIZE}s")
_RATES: Final = len(Rate._fields)


class PlainSwitches:
    """Takes plain readings of switches into the accounts; not thread-safe."""

    def __init__(self, accounts: Mapping[int, Account], shown: Shown, unwritten: Unwritten) -> None:
        self._accounts = accounts
        self._shown = shown
        self._unwritten = unwritten

    def take(self, at: float, reading: SwitchReading) -> list[int]:
        """Take a reading of jobs at ``at``, each job's at most once; returns the rows that are not plain, of which
        nothing is taken."""
        found = list(map(self._accounts.get, reading.numbers))
        fit = [
            account is not None and account.started
            and not (account.final or account.reported or account.restored)
            and (account.at or account.created) < at
            for account in found
        ]  # fmt: skip
        accounts, counters, counted = found, reading.counters, reading.counted
        if not all(fit):
            accounts = list(compress(found, fit))
            if not accounts:
                return list(range(len(found)))
            chosen = np.array(fit)
            counters, counted = counters[:, chosen], counted[:, chosen]
        rest = self._take(at, cast("list[Account]", accounts), counters, counted)
        if rest is None and len(accounts) == len(found):
            return []
        taken = iter([True] * len(accounts) if rest is None else rest)
        return [row for row, fits in enumerate(fit) if not (fits and next(taken))]

    def _take(self, at: float, accounts: list[Account], counters: Counts, counted: Bools) -> list[bool] | None:
        """Take the plain ones of readings; returns which are, None where all."""
        # A row for each account, and then a column: most of what follows is for one number of all accounts.
        numbers = np.frombuffer(b"".join([account.numbers for account in accounts]), np.uint64)
        numbers = numbers.reshape(len(accounts), SIZE).T.copy()
        unwritten = any_of(numbers[:SUMS] != numbers[SUMS:PORT])
        last = np.array([account.at or account.created for account in accounts])
        rates = _rates_of(accounts)
        grown = go_on_all(numbers, last, at, millis(at), counters, counted)
        plain = grown.plain
        found: list[bool] | None = None
        fast = rates >= LARGEST
        if np.count_nonzero(fast):
            plain = plain & ~any_of(fast)
        if np.count_nonzero(plain) < len(accounts):
            found = plain.tolist()
            accounts = list(compress(accounts, found))
            if not accounts:
                return found
            numbers, unwritten, last, rates = numbers[:, plain], unwritten[plain], last[plain], rates[:, plain]
            grown = grown.of(plain)
        for account, (row,) in zip(accounts, _ROW.iter_unpack(numbers.T.tobytes()), strict=True):
            _ROW.pack_into(account.numbers, 0, row)
            account.at = at
        self._used(accounts, grown, unwritten, last)
        self._rated(at, accounts, rates, grown.rates)
        self._dropped(at, accounts, last, grown.drops)
        return found

    def _used(self, accounts: Sequence[Account], grown: Grown, unwritten: Bools, last: Floats) -> None:
        """Note new use, and that it is to be written."""
        news = any_of(grown.new)
        count, used, new = np.count_nonzero(news), accounts, grown.new
        changed: Iterable[Account] = accounts
        if count < len(accounts):
            changed = compress(accounts, (news | grown.rose).tolist())
            used, new = list(compress(accounts, news.tolist())), new[:, news]
        self._unwritten.changed.update(dict.fromkeys(map(_number, changed)))
        for place in np.flatnonzero(news & ~unwritten).tolist():
            accounts[place].unwritten = float(last[place])
        self._shown.add_use(sums_by(list(map(_treatment, used)), new))

    def _rated(self, at: float, accounts: Sequence[Account], before: Numbers, rates: Numbers) -> None:
        """Show the rates of jobs, which were ``before``."""
        now = before.copy()
        now[: len(rates)] = rates
        numbers = list(map(_number, accounts))
        self._shown.recent.keep_all(numbers, at, now)
        self._shown.unread.difference_update(numbers)
        delta = np.empty((_RATES + 1, len(accounts)), np.int64)
        np.subtract(now, before, out=delta[:_RATES])
        others = any_of(delta[:_RATES])
        count = np.count_nonzero(others)
        if count:
            moving = any_of(now)
            np.subtract(moving, any_of(before), out=delta[_RATES], dtype=np.int64)
            changed = accounts
            if count < len(accounts):
                changed = list(compress(accounts, others.tolist()))
                now, delta, moving = now[:, others], delta[:, others], moving[others]
            for account, rate in zip(changed, map(rate_of, now.T.tolist()), strict=True):
                account.rate = rate
            if np.count_nonzero(moving) < len(changed):
                for place in np.flatnonzero(~moving).tolist():
                    changed[place].rate = IDLE
            self._shown.add_rates(changed, delta)

    def _dropped(self, at: float, accounts: Sequence[Account], last: Floats, drops: Numbers) -> None:
        """Show the jobs whose packets were dropped, and no others."""
        dropping = self._shown.dropping
        if dropping:
            for account in accounts:
                dropping.pop(account.number, None)
        if not np.count_nonzero(drops):
            return
        some = np.flatnonzero(any_of(drops))
        rates = drops[:, some] / (at - last[some])
        for place, rate in zip(some.tolist(), map(drop_rate_of, rates.T.tolist()), strict=True):
            account = accounts[place]
            since = float(last[place])
            dropping[account.number] = Dropping(account.number, account.id, account.treatment, rate, at, since)


def _rates_of(accounts: Sequence[Account]) -> Numbers:
    """The rates of accounts, as they are shown; one that is too high to be calculated with is :data:`LARGEST`."""
    shown = [account.rate for account in accounts]
    try:
        every = np.fromiter(chain.from_iterable(shown), np.int64, _RATES * len(shown))
    except OverflowError:
        every = np.array([min(each, LARGEST) for rate in shown for each in rate])
    return every.reshape(len(shown), _RATES).T.copy()
