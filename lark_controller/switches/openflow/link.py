"""One connected switch, for the reconcile loop. Everything here is called on the OpenFlow loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import Final, Protocol

from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_common.limits import Bucket
from lark_common.log import failure
from lark_common.runs import Address
from lark_controller.flows import cookies
from lark_controller.flows.marker import MARKERS, NO_PROGRAM, Marker, read_marker
from lark_controller.flows.model import Action, Changes, FlowData, FlowKey, Meter, Program
from lark_controller.flows.simulation.packet import TCP, UDP
from lark_controller.switches.openflow import conntrack_flush as connections
from lark_controller.switches.openflow import replies, roles, wire
from lark_controller.switches.openflow.applies import Applies, FlowError, Outcome, SharedSteps, Step
from lark_controller.switches.openflow.budgets import PacketInBudget
from lark_controller.switches.openflow.counter_requests import CounterRequests
from lark_controller.switches.openflow.dumps import Dump, FlowDigest, Held
from lark_controller.switches.openflow.features import SwitchFeatures
from lark_controller.switches.openflow.newcomer import Newcomer
from lark_controller.switches.openflow.oxm import WireError
from lark_controller.switches.openflow.ports import Ports
from lark_controller.switches.openflow.replies import (
    FlowRecord,
    FlowRemoved,
    MeterCounters,
    PacketIn,
    PortInfo,
    QueueCounters,
)
from lark_controller.switches.openflow.requests import Bound, Records

_REPLIES: Final = frozenset({ofp.OFPT_FEATURES_REPLY, ofp.OFPT_MULTIPART_REPLY, ofp.OFPT_ROLE_REPLY})
Counters = dict[FlowKey, tuple[int, int]]
# A switch has no more ports than this.
_MOST_PORTS: Final = 65_536
# Telling what changed of a switch's ports takes so small a part of the loop's time at most.
_PORTS_SHARE: Final = 0.1
# Errors that belong to nothing that was sent: so many a second are looked at, so many at once.
_STRAY_ERRORS: Final = 1.0
_STRAY_ERRORS_AT_ONCE: Final = 20.0
# Flows that are kept of a dump beyond those that were to be expected, and meters.
MORE_FLOWS: Final = 2048
_MOST_METERS: Final = 8192
# A switch has one marker; a few more may come of its tables' being written by others.
_MOST_MARKERS: Final = 16
_KEY_OF: Final = attrgetter("key")
# The cookie in a PacketIn, and behind it the port, with which the match begins.
_COOKIE_TO_PORT: Final = slice(16, 36)
# The part of PacketIns that ICMP errors about external addresses have beside the others, and how their cookies begin.
_ICMP_SHARE: Final = 0.1
_ICMP_ERRORS: Final = cookies.cookie(cookies.Category.EXTERNAL).to_bytes(8)[:3]


# Beginning of the reason when another connection has the switch's datapath id; that connection's address follows.
SUPERSEDED: Final = "superseded by a connection from"
# Reason where the controller itself ends the connection, because it stops.
STOPS: Final = "the controller stops"


class SwitchHandler(Protocol):
    """Events of the switches, called on the OpenFlow loop's thread.

    No method may wait. An exception from one that concerns a connected switch closes that switch's connection.
    """

    def waited_for(self) -> Iterable[int]:
        """The datapaths of the switches that callers wait for now, which are taken in first."""

    def is_waited_for(self, datapath: int) -> bool:
        """True for one of those."""

    def expects(self, datapath: int) -> bool:
        """True for a switch that is declared or has jobs."""

    def flows_expected(self, link: SwitchLink) -> int:
        """The number of Lark's own flows that a switch is to be expected to hold, rather too many than too few."""

    def holds(self, link: SwitchLink) -> bool:
        """True where the marker of a switch, which is not reported as connected yet, shows that it holds what it
        should."""

    def leftovers(self, link: SwitchLink, dump: Dump) -> list[FlowKey]:
        """The flows of a dump that a switch should not hold; it is not reported as connected yet."""

    def switch_connected(self, link: SwitchLink, dump: Dump | None) -> None:
        """Handles a new switch: features known, complete dump taken, or none where its marker shows what it holds. Of a
        datapath connected already, the old is gone."""

    def switch_gone(self, link: SwitchLink, reason: str) -> None:
        """Handles the loss of a switch that was reported as connected."""

    def packet_in(self, link: SwitchLink, packet: PacketIn) -> None:
        """Handles a PacketIn."""

    def flow_removed(self, link: SwitchLink, removed: FlowRemoved) -> None:
        """Handles the end of a flow with FLAG_SEND_FLOW_REM, which is gone from the switch."""

    def ports_changed(self, link: SwitchLink) -> None:
        """Handles a change of ``link.features.ports``."""

    def switch_error(self, link: SwitchLink, error: FlowError) -> None:
        """Handles an error that no outcome names: of a change whose time was over, or of nothing that is known."""


