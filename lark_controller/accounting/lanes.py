"""The sums of a usage side by side in one whole number, which C adds up and divides as one value. Pure.

Each sum has a lane of 160 bits: a product of 64 bits by a fraction of 96 fits, and so does any number of sums that
memory can hold. So nothing that is done to one of them is seen in the lane beside it.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

from lark_controller.accounting.usage import MOST, Usage, usage_of

_SIZE: Final = 20
_COUNT: Final = len(Usage._fields)
_PACKED: Final = Struct("<" + f"Q{_SIZE - 8}x" * _COUNT)
# The bits of a fraction: of a product's lane, those above them are its whole part.
_FRACTION: Final = 96


def _in_each(bits: int, names: Iterable[str] = Usage._fields) -> int:
    return sum(bits << 8 * _SIZE * Usage._fields.index(name) for name in names)


_WHOLE: Final = _in_each((1 << 64) - 1)
_ABOVE_MOST: Final = _in_each((1 << 8 * _SIZE) - MOST)
# The parts that are of the WAN stand so many lanes above their wholes; a bit on top of each of these is borrowed from
# where the part is more.
_WAN: Final = 8 * _SIZE * (Usage._fields.index("wan_bytes_in") - Usage._fields.index("bytes_in"))
_WHOLES: Final = _in_each(1 << 8 * _SIZE - 1, Usage._fields[: _WAN // (8 * _SIZE)])
_TRANSFERS: Final = 8 * _SIZE * Usage._fields.index("transfer_bytes_in")
_TRANSFERS_WAN: Final = 8 * _SIZE * Usage._fields.index("transfer_wan_bytes_in") - _TRANSFERS
_TRANSFER_WHOLES: Final = _in_each(1 << 8 * _SIZE - 1, ("transfer_bytes_in", "transfer_bytes_out")) >> _TRANSFERS


def packed(use: Iterable[int]) -> int:
    """Sums in the order of Usage, each of 64 bits."""
    return int.from_bytes(_PACKED.pack(*use), "little")


def unpacked(lanes: int) -> Usage:
    """The sums, none above :data:`MOST`."""
    data = lanes.to_bytes(_SIZE * _COUNT, "little")
    if lanes & _ABOVE_MOST:
        starts = range(0, len(data), _SIZE)
        return usage_of([min(int.from_bytes(data[start : start + _SIZE], "little"), MOST) for start in starts])
    return usage_of(_PACKED.unpack(data))


def fraction(part: int, whole: int) -> int:
    """A part of ``whole`` for :func:`share`, rounded up: by less than what changes the whole part of a product of 64
    bits, where the whole has 32 at most (``value * part // whole``; Granlund and Montgomery, 1994)."""
    return -((-part << _FRACTION) // whole)


def share(lanes: int, of: int) -> int:
    """A fraction of each sum, rounded down."""
    return lanes * of >> _FRACTION & _WHOLE


def is_bounded(lanes: int) -> bool:
    """True where no part is more than its whole, as Usage's."""
    if ((lanes | _WHOLES) - (lanes >> _WAN)) & _WHOLES != _WHOLES:
        return False
    transfers = lanes >> _TRANSFERS
    if not transfers:
        return True
    return ((transfers | _TRANSFER_WHOLES) - (transfers >> _TRANSFERS_WAN)) & _TRANSFER_WHOLES == _TRANSFER_WHOLES
