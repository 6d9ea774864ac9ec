"""Simulates a switch on a packet: OpenFlow 1.3 tables, Open vSwitch's NORMAL and ``ct``, on real bytes or on fields.

The tables themselves are in :mod:`.classifier`, connections in
:mod:`.conntrack`. Follows OpenFlow 1.3.5, sections 5.1 to 5.12, and where that leaves a choice,
Open vSwitch: there is no output to the port that a packet came from but by IN_PORT, a miss without a flow is a drop,
actions after ``ct(table=...)`` see the packet as it was before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from lark_controller.flows.model import (
    CT_EST,
    CT_NEW,
    CT_TRK,
    PORT_ALL,
    PORT_CONTROLLER,
    PORT_FLOOD,
    PORT_IN_PORT,
    PORT_NORMAL,
    PORT_TABLE,
    VLAN_PRESENT,
    Action,
    FlowData,
    FlowKey,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    SetQueue,
)
from lark_controller.flows.simulation import packet
from lark_controller.flows.simulation.classifier import FlowEntry, Tables
from lark_controller.flows.simulation.conntrack import ConnectionTable

__all__ = [
    "REASON_ACTION",
    "REASON_NO_MATCH",
    "ConnectionTable",
    "FlowEntry",
    "Hit",
    "PortView",
    "Result",
    "Tables",
    "ToController",
    "run",
    "run_actions",
    "run_fields",
]

# Why a packet went to the controller (OpenFlow 1.3.5, section 7.4.1).
REASON_NO_MATCH: Final = 0
REASON_ACTION: Final = 1

_MULTICAST: Final = 1 << 40
# 01:80:c2:00:00:00 to 0f are for bridges themselves and never forwarded (IEEE 802.1Q, table 8-1).
_RESERVED: Final = 0x0180C2000000 >> 4
_TPID: Final = 0x8100
_MAX_PASSES: Final = 64
# Ports that a packet leaves by, counted as often as it does: more than any switch has, and less than a broken one's
# flows may ask for.
_MAX_OUTPUTS: Final = 16_384
# The metadata of a packet, beside its bytes.
_PIPELINE: Final = ("in_port", "metadata", "ct_state", "ct_mark")


@dataclass(slots=True)
class PortView:
    """A bridge's ports: those that exist, those with NO_FLOOD, and what NORMAL has learned. Mutable.

    ``fdb`` maps (VLAN number, MAC) to a port; VLAN 0 is untagged. A bridge with a LOCAL port has PORT_LOCAL in
    ``ports``.
    """

    ports: set[int] = field(default_factory=set)
    no_flood: set[int] = field(default_factory=set)
    fdb: dict[tuple[int, int], int] = field(default_factory=dict)

    @staticmethod
    def of(ports: Iterable[int], no_flood: Iterable[int] = ()) -> PortView:
        """A view of these ports that has learned nothing yet."""
        return PortView(set(ports), set(no_flood))

    def remove(self, port: int) -> None:
        """Take a port away, with all that was learned on it."""
        self.ports.discard(port)
        self.no_flood.discard(port)
        for key in [key for key, where in self.fdb.items() if where == port]:
            del self.fdb[key]


class Hit(NamedTuple):
    """A table that the packet went through and the flow that it met there; both None where no flow matched."""

    table: int
    key: FlowKey | None
    data: FlowData | None


class ToController(NamedTuple):
    """A packet handed to the controller: REASON_NO_MATCH or REASON_ACTION, from which table, and the frame by then."""

    reason: int
    table: int
    frame: bytes
    cookie: int
    max_len: int


@dataclass(frozen=True, slots=True)
class Result:
    """The result of a packet.

    ``outputs`` are (port, frame) in order; ``queues`` (None: default) and ``headers`` (fields as sent) run beside it.
    ``meters`` are the meters passed; rates are not modelled. ``dropped_by`` is the flow at which a packet ended that
    went nowhere (None where it went somewhere, or ended in a table miss). ``flooded`` is true where NORMAL had not
    learned the destination.
    """

    outputs: tuple[tuple[int, bytes], ...]
    trace: tuple[Hit, ...]
    to_controller: tuple[ToController, ...] = ()
    dropped_by: FlowKey | None = None
    meters: tuple[int, ...] = ()
    queues: tuple[int | None, ...] = ()
    headers: tuple[Mapping[str, int], ...] = ()
    flooded: bool = False

    @property
    def dropped(self) -> bool:
        """True where the packet reached neither a port nor the controller."""
        return not self.outputs and not self.to_controller

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that the packet left by, in order."""
        return tuple(port for port, _ in self.outputs)

    @property
    def flows(self) -> tuple[FlowKey, ...]:
        """The flows that the packet met, in order (for :meth:`Tables.count`)."""
        return tuple(hit.key for hit in self.trace if hit.key is not None)


