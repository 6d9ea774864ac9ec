"""Switches that reach an instance which stands by and not the active one: their messages pass through to it.

The instance that stands by opens a connection to the active one's listener for each. First it sends a message of its
own, with the switch's datapath id, its address and the name in its certificate, and a code (HMAC) by the key of the
present term. Then each message of one connection is written to the other. HELLO and echoes are each connection's own,
so that either side notices by itself where the other has gone. For the switch it is the connection that it had: the
active one becomes its master there, with its generation, as everywhere.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
import struct
from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Final, NamedTuple

from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_common.errors import SwitchError
from lark_common.log import INFO, WARNING, event
from lark_controller.switches.fence import Fence
from lark_controller.switches.openflow.connection import CLOSED, NEW_BYTES, Connection, OpenFlowOptions
from lark_controller.switches.openflow.newcomer import Newcomer
from lark_controller.switches.openflow.wire import header

# The experimenter and type of the first message, which no switch gets: "Lark" in ASCII.
_VOUCHER: Final = struct.Struct("!II")
_EXPERIMENTER: Final = 0x4C61726B, 1
_PURPOSE: Final = b"lark relay 1\n"
_CODE_BYTES: Final = hashlib.sha256().digest_size
# Transaction ids of an instance that stands by begin here, so that a late answer to it is nobody else's.
OWN_XIDS: Final = 1 << 31
# Seconds in which such an answer may come.
_LATE_SECONDS: Final = 60.0
# Connections that are opened at a time, and seconds for one.
_AT_ONCE: Final = 16
_CONNECT_SECONDS: Final = 3.0
# One that ended sooner is tried again after so many seconds.
AGAIN_SECONDS: Final = 30.0

ENDED: Final = "the active controller has closed the way to it"
OTHER_TERM: Final = "the term of the controller that it was handed on to is over"


class Way(NamedTuple):
    """A listener of the active instance: where it is reached, and the name in its certificate, ``""`` without TLS."""

    host: str
    port: int
    name: str = ""


class Vouched(NamedTuple):
    """A switch, and the other end of its connection, as the instance saw it that hands it on: its address with the
    port, its host, and the common name in its certificate. ``through`` is the name of that instance."""

    datapath: int
    address: str
    host: str
    tls_name: str
    through: str


class Seal(NamedTuple):
    """The key of the present term, ``""`` where there is none to be had, the term's generation, and the name of this
    instance."""

    key: str
    generation: int
    name: str


def no_seal() -> Seal:
    """No key: nothing is handed on."""
    return Seal("", 0, "")


def voucher(seal: Seal, vouched: Vouched) -> bytes:
    """The first message of a connection that is handed on. Raises SwitchError where it would not be read."""
    words = json.dumps({"generation": seal.generation, **vouched._asdict()}, separators=(",", ":")).encode()
    if 8 + _VOUCHER.size + _CODE_BYTES + len(words) > NEW_BYTES:
        raise SwitchError("the name in its certificate is too long")
    return header(ofp.OFPT_EXPERIMENTER, 0, _VOUCHER.pack(*_EXPERIMENTER) + _code(seal.key, words) + words)


def read_voucher(message: bytes, seal: Seal) -> Vouched | None:
    """The switch of such a message; None where no instance of this term has made it."""
    body = message[8:]
    if not seal.key or len(body) < _VOUCHER.size + _CODE_BYTES or _VOUCHER.unpack_from(body) != _EXPERIMENTER:
        return None
    code, words = body[_VOUCHER.size : _VOUCHER.size + _CODE_BYTES], body[_VOUCHER.size + _CODE_BYTES :]
    if not hmac.compare_digest(code, _code(seal.key, words)):
        return None
    try:
        found = json.loads(words)
        generation, vouched = found.pop("generation"), Vouched(**found)
    except (ValueError, KeyError, TypeError, AttributeError):  # Of another release.
        return None
    kinds = tuple(map(type, vouched))
    return vouched if generation == seal.generation and kinds == (int, str, str, str, str) else None


def _code(key: str, words: bytes) -> bytes:
    return hmac.new(bytes.fromhex(key), _PURPOSE + words, hashlib.sha256).digest()


class Relay:
    """A switch's connection and one to the active instance, each of which gets the other's messages."""

    def __init__(self, newcomer: Newcomer, up: Connection) -> None:
        self.datapath = newcomer.datapath
        self.connection = down = newcomer.connection
        self.up = up
        self.began = asyncio.get_running_loop().time()
        self._newcomer = newcomer
        self._own = range(OWN_XIDS, down.last_xid + 1)
        down.known = up.known = True
        down.receive, up.receive = self._from_switch, self._from_active
        # The one is read no faster than the other takes it.
        down.full, down.writable = up.hold, up.go_on
        up.full, up.writable = down.hold, down.go_on
        if down.paused:
            up.hold()

    def lost(self, reason: str) -> None:
        """End the other connection, since the switch's is gone."""
        level = self.connection.level(INFO)
        event("switch is handed on no longer", level=level, datapath=f"{self.datapath:016x}", reason=reason)
        self._newcomer.lost(reason)
        self.up.close(reason)

    def _from_switch(self, kind: int, xid: int, message: bytes) -> bool:
        late = xid in self._own and asyncio.get_running_loop().time() - self.began < _LATE_SECONDS
        if kind != ofp.OFPT_HELLO and not late:
            self.up.write(message)
        return True

    def _from_active(self, kind: int, _xid: int, message: bytes) -> bool:
        if kind != ofp.OFPT_HELLO:
            self.connection.write(message)
        return True


