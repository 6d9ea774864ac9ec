"""The accounts whose use, or whose end, is still to be written; not thread-safe."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from lark_controller.accounting.account import PEAK, PORT, STRETCH, SUMS, ZEROS, Account
from lark_controller.accounting.entry import Entry


class Unwritten:
    """The numbers of accounts that have changed since their last entry, and of those that are closed."""

    def __init__(self) -> None:
        self.changed: dict[int, None] = {}
        self.closed: dict[int, None] = {}
        # Accounts with a counter that began anew since their entry was made: what is stored of it is too much.
        self._anew: set[int] = set()

    def note(self, number: int) -> None:
        """Have an account written."""
        self.changed[number] = None

    def begin_anew(self, number: int) -> None:
        """Note a counter that began anew: who went on from its last reading would count nothing up to that."""
        self.changed[number] = None
        self._anew.add(number)

    def close(self, number: int) -> None:
        """Have the end of an account written."""
        self.changed[number] = self.closed[number] = None

    def reopen(self, number: int) -> None:
        """Have an account written whose end is none any more."""
        self.closed.pop(number, None)
        self.changed[number] = None

    def took(self, numbers: Iterable[int]) -> None:
        """Note that entries were made of these."""
        self._anew.difference_update(numbers)

    def wrote(self, account: Account, entry: Entry) -> None:
        """Note that an account's entry was written."""
        number, sums = entry.number, account.sums
        same = tuple(sums) == entry.usage
        if account.numbers is not ZEROS:
            account.numbers[SUMS:PORT] = sums if same else array("Q", entry.usage)
        account.unwritten = entry.at
        if entry.final and account.final:
            self.closed.pop(number, None)
            self._anew.discard(number)
        if (
            same
            and tuple(account.numbers[PEAK:STRETCH]) == entry.peak
            and entry.final == account.final
            and number not in self._anew
        ):
            self.changed.pop(number, None)
