"""Virtual time: one queue of steps, tasks that stand still in the middle of a call, and what goes wrong by the seed.

The product's services are called as they are: they wait for their store in the middle of a call. A task is a greenlet,
not a thread: it goes on only where the queue has it go on, so a schedule is the same again for the same seed.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Final, Self
from unittest.mock import patch

from greenlet import GreenletExit, getcurrent, greenlet

from lark_common.log import LOGGER
from lark_controller.services import (
    attempts,
    background,
    external,
    gathering,
    past_reservations,
    registration,
    reservations,
)
from lark_controller.switches.openflow import mastership

# The machine's time at the beginning of each schedule, in seconds since 1970.
EPOCH: Final = 1_800_000_000.0
# Modules of the product that read a clock by themselves.
_TIMED: Final = (background, external, past_reservations, registration, reservations, mastership)


@dataclass(frozen=True)
class Guards:
    """The guards that a schedule may be played without, to show that it is noticed."""

    # The database: a write looks whose term it is, and keeps the term from moving until it has committed.
    term_is_checked: bool = True
    term_is_held: bool = True
    # The database: one at a time changes what is reserved, or which external addresses are held.
    room_is_locked: bool = True
    # Switches: a master asks with its generation, and the switch refuses earlier ones.
    generation_is_sent: bool = True
    # The instance: what the store has not answered is looked up again, once all writes that had begun are over.
    doubts_are_settled: bool = True
    doubts_are_noted: bool = True
    # The instance: nothing is posted that a run in doubt may have.
    doubts_are_waited_for: bool = True
    # The instance: an order that a switch would not refuse is proven before.
    role_is_proven: bool = True
    # The instance: a switch is compared with what it should hold when it connects, and before anything is sent.
    switches_are_compared: bool = True
    # The instance: time that was slept through lets leases begin anew.
    sleep_is_noticed: bool = True

    @classmethod
    def names(cls) -> list[str]:
        return [each.name for each in fields(cls)]


ALL: Final = Guards()


class World:
    """Virtual time. ``random`` alone decides what happens."""

    def __init__(self, seed: int, guards: Guards = ALL) -> None:
        self.random = random.Random(seed)
        self.guards = guards
        self.now = 0.0
        self.hub: greenlet = getcurrent()
        self.numbers = itertools.count(1)
        self._steps: list[tuple[float, int, Process | None, bool, Callable[[], object]]] = []

    def at(self, delay: float, step: Callable[[], object], of: Process | None = None, read: bool = False) -> None:
        """Do something later; ``of`` a process: after its pause where it is paused, and not at all where it has
        ended. What is ``read`` of a connection may come after all else then."""
        heapq.heappush(self._steps, (self.now + delay, next(self.numbers), of, read, step))

    def run(self, until: float) -> None:
        steps = self._steps
        while steps and steps[0][0] <= until:
            now, _, process, read, step = heapq.heappop(steps)
            self.now = now
            if process is not None:
                if not process.alive:
                    continue
                if now < process.paused_until:
                    later = process.paused_until + (process.reads_after if read else 0.0)
                    heapq.heappush(steps, (later, next(self.numbers), process, read, step))
                    continue
            step()
        self.now = until

    def time(self) -> float:
        """The machine's time, for all machines."""
        return EPOCH + self.now

    def monotonic(self) -> float:
        return self.now

    def clock_gettime(self, _clock: int) -> float:
        return self.now

    CLOCK_BOOTTIME: Final = 0

    @contextmanager
    def clocks(self) -> Iterator[None]:
        """Have the product's modules read virtual time, and lock as tasks do."""
        patches: list[Any] = [patch.object(each, "time", self) for each in _TIMED]
        # It is for a lease that is longer: of this one it would be the greater part of what may pass unseen.
        patches.append(patch.object(background, "UNSEEN", 0.0))
        patches.append(patch.object(attempts, "failure", _unexpected))
        patches.append(patch.object(logging.getLogger(LOGGER), "disabled", True))
        patches.append(patch.object(gathering, "threading", _Threading))
        for each in patches:
            each.start()
        try:
            yield
        finally:
            for each in patches:
                each.stop()


class Task(greenlet):  # type: ignore[misc]  # it publishes no types
    """A call of a process under way."""

    process: Process


class Process:
    """A process on some machine: its tasks stand still while it is paused, and end with it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.alive = True
        self.paused_until = 0.0
        # Seconds after a pause in which the threads that wait for the store go on before the one that reads.
        self.reads_after = world.random.choice((0.0, 0.02))
        self._tasks: dict[int, Task] = {}

    def at(self, delay: float, step: Callable[[], object]) -> None:
        """Do something later, as the process."""
        self.world.at(delay, step, self)

    def begin(self, call: Callable[[], object], delay: float = 0.0) -> None:
        """Have a task call something."""
        number = next(self.world.numbers)

        def run() -> None:
            try:
                call()
            except GreenletExit:
                pass
            finally:
                self._tasks.pop(number, None)

        task = Task(run, self.world.hub)
        task.process = self
        self._tasks[number] = task
        self.at(delay, task.switch)

    def sleep(self, seconds: float) -> None:
        """Let the present task stand still."""
        self.at(seconds, getcurrent().switch)
        self.park()

    def park(self) -> None:
        """Let the present task stand still until it is woken by :meth:`wake`."""
        if not self.alive:
            raise GreenletExit
        self.world.hub.switch()
        if not self.alive:
            raise GreenletExit

    def wake(self, task: greenlet) -> None:
        self.at(0.0, task.switch)

    def kill(self) -> None:
        """End all tasks where they stand."""
        self.alive = False
        tasks, self._tasks = self._tasks, {}
        for task in tasks.values():
            # One that has not begun, or is over, has nothing to end.
            if task is not getcurrent() and task.gr_frame is not None:
                task.parent = getcurrent()
                task.throw()


def present() -> Process:
    """The process of the present task."""
    task = getcurrent()
    assert isinstance(task, Task)
    return task.process


class Lock:
    """A lock between tasks of one process; each of its waiters has it in turn."""

    _reentrant = False

    def __init__(self) -> None:
        self._owner: greenlet | None = None
        self._depth = 0
        self._waiting: deque[greenlet] = deque()

    def acquire(self) -> bool:
        me = getcurrent()
        if self._owner is None or (self._reentrant and self._owner is me):
            self._owner, self._depth = me, self._depth + 1
            return True
        self._waiting.append(me)
        present().park()
        return True

    def release(self) -> None:
        self._depth -= 1
        if self._depth:
            return
        self._owner = None
        if self._waiting:
            self._owner, self._depth = self._waiting.popleft(), 1
            task = self._owner
            assert isinstance(task, Task)
            task.process.wake(task)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class RLock(Lock):
    """A lock that its task may take again."""

    _reentrant = True


def _unexpected(_message: str, error: BaseException, /, **_fields: object) -> None:
    """Raises what a thread of the product would log, and go on."""
    raise error


class _Threading:
    """The part of ``threading`` that gathers calls."""

    Lock: Any = Lock
