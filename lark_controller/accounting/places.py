"""The place of each count among an account's numbers: of ports, flows and workers, parts and their wholes. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter, lt, sub
from typing import Final

from lark_controller.accounting.account import DROPS, FLOWS, HELD, PEAK, PORT, QUEUES, WORKER, Account
from lark_controller.accounting.counters import counted
from lark_controller.accounting.readings import CountKind, QueueReading, TransferCounts, WorkerCounts
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
# All drops, those by policy before those by rate. Called for each job and reading, so looked up in C.
drops_of: Final[Callable[[Sequence[int]], tuple[int, ...]]] = itemgetter(
    *(PLACES[name] for name in ("policy_drops_in", "policy_drops_out", "rate_drops_in", "rate_drops_out"))
)
RATE_DROPS: Final = 2
THROTTLED: Final = PLACES["throttled"]
# Where of each part is held over, the part, and its whole.
_PARTS: Final = tuple(
    (HELD + place, PLACES[f"wan_{name}"], PLACES[name])
    for place, name in enumerate(("bytes_in", "bytes_out", "packets_in", "packets_out"))
)
HELD_FOR: Final = {part: held for held, part, _ in _PARTS}
FLOW_PLACES: Final = {
    kind: (None if size is None else PLACES[size], PLACES[packets]) for kind, (size, packets) in _SPLITS.items()
}
# Of each kind: where its counters are, and where they are added to.
_FLOW_SUMS: Final[dict[int, tuple[int, int, int | None]]] = {
    kind: (FLOWS + 2 * kind, HELD_FOR.get(packets, packets), None if size is None else HELD_FOR[size])
    for kind, (size, packets) in FLOW_PLACES.items()
}
_IN, _OUT, _WAN_IN, _WAN_OUT = (PLACES[name] for name in ("bytes_in", "bytes_out", "wan_bytes_in", "wan_bytes_out"))
# In the order of TransferCounts.
TRANSFER_PLACES: Final = tuple(PLACES[f"transfer_{name}"] for name in TransferCounts._fields)
_WORKER_PLACES: Final = tuple(
    PLACES[name]
    for name in (
        "wan_bytes_in", "wan_bytes_out", "wan_packets_in", "wan_packets_out", "policy_drops_in", "policy_drops_out"
    )
)  # fmt: skip


def is_as_it_was(account: Account, port: Sequence[int], flows: Iterable[tuple[int, int, int]]) -> bool:
    """True where a reading is the one before, and nothing that came between is to be seen by it."""
    return account.started and not account.reported and are_as_they_were(account.numbers, port, flows)


def are_as_they_were(numbers: array[int], port: Sequence[int], flows: Iterable[tuple[int, int, int]]) -> bool:
    """As :func:`is_as_it_was`, by an account's numbers alone."""
    if tuple(numbers[PORT:FLOWS]) != port:
        return False
    for kind, packets, size in flows:
        place = FLOWS + 2 * kind
        if kind in FLOW_PLACES and (numbers[place] != packets or numbers[place + 1] != size):
            return False
    return bool(tuple(numbers[DROPS:PEAK]) == drops_of(numbers)) and not any(numbers[HELD:DROPS])


def read_port(numbers: array[int], port: Sequence[int], *, counts: bool = True) -> bool:
    """Take a port's counters, which count from the reading before; True where one fell. Where it ``counts`` not, the
    next reading does from here."""
    before = numbers[PORT:FLOWS]
    new = tuple(map(sub, port, before))
    fell: bool = min(new) < 0
    if fell:
        new = counted(before, port)
    if counts:
        for place, value in zip(PORT_PLACES, new, strict=True):
            if value:
                # As add_to, without a call for each: of a busy pool this is done 100,000 times a second.
                added = numbers[place] + value
                numbers[place] = added if added < MOST else MOST
    numbers[PORT:FLOWS] = array("Q", port)
    return fell


