"""A played switch for thousands in one process: it keeps flows as the bytes that came, and shares equal bytes.

:class:`FakeSwitch` decodes every flow and sends packets through them. A :class:`StoredSwitch` checks a flow-mod's
structure (OpenFlow 1.3.5, sections 7.2 and 7.3.4.1), keeps match and instructions as bytes, and answers dumps with
them. Its flows can be read decoded, to compare them with what should be there; packets do not pass it.
"""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Iterator
from typing import Final, Self

from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_controller.flows.cookies import CATEGORY_MASK, count_cookie
from lark_controller.flows.marker import MARKERS
from lark_controller.flows.model import PORT_ANY, Flow
from lark_controller.switches.openflow import wire
from lark_controller.switches.openflow.replies import PortCounters, PortInfo

# header; cookie, cookie_mask, table, command, idle, hard, priority, buffer, out_port, out_group, flags; match header
_FLOW_MOD: Final = struct.Struct("!BBHIQQBBHHHIIIH2xHH")
_STATS: Final = struct.Struct("!HBxIIHHHH4xQQQ")
_MATCH_AT: Final = 48
_ROOM: Final = 60_000
# Of a busy switch's flows: packets a second, and bytes each.
_PACKETS: Final = 100
_OCTETS: Final = 1000
# A round of counters asks for these flows once, and for those that drop besides where any does.
_ALL_COUNTS: Final = (count_cookie(0), CATEGORY_MASK)

# Match bytes and instruction bytes are equal on many switches: each is held once in the process.
_SHARED: dict[bytes, bytes] = {}

_Key = tuple[int, int, bytes]
_Value = tuple[int, int, int, int, bytes]


