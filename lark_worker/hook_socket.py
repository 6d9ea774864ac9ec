"""The Unix socket for hooks, ``lark-enter`` and root, with a few routes of the controller's own API.

The caller is identified by the socket (SO_PEERCRED) and its job by ancestry, before a byte of the request is read.
"""

from __future__ import annotations

import io
import json
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from lark_common import log
from lark_common.errors import AdError, LarkError, SettingError
from lark_common.exhausted import EXHAUSTED, exhausted
from lark_common.limits import Buckets, InTime, Places, WaitedPlaces
from lark_worker.errors import CallerError, ForgedError, RefusedError
from lark_worker.identity.processes import Peer, Process, Programs, find_starter, held, peer_of
from lark_worker.identity.trusted_ad import MAX_AD
from lark_worker.life.asked_waits import LONGEST_WAIT, change_in, wait_in
from lark_worker.life.own_reservations import ControllerAnswer
from lark_worker.network.job_network import resolv_conf
from lark_worker.records.records import Record
from lark_worker.worker import Worker

CONNECTIONS: Final = 512
CONNECTIONS_PER_USER: Final = 192
CONNECTIONS_PER_JOB: Final = 8
# Connections of a user's processes outside of any job, and of all users' together.
CONNECTIONS_OUTSIDE: Final = 4
CONNECTIONS_ALL_OUTSIDE: Final = 64
# The work of telling who a user's callers are, in processes that are looked at: a hook has three above it, and a user
# may have as many above a process as are looked at.
LOOKS_A_SECOND: Final = 2000.0
LOOKS_AT_ONCE: Final = 16384
# The cost of a connection itself, on the same scale.
CONNECTION_COST: Final = 16
# A user's callers that are looked at together. Where hundreds are, each read of one waits for all others' threads.
TOLD_AT_ONCE: Final = 2
# Connections that are accepted in a row.
ACCEPTED_AT_ONCE: Final = 256
# Requests of a job: many of them go on to the controller, with a token that all jobs of the worker share.
REQUESTS_A_SECOND: Final = 5.0
REQUESTS_AT_ONCE: Final = 50
# Connections that wait for a change: of a job, of a user, of all. The others are left for
# requests that do not wait; whoever has no place is answered at once.
WAITING_PER_JOB: Final = 4
WAITING_PER_USER: Final = 96
WAITING: Final = 256
# Seconds until a connection is accepted again where no descriptor was left.
EXHAUSTED_SECONDS: Final = 0.5
# Seconds without a byte after which a caller is no longer waited for, and until it must have sent its whole request:
# one that sends a byte now and then would keep its place for ever.
IDLE: Final = 10.0
WHOLE: Final = 30.0
# Bytes of a request before its body. Python's own server takes a hundred lines of 64 kB.
MAX_HEAD: Final = 65536
# Log lines about callers who are turned away, and as many about requests that fail, for each user.
REFUSALS_A_SECOND: Final = 0.2
REFUSALS_AT_ONCE: Final = 20
# Letters of a path and of a refusal in the log.
MAX_SHOWN: Final = 200


