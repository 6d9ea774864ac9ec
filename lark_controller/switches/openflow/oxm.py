"""Matches on the wire: OpenFlow Extensible Match (OpenFlow 1.3.5, section 7.2.3), encoded and decoded directly.

The table of fields is os-ken's own; only the work for each term is done here, because it is done for every flow of
every dump. A field that os-ken does not know (or one with a 64-bit experimenter header) becomes a term named
``oxm_<header>`` whose value is its whole payload, so that a foreign or damaged flow can still be named and deleted.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

from os_ken.ofproto import ofproto_v1_3

from lark_common.errors import SwitchError
from lark_controller.flows.model import FIELD_BITS, Match, Term

# Fields of a match. OpenFlow 1.3 has 40, and each takes a hundred times the memory of its bytes.
MOST_FIELDS: Final = 64
# Bytes of a match's fields: the longest of Lark's have some 200.
LONGEST_MATCH: Final = 2048
# Terms whose bytes are remembered: those of a job's flows are mostly the same, among themselves and from job to job.
_REMEMBERED: Final = 2048
_UNKNOWN: Final = "oxm_"
_MASK_BIT: Final = 0x100
_new_term = Term._make


class WireError(SwitchError):
    """Bytes from a switch that are not what the protocol allows; the connection that carried them is closed."""


class _Field(NamedTuple):
    name: str
    header: int
    size: int
    full: int


def _fields() -> dict[str, _Field]:
    table = {}
    for known in ofproto_v1_3.oxm_types:
        if isinstance(known.num, tuple):  # 64-bit experimenter headers: handled as unknown
            continue
        size = known.type.size
        bits = FIELD_BITS.get(known.name, size * 8)
        table[known.name] = _Field(known.name, known.num << 9 | size, size, (1 << bits) - 1)
    return table


FIELDS: Final[dict[str, _Field]] = _fields()


def _by_header() -> dict[int, tuple[str, int, int, bool]]:
    table = {}
    for field in FIELDS.values():
        table[field.header] = (field.name, field.size, field.full, False)
        table[(field.header | _MASK_BIT) + field.size] = (field.name, field.size, field.full, True)
    return table


_BY_HEADER: Final = _by_header()


# By name: a full mask, the size of a value, the headers of a term without and with a mask.
_HEADERS: Final = {
    name: (field.full, field.size, field.header.to_bytes(4), ((field.header | _MASK_BIT) + field.size).to_bytes(4))
    for name, field in FIELDS.items()
}


@lru_cache(maxsize=_REMEMBERED)
def encode_term(term: Term) -> bytes:
    """One match field as bytes. Raises KeyError for a field that no table has, OverflowError for too large a value."""
    name, value, mask = term
    if name not in _HEADERS and name.startswith(_UNKNOWN):
        number = int(name[len(_UNKNOWN) :], 16)
        return number.to_bytes(4) + value.to_bytes(number & 0xFF)
    full, size, header, masked = _HEADERS[name]
    if mask == full:
        return header + value.to_bytes(size)
    return masked + value.to_bytes(size) + mask.to_bytes(size)


def encode_fields(match: Match) -> bytes:
    """All fields of a match, in the order of their headers (prerequisites first: eth_type before ipv4_dst)."""
    if len(match) == 1:
        return encode_term(match[0])
    return b"".join(sorted(map(encode_term, match)))


def encode_match(match: Match) -> bytes:
    """``struct ofp_match`` with its padding."""
    fields = encode_fields(match)
    length = 4 + len(fields)
    return b"\x00\x01" + length.to_bytes(2) + fields + bytes(-length % 8)


def decode_fields(buffer: bytes, start: int, end: int) -> Match:
    """The canonical match whose fields stand in ``buffer[start:end]``. Raises WireError where they are cut short."""
    if end - start > LONGEST_MATCH:
        raise WireError(f"match of {end - start} bytes")
    terms: list[Term] = []
    while start < end:
        if end - start < 4:
            raise WireError("match field cut short")
        if len(terms) == MOST_FIELDS:
            raise WireError(f"match of more than {MOST_FIELDS} fields")
        header = int.from_bytes(buffer[start : start + 4])
        start += 4
        after = start + (header & 0xFF)
        if after > end:
            raise WireError("match field longer than the match")
        known = _BY_HEADER.get(header)
        if known is None:
            length = header & 0xFF
            name = f"{_UNKNOWN}{header:08x}"
            terms.append(Term(name, int.from_bytes(buffer[start:after]), (1 << 8 * length) - 1))
        else:
            name, size, full, masked = known
            value = int.from_bytes(buffer[start : start + size])
            if masked:
                mask = int.from_bytes(buffer[start + size : after]) & full
                if mask:
                    terms.append(_new_term((name, value & mask, mask)))
            else:
                terms.append(_new_term((name, value, full)))
        start = after
    terms.sort()
    return tuple(terms)


def match_end(buffer: bytes, start: int, limit: int) -> tuple[int, int]:
    """(end of the fields, end of the padding) of the ``ofp_match`` at ``start``. WireError if it does not fit."""
    if limit - start < 8 or buffer[start : start + 2] != b"\x00\x01":
        raise WireError("no OXM match where one must be")
    length = int.from_bytes(buffer[start + 2 : start + 4])
    after = start + length + -length % 8
    if length < 4 or after > limit:
        raise WireError(f"match of {length} bytes does not fit its message")
    return start + length, after
