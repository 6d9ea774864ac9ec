"""The listener: accepts switches over TCP and TLS, one link for each, one datapath id at most once.

While the instance stands by, it keeps the switches' connections as a slave's, and makes links of them once it serves.
"""

from __future__ import annotations

import asyncio
import math
import os
import socket
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

from lark_common.errors import SettingError, SwitchError
from lark_common.log import INFO, WARNING, event, failure
from lark_controller.flows.model import Changes
from lark_controller.switches.fence import FENCED, Fence
from lark_controller.switches.openflow.applies import SharedSteps
from lark_controller.switches.openflow.budgets import Arrivals, SwitchTimes
from lark_controller.switches.openflow.connection import READ_BYTES, Connection, OpenFlowOptions
from lark_controller.switches.openflow.dumps import Dump
from lark_controller.switches.openflow.handshake import handshake
from lark_controller.switches.openflow.link import MORE_FLOWS, STOPS, SUPERSEDED, SwitchHandler, SwitchLink
from lark_controller.switches.openflow.newcomer import Newcomer, ReadCounters, identify
from lark_controller.switches.openflow.places import Peer, Places
from lark_controller.switches.openflow.relays import (
    OWN_XIDS,
    Relay,
    Relays,
    Seal,
    Way,
    no_seal,
    read_voucher,
)
from lark_controller.switches.openflow.requests import ReplyRoom
from lark_controller.switches.openflow.strangers import ConnectionLog, UnexpectedSwitches
from lark_controller.switches.openflow.tls_gate import TlsGate, tls_context
from lark_controller.switches.openflow.turns import Turns

# Switches that are asked and compared at a time: what one holds and should hold takes megabytes meanwhile. Fewer while
# connections come of which it is not known whose they are: callers may wait for one of those. One that does not tell
# counts so many seconds.
_TURNS: Final = 16
_TURNS_MEANWHILE: Final = 4
_ARRIVING: Final = 1.0
# Deletions of what a switch should not hold, before it is given up.
_PASSES: Final = 256
# Connections that are taken in before others get their turn, and that may wait for that in the kernel.
_ACCEPTED: Final = 8
_BACKLOG: Final = 1024
_TOO_MANY: Final = "too many switches are kept by an instance that stands by"
_TWICE: Final = "switch connects while it is connected: if that goes on, two have the same datapath id"
_OTHER_WAY: Final = "switch that was handed on comes another way"


