"""Actions and instructions on the wire (OpenFlow 1.3.5, sections 7.2.4 and 7.2.5; ``ct``: Open vSwitch's NXAST_CT).

What the model has no word for (a foreign flow's ``group``, write-actions) is kept as ``SetField("unknown:<hex>", 0)``:
such a flow differs from every desired one, and is shown, but is never sent.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

from os_ken.ofproto import nicira_ext, ofproto_common
from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_controller.flows.model import Action, FlowData, Output, PopVlan, PushVlan, SetField, SetQueue, Term, Track
from lark_controller.switches.openflow.oxm import FIELDS, WireError, encode_term

_OUTPUT: Final = struct.Struct("!HHIH6x")
_HEADER: Final = struct.Struct("!HH")
_PUSH: Final = struct.Struct("!HHH2x")
_POP: Final = struct.Struct("!HH4x")
_QUEUE: Final = struct.Struct("!HHI")
# type, length, vendor, subtype, flags, zone_src, zone, recirc_table, alg (Open vSwitch, struct nx_action_conntrack)
_TRACK: Final = struct.Struct("!HHIHHIHB3xH")
_METADATA: Final = struct.Struct("!HH4xQQ")
_GOTO: Final = struct.Struct("!HHB3x")
_METER: Final = struct.Struct("!HHI")
_MARK: Final = "ct_mark"
_SET_FIELD: Final = ofp.OFPAT_SET_FIELD.to_bytes(2)
_NO_RECIRCULATION: Final = 0xFF
_CT_COMMIT: Final = 1
_UNKNOWN: Final = "unknown:"
# Bytes of the longest instructions that are read. The longest of Lark's hand announcements of routers and DHCP servers
# to each job of a VLAN that is at the switch, with 16 bytes a job: these are enough for 2,000.
LONGEST: Final = 32_768
# The same of those that are kept in memory with what they mean. All but the ones above have some 300.
_LONGEST_KEPT: Final = 2048


class Instructions(NamedTuple):
    """The instructions of one flow, as in FlowData."""

    actions: tuple[Action, ...]
    goto: int | None
    metadata: tuple[int, int] | None
    meter: int | None


# ``typed``, because PushVlan(5) and SetQueue(5) are equal as tuples.
@lru_cache(maxsize=4096, typed=True)
def encode_action(action: Action) -> bytes:
    """One action as bytes. Raises KeyError for a set-field of an unknown field."""
    match action:
        case Output(port, max_len):
            return _OUTPUT.pack(ofp.OFPAT_OUTPUT, 16, port, max_len)
        case SetField(name, value):
            field = encode_term(Term(name, value, FIELDS[name].full))
            padding = -(4 + len(field)) % 8
            return _HEADER.pack(ofp.OFPAT_SET_FIELD, 4 + len(field) + padding) + field + bytes(padding)
        case PushVlan(ethertype):
            return _PUSH.pack(ofp.OFPAT_PUSH_VLAN, 8, ethertype)
        case PopVlan():
            return _POP.pack(ofp.OFPAT_POP_VLAN, 8)
        case SetQueue(queue):
            return _QUEUE.pack(ofp.OFPAT_SET_QUEUE, 8, queue)
        case Track(zone, table, commit, mark):
            recirculate = _NO_RECIRCULATION if table is None else table
            flags = _CT_COMMIT if commit else 0
            vendor, subtype = ofproto_common.NX_EXPERIMENTER_ID, nicira_ext.NXAST_CT
            nested = b"" if mark is None else encode_action(SetField(_MARK, mark))
            size = 24 + len(nested)
            return _TRACK.pack(ofp.OFPAT_EXPERIMENTER, size, vendor, subtype, flags, 0, zone, recirculate, 0) + nested


def encode_actions(actions: tuple[Action, ...]) -> bytes:
    """A list of actions as bytes."""
    return b"".join(map(encode_action, actions))


def encode_instructions(data: FlowData) -> bytes:
    """The instructions of a flow: meter, apply-actions, write-metadata, goto-table; none at all is a drop."""
    parts = []
    if data.meter is not None:
        parts.append(_METER.pack(ofp.OFPIT_METER, 8, data.meter))
    if data.actions:
        actions = encode_actions(data.actions)
        parts.append(_POP.pack(ofp.OFPIT_APPLY_ACTIONS, 8 + len(actions)))
        parts.append(actions)
    if data.metadata is not None:
        parts.append(_METADATA.pack(ofp.OFPIT_WRITE_METADATA, 24, *data.metadata))
    if data.goto is not None:
        parts.append(_GOTO.pack(ofp.OFPIT_GOTO_TABLE, 8, data.goto))
    return b"".join(parts)


def _set_field(body: bytes) -> Action | None:
    header = int.from_bytes(body[4:8])
    for field in FIELDS.values():
        if field.header == header and len(body) >= 8 + field.size:
            return SetField(field.name, int.from_bytes(body[8 : 8 + field.size]))
    return None


def _known_action(kind: int, body: bytes) -> Action | None:
    if kind == ofp.OFPAT_OUTPUT and len(body) == 16:
        _, _, port, max_len = _OUTPUT.unpack(body)
        return Output(port, max_len)
    if kind == ofp.OFPAT_SET_FIELD:
        return _set_field(body)
    if kind == ofp.OFPAT_PUSH_VLAN:
        return PushVlan(_PUSH.unpack(body)[2])
    if kind == ofp.OFPAT_POP_VLAN:
        return PopVlan()
    if kind == ofp.OFPAT_SET_QUEUE:
        return SetQueue(_QUEUE.unpack(body)[2])
    if kind == ofp.OFPAT_EXPERIMENTER and len(body) >= 24:
        return _track(body)
    return None


def _track(body: bytes) -> Action | None:
    _, _, vendor, subtype, flags, source, zone, table, algorithm = _TRACK.unpack_from(body)
    is_ct = (vendor, subtype) == (ofproto_common.NX_EXPERIMENTER_ID, nicira_ext.NXAST_CT)
    if not is_ct or source or algorithm or flags not in (0, _CT_COMMIT):
        return None
    recirculation = None if table == _NO_RECIRCULATION else table
    if len(body) == 24:
        return Track(zone, recirculation, flags == _CT_COMMIT)
    nested = _set_field(body[24:]) if body[24:26] == _SET_FIELD else None
    if isinstance(nested, SetField) and nested.name == _MARK and flags == _CT_COMMIT:
        made = Track(zone, recirculation, commit=True, mark=nested.value)
        # Other nested actions have no place in the model.
        return made if encode_action(made) == body else None
    return None


@lru_cache(maxsize=4096)
def _decode_action(body: bytes) -> Action:
    try:
        action = _known_action(int.from_bytes(body[:2]), body)
    except struct.error as error:
        raise WireError(f"action of {len(body)} bytes is malformed") from error
    return SetField(_UNKNOWN + body.hex(), 0) if action is None else action


def _split(buffer: bytes, what: str) -> list[bytes]:
    pieces = []
    position, size = 0, len(buffer)
    while position < size:
        length = int.from_bytes(buffer[position + 2 : position + 4])
        if length < 8 or length > size - position:
            raise WireError(f"{what} of {length} bytes in {size - position}")
        pieces.append(buffer[position : position + length])
        position += length
    return pieces


def decode_actions(buffer: bytes) -> tuple[Action, ...]:
    """A list of actions from bytes. Raises WireError where it is malformed."""
    return tuple(_decode_action(piece) for piece in _split(buffer, "action"))


def decode_instructions(buffer: bytes) -> Instructions:
    """The instructions of one flow from bytes. Raises WireError where they are malformed.

    Those that are longer than any of Lark's are not read: they become one unknown action, named by their hash.
    """
    if len(buffer) > LONGEST:
        return Instructions((SetField(f"{_UNKNOWN}{sha256(buffer).hexdigest()}", 0),), None, None, None)
    return _remembered(buffer) if len(buffer) <= _LONGEST_KEPT else _decoded(buffer)


def _decoded(buffer: bytes) -> Instructions:
    actions: list[Action] = []
    goto = metadata = meter = None
    try:
        for piece in _split(buffer, "instruction"):
            kind = int.from_bytes(piece[:2])
            if kind == ofp.OFPIT_APPLY_ACTIONS:
                actions += decode_actions(piece[8:])
            elif kind == ofp.OFPIT_GOTO_TABLE:
                goto = piece[4]
            elif kind == ofp.OFPIT_WRITE_METADATA:
                _, _, value, mask = _METADATA.unpack(piece)
                metadata = (value, mask)
            elif kind == ofp.OFPIT_METER:
                meter = _METER.unpack(piece)[2]
            else:
                actions.append(SetField(_UNKNOWN + piece.hex(), 0))
    except struct.error as error:
        raise WireError("instruction is malformed") from error
    return Instructions(tuple(actions), goto, metadata, meter)


_remembered: Final = lru_cache(maxsize=8192)(_decoded)
