"""One controller's REST API: its address, and one request to it."""

from __future__ import annotations

import errno
import http.client
import io
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from lark_common.errors import LarkError, SettingError
from lark_common.limits import InTime


class UnreachableError(LarkError):
    """The controller did not answer, with the reason; ``sent`` where it may have had the request all the same."""

    def __init__(self, reason: str, sent: bool = False) -> None:
        super().__init__(reason)
        self.sent = sent


class ProblemError(LarkError):
    """The controller refused; ``status`` and ``problem`` are those of its problem document (RFC 9457)."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        super().__init__(str(problem.get("detail") or problem.get("title") or f"status {status}"))
        self.status = status
        self.problem = dict(problem)

    @property
    def mistakes(self) -> list[dict[str, Any]]:
        """The mistakes of a policy that was refused."""
        found = self.problem.get("mistakes")
        return found if isinstance(found, list) else []


# OpenSSL's numbers of what is wrong with a certificate (X509_V_ERR_…).
_ANOTHER_AUTHORITY: Final = (
    "this machine does not trust the authority of its certificate; name the site's, ca.pem on the controller's host, "
    "by LARK_CA (a worker's service: LARK_WORKER_CA_FILE)"
)
_ANOTHER_NAME: Final = "take a name that its certificate has, or make one with this name (lark setup --name … --renew)"
_CERTIFICATES: Final = {
    9: "compare this machine's clock with the controller's",
    10: "renew it on the controller's host (lark setup … --renew), and restart the controller",
    62: _ANOTHER_NAME,
    64: _ANOTHER_NAME,
}
_TLS: Final = {
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": (
        "it refuses this machine's own certificate, which has expired; a worker joins anew (lark join add, lark-worker "
        "setup --join)"
    ),
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the authority of this machine's own certificate",
    "WRONG_VERSION_NUMBER": "no TLS is spoken there; is it http://… instead of https://…?",
}


@dataclass(frozen=True, slots=True)
class Reply:
    """The bytes of an answer, and the seconds by which the server's clock was ahead."""

    data: bytes
    ahead: float


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class AnnouncedAnswer(http.client.HTTPResponse):
    """An answer that says how long it is, so that one which breaks off is none, wherever it does.

    http.client takes the end of a connection for that of the headers: a status, and an empty body.
    """

    def begin(self) -> None:
        """Read the headers. Raises IncompleteRead where they are not all there."""
        super().begin()
        if self.length is None and not self.chunked:
            raise http.client.IncompleteRead(b"")


class AnswerInTime(http.client.HTTPResponse):
    """An answer that takes ``seconds`` at most from the request on, however slowly it comes."""

    seconds = 0.0

    def __init__(self, sock: socket.socket, *arguments: Any, **named: Any) -> None:
        super().__init__(sock, *arguments, **named)
        self.fp.close()
        self.fp = io.BufferedReader(InTime(sock, time.monotonic() + self.seconds))


