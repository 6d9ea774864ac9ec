"""The processes behind a caller, read from ``/proc`` and held by pidfd (pidfd_open(2)) against reuse of ids."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from lark_worker.errors import CallerError

# Linux 6.5: a pidfd of the peer, whose place no later process can take. Absent from Python's socket module.
_SO_PEERPIDFD: Final = 77
MAX_DEPTH: Final = 128
# Bytes of a command line that are read.
_MAX_ARGUMENTS: Final = 65536
# Errors that tell nothing about the process.
_SHORT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


@dataclass(frozen=True, slots=True)
class Process:
    """A process: ``started`` is in clock ticks since boot, ``uid`` its real user id, ``program`` the file it runs."""

    pid: int
    parent: int
    started: int
    uid: int
    program: str


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end of a Unix socket (unix(7), SO_PEERCRED)."""

    pid: int
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Programs:
    """The files of starter and startd, and the real user id that both run with."""

    starters: frozenset[str]
    startds: frozenset[str]
    uid: int = 0


def read_process(pid: int) -> Process:
    """A process as it is now. Raises ProcessLookupError when there is none (a zombie is none), and another OSError
    where this process has no descriptors or memory left.
    """
    try:
        # The fields behind the last parenthesis cannot be chosen by the process.
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        status = _read(f"/proc/{pid}/status").decode("utf-8", "replace")
        program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")  # noqa: PTH115  # as _read
    except OSError as error:
        if error.errno in _SHORT:
            raise
        raise ProcessLookupError(f"there is no process {pid}") from None
    uid = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("Uid:"))
    return Process(pid, int(fields[1]), int(fields[19]), uid, program)


def _read(name: str) -> bytes:
    """A file. Not by ``Path``, which keeps each part of a name for ever in Python 3.12.0 to 3.12.6: whoever connects
    has a process looked at, and may be ever other ones."""
    with open(name, "rb") as file:  # noqa: PTH123  # see above
        return file.read()


def is_alive(pid: int, started: int) -> bool:
    """True if the process with that id is still the one that started then."""
    try:
        return read_process(pid).started == started
    except ProcessLookupError:
        return False


def arguments_of(process: Process) -> tuple[str, ...]:
    """The command line of a process of root's. Raises ProcessLookupError when it has ended.

    Not to be called for a user's process: its user can make the command line gigabytes long (prctl(2),
    PR_SET_MM_MAP), or have it in a file system that never answers whoever reads it.
    """
    try:
        with open(f"/proc/{process.pid}/cmdline", "rb") as file:  # noqa: PTH123  # as _read
            text = file.read(_MAX_ARGUMENTS).decode("utf-8", "replace")
    except OSError as error:
        if error.errno in _SHORT:
            raise
        raise ProcessLookupError(f"there is no process {process.pid}") from None
    if not is_alive(process.pid, process.started):
        raise ProcessLookupError(f"process {process.pid} has ended")
    return tuple(text.split("\0")[:-1])


def ancestry(pid: int) -> Iterator[Process]:
    """The process and its parents, up to the first process. Raises ProcessLookupError when one has just ended."""
    for _ in range(MAX_DEPTH):
        process = read_process(pid)
        yield process
        if process.parent == 0:
            return
        pid = process.parent


def peer_of(connection: socket.socket) -> Peer:
    """The process that connected."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return Peer(*struct.unpack("3i", credentials))


@contextlib.contextmanager
def held(connection: socket.socket, peer: Peer) -> Iterator[None]:
    """Hold the process that connected, so that its id means this process and no other.

    Raises CallerError where it has hung up and nobody would read an answer; and at the end if it has ended meanwhile:
    values read by its id may then be of another process.
    """
    if _has_hung_up(connection):
        raise CallerError("the caller has hung up")
    try:
        try:
            fd = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError:
            # Before Linux 6.5 a process id that was used again is noticed only by its user.
            fd = os.pidfd_open(peer.pid)
    except OSError:
        raise CallerError("the caller has ended") from None
    try:
        if peer.uid != 0 and read_process(peer.pid).uid != peer.uid:
            raise CallerError("the caller has ended")
        yield
        if has_ended(fd):
            raise CallerError("the caller has ended")
    finally:
        os.close(fd)


def has_ended(pidfd: int) -> bool:
    """True if the process behind a pidfd has ended."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _has_hung_up(connection: socket.socket) -> bool:
    """True if the other end is closed."""
    poll = select.poll()
    poll.register(connection, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def find_starter(pid: int, programs: Programs, look: Callable[[], object] | None = None) -> Process:
    """The condor_starter that the process descends from. Raises CallerError where there is none.

    ``look`` is called for each process that is looked at, and may raise CallerError, too.

    A starter counts only with the real user id of HTCondor's daemons and as the child of a startd that has it too:
    users can run the same programs, but not so.
    """
    try:
        above: Process | None = None
        for process in ancestry(pid):
            if look is not None:
                look()
            if above is not None and process.started > above.started:
                # Its parent has ended meanwhile, and another process has that id.
                break
            if (
                above is not None
                and above.program in programs.starters
                and above.uid == programs.uid
                and process.program in programs.startds
                and process.uid == programs.uid
            ):
                return above
            above = process
    except ProcessLookupError:
        raise CallerError("the caller has ended") from None
    raise CallerError("the caller is part of no HTCondor job on this worker")
