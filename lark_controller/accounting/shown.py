"""The rates and drops of live jobs now, as their last readings show them; not thread-safe."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import add, sub
from typing import Final, TypeAlias

from lark_controller.accounting.account import DROPS, PEAK, Account
from lark_controller.accounting.columns import added
from lark_controller.accounting.drops import Dropping, DropRate
from lark_controller.accounting.numeric import Numbers, sums_by
from lark_controller.accounting.rates import Rates, Subject
from lark_controller.accounting.recent import Recent
from lark_controller.accounting.usage import IDLE, NOTHING, Rate, Usage

Rows: TypeAlias = Sequence[Sequence[int]]
# The policy's group of jobs, and the names under which their rates are added up.
Rated: TypeAlias = tuple[str, Subject]


# The place of the first rate of transfers, which have reports of their own.
_TRANSFERS: Final = Rate._fields.index("transfer_inward")


class Shown:
    """Rates added up by subject, the last ones of each job, and the jobs whose packets are dropped."""

    def __init__(self) -> None:
        self._rates: dict[str, list[int]] = {}
        self._sums: dict[str, list[int]] = {}
        self.flowing = Rates()
        self.recent = Recent()
        self.dropping: dict[int, Dropping] = {}
        # The jobs with a network whose rates are not known.
        self.unread: set[int] = set()

    def rates(self) -> Mapping[str, Rate]:
        """The rates of all live jobs by the policy's group."""
        return {treatment: Rate(*rates) for treatment, rates in self._rates.items()}

    def sums(self) -> Mapping[str, Usage]:
        """The use of the jobs of each group of the policy since this controller's start."""
        # Flows may have counted bytes of before the start by now, whose whole came before, too.
        return {treatment: Usage(*sums).bounded() for treatment, sums in self._sums.items()}

    def moved(self, treatment: str, now: array[int], before: array[int]) -> None:
        """Add an account's new use, the difference of two values of its sums."""
        sums = self._sums.setdefault(treatment, list(NOTHING))
        sums[:] = map(add, sums, map(sub, now, before))

    def add_all(self, rates: Mapping[Rated, Rows], use: Mapping[str, Rows]) -> None:
        """Add what readings of many jobs have changed: the differences of their rates, each with that of the jobs that
        send or receive something, and by the policy's group the new use, each sum from the first on."""
        totals = added(rates)
        treatments = defaultdict[str, list[Sequence[int]]](list)
        for (treatment, _), delta in totals.items():
            treatments[treatment].append(delta)
        for treatment, delta in added(treatments).items():
            # The number of jobs, which comes last, is not shown here.
            known = self._rates.setdefault(treatment, list(IDLE))
            known[:] = map(add, known, delta)
        self.flowing.change_all((subject, delta) for (_, subject), delta in totals.items())
        self.add_use(added(use))

    def add_use(self, use: Mapping[str, Sequence[int]]) -> None:
        """Add new use by the policy's group, each sum from the first on."""
        for treatment, new in use.items():
            sums = self._sums.setdefault(treatment, list(NOTHING))
            sums[: len(new)] = map(add, sums, new)

    def add_rates(self, accounts: Sequence[Account], deltas: Numbers) -> None:
        """Add the differences of accounts' rates, each with that of the jobs that send or receive something."""
        for treatment, delta in sums_by([account.treatment for account in accounts], deltas).items():
            known = self._rates.setdefault(treatment, list(IDLE))
            known[:] = map(add, known, delta)
        self.flowing.change_later(accounts, deltas)

    def rated(self, account: Account, rate: Rate, treatment: str) -> None:
        """Show an account's rate, and that it is treated so from now on."""
        old, new = account.rate, rate if any(rate) else IDLE
        before, account.treatment, account.rate = account.treatment, treatment, new
        if old is IDLE and new is IDLE:
            return
        if before == treatment:
            delta = (*map(sub, new, old), (new is not IDLE) - (old is not IDLE))
            if not any(delta):
                return
            known = self._rates.get(treatment)
            if known is None:
                known = self._rates[treatment] = list(IDLE)
            known[:] = map(add, known, delta)
            self._flow(account, delta)
            return
        if old is not IDLE:
            known = self._rates[before]
            known[:] = map(sub, known, old)
        if new is not IDLE:
            known = self._rates.setdefault(treatment, list(IDLE))
            known[:] = map(add, known, new)
        self._flow(account, (*map(sub, new, old), (new is not IDLE) - (old is not IDLE)))

    def _flow(self, account: Account, delta: tuple[int, ...]) -> None:
        self.flowing.change(account.group, account.user, account.host, account.access_point, delta)

    def show(self, account: Account, rate: Rate, elapsed: float, known: tuple[int, ...], first: bool = False) -> None:
        """Show the rate between two readings, and that of drops, which were ``known`` at the first of them."""
        number, at = account.number, account.at
        self.unread.discard(number)
        self.rated(account, rate, account.treatment)
        self.recent.keep(number, at, rate, first)
        dropped = tuple(account.numbers[DROPS:PEAK])
        if dropped == known:
            self.dropping.pop(number, None)
            return
        rates = DropRate(*[(now - old) / elapsed for old, now in zip(known, dropped, strict=True)])
        self.dropping[number] = Dropping(number, account.id, account.treatment, rates, at, at - elapsed)

    def idle(self, account: Account) -> None:
        """Show that nothing came between two readings."""
        if (rate := account.rate) is not IDLE:
            rate = IDLE.with_transfers_of(rate)
            self.rated(account, rate, account.treatment)
        self.unread.discard(account.number)
        self.recent.keep(account.number, account.at, rate, False)
        self.dropping.pop(account.number, None)

    def quiet(self, accounts: Iterable[Account], transfers: bool = False) -> list[int]:
        """Show no rate of jobs, or of their ``transfers``, any more; those that sent or received something are
        unread. Returns the numbers of all."""
        numbers = []
        for account in accounts:
            rate = account.rate
            numbers.append(account.number)
            over = rate.with_transfers_of(IDLE) if transfers else IDLE.with_transfers_of(rate)
            self.rated(account, over, account.treatment)
            if transfers:
                continue
            # Of an idle job nothing is reported.
            if any(rate[:_TRANSFERS]) or account.number in self.dropping:
                self.unread.add(account.number)
            else:
                self.unread.discard(account.number)
            self.dropping.pop(account.number, None)
        return numbers

    def change(self, account: Account, treatment: str) -> None:
        """Show no rate of a job that is treated so from now on, or is at another port, until it is read."""
        if account.rate is not IDLE:
            self.unread.add(account.number)
        self.rated(account, IDLE, treatment)

    def leave(self, account: Account) -> None:
        """Show no drops of a job at a port that it has left."""
        if self.dropping.pop(account.number, None) is not None:
            self.unread.add(account.number)

    def forget(self, number: int) -> None:
        """Forget a job that is over."""
        self.recent.forget(number)
        self.unread.discard(number)
        self.dropping.pop(number, None)
