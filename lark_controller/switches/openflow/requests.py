"""Requests that wait for their reply: by xid, each with a timeout, each complete or an error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_common.errors import SwitchError
from lark_controller.switches.openflow.connection import Connection
from lark_controller.switches.openflow.oxm import WireError
from lark_controller.switches.openflow.replies import MULTIPART_BODY, ErrorMessage

T = TypeVar("T")

# A bound on one multipart reply, some 250,000 flows, and on all that are under way together: decoded, a reply takes
# about ten times its bytes.
_MAX_REPLY_BYTES: Final = 32 << 20
MAX_REPLIES_BYTES: Final = 128 << 20


class RefusedError(SwitchError):
    """A switch answered a request with an OpenFlow error; ``error`` holds its numbers and their names."""

    def __init__(self, what: str, error: ErrorMessage) -> None:
        super().__init__(f"{what} refused by the switch: {error.text}")
        self.error = error


@dataclass(slots=True)
class _Waiting:
    what: str
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle
    multipart: int | None
    decode: Callable[[bytes], Any]
    parts: list[Any] = field(default_factory=list)
    size: int = 0


class ReplyRoom:
    """Limits the memory of the unfinished replies of all switches together. Where it is too much, the switch that has
    sent most is disconnected: several that never come to an end do not add up."""

    def __init__(self, most: int = MAX_REPLIES_BYTES) -> None:
        self._most = most
        self._held: dict[Connection, int] = {}
        self._total = 0

    def take(self, connection: Connection, size: int) -> None:
        """A connection holds so many bytes more."""
        self._held[connection] = self._held.get(connection, 0) + size
        self._total += size
        while self._total > self._most:
            largest = max(self._held, key=self._held.__getitem__)
            held = self._held.pop(largest)
            self._total -= held
            largest.close(
                f"garbage: {held} bytes of answers without an end, and {self._most} are held for all switches"
            )

    def give(self, connection: Connection, size: int) -> None:
        """A connection holds so many bytes less."""
        held = self._held.get(connection)
        if held is not None:
            self._total -= min(size, held)
            self._held[connection] = held - size
            if held <= size:
                del self._held[connection]


class Requests:
    """The outstanding requests of one connection. Futures end with the reply, RefusedError, or SwitchError."""

    def __init__(self, connection: Connection, room: ReplyRoom) -> None:
        self._connection = connection
        self._room = room
        self._waiting: dict[int, _Waiting] = {}

    def ask(
        self, what: str, build: Callable[[int], bytes], decode: Callable[[bytes], T], timeout: float
    ) -> asyncio.Future[T]:
        """Send one message and wait for the one that answers it. ``what`` names it in errors."""
        return self._send(what, build, decode, timeout, None)

    def collect(
        self, what: str, kind: int, build: Callable[[int], bytes], decode: Callable[[bytes], list[T]], timeout: float
    ) -> asyncio.Future[list[T]]:
        """Send a multipart request of type ``kind`` and wait for all parts; each is decoded as it comes."""
        return self._send(what, build, decode, timeout, kind)

    def _send(
        self,
        what: str,
        build: Callable[[int], bytes],
        decode: Callable[[bytes], Any],
        timeout: float,
        multipart: int | None,
    ) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._connection.closed_because:
            future.set_exception(SwitchError(f"{what}: switch is gone ({self._connection.closed_because})"))
            return future
        xid = self._connection.next_xid()
        timer = loop.call_later(timeout, self._expired, xid, timeout)
        self._waiting[xid] = _Waiting(what, future, timer, multipart, decode)
        self._connection.write(build(xid))
        return future

    def reply(self, kind: int, xid: int, message: bytes) -> bool:
        """A message that may answer a request: whether somebody waited for it. Raises WireError."""
        waiting = self._waiting.get(xid)
        if waiting is None:
            return False
        if waiting.multipart is None:
            self._done(xid).set_result(waiting.decode(message))
            return True
        if kind != ofp.OFPT_MULTIPART_REPLY or len(message) < MULTIPART_BODY:
            raise WireError(f"{waiting.what} answered by message type {kind}")
        if int.from_bytes(message[8:10]) != waiting.multipart:
            raise WireError(f"{waiting.what} answered by multipart type {int.from_bytes(message[8:10])}")
        waiting.parts.extend(waiting.decode(message))
        waiting.size += len(message)
        self._room.take(self._connection, len(message))
        if waiting.size > _MAX_REPLY_BYTES:
            raise WireError(f"{waiting.what} answered by more than {_MAX_REPLY_BYTES} bytes")
        if not int.from_bytes(message[10:12]) & ofp.OFPMPF_REPLY_MORE:
            self._done(xid).set_result(waiting.parts)
        return True

    def error(self, xid: int, error: ErrorMessage) -> bool:
        """An error message; True if it answered a request."""
        waiting = self._waiting.get(xid)
        if waiting is None:
            return False
        self._done(xid).set_exception(RefusedError(waiting.what, error))
        return True

    def fail(self, reason: str) -> None:
        """Ends every request with SwitchError, since the connection is gone."""
        for xid, waiting in list(self._waiting.items()):
            self._done(xid).set_exception(SwitchError(f"{waiting.what}: switch is gone ({reason})"))

    def _expired(self, xid: int, timeout: float) -> None:
        what = self._waiting[xid].what
        self._done(xid).set_exception(SwitchError(f"{what}: no complete answer within {timeout:g} s"))

    def _done(self, xid: int) -> asyncio.Future[Any]:
        waiting = self._waiting.pop(xid)
        waiting.timer.cancel()
        self._room.give(self._connection, waiting.size)
        if waiting.future.done():  # cancelled by the caller
            return asyncio.get_running_loop().create_future()
        return waiting.future
