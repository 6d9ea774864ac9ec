"""The readings that are kept of closed accounts, for the next job at the same port, and for a job that comes back."""

from __future__ import annotations

from array import array
from typing import Any, Final

from lark_controller.accounting.account import FLOWS, PORT, QUEUES, SUMS, WORKER, Account
from lark_controller.accounting.places import TRANSFER_PLACES
from lark_controller.accounting.readings import PortReading

# Accounts whose readings are kept; of more, those that were closed last.
MOST: Final = 65_536

_Port = tuple[int | str, str | None]


class Departed:
    """The last readings of closed accounts; not thread-safe.

    A job that its lease has ended, and that its worker posts again, goes on under its number. The worker's own counts
    have gone on, too: they are since the job's start, and most of them are in the closed account.
    """

    def __init__(self) -> None:
        # By datapath or host, and port name, as bytes: as numbers they would take more than three times as much.
        # And by job's number, the counts of its worker.
        self._ports: dict[_Port, bytes] = {}
        self._counts: dict[int, array[int]] = {}

    def keep(self, account: Account) -> None:
        """Keep the readings of an account that is being closed."""
        numbers = account.numbers
        if account.port_name is not None and account.started and not account.followed:
            _put(self._ports, account.port, numbers[PORT:FLOWS].tobytes())
        counts = array("Q", (numbers[place] for place in TRANSFER_PLACES)) + numbers[WORKER:QUEUES]
        if any(counts):
            _put(self._counts, account.number, counts)

    def at_port(self, port: _Port) -> PortReading | None:
        """The last reading of a port whose job is over, which is kept no longer."""
        kept = self._ports.pop(port, None)
        return None if kept is None else PortReading(*array("Q", kept))

    def resume(self, account: Account) -> None:
        """Have a new account go on from the counts of the one that its job had before."""
        counts = self._counts.pop(account.number, None)
        if counts is None:
            return
        numbers = account.opened()
        for place, count in zip(TRANSFER_PLACES, counts, strict=False):
            # Counted and written, so nothing of it is new.
            numbers[place] = numbers[SUMS + place] = count
        numbers[WORKER:QUEUES] = counts[len(TRANSFER_PLACES) :]

    def reopen(self, account: Account) -> None:
        """Have an account that was closed, and is not written yet, go on."""
        self._ports.pop(account.port, None)
        self._counts.pop(account.number, None)
        account.final = account.reported = False


def _put(kept: dict[Any, Any], key: object, value: object) -> None:
    while len(kept) >= MOST:
        del kept[next(iter(kept))]
    kept[key] = value