class Server:
    """Listens, and keeps every connected switch by datapath id. All of it runs on one event loop.

    Without a ``handler`` it stands by, as a slave of the generation that ``known`` gives, until :meth:`lead` and
    :meth:`serve`. Once the ``fence`` is shut, every connection is closed, and none is taken. ``seal`` is asked for the
    key of the present term, by which instances hand switches on.
    """

    def __init__(
        self,
        options: OpenFlowOptions,
        handler: SwitchHandler | None,
        fence: Fence | None = None,
        known: Callable[[], int] = lambda: 0,
        seal: Callable[[], Seal] = no_seal,
    ) -> None:
        self.options = options
        self._fence = fence or Fence()
        self._seal = seal
        self._known = known
        self._leads = handler is not None
        self._generation = options.generation
        # Switches that are known and not served yet, by datapath id.
        self.kept: dict[int, Newcomer] = {}
        self.links: dict[int, SwitchLink] = {}
        self.addresses: tuple[tuple[str, int], ...] = ()
        self.tls_addresses: tuple[tuple[str, int], ...] = ()
        self.room = ReplyRoom()
        self._shared = SharedSteps()
        self._times = SwitchTimes()
        self._arrivals = Arrivals()
        self._handler = handler
        self._servers: list[asyncio.Server] = []
        self._gate: TlsGate | None = None
        self._open: dict[Connection, Newcomer | SwitchLink | Relay] = {}
        self._handshakes: dict[Connection, asyncio.Task[None]] = {}
        self._handshake_places: Places[Connection] = Places()
        self._kept_places: Places[int] = Places()
        self._unexpected = UnexpectedSwitches(options.max_unexpected)
        self._log = ConnectionLog()
        self._buffer = bytearray(READ_BYTES)
        self.relays = Relays(options, self._fence, seal, self._buffer)
        # Connections that are being identified, since when, in that order.
        self._arriving: dict[Connection, float] = {}
        self._turns = Turns(self._turns_now, lambda: () if self._handler is None else self._handler.waited_for())

    async def start(self) -> None:
        """Listen on all addresses, or on none: raises SettingError naming the address at fault."""
        if self.options.tls_listen:
            context = tls_context(self.options)
            self._gate = TlsGate(context, self._connection, self._log.not_taken_in, self.options.handshake_timeout)
        try:
            self.addresses = await self._listen(self.options.listen, self._connection)
            if self._gate is not None:
                self.tls_addresses = await self._listen(self.options.tls_listen, self._gate.arriving)
        except SettingError:
            await self.stop()
            raise
        self._fence.when_shut(partial(self._close_soon, asyncio.get_running_loop()))

    async def stop(self) -> None:
        """Close the listeners and every connection; nothing is changed on the switches."""
        for server in self._servers:
            server.close()
        if self._gate is not None:
            await self._gate.stop()
        self._close_all(STOPS)
        tasks = list(self._handshakes.values())
        while self._open:  # until the loop has reported the loss of every connection
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._servers.clear()

    def _close_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        # A loop that has ended has closed them.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(self._close_all, FENCED)

    def _close_all(self, reason: str) -> None:
        for connection in list(self._open):
            connection.close(reason)

    async def _listen(
        self, addresses: tuple[tuple[str, int], ...], made: Callable[[], asyncio.BaseProtocol]
    ) -> tuple[tuple[str, int], ...]:
        loop = asyncio.get_running_loop()
        bound: list[tuple[str, int]] = []
        for host, port in addresses:
            try:
                # asyncio takes in as many at a time as its backlog has, before anything else gets its turn.
                server = await loop.create_server(made, host, port, backlog=_ACCEPTED)
            except (OSError, OverflowError) as error:
                raise SettingError(f"cannot listen for switches on {host} port {port}: {error}") from error
            self._servers.append(server)
            for listening in server.sockets:
                _let_wait(listening.fileno(), _BACKLOG)
            bound.extend(each.getsockname()[:2] for each in server.sockets)
        return tuple(bound)

    def _connection(self) -> Connection:
        first = 1 if self._leads else OWN_XIDS
        made = Connection(self.options, self._opened, self._lost, self._buffer, self._fence, first)
        if self._leads:
            made.vouched = self._vouched
        return made

    def _vouched(self, connection: Connection, message: bytes) -> bool:
        """Take a connection for that of the switch which another instance hands on; False where none does."""
        switch = read_voucher(message, self._seal())
        # Over TCP anybody could have seen the message, and use it again.
        if switch is None or connection.through or (switch.tls_name and not connection.tls_name):
            return False
        if any(each.datapath == switch.datapath and not each.connection.through for each in self._open.values()):
            # It has come since it was asked for. Before it is known whose this one is, it would be the master.
            connection.close("the switch is connected by itself")
            return True
        now = asyncio.get_running_loop().time()
        # The arrival is the switch's host's, and not that of the instance between.
        self._arrivals.paid(connection.peer, now)
        connection.address, connection.peer = switch.address, Peer.at(switch.host)
        self._arrivals.wait(connection.peer, now)
        connection.tls_name, connection.through = switch.tls_name, switch.through
        if connection in self._handshake_places:
            self._handshake_places[connection] = connection.peer
        return True

    def present(self) -> frozenset[int]:
        """The switches that are connected to this instance, taken in or not, by datapath id."""
        return frozenset(each.datapath for each in self._open.values())

    def reaches(self, datapath: int) -> bool:
        """True for a switch that is kept, or handed on; from any thread."""
        return datapath in self.kept or self.relays.find(datapath) is not None

    async def hand_on(self, datapaths: Sequence[int], ways: Sequence[Way]) -> None:
        """Hand those of these switches that are kept on to the active instance."""
        found = [self.kept[each] for each in datapaths if each in self.kept]
        await self.relays.begin(found, ways, self._may_be_handed_on, self._handed_on)

    def _may_be_handed_on(self, newcomer: Newcomer) -> bool:
        # A connection whose counters are being read is known meanwhile.
        kept = self.kept.get(newcomer.datapath) is newcomer and not newcomer.connection.known
        return kept and not self._leads

    def _handed_on(self, relay: Relay, newcomer: Newcomer) -> None:
        self._let_go(newcomer, "it is handed on to the active controller")
        self._open[relay.connection] = relay
        relay.connection.time = self._times.of(relay.datapath, asyncio.get_running_loop().time())

    def lead(self, generation: int) -> None:
        """Become the master of all switches that are kept, and of those that come: the term is this instance's. Only
        the first call counts."""
        if self._leads:
            return
        self._generation, self._leads = generation, True
        self.relays.end("this instance has taken over")
        for newcomer in self.kept.values():
            self._begin(newcomer.connection, self._going_on(newcomer))

    async def read_counters(
        self, datapaths: Sequence[int], cookie: int, mask: int, timeout: float, until: float
    ) -> dict[int, ReadCounters | None]:
        """The counters of those of these switches that are kept and answer within ``timeout`` seconds; None of those
        that had no turn, since all ends at ``until``, of the monotonic clock."""
        loop, places = asyncio.get_running_loop(), asyncio.Semaphore(_TURNS)
        found: dict[int, ReadCounters | None] = {}

        async def read(datapath: int) -> None:
            async with places:
                newcomer, left = self.kept.get(datapath), until - loop.time()
                if newcomer is None or self._leads:
                    return
                if left < timeout:
                    found[datapath] = None
                    return
                with suppress(SwitchError):
                    found[datapath] = await newcomer.read_counters(cookie, mask, timeout)

        await asyncio.gather(*map(read, datapaths))
        return found

    def serve(self, handler: SwitchHandler) -> None:
        """Take in the switches that are kept, and those that come; after :meth:`lead`."""
        self._handler = handler
        # First those that are expected: strangers may have had themselves kept for hours, and take their time.
        for newcomer in sorted(self.kept.values(), key=lambda each: not handler.expects(each.datapath)):
            # Of one whose role is asked for, that goes on.
            if newcomer.connection not in self._handshakes:
                self._begin(newcomer.connection, self._going_on(newcomer))

    def _opened(self, connection: Connection) -> None:
        connection.time = self._times.new(asyncio.get_running_loop().time())
        connection.goes_last = partial(self._others_are_waited_for, None)
        newcomer = Newcomer(connection, self.room)
        self._open[connection] = newcomer
        if len(self._handshakes) >= self.options.max_handshakes and not self._make_room(connection.peer):
            self._log.refused()
            connection.close("too many unfinished handshakes")
            return
        wait = self._arrivals.wait(connection.peer, asyncio.get_running_loop().time())
        connection.greets = not wait
        self._begin(connection, self._introduced(newcomer, wait))

    def _begin(self, connection: Connection, way: Coroutine[None, None, None]) -> None:
        """Let a connection go its way to a switch's, which has a place until it ends."""
        self._handshakes[connection] = asyncio.get_running_loop().create_task(way)
        self._handshake_places[connection] = connection.peer

    def _over(self, connection: Connection) -> asyncio.Task[None] | None:
        """Free the place of a connection's way, if it is on one; returns that."""
        self._handshake_places.pop(connection, None)
        return self._handshakes.pop(connection, None)

    def _others_are_waited_for(self, datapath: int | None) -> bool:
        """True while callers wait for switches, and not for this one."""
        handler = self._handler
        if handler is None or (datapath is not None and handler.is_waited_for(datapath)):
            return False
        return any(True for _ in handler.waited_for())

    def _make_room(self, peer: Peer) -> bool:
        """Close the oldest unfinished handshake of those who have most, unless that is this one."""
        oldest = self._handshake_places.to_make_room(peer)
        if oldest is None:
            return False
        # At once, since the loop reports the loss of its connection later.
        if (task := self._over(oldest)) is not None:
            task.cancel()
        self._log.no_switch(oldest, "too many unfinished handshakes of its host")
        oldest.close("too many unfinished handshakes of its host")
        return True

    async def _introduced(self, newcomer: Newcomer, wait: float) -> None:
        await self._until_end(newcomer, self._introduce(newcomer, wait))

    async def _going_on(self, newcomer: Newcomer) -> None:
        await self._until_end(newcomer, self._go_on(newcomer))

    async def _until_end(self, newcomer: Newcomer, way: Coroutine[None, None, None]) -> None:
        """Bring a connection a part of its way, and close it where it cannot go on."""
        connection = newcomer.connection
        try:
            await way
        except SwitchError as error:
            self._log.no_switch(connection, str(error))
            connection.close(str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            failure("switch could not be taken in", error, address=connection.address)
            connection.close(f"internal error: {error}")
        finally:
            self._over(connection)

    async def _introduce(self, newcomer: Newcomer, wait: float) -> None:
        connection = newcomer.connection
        if wait:
            await asyncio.sleep(wait)
            connection.greet()
        self._arriving[connection] = asyncio.get_running_loop().time()
        try:
            if self._leads:
                await identify(newcomer, self._generation)
            elif generation := self._known():
                await identify(newcomer, generation, slave=True)
            else:
                raise SwitchError("this instance stands by, and has read of no term yet")
        finally:
            del self._arriving[connection]
        if self._handler is None:
            self._keep(newcomer)
        if self._leads:
            await self._go_on(newcomer)

    def _keep(self, newcomer: Newcomer) -> None:
        """Keep a switch for the time in which this instance has the term. Raises SwitchError."""
        older = self.kept.get(newcomer.datapath) or self.relays.find(newcomer.datapath)
        if older is not None:
            _check_name(older.connection, newcomer)
            older.connection.close(f"{SUPERSEDED} {newcomer.connection.address}")
        elif len(self.kept) >= self.options.max_kept:
            of_most = self._kept_places.to_make_room(newcomer.connection.peer)
            if of_most is None:
                raise SwitchError(_TOO_MANY)
            holder = self.kept[of_most]
            holder.connection.close(_TOO_MANY)
            # At once, since the loop reports the loss of its connection later.
            self._let_go(holder, _TOO_MANY)
        self.kept[newcomer.datapath] = newcomer
        self._kept_places[newcomer.datapath] = newcomer.connection.peer
        newcomer.connection.is_logged = self._log.has_line_for(newcomer.connection.peer)
        event(
            "switch is kept",
            level=newcomer.connection.level(INFO),
            datapath=_dpid(newcomer.datapath),
            address=newcomer.connection.address,
        )

    async def _go_on(self, newcomer: Newcomer) -> None:
        """Become the master of a switch that is identified, and take it in once this instance serves."""
        if newcomer.mastership.is_slave and (role := newcomer.mastership.ask(self._generation)) is not None:
            await newcomer.mastership.take(role)
        if self._handler is None:
            return
        if self.kept.get(newcomer.datapath) is newcomer:
            del self.kept[newcomer.datapath], self._kept_places[newcomer.datapath]
        await self._take_in(newcomer, self._handler)

    async def _take_in(self, newcomer: Newcomer, handler: SwitchHandler) -> None:
        """Ask a switch for all, and report it as connected. Raises SwitchError."""
        connection = newcomer.connection
        now = asyncio.get_running_loop().time()
        self._unexpected.check(newcomer.datapath, connection.peer.network, handler.expects, now)
        link = SwitchLink(newcomer, handler, self._shared)
        link.check_ports = partial(self._unexpected.check_ports, link.datapath, handler.expects)
        self._open[connection] = link
        connection.known = True
        # Once each: a pool's switches may all come from behind one address, and none of them again and again.
        if link.datapath not in self._times and handler.expects(link.datapath):
            self._arrivals.paid(connection.peer, now)
        connection.time = self._times.of(link.datapath, now)
        connection.goes_last = partial(self._others_are_waited_for, link.datapath)
        turn = await self._turns.take(link.datapath)
        with ExitStack() as ends:
            ends.callback(turn.end)
            await handshake(link)
            await turn.step()
            # Messages on their way through an older connection may come after the marker that was read.
            fresh = not self._supersede(link)
            dump = None if fresh and handler.holds(link) else await turn.before_step(self._dump(link))
            if link.closed_because:
                return
            self._supersede(link)
            link.begin()
            self.links[link.datapath] = link
            connection.is_logged = self._log.has_line_for(connection.peer)
            event(
                "switch connected",
                level=connection.level(INFO),
                datapath=_dpid(link.datapath),
                address=connection.address,
                through=connection.through or None,
            )
            handler.switch_connected(link, dump)
            link.when_idle(ends.pop_all().close)

    def _turns_now(self) -> int:
        """The number of switches that are taken in at a time now."""
        latest = next(reversed(self._arriving.values()), -math.inf)
        return _TURNS_MEANWHILE if asyncio.get_running_loop().time() - latest < _ARRIVING else _TURNS

    async def _dump(self, link: SwitchLink) -> Dump:
        """All of Lark's own flows on a switch. Raises SwitchError.

        Where it holds many more than it should, what is too much is removed as it comes, so that no dump need be kept
        whole.
        """
        more = MORE_FLOWS
        for _ in range(_PASSES):
            dump = await link.dump(foreign=False, more=more)
            if dump.whole or link.closed_because:
                return dump
            gone = link.handler.leftovers(link, dump)
            # Where all of it should be there, the expectation was too small.
            more = MORE_FLOWS if gone else 2 * more
            outcome = await link.apply(Changes(flows_gone=tuple(gone)))
            if not outcome.confirmed:
                raise SwitchError(f"flows that should not be there: {outcome.reason}")
        raise SwitchError(f"flows that should not be there are left after {_PASSES} deletions")

    def _supersede(self, link: SwitchLink) -> bool:
        """Close an older connection of the same datapath, before the dump, so that nothing is written between;
        True where there was one. Raises SwitchError where this one may not take its place."""
        older = self.links.get(link.datapath)
        if older is None:
            return False
        _check_name(older.connection, link)
        usual = bool(older.connection.through)
        event(
            _OTHER_WAY if usual else _TWICE,
            level=older.connection.level(INFO if usual else WARNING),
            datapath=_dpid(link.datapath),
            kept=link.connection.address,
            closed=older.connection.address,
        )
        reason = f"{SUPERSEDED} {link.connection.address}"
        older.close(reason)
        self._gone(older, reason)
        return True

    def _lost(self, connection: Connection, reason: str) -> None:
        holder = self._open.pop(connection)
        holder.lost(reason)
        self._let_go(holder, reason)
        if (task := self._over(connection)) is not None:
            task.cancel()
            self._log.no_switch(connection, reason)
        if isinstance(holder, SwitchLink):
            self._gone(holder, reason)

    def _let_go(self, holder: Newcomer | SwitchLink | Relay, reason: str) -> None:
        """Keep a connection no longer, if it is kept."""
        kept = self.kept.get(holder.datapath)
        if kept is holder:
            del self.kept[kept.datapath], self._kept_places[kept.datapath]
            level = kept.connection.level(INFO)
            event("switch is kept no longer", level=level, datapath=_dpid(kept.datapath), reason=reason)

    def _gone(self, link: SwitchLink, reason: str) -> None:
        if not link.ready or self.links.get(link.datapath) is not link:
            return
        del self.links[link.datapath]
        link.ready = False
        level = link.connection.level(INFO if reason in (STOPS, FENCED) else WARNING)
        event("switch gone", level=level, datapath=_dpid(link.datapath), reason=reason)
        try:
            link.handler.switch_gone(link, reason)
        except Exception as error:
            failure("the end of a switch could not be handled", error, datapath=_dpid(link.datapath))


def _check_name(older: Connection, newer: Newcomer | SwitchLink) -> None:
    """Raise SwitchError where the older connection of a datapath has shown another certificate: a client with one
    switch's certificate could pose as every other. It goes on once the older one is gone."""
    name = older.tls_name
    if name not in ("", newer.connection.tls_name):
        held = _dpid(newer.datapath)
        raise SwitchError(f"datapath {held} is connected with the certificate of {name}, which this is not")


def _let_wait(descriptor: int, count: int) -> None:
    """Let the kernel keep so many connections for a socket that listens already."""
    with socket.socket(fileno=os.dup(descriptor)) as same:
        same.listen(count)


def _dpid(datapath: int) -> str:
    return f"{datapath:016x}"
