"""One switch's TCP connection: framing, keepalive, and an outbox with a bound and a timeout. It has no part in flows.

All connections live on one event loop. Nothing here waits: a switch that stops reading fills its own outbox and is
disconnected, one that floods is read in portions between which all others get their turn.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, cast

from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_common.limits import Bucket
from lark_common.log import DEBUG, failure
from lark_common.sending import send_at_once
from lark_controller.switches.fence import FENCED, Fence
from lark_controller.switches.openflow import wire
from lark_controller.switches.openflow.budgets import (
    LEAST_PAUSE,
    LONGEST_PUT_OFF,
    LOOK_AGAIN,
    SwitchTimes,
)
from lark_controller.switches.openflow.oxm import WireError
from lark_controller.switches.openflow.places import Peer

# Messages handled for one switch before the loop turns to the others, and after how many seconds it turns earlier. The
# time is looked at once in so many messages that are dropped.
_MESSAGES_A_TURN: Final = 128
_SECONDS_A_TURN: Final = 0.002
_DROPPED_AT_ONCE: Final = 64
# Seconds that a PacketIn takes at most, unless it is made to take long.
_REACTION: Final = 0.001
# Bytes that are read at a time, and of a connection that is no switch's yet. Its messages that are longer are not kept:
# none that it needs to become one is.
READ_BYTES: Final = 1 << 18
NEW_BYTES: Final = 4096
# Payload of echo requests that is sent back, in bytes a second and at once. Whoever asks for more gets no answer to it.
_ECHO_RATE: Final = 16384.0
_ECHO_AT_ONCE: Final = 131_072.0
# Where the cookie stands in a PacketIn, and behind it the port, with which the match begins.
_COOKIE_TO_PORT: Final = 16, 36
_MAX_XID: Final = 0xFFFFFFFF

# Seconds by which the loop may look at a connection too late before it takes the silence for its own.
LATE: Final = 1.0
# Beginning of the reason where the other end has closed the connection.
CLOSED: Final = "closed by the switch"


@dataclass(frozen=True, slots=True)
class OpenFlowOptions:
    """Addresses to listen on, and limits of time and memory. Times in seconds.

    ``listen`` and ``tls_listen`` are (host, port) pairs, port 0 for any. ``cert`` and ``key`` are PEM files that TLS
    needs; with ``ca`` switches must show a certificate signed by it. ``echo_interval`` without a message leads to an
    echo request, ``echo_timeout`` more to disconnection. ``handshake_timeout`` is for each step from the accepted
    connection up to the dump, ``dump_timeout`` for a complete dump. A switch that takes nothing from its outbox for
    ``write_timeout``, or has ``outbox_bytes`` waiting, is disconnected. ``max_handshakes`` bounds the connections that
    have not finished their handshake; further ones are closed at once. ``max_kept`` bounds the switches that are kept
    while this instance stands by, ``max_unexpected`` those that are taken in although neither policy nor jobs name
    them; a quarter of them may come from one host. Of each switch ``packet_in_rate`` PacketIns a second are looked at,
    and ``packet_in_burst`` at once. ``generation`` is the term of this instance among several, with which it asks every
    switch to be its master; 0 is none, and switches are asked for no role.
    """

    listen: tuple[tuple[str, int], ...] = (("127.0.0.1", 6653),)
    tls_listen: tuple[tuple[str, int], ...] = ()
    cert: str | None = None
    key: str | None = None
    ca: str | None = None
    echo_interval: float = 5.0
    echo_timeout: float = 10.0
    handshake_timeout: float = 10.0
    dump_timeout: float = 60.0
    write_timeout: float = 10.0
    outbox_bytes: int = 8 << 20
    apply_timeout: float = 10.0
    max_handshakes: int = 4096
    max_kept: int = 16_384
    max_unexpected: int = 16_384
    packet_in_rate: float = 2000.0
    packet_in_burst: int = 20_000
    generation: int = 0


class Connection(asyncio.BufferedProtocol):
    """The transport of one switch. ``receive`` gets every whole message (type, xid, bytes) but echoes.

    ``receive`` returns True where a request waited for the message. A switch that has used up its ``time`` is not read
    for a while, and a bit longer while ``goes_last`` is True. ``drops`` is called with cookie to port and the time of
    each PacketIn before it is decoded: True drops it. An exception from ``receive`` closes this connection with one log
    record and touches no other. ``lost`` is called once, with the reason, when the connection is gone. ``writable`` is
    called when the outbox has emptied again, ``full`` when bytes stay behind in it. ``vouched`` may take one message of
    an experimenter before HELLO, of which it returns True. ``through`` is the name of the instance that hands this one
    on, ``""`` without one. ``tls_name`` is the common name in the switch's certificate, ``""``
    without one, ``peer`` the other end as limits count it. All connections of the loop are read into one ``buffer``.
    ``known`` is True once this one belongs to a switch; until then little of it is kept. HELLO is sent at once unless
    ``opened`` sets ``greets`` to False. Nothing is sent once the ``fence`` is shut.
    """

    def __init__(
        self,
        options: OpenFlowOptions,
        opened: Callable[[Connection], None],
        lost: Callable[[Connection, str], None],
        buffer: bytearray | None = None,
        fence: Fence | None = None,
        first_xid: int = 1,
    ) -> None:
        self.options = options
        self.fence = fence or Fence()
        self.known = False
        self.greets = True
        self.receive: Callable[[int, int, bytes], bool] = lambda _kind, _xid, _message: False
        self.writable: Callable[[], None] = lambda: None
        self.full: Callable[[], None] = lambda: None
        self.vouched: Callable[[Connection, bytes], bool] = lambda _self, _message: False
        self.goes_last: Callable[[], bool] = lambda: False
        self.drops: Callable[[bytes, float], bool] = lambda _whose, _now: False
        self.address = "?"
        self.peer = Peer.at("?")
        self.tls_name = ""
        self.through = ""
        # False where switches of its host come and go so often that they would fill the log.
        self.is_logged = True
        self.closed_because = ""
        self.paused = False
        self._opened = opened
        self._lost = lost
        self._greeted = False
        self._buffer = memoryview(bytearray(READ_BYTES) if buffer is None else buffer)
        self._pending = bytearray()
        self._needed = 8
        self._skipped = 0
        self._portion_due = False
        self._held = b""
        self._held_at = 0
        self._portion_timer: asyncio.TimerHandle | None = None
        # A portion that is due may be put off until then.
        self._put_off_until = 0.0
        # The loop's time with reading, since it was paid for, and the beginning of it.
        self._read = 0.0
        self._reads_at = 0.0
        self._written = 0
        # The socket of a connection without TLS.
        self._plain: socket.socket | None = None
        # Bytes of the present turn, and how many.
        self._outbox: list[bytes] = []
        self._outbox_size = 0
        self._xid = first_xid - 1
        self._on_hold = False
        self._last_received = 0.0
        self._keepalive: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    @property
    def host(self) -> str:
        """The address of the other end, without its port."""
        return self.peer.host

    # asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        # Any byte left in user space starts the write timer: the kernel's own buffer is allowance enough. Not high=0,
        # with which asyncio's TLS transport reports "full" when nothing waits.
        self._transport.set_write_buffer_limits(high=1, low=0)
        if transport.get_extra_info("sslcontext") is None:
            self._plain = transport.get_extra_info("socket")
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = Peer.at(str(peer[0]))
            self.address = f"[{peer[0]}]:{peer[1]}" if ":" in self.peer.host else f"{peer[0]}:{peer[1]}"
        self.tls_name = _common_name(transport.get_extra_info("peercert"))
        self._last_received = self._loop.time()
        self.time = SwitchTimes().new(self._last_received)
        self._echoes = Bucket(_ECHO_RATE, _ECHO_AT_ONCE, self._last_received)
        self._keepalive = self._loop.call_later(self.options.echo_interval, self._keep_alive)
        self._opened(self)
        if self.greets:
            self.greet()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the loop."""
        self._stop_timers()
        if not self.closed_because:
            self.closed_because = f"connection lost: {exc}" if exc else CLOSED
        if (self._pending or self._held) and self.closed_because == CLOSED:
            self.closed_because = f"{CLOSED} in the middle of a message"
        self._lost(self, self.closed_because)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Called by the loop, which reads then."""
        self._reads_at = self._loop.time()
        return self._buffer if self.known else self._buffer[:NEW_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Called by the loop."""
        self._read += self._loop.time() - self._reads_at
        self.data_received(bytes(self._buffer[:nbytes]))

    def data_received(self, data: bytes) -> None:
        """Handle bytes of the switch; the rest of an incomplete message is kept."""
        if self.closed_because:
            return
        self._last_received = self._loop.time()
        if self._skipped:
            skipped = min(self._skipped, len(data))
            self._skipped -= skipped
            data = data[skipped:]
        if self._pending or self._portion_due:
            self._pending += data
            if self._portion_due or len(self._pending) < self._needed:
                return
            data = bytes(self._pending)
            self._pending.clear()
        self._process(data)

    def pause_writing(self) -> None:
        """Called by the loop when bytes stay behind in the outbox."""
        self.paused = True
        self._watch_writes()
        self.full()

    def resume_writing(self) -> None:
        """Called by the loop when the outbox is empty."""
        self.paused = False
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None
        if not self.closed_because:
            self.writable()

    # for the link

    def greet(self) -> None:
        """Send HELLO."""
        self.write(wire.hello(self.next_xid()))

    @property
    def last_xid(self) -> int:
        """The transaction id that was given last."""
        return self._xid

    def level(self, level: int) -> int:
        """The level of a line in the log about this connection's switch that is usually of ``level``."""
        return level if self.is_logged else DEBUG

    def hold(self) -> None:
        """Read nothing more until :meth:`go_on`; a portion that was read is still handled."""
        if not self.closed_because:
            self._on_hold = True
            self._transport.pause_reading()

    def go_on(self) -> None:
        """Read again."""
        if self._on_hold and not self.closed_because:
            self._on_hold = False
            self._last_received = self._loop.time()
            if not self._portion_due:
                self._transport.resume_reading()

    def next_xid(self) -> int:
        """A transaction id, unique among the last four billion of this connection; never 0."""
        self._xid = self._xid % _MAX_XID + 1
        return self._xid

    def write(self, data: bytes) -> None:
        """Put bytes in the outbox; after the connection was closed, nothing happens.

        All of one turn is handed over at its end: each hand-over is a system call, after which the thread waits for
        those that calculate meanwhile.
        """
        if self.closed_because or self._transport.is_closing():
            return
        if self._waiting() + len(data) > self.options.outbox_bytes:
            self.close(f"outbox of {self.options.outbox_bytes} bytes is full: the switch reads too slowly")
            return
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(data)
        self._outbox_size += len(data)

    def _flush(self) -> None:
        if self.fence.is_shut:
            self.close(FENCED)
            return
        data, self._outbox, self._outbox_size = b"".join(self._outbox), [], 0
        # A transport that failed is closing, and logs each further write until the loop reports its loss.
        if data and not self._transport.is_closing():
            self._written += len(data)
            if self._plain is not None and not self._transport.get_write_buffer_size():
                data = data[send_at_once(self._plain.fileno(), data) :]
            if data:
                self._transport.write(data)

    def _waiting(self) -> int:
        return self._transport.get_write_buffer_size() + self._outbox_size

    def close(self, reason: str, last: bytes = b"") -> None:
        """Close at once, or after ``last`` has been sent; ``lost`` follows from the loop."""
        if self.closed_because:
            if not last:
                self._transport.abort()
            return
        if last:
            self.write(last)
            self._flush()
        self.closed_because = reason
        self._stop_timers()
        if last:
            self._transport.close()
            self._write_timer = self._loop.call_later(self.options.write_timeout, self._transport.abort)
        else:
            self._transport.abort()

    # inside

    def _process(self, data: bytes, position: int = 0) -> None:
        size, handled, dropped = len(data), 0, 0
        started = now = self._loop.time()
        answers = reacted = 0.0
        self._needed = 8
        first, last = _COOKIE_TO_PORT
        full = False
        while size - position >= 8:
            version, kind, length, xid = wire.HEADER.unpack_from(data, position)
            if length < 8:
                self.close(f"garbage: a message of length {length}")
                return
            if version != wire.VERSION and kind != ofp.OFPT_HELLO:
                self.close(f"garbage: a message of OpenFlow version 0x{version:02x}")
                return
            if size - position < length:
                if not self.known and length > NEW_BYTES:
                    self._skipped, position = length - (size - position), size
                else:
                    self._needed = length
                break
            if handled == _MESSAGES_A_TURN or now - started >= _SECONDS_A_TURN:
                # The rest stays where it is, so that many small portions copy nothing.
                self._held, self._held_at = data, position
                full = True
                break
            if kind == ofp.OFPT_PACKET_IN and self.drops(data[position + first : position + last], now):
                position += length
                dropped += 1
                if dropped % _DROPPED_AT_ONCE == 0:
                    now = self._loop.time()
                continue
            before = now
            solicited = self._message(kind, xid, data[position : position + length])
            if self.closed_because:
                return
            now = self._loop.time()
            if solicited:
                answers += now - before
            elif kind == ofp.OFPT_PACKET_IN:
                reacted += now - before
            position += length
            handled += 1
        if position < size and not full:
            self._pending += data[position:]
        now = self._loop.time()
        # PacketIns have a budget of their own, unless more of them wait than one portion, or they take long.
        unsolicited = max(0.0, now - started - answers - (0.0 if full else min(reacted, handled * _REACTION)))
        reading, self._read = self._read, 0.0
        if answers > unsolicited:
            answers += reading
        else:
            unsolicited += reading
        pause = self.time.take(unsolicited, answers, now)
        if full or pause > 0:
            self._pause_reading(pause)

    def _pause_reading(self, seconds: float) -> None:
        """Let other connections have their turn, and read on after ``seconds`` (0: at once)."""
        self._transport.pause_reading()
        self._portion_due = True
        if seconds > 0:
            due = self._loop.time() + max(seconds, LEAST_PAUSE)
            self._put_off_until = due + LONGEST_PUT_OFF
            self._portion_timer = self._loop.call_at(due, self._next_portion)
        else:
            self._put_off_until = 0.0
            self._loop.call_soon(self._next_portion)

    def _next_portion(self) -> None:
        if self.closed_because:
            return
        if self._loop.time() < self._put_off_until and self.goes_last():
            self._portion_timer = self._loop.call_later(LOOK_AGAIN, self._next_portion)
            return
        self._portion_due = False
        self._last_received = self._loop.time()
        data, position = self._held, self._held_at
        self._held, self._held_at = b"", 0
        if self._pending:
            data, position = data[position:] + bytes(self._pending), 0
            self._pending.clear()
        self._process(data, position)
        if not self._portion_due and not self._on_hold and not self.closed_because:
            self._transport.resume_reading()

    def _message(self, kind: int, xid: int, message: bytes) -> bool:
        """Handle one message; returns True if it was waited for or paid for otherwise."""
        if not self._greeted and kind == ofp.OFPT_EXPERIMENTER and self.vouched(self, message):
            return False
        if not self._greeted and kind != ofp.OFPT_HELLO:
            self.close(f"garbage: message type {kind} before HELLO")
            return False
        if kind == ofp.OFPT_HELLO:
            self._greeted = True
        elif kind == ofp.OFPT_ECHO_REQUEST:
            self._answer_echo(xid, message[8:])
            return False
        elif kind == ofp.OFPT_ECHO_REPLY:
            return False
        try:
            return self.receive(kind, xid, message)
        except WireError as error:
            self.close(f"garbage: {error}")
        except Exception as error:
            failure("a switch's message could not be handled", error, address=self.address, type=kind)
            self.close(f"internal error on message type {kind}: {error}")
        return False

    def _answer_echo(self, xid: int, payload: bytes) -> None:
        now = self._loop.time()
        if payload and self._echoes.left(now) < len(payload):
            return
        self._echoes.take(len(payload), now)
        self.write(wire.echo_reply(xid, payload))

    def _keep_alive(self) -> None:
        options = self.options
        now = self._loop.time()
        silent = now - self._last_received
        if self._keepalive is not None and now - self._keepalive.when() > LATE:
            # It was this process that stood still: its switches were asked nothing, and are now.
            silent = min(silent, options.echo_interval)
        reads = not (self._portion_due or self._on_hold)
        if silent >= options.echo_interval + options.echo_timeout and reads:
            self.close(f"no answer for {silent:.1f} s")
            return
        delay = options.echo_interval - silent
        if delay <= 0:
            self.write(wire.echo_request(self.next_xid()))
            # One that is not read may be silent for longer, and is asked no more often for it.
            left = options.echo_interval + options.echo_timeout - silent if reads else options.echo_interval
            delay = min(options.echo_interval, max(left, 0.001))
        if not self.closed_because:
            self._keepalive = self._loop.call_later(delay, self._keep_alive)

    def _watch_writes(self) -> None:
        flushed = self._written - self._transport.get_write_buffer_size()
        self._write_timer = self._loop.call_later(self.options.write_timeout, self._check_writes, flushed)

    def _check_writes(self, flushed: int) -> None:
        waiting = self._transport.get_write_buffer_size()
        if self._written - waiting > flushed:
            self._watch_writes()
        else:
            self.close(f"stopped reading: {waiting} bytes waited {self.options.write_timeout:g} s")

    def _stop_timers(self) -> None:
        for timer in (self._keepalive, self._write_timer, self._portion_timer):
            if timer is not None:
                timer.cancel()
        self._keepalive = self._write_timer = self._portion_timer = None


def _common_name(certificate: dict[str, Any] | None) -> str:
    for part in (certificate or {}).get("subject", ()):
        for name, value in part:
            if name == "commonName":
                return str(value)
    return ""