class SwitchLink(CounterRequests):
    """A connected switch, from the moment in which it was identified. Futures end by their timeout or when the switch
    goes, never later.

    All links of a loop have one ``shared``.
    """

    features: SwitchFeatures

    def __init__(self, newcomer: Newcomer, handler: SwitchHandler, shared: SharedSteps | None = None) -> None:
        self.connection = connection = newcomer.connection
        self.known = newcomer.features
        self.datapath = newcomer.datapath
        self._shared = shared or SharedSteps()
        self.requests = newcomer.requests
        self.ready = False
        self.handler = handler
        self.mastership = newcomer.mastership
        self._applies = Applies(connection, self.mastership.is_proven)
        self.mastership.resume = self._applies.pump
        # Whether it may have markers (until it was asked, it may), and the one that it has, with its table.
        self._marked = True
        self.marker: tuple[Marker, int] | None = None
        self._takes_markers = True
        self.changed_at = 0.0
        # Seconds of a clock that only goes on.
        self.began = now = asyncio.get_running_loop().time()
        rate, burst = connection.options.packet_in_rate, connection.options.packet_in_burst
        self._packet_ins = PacketInBudget(rate, burst, now)
        # Errors from outside take nothing from jobs' first packets.
        self._icmp_errors = PacketInBudget(rate * _ICMP_SHARE, max(1.0, burst * _ICMP_SHARE), now)
        self._stray_errors = Bucket(_STRAY_ERRORS, _STRAY_ERRORS_AT_ONCE, now)
        # Called with the number of ports, and True once the handler has them in the place of those before. Raises
        # WireError where that is too much.
        self.check_ports: Callable[[int, bool], None] = lambda _count, _reported: None
        # Changes of ports that are not reported yet: the port, or None for one that is gone. The ports without them,
        # and how many there are with them.
        self._ports: dict[int, PortInfo | None] = {}
        self._ports_before = Ports()
        self._port_count = 0
        self._ports_timer: asyncio.TimerHandle | None = None
        self._ports_from = 0.0
        connection.receive = self._receive
        connection.drops = self._drops
        connection.writable = self._applies.pump
        self.write: Callable[[bytes], None] = connection.write
        self.next_xid: Callable[[], int] = connection.next_xid

    @property
    def closed_because(self) -> str:
        """The reason why the connection was closed; ``""`` while it is open."""
        return self.connection.closed_because

    @property
    def packet_ins_dropped(self) -> int:
        """The number of PacketIns that were dropped, because the switch sent too many."""
        return self._packet_ins.dropped

    def close(self, reason: str) -> None:
        """Disconnect the switch; ``switch_gone`` follows."""
        self.connection.close(reason)

    def apply(self, changes: Changes, timeout: float | None = None) -> asyncio.Future[Outcome]:
        """Send a change: meters, barrier, flows set, flows gone, barrier, meters gone, barrier.

        Changes may overlap; they are sent in the order of the calls. ``timeout`` in seconds, None for the option. A
        marker goes first, before a barrier, unless it stands for no program and the change is none.
        """
        self.changed_at = asyncio.get_running_loop().time()
        steps = self._shared.of(changes)
        if not changes and self.marker is not None and self.marker[0].fingerprint == NO_PROGRAM:
            return self._submit(steps, timeout)
        return self._submit(chain(self._without_marker(), steps), timeout)

    def _without_marker(self) -> Iterator[Step]:
        # When the steps are sent, not when they are queued: a change of which nothing was sent in time is dropped.
        if self._marked:
            self._marked, self.marker = False, None
            cookie, mask = MARKERS
            yield None, partial(wire.flows_delete, cookie=cookie, mask=mask)
            yield None, None

    @property
    def may_be_marked(self) -> bool:
        """True where the switch has no marker and takes one, and no change is under way."""
        return not (self._marked or self.closed_because) and self._takes_markers and self._applies.idle

    async def find_markers(self, timeout: float) -> None:
        """Ask for the markers of the switch. Raises SwitchError."""
        bound = Bound(1, _MOST_MARKERS, cut=True, key=_KEY_OF)
        found = await self._flow_stats("markers", *MARKERS, timeout, bound)
        self._marked = bool(found)
        marker = read_marker(found[0].key.match, found[0].data.cookie) if len(found) == 1 else None
        self.marker = None if marker is None else (marker, found[0].key.table)

    def mark(self, marker: Marker) -> asyncio.Future[Outcome]:
        """Set a marker, in the table of which the handshake has found that it may be there."""
        assert self.features.spare_table is not None
        flow = marker.flow(self.features.spare_table)
        self._marked, self.marker = True, (marker, flow.key.table)
        sent = self.send([(flow.key, partial(wire.flow_add, flow=flow))])
        sent.add_done_callback(self._marker_sent)
        return sent

    def _marker_sent(self, done: asyncio.Future[Outcome]) -> None:
        if not done.cancelled() and done.result().errors:
            self._marked, self.marker, self._takes_markers = False, None, False

    def when_idle(self, then: Callable[[], None]) -> None:
        """Calls ``then`` once no change is under way: confirmed, or the switch is gone (at once if that is so now)."""
        self._applies.when_idle(then)

    def send(self, steps: list[Step], timeout: float | None = None) -> asyncio.Future[Outcome]:
        """Send single messages in order, then a barrier; errors are tied to the subject given with each."""
        return self._submit(iter(steps), timeout)

    def forget_connections(self, zone: int, others: int, addresses: Iterable[Address]) -> asyncio.Future[Outcome]:
        """Let connection tracking forget addresses in ``zone``, and the zone ``others`` whole.

        A switch too old to forget single addresses forgets both zones whole. What is sent later waits until the switch
        has shown that this instance is its master: it would not refuse a slave.
        """

        def refused(done: asyncio.Future[Outcome]) -> None:
            if not done.cancelled() and done.result().errors:
                self._submit(iter([(None, lambda xid: connections.flush_zone(xid, zone))]), None, guarded=True)

        steps: list[Step] = [
            (None, partial(connections.flush, zone=zone, address=address, protocol=protocol, source=source))
            for address in addresses
            for protocol in (TCP, UDP)
            for source in (True, False)
        ]
        steps.append((None, lambda xid: connections.flush_zone(xid, others)))
        sent = self._submit(iter(steps), None, guarded=True)
        sent.add_done_callback(refused)
        return sent

    def packet_out(self, in_port: int, actions: tuple[Action, ...], data: bytes) -> None:
        """Send a frame out through actions; its departure is not confirmed."""
        self.write(wire.packet_out(self.next_xid(), in_port, actions, data))

    async def dump(
        self,
        timeout: float | None = None,
        job: int | None = None,
        *,
        foreign: bool = True,
        more: int = MORE_FLOWS,
        digest: FlowDigest | None = None,
    ) -> Dump:
        """Dump the switch, and add its flows to a ``digest``; with ``job`` that job's own flows and counting flows
        alone, without ``foreign`` Lark's own flows alone. ``more`` flows are kept beyond those expected.

        Raises SwitchError: a dump of which a part is missing is none.
        """
        limit = self.connection.options.dump_timeout if timeout is None else timeout
        masks = cookies.of_job(job) if job is not None else ((0, 0),) if foreign else (cookies.OURS,)
        expected = self.handler.flows_expected(self)
        bound = Bound(expected, expected + more, cut=True, key=_KEY_OF)
        flows = [self._flow_stats("flow dump", value, mask, limit, bound, digest) for value, mask in masks]
        parts: list[asyncio.Future[Records[FlowRecord]] | asyncio.Future[list[Meter]]] = [*flows]
        meters = self._meters(limit) if job is None else None
        if meters is not None:
            parts.append(meters)
        await asyncio.gather(*parts, return_exceptions=True)
        found = meters.result() if meters is not None else []
        own: dict[FlowKey, FlowData] = {}
        others: dict[FlowKey, FlowData] = {}
        counters: Counters = {}
        for record in (record for part in flows for record in part.result()):
            if cookies.parse(record.data.cookie).category == cookies.Category.MARKER:
                self._marked = True
                continue
            if cookies.is_ours(record.data.cookie):
                own[record.key] = record.data
            else:
                others[record.key] = record.data
            counters[record.key] = (record.packets, record.bytes)
        whole = all(part.result().whole for part in flows)
        return Dump(Program(own, {meter.number: meter for meter in found}), others, counters, whole)

    async def held(self) -> Held | None:
        """Read a digest of Lark's own flows and of the meters; None where the switch holds more than is kept of a dump.
        Raises SwitchError."""
        limit, digest, (cookie, mask) = self.connection.options.dump_timeout, FlowDigest(), cookies.OURS
        build, bound = partial(wire.flow_stats_request, cookie=cookie, mask=mask), replace(self.counted(), cut=True)
        flows = self.requests.collect_some("flow digest", ofp.OFPMP_FLOW, build, digest.read, limit, bound)
        meters = self._meters(limit)
        await asyncio.gather(*(each for each in (flows, meters) if each is not None), return_exceptions=True)
        found = [] if meters is None else meters.result()
        self._marked |= digest.marked
        return digest.held(found) if flows.result().whole else None

    async def counters(self, cookie: int = 0, mask: int = 0, timeout: float | None = None) -> Counters:
        """Packets and bytes of the flows whose cookie agrees with ``cookie`` in the bits of ``mask``.

        Raises SwitchError where no complete answer comes.
        """
        limit = self.connection.options.dump_timeout if timeout is None else timeout
        records = await self._flow_stats("counters", cookie, mask, limit, self.counted())
        return {record.key: (record.packets, record.bytes) for record in records}

    @property
    def decoding(self) -> float:
        """Seconds that decoding multipart replies has taken since the connection was made."""
        return self.requests.decoding

    async def meter_stats(self, timeout: float | None = None) -> dict[int, MeterCounters]:
        """The counters of all meters, by number. Raises SwitchError."""
        limit = self.connection.options.dump_timeout if timeout is None else timeout
        build = wire.meter_stats_request
        found = await self.requests.collect("meter counters", ofp.OFPMP_METER, build, replies.meter_stats, limit)
        return {counters.number: counters for counters in found}

    async def queue_stats(self, timeout: float | None = None) -> list[QueueCounters]:
        """The counters of all queues of all ports. Raises SwitchError."""
        limit = self.connection.options.dump_timeout if timeout is None else timeout
        build = wire.queue_stats_request
        return await self.requests.collect("queue counters", ofp.OFPMP_QUEUE, build, replies.queue_stats, limit)

    # for the server

    def set_ports(self, ports: list[PortInfo]) -> Ports:
        """The ports of the handshake's reply with the changes that came while it was under way."""
        return self._with_changes(ports)

    def begin(self) -> None:
        """Report the switch from now on, with the changes of its ports that came meanwhile."""
        if self._ports:
            self.features = replace(self.features, ports=self._with_changes(self.features.ports.values()))
        self.check_ports(self._port_count, True)
        self.ready = True

    def lost(self, reason: str) -> None:
        """Ends everything under way, since the connection is gone."""
        if self._ports_timer is not None:
            self._ports_timer.cancel()
        self.requests.fail(reason)
        self._applies.fail(reason)

    # inside

    def _submit(
        self, steps: Iterator[Step], timeout: float | None, *, guarded: bool = False
    ) -> asyncio.Future[Outcome]:
        limit = self.connection.options.apply_timeout if timeout is None else timeout
        return self._applies.submit(steps, limit, guarded=guarded)

    def _meters(self, limit: float) -> asyncio.Future[list[Meter]] | None:
        """The meters of a switch that has any."""
        if not self.features.max_meter:
            return None
        build, bound = wire.meter_config_request, Bound(most=_MOST_METERS)
        return self.requests.collect("meter dump", ofp.OFPMP_METER_CONFIG, build, replies.meter_config, limit, bound)

    def _flow_stats(
        self, what: str, cookie: int, mask: int, limit: float, bound: Bound, digest: FlowDigest | None = None
    ) -> asyncio.Future[Records[FlowRecord]]:
        build = partial(wire.flow_stats_request, cookie=cookie, mask=mask)
        decode: Callable[[bytes], list[FlowRecord]] = partial(replies.flow_stats, chosen=(cookie, mask))
        if digest is not None:
            decode = digest.beside(decode)
        return self.requests.collect_some(what, ofp.OFPMP_FLOW, build, decode, limit, bound)

    def counted(self) -> Bound:
        """The bound on flows of Lark's own in an answer."""
        expected = self.handler.flows_expected(self)
        return Bound(expected, expected + MORE_FLOWS)

    def _receive(self, kind: int, xid: int, message: bytes) -> bool:
        if kind == ofp.OFPT_PACKET_IN:
            return self._packet_in(message)
        if kind == ofp.OFPT_BARRIER_REPLY:
            return self._applies.barrier(xid)
        if kind in _REPLIES:
            return self.requests.reply(kind, xid, message)
        if kind == ofp.OFPT_ERROR:
            return self._error(xid, message)
        if kind == ofp.OFPT_PORT_STATUS:
            self._port_status(*replies.port_status(message))
        elif kind == ofp.OFPT_FLOW_REMOVED:
            if self.ready:
                self.handler.flow_removed(self, replies.flow_removed(message))
        elif kind == ofp.OFPT_EXPERIMENTER and (role := roles.status(message)) is not None:
            self.mastership.notified(role)
        return False

    def _budget(self, whose: bytes) -> tuple[PacketInBudget, bytes]:
        """The budget of a PacketIn by its cookie and port, and the one who has a part of it: a port, or the job that an
        ICMP error is about."""
        return (self._icmp_errors, whose[:8]) if whose[:3] == _ICMP_ERRORS else (self._packet_ins, whose[12:])

    def _drops(self, whose: bytes, now: float) -> bool:
        if not self.ready:
            return False
        budget, one = self._budget(whose)
        return budget.refuses(one, now)

    def _packet_in(self, message: bytes) -> bool:
        budget, one = self._budget(message[_COOKIE_TO_PORT])
        if self.ready and budget.admit(one, asyncio.get_running_loop().time()):
            self.handler.packet_in(self, replies.packet_in(message))
        return False

    def _error(self, xid: int, message: bytes) -> bool:
        error = replies.error(message)
        if self.mastership.is_refused(error):
            self._applies.hold()
            return False
        tied, named = self._applies.error(xid, error)
        if named or self.requests.error(xid, error):
            return True
        if self.ready and self._stray_errors.take_whole(asyncio.get_running_loop().time()):
            self.handler.switch_error(self, tied)
        return False

    def _port_status(self, port: PortInfo, present: bool) -> None:
        number = port.number
        there = self._ports[number] is not None if number in self._ports else number in self._ports_before
        self._ports[port.number] = port if present else None
        if len(self._ports) > _MOST_PORTS:
            raise WireError(f"more than {_MOST_PORTS} ports")
        self._port_count += present - there
        self.check_ports(self._port_count, False)
        if self.ready and self._ports_timer is None:
            # At once where the last time is long over: many changes in a row are one.
            self._ports_timer = asyncio.get_running_loop().call_at(self._ports_from, self._report_ports)

    def _report_ports(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        self._ports_timer = None
        if self.closed_because:
            return
        try:
            self.features = replace(self.features, ports=self._with_changes(self.features.ports.values()))
            self.handler.ports_changed(self)
            self.check_ports(self._port_count, True)
        except WireError as error:
            self.close(f"garbage: {error}")
        except Exception as error:
            failure("a change of a switch's ports could not be handled", error, address=self.connection.address)
            self.close(f"internal error on a change of ports: {error}")
        now = loop.time()
        self._ports_from = now + (now - started) / _PORTS_SHARE

    def _with_changes(self, before: Iterable[PortInfo]) -> Ports:
        ports: dict[int, PortInfo | None] = {port.number: port for port in before}
        ports |= self._ports
        self._ports.clear()
        now = Ports(port for port in ports.values() if port is not None)
        if len(now) > _MOST_PORTS:
            raise WireError(f"more than {_MOST_PORTS} ports")
        self._ports_before, self._port_count = now, len(now)
        self.check_ports(self._port_count, False)
        return now
