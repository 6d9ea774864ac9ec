"""The controllers of a site, of which one is active: the order in which they are asked.

``docs/reference/several-controllers.md`` has the table: what follows from each answer, and what is asked again.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Final, TypeVar

from lark_common.endpoint import Endpoint, ProblemError, UnreachableError
from lark_common.errors import SettingError

# The type of the problem that a controller answers while another one is active.
STANDBY: Final = "urn:lark:problem:standby"
# Seconds until all are asked again where none is active (Retry-After of a standby).
PAUSE: Final = 1.0
# Seconds after which one that has not answered is asked whether it lives, and those that it has for that. One that
# stands still (SIGSTOP, a machine that hangs) takes connections on and answers nothing.
SILENT_SECONDS: Final = 1.0
LIVES_SECONDS: Final = 2.0
# Statuses of a controller that cannot do its work, or of a proxy before it.
UNAVAILABLE: Final = frozenset({502, 503, 504})

Failure = UnreachableError | ProblemError
# Asks one controller: the controller, seconds for the answer, seconds for which it may hold the request.
Value = TypeVar("Value")
Ask = Callable[[Endpoint, float, float], Value]


def urls(text: str) -> tuple[str, ...]:
    """The URLs of a list, separated by spaces or commas, each once. Raises SettingError where there is none."""
    found = tuple(dict.fromkeys(each for each in re.split(r"[\s,]+", text) if each))
    if not found:
        raise SettingError(f"{text!r} is no URL of a controller; accepted: http://…, https://…, unix:/path")
    return found


class Controllers:
    """Asks the active one of several controllers, that which answered last first; thread-safe."""

    def __init__(self, endpoints: Sequence[Endpoint]) -> None:
        self._endpoints = tuple(endpoints)
        self._first = self._endpoints[0]
        self._lock = threading.Lock()

    def ask(self, ask: Ask[Value], timeout: float, wait: float, again: bool) -> Value:
        """Ask until one answers, for ``timeout`` seconds in all beside the ``wait`` that a controller may hold it.

        Each controller gets an equal part of the time, the last of a round all that is left; one that does not say
        that it lives is left sooner, where the request may be made again and is not held. While one stands by, all are
        asked again each second. ``again``: the request may be made again where it is not known whether it was
        done. Raises UnreachableError and ProblemError as one controller does.
        """
        end = time.monotonic() + timeout + wait
        part = timeout / len(self._endpoints)
        failures: dict[str, Failure] = {}
        while True:
            order = self._order()
            while order and (left := end - time.monotonic()) > 0:
                endpoint = order.pop(0)
                held = round(min(wait, max(0.0, left - part * (1 + len(order)))), 3)
                seconds = min(left, part + held) if order else left
                try:
                    if order and again and not held and seconds > SILENT_SECONDS + LIVES_SECONDS:
                        reply = _while_it_lives(ask, endpoint, seconds)
                    else:
                        reply = ask(endpoint, seconds, held)
                except UnreachableError as error:
                    if error.sent and not again:
                        raise
                    failures[endpoint.url] = error
                except ProblemError as error:
                    if not _elsewhere(error, again):
                        self._answered(endpoint)
                        raise
                    failures[endpoint.url] = error
                    _put_first(order, error.problem.get("active"))
                else:
                    self._answered(endpoint)
                    return reply
            if not _one_may_become_active(failures) or end - time.monotonic() <= PAUSE:
                raise _failure(failures)
            time.sleep(PAUSE)

    def _order(self) -> list[Endpoint]:
        first = self._first
        return [first, *(each for each in self._endpoints if each is not first)]

    def _answered(self, endpoint: Endpoint) -> None:
        with self._lock:
            if endpoint is self._first:
                return
            self._first = endpoint
        for each in self._endpoints:
            if each is not endpoint:
                # Another one may hold its request until it times out: it is stopped, or cut off.
                each.hang_up()


def _while_it_lives(ask: Ask[Value], endpoint: Endpoint, seconds: float) -> Value:
    """The answer of a controller, which is given up once it does not say that it lives. Raises as ``ask`` does."""
    future: Future[Value] = Future()

    def run() -> None:
        try:
            future.set_result(ask(endpoint, seconds, 0.0))
        except BaseException as error:
            future.set_exception(error)

    # A thread that is given up ends with its own time; the end of a program does not wait for it.
    threading.Thread(target=run, name="lark-request", daemon=True).start()
    while not wait_for((future,), SILENT_SECONDS).done:
        if endpoint.is_silent(LIVES_SECONDS) and not future.done():
            waited = f"{SILENT_SECONDS + LIVES_SECONDS:g} s"
            words = f"{endpoint.url} stands still or is cut off: nothing came for {waited}, not even a sign of life."
            raise UnreachableError(words, True)
    return future.result()


def _stands_by(failure: Failure) -> bool:
    return isinstance(failure, ProblemError) and failure.status == 503 and failure.problem.get("type") == STANDBY


def _elsewhere(error: ProblemError, again: bool) -> bool:
    """True where another controller may answer; one that stands by has done nothing, of others it is not known."""
    return _stands_by(error) or (again and error.status in UNAVAILABLE)


def _put_first(order: list[Endpoint], active: object) -> None:
    """Ask the active controller next, if its URL is one of those that are left: an answer leads nowhere else."""
    if isinstance(active, str):
        order.sort(key=lambda endpoint: endpoint.url.rstrip("/") != active.rstrip("/"))


def _one_may_become_active(failures: Mapping[str, Failure]) -> bool:
    problems = [failure for failure in failures.values() if isinstance(failure, ProblemError)]
    return bool(problems) and all(map(_stands_by, problems))


def _failure(failures: Mapping[str, Failure]) -> Failure:
    """Of several the most informative one: an active controller's problem."""
    found = list(failures.values())
    if len(found) == 1:
        return found[0]
    problems = (each for each in found if isinstance(each, ProblemError) and not _stands_by(each))
    words = " ".join(f"{url} stands by." if _stands_by(each) else str(each) for url, each in failures.items())
    return next(problems, UnreachableError(words))