def _trusting(ca: str | os.PathLike[str] | None) -> ssl.SSLContext:
    """A context that trusts the authorities in a file, or the system's. Raises SettingError."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        reason = error.strerror or error
        raise SettingError(f"{ca}: no authority's certificate can be read: {reason}; accepted: a PEM file") from None


class Endpoint:
    """The address of a controller, with the certificates for it; thread-safe. Raises SettingError for what is none.
    ``base`` is the path below which it serves all.

    ``whole``, ``most`` and ``unverified`` are those of :class:`lark_common.client.Client`.
    """

    def __init__(
        self,
        url: str,
        ca: str | os.PathLike[str] | None = None,
        cert: str | os.PathLike[str] | None = None,
        key: str | os.PathLike[str] | None = None,
        *,
        whole: bool = False,
        most: int,
        unverified: bool = False,
    ) -> None:
        try:
            parts = urlsplit(url)
        except ValueError as error:
            raise SettingError(f"{url!r} cannot be used: {error}") from None
        if parts.scheme not in ("http", "https", "unix") or not (
            parts.path if parts.scheme == "unix" else parts.hostname
        ):
            raise SettingError(f"{url!r} is no URL of a controller; accepted: http://…, https://…, unix:/path")
        try:
            self._port = parts.port
            self._tls = None if parts.scheme != "https" else _trusting(ca)
            if self._tls is not None and unverified:
                self._tls.check_hostname = False
                self._tls.verify_mode = ssl.CERT_NONE
            if self._tls is not None and cert is not None:
                self._tls.load_cert_chain(cert, key)
        except (ValueError, OSError) as error:
            raise SettingError(f"{url!r} cannot be used: {error}") from None
        self.url = url
        self._shows = cert is not None
        self._parts = parts
        self.base = "" if parts.scheme == "unix" else parts.path.rstrip("/")
        self._whole = whole
        self._most = most
        self._lock = threading.Lock()
        self._polls: set[socket.socket] = set()

    def ask(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None, seconds: float, poll: bool
    ) -> Reply:
        """Make a request, whose steps take ``seconds`` at most; a ``poll`` is one that :meth:`hang_up` ends.

        Raises UnreachableError where nothing answers, or not as a controller does, and ProblemError.
        """
        connection = self.connection(seconds)
        if self._whole:
            connection.response_class = type("", (AnswerInTime, AnnouncedAnswer), {"seconds": seconds})
        sent = False
        try:
            connection.connect()
            sent = True
            if poll:
                with self._lock:
                    self._polls.add(connection.sock)
            sent_at = time.time()
            connection.request(method, self.base + target, body, dict(headers))
            answer = connection.getresponse()
            ahead = _ahead(answer.getheader("Date"), sent_at)
            data = answer.read(self._most + 1)
            if answer.length and len(data) <= self._most:
                raise http.client.IncompleteRead(data, answer.length)
        except (OSError, http.client.HTTPException) as error:
            raise UnreachableError(
                f"{self.url} cannot be reached: {reason_of(error, self._tls is not None, self._shows)}", sent
            ) from None
        finally:
            if poll:
                with self._lock:
                    self._polls.discard(connection.sock)
            connection.close()
        if len(data) > self._most:
            raise UnreachableError(f"{self.url} answers with more than {self._most} bytes.", sent)
        if 300 <= answer.status < 400:
            # A controller sends nobody elsewhere; some device in between does.
            words = f"{self.url} does not answer as a Lark controller does: status {answer.status}."
            raise UnreachableError(words, sent)
        if answer.status >= 400:
            raise ProblemError(answer.status, _problem(data, answer.status))
        return Reply(data, ahead)

    def is_silent(self, seconds: float) -> bool:
        """True where the controller does not even say that it lives, in so many seconds: it stands still, or is cut
        off. One that refuses or breaks off is not silent."""
        connection = self.connection(seconds)
        try:
            connection.request("GET", f"{self.base}/healthz")
            connection.getresponse()
        except TimeoutError:
            return True
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
        return False

    def hang_up(self) -> None:
        """End the polls that are under way, which raise UnreachableError."""
        with self._lock:
            for each in self._polls:
                try:
                    # The socket's own, not TLS's, which another thread reads.
                    socket.socket.shutdown(each, socket.SHUT_RDWR)
                except OSError:
                    continue  # it has ended by itself

    def connection(self, timeout: float) -> http.client.HTTPConnection:
        """A connection to the controller that is not open yet, whose steps take ``timeout`` seconds at most."""
        made = self._connection(timeout)
        made.response_class = AnnouncedAnswer
        return made

    def _connection(self, timeout: float) -> http.client.HTTPConnection:
        if self._parts.scheme == "unix":
            return _UnixConnection(self._parts.path, timeout)
        host = self._parts.hostname or ""
        if self._tls is not None:
            return http.client.HTTPSConnection(host, self._port, timeout=timeout, context=self._tls)
        return http.client.HTTPConnection(host, self._port, timeout=timeout)


def reason_of(error: Exception, tls: bool, shows: bool = False) -> str:
    """A failed request's reason in a sentence, with what to do where that is known. ``shows``: the caller shows a
    certificate of its own."""
    if isinstance(error, ssl.SSLCertVerificationError):
        words = error.verify_message.rstrip(".")
        return f"{words}: {_CERTIFICATES.get(error.verify_code, _ANOTHER_AUTHORITY)}."
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    if isinstance(error, ssl.SSLError) and (known := _TLS.get(getattr(error, "reason", None) or "")):
        return f"{known}."
    if shows and isinstance(error, ssl.SSLEOFError | ConnectionResetError | BrokenPipeError | ssl.SSLZeroReturnError):
        # A server's alert may be lost where it has closed before the request was written.
        return f"{words}. Is this machine's own certificate still good (openssl x509 -enddate -noout -in FILE)?"
    if tls and isinstance(error, ssl.SSLEOFError):
        # A controller without TLS ends what is no HTTP without a word.
        return "The connection ended where TLS was to begin; is it http://… instead of https://…?"
    if isinstance(error, ConnectionError) and error.errno == errno.ECONNREFUSED:
        running = "Is the controller running (on its host: systemctl status lark-controller)?"
        return f"{words}: nothing listens there. {running}"
    if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError | http.client.BadStatusLine) and not tls:
        return f"{words}. Does it speak TLS (https://…)?"
    if isinstance(error, socket.gaierror):
        return f"{words}: this machine does not know the name."
    if isinstance(error, TimeoutError):
        return f"{words}: no answer in time. Is its host up, and does a packet filter let this machine through?"
    return f"{words}."


def _ahead(date: str | None, sent_at: float) -> float:
    """Of an answer's Date (RFC 9110, section 6.6.1), which is of the request's arrival and a whole second."""
    try:
        at = parsedate_to_datetime(date or "")
    except (ValueError, OverflowError):
        return 0.0
    # A date without a zone that is known is in UTC all the same.
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return at.timestamp() + 0.5 - sent_at


def _problem(data: bytes, status: int) -> Mapping[str, Any]:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    return found if isinstance(found, dict) else {"status": status, "detail": f"The server answered {status}."}


def read_token(path: Path) -> str:
    """The token that a file holds. Raises SettingError."""
    try:
        return path.read_text("utf-8").strip()
    except OSError as error:
        raise SettingError(f"{path}: the token cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SettingError(f"{path}: the token cannot be read: it is no text in UTF-8") from None
