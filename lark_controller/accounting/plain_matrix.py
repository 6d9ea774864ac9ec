"""Plain readings of many jobs, taken into the numbers of their accounts by columns: the arithmetic of
:func:`.plain.go_on` for all of them at once, to the same effect. Pure.

Columns have 64 bits, which every value here stays far inside: a job for which one might not counts as not plain, and
is read step by step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from lark_controller.accounting.account import (
    DROPS,
    FLOWS,
    HELD,
    LEAST_STRETCH,
    PEAK,
    PORT,
    SIZE,
    STRETCH,
    WORKER,
)
from lark_controller.accounting.numeric import Bools, Counts, Floats, Numbers, any_of, np
from lark_controller.accounting.places import PLACES
from lark_controller.accounting.plain import CHANGED
from lark_controller.accounting.readings import CountKind, PortReading
from lark_controller.accounting.usage import MOST

# The most that a counter may have grown by, and that a rate may be: a petabyte, and a petabit a second. Sums of
# thousands of these fit, and those of rates are exact as floating-point numbers.
LARGEST: Final = 1 << 50
# A sum that is not full after readings of two flows that grew by that.
_NEARLY: Final = MOST - 2 * LARGEST


def _port(name: str) -> int:
    return PortReading._fields.index(name)


def _flow(kind: CountKind, *, octets: bool) -> int:
    return FLOWS - PORT + 2 * kind + octets


# The counters in a reading that the first four sums come of, and the sums of drops.
_TOTALS: Final = np.array([_port(name) for name in ("tx_bytes", "rx_bytes", "tx_packets", "rx_packets")])
_DROPPED: Final = np.array([
    _flow(CountKind.DROP_IN, octets=False), _flow(CountKind.DROP_OUT, octets=False), _port("tx_dropped"),
    _port("rx_dropped"),
])  # fmt: skip
_DROPPED_IPV6: Final = _flow(CountKind.DROP_IN_IPV6, octets=False)
# The WAN's parts of the first four, and those by IPv6 of what came in.
_PARTS: Final = np.array([
    _flow(CountKind.WAN_IN, octets=True), _flow(CountKind.WAN_OUT, octets=True),
    _flow(CountKind.WAN_IN, octets=False), _flow(CountKind.WAN_OUT, octets=False),
])  # fmt: skip
_PARTS_IPV6: Final = _flow(CountKind.WAN_IN_IPV6, octets=True)
_WAN: Final = PLACES["wan_bytes_in"]
_DROP_SUMS: Final = PLACES["policy_drops_in"]
_THROTTLED: Final = PLACES["throttled"]
# The sums that rates are of, in the order of Rate.
_RATED: Final = np.array([PLACES[name] for name in ("bytes_in", "bytes_out", "wan_bytes_in", "wan_bytes_out")])

# The order in which sums are taken together below.
assert list(PLACES)[:4] == ["bytes_in", "bytes_out", "packets_in", "packets_out"]
assert list(PLACES)[_WAN : _WAN + 4] == ["wan_bytes_in", "wan_bytes_out", "wan_packets_in", "wan_packets_out"]
assert list(PLACES)[_DROP_SUMS:_THROTTLED] == ["policy_drops_in", "policy_drops_out", "rate_drops_in", "rate_drops_out"]
assert CHANGED == _THROTTLED + 1


# The largest value of each number with which an account may go on here: the others have any.
_BOUNDS: Final = np.full((SIZE, 1), (1 << 64) - 1, np.uint64)
_BOUNDS[:CHANGED] = _NEARLY
_BOUNDS[HELD:DROPS] = _BOUNDS[PEAK:STRETCH] = LARGEST


@dataclass(frozen=True, slots=True)
class Grown:
    """The outcome of many readings, a column for each; of one that is not ``plain`` nothing counts.

    ``rates`` are in the order of Rate, without those of transfers; ``new`` is what is new of the sums; ``drops`` are
    those since the reading before; ``rose`` is true where a highest rate did.
    """

    plain: Bools
    rates: Numbers
    new: Numbers
    drops: Numbers
    rose: Bools

    def of(self, some: Bools) -> Grown:
        """The outcome of some of the readings."""
        return Grown(*(getattr(self, name)[..., some] for name in self.__slots__))


def go_on_all(numbers: Counts, last: Floats, at: float, moment: int, counters: Counts, counted: Bools) -> Grown:
    """Take readings at ``at``, later than each job's ``last``, into accounts' numbers, a column for each account.

    ``counters`` has the readings of port and flows in an account's order, as far as they were ``counted``; ``moment``
    is ``at`` as :func:`.millis` has it.
    """
    signed = numbers.view(np.int64)
    before = signed[:CHANGED].copy()
    old = numbers[PORT:WORKER]
    now = np.where(counted, counters, old)
    # Without a sign: of one that fell it is anything.
    grown = now - old
    unfit = np.zeros(len(last), np.bool_)
    for odd in (now < old, grown >= LARGEST, numbers > _BOUNDS):
        if np.count_nonzero(odd):
            unfit |= any_of(odd)
    more = grown.view(np.int64)
    new = np.zeros_like(before)
    new[:_WAN] = more[_TOTALS]
    new[_DROP_SUMS:_THROTTLED] = more[_DROPPED]
    new[_DROP_SUMS] += more[_DROPPED_IPV6]
    came = more[_PARTS]
    came[0] += more[_PARTS_IPV6]
    came[2] += more[_PARTS_IPV6 - 1]
    held, room = signed[HELD:DROPS], before[:_WAN] + new[:_WAN] - before[_WAN:_DROP_SUMS]
    if np.count_nonzero(held) or np.count_nonzero(came > room):
        every = held + came
        given = np.maximum(np.minimum(every, room), 0)
        # No more is held than came with it.
        signed[HELD:DROPS] = np.minimum(every - given, came)
        came = given
    new[_WAN:_DROP_SUMS] = came
    since = at - last
    if np.count_nonzero(new[_THROTTLED - 2 : _THROTTLED]):
        lost = any_of(new[_THROTTLED - 2 : _THROTTLED])
        new[_THROTTLED] = np.where(lost, np.rint(1000 * since), 0)
    numbers[PORT:WORKER] = now
    signed[:CHANGED] += new
    sums = signed[_DROP_SUMS:_THROTTLED]
    drops = sums - signed[DROPS:PEAK]
    signed[DROPS:PEAK] = sums
    rose = _highest(signed, before, last, at, moment)
    rates = np.rint(8 * new[_RATED] / since)
    odd = rates >= LARGEST
    if np.count_nonzero(odd):
        unfit |= any_of(odd)
    if np.count_nonzero(unfit):
        rates[:, unfit] = 0
    # As rate_between has it.
    np.minimum(rates[2:], rates[:2], out=rates[2:])
    return Grown(~unfit, rates.astype(np.int64), new, drops, rose)


def _highest(signed: Numbers, before: Numbers, last: Floats, at: float, moment: int) -> Bools:
    """Go on with the stretches of highest rates, as :func:`.highest_now` does; true where one rose."""
    stretch = signed[STRETCH:]
    if np.count_nonzero(stretch[0]) < len(last):
        unbegun = stretch[0] == 0
        stretch[0, unbegun] = np.maximum(1, np.rint(1000 * last[unbegun]))
        stretch[1:, unbegun] = before[:2, unbegun]
    elapsed = at - stretch[0] / 1000
    going_on = (elapsed >= 0) & (elapsed < LEAST_STRETCH)
    count = np.count_nonzero(going_on)
    rose = np.zeros(len(last), np.bool_)
    if count == len(last):
        return rose
    peak = signed[PEAK:STRETCH]
    # A clock that was set back begins a stretch, and gives no rate of the one before.
    elapsed[going_on | (elapsed <= 0)] = np.inf
    rates = 8 * (signed[:2] - stretch[1:]) / elapsed
    higher = rates > peak
    if np.count_nonzero(higher):
        rose = any_of(np.rint(rates) > peak)
        peak[higher] = np.minimum(np.rint(rates[higher]), MOST)
    if count:
        over = ~going_on
        stretch[0, over] = moment
        stretch[1:, over] = signed[:2, over]
    else:
        stretch[0] = moment
        stretch[1:] = signed[:2]
    return rose
