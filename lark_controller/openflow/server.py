"""The listener: accepts switches over TCP and TLS, one link for each, one datapath id at most once."""

from __future__ import annotations

import asyncio
import logging
import ssl
from typing import Final

from lark_controller.errors import SettingError, SwitchError
from lark_controller.openflow.connection import Connection, OpenFlowOptions
from lark_controller.openflow.handshake import handshake
from lark_controller.openflow.link import SwitchHandler, SwitchLink

_log = logging.getLogger(__name__)

# Switches that are compared at a time: what one holds and should hold takes megabytes meanwhile.
_TURNS: Final = 16
# A switch that takes longer than this (seconds) goes on beside the next, so that none holds up another.
_TURN_SECONDS: Final = 2.0


def tls_context(options: OpenFlowOptions) -> ssl.SSLContext:
    """TLS 1.2 or newer; with a CA, switches must show a certificate. Raises SettingError."""
    if not options.cert or not options.key:
        raise SettingError("listening for OpenFlow over TLS needs a certificate and a key (PEM files)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(options.cert, options.key)
        if options.ca:
            context.load_verify_locations(options.ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (OSError, ssl.SSLError) as error:
        raise SettingError(
            f"OpenFlow certificate {options.cert}, key {options.key}, CA {options.ca or '(none)'}: {error}"
        ) from error
    return context


class _Turn:
    """One switch's turn to be compared, which ends once: by :meth:`end`, or when its time is over."""

    def __init__(self, turns: asyncio.Semaphore) -> None:
        self._turns: asyncio.Semaphore | None = turns
        self._timer = asyncio.get_running_loop().call_later(_TURN_SECONDS, self.end)

    def end(self) -> None:
        """Let the next switch begin."""
        turns, self._turns = self._turns, None
        if turns is not None:
            self._timer.cancel()
            turns.release()


class Server:
    """Listens, and knows every connected switch by datapath id. All of it runs on one event loop."""

    def __init__(self, options: OpenFlowOptions, handler: SwitchHandler) -> None:
        self.options = options
        self.links: dict[int, SwitchLink] = {}
        self.addresses: tuple[tuple[str, int], ...] = ()
        self.tls_addresses: tuple[tuple[str, int], ...] = ()
        self._handler = handler
        self._servers: list[asyncio.Server] = []
        self._open: dict[Connection, SwitchLink] = {}
        self._handshakes: dict[SwitchLink, asyncio.Task[None]] = {}
        self._refused = 0
        self._turns = asyncio.Semaphore(_TURNS)

    async def start(self) -> None:
        """Listen on all addresses, or on none: raises SettingError naming the address at fault."""
        context = tls_context(self.options) if self.options.tls_listen else None
        try:
            self.addresses = await self._listen(self.options.listen, None)
            self.tls_addresses = await self._listen(self.options.tls_listen, context)
        except SettingError:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Close the listeners and every connection; nothing is changed on the switches."""
        for server in self._servers:
            server.close()
        for connection in list(self._open):
            connection.close("the controller stops")
        tasks = list(self._handshakes.values())
        while self._open:  # until the loop has told of every connection that it is lost
            await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        self._servers.clear()

    async def _listen(
        self, addresses: tuple[tuple[str, int], ...], context: ssl.SSLContext | None
    ) -> tuple[tuple[str, int], ...]:
        loop = asyncio.get_running_loop()
        bound: list[tuple[str, int]] = []
        for host, port in addresses:
            try:
                server = await loop.create_server(
                    self._connection,
                    host,
                    port,
                    ssl=context,
                    backlog=1024,
                    ssl_handshake_timeout=self.options.handshake_timeout if context else None,
                )
            except (OSError, OverflowError) as error:
                raise SettingError(f"cannot listen for switches on {host} port {port}: {error}") from error
            self._servers.append(server)
            bound.extend(socket.getsockname()[:2] for socket in server.sockets)
        return tuple(bound)

    def _connection(self) -> Connection:
        return Connection(self.options, self._opened, self._lost)

    def _opened(self, connection: Connection) -> None:
        link = SwitchLink(connection, self._handler)
        self._open[connection] = link
        if len(self._handshakes) >= self.options.max_handshakes:
            self._refused += 1
            if self._refused & (self._refused - 1) == 0:  # the 1st, 2nd, 4th, 8th …: a flood must not fill the log
                _log.warning("%d connections refused: too many unfinished handshakes", self._refused)
            connection.close("too many unfinished handshakes")
            return
        self._handshakes[link] = asyncio.get_running_loop().create_task(self._introduce(link))

    async def _introduce(self, link: SwitchLink) -> None:
        turn: _Turn | None = None
        try:
            await handshake(link)
            await self._turns.acquire()
            turn = _Turn(self._turns)
            self._supersede(link)
            dump = await link.dump()
            if link.closed_because:
                return
            self._supersede(link)
            self.links[link.datapath] = link
            link.ready = True
            self._handler.switch_connected(link, dump)
            _log.info("switch %016x connected from %s", link.datapath, link.connection.address)
            link.when_idle(turn.end)
            turn = None
        except SwitchError as error:
            link.close(str(error))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            _log.exception("switch at %s could not be taken in", link.connection.address)
            link.close(f"internal error: {error}")
        finally:
            self._handshakes.pop(link, None)
            if turn is not None:
                turn.end()

    def _supersede(self, link: SwitchLink) -> None:
        """Close an older connection of the same datapath, before the dump, so that nobody writes between."""
        older = self.links.get(link.datapath)
        if older is None:
            return
        if older.connection.host != link.connection.host:
            _log.warning(
                "datapath %016x connects from %s while connected from %s: the newer one is kept",
                link.datapath, link.connection.address, older.connection.address,
            )  # fmt: skip
        reason = f"superseded by a connection from {link.connection.address}"
        older.close(reason)
        self._gone(older, reason)

    def _lost(self, connection: Connection, reason: str) -> None:
        link = self._open.pop(connection)
        link.lost(reason)
        task = self._handshakes.pop(link, None)
        if task is not None:
            task.cancel()
            _log.info("connection from %s ended before its handshake: %s", connection.address, reason)
        self._gone(link, reason)

    def _gone(self, link: SwitchLink, reason: str) -> None:
        if not link.ready or self.links.get(link.datapath) is not link:
            return
        del self.links[link.datapath]
        link.ready = False
        _log.info("switch %016x is gone: %s", link.datapath, reason)
        try:
            self._handler.switch_gone(link, reason)
        except Exception:
            _log.exception("the end of switch %016x could not be handled", link.datapath)
