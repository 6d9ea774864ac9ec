"""Calls of many threads, carried out together: what comes while others are under way is done at once after them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Final, Generic, TypeVar

from lark_common.turns import aside

A = TypeVar("A")
R = TypeVar("R")

# Calls that are carried out together; more would let the first of them wait for long.
MOST: Final = 64


class _Call(Generic[A, R]):
    """One call: its thread sleeps on ``wake`` until there is an outcome, or until it is to carry out what waits."""

    __slots__ = ("keys", "leads", "outcome", "request", "wake")

    def __init__(self, request: A, keys: Collection[Hashable]) -> None:
        self.request = request
        self.keys = keys
        self.wake = threading.Lock()
        self.wake.acquire()
        self.leads = False
        self.outcome: R | BaseException | None = None


class Gathering(Generic[A, R]):
    """Carries out calls by ``work``: many at a time, and one after the other those that have a key in common.

    The calling threads take turns in doing so: no other thread has to be waited for where a call comes alone. ``work``
    answers each with its result or with its error; what it raises is the error of each.
    """

    def __init__(self, work: Callable[[Sequence[A]], Sequence[R | Exception]], most: int = MOST) -> None:
        self._work = work
        self._most = most
        self._lock = threading.Lock()
        self._busy = False
        self._waiting: list[_Call[A, R]] = []

    def ask(self, request: A, keys: Collection[Hashable]) -> R:
        """Carry out a call; returns its result or raises its error. To be called without locks that ``work`` takes."""
        call: _Call[A, R] = _Call(request, keys)
        with self._lock:
            self._waiting.append(call)
            call.leads, self._busy = not self._busy, True
        if not call.leads:
            with aside():
                call.wake.acquire()
        if call.leads:
            self._lead()
        outcome = call.outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome  # type: ignore[return-value]  # a result, which may be None

    def _lead(self) -> None:
        """Carry out what waits, the leader's own call among it, and hand over to the thread of the next."""
        with self._lock:
            calls = self._next()
        try:
            outcomes: Sequence[R | BaseException] = self._work([call.request for call in calls])
        except BaseException as error:
            # Every call must have an end; the leader's own raises it.
            outcomes = [error] * len(calls)
        for call, outcome in zip(calls, outcomes, strict=True):
            call.outcome = outcome
        with self._lock:
            self._busy = bool(self._waiting)
            if self._waiting:
                self._waiting[0].leads = True
                self._waiting[0].wake.release()
        for call in calls[1:]:
            call.wake.release()

    def _next(self) -> list[_Call[A, R]]:
        """Take the first calls that have no key in common; one that must wait for another keeps its place before what
        comes after."""
        taken: list[_Call[A, R]] = []
        left: list[_Call[A, R]] = []
        keys: set[Hashable] = set()
        for call in self._waiting:
            free = len(taken) < self._most and keys.isdisjoint(call.keys)
            (taken if free else left).append(call)
            keys.update(call.keys)
        self._waiting = left
        return taken
