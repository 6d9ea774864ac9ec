"""The threads that answer requests, and the order in which they take them: :class:`Dispatcher`.

waitress takes requests in the order in which they came, as many at a time as there are threads: a script that asks
without a pause would have the threads, and the interpreter, to itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any, Final, Protocol

from waitress.task import ThreadedTaskDispatcher

from lark_common.log import WARNING, event
from lark_common.turns import Turn, Turns
from lark_controller.rest.tokens import Scope, Token

# Requests that calculate at a time, and those of one token. What waits for the database, the switches or a change does
# not count.
MOST: Final = 6
MOST_OF_ONE: Final = 2
# The same of requests without a token, and of those that ask whether the process lives.
_MOST_WITHOUT: Final = 2
_HEALTH: Final = "/healthz"
_READS: Final = ("GET", "HEAD")
# Seconds of the connections' thread with which a request is charged at most: others' connections take some as well.
MOST_CHARGED: Final = 0.001

# Threads that are there from the start.
FIRST_THREADS: Final = 8

# The token in an Authorization header; None where it is none.
Callers = Callable[[str], Token | None]


def nobody(_header: str) -> Token | None:
    """The callers of a server without tokens."""
    return None


class Channel(Protocol):
    """A connection with a request to answer, as this module needs it."""

    requests: list[Any]

    @property
    def peer(self) -> str:
        """The peer's address."""

    def service(self) -> None:
        """Answer the request."""

    def cancel(self) -> None:
        """Close the connection."""


class _Request:
    """A request that has its turn."""

    def __init__(self, channel: Channel, turn: Turn) -> None:
        self._channel = channel
        self._turn = turn

    def service(self) -> None:
        """Answer it."""
        with self._turn:
            self._channel.service()

    def cancel(self) -> None:
        """Give it up."""
        self._channel.cancel()


class Dispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]  # waitress publishes no types, so its class is Any
    """Answers requests by turns: few at a time, and next the one of the caller that has had least processor time.

    A caller is a token, whose addresses share its turns, or an address without a token. Where one token is good for
    every host, each address with it is a caller: it may be that of all workers. What starts, renews and ends jobs has
    turns of its own, so that it does not rest for those that read, and goes ahead of them.
    """

    def __init__(self, callers: Callers) -> None:
        super().__init__()
        # It would warn of every request that waits a moment for a thread; /metrics has how long posts take.
        self.queue_logger = logging.getLogger("lark_controller.rest.queue")
        self.queue_logger.setLevel(logging.ERROR)
        self._callers = callers
        self._jobs = Turns(MOST, MOST_OF_ONE)
        self._turns = Turns(MOST, MOST_OF_ONE, ahead=self._jobs)
        self._without = Turns(_MOST_WITHOUT, _MOST_WITHOUT, ahead=self._jobs)
        self._health = Turns(_MOST_WITHOUT, _MOST_WITHOUT)
        # Since the last charge: the turns of the requests that came in, and the seconds of the connections' thread.
        self._arrived: list[Turn] = []
        self._spent = 0.0
        self._most_threads = 0
        # Held while the number of threads is chosen and set: waitress stops threads where it is given a smaller one.
        self._growing = threading.Lock()

    def add_task(self, task: Channel) -> None:
        """Have a connection's next request answered when it is its turn."""
        request = task.requests[0]
        header = request.headers.get("AUTHORIZATION")
        token = None if header is None else self._callers(header)
        caller = task.peer if token is None else token.name
        if token is not None and token.is_good_for_every_host:
            caller = f"{token.name} {task.peer}"
        if getattr(request, "path", "") == _HEALTH:
            turns = self._health
            caller = task.peer
        elif token is None:
            turns = self._without
        else:
            turns = self._turns
            if Scope.HOOK in token.scopes and getattr(request, "command", "GET") not in _READS:
                turns = self._jobs
                self._turns.others_ask()
            self._without.others_ask()
            self._health.others_ask()

        def start(turn: Turn) -> None:
            self._hand_over(_Request(task, turn))

        self._arrived.append(turns.ask(caller, task.peer, start))

    def set_thread_count(self, count: int) -> None:
        """Have ``count`` threads at most: a few at once, the others when they are needed. Each that has ever answered
        keeps some 100 kB, and waitress lets all of them take turns."""
        with self._growing:
            self._most_threads = count
            super().set_thread_count(min(count, max(FIRST_THREADS, len(self.threads))))

    def start_new_thread(self, target: Callable[[int], None], thread_no: int) -> None:
        """Start a thread. Raises RuntimeError where the system has none left."""
        try:
            super().start_new_thread(target, thread_no)
        except RuntimeError:
            self.threads.discard(thread_no)
            raise

    def _hand_over(self, request: _Request) -> None:
        ThreadedTaskDispatcher.add_task(self, request)
        with self._growing:
            self._grow()

    def _grow(self) -> None:
        """Start as many threads as requests wait for one."""
        with self.lock:
            running = len(self.threads) - self.stop_count
            short = len(self.queue) - (running - self.active_count)
        wanted = min(self._most_threads, running + short)
        if wanted > running:
            try:
                super().set_thread_count(wanted)
            except RuntimeError as error:
                # The threads that are there answer, one request after the other.
                event("a thread for REST cannot be started", level=WARNING, threads=running, error=error)

    def charge(self, used: float) -> None:
        """Charge the requests that have come in, in equal parts, with the processor time that the connections' thread
        has used since the last call: it reads, parses and writes for them."""
        self._spent += used
        arrived, self._arrived = self._arrived, []
        if arrived:
            each, self._spent = min(self._spent / len(arrived), MOST_CHARGED), 0.0
            for turn in arrived:
                turn.charge(each)
