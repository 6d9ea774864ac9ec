"""Counters of all ports and of many flows, decoded by columns (OpenFlow 1.3.5, sections 7.3.5.2 and 7.3.5.6).

They are hundreds a switch, and come from each switch every few seconds. To the same effect as
:func:`.replies.port_records` and :func:`.replies.flow_counts`, which refuse what does not fit.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

from lark_controller.accounting.numeric import Counts, Numbers, np, npt
from lark_controller.switches.openflow.oxm import WireError
from lark_controller.switches.openflow.replies import MULTIPART_BODY, age_of, flow_counts

# Words in the order of bytes in which they come; places among others.
Words: TypeAlias = npt.NDArray[Any]
Places: TypeAlias = npt.NDArray[np.intp]

# A record of a port in words of 64 bits: the number, twelve counters of which the first six are read, and for how long
# the switch has had it. Packets received and sent come first, then bytes, then drops.
_WORD: Final = 8
_PORT_WORDS: Final = 14
_ORDER: Final = np.array([1, 3, 2, 4, 5, 6])[:, np.newaxis]
_AGE: Final = 13
_NO_COUNTER: Final = (1 << 64) - 1
# The shortest record of a flow, and where its cookie, its packets and its bytes are, in words of 64 bits: a record has
# a whole number of them.
_SHORTEST: Final = 56 // _WORD
_COLUMNS: Final = np.array([3, 4, 5])[:, np.newaxis]
# Records of flows that are compared at a time, as far as they have the same length; and those that are then gone
# through one by one where few have.
_AHEAD: Final = 64
_FEW: Final = 6
_ONE_BY_ONE: Final = 24


def port_columns(message: bytes) -> Words:
    """The ports in one part of an OFPMP_PORT_STATS reply, a row for each, in words as they came. Raises WireError."""
    if (len(message) - MULTIPART_BODY) % (_WORD * _PORT_WORDS):
        raise WireError(f"port statistics are not a multiple of {_WORD * _PORT_WORDS} bytes")
    return np.frombuffer(message, ">u8", offset=MULTIPART_BODY).reshape(-1, _PORT_WORDS)


def port_numbers(ports: Words) -> Numbers:
    """The numbers of ports."""
    return (ports[:, 0] >> 32).astype(np.int64)


def port_counters(ports: Words, places: Places) -> Counts:
    """The counters of some ports, a column for each, in the order of PortReading; one that the switch does not have is
    0."""
    found: Counts = ports[places, _ORDER].astype(np.uint64)
    missing = found == _NO_COUNTER
    if np.count_nonzero(missing):
        found[missing] = 0
    return found


def port_age(ports: Words, place: int) -> float | None:
    """The seconds for which the switch has had a port; None where it does not say."""
    return age_of(*divmod(int(ports[place, _AGE]), 1 << 32))


def flow_columns(message: bytes) -> Counts:
    """The flows in one part of an OFPMP_FLOW reply, a row for each: cookie, packets and bytes. Raises WireError."""
    places = _places(message)
    if places is None:
        # It has records of odd lengths, or is refused.
        return np.array(flow_counts(message), np.uint64).reshape(-1, len(_COLUMNS))
    found: Counts = np.frombuffer(message, ">u8").take(places + _COLUMNS).astype(np.uint64).T
    return found


def _places(message: bytes) -> Places | None:
    """The words at which records of flows begin; None where one does not begin or end at a word, or is too short.

    Flows come in the order of their tables and of the fields that they match, so that many of one length follow each
    other; where they do not, they are gone through one by one.
    """
    if len(message) % _WORD:
        return None
    # Of each word the two bytes that a record begins with: its length.
    lengths = np.frombuffer(message, ">u2")[:: _WORD // 2]
    place, size, found = MULTIPART_BODY // _WORD, len(lengths), list[Places]()
    while place < size:
        length, odd = divmod(int(lengths[place]), _WORD)
        if odd or length < _SHORTEST or place + length > size:
            return None
        ahead = lengths[place : place + _AHEAD * length : length]
        same = ahead == ahead[0]
        count = len(same) if same.all() else int(same.argmin())
        # The last of these may go beyond the end.
        count = min(count, (size - place) // length)
        if count >= _FEW:
            found.append(np.arange(place, place + count * length, length))
            place += count * length
            continue
        some = list[int]()
        while place < size and len(some) < _ONE_BY_ONE:
            octets = message[_WORD * place] << 8 | message[_WORD * place + 1]
            if octets % _WORD or octets < _WORD * _SHORTEST or _WORD * place + octets > len(message):
                return None
            some.append(place)
            place += octets // _WORD
        found.append(np.array(some))
    return np.concatenate(found) if found else np.empty(0, np.intp)
