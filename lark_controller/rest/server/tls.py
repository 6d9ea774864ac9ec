"""TLS for a server that reads all its connections in one thread and may never block there.

The handshake happens as bytes arrive, so a client that connects and stays silent holds up no other.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from lark_common.errors import SettingError

_CHUNK: Final = 65536


def server_context(cert: Path | None, key: Path | None, ca: Path | None = None) -> ssl.SSLContext | None:
    """The TLS context of a server, None without a certificate. With ``ca`` clients may show a certificate of that
    authority. Raises SettingError where the files cannot be used."""
    if cert is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise SettingError(f"LARK_REST_TLS_CERT={cert}, LARK_REST_TLS_KEY={key}: cannot be used: {error}") from None
    if ca is not None:
        try:
            context.load_verify_locations(ca)
        except (OSError, ssl.SSLError) as error:
            raise SettingError(f"LARK_REST_TLS_CA={ca}: cannot be used: {error}") from None
        # The application refuses a client without a certificate where one is needed.
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


class TlsListener(socket.socket):
    """A listening socket whose connections use TLS; takes over the descriptor of ``bound``."""

    def __init__(self, bound: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(bound.family, bound.type, bound.proto, fileno=bound.detach())
        self._context = context

    def accept(self) -> tuple[Any, Any]:
        """A :class:`TlsConnection` and the peer's address."""
        connection, address = super().accept()
        return TlsConnection(connection, self._context), address


class TlsConnection:
    """A connected socket as waitress needs it, over TLS, without blocking.

    The thread that reads all connections and the one that answers a request may use a connection at the same time,
    which OpenSSL does not allow: a lock separates them.
    """

    def __init__(self, connection: socket.socket, context: ssl.SSLContext) -> None:
        self._socket = connection
        self._lock = threading.Lock()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._plain = bytearray()
        self._cipher = bytearray()
        self._ended = False

    @property
    def names(self) -> tuple[str, ...] | None:
        """The hosts in the client's certificate, none where it showed none; None where it was not asked for one."""
        if self._tls.context.verify_mode is ssl.CERT_NONE:
            return None
        with self._lock:
            shown = self._tls.getpeercert() or {}
        return _hosts_of(shown)

    @property
    def unsent(self) -> bool:
        """True while encrypted bytes wait for room in the socket."""
        return bool(self._cipher)

    def fill(self) -> bool:
        """Take in what has arrived; True where ``recv`` has a result (data, or the end)."""
        with self._lock:
            self._take_in()
            self._give_out()
            return bool(self._plain) or self._ended

    def flush(self) -> bool:
        """Send what waits; True where nothing waits any more."""
        with self._lock:
            self._give_out()
            return not self._cipher

    def recv(self, size: int) -> bytes:
        """All bytes that have arrived, whatever ``size``: no event would announce the rest."""
        with self._lock:
            data = bytes(self._plain)
            self._plain.clear()
            return data

    def send(self, data: bytes) -> int:
        """Encrypt and send a piece of ``data``; returns how much was accepted. Raises BlockingIOError while full."""
        with self._lock:
            self._give_out()
            if self._ended:
                raise ConnectionResetError(errno.ECONNRESET, "the TLS connection has ended")
            if self._cipher:
                raise BlockingIOError(errno.EWOULDBLOCK, "the socket is full")
            accepted = self._tls.write(data[:_CHUNK])
            self._give_out()
            return accepted

    def close(self) -> None:
        """Send TLS's close_notify where the peer still reads, and close."""
        with self._lock:
            if not self._ended:
                with contextlib.suppress(ssl.SSLError, OSError):
                    self._tls.unwrap()
                self._give_out()
            self._socket.close()

    def fileno(self) -> int:
        """The descriptor."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:
        """As of the socket."""
        self._socket.setblocking(flag)

    def getpeername(self) -> Any:
        """As of the socket."""
        return self._socket.getpeername()

    def getsockopt(self, level: int, option: int) -> int:
        """As of the socket."""
        return self._socket.getsockopt(level, option)

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """As of the socket."""
        self._socket.setsockopt(level, option, value)

    def _take_in(self) -> None:
        try:
            arrived = self._socket.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self._ended = True
            return
        if arrived:
            self._incoming.write(arrived)
        else:
            self._incoming.write_eof()
        try:
            while piece := self._tls.read(_CHUNK):
                self._plain += piece
            self._ended = True
        except ssl.SSLWantReadError:
            self._ended = not arrived
        except ssl.SSLError:
            self._ended = True

    def _give_out(self) -> None:
        self._cipher += self._outgoing.read()
        while self._cipher:
            try:
                sent = self._socket.send(self._cipher)
            except BlockingIOError:
                return
            except OSError:
                self._cipher.clear()
                self._ended = True
                return
            del self._cipher[:sent]


def _hosts_of(shown: Mapping[str, Any]) -> tuple[str, ...]:
    """The DNS names of a certificate, or its common name where it has none."""
    names = tuple(value for kind, value in shown.get("subjectAltName", ()) if kind == "DNS")
    common = (value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName")
    return names or tuple(common)
