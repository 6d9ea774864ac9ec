"""The way from a controller that stands by to the active one: its connections, each kept for further requests."""

from __future__ import annotations

import http.client
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from lark_common.endpoint import AnnouncedAnswer, AnswerInTime, Endpoint, reason_of
from lark_common.errors import LarkError, SettingError
from lark_common.log import WARNING, event
from lark_common.turns import aside
from lark_controller.api.instances import Standing
from lark_controller.rest.forwarding.origin import HEADER, Head, Origin, sealed

# Seconds to connect, and after a failure to do so until it is tried again.
CONNECT_SECONDS: Final = 3.0
PAUSE: Final = 1.0
# Connections that are kept while no request needs them, and seconds for which each is: the other end closes it later.
KEPT: Final = 32
KEPT_SECONDS: Final = 20.0
# Bytes of an answer that are passed on at a time.
PIECE: Final = 1 << 16
# The active one is greeted by it, so that it counts this controller as no stranger before many requests come at once.
_GREETING: Final = "/healthz"
_POLL_MS: Final = 0
_FAILURES: Final = (OSError, http.client.HTTPException)


class NotReachedError(LarkError):
    """The active controller has not had the request."""


class NoAnswerError(LarkError):
    """The active controller may have had the request; its answer has not come."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request to hand on. ``authorization`` is among the headers, too."""

    head: Head
    headers: Mapping[str, str]
    body: bytes
    origin: Origin
    seconds: float


class _Failure(NamedTuple):
    """The last failure to reach a controller, in one term of it."""

    term: tuple[str, int] | None
    reason: str
    at: float


_NEVER: Final = _Failure(None, "", 0.0)


class _Line:
    """An open connection to one controller, in one term of it."""

    def __init__(self, term: tuple[str, int], connection: http.client.HTTPConnection) -> None:
        self.term = term
        self.connection = connection
        self.since = 0.0

    def is_good(self, now: float) -> bool:
        """True where it can be used again: the other end has neither closed it nor sent anything."""
        if now - self.since > KEPT_SECONDS:
            return False
        waiting = select.poll()
        waiting.register(self.connection.sock, select.POLLIN)
        return not waiting.poll(_POLL_MS)

    def hang_up(self) -> None:
        """End what waits for an answer of it."""
        try:
            # The socket's own, not TLS's, which another thread reads.
            socket.socket.shutdown(self.connection.sock, socket.SHUT_RDWR)
        except (OSError, TypeError):
            return  # it has ended by itself, and may have no socket any more


class Reply:
    """An answer: status and headers, and the body in pieces. To be closed."""

    def __init__(self, answer: http.client.HTTPResponse, done: Callable[[bool], None]) -> None:
        self.status = answer.status
        self.headers = tuple(answer.getheaders())
        self._answer = answer
        self._done: Callable[[bool], None] | None = done

    @property
    def length(self) -> int | None:
        """Bytes of the body that are still to come; None where that is not known before."""
        return self._answer.length

    def piece(self) -> bytes:
        """The next piece, ``b""`` at the end. Raises NoAnswerError where the answer breaks off."""
        try:
            with aside():
                data = self._answer.read(PIECE)
        except _FAILURES as error:
            raise NoAnswerError(f"the answer of the active controller breaks off: {error}") from None
        if not data and self._answer.length:
            raise NoAnswerError("the answer of the active controller breaks off")
        return data

    def whole(self, most: int) -> bytes:
        """The whole body. Raises NoAnswerError where it breaks off, or is longer than ``most`` bytes."""
        found = bytearray()
        while piece := self.piece():
            found += piece
            if len(found) > most:
                raise NoAnswerError("the answer of the active controller is too long")
        return bytes(found)

    def close(self) -> None:
        """Give the connection back; may be repeated."""
        done, self._done = self._done, None
        if done is not None:
            done(self._answer.isclosed() and not self._answer.will_close)