def read_flow(numbers: array[int], reading: tuple[int, int, int]) -> bool:
    """Take a counting flow's counters, which count from the reading before; True where one fell."""
    kind, packets, size = reading
    places = _FLOW_SUMS.get(kind)
    if places is None:
        return False
    place, to_packets, to_bytes = places
    old_packets, old_bytes = numbers[place], numbers[place + 1]
    new_packets, new_bytes = packets - old_packets, size - old_bytes
    if not new_packets and not new_bytes:
        return False
    fell = new_packets < 0 or new_bytes < 0
    if fell:
        new_packets, new_bytes = counted((old_packets, old_bytes), (packets, size))
    numbers[place], numbers[place + 1] = packets, size
    added = numbers[to_packets] + new_packets
    numbers[to_packets] = added if added < MOST else MOST
    if to_bytes is not None:
        added = numbers[to_bytes] + new_bytes
        numbers[to_bytes] = added if added < MOST else MOST
    return fell


def read_worker(numbers: array[int], report: WorkerCounts) -> bool:
    """Take what a worker counts beside the port, from the report before; True where a count fell."""
    counts = (*(report.wan or ()), *(report.policy_drops or ()))
    if not counts:
        return False
    begin = 0 if report.wan else len(_WORKER_PLACES) - len(counts)
    places, there = _WORKER_PLACES[begin : begin + len(counts)], slice(WORKER + begin, WORKER + begin + len(counts))
    old = numbers[there]
    for place, value in zip(places, counted(old, counts), strict=True):
        add_to(numbers, HELD_FOR.get(place, place), value)
    numbers[there] = array("Q", counts)
    return any(map(lt, counts, old))


def read_queues(numbers: array[int], reading: QueueReading) -> None:
    """Take the counts of a job's own queues, which count from the reading before.

    Of queues that went while no controller looked nothing is known; what is left of the sums is where they go on.
    Packets may wait in both directions at once; the longer of the two is the time for which the job was held back.
    """
    new = [max(0, now - old) for old, now in zip(numbers[QUEUES:HELD], reading, strict=True)]
    numbers[QUEUES:HELD] = array("Q", reading)
    add_to(numbers, PLACES["rate_drops_in"], new[0])
    add_to(numbers, PLACES["rate_drops_out"], new[1])
    add_to(numbers, THROTTLED, max(new[2:]))


def read_transfers(numbers: array[int], moved: TransferCounts) -> tuple[int, int]:
    """Take the sums of what HTCondor has moved for a job; returns the new bytes to it and from it."""
    new = [max(0, now - numbers[place]) for place, now in zip(TRANSFER_PLACES, moved, strict=True)]
    for place, value in zip(TRANSFER_PLACES, new, strict=True):
        add_to(numbers, place, value)
    return new[0], new[1]


def count_parts(numbers: array[int], before: array[int] | None) -> None:
    """Count of each part that was read no more than its whole; the rest is held over, as flows may be ahead of ports.

    ``before`` is what was held before a reading that has the wholes too; None where it has not. After such a reading no
    more is held than came with it: packets that were counted and then dropped by a queue never arrive.
    """
    for place, part, whole in _PARTS:
        held = numbers[place]
        if not held:
            continue
        room = numbers[whole] - numbers[part]
        given = held if held < room else room if room > 0 else 0
        numbers[part] += given
        rest = held - given
        if rest and before is not None and rest > (came := held - before[place - HELD]):
            rest = came
        numbers[place] = rest


def add_to(numbers: array[int], place: int, value: int) -> None:
    """Add to a sum, up to :data:`MOST`."""
    added = numbers[place] + value
    # Called a dozen times for each job and reading: min() takes three times as long.
    numbers[place] = added if added < MOST else MOST


def rate_between(before: array[int], now: array[int], elapsed: float, last: Rate) -> Rate:
    """The rate of what was counted in so many seconds, with the transfers of the ``last`` one."""
    inward = round(8 * (now[_IN] - before[_IN]) / elapsed)
    outward = round(8 * (now[_OUT] - before[_OUT]) / elapsed)
    wan_inward = round(8 * (now[_WAN_IN] - before[_WAN_IN]) / elapsed)
    wan_outward = round(8 * (now[_WAN_OUT] - before[_WAN_OUT]) / elapsed)
    # The WAN's part is no more than the whole: flows and ports are read one after the other.
    return Rate(
        inward, outward, wan_inward if wan_inward < inward else inward,
        wan_outward if wan_outward < outward else outward, last.transfer_inward, last.transfer_outward,
    )  # fmt: skip
