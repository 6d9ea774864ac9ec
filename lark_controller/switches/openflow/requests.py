"""Requests that wait for their reply: by xid, each with a timeout, each complete or an error."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final, TypeVar

from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_common.errors import SwitchError
from lark_controller.switches.openflow.connection import Connection
from lark_controller.switches.openflow.oxm import WireError
from lark_controller.switches.openflow.replies import MULTIPART_BODY, ErrorMessage

T = TypeVar("T")

# A bound on one multipart reply. More than a quarter of a million flows are no switch's.
_MAX_REPLY_BYTES: Final = 32 << 20
# Records kept of unfinished replies beyond those that were to be expected, of all switches together; one takes some
# kilobytes at most.
MAX_RECORDS: Final = 12_288
# A record that is longer than this counts as several.
RECORD_BYTES: Final = 512
# The expected and the largest size of a reply, where the request has none.
_EXPECTED: Final = 4096
_MOST: Final = 65_536


class RefusedError(SwitchError):
    """A switch answered a request with an OpenFlow error; ``error`` holds its numbers and their names."""

    def __init__(self, what: str, error: ErrorMessage) -> None:
        super().__init__(f"{what} refused by the switch: {error.text}")
        self.error = error


@dataclass(frozen=True, slots=True)
class Bound:
    """The records of a multipart reply that are to be expected, and how many are kept at most, by :data:`RECORD_BYTES`.

    A reply of more is garbage, unless ``cut``: the rest is then not read. ``key`` names a record; of those with one
    name the last is kept. With ``parts`` the records of a part of the reply are kept together, as they were decoded.
    """

    expected: int = _EXPECTED
    most: int = _MOST
    cut: bool = False
    key: Callable[[Any], Hashable] | None = None
    parts: bool = False


@dataclass(slots=True)
class _Waiting:
    what: str
    future: asyncio.Future[Any]
    timer: asyncio.TimerHandle
    multipart: int | None
    decode: Callable[[bytes], Any]
    bound: Bound
    kept: dict[Hashable, Any] = field(default_factory=dict)
    size: int = 0
    read: int = 0
    # Those that are kept, by RECORD_BYTES.
    weight: int = 0
    held: int = 0
    whole: bool = True


class Records(list[T]):
    """The records of a multipart reply. ``whole`` is False where it had more."""

    whole: bool = True


class ReplyRoom:
    """Limits the records of unfinished replies that nobody expected, over all switches.

    Where it is too much, the switch that has sent most is disconnected: several that never come to an end do not add
    up.
    """

    def __init__(self, most: int = MAX_RECORDS) -> None:
        self._most = most
        self._held: dict[Connection, int] = {}
        self._total = 0

    def take(self, connection: Connection, count: int) -> None:
        """Count so many more records of a connection; the one with the most is closed where all are too many."""
        self._held[connection] = self._held.get(connection, 0) + count
        self._total += count
        while self._total > self._most:
            largest = max(self._held, key=self._held.__getitem__)
            held = self._held.pop(largest)
            self._total -= held
            largest.close(f"garbage: {held} records beyond those expected, and {self._most} are held for all switches")

    def give(self, connection: Connection, count: int) -> None:
        """Count so many records of a connection less."""
        held = self._held.get(connection)
        if held is not None:
            self._total -= min(count, held)
            self._held[connection] = held - count
            if held <= count:
                del self._held[connection]


class Requests:
    """The outstanding requests of one connection. Futures end with the reply, RefusedError, or SwitchError."""

    def __init__(self, connection: Connection, room: ReplyRoom) -> None:
        self._connection = connection
        self._room = room
        self._waiting: dict[int, _Waiting] = {}
        # Seconds that decoding replies took, since the connection was made.
        self.decoding = 0.0

    def ask(
        self, what: str, build: Callable[[int], bytes], decode: Callable[[bytes], T], timeout: float
    ) -> asyncio.Future[T]:
        """Send one message and wait for the one that answers it. ``what`` names it in errors."""
        return self._send(what, build, decode, timeout, None, Bound())

    def collect(
        self,
        what: str,
        kind: int,
        build: Callable[[int], bytes],
        decode: Callable[[bytes], list[T]],
        timeout: float,
        bound: Bound = Bound(),
    ) -> asyncio.Future[list[T]]:
        """Send a multipart request of type ``kind`` and wait for all parts; each is decoded as it comes."""
        return self._send(what, build, decode, timeout, kind, bound)

    def collect_some(
        self,
        what: str,
        kind: int,
        build: Callable[[int], bytes],
        decode: Callable[[bytes], list[T]],
        timeout: float,
        bound: Bound,
    ) -> asyncio.Future[Records[T]]:
        """As :meth:`collect`, where the reply may be cut."""
        return self._send(what, build, decode, timeout, kind, bound)

    def collect_parts(
        self,
        what: str,
        kind: int,
        build: Callable[[int], bytes],
        decode: Callable[[bytes], T],
        timeout: float,
        bound: Bound,
    ) -> asyncio.Future[list[T]]:
        """As :meth:`collect`, with the records of each part together."""
        return self._send(what, build, decode, timeout, kind, replace(bound, parts=True))

    def _send(
        self,
        what: str,
        build: Callable[[int], bytes],
        decode: Callable[[bytes], Any],
        timeout: float,
        multipart: int | None,
        bound: Bound,
    ) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if self._connection.closed_because:
            future.set_exception(SwitchError(f"{what}: switch is gone ({self._connection.closed_because})"))
            return future
        xid = self._connection.next_xid()
        timer = loop.call_later(timeout, self._expired, xid, timeout)
        self._waiting[xid] = _Waiting(what, future, timer, multipart, decode, bound)
        self._connection.write(build(xid))
        return future

    def reply(self, kind: int, xid: int, message: bytes) -> bool:
        """A message that may answer a request; True if somebody has a use for it. Raises WireError."""
        waiting = self._waiting.get(xid)
        if waiting is None:
            return False
        if waiting.multipart is None:
            answer = waiting.decode(message)
            self._answered(xid, answer)
            return True
        if kind != ofp.OFPT_MULTIPART_REPLY or len(message) < MULTIPART_BODY:
            raise WireError(f"{waiting.what} answered by message type {kind}")
        if int.from_bytes(message[8:10]) != waiting.multipart:
            raise WireError(f"{waiting.what} answered by multipart type {int.from_bytes(message[8:10])}")
        waiting.size += len(message)
        if waiting.size > _MAX_REPLY_BYTES:
            raise WireError(f"{waiting.what} answered by more than {_MAX_REPLY_BYTES} bytes")
        # Of a reply without end neither the part beyond its bound is of use, nor what was not asked for.
        useful = waiting.whole and self._keep(waiting, message)
        if not int.from_bytes(message[10:12]) & ofp.OFPMPF_REPLY_MORE:
            records: Records[Any] = Records(waiting.kept.values())
            records.whole = waiting.whole
            self._answered(xid, records)
        return useful

    def _keep(self, waiting: _Waiting, message: bytes) -> bool:
        bound, kept = waiting.bound, waiting.kept
        began = time.perf_counter()
        records = waiting.decode(message)
        self.decoding += time.perf_counter() - began
        # Those that come again count as well: no switch has a flow twice.
        room = bound.most - waiting.read
        weight = max(len(records), len(message) // RECORD_BYTES) if len(records) else 0
        waiting.read += weight
        some = records
        if weight > room:
            if not bound.cut:
                raise WireError(f"{waiting.what} answered by more than {bound.most} records")
            waiting.whole = False
            some = records[: max(0, room) * len(records) // weight]
        if bound.parts:
            # Parts without a record are no part of what is kept: of these a switch may send any number.
            some = [records] if len(records) else []
        before = len(kept)
        names = count(before) if bound.key is None else map(bound.key, some)
        kept.update(zip(names, some, strict=False))
        waiting.weight += weight if bound.parts else weight * (len(kept) - before) // max(1, len(records))
        beyond = max(0, waiting.weight - bound.expected)
        if beyond > waiting.held:
            more, waiting.held = beyond - waiting.held, beyond
            self._room.take(self._connection, more)
        return len(records) > 0

    def error(self, xid: int, error: ErrorMessage) -> bool:
        """An error message; True if it answered a request."""
        waiting = self._waiting.get(xid)
        if waiting is None:
            return False
        self._failed(xid, RefusedError(waiting.what, error))
        return True

    def fail(self, reason: str) -> None:
        """Ends every request with SwitchError, since the connection is gone."""
        for xid, waiting in list(self._waiting.items()):
            self._failed(xid, SwitchError(f"{waiting.what}: switch is gone ({reason})"))

    def _expired(self, xid: int, timeout: float) -> None:
        what = self._waiting[xid].what
        self._failed(xid, SwitchError(f"{what}: no complete answer within {timeout:g} s"))

    def _answered(self, xid: int, answer: Any) -> None:
        future = self._over(xid)
        if not future.done():
            future.set_result(answer)

    def _failed(self, xid: int, error: SwitchError) -> None:
        future = self._over(xid)
        # A caller that has given up has cancelled it, and reads no error.
        if not future.done():
            future.set_exception(error)

    def _over(self, xid: int) -> asyncio.Future[Any]:
        waiting = self._waiting.pop(xid)
        waiting.timer.cancel()
        self._room.give(self._connection, waiting.held)
        return waiting.future
