"""Notices the end of processes that are no children of this one: a pidfd becomes readable (pidfd_open(2))."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections.abc import Callable

from lark_common import log
from lark_common.threads import StoppableThread
from lark_worker.identity.processes import is_alive


class ProcessWatch:
    """Calls a function once for each watched process that has ended, on a thread of its own; thread-safe."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._lock = threading.Lock()
        self._calls: dict[int, Callable[[], None]] = {}
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._poll.register(self._wake, select.EPOLLIN)
        self._thread = StoppableThread("watch", self._run, wake=lambda: os.eventfd_write(self._wake, 1))

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait for calls that are being made."""
        self._thread.stop()
        for fd in list(self._calls):
            os.close(fd)
        self._calls.clear()
        self._poll.close()
        os.close(self._wake)

    def add(self, pid: int, started: int, call: Callable[[], None]) -> bool:
        """Watch the process with that id which started then; False where it has ended already (nothing is called).

        Raises OSError where it cannot be watched.
        """
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            return False
        # From here on the id belongs to this process, which may be a later one of the same id.
        try:
            alive = is_alive(pid, started)
        except OSError:
            os.close(fd)
            raise
        if not alive:
            os.close(fd)
            return False
        with self._lock:
            self._calls[fd] = call
        self._poll.register(fd, select.EPOLLIN | select.EPOLLONESHOT)
        return True

    def _run(self) -> None:
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._wake:
                    return
                try:
                    self._ended(fd)
                except Exception as error:  # an unexpected error must not stop this thread
                    log.failure("handling a process's end failed", error)

    def _ended(self, fd: int) -> None:
        with self._lock:
            call = self._calls.pop(fd)
        with contextlib.suppress(OSError):
            self._poll.unregister(fd)
        os.close(fd)
        try:
            threading.Thread(target=call, name="ended", daemon=True).start()
        except RuntimeError:
            # No thread can be started: the other ends wait for this call.
            call()
