"""Plain readings, taken into the numbers of an account in one piece.

A reading is *plain* where port and flows are those of the reading before and went on: nothing fell, and no sum is full.
So are nearly all of a busy pool, a hundred thousand in some seconds. Any other goes the way of :meth:`.Ledger.read`,
step by step, which has the same effect on a plain one. Pure.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias

from lark_controller.accounting.account import (
    DROPS,
    HELD,
    PEAK,
    PORT,
    SIZE,
    WORKER,
    highest_now,
)
from lark_controller.accounting.places import PLACES, THROTTLED
from lark_controller.accounting.readings import CountKind
from lark_controller.accounting.usage import MOST

# The sums that a reading may change: all but those of transfers, which come last.
CHANGED: Final = THROTTLED + 1
READINGS: Final = WORKER - PORT
REST: Final = SIZE - HELD
_SUMS: Final = struct.Struct(f"={CHANGED}Q")
_COUNTERS: Final = struct.Struct(f"={READINGS}Q")
_REST: Final = struct.Struct(f"={REST}Q")
_ALL: Final = struct.Struct(f"={CHANGED}Q{8 * (PORT - CHANGED)}x{READINGS}Q{8 * (HELD - WORKER)}x{REST}Q")
_COUNTERS_AT: Final = 8 * PORT
_REST_AT: Final = 8 * HELD
# Places behind a port's counters among all these: those of flows come first.
_HELD: Final = 2 * len(CountKind)
_DROPS: Final = _HELD + DROPS - HELD
_PEAK: Final = _HELD + PEAK - HELD
_KINDS: Final = len(CountKind)
_WAN_OUT: Final = int(CountKind.WAN_OUT)
_DROP_OUT: Final = int(CountKind.DROP_OUT)

# A port's counters, in the order of PortReading.
PortCounts: TypeAlias = tuple[int, int, int, int, int, int]
# The counters of a flow, in the order of FlowReading.
FlowCounts: TypeAlias = tuple[int, int, int]

# The order in which the sums are taken apart below.
assert list(PLACES)[:CHANGED] == [
    "bytes_in", "bytes_out", "packets_in", "packets_out", "wan_bytes_in", "wan_bytes_out", "wan_packets_in",
    "wan_packets_out", "policy_drops_in", "policy_drops_out", "rate_drops_in", "rate_drops_out", "throttled",
]  # fmt: skip


# The outcome of a plain reading: the rates but those of transfers, in the order of Rate; what is new of the sums; the
# drops up to the reading before, and up to this one; True where a highest rate rose.
Growth: TypeAlias = tuple[tuple[int, int, int, int], tuple[int, ...], list[int], list[int], bool]


def go_on(
    numbers: array[int], last: float, at: float, moment: int, port: PortCounts, flows: Iterable[FlowCounts]
) -> Growth | None:
    """Take a reading at ``at``, later than the ``last`` one; None, and nothing is taken, where it is not plain.

    ``moment`` is ``at`` as :func:`.millis` has it.
    """
    # In one piece and one after the other: each call, and each look into the array, takes as long as the sum itself.
    (
        bytes_in, bytes_out, packets_in, packets_out, wan_bytes_in, wan_bytes_out, wan_packets_in, wan_packets_out,
        drops_in, drops_out, lost_in, lost_out, throttled,
        old_packets_out, old_bytes_out, old_packets_in, old_bytes_in, old_lost_out, old_lost_in,
        *rest,
    ) = _ALL.unpack_from(numbers)  # fmt: skip
    now_packets_out, now_bytes_out, now_packets_in, now_bytes_in, now_lost_out, now_lost_in = port
    new_packets_out, new_bytes_out = now_packets_out - old_packets_out, now_bytes_out - old_bytes_out
    new_packets_in, new_bytes_in = now_packets_in - old_packets_in, now_bytes_in - old_bytes_in
    new_lost_out, new_lost_in = now_lost_out - old_lost_out, now_lost_in - old_lost_in
    # Negative where one of them is.
    if (new_packets_out | new_bytes_out | new_packets_in | new_bytes_in | new_lost_out | new_lost_in) < 0:
        return None
    new_drops_in = new_drops_out = 0
    wan_in = wan_out = wan_in_packets = wan_out_packets = 0
    for kind, packets, size in flows:
        if kind >= _KINDS:
            continue
        place = 2 * kind
        more, octets = packets - rest[place], size - rest[place + 1]
        if (more | octets) < 0:
            return None
        rest[place], rest[place + 1] = packets, size
        if kind == _WAN_OUT:
            wan_out, wan_out_packets = wan_out + octets, wan_out_packets + more
        elif kind < _DROP_OUT:
            wan_in, wan_in_packets = wan_in + octets, wan_in_packets + more
        elif kind == _DROP_OUT:
            new_drops_out += more
        else:
            new_drops_in += more
    bytes_in, bytes_out = bytes_in + new_bytes_in, bytes_out + new_bytes_out
    packets_in, packets_out = packets_in + new_packets_in, packets_out + new_packets_out
    drops_in, drops_out = drops_in + new_drops_in, drops_out + new_drops_out
    lost_in, lost_out = lost_in + new_lost_in, lost_out + new_lost_out
    if (bytes_in | bytes_out | packets_in | packets_out | drops_in | drops_out | lost_in | lost_out) >= MOST:
        return None
    room_in, room_out = bytes_in - wan_bytes_in, bytes_out - wan_bytes_out
    room_in_packets, room_out_packets = packets_in - wan_packets_in, packets_out - wan_packets_out
    if (
        wan_in > room_in
        or wan_out > room_out
        or wan_in_packets > room_in_packets
        or wan_out_packets > room_out_packets
        or any(rest[_HELD:_DROPS])
    ):
        came = wan_in, wan_out, wan_in_packets, wan_out_packets
        if max(came) + max(rest[_HELD:_DROPS]) > MOST:
            return None
        room = room_in, room_out, room_in_packets, room_out_packets
        given, rest[_HELD:_DROPS] = _parts(rest[_HELD:_DROPS], came, room)
        wan_in, wan_out, wan_in_packets, wan_out_packets = given
    since = at - last
    new_throttled = 0
    if new_lost_in or new_lost_out:
        new_throttled = min(round(1000 * since), MOST - throttled)
    known_drops, drops = rest[_DROPS:_PEAK], [drops_in, drops_out, lost_in, lost_out]
    rest[_DROPS:_PEAK] = drops
    before = bytes_in - new_bytes_in, bytes_out - new_bytes_out
    highest = highest_now(rest[_PEAK:], last, at, moment, before, (bytes_in, bytes_out))
    _SUMS.pack_into(
        numbers, 0, bytes_in, bytes_out, packets_in, packets_out,
        wan_bytes_in + wan_in, wan_bytes_out + wan_out,
        wan_packets_in + wan_in_packets, wan_packets_out + wan_out_packets,
        drops_in, drops_out, lost_in, lost_out, throttled + new_throttled,
    )  # fmt: skip
    _COUNTERS.pack_into(numbers, _COUNTERS_AT, *port, *rest[:_HELD])
    _REST.pack_into(numbers, _REST_AT, *rest[_HELD:_PEAK], *highest)
    rate_in, rate_out = round(8 * new_bytes_in / since), round(8 * new_bytes_out / since)
    # As rate_between has it.
    wan_rate_in, wan_rate_out = round(8 * wan_in / since), round(8 * wan_out / since)
    return (
        (
            rate_in, rate_out, wan_rate_in if wan_rate_in < rate_in else rate_in,
            wan_rate_out if wan_rate_out < rate_out else rate_out,
        ),
        (
            new_bytes_in, new_bytes_out, new_packets_in, new_packets_out,
            wan_in, wan_out, wan_in_packets, wan_out_packets,
            new_drops_in, new_drops_out, new_lost_in, new_lost_out, new_throttled,
        ),
        known_drops, drops, rest[_PEAK] != highest[0] or rest[_PEAK + 1] != highest[1],
    )  # fmt: skip


def _parts(held: Sequence[int], came: Sequence[int], room: Sequence[int]) -> tuple[list[int], list[int]]:
    """The WAN's parts that are counted, and what is held over of them, as :func:`.count_parts` has it after a reading
    of all wholes; ``room`` is what these have beyond the parts."""
    every = [old + new for old, new in zip(held, came, strict=True)]
    given = [max(0, min(some, free)) for some, free in zip(every, room, strict=True)]
    return given, [min(some - part, new) for some, part, new in zip(every, given, came, strict=True)]
