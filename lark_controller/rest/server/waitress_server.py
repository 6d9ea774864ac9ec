"""The HTTP server of the API: waitress, in this process, on TCP (plain or TLS) and Unix sockets.

One thread reads and writes all connections, so a slow client costs a socket and no thread; a pool of threads runs the
application. ``docs/design/rest.md`` has the reasons for this server.
"""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import stat
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, Final, cast

from flask import Flask
from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer, UnixWSGIServer
from waitress.task import ErrorTask, WSGITask

from lark_common import log
from lark_common.errors import SettingError
from lark_common.exhausted import EXHAUSTED, exhausted
from lark_common.sending import MOST, send_at_once
from lark_controller.rest.auth import AUTHENTICATED, CERTIFICATE
from lark_controller.rest.forwarding.origin import FIELD, HANDED_ON, Head, Origin, Origins, nowhere
from lark_controller.rest.problems import CONTENT_TYPE, document
from lark_controller.rest.server.admission import Admission, Parking, peer_of, places
from lark_controller.rest.server.dispatcher import Callers, Dispatcher, nobody
from lark_controller.rest.server.poll import Poll
from lark_controller.rest.server.request_parser import RequestParser, Unread
from lark_controller.rest.server.tls import TlsConnection, TlsListener, server_context
from lark_controller.settings import Listen, Settings

BACKLOG: Final = 1024
# Connections that are taken in before others get their turn.
_ACCEPTED: Final = 32
# Where the process has no descriptor left, the next connection is taken in after so many seconds.
ACCEPT_SECONDS: Final = 1.0
# After an unexpected error the connections are served again so many seconds later.
_AFTER_ERROR: Final = 0.2
# Descriptors that connections without a place leave to others.
_SPARE_FILES: Final = 256
HEADER_BYTES: Final = 32768
# Bytes that are read at a time. Each time costs a turn, and the interpreter lock twice.
READ_BYTES: Final = 65536
# Bytes of a body that are sent in one piece with the head.
_TOGETHER: Final = 1 << 16
# Requests that a connection may send before it has its answers. Whoever reads none of them fills waitress's buffer for
# a connection by a few dozen, and then the thread that answers waits for that connection.
PIPELINED: Final = 2
# Users of the socket's group may connect; the token decides what they may do.
SOCKET_MODE: Final = 0o660
# The connection that a thread has answered last, by its descriptor.
_OF_THREAD: Final = threading.local()


class _ErrorTask(ErrorTask):  # type: ignore[misc]  # waitress publishes no types, so its class is Any
    """The answer to a request that waitress cannot parse, as a problem document."""

    def execute(self) -> None:
        error = self.request.error
        body = json.dumps(document(error.code, f"The request cannot be read: {error.body}.")).encode()
        self.status = f"{error.code} {error.reason}"
        self.response_headers.append(("Content-Type", CONTENT_TYPE))
        self.set_close_on_finish()
        self.content_length = len(body)
        self.write(body)


class _Task(WSGITask):  # type: ignore[misc]  # waitress publishes no types, so its class is Any
    """A request, which the application can mark as one with a valid token."""

    wrote_header: bool

    def get_environment(self) -> dict[str, Any]:
        environ: dict[str, Any] = super().get_environment()
        environ[AUTHENTICATED] = self.channel.show_token
        names = self.channel.certificate
        if FIELD in self.request.headers:
            origin = self.channel.origin(self.request)
            environ[HANDED_ON] = origin is not None
            if origin is not None:
                # The other controller is no stranger, and all else is as it saw the caller.
                self.channel.show_token()
                names = _names_of(origin, names)
                if origin.address:
                    environ["REMOTE_ADDR"] = environ["REMOTE_HOST"] = origin.address
        if names is not None:
            environ[CERTIFICATE] = names
        return environ

    def write(self, data: bytes) -> None:
        """Send head and body together where the body comes in one piece: each system call lets the interpreter's lock
        go, and a client wakes up for each."""
        if self.wrote_header or not self.complete or not 0 < len(data) <= _TOGETHER:
            super().write(data)
            return
        head = self.build_response_header()
        self.wrote_header = True
        if self.content_length == len(data) and self.has_body:
            self.content_bytes_written = len(data)
            self.channel.write_soon(head + data)
        else:
            self.channel.write_soon(head)
            super().write(data)