class Relays:
    """Opens connections to the active instance for switches that are kept. ``seal`` is asked for the present term. All
    of it runs on the switches' event loop."""

    def __init__(self, options: OpenFlowOptions, fence: Fence, seal: Callable[[], Seal], buffer: bytearray) -> None:
        self._options = options
        self._fence = fence
        self._seal = seal
        self._buffer = buffer
        # The reasons for which the last ones could not be handed on, and how often all of them were ended.
        self._failed: set[str] = set()
        self._ends = 0
        self._begun: dict[int, Relay] = {}
        # Not before these times of the loop, by datapath.
        self._again: dict[int, float] = {}

    @property
    def count(self) -> int:
        """The number of switches that are handed on now."""
        return len(self._begun)

    def find(self, datapath: int) -> Relay | None:
        """The relay of a switch."""
        return self._begun.get(datapath)

    def end(self, reason: str) -> None:
        """End all of them; the switches come again by themselves."""
        self._ends += 1
        begun, self._begun, self._again = self._begun, {}, {}
        for relay in begun.values():
            relay.connection.close(reason)

    async def begin(
        self,
        newcomers: Iterable[Newcomer],
        ways: Iterable[Way],
        may_be: Callable[[Newcomer], bool],
        begun: Callable[[Relay, Newcomer], None],
    ) -> None:
        """Hand on those of these switches that ``may_be`` handed on, also once the active instance is reached, unless
        another term has begun by then."""
        loop, places, all_ways = asyncio.get_running_loop(), asyncio.Semaphore(_AT_ONCE), tuple(ways)
        now, seal, ends = loop.time(), self._seal(), self._ends
        self._again = {datapath: until for datapath, until in self._again.items() if until > now}
        if not seal.key:
            return
        tls, failed = cache(self._tls), set[str]()

        def may_go_on(newcomer: Newcomer) -> bool:
            same, room = (self._ends, self._seal()) == (ends, seal), len(self._begun) < self._options.max_kept
            return same and room and newcomer.datapath not in self._again and may_be(newcomer)

        async def hand_on(newcomer: Newcomer) -> None:
            async with places:
                if not may_go_on(newcomer):
                    return
                try:
                    up = await self._reach(newcomer, all_ways, seal, tls)
                except SwitchError as error:
                    reason = str(error)
                    if reason not in failed | self._failed:
                        event("switches cannot be handed on to the active controller", level=WARNING, error=reason)
                    failed.add(reason)
                    return
                if up.closed_because:
                    return
                if not may_go_on(newcomer):
                    up.close("the switch is gone, or the term is over")
                    return
                self._begun[newcomer.datapath] = relay = Relay(newcomer, up)
                begun(relay, newcomer)

        await asyncio.gather(*map(hand_on, newcomers))
        self._failed = failed

    async def _reach(
        self, newcomer: Newcomer, ways: tuple[Way, ...], seal: Seal, tls: Callable[[], ssl.SSLContext]
    ) -> Connection:
        """A connection to the active instance that begins with the voucher of a switch. Raises SwitchError where there
        is none."""
        down = newcomer.connection
        # A name that a certificate has proven is passed on to none but another that has proven itself.
        chosen = [way for way in ways if way.name] or [way for way in ways if not down.tls_name]
        reason = "it has no listener that others reach" if not down.tls_name else "it listens over TLS nowhere"
        first = voucher(seal, Vouched(newcomer.datapath, down.address, down.host, down.tls_name, seal.name))

        def made() -> Connection:
            lost = partial(self._lost, newcomer.datapath)
            return Connection(self._options, lambda up: up.write(first), lost, self._buffer, self._fence)

        for way in chosen:
            try:
                context = tls() if way.name else None
                async with asyncio.timeout(_CONNECT_SECONDS):
                    _, up = await asyncio.get_running_loop().create_connection(
                        made, way.host, way.port, ssl=context, server_hostname=way.name or None
                    )
                return up
            except (OSError, ValueError) as error:
                reason = f"{way.host} port {way.port}: {getattr(error, 'reason', None) or str(error) or 'no answer'}"
        raise SwitchError(reason)

    def _lost(self, datapath: int, up: Connection, reason: str) -> None:
        relay = self._begun.get(datapath)
        if relay is None or relay.up is not up:
            return
        del self._begun[datapath]
        now = asyncio.get_running_loop().time()
        # One that the active one gives up is not brought to it at once again.
        if not relay.connection.closed_because and now - relay.began < AGAIN_SECONDS:
            self._again[datapath] = now + AGAIN_SECONDS
        # The switch comes again by itself, and is kept, or led, as any other.
        relay.connection.close(ENDED if reason.startswith(CLOSED) else f"{ENDED}: {reason}")

    def _tls(self) -> ssl.SSLContext:
        options = self._options
        context = ssl.create_default_context(cafile=options.ca)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if options.cert and options.key:
            context.load_cert_chain(options.cert, options.key)
        return context
