"""Roles of controllers at a switch, as messages: requests, replies, and Open vSwitch's notices of a change.

OpenFlow 1.3.5, sections 6.3 and 7.3.9. OpenFlow 1.3 has no message for a change of role; Open vSwitch sends that of
1.4 as the Open Networking Foundation's experimenter message 1911 (openflow/openflow-1.3.h and 1.4.h of its sources).
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from os_ken.ofproto import ofproto_common
from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_controller.switches.openflow.oxm import WireError
from lark_controller.switches.openflow.replies import ErrorMessage
from lark_controller.switches.openflow.wire import header

NOCHANGE: Final = ofp.OFPCR_ROLE_NOCHANGE
EQUAL: Final = ofp.OFPCR_ROLE_EQUAL
MASTER: Final = ofp.OFPCR_ROLE_MASTER
SLAVE: Final = ofp.OFPCR_ROLE_SLAVE
# Generation of a switch that has received none (Open vSwitch); signed, it is before all others.
NO_GENERATION: Final = (1 << 64) - 1

ROLE: Final = struct.Struct(ofp.OFP_ROLE_REQUEST_PACK_STR)
# Experimenter, type; role, reason, generation (struct ofp14_role_status).
STATUS: Final = struct.Struct("!IIIB3xQ")
STATUS_TYPE: Final = 1911
_NO_ROLES: Final = (
    (ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_TYPE),
    (ofp.OFPET_ROLE_REQUEST_FAILED, ofp.OFPRRFC_UNSUP),
)


class Role(NamedTuple):
    """The role of this connection at a switch, and the generation that the switch obeys."""

    role: int
    generation: int


def request(xid: int, role: int, generation: int) -> bytes:
    """ROLE_REQUEST; a switch looks at the generation of MASTER and SLAVE alone."""
    return header(ofp.OFPT_ROLE_REQUEST, xid, ROLE.pack(role, generation))


def reply(message: bytes) -> Role:
    """Decode ROLE_REPLY. Raises WireError."""
    if len(message) != ofp.OFP_ROLE_REQUEST_SIZE or message[1] != ofp.OFPT_ROLE_REPLY:
        raise WireError(f"a role request answered by message type {message[1]} of {len(message)} bytes")
    return Role(*ROLE.unpack_from(message, 8))


def status(message: bytes) -> Role | None:
    """The role and generation of a notice that this connection's role has changed; None for any other message of an
    experimenter."""
    if len(message) != 8 + STATUS.size:
        return None
    experimenter, kind, role, _, generation = STATUS.unpack_from(message, 8)
    known = (experimenter, kind) == (ofproto_common.ONF_EXPERIMENTER_ID, STATUS_TYPE)
    return Role(role, generation) if known else None


def is_stale(error: ErrorMessage) -> bool:
    """True for the refusal of a generation that is before the one that the switch obeys."""
    return (error.type, error.code) == (ofp.OFPET_ROLE_REQUEST_FAILED, ofp.OFPRRFC_STALE)


def is_slave(error: ErrorMessage) -> bool:
    """True for the refusal of a write, because this connection's role is SLAVE."""
    return (error.type, error.code) == (ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_IS_SLAVE)


def has_none(error: ErrorMessage) -> bool:
    """True for the answer of a switch that has no roles."""
    return (error.type, error.code) in _NO_ROLES