def run(
    tables: Tables,
    in_port: int,
    frame: bytes,
    ports: PortView,
    ct: ConnectionTable | None = None,
    *,
    learn: bool = True,
) -> Result:
    """A frame that arrives at ``in_port``.

    ``tables`` are not changed (count with :meth:`Tables.count`); ``ct`` takes in what is committed, and with ``learn``
    NORMAL's forwarding database in ``ports`` the source. Without ``ct`` every packet is a new connection.
    """
    passage = _Passage(tables, in_port, ports, ct, learn)
    passage.enter(0, _Packet(frame, packet.parse(frame) | {"in_port": in_port}))
    return passage.result()


def run_actions(
    tables: Tables,
    in_port: int,
    frame: bytes,
    actions: Sequence[Action],
    ports: PortView,
    ct: ConnectionTable | None = None,
    *,
    learn: bool = True,
) -> Result:
    """A packet-out (OpenFlow 1.3.5, section 7.3.7): the actions alone, of which an output to TABLE enters table 0.

    ``in_port`` is the port that the packet counts as received from, or PORT_CONTROLLER.
    """
    passage = _Passage(tables, in_port, ports, ct, learn)
    passage.apply(actions, _Packet(frame, packet.parse(frame) | {"in_port": in_port}), 0, None)
    passage.drain()
    return passage.result()


def run_fields(tables: Tables, fields: Mapping[str, int], ports: PortView, ct_new: bool = True) -> Result:
    """Header fields instead of a frame (``in_port`` among them); the frames in the result are empty.

    Nothing is learned or committed. ``ct_new`` is true where ``ct`` finds a new connection, not an established one.
    """
    passage = _Passage(tables, fields["in_port"], ports, None, False, CT_TRK | (CT_NEW if ct_new else CT_EST))
    passage.enter(0, _Packet(None, dict(fields)))
    return passage.result()


@dataclass(slots=True)
class _Packet:
    """A packet on its way: bytes (None where only fields are known), fields with pipeline fields, chosen queue."""

    frame: bytes | None
    fields: dict[str, int]
    queue: int | None = None

    def copy(self) -> _Packet:
        return _Packet(self.frame, dict(self.fields), self.queue)

    def reparse(self) -> None:
        assert self.frame is not None
        kept = {name: self.fields[name] for name in _PIPELINE if name in self.fields}
        self.fields = packet.parse(self.frame) | kept