class HookSocket(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Answers on the socket from :meth:`start` to :meth:`stop`. Raises SettingError where it cannot listen."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 1024

    def __init__(self, path: Path, worker: Worker, programs: Programs) -> None:
        self.worker = worker
        self.programs = programs
        self._path = path
        self.places = Places(CONNECTIONS)
        self.rates = Buckets(REQUESTS_A_SECOND, REQUESTS_AT_ONCE)
        self._refusals = Buckets(REFUSALS_A_SECOND, REFUSALS_AT_ONCE)
        self.looks = Buckets(LOOKS_A_SECOND, LOOKS_AT_ONCE)
        self.looking = WaitedPlaces(TOLD_AT_ONCE)
        try:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            if _is_served(path):
                raise SettingError(f"LARK_WORKER_SOCKET={path}: another worker service listens there")
            path.unlink(missing_ok=True)
            super().__init__(str(path), _Handler)
            # For service_actions.
            self.socket.setblocking(False)
            # Every job's user may connect; each request is authorised by its caller.
            path.chmod(0o666)
        except OSError as error:
            raise SettingError(f"LARK_WORKER_SOCKET={path}: cannot listen there: {error.strerror}") from None
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="socket", daemon=True)

    def start(self) -> None:
        """Start to serve requests."""
        self._thread.start()
        log.event("listening", socket=self._path)

    def stop(self) -> None:
        """Stop serving requests."""
        self.shutdown()
        self._thread.join(5)
        self.server_close()
        self._path.unlink(missing_ok=True)

    def log_refusal(self, peer: Peer, reason: CallerError) -> None:
        """Log that a caller is turned away, unless its user was too often."""
        if not self._refusals.take(peer.uid):
            # Part of the reason may be the caller's own words, such as a job's id.
            log.event("caller refused", level=log.WARNING, uid=peer.uid, pid=peer.pid, reason=str(reason)[:MAX_SHOWN])

    def log_failure(self, peer: Peer, message: str, error: Exception, path: str) -> None:
        """Log that a request of a caller failed, unless its user had too many such lines: a job may ask in a loop."""
        if not self._refusals.take(("failed", peer.uid)):
            log.failure(message, error, path=path[:MAX_SHOWN])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accept a connection; where no descriptor is left, the next is tried after a while."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in EXHAUSTED:
                exhausted("hook socket", error)
                time.sleep(EXHAUSTED_SECONDS)
            raise

    def service_actions(self) -> None:
        """Accept what else waits: the queue is for everybody, and one user may fill it.

        Called by the base class after each connection that it has accepted.
        """
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                request, client_address = self.get_request()
            except OSError:
                return
            try:
                self.process_request(request, client_address)
            except Exception:  # as the base class: an error about one caller is not the next one's
                self.handle_error(request, client_address)
                self.shutdown_request(request)

    def look(self, uid: int, cost: int = 1) -> None:
        """Pay for work at a user's connections. Raises CallerError where the user has nothing left."""
        if uid != 0 and self.looks.take(uid, cost):
            raise CallerError("this user's processes open too many connections")

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own; one over a limit is closed before it costs a thread."""
        peer = peer_of(request)
        uid = peer.uid
        try:
            self.look(uid, CONNECTION_COST)
        except CallerError as error:
            self.log_refusal(peer, error)
            request.close()
            return
        user = self.places.take(("user", uid), CONNECTIONS if uid == 0 else CONNECTIONS_PER_USER)
        if user and self.places.take("all", CONNECTIONS):
            try:
                super().process_request(request, client_address)
            except RuntimeError:
                # No thread can be started.
                self.places.give("all")
                self.places.give(("user", uid))
                raise
            return
        if user:
            self.places.give(("user", uid))
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, on its thread."""
        uid = peer_of(request).uid
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.give("all")
            self.places.give(("user", uid))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of a single connection: callers go away."""


class _GoneError(Exception):
    """The caller has stopped in the midst of its request."""


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: HookSocket
    protocol_version = "HTTP/1.1"
    server_version = "lark-worker"
    sys_version = ""
    timeout = IDLE

    def setup(self) -> None:
        """Read with a deadline."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(InTime(self.connection, time.monotonic() + WHOLE, IDLE, MAX_HEAD + MAX_AD))

    def handle(self) -> None:
        """Identify the caller, then read the request."""
        self.close_connection = True
        connection: socket.socket = self.connection
        peer = self._peer = peer_of(connection)
        try:
            with self.server.looking.place(peer.uid), held(connection, peer):
                self._job = self._starter(peer)
            caller, most = (self._job.pid, CONNECTIONS_PER_JOB) if self._job else ("root", CONNECTIONS)
            with self.server.places.place(caller, most) as free:
                if free:
                    self.handle_one_request()
        except CallerError as error:
            self.server.log_refusal(peer, error)
            places = self.server.places
            with (
                places.place(("outside", peer.uid), CONNECTIONS_OUTSIDE) as own,
                places.place("outside", CONNECTIONS_ALL_OUTSIDE) as free,
            ):
                if own and free:
                    self._turn_away(str(error))
        except OSError:
            return

    def _starter(self, peer: Peer) -> Process | None:
        """The caller's starter; None for root outside of any job, which may read."""
        try:
            return find_starter(peer.pid, self.server.programs, partial(self.server.look, peer.uid))
        except CallerError:
            if peer.uid == 0:
                return None
            raise

    def parse_request(self) -> bool:
        """As the base class, and refuse a target that is none."""
        if not super().parse_request():
            return False
        try:
            urlsplit(self.path)
        except ValueError:
            self.send_error(HTTPStatus.BAD_REQUEST, "The request's target is no URL.")
            return False
        return True

    def do_POST(self) -> None:
        """Register a job, renew it, report its use, reserve a flow, or give it an external address."""
        parts = urlsplit(self.path)
        words = parts.path.strip("/").split("/")
        if words == ["v1", "jobs"]:
            self._answer(lambda: self.server.worker.register(self._caller(), self._body(), wait_in(parts.query)))
        elif len(words) == 4 and words[:2] == ["v1", "jobs"] and words[3] == "renew":
            self._answer(lambda: self.server.worker.renew(self._caller(), words[2]), missing=True)
        elif words == ["v1", "usage"]:
            self._answer(lambda: self.server.worker.usage(self._caller()))
        elif words == ["v1", "reservations"]:
            reservations = self.server.worker.reservations
            self._pass(lambda: reservations.reserve(self._own(), self._body(), wait_in(parts.query)))
        elif words == ["v1", "external-addresses"]:
            external = self.server.worker.external
            self._pass(lambda: external.associate(self._own(), self._body(), wait_in(parts.query)))
        else:
            self._problem(HTTPStatus.NOT_FOUND, "There is no such route.")

    def do_PATCH(self) -> None:
        """Change a reservation of the caller's job."""
        words = urlsplit(self.path).path.strip("/").split("/")
        if len(words) == 3 and words[:2] == ["v1", "reservations"]:
            self._pass(lambda: self.server.worker.reservations.change(self._own(), words[2], self._body()))
        else:
            self._problem(HTTPStatus.NOT_FOUND, "There is no such route.")

    def do_DELETE(self) -> None:
        """End a job, or release what it has reserved."""
        words = urlsplit(self.path).path.strip("/").split("/")
        if len(words) == 3 and words[:2] == ["v1", "jobs"]:
            self._answer(
                lambda: self.server.worker.end(self._caller(), words[2], self._body().decode("utf-8", "replace")),
                missing=True,
            )
        elif len(words) == 3 and words[:2] == ["v1", "reservations"]:
            self._pass(lambda: self.server.worker.reservations.release(self._own(), words[2]))
        elif len(words) == 3 and words[:2] == ["v1", "external-addresses"]:
            self._pass(lambda: self.server.worker.external.release(self._own(), words[2]))
        else:
            self._problem(HTTPStatus.NOT_FOUND, "There is no such route.")

    def do_GET(self) -> None:
        """The caller's own job, its paths, a reservation or an external address of it, or what links and pools have
        left. For root alone: the namespace of the caller's own job, every job, or the service's own state."""
        path = urlsplit(self.path).path
        words = path.strip("/").split("/")
        if len(words) == 3 and words[:2] == ["v1", "reservations"]:
            self._pass(lambda: self._reservation(words[2], urlsplit(self.path).query))
        elif len(words) == 3 and words[:2] == ["v1", "external-addresses"]:
            self._pass(lambda: self.server.worker.external.show(self._own(), words[2]))
        elif path == "/v1/external-pools":
            self._pass(lambda: self.server.worker.external.pools(self._own()))
        elif path in ("/v1/links", "/v1/paths", "/v1/delivered"):
            self._pass(lambda: self._watched(path, urlsplit(self.path).query))
        elif path == "/v1/job":
            self._pass(lambda: (HTTPStatus.OK, _shown(self._own())))
        elif self._peer.uid != 0:
            self._problem(HTTPStatus.FORBIDDEN, "For root alone.")
        elif path == "/v1/namespace":
            self._answer(self._namespace)
        elif path == "/v1/status":
            status = {"jobs": len(self.server.worker.records()), "problems": self.server.worker.problems()}
            self._send(HTTPStatus.OK, "application/json", json.dumps(status))
        elif path == "/v1/jobs":
            shown = [
                {name: value for name, value in asdict(record).items() if name not in ("body", "exit_ad")}
                for record in self.server.worker.records()
            ]
            self._send(HTTPStatus.OK, "application/json", json.dumps({"jobs": shown}))
        else:
            self._problem(HTTPStatus.NOT_FOUND, "There is no such route.")

    def _watched(self, path: str, query: str) -> ControllerAnswer:
        """Links, or the job's own paths or deliveries, once others; where too many wait already, as they are."""
        record, (after, asked) = self._own(), change_in(query)
        paths = self.server.worker.paths
        with self._waiting(record, asked) as wait:
            if path == "/v1/links":
                return paths.links(after, wait)
            return (paths.paths if path == "/v1/paths" else paths.delivered)(record, after, wait)

    def _reservation(self, reservation_id: str, query: str) -> ControllerAnswer:
        """A reservation of the job, once it is enforced; where too many wait already, as it is."""
        record, asked = self._own(), min(wait_in(query), LONGEST_WAIT)
        if not asked:
            return self.server.worker.reservations.show(record, reservation_id)
        with self._waiting(record, asked) as wait:
            return self.server.worker.reservations.show(record, reservation_id, wait)

    @contextmanager
    def _waiting(self, record: Record, seconds: float) -> Iterator[float]:
        """Hold a place of those that wait; yields for how many seconds: 0 where none is free."""
        places = self.server.places
        with (
            places.place(("waiting", record.id), WAITING_PER_JOB) as job,
            places.place(("waiting user", self._peer.uid), WAITING_PER_USER) as user,
            places.place("waiting", WAITING) as free,
        ):
            yield seconds if job and user and free else 0.0

    def _namespace(self) -> str:
        record = self.server.worker.namespace(self._caller())
        resolv = resolv_conf(record.namespace)
        usage = "counted" if record.accounted else "not counted"
        more = [f"resolv {resolv}\n"] if resolv else []
        more += [f"external {address}\n" for address in record.external[:1]]
        more += [f"external_ipv6 {address}\n" for address in record.external if ":" in address]
        more += [f"external-ports {' '.join(record.opened)}\n"] if record.external else []
        more += [f"external-name {record.external_name}\n"] if record.external_name else []
        return f"namespace {record.namespace}\nusage {usage}\n" + "".join(more)

    def _own(self) -> Record:
        return self.server.worker.own(self._caller())

    def _caller(self) -> Process:
        if self._job is None:
            raise CallerError("the caller is part of no HTCondor job on this worker")
        return self._job

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "0")
        if not length.isascii() or not length.isdigit() or "Transfer-Encoding" in self.headers:
            raise AdError("", "a body needs its Content-Length")
        if len(length) > len(str(MAX_AD)) or int(length) > MAX_AD:
            raise AdError("", f"the ads take {length[:20]} bytes; at most {MAX_AD} are accepted")
        try:
            return self.rfile.read(int(length))
        except OSError as error:
            raise _GoneError(str(error)) from None

    def _answer(self, call: Callable[[], str], missing: bool = False) -> None:
        """Send the call's text, or the problem that it raises; with ``missing`` CallerError is 404."""
        self._guard(lambda: (HTTPStatus.OK, "text/plain; charset=utf-8", call()), missing)

    def _pass(self, call: Callable[[], ControllerAnswer]) -> None:
        """Send the controller's answer, or the problem that the call raises."""

        def passed() -> tuple[HTTPStatus, str, str]:
            status, document = call()
            kind = "application/json" if status < HTTPStatus.BAD_REQUEST else "application/problem+json"
            return HTTPStatus(status), kind, json.dumps(document)

        self._guard(passed, True)

    def _guard(self, call: Callable[[], tuple[HTTPStatus, str, str]], missing: bool) -> None:
        """Send status, content type and text of a call, or the problem that it raises."""
        if self._job is not None and self._peer.uid != 0 and self.server.rates.take(self._job.pid):
            self._problem(HTTPStatus.TOO_MANY_REQUESTS, "This job asks too often; ask again in a second.")
            return
        try:
            answer = call()
        except _GoneError:
            return
        except CallerError as error:
            self.server.log_refusal(self._peer, error)
            self._problem(HTTPStatus.NOT_FOUND if missing else HTTPStatus.FORBIDDEN, str(error))
        except RefusedError as error:
            self._problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error), refused="idle" if error.idle else "hold")
        except (AdError, ForgedError) as error:
            self._problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
        except LarkError as error:
            self.server.log_failure(self._peer, "a request failed", error, self.path)
            self._problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        except Exception as error:
            self.server.log_failure(self._peer, "unexpected error in a request", error, self.path)
            self._problem(HTTPStatus.INTERNAL_SERVER_ERROR, "The worker service failed; its log has the reason.")
        else:
            self._send(*answer)

    def _problem(self, status: HTTPStatus, detail: str, **members: str) -> None:
        document = {"type": "about:blank", "title": status.phrase, "status": status.value, "detail": detail, **members}
        self._send(status, "application/problem+json", json.dumps(document))

    def _turn_away(self, detail: str) -> None:
        """Answer without having read the request."""
        document = json.dumps({"type": "about:blank", "title": "Forbidden", "status": 403, "detail": detail})
        text = (
            "HTTP/1.1 403 Forbidden\r\nContent-Type: application/problem+json\r\n"
            f"Content-Length: {len(document)}\r\nConnection: close\r\n\r\n{document}"
        )
        try:
            self.connection.sendall(text.encode())
            self.connection.shutdown(socket.SHUT_WR)
            # Closing a socket with unread bytes resets the connection, and the answer is lost.
            end = time.monotonic() + 2.0
            while (left := end - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if not self.connection.recv(65536):
                    return
        except OSError:
            return

    def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
        data = text.encode("utf-8")
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send the base class's errors in this service's form."""
        self._problem(HTTPStatus(code), message or "The request cannot be read.")

    def address_string(self) -> str:
        """The peer in the base class's messages: a Unix socket has no address."""
        return "local"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class calls it so
        """Log nothing: requests are no events."""


def _is_served(path: Path) -> bool:
    """True if a process listens on a socket; the file of one that was killed may be removed."""
    with socket.socket(socket.AF_UNIX) as trial:
        try:
            trial.connect(str(path))
        except OSError:
            return False
        return True


def _shown(record: Record) -> dict[str, Any]:
    """A job as its own processes see it."""
    return {
        "id": record.id,
        "host": record.machine,
        "network_type": record.network_type,
        "addresses": [address.partition("/")[0] for address in record.addresses],
        "external_addresses": list(record.external),
        "external_open": list(record.opened),
        "external_name": record.external_name,
    }
