"""A fake OpenFlow 1.3 switch over real TCP, for tests and the load generator.

It keeps flows and meters, answers what a switch answers, sends packets through its tables with
:mod:`lark_controller.flows.simulation.simulate`, and misbehaves on demand. Many of them run on one event loop;
:class:`FakeNetwork` is such a loop on a thread of its own.
"""

from __future__ import annotations

import asyncio
import copy
import ssl
import threading
from collections.abc import Callable, Coroutine
from types import TracebackType
from typing import Any, Self, TypeVar, cast

from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.masters import Masters
from fake_switch.switchside import FlowMod
from lark_controller.flows.marker import MARKERS
from lark_controller.flows.model import (
    FIELD_BITS,
    PORT_ANY,
    PORT_NORMAL,
    Flow,
    FlowData,
    FlowKey,
    Output,
    Program,
    SetField,
    Track,
)
from lark_controller.flows.simulation import simulate
from lark_controller.switches.openflow import conntrack_flush as connections
from lark_controller.switches.openflow import wire
from lark_controller.switches.openflow.replies import FlowRecord, FlowRemoved, PacketIn, PortCounters, PortInfo

T = TypeVar("T")


class FakeSwitch(asyncio.Protocol):
    """One switch. Make it, then ``await connect(host, port)``; all of it runs on the loop that connects it.

    ``normal`` False refuses output:NORMAL, ``tracks`` False connection tracking, ``max_meter`` 0 refuses meters,
    ``max_flows`` answers TABLE_FULL beyond. ``hardware`` is its own description, and ``description`` that of its
    datapath. ``knows_roles`` False refuses role requests; ``masters`` are the roles of its controllers, and
    :meth:`another` is its connection to one more of them. ``refused_as_slave`` counts the writes of a slave,
    ``flushes`` the orders to forget connections. ``silent`` connects and sends nothing at all. ``sent`` is called with
    what a PACKET_OUT sends out of a port.
    ``counted`` holds the counters of ports: frames that are injected count there, and tests may set what they like.
    """

    def __init__(
        self,
        datapath: int,
        ports: dict[int, str] | None = None,
        *,
        n_tables: int = 254,
        normal: bool = True,
        tracks: bool = True,
        hardware: str = "fake switch",
        max_meter: int = 1024,
        max_flows: int | None = None,
        silent: bool = False,
        knows_roles: bool = True,
        description: str = "",
    ) -> None:
        self.datapath = datapath
        self.description = description or f"fake {datapath:016x}"
        self.ports = {
            number: PortInfo(number, name, f"02:00:00:00:{number >> 8 & 255:02x}:{number & 255:02x}", True, False)
            for number, name in (ports or {}).items()
        }
        self.tables = simulate.Tables()
        self.connections = simulate.ConnectionTable()
        self.view = simulate.PortView.of(self.ports)
        self.sent: Callable[[int, bytes], None] = lambda _port, _frame: None
        self.received = 0
        self.counted: dict[int, PortCounters] = {}
        self.queued: list[bytes] = []  # records of a reply to OFPMP_QUEUE
        self.barriers = 0
        self.masters = Masters()
        self.refused_as_slave = 0
        self.flushes = 0
        self.closed = asyncio.Event()
        self._n_tables = n_tables
        self._normal = normal
        self._tracks = tracks
        self._hardware = hardware
        self._max_meter = max_meter
        self._max_flows = max_flows
        self._silent = silent
        self._knows_roles = knows_roles
        self._failures: list[tuple[Callable[[FlowMod], bool], int, int]] = []
        self._barriers_held: list[int] | None = None
        self._buffer = bytearray()
        self._transport: asyncio.Transport | None = None
        self._answers = self._all_answers()

    def _all_answers(self) -> dict[int, Callable[[int, bytes], None]]:
        return {
            ofp.OFPT_HELLO: lambda _xid, _message: None,
            ofp.OFPT_ECHO_REQUEST: lambda xid, message: self.send_raw(wire.echo_reply(xid, message[8:])),
            ofp.OFPT_FEATURES_REQUEST: self._features,
            ofp.OFPT_SET_CONFIG: lambda _xid, _message: None,
            ofp.OFPT_FLOW_MOD: self._flow_mod,
            ofp.OFPT_METER_MOD: self._meter_mod,
            ofp.OFPT_PACKET_OUT: self._packet_out,
            ofp.OFPT_BARRIER_REQUEST: lambda xid, _message: self._barrier(xid),
            ofp.OFPT_MULTIPART_REQUEST: self._multipart,
            ofp.OFPT_EXPERIMENTER: self._experimenter,
            ofp.OFPT_ROLE_REQUEST: self._role_request,
        }

    # what tests do with it

    async def connect(
        self, host: str, port: int, context: ssl.SSLContext | None = None, *, own: str | None = None
    ) -> Self:
        """Connect to a controller, from an address of its ``own`` if it has one."""
        self.closed.clear()
        local = None if own is None else (own, 0)
        await asyncio.get_running_loop().create_connection(lambda: self, host, port, ssl=context, local_addr=local)
        return self

    def another(self) -> Self:
        """The same switch, for a connection to one more controller; each counts what comes by it."""
        more = copy.copy(self)
        more.received = more.barriers = more.refused_as_slave = more.flushes = 0
        more.closed = asyncio.Event()
        more._buffer, more._transport, more._barriers_held = bytearray(), None, None
        more._answers = more._all_answers()
        return more

    def disconnect(self) -> None:
        """Close the connection as a switch does that goes away."""
        if self._transport is not None:
            self._transport.close()

    def stall(self) -> None:
        """Stop reading, as a switch whose CPU hangs; the connection stays."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        if self._transport is not None:
            self._transport.resume_reading()

    @property
    def unsent(self) -> int:
        """Bytes that wait to be taken by the controller."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send_raw(self, data: bytes) -> None:
        """Send any bytes."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def fail_on(self, chosen: Callable[[FlowMod], bool], kind: int, code: int) -> None:
        """Answer the flow-mods that ``chosen`` picks with an error, and do not carry them out."""
        self._failures.append((chosen, kind, code))

    def fail_nothing(self) -> None:
        """Take back every ``fail_on``."""
        self._failures.clear()

    def hold_barriers(self) -> None:
        """Answer no barrier until ``release_barriers``."""
        self._barriers_held = []

    def release_barriers(self) -> None:
        """Answer the barriers that were held, and those to come at once."""
        held, self._barriers_held = self._barriers_held or [], None
        for xid in held:
            self._barrier(xid)

    @property
    def program(self) -> Program:
        """The flows and meters of the switch now, without markers."""
        held = self.tables.program()
        return Program({key: data for key, data in held.flows.items() if not _is_marker(data)}, held.meters)

    @property
    def markers(self) -> list[Flow]:
        """The markers of the switch now."""
        return [Flow(key, data) for key, data in self.tables.program().flows.items() if _is_marker(data)]

    def put(self, flow: Flow, packets: int = 0, octets: int = 0) -> None:
        """Put a flow in as if somebody else had. Raises ValueError for one that no switch takes."""
        self.tables.set(flow)
        entry = self.tables.entries[flow.key]
        entry.packets, entry.bytes = packets, octets

    def expire(self, key: FlowKey, reason: int = ofp.OFPRR_IDLE_TIMEOUT) -> None:
        """Remove a flow, and send a FlowRemoved if it has that flag."""
        entry = self.tables.remove(key)
        if entry is not None:
            self._removed(entry, reason)

    def change_port(self, info: PortInfo, reason: int = ofp.OFPPR_MODIFY) -> None:
        """Add, modify or delete a port (OFPPR_*), and send a PortStatus."""
        if reason == ofp.OFPPR_DELETE:
            self.ports.pop(info.number, None)
            self.view.remove(info.number)
            self.counted.pop(info.number, None)
        else:
            self._set_port(info)
        for connection in self.masters.connected():
            connection.send_raw(switchside.port_status(0, info, reason))

    def inject(self, in_port: int, frame: bytes) -> tuple[tuple[int, bytes], ...]:
        """Let a frame in; returns those that leave, each with its port. The controller is sent its own; flows count."""
        passed = self._passed(simulate.run(self.tables, in_port, frame, self.view, self.connections), in_port, frame)
        self._count(in_port, received=len(frame))
        for port, out in passed:
            self._count(port, sent=len(out))
        return passed

    def packet_in(self, packet: PacketIn) -> None:
        """Send a PacketIn, whatever the flows are."""
        self._tell(switchside.packet_in(0, packet))

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._buffer.clear()
        self.masters.opened(self)
        if not self._silent:
            self.send_raw(switchside.hello(0))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._transport = None
        self.masters.closed(self)
        self.closed.set()

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        self.received += len(data)
        if self._silent:
            return
        self._buffer += data
        position = 0
        while len(self._buffer) - position >= 8:
            _, kind, length, xid = wire.HEADER.unpack_from(self._buffer, position)
            if len(self._buffer) - position < length:
                break
            message = bytes(self._buffer[position : position + length])
            position += length
            answer = self._answers.get(kind)
            if self.masters.refuses(self, kind):
                self._refuse_slave(xid, message)
            elif answer is not None:
                answer(xid, message)
            elif kind not in (ofp.OFPT_ERROR, ofp.OFPT_ECHO_REPLY):
                self._error(xid, ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_TYPE, message)
        del self._buffer[:position]

    # answers

    def _error(self, xid: int, kind: int, code: int, message: bytes) -> None:
        self.send_raw(switchside.error(xid, kind, code, message))

    def _tell(self, message: bytes) -> None:
        for connection in self.masters.listening():
            connection.send_raw(message)

    def _refuse_slave(self, xid: int, message: bytes) -> None:
        self.refused_as_slave += 1
        self._error(xid, ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_IS_SLAVE, message)

    def _role_request(self, xid: int, message: bytes) -> None:
        if not self._knows_roles:
            self._error(xid, ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_TYPE, message)
        elif (held := self.masters.ask(self, switchside.decode_role_request(message))) is None:
            self._error(xid, ofp.OFPET_ROLE_REQUEST_FAILED, ofp.OFPRRFC_STALE, message)
        else:
            self.send_raw(switchside.role_reply(xid, held))

    def _features(self, xid: int, _message: bytes) -> None:
        self.send_raw(switchside.features_reply(xid, self.datapath, self._n_tables))

    def _barrier(self, xid: int) -> None:
        if self._barriers_held is not None:
            self._barriers_held.append(xid)
        else:
            self._answer_barrier(xid)

    def _answer_barrier(self, xid: int) -> None:
        self.barriers += 1
        self.send_raw(wire.header(ofp.OFPT_BARRIER_REPLY, xid))

    def _experimenter(self, xid: int, message: bytes) -> None:
        flush = connections.read(message) if self._tracks else None
        if flush is None:
            self._error(xid, ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_EXPERIMENTER, message)
            return
        self.flushes += 1
        if flush.address is None:
            self.connections.flush(flush.zone)
        else:
            self.connections.forget(flush.zone, flush.protocol, flush.address, source=flush.source)

    def _flow_mod(self, xid: int, message: bytes) -> None:
        mod = switchside.decode_flow_mod(message)
        refusal = self._refusal(mod)
        if refusal is not None:
            self._error(xid, *refusal, message)
        elif mod.command == ofp.OFPFC_ADD:
            try:
                self.tables.set(Flow(mod.key, mod.data))
            except ValueError:
                self._error(xid, ofp.OFPET_BAD_MATCH, ofp.OFPBMC_BAD_PREREQ, message)
        elif mod.command == ofp.OFPFC_DELETE_STRICT:
            entry = self.tables.remove(mod.key)
            if entry is not None:
                self._removed(entry, ofp.OFPRR_DELETE)
        else:
            table = None if mod.key.table == ofp.OFPTT_ALL else mod.key.table
            cookie, mask = mod.data.cookie, mod.cookie_mask
            for entry in self.tables.remove_matching(table, mod.key.match, cookie=cookie, cookie_mask=mask):
                self._removed(entry, ofp.OFPRR_DELETE)

    def _refusal(self, mod: FlowMod) -> tuple[int, int] | None:
        for chosen, kind, code in self._failures:
            if chosen(mod):
                return kind, code
        if mod.command != ofp.OFPFC_ADD:
            return None
        if mod.key.table >= self._n_tables:
            return ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_BAD_TABLE_ID
        outputs = [action.port for action in mod.data.actions if isinstance(action, Output)]
        if not self._normal and PORT_NORMAL in outputs:
            return ofp.OFPET_BAD_ACTION, ofp.OFPBAC_BAD_OUT_PORT
        if not self._tracks and any(isinstance(action, Track) for action in mod.data.actions):
            return ofp.OFPET_BAD_ACTION, ofp.OFPBAC_BAD_EXPERIMENTER
        if any(isinstance(action, SetField) and action.name.startswith("unknown:") for action in mod.data.actions):
            return ofp.OFPET_BAD_ACTION, ofp.OFPBAC_BAD_TYPE
        if any(term.name not in FIELD_BITS for term in mod.key.match):
            return ofp.OFPET_BAD_MATCH, ofp.OFPBMC_BAD_FIELD
        if mod.data.goto is not None and not mod.key.table < mod.data.goto < self._n_tables:
            return ofp.OFPET_BAD_INSTRUCTION, ofp.OFPBIC_BAD_TABLE_ID
        if mod.data.meter is not None and mod.data.meter not in self.tables.meters:
            return ofp.OFPET_METER_MOD_FAILED, ofp.OFPMMFC_UNKNOWN_METER
        if self._max_flows is not None and mod.key not in self.tables.entries and len(self.tables) >= self._max_flows:
            return ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_TABLE_FULL
        return None

    def _count(self, number: int, received: int | None = None, sent: int | None = None) -> None:
        if number not in self.ports:
            return
        old = self.counted.get(number) or PortCounters(number, 0, 0, 0, 0, 0, 0, 0.0)
        self.counted[number] = old._replace(
            rx_packets=old.rx_packets + (received is not None),
            rx_bytes=old.rx_bytes + (received or 0),
            tx_packets=old.tx_packets + (sent is not None),
            tx_bytes=old.tx_bytes + (sent or 0),
        )

    def _removed(self, entry: simulate.FlowEntry, reason: int) -> None:
        if entry.data.flags & ofp.OFPFF_SEND_FLOW_REM:
            removed = FlowRemoved(entry.key, entry.data.cookie, reason, entry.packets, entry.bytes, 1.0)
            self._tell(switchside.flow_removed(0, removed, Flow(entry.key, entry.data)))

    def _meter_mod(self, xid: int, message: bytes) -> None:
        command, meter = switchside.decode_meter_mod(message)
        there = meter.number in self.tables.meters
        if command == ofp.OFPMC_DELETE:
            self.tables.meters.pop(meter.number, None)
            for entry in self.tables:
                if entry.data.meter == meter.number:
                    self.expire(entry.key, ofp.OFPRR_DELETE)
        elif meter.number > self._max_meter:
            self._error(xid, ofp.OFPET_METER_MOD_FAILED, ofp.OFPMMFC_INVALID_METER, message)
        elif there and command == ofp.OFPMC_ADD:
            self._error(xid, ofp.OFPET_METER_MOD_FAILED, ofp.OFPMMFC_METER_EXISTS, message)
        elif not there and command == ofp.OFPMC_MODIFY:
            self._error(xid, ofp.OFPET_METER_MOD_FAILED, ofp.OFPMMFC_UNKNOWN_METER, message)
        else:
            self.tables.meters[meter.number] = meter

    def _set_port(self, info: PortInfo) -> None:
        self.ports[info.number] = info
        self.view.ports.add(info.number)
        if info.no_flood:
            self.view.no_flood.add(info.number)
        else:
            self.view.no_flood.discard(info.number)

    def _multipart(self, xid: int, message: bytes) -> None:
        kind = int.from_bytes(message[8:10])
        if kind == ofp.OFPMP_FLOW:
            cookie, mask = int.from_bytes(message[32:40]), int.from_bytes(message[40:48])
            chosen = (
                switchside.flow_record(FlowRecord(entry.key, entry.data, entry.packets, entry.bytes, 1.0))
                for entry in self.tables
                if (entry.data.cookie ^ cookie) & mask == 0
            )
            self.send_raw(switchside.multipart_replies(xid, kind, chosen))
        elif kind == ofp.OFPMP_PORT_DESC:
            self.send_raw(switchside.multipart_replies(xid, kind, map(switchside.port, self.ports.values())))
        elif kind == ofp.OFPMP_DESC:
            texts = ("Lark", self._hardware, "1.3", "0", self.description)
            self.send_raw(switchside.multipart_reply(xid, kind, switchside.description(texts)))
        elif kind in (ofp.OFPMP_METER_FEATURES, ofp.OFPMP_METER_CONFIG) and self._max_meter:
            self._meter_reply(xid, kind)
        elif kind == ofp.OFPMP_PORT_STATS:
            wanted = int.from_bytes(message[16:20])
            found = [
                switchside.port_counters(self.counted.get(number) or PortCounters(number, 0, 0, 0, 0, 0, 0, 0.0))
                for number in self.ports
                if wanted in (number, PORT_ANY)
            ]
            self.send_raw(switchside.multipart_replies(xid, kind, found))
        elif kind == ofp.OFPMP_QUEUE:
            self.send_raw(switchside.multipart_replies(xid, kind, self.queued))
        else:
            self._error(xid, ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_MULTIPART, message)

    def _meter_reply(self, xid: int, kind: int) -> None:
        if kind == ofp.OFPMP_METER_CONFIG:
            records = map(switchside.meter_config, self.tables.meters.values())
            self.send_raw(switchside.multipart_replies(xid, kind, records))
        else:
            self.send_raw(switchside.multipart_reply(xid, kind, switchside.meter_features(self._max_meter)))

    # packets

    def _packet_out(self, _xid: int, message: bytes) -> None:
        out = switchside.decode_packet_out(message)
        result = simulate.run_actions(self.tables, out.in_port, out.data, out.actions, self.view, self.connections)
        for port, frame in self._passed(result, out.in_port, out.data):
            self.sent(port, frame)

    def _passed(self, result: simulate.Result, in_port: int, frame: bytes) -> tuple[tuple[int, bytes], ...]:
        self.tables.count(result.flows, len(frame))
        for sent in result.to_controller:
            metadata = _metadata_at(result, sent.table)
            data = sent.frame[: sent.max_len]
            self.packet_in(PacketIn(sent.cookie, sent.table, sent.reason, in_port, metadata, data))
        return result.outputs


def _is_marker(data: FlowData) -> bool:
    return data.cookie & MARKERS[1] == MARKERS[0]


def _metadata_at(result: simulate.Result, table: int) -> int:
    """The metadata written before ``table``: a table's own write-metadata comes after its apply-actions."""
    metadata = 0
    for hit in result.trace:
        if hit.table == table:
            break
        if hit.data is not None and hit.data.metadata is not None:
            value, mask = hit.data.metadata
            metadata = metadata & ~mask | value & mask
    return metadata


class FakeNetwork:
    """An event loop on a thread of its own, for many fake switches beside a controller in the same process.

    ``with FakeNetwork() as network: network.call(FakeSwitch(1).connect(host, port))``.
    """

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="fake switches", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def call(self, work: Coroutine[Any, Any, T], timeout: float = 30.0) -> T:
        """Run a coroutine on the loop and wait for its result. Raises TimeoutError."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def run(self, function: Callable[[], T], timeout: float = 30.0) -> T:
        """Run a function on the loop and wait for its result. Raises TimeoutError."""

        async def called() -> T:
            return function()

        return self.call(called(), timeout)
