"""The place of each count among an account's numbers: of ports, flows and workers, parts and their wholes. Pure."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from operator import itemgetter, sub
from typing import Final

from lark_controller.accounting.account import DROPS, FLOWS, HELD, PEAK, PORT, SUMS, Account
from lark_controller.accounting.readings import CountKind, FlowReading, PortReading, TransferCounts
from lark_controller.accounting.usage import MOST, Rate, Usage

# Which sums a flow's (bytes, packets) belong to; drops count packets alone.
_SPLITS: Final[dict[int, tuple[str | None, str]]] = {
    CountKind.WAN_OUT: ("wan_bytes_out", "wan_packets_out"),
    CountKind.WAN_IN: ("wan_bytes_in", "wan_packets_in"),
    CountKind.WAN_IN_IPV6: ("wan_bytes_in", "wan_packets_in"),
    CountKind.DROP_OUT: (None, "policy_drops_out"),
    CountKind.DROP_IN: (None, "policy_drops_in"),
    CountKind.DROP_IN_IPV6: (None, "policy_drops_in"),
}
PLACES: Final = {name: place for place, name in enumerate(Usage._fields)}
# In the order of PortReading.
PORT_PLACES: Final = tuple(
    PLACES[name]
    for name in ("packets_out", "bytes_out", "packets_in", "bytes_in", "rate_drops_out", "rate_drops_in")
)  # fmt: skip
# The sums that a rate is of, in the order of Rate; and all drops, those by policy before those by rate. Called for each
# job and reading, so looked up in C.
_rated: Final = itemgetter(*(PLACES[name] for name in ("bytes_in", "bytes_out", "wan_bytes_in", "wan_bytes_out")))
drops_of: Final = itemgetter(
    *(PLACES[name] for name in ("policy_drops_in", "policy_drops_out", "rate_drops_in", "rate_drops_out"))
)
RATE_DROPS: Final = 2
THROTTLED: Final = PLACES["throttled"]
# Each part with its whole, in the order of the numbers that are held over.
_PARTS: Final = tuple(
    (PLACES[f"wan_{name}"], PLACES[name]) for name in ("bytes_in", "bytes_out", "packets_in", "packets_out")
)
HELD_FOR: Final = {part: HELD + place for place, (part, _) in enumerate(_PARTS)}
FLOW_PLACES: Final = {
    kind: (None if size is None else PLACES[size], PLACES[packets]) for kind, (size, packets) in _SPLITS.items()
}
_NOTHING_HELD: Final = array("Q", bytes(8 * (DROPS - HELD)))
# In the order of TransferCounts.
TRANSFER_PLACES: Final = tuple(PLACES[f"transfer_{name}"] for name in TransferCounts._fields)
WORKER_PLACES: Final = tuple(
    PLACES[name]
    for name in (
        "wan_bytes_in", "wan_bytes_out", "wan_packets_in", "wan_packets_out", "policy_drops_in", "policy_drops_out"
    )
)  # fmt: skip


def is_as_it_was(account: Account, port: PortReading, flows: Iterable[FlowReading]) -> bool:
    """True where a reading is the one before, and nothing that came between is to be seen by it."""
    numbers = account.numbers
    if not account.started or account.reported or numbers[PORT:FLOWS] != array("Q", port):
        return False
    for kind, packets, size in flows:
        place = FLOWS + 2 * kind
        if kind in FLOW_PLACES and (numbers[place] != packets or numbers[place + 1] != size):
            return False
    return drops_of(numbers) == tuple(numbers[DROPS:PEAK]) and numbers[HELD:DROPS] == _NOTHING_HELD


def count_parts(account: Account, before: array[int] | None) -> None:
    """Count of each part that was read no more than its whole; the rest is held over, as flows may be ahead of ports.

    ``before`` is what was held before a reading that has the wholes too; None where it has not. After such a reading no
    more is held than came with it: packets that were counted and then dropped by a queue never arrive.
    """
    numbers = account.numbers
    for place, (part, whole) in enumerate(_PARTS):
        held = numbers[HELD + place]
        if not held:
            continue
        given = min(held, max(0, numbers[whole] - numbers[part]))
        numbers[part] += given
        rest = held - given
        numbers[HELD + place] = rest if before is None else min(rest, held - before[place])


def add_to(numbers: array[int], place: int, value: int) -> None:
    """Add to a sum, up to :data:`MOST`."""
    added = numbers[place] + value
    # Called a dozen times for each job and reading: min() takes three times as long.
    numbers[place] = added if added < MOST else MOST


def rate_between(before: array[int], now: array[int], elapsed: float) -> Rate:
    """The rate of what was counted in so many seconds, without transfers."""
    inward, outward, wan_inward, wan_outward = (
        round(8 * new / elapsed) for new in map(sub, _rated(now), _rated(before))
    )
    # The WAN's part is no more than the whole: flows and ports are read one after the other.
    return Rate(inward, outward, min(wan_inward, inward), min(wan_outward, outward))


def restore(account: Account, readings: str, usage: Usage) -> None:
    """Have an account go on from the readings and the use that were written, before a start of the controller."""
    stored = json.loads(readings)
    numbers = account.opened()
    numbers[PORT : PORT + len(stored["counters"])] = array("Q", stored["counters"])
    numbers[:SUMS] = numbers[SUMS:PORT] = array("Q", usage)
    # Earlier versions had another word for "reported".
    reported = stored["reported"] if "reported" in stored else stored["told"]
    account.started, account.reported, account.at = stored["started"], reported, stored["at"]
    account.unwritten = account.at
    numbers[DROPS:PEAK] = array("Q", drops_of(numbers))
