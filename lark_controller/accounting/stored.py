"""The readings of an account as they are stored: what the next start of a controller goes on from. Pure.

They are numbers in base64, which every database takes as text: read at a start and written with each minute's use, each
at a small part of the cost of JSON. Earlier versions stored JSON, which is read as before.
"""

from __future__ import annotations

import sys
from array import array
from binascii import a2b_base64, b2a_base64
from collections.abc import Sequence
from json import JSONDecoder
from struct import Struct
from typing import Final

from lark_controller.accounting.account import DROPS, PEAK, PORT, STRETCH, SUMS, WORKER, ZEROS, Account
from lark_controller.accounting.places import PLACES, drops_of
from lark_controller.accounting.usage import MOST

# The time of the reading, and which of the two flags are set; then numbers of eight bytes, the lowest byte first: the
# counters of port and flows, those of worker and queues with what is held over, and the highest rates.
_HEAD: Final = Struct("<dB")
_STARTED, _REPORTED = 1, 2
_COUNTED: Final = slice(8 * PORT, 8 * WORKER)
_OTHERS: Final = slice(8 * WORKER, 8 * DROPS)
_PEAK: Final = slice(8 * PEAK, 8 * STRETCH)
# Where neither worker nor queues have counted, and nothing is held over, as of most, these numbers are left out.
_QUIET: Final = bytes(8 * (DROPS - WORKER))
_QUIET_SIZE: Final = _HEAD.size + 8 * (WORKER - PORT + STRETCH - PEAK)
_SIZE: Final = _QUIET_SIZE + len(_QUIET)
_FLOWS_END: Final = _HEAD.size + 8 * (WORKER - PORT)
_PEAK_AT: Final = -8 * (STRETCH - PEAK)
# In one piece among the sums, as among an account's numbers.
_FIRST_DROPS: Final = PLACES["policy_drops_in"]
_SUMS_DROPS: Final = slice(8 * _FIRST_DROPS, 8 * (_FIRST_DROPS + PEAK - DROPS))
assert drops_of(range(SUMS)) == tuple(range(_FIRST_DROPS, _FIRST_DROPS + PEAK - DROPS))
_USAGE: Final = Struct(f"={SUMS}Q")
_REST: Final = bytes(8 * (len(ZEROS) - STRETCH))
_LITTLE: Final = sys.byteorder == "little"
# Stored readings have no spaces around them, which json.loads() looks for.
_decoded: Final = JSONDecoder().raw_decode


def readings_of(account: Account, data: bytes) -> str:
    """The readings to go on from, as text; ``data`` are the bytes of the account's numbers."""
    others = data[_OTHERS]
    numbers = data[_COUNTED] + data[_PEAK] if others == _QUIET else data[_COUNTED] + others + data[_PEAK]
    flags = _STARTED * account.started | _REPORTED * account.reported
    return b2a_base64(_HEAD.pack(account.at, flags) + _ordered(numbers), newline=False).decode("ascii")


def restore(account: Account, readings: str, usage: Sequence[int]) -> None:
    """Have an account go on from the readings and the use that were written, before a start of the controller."""
    if max(usage) > MOST:
        # The first versions wrote larger ones. A sum that stays is never less than what is written of it.
        usage = [min(each, MOST) for each in usage]
    if readings[0] == "{":
        _restore_json(account, readings, usage)
    else:
        _restore_packed(account, readings, usage)
    account.unwritten = account.moved_at = account.at


def _restore_packed(account: Account, readings: str, usage: Sequence[int]) -> None:
    data = a2b_base64(readings, strict_mode=True)
    if len(data) not in (_QUIET_SIZE, _SIZE):
        raise ValueError(f"stored readings of {len(data)} bytes, where {_QUIET_SIZE} or {_SIZE} are expected")
    account.at, flags = _HEAD.unpack_from(data)
    account.started, account.reported = bool(flags & _STARTED), bool(flags & _REPORTED)
    sums = _USAGE.pack(*usage)
    counted, others = data[_HEAD.size : _FLOWS_END], data[_FLOWS_END:_PEAK_AT] or _QUIET
    after = _ordered(counted + others), sums[_SUMS_DROPS], _ordered(data[_PEAK_AT:]), _REST
    # A copy has the size that it needs: a start makes 200,000.
    account.numbers = array("Q", b"".join((sums, sums, *after)))[:]


def _restore_json(account: Account, readings: str, usage: Sequence[int]) -> None:
    stored, _ = _decoded(readings)
    # The first versions wrote the stretch, too.
    numbers = [*usage, *usage, *stored["counters"]][:STRETCH]
    numbers += ZEROS[len(numbers) :]
    numbers[DROPS:PEAK] = drops_of(numbers)
    account.numbers = array("Q", numbers)
    # The first versions had another word for "reported".
    account.reported = stored["reported"] if "reported" in stored else stored["told"]
    account.started, account.at = stored["started"], stored["at"]


def _ordered(numbers: bytes) -> bytes:
    """Numbers of this machine as they are stored, and the other way round."""
    if _LITTLE:
        return numbers
    swapped = array("Q", numbers)
    swapped.byteswap()
    return swapped.tobytes()