def _names_of(origin: Origin, own: tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The hosts in the certificate of a caller elsewhere. Where callers are asked for one here, one that was not asked
    there has shown none."""
    return () if origin.names is None and own is not None and not origin.unix else origin.names


class _Channel(HTTPChannel):  # type: ignore[misc]  # waitress publishes no types, so its class is Any
    """A connection that keeps its place in :mod:`.admission`."""

    task_class = _Task
    error_task_class = _ErrorTask
    authenticated = False
    since: float | None = None
    admission: Admission
    origins: Origins

    def __init__(self, *args: Any, **options: Any) -> None:
        # A mark for each answer that a thread is to make, until that has done all that it does with the connection.
        self.under_way: deque[None] = deque()
        super().__init__(*args, **options)

    def service(self) -> None:
        _OF_THREAD.descriptor = self._fileno
        try:
            super().service()
        finally:
            self.under_way.popleft()

    @property
    def answering(self) -> bool:
        return bool(self.requests)

    @property
    def peer(self) -> str:
        """The address of the next request as :mod:`.admission` has it: the connection's, or that of the caller whose
        request another controller hands on."""
        request = self.requests[0] if self.requests else None
        origin = None if request is None or FIELD not in request.headers else self.origin(request)
        own = self.addr[0] if isinstance(self.addr, tuple) else None
        return peer_of(own if origin is None or not origin.address else origin.address)

    def origin(self, request: Any) -> Origin | None:
        """The origin of a request with its header; None where no controller of this term has made that."""
        head = Head(request.command.upper(), request.request_uri, request.headers.get("AUTHORIZATION", ""))
        return type(self).origins(request.headers[FIELD], head)

    @property
    def in_head(self) -> bool:
        request = self.request
        return request is not None and not request.headers_finished

    @property
    def certificate(self) -> tuple[str, ...] | None:
        """The hosts in the client's certificate; None where it was not asked for one."""
        return None

    def show_token(self) -> None:
        self.admission.authenticated(self)

    def handle_read(self) -> None:
        super().handle_read()
        if self.request is None:
            self.since = None
        elif self.since is None:
            self.since = time.time()

    def parser_class(self, adj: Any) -> RequestParser | Unread:
        """The parser of what comes next; waitress calls it for each request, under the lock of :attr:`requests`.

        Requests beyond :data:`PIPELINED` get no answer, and the connection is closed behind the last that gets one, as
        a server may at any time (RFC 9112, section 9.3.2).
        """
        if len(self.requests) < PIPELINED:
            return RequestParser(adj)
        self.requests[-1].headers["CONNECTION"] = "close"
        return Unread()

    def send(self, data: bytes, do_close: bool = True) -> int:
        """Send what the socket takes now; returns how many bytes that is."""
        return self._send_now(data) or int(super().send(data, do_close))

    def _send_now(self, data: bytes) -> int:
        connection = self.socket
        # Of more than it sends, a copy of all would be made for each part. One that is not connected any more may be
        # closed this moment, and its descriptor be another's; one that is waits for who sends, who has the lock.
        if connection is None or not self.connected or len(data) > MOST:
            return 0
        return send_at_once(connection.fileno(), data)

    def close(self) -> None:
        with self.outbuf_lock:
            super().close()

    def del_channel(self, map: dict[int, Any] | None = None) -> None:  # noqa: A002  # waitress's name
        super().del_channel(map)
        self.admission.gone(self)


class _TlsChannel(_Channel):
    """A connection over TLS: what the TLS layer holds is read and written before waitress looks at its own buffers."""

    @property
    def certificate(self) -> tuple[str, ...] | None:
        return cast("TlsConnection", self.socket).names

    def handle_read(self) -> None:
        if self.socket.fill():
            super().handle_read()

    def _send_now(self, _data: bytes) -> int:
        return 0

    def writable(self) -> bool:
        return bool(super().writable() or self.socket.unsent)

    def handle_write(self) -> None:
        if self.socket.flush():
            super().handle_write()


class _Accepting:
    """Accepts connections on TCP and Unix sockets where there is a place."""

    admission: Admission
    poll: Poll
    accept_from = 0.0

    def pull_trigger(self) -> None:
        """Wake the connections' thread, which looks at the connection that this thread answers."""
        self.poll.again(getattr(_OF_THREAD, "descriptor", None))
        super().pull_trigger()  # type: ignore[misc]  # of waitress

    def add_task(self, task: _Channel) -> None:
        task.under_way.append(None)
        super().add_task(task)  # type: ignore[misc]  # of waitress

    def readable(self) -> bool:
        if self.accept_from and time.monotonic() < self.accept_from:
            return False
        return bool(super().readable())  # type: ignore[misc]  # of waitress

    def handle_accept(self) -> None:
        for _ in range(_ACCEPTED):
            try:
                accepted = self.accept()  # type: ignore[attr-defined]  # of waitress
            except OSError as error:
                if error.errno in EXHAUSTED:
                    self.accept_from = time.monotonic() + ACCEPT_SECONDS
                    exhausted("REST", error)
                return
            if accepted is None:
                return
            self._take_in(*accepted)

    def _take_in(self, connection: Any, address: Any) -> None:
        here: Any = self
        try:
            here.set_socket_options(connection)
            connection.setblocking(False)
            channel = here.channel_class(here, connection, here.fix_addr(address), here.adj, map=here._map)
        except OSError:  # the peer has gone already
            connection.close()
            return
        if not self.admission.admit(channel, address[0] if isinstance(address, tuple) else None):
            channel.handle_close()


class _TcpServer(_Accepting, TcpWSGIServer):  # type: ignore[misc]  # waitress publishes no types
    """Listens on TCP."""


class _UnixServer(_Accepting, UnixWSGIServer):  # type: ignore[misc]  # waitress publishes no types
    """Listens on a Unix socket."""


class Server:
    """Serves an application on the addresses of ``settings.rest_listen``, from :meth:`start` to :meth:`stop`.

    Raises:
        SettingError: an address cannot be bound, or certificate and key cannot be used.
    """

    def __init__(self, app: Flask, settings: Settings, callers: Callers = nobody, origins: Origins = nowhere) -> None:
        self._origins = origins
        self._stopping = threading.Event()
        self._tls = server_context(settings.rest_tls_cert, settings.rest_tls_key, settings.rest_tls_ca)
        self._paths: list[Path] = []
        self._sockets: list[socket.socket] = []
        try:
            for listen in settings.rest_listen:
                self._sockets.append(self._bind(listen))
        except BaseException:
            self._release()
            raise
        self._poll = Poll()
        self._admission = Admission(places(settings.rest_threads + settings.waiting_workers))
        self._parking = Parking()
        self._dispatcher = Dispatcher(callers)
        self._dispatcher.set_thread_count(settings.rest_threads + settings.waiting_workers)
        try:
            self._listeners = [self._listener(app, bound, settings) for bound in self._sockets]
        except OSError as error:
            # Two may have bound to one address; the second to listen gets the error.
            self._dispatcher.shutdown(cancel_pending=True, timeout=0)
            self._poll.close()
            self._release()
            raise SettingError(
                f"LARK_REST_LISTEN={','.join(map(str, settings.rest_listen))}: cannot listen there: {error.strerror}"
            ) from None
        self._thread = threading.Thread(target=self._run, name="rest", daemon=True)
        # The processor time of that thread up to which it is charged to requests.
        self._charged = 0.0

    def _listener(self, app: Flask, bound: socket.socket, settings: Settings) -> Any:
        encrypted = isinstance(bound, TlsListener)
        adjustments = Adjustments(
            threads=(settings.rest_threads + settings.waiting_workers),
            url_scheme="https" if encrypted else "http",
            # Connections have their limits and times in _Accepting and .admission.
            connection_limit=1_000_000,
            channel_timeout=86_400,
            backlog=BACKLOG,
            max_request_header_size=HEADER_BYTES,
            recv_bytes=READ_BYTES,
            # Larger bodies are refused while they arrive; the application refuses what is over a route's own limit.
            max_request_body_size=settings.max_body_bytes + 65536,
            log_socket_errors=False,
            ident="lark",
        )
        made = _UnixServer if bound.family == socket.AF_UNIX else _TcpServer
        server = made(
            app,
            map=self._poll.map,
            _sock=bound,
            dispatcher=self._dispatcher,
            adj=adjustments,
            bind_socket=False,
            sockinfo=(bound.family, bound.type, bound.proto, bound.getsockname()),
        )
        server.admission, server.poll = self._admission, self._poll
        # Channels close before anybody could give them their admission one by one.
        kind = _TlsChannel if encrypted else _Channel
        server.channel_class = type(
            kind.__name__, (kind,), {"admission": self._admission, "origins": staticmethod(self._origins)}
        )
        return server

    @property
    def addresses(self) -> tuple[Listen, ...]:
        """The addresses of the server, with the port that the system chose where 0 was asked for."""
        found = []
        for bound in self._sockets:
            name = bound.getsockname()
            found.append(Listen(path=name) if bound.family == socket.AF_UNIX else Listen(name[0], name[1]))
        return tuple(found)

    def start(self) -> None:
        """Start to answer, on threads of its own."""
        for address in self.addresses:
            plain = not address.path and self._tls is None
            if plain and not address.loopback:
                words = "REST without TLS: tokens travel in clear text"
                log.event(words, level=log.WARNING, listen=address, hint="LARK_REST_TLS_CERT")
            log.event("REST listens", listen=address, tls=not address.path and self._tls is not None)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """Close the listeners and connections; requests that are being answered get ``timeout`` seconds."""
        self._stopping.set()
        if self._thread.is_alive():
            with contextlib.suppress(OSError):
                self._listeners[0].pull_trigger()
            self._thread.join(timeout)
        self._dispatcher.shutdown(cancel_pending=True, timeout=timeout)
        self._release()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._turn()
            except Exception as error:
                # An unexpected error must not stop this thread: nothing else answers.
                log.failure("REST connections could not be served", error)
                self._stopping.wait(_AFTER_ERROR)
        for channel in self._parking.all():
            channel.handle_close()
        for server in self._listeners:
            server.accepting = False
            server.del_channel()
            server.socket.close()
        deadline = time.monotonic() + 2.0
        while self._busy() and time.monotonic() < deadline:
            self._poll.turn(0.1)
        self._poll.close()

    def _turn(self) -> None:
        """Serve the connections once, or wait for them."""
        # Between two polls: a descriptor that is closed within one may be another's in its end.
        for channel in self._admission.due(time.time()):
            channel.handle_close()
        self._park(time.monotonic())
        self._poll.turn(1.0)
        began, self._charged = self._charged, time.thread_time()
        self._dispatcher.charge(self._charged - began)

    def _park(self, now: float) -> None:
        """Stop to read connections that have lost their places, and close those that wait no longer."""
        for parked in self._admission.to_park():
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] - _SPARE_FILES
            channel = cast("_Channel", parked)
            if channel.socket is None:
                continue  # its peer has closed it meanwhile
            # Descriptors are given out from the lowest.
            if channel.socket.fileno() < most:
                channel.del_channel(self._poll.map)
                self._parking.add(channel, now)
            else:
                channel.handle_close()
        for over in self._parking.over(now):
            over.handle_close()

    def _busy(self) -> bool:
        return any(
            channel.requests or channel.total_outbufs_len
            for server in self._listeners
            for channel in list(server.active_channels.values())
        )

    def _bind(self, listen: Listen) -> socket.socket:
        try:
            bound = self._bind_unix(Path(listen.path)) if listen.path else _bind_tcp(listen)
        except OSError as error:
            raise SettingError(f"LARK_REST_LISTEN={listen}: cannot listen there: {error.strerror or error}") from None
        if self._tls is not None and not listen.path:
            return TlsListener(bound, self._tls)
        return bound

    def _bind_unix(self, path: Path) -> socket.socket:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            bound.bind(str(path))
            path.chmod(SOCKET_MODE)
        except BaseException:
            bound.close()
            raise
        self._paths.append(path)
        return bound

    def _release(self) -> None:
        for bound in self._sockets:
            bound.close()
        for path in self._paths:
            path.unlink(missing_ok=True)


def _bind_tcp(listen: Listen) -> socket.socket:
    family, kind, proto, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, kind, proto)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind(address)
    except BaseException:
        bound.close()
        raise
    return bound


def _remove_stale(path: Path) -> None:
    """Remove the socket of a server that is gone; one that answers, and what is no socket, stays."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise FileExistsError(0, "a file that is no socket is there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise FileExistsError(0, "another process listens there")
