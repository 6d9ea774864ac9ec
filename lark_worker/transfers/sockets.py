"""Asks the kernel for the TCP connections of this network namespace, and receives its notice of each that ends."""

from __future__ import annotations

import errno
import math
import os
import select
import socket
from typing import Final

from lark_worker.transfers import inet_diag
from lark_worker.transfers.inet_diag import Connection

_SOCK_DIAG: Final = 4
_READ: Final = 1 << 18
# Room for the ends of connections between two looks: some 10,000 of them.
_ROOM: Final = 1 << 23
# Ends that are read at once: as many as there is room for. Whoever makes connections faster than they are read here
# would keep the reader busy for ever; what is beyond is read by the next look, or lost and counted.
MOST_ENDS: Final = 1 << 14
# Seconds that an answer may take.
_PATIENCE: Final = 2.0
# SO_RCVBUFFORCE: more than net.core.rmem_max, for root.
_FORCED_ROOM: Final = 33


class Sockets:
    """The connections of this network namespace; not thread-safe. Raises OSError where the kernel has no sock_diag.

    ``lost`` counts the times at which ends of connections came faster than they were read, for which there are ``room``
    bytes. All calls are made in the namespace in which it was made.
    """

    def __init__(self, room: int = _ROOM) -> None:
        self.lost = 0
        self._sequence = 0
        self._ends = _netlink(inet_diag.DESTROY_GROUPS)
        self._ends.setblocking(False)
        try:
            self._ends.setsockopt(socket.SOL_SOCKET, _FORCED_ROOM, room)
        except OSError:
            self._ends.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)

    def close(self) -> None:
        """Hear of nothing more."""
        self._ends.close()

    def open(self, most: float = math.inf) -> list[Connection]:
        """The connections that there are now; of each family some more than ``most`` at most. Raises OSError."""
        found: list[Connection] = []
        for family in (socket.AF_INET, socket.AF_INET6):
            found += self._dump(family, most)
        return found

    def ended(self, most: int = MOST_ENDS) -> list[Connection]:
        """The connections that have ended since the last call, with their last counts; what comes of ``most`` messages
        at most. Raises OSError."""
        found: list[Connection] = []
        for _ in range(most):
            try:
                data = self._ends.recv(_READ)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                self.lost += 1
                continue
            for kind, _, content in inet_diag.messages(data):
                if kind == inet_diag.BY_FAMILY and (each := inet_diag.connection(content)) is not None:
                    found.append(each)
        return found

    def destroy(self, connection: Connection) -> None:
        """End a connection at once. Raises OSError, EOPNOTSUPP where the kernel cannot (CONFIG_INET_DIAG_DESTROY)."""
        self._sequence += 1
        with _netlink(0) as asking:
            asking.settimeout(_PATIENCE)
            asking.send(inet_diag.destroy_request(connection, self._sequence))
            for kind, sequence, content in inet_diag.messages(asking.recv(_READ)):
                if (kind, sequence) == (inet_diag.ERROR, self._sequence):
                    code = inet_diag.error_code(content)
                    # One that has ended meanwhile is what was asked for.
                    if code not in (0, errno.ENOENT):
                        raise OSError(code, os.strerror(code))

    def _dump(self, family: socket.AddressFamily, most: float) -> list[Connection]:
        self._sequence += 1
        found: list[Connection] = []
        with _netlink(0) as asking:
            asking.send(inet_diag.dump_request(family, self._sequence))
            poll = select.poll()
            poll.register(asking, select.POLLIN)
            while poll.poll(1000 * _PATIENCE):
                for kind, sequence, content in inet_diag.messages(asking.recv(_READ)):
                    if sequence != self._sequence:
                        continue
                    # A kernel without tcp_diag ends its list with that error.
                    if kind in (inet_diag.DONE, inet_diag.ERROR) and (code := inet_diag.error_code(content)):
                        raise OSError(code, os.strerror(code))
                    if kind == inet_diag.DONE:
                        return found
                    if kind == inet_diag.BY_FAMILY and (each := inet_diag.connection(content)) is not None:
                        found.append(each)
                if len(found) >= most:
                    return found
        raise OSError(errno.ETIMEDOUT, "the kernel does not list its connections")


def _netlink(groups: int) -> socket.socket:
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG)
    try:
        made.bind((0, groups))
    except OSError:
        made.close()
        raise
    return made
