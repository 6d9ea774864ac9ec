"""A thread that runs until it is stopped, and the processor time of one."""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Callable

from lark_common.log import failure


def processor_time(work: Callable[[], object]) -> float:
    """The processor time in seconds that this thread takes for ``work``, and the programs that are run in it.

    Programs of other threads that end meanwhile are in it too, so it is at most the time that passes.
    """
    began, before = time.monotonic(), _with_programs()
    work()
    return min(time.monotonic() - began, _with_programs() - before)


def _with_programs() -> float:
    """The processor time of this thread, and of the programs that the process has waited for."""
    programs = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.thread_time() + programs.ru_utime + programs.ru_stime


class StoppableThread:
    """Runs ``work`` once on a daemon thread, from :meth:`start`; ``work`` returns soon after :meth:`stop`.

    ``wake`` ends a pause of ``work`` that is no :meth:`pause`.
    """

    def __init__(self, name: str, work: Callable[[], None], wake: Callable[[], object] | None = None) -> None:
        self._stop = threading.Event()
        self._wake = wake
        self._thread = threading.Thread(target=work, name=name, daemon=True)

    @property
    def name(self) -> str:
        """The thread's name."""
        return self._thread.name

    def is_alive(self) -> bool:
        """True while ``work`` runs."""
        return self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """True from :meth:`stop` on."""
        return self._stop.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, patience: float = 10.0) -> None:
        """Let ``work`` return, and wait so many seconds for it. Idempotent; a thread that never started is stopped."""
        self._stop.set()
        if self._wake is not None:
            self._wake()
        if self._thread.ident is not None:
            self._thread.join(patience)

    def pause(self, seconds: float) -> bool:
        """Wait so long; True where the thread is stopped meanwhile."""
        return self._stop.wait(seconds)


class TurnThread(StoppableThread):
    """Calls ``turn`` again and again, which returns the seconds until the next call; the first one comes after
    ``first`` seconds. An unexpected error is logged under ``words``, and the next call comes ``later`` seconds after
    it."""

    def __init__(self, name: str, turn: Callable[[], float], words: str, *, first: float, later: float) -> None:
        super().__init__(name, self._turns)
        self._turn = turn
        self._words = words
        self._first, self._later = first, later

    def _turns(self) -> None:
        pause = self._first
        while not self.pause(pause):
            try:
                pause = self._turn()
            except Exception as error:
                failure(self._words, error)
                pause = self._later
