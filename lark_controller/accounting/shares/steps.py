"""One step of an account, from a plain reading to the next, calculated elsewhere.

A reading is *plain* where port and flows are those of the reading before and went on: nothing began anew, nothing came
anew. The step depends on a part of the account alone, its *state*, and is good for an account in that very state and
for no other: so it does not matter what came between, who calculated it, or how often its answer comes. Pure.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Collection
from operator import lt
from typing import Final, NamedTuple

from lark_controller.accounting.account import HELD, PEAK, PORT, SIZE, SUMS, WORKER, Account, millis
from lark_controller.accounting.places import are_as_they_were
from lark_controller.accounting.plain import CHANGED, READINGS, REST, go_on
from lark_controller.accounting.readings import CountKind, PortReading
from lark_controller.accounting.usage import IDLE, MOST, Peak, Rate

# A time, the sums that a reading may change, the readings of port and flows, and the rest that it may change.
_LAST: Final = struct.Struct("=d")
STATE: Final = _LAST.size + 8 * (CHANGED + READINGS + REST)
# Where the highest rates are among these.
_PEAKS: Final = CHANGED + READINGS + PEAK - HELD
_RATES: Final = struct.Struct("=4Q")
# Names what the bytes are: of instances whose accounts have other numbers, or whose processors another order of bytes,
# none calculates for the other.
FORMAT: Final = f"1 {sys.byteorder} {SUMS} {PORT} {SIZE} {len(CountKind)}"
# Seconds by which a port or a flow has to be older than the reading before: clocks of switches count a little faster or
# slower, and show whole milliseconds.
SLACK: Final = 1.0


class Ages(NamedTuple):
    """The readings of a job's port and counting flows, with the seconds that each has been there (None: not known)."""

    port: PortReading
    port_age: float | None
    flows: Collection[tuple[int, int, int]]
    youngest: float


class Step(NamedTuple):
    """A step that was calculated: the new state, ``b""`` where nothing was new, and the rates without transfers."""

    at: float
    state: bytes = b""
    rate: Rate = IDLE


def state_of(account: Account) -> bytes | None:
    """The state of an account; None where its next reading may not be plain."""
    if not account.started or account.reported or account.final or account.restored:
        return None
    numbers = account.numbers
    return (
        _LAST.pack(account.last)
        + numbers[:CHANGED].tobytes()
        + numbers[PORT:WORKER].tobytes()
        + numbers[HELD:SIZE].tobytes()
    )


def set_state(account: Account, made: Step) -> None:
    """Bring an account to the state and the time of a step."""
    numbers, at, account.at = account.opened(), _LAST.size, made.at
    for first, count in ((0, CHANGED), (PORT, READINGS), (HELD, REST)):
        numbers[first : first + count] = array("Q", made.state[at : at + 8 * count])
        at += 8 * count


def is_sound(before: bytes, made: Step) -> bool:
    """True where a step may be one from the state ``before``, whoever has calculated it: its time is later, no sum
    falls, and neither a sum nor a highest rate is more than can be written."""
    later = made.at > float(_LAST.unpack_from(before)[0])
    if not (later and made.state):
        return later
    old, new = (array("Q", each[_LAST.size :]) for each in (before, made.state))
    peaks = new[_PEAKS : _PEAKS + len(Peak._fields)]
    return max(*new[:CHANGED], *peaks) <= MOST and not any(map(lt, new[:CHANGED], old))


def step(state: bytes, at: float, found: Ages) -> Step | None:
    """The step from ``state`` by a reading at ``at``; None where the reading is not plain."""
    (last,) = _LAST.unpack_from(state)
    since = at - last
    if since <= 0 or found.port_age is None or min(found.port_age, found.youngest) < since + SLACK:
        return None
    numbers = array("Q", bytes(8 * SIZE))
    place = _LAST.size
    for first, count in ((0, CHANGED), (PORT, READINGS), (HELD, REST)):
        numbers[first : first + count] = array("Q", state[place : place + 8 * count])
        place += 8 * count
    kinds = [kind for kind, _, _ in found.flows]
    if len(set(kinds)) != len(kinds):
        return None
    if are_as_they_were(numbers, found.port, found.flows):
        return Step(at)
    growth = go_on(numbers, last, at, millis(at), found.port, found.flows)
    if growth is None:
        return None
    rate = Rate(*growth[0])
    if max(rate) >= 1 << 64:
        return None
    parts = (numbers[:CHANGED], numbers[PORT:WORKER], numbers[HELD:SIZE])
    return Step(at, _LAST.pack(at) + b"".join(map(array.tobytes, parts)), rate)


def packed(made: Step) -> bytes:
    """A step as bytes, to be read with :func:`unpacked`; of one that has nothing new none."""
    return made.state and made.state + _RATES.pack(*made.rate[:4])


PACKED: Final = STATE + _RATES.size


def unpacked(at: float, data: bytes) -> Step:
    """The step that :func:`packed` has made of it; ``data`` has :data:`PACKED` bytes, or none."""
    if not data:
        return Step(at)
    return Step(at, data[:STATE], Rate(*_RATES.unpack_from(data, STATE)))
