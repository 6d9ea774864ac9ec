"""TLS handshakes of switches that connect, a bounded number at a time.

A connection whose handshake is not over takes a third of a megabyte and is nobody's yet, so few have a place for
theirs. The others wait as bare sockets, and the oldest of those who have most places makes room for others.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from asyncio import sslproto
from collections import Counter, deque
from collections.abc import Callable
from functools import partial
from typing import Final, cast

from lark_common.errors import SettingError
from lark_common.exhausted import exhausted
from lark_common.log import failure
from lark_controller.switches.openflow.connection import OpenFlowOptions
from lark_controller.switches.openflow.places import Peer, Places

# Handshakes at a time, and sockets that wait for theirs: all switches of a large pool, when the controller is back.
PLACES: Final = 64
_WAITING: Final = 4096
# Bytes that asyncio reads at a time, into a buffer that each connection has as long as it lives. Its own quarter of a
# megabyte would be a gigabyte for 4,000 switches; no record of TLS is longer than this.
_BUFFER: Final = 16_384 + 256
sslproto.SSLProtocol.max_size = _BUFFER


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


class TlsGate:
    """Takes connections in over TLS: ``made`` makes the protocol of each, ``refused`` is called with peer and reason
    where there is no handshake. ``limit`` is the seconds for one."""

    def __init__(
        self,
        context: ssl.SSLContext,
        made: Callable[[], asyncio.BaseProtocol],
        refused: Callable[[Peer, str], None],
        limit: float,
        places: int = PLACES,
    ) -> None:
        self._context = context
        self._made = made
        self._refused = refused
        self._limit = limit
        self._places = places
        self._under_way: Places[asyncio.Task[bool]] = Places()
        self._waiting: deque[tuple[socket.socket, Peer]] = deque()

    def arriving(self) -> asyncio.Protocol:
        """The protocol of a connection that is accepted now."""
        return _Arriving(self._arrived)

    async def stop(self) -> None:
        """Close every connection that is not taken in yet."""
        while self._waiting:
            self._waiting.popleft()[0].close()
        tasks = list(self._under_way)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _arrived(self, plain: socket.socket, peer: Peer) -> None:
        if len(self._under_way) < self._places or self._make_room(peer):
            self._begin(plain, peer)
        elif len(self._waiting) < _WAITING:
            self._waiting.append((plain, peer))
        else:
            plain.close()
            self._refused(peer, "too many unfinished TLS handshakes")

    def _make_room(self, peer: Peer) -> bool:
        """End the oldest handshake of those who have most of them, unless it is this one."""
        oldest = self._under_way.to_make_room(peer)
        if oldest is None:
            return False
        whose = self._under_way.pop(oldest)
        oldest.cancel()
        self._refused(whose, "too many unfinished TLS handshakes of its host")
        return True

    def _begin(self, plain: socket.socket, peer: Peer) -> None:
        task = asyncio.get_running_loop().create_task(self._secure(plain, peer))
        self._under_way[task] = peer
        task.add_done_callback(partial(self._over, plain))

    def _over(self, plain: socket.socket, task: asyncio.Task[bool]) -> None:
        self._under_way.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            failure("a TLS handshake could not be made", error)
        if task.cancelled() or error is not None or not task.result():
            plain.close()
        if self._waiting and len(self._under_way) < self._places:
            self._begin(*self._next())

    def _next(self) -> tuple[socket.socket, Peer]:
        """The first that waits, of those who have fewest places: by network, then by host."""
        networks = Counter(peer.network for peer in self._under_way.values())
        hosts = Counter(peer.host for peer in self._under_way.values())
        # Mostly the first: each switch is a host of its own.
        free = next((place for place, (_, peer) in enumerate(self._waiting) if not networks[peer.network]), None)

        def taken(place: int) -> tuple[int, int]:
            peer = self._waiting[place][1]
            return networks[peer.network], hosts[peer.host]

        place = min(range(len(self._waiting)), key=taken) if free is None else free
        found = self._waiting[place]
        del self._waiting[place]
        return found

    async def _secure(self, plain: socket.socket, peer: Peer) -> bool:
        """Make one handshake; False where it came to no end."""
        taking = asyncio.get_running_loop().connect_accepted_socket
        try:
            await taking(self._made, plain, ssl=self._context, ssl_handshake_timeout=self._limit)
        except OSError as error:
            self._refused(peer, f"TLS: {getattr(error, 'reason', None) or str(error) or 'no handshake'}")
            return False
        return True


class _Arriving(asyncio.Protocol):
    """Hands the socket of an accepted connection on, so that its handshake begins when there is a place for it."""

    def __init__(self, arrived: Callable[[socket.socket, Peer], None]) -> None:
        self._arrived = arrived

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        peer = transport.get_extra_info("peername")
        try:
            plain = socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno()))
        except OSError as error:
            exhausted("OpenFlow over TLS", error)
        else:
            plain.setblocking(False)
            self._arrived(plain, Peer.at(str(peer[0]) if peer else "?"))
        # The loop closes its own descriptor alone.
        cast(asyncio.Transport, transport).abort()
