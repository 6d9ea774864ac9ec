"""An entry of the history: what is written of one job's account."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import partial
from struct import Struct
from typing import Any, Final, NamedTuple

from lark_controller.accounting.account import PEAK, STRETCH, SUMS, Account
from lark_controller.accounting.stored import readings_of
from lark_controller.accounting.usage import FLAT, Peak, Usage, usage_of

_SUMS: Final = Struct(f"={SUMS}Q")
_WRITTEN: Final = slice(_SUMS.size, 2 * _SUMS.size)
_PEAK: Final = Struct(f"={STRETCH - PEAK}Q")


class Entry(NamedTuple):
    """An entry to write for a job: all its use, the new part of it, and the readings to go on from.

    The new part is of the time from ``begun`` to ``at`` (seconds since 1970).
    """

    number: int
    job_id: str
    owner: str
    user: str
    group: str
    host: str
    since: float
    begun: float
    at: float
    usage: Usage
    new: Usage
    readings: str
    final: bool
    peak: Peak = FLAT


# Of all its members in their order, without a call of Python: as of a usage, one is made for each job and write.
_entry: Final[Callable[[Iterable[Any]], Entry]] = partial(tuple.__new__, Entry)
_ORDER: Final = sys.byteorder
_number: Final = partial(int.from_bytes, byteorder=_ORDER)
_peak: Final[Callable[[Iterable[int]], Peak]] = partial(tuple.__new__, Peak)


def entry_of(number: int, account: Account) -> Entry:
    """The entry to write for an account now."""
    data, final = account.numbers.tobytes(), account.final
    usage = usage_of(_SUMS.unpack_from(data))
    return _entry(
        (
            number,
            account.id,
            account.owner,
            account.user,
            account.group,
            account.host,
            account.created,
            account.unwritten or account.created,
            max(account.at or account.created, account.moved_at),
            usage,
            # All differences at once, as of two long numbers: no sum falls, so that none borrows from the next.
            usage_of(
                _SUMS.unpack((_number(data[: _SUMS.size]) - _number(data[_WRITTEN])).to_bytes(_SUMS.size, _ORDER))
            ),
            "" if final else readings_of(account, data),
            final,
            _peak(_PEAK.unpack_from(data, 8 * PEAK)),
        )
    )
