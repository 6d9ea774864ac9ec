"""An entry of the history: what is written of one job's account."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from struct import Struct
from typing import Any, Final, NamedTuple

from lark_controller.accounting.account import DROPS, PEAK, PORT, STRETCH, SUMS, WORKER, Account
from lark_controller.accounting.usage import FLAT, Peak, Usage, usage_of

_SUMS: Final = Struct(f"={SUMS}Q")
_WRITTEN: Final = slice(_SUMS.size, 2 * _SUMS.size)
_PEAK: Final = Struct(f"={STRETCH - PEAK}Q")
_COUNTERS: Final = Struct(f"={STRETCH - PORT}Q")
_COUNTERS_TEXT: Final = ",".join(["%d"] * (STRETCH - PORT))
# Where neither worker nor queues have counted, and nothing is held over, as of most: fewer numbers to make and write.
_QUIET: Final = bytes(8 * (DROPS - WORKER))
_OTHERS: Final = Struct(f"={WORKER - PORT}Q{len(_QUIET)}x{STRETCH - DROPS}Q")
_OTHERS_TEXT: Final = ",".join(
    [*["%d"] * (WORKER - PORT), *["0"] * (DROPS - WORKER), *["%d"] * (STRETCH - DROPS)]
)  # fmt: skip


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
            "" if final else _readings(account, data),
            final,
            _peak(_PEAK.unpack_from(data, 8 * PEAK)),
        )
    )


def _readings(account: Account, data: bytes) -> str:
    """The readings to go on from, as JSON: written by hand, since a writer of any value takes six times as long."""
    if data[8 * WORKER : 8 * DROPS] == _QUIET:
        counters = _OTHERS_TEXT % _OTHERS.unpack_from(data, 8 * PORT)
    else:
        counters = _COUNTERS_TEXT % _COUNTERS.unpack_from(data, 8 * PORT)
    return f"{_beginning(account.at, account.started, account.reported)}{counters}]}}"


# All jobs of a switch were read at the same time.
@lru_cache(maxsize=256)
def _beginning(at: float, started: bool, reported: bool) -> str:
    said = "true" if started else "false", "true" if reported else "false"
    return f'{{"at":{at!r},"started":{said[0]},"reported":{said[1]},"counters":['