class StoredSwitch(FakeSwitch):
    """One switch. ``shared_ports`` are the same object for all switches that have the same ports.

    ``flow_mods`` counts the flow-mods since :meth:`forget_counts`, ``asked`` the requests for chosen flows,
    ``rounds`` those of them for all counting flows, ``refused`` the flow-mods that were answered with an error. While
    it is ``busy``, its counters grow with time. Its ports are as old as it is, its flows as the one that was added
    last.
    """

    def __init__(self, datapath: int, shared_ports: dict[int, PortInfo], *, hardware: str = "Open vSwitch") -> None:
        super().__init__(datapath, hardware=hardware)
        self.ports = shared_ports
        self.flows: dict[_Key, _Value] = {}
        self.flow_mods = 0
        self.refused = 0
        self.asked = self.rounds = 0
        self.busy = False
        self._made = time.monotonic()
        # The time of the last flow that was added, by whichever connection.
        self._added = [self._made]

    def data_received(self, data: bytes) -> None:
        """Take flow-mods and barriers out of the stream here; everything else goes the way of any fake switch."""
        self.received += len(data)
        buffer = bytes(self._buffer) + data if self._buffer else data
        position, size = 0, len(buffer)
        while size - position >= 8:
            kind, length = buffer[position + 1], buffer[position + 2] << 8 | buffer[position + 3]
            if size - position < length:
                break
            message = buffer[position : position + length]
            position += length
            xid = int.from_bytes(message[4:8])
            if self.masters.refuses(self, kind):
                self._refuse_slave(xid, message)
            elif kind == ofp.OFPT_FLOW_MOD:
                self._flow_mod(xid, message)
            elif (answer := self._answers.get(kind)) is not None:
                answer(xid, message)
        self._buffer[:] = buffer[position:]

    def another(self) -> Self:
        """The same switch, for a connection to one more controller; each counts what comes by it."""
        more = super().another()
        more.refused = 0
        more.forget_counts()
        return more

    def forget_counts(self) -> None:
        """Count from now on."""
        self.flow_mods = self.asked = self.rounds = 0

    def packets(self) -> int:
        """The packets that each of its counters shows now."""
        return int(time.monotonic() * _PACKETS) if self.busy else 0

    def decoded(self) -> Iterator[Flow]:
        """The flows that it holds now; for any thread."""
        for (table, priority, match), (cookie, idle, hard, flags, instructions) in list(self.flows.items()):
            padding = bytes(-len(match) % 8)
            length = _MATCH_AT + len(match) + len(padding) + len(instructions)
            head = _FLOW_MOD.pack(
                wire.VERSION, ofp.OFPT_FLOW_MOD, length, 0, cookie, 0, table, ofp.OFPFC_ADD, idle, hard, priority,
                wire.NO_BUFFER, ofp.OFPP_ANY, ofp.OFPG_ANY, flags, *struct.unpack_from("!HH", match),
            )  # fmt: skip
            mod = switchside.decode_flow_mod(head + match[4:] + padding + instructions)
            yield Flow(mod.key, mod.data)

    def digest(self) -> str:
        """A digest of all flows but markers, whatever the order in which they came."""
        parts = sorted(
            repr((key, value)).encode() for key, value in self.flows.items() if value[0] & MARKERS[1] != MARKERS[0]
        )
        return hashlib.sha256(b"\n".join(parts)).hexdigest()[:16]

    def _flow_mod(self, xid: int, message: bytes) -> None:
        self.flow_mods += 1
        (
            _, _, length, _, cookie, mask, table, command, idle, hard, priority, _, _, _, flags, match_type,
            match_length,
        ) = _FLOW_MOD.unpack_from(message)  # fmt: skip
        after = _MATCH_AT + (match_length + 7 & ~7)
        if match_type != 1 or after > length:
            self._refuse(xid, ofp.OFPET_BAD_MATCH, ofp.OFPBMC_BAD_LEN, message)
            return
        match = message[_MATCH_AT : _MATCH_AT + match_length]
        match = _SHARED.setdefault(match, match)
        if command == ofp.OFPFC_ADD:
            instructions = message[after:]
            instructions = _SHARED.setdefault(instructions, instructions)
            if not _whole(instructions):
                self._refuse(xid, ofp.OFPET_BAD_INSTRUCTION, ofp.OFPBIC_BAD_LEN, message)
                return
            self.flows[table, priority, match] = (cookie, idle, hard, flags, instructions)
            self._added[0] = time.monotonic()
        elif command == ofp.OFPFC_DELETE_STRICT:
            self.flows.pop((table, priority, match), None)
        elif match_length == 4:
            chosen = [
                key for key, value in self.flows.items()
                if table in (key[0], ofp.OFPTT_ALL) and (value[0] ^ cookie) & mask == 0
            ]  # fmt: skip
            for key in chosen:
                del self.flows[key]
        else:
            self._refuse(xid, ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_BAD_COMMAND, message)

    def _refuse(self, xid: int, kind: int, code: int, message: bytes) -> None:
        self.refused += 1
        self._error(xid, kind, code, message)

    def _multipart(self, xid: int, message: bytes) -> None:
        kind, now = int.from_bytes(message[8:10]), time.monotonic()
        packets = self.packets()
        if kind == ofp.OFPMP_PORT_STATS:
            wanted, size = int.from_bytes(message[16:20]), packets * _OCTETS
            found = [
                switchside.port_counters(
                    self.counted.get(number)
                    or PortCounters(number, packets, packets, size, size, 0, 0, now - self._made)
                )
                for number in self.ports
                if wanted in (number, PORT_ANY)
            ]
            self.send_raw(switchside.multipart_replies(xid, kind, found))
            return
        if kind != ofp.OFPMP_FLOW:
            super()._multipart(xid, message)
            return
        cookie, mask = int.from_bytes(message[32:40]), int.from_bytes(message[40:48])
        part: list[bytes] = []
        length = 0
        self.asked += bool(mask)
        self.rounds += (cookie, mask) == _ALL_COUNTS
        age = int(now - self._added[0])
        for (table, priority, match), value in self.flows.items():
            flow_cookie, idle, hard, flags, instructions = value
            if (flow_cookie ^ cookie) & mask:
                continue
            body = match + bytes(-len(match) % 8) + instructions
            record = (
                _STATS.pack(
                    48 + len(body), table, age, 0, priority, idle, hard, flags, flow_cookie, packets, packets * _OCTETS
                )
                + body
            )
            if length + len(record) > _ROOM:
                self.send_raw(switchside.multipart_reply(xid, ofp.OFPMP_FLOW, b"".join(part), more=True))
                part, length = [], 0
            part.append(record)
            length += len(record)
        self.send_raw(switchside.multipart_reply(xid, ofp.OFPMP_FLOW, b"".join(part)))


def _whole(instructions: bytes) -> bool:
    """True if the lengths of the instructions add up."""
    position, size = 0, len(instructions)
    while size - position >= 8:
        length = instructions[position + 2] << 8 | instructions[position + 3]
        if length < 8 or length % 8:
            return False
        position += length
    return position == size