class ActiveController:
    """Asks the active controller; thread-safe. ``ca`` are the authorities of controllers' certificates."""

    def __init__(self, ca: Path | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._ca = ca
        self._clock = clock
        self._lock = threading.Lock()
        self._greeting = threading.Lock()
        self._endpoint: Endpoint | None = None
        self._kept: deque[_Line] = deque()
        self._in_use: set[_Line] = set()
        self._greeted: tuple[str, int] | None = None
        self._failed = _NEVER

    def ask(self, standing: Standing, request: Request) -> Reply:
        """Hand a request on to the controller that ``standing`` names; the whole answer takes ``request.seconds`` at
        most. Raises NotReachedError, NoAnswerError."""
        with aside():
            self._greet(standing)
            return self._asked(standing, request)

    def hang_up(self) -> None:
        """End all requests that are under way, and all connections: another controller is active, or none."""
        with self._lock:
            kept, self._kept = self._kept, deque()
            in_use = list(self._in_use)
            self._greeted, self._failed = None, _NEVER
        for line in kept:
            line.connection.close()
        for line in in_use:
            line.hang_up()

    def _greet(self, standing: Standing) -> None:
        term = _term(standing)
        if self._greeted == term:
            return
        with self._greeting:
            if self._greeted == term:
                return
            request = Request(Head("GET", _GREETING, ""), {}, b"", Origin(""), CONNECT_SECONDS)
            try:
                reply = self._asked(standing, request)
                try:
                    while reply.piece():
                        pass
                finally:
                    reply.close()
            except NoAnswerError as error:
                # Those that wait for their turn to greet it are answered at once; each would wait for as long.
                self._failed = _Failure(term, str(error), self._clock())
                raise NotReachedError(str(error)) from None
            self._greeted = term

    def _asked(self, standing: Standing, request: Request) -> Reply:
        line = self._line(standing)
        connection, head = line.connection, request.head
        connection.response_class = type("", (AnswerInTime, AnnouncedAnswer), {"seconds": request.seconds})
        seal = sealed(standing.key, standing.generation, request.origin, head)
        try:
            connection.sock.settimeout(request.seconds)
            target = self._endpoint_of(standing.url).base + head.target
            connection.request(head.method, target, request.body or None, {**request.headers, HEADER: seal})
            answer = connection.getresponse()
        except _FAILURES as error:
            self._end(line, again=False)
            waited = isinstance(error, TimeoutError)
            words = f"for {request.seconds:g} s" if waited else "before the connection to it ended"
            raise NoAnswerError(f"the active one, {standing.url}, has not answered {words}") from None
        except BaseException:
            self._end(line, again=False)
            raise
        return Reply(answer, lambda again: self._end(line, again))

    def _line(self, standing: Standing) -> _Line:
        """A connection that is open. Raises NotReachedError."""
        term, now = _term(standing), self._clock()
        while True:
            with self._lock:
                line = self._kept.pop() if self._kept else None
                if line is not None:
                    self._in_use.add(line)
            if line is None:
                break
            if line.term == term and line.is_good(now):
                return line
            self._end(line, again=False)
        failed = self._failed
        # A greeting to the one before may end after that one's term.
        if failed.term == term and now - failed.at < PAUSE:
            raise NotReachedError(failed.reason)
        try:
            connection = self._endpoint_of(standing.url).connection(CONNECT_SECONDS)
            connection.connect()
        except (*_FAILURES, SettingError) as error:
            words = (
                str(error) if isinstance(error, SettingError) else reason_of(error, standing.url.startswith("https"))
            )
            reason = f"{standing.url} cannot be reached: {words}"
            if self._failed.reason != reason:
                event(
                    "the active controller cannot be reached, requests are not handed on", level=WARNING, error=reason
                )
            self._failed, self._greeted = _Failure(term, reason, self._clock()), None
            raise NotReachedError(reason) from None
        self._failed = _NEVER
        line = _Line(term, connection)
        with self._lock:
            self._in_use.add(line)
        return line

    def _end(self, line: _Line, again: bool) -> None:
        line.since = self._clock()
        with self._lock:
            self._in_use.discard(line)
            keep = again and len(self._kept) < KEPT
            if keep:
                self._kept.append(line)
        if not keep:
            line.connection.close()

    def _endpoint_of(self, url: str) -> Endpoint:
        found = self._endpoint
        if found is None or found.url != url:
            self._endpoint = found = Endpoint(url, self._ca, most=0)
        return found


def _term(standing: Standing) -> tuple[str, int]:
    return standing.url, standing.generation