@dataclass(slots=True)
class _Passage:
    """One packet's way through the tables, with what it has left behind."""

    tables: Tables
    in_port: int
    view: PortView
    ct: ConnectionTable | None
    learn: bool
    ct_state: int = CT_TRK | CT_NEW
    outputs: list[tuple[int, bytes]] = field(default_factory=list)
    queues: list[int | None] = field(default_factory=list)
    headers: list[Mapping[str, int]] = field(default_factory=list)
    trace: list[Hit] = field(default_factory=list)
    controller: list[ToController] = field(default_factory=list)
    meters: list[int] = field(default_factory=list)
    waiting: deque[tuple[int, _Packet]] = field(default_factory=deque)
    passes: int = 0
    flooded: bool = False

    def result(self) -> Result:
        gone = not self.outputs and not self.controller
        return Result(
            outputs=tuple(self.outputs),
            trace=tuple(self.trace),
            to_controller=tuple(self.controller),
            dropped_by=self.trace[-1].key if gone and self.trace else None,
            meters=tuple(self.meters),
            queues=tuple(self.queues),
            headers=tuple(self.headers),
            flooded=self.flooded,
        )

    def enter(self, table: int, one: _Packet) -> None:
        self.waiting.append((table, one))
        self.drain()

    def drain(self) -> None:
        """Run what waits to enter a table; a loop (``ct`` back to its own table) ends after a fixed number."""
        while self.waiting:
            table, one = self.waiting.popleft()
            self.passes += 1
            if self.passes <= _MAX_PASSES:
                self._pipeline(table, one)

    def _pipeline(self, start: int, one: _Packet) -> None:
        table: int | None = start
        while table is not None:
            entry = self.tables.lookup(table, one.fields)
            if entry is None:
                self.trace.append(Hit(table, None, None))
                return
            data = entry.data
            self.trace.append(Hit(table, entry.key, data))
            if data.meter is not None:
                self.meters.append(data.meter)
            self.apply(data.actions, one, table, entry)
            if data.metadata is not None:
                value, mask = data.metadata
                one.fields["metadata"] = one.fields.get("metadata", 0) & ~mask | value & mask
            table = data.goto

    def _wait(self, table: int, one: _Packet) -> None:
        """Have a packet enter a table later, unless as many do as may."""
        if self.passes + len(self.waiting) <= _MAX_PASSES:
            self.waiting.append((table, one.copy()))

    def apply(self, actions: Sequence[Action], one: _Packet, table: int, entry: FlowEntry | None) -> None:
        """Apply actions in order (OpenFlow 1.3.5, section 5.11)."""
        for action in actions:
            if isinstance(action, Output):
                self._output(action, one, table, entry)
            elif isinstance(action, SetField):
                self._set_field(action, one)
            elif isinstance(action, SetQueue):
                one.queue = action.queue
            elif isinstance(action, PushVlan):
                self._push(action, one)
            elif isinstance(action, PopVlan):
                self._pop(one)
            else:
                state = self.ct_state
                mark = 0
                if self.ct is not None and one.frame is not None:
                    state = self.ct.track(action.zone, one.frame, commit=action.commit, mark=action.mark)
                    mark = self.ct.mark(action.zone, one.frame)
                if action.table is not None:
                    again = one.copy()
                    again.fields |= {"ct_state": state, "ct_mark": mark}
                    self._wait(action.table, again)

    def _set_field(self, action: SetField, one: _Packet) -> None:
        if action.name == "vlan_vid":
            # A tag is needed first (OpenFlow 1.3.5, section 7.2.3.7); a switch refuses such a flow beforehand.
            if not one.fields.get("vlan_vid", 0) & VLAN_PRESENT:
                return
            value = VLAN_PRESENT | action.value & 0xFFF
        else:
            value = action.value
        if one.frame is not None:
            if action.name not in one.fields:
                return
            one.frame = packet.rewrite(one.frame, action.name, value)
        one.fields[action.name] = value

    def _push(self, action: PushVlan, one: _Packet) -> None:
        if one.frame is not None:
            one.frame = packet.push_vlan(one.frame, action.ethertype)
            one.reparse()
        elif not one.fields.get("vlan_vid", 0):
            one.fields["vlan_vid"] = VLAN_PRESENT

    def _pop(self, one: _Packet) -> None:
        """Take the tag off; a second tag behind it stays the ethertype, as Open vSwitch has it (vlan-limit 1)."""
        if one.frame is not None:
            one.frame = packet.pop_vlan(one.frame)
        one.fields["vlan_vid"] = 0

    def _output(self, action: Output, one: _Packet, table: int, entry: FlowEntry | None) -> None:
        port = action.port
        if port == PORT_CONTROLLER:
            miss = entry is not None and entry.key.priority == 0 and not entry.key.match
            reason = REASON_NO_MATCH if miss else REASON_ACTION
            cookie = entry.data.cookie if entry is not None else (1 << 64) - 1
            self.controller.append(ToController(reason, table, one.frame or b"", cookie, action.max_len))
        elif port == PORT_TABLE:
            self._wait(0, one)
        elif port == PORT_NORMAL:
            self._normal(one)
        elif port == PORT_FLOOD:
            self._send((each for each in sorted(self.view.ports - self.view.no_flood) if each != self.in_port), one)
        elif port == PORT_ALL:
            self._send((each for each in sorted(self.view.ports) if each != self.in_port), one)
        elif port == PORT_IN_PORT:
            self._send((self.in_port,), one)
        elif port != self.in_port:
            self._send((port,), one)

    def _send(self, ports: Iterable[int], one: _Packet) -> None:
        for port in ports:
            if len(self.outputs) == _MAX_OUTPUTS:
                return
            if port in self.view.ports:
                self.outputs.append((port, one.frame or b""))
                self.queues.append(one.queue)
                self.headers.append(dict(one.fields))

    def _normal(self, one: _Packet) -> None:
        """A learning switch per VLAN (IEEE 802.1D, section 7), as Open vSwitch does it for trunk ports."""
        destination, source = one.fields.get("eth_dst", 0), one.fields.get("eth_src", 0)
        if destination >> 4 == _RESERVED or self.in_port not in self.view.ports:
            return
        if one.fields.get("eth_type") == _TPID and not one.fields.get("vlan_vid"):
            return
        vlan = one.fields.get("vlan_vid", 0) & 0xFFF
        if self.learn and not source & _MULTICAST:
            self.view.fdb[(vlan, source)] = self.in_port
        where = None if destination & _MULTICAST else self.view.fdb.get((vlan, destination))
        if where is not None and where in self.view.ports:
            self._send((where,) if where != self.in_port else (), one)
            return
        self.flooded = True
        self._send((each for each in sorted(self.view.ports - self.view.no_flood) if each != self.in_port), one)
