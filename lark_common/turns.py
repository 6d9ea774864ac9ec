"""Turns at the processor, where many callers have work done by threads of one process.

Python lets one thread calculate at a time. A thread that wants to waits for each of those that do, and again after each
of its system calls, so that with sixty threads at work a request of a millisecond takes a second. Therefore few calls
calculate at a time, fewer of one caller, and the next is of the caller that has had least processor time. Of the
callers that use much of it one calculates at a time, begins only while none of the others does, and rests after each
call while others ask, so that it has no more than its share. Calls of some kinds go ahead of others: while one of those
is at work, a caller that uses much stands still between two portions of its work, as far as its patience goes.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVar, cast

from lark_common.limits import Bucket

# A caller uses much of the processor that takes more than this share of it for longer; so many seconds at once.
SHARE: Final = 0.25
AT_ONCE: Final = 0.05
# Others ask, if one has done so within these seconds. Seconds for which a caller rests at most.
ASKING: Final = 0.5
LONGEST_REST: Final = 1.0
# Callers, and addresses of a caller, whose time is remembered while they ask nothing.
_REMEMBERED: Final = 1024

# A call is at work for so long after it has begun, waited or come back; one that waits longer waits for a switch.
AT_WORK: Final = 0.1
# A caller that stands still looks so often whether it may go on.
STEP: Final = 0.005
# Seconds of work on a list after which others may go ahead.
PORTION: Final = 0.002

_OF_THREAD: Final = threading.local()

T = TypeVar("T")


class _Share:
    """The processor time of a caller, or of one address of it; ``now`` is the time that its addresses begin with, and
    ``line`` has those of which calls wait."""

    __slots__ = (
        "budget", "calling", "line", "now", "of", "owed", "patience", "rested", "rests_until", "running", "used",
        "waiting",
    )  # fmt: skip

    def __init__(self, used: float, at: float) -> None:
        self.used = used
        self.budget = Bucket(SHARE, AT_ONCE, at)
        self.now = 0.0
        # Seconds that other threads have worked for it, and for which it has not rested yet.
        self.owed = 0.0
        # Seconds for which it still stands still.
        self.patience = AT_ONCE
        # Until then nothing of it begins; a thread wakes up then.
        self.rests_until = -math.inf
        self.rested = True
        # Calls that wait or are under way, and those that calculate.
        self.calling = 0
        self.running = 0
        self.of: dict[str, _Share] = {}
        self.line: dict[_Share, None] = {}
        self.waiting: deque[tuple[Turn, Callable[[], None]]] = deque()


class Turns:
    """Lets ``most`` calls calculate at a time, ``most_of_one`` of one caller.

    The next is of the caller that has used least of ``processor`` (seconds of the thread), and of the caller's
    addresses of that which has used least. A caller that comes back has no credit for the time in which it was away.
    The calls of ``ahead``, and without that those of callers that use little, go first: see :meth:`give_way`.
    Thread-safe.
    """

    def __init__(
        self,
        most: int,
        most_of_one: int,
        processor: Callable[[], float] = time.thread_time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        ahead: Turns | None = None,
    ) -> None:
        self.ahead = ahead
        self._sleep = sleep
        self.processor = processor
        self.clock = clock
        self._most = most
        self._most_of_one = most_of_one
        self._lock = threading.Lock()
        self._all = _Share(0.0, clock())
        # The calls under way, the one last that has begun, waited or come back last, with the time of that.
        self._under_way: dict[Turn, float] = {}
        # The one that has asked last, of those that use little, and the last other one; with their times.
        self._asked: list[tuple[_Share | None, float]] = [(None, -math.inf), (None, -math.inf)]

    def ask(self, caller: str, address: str, start: Callable[[Turn], None]) -> Turn:
        """Have ``start`` called, here or on another thread, once there is a turn for a call; it is to return at once,
        and the call to be carried out in ``with turn:``. Returns the turn, to be charged."""
        with self._lock:
            at = self.clock()
            of = _among(self._all, caller, at)
            turn = Turn(self, of, _among(of, address, at))
            if of.budget.left(at) > 0.0:
                self._note(of, at)
            for share in turn.shares:
                share.calling += 1
            self._moved(turn, at)
            found = self._put_in_line(turn, lambda: start(turn), at)
        self._go_on(found)
        return turn

    def charge(self, turn: Turn, used: float) -> None:
        """Take note of so many seconds of processor time that another thread has worked for a call, which may be over;
        its caller rests for them as for its own."""
        with self._lock:
            self._take_note(turn, used)
            turn.shares[0].owed += used

    def others_ask(self) -> None:
        """Note that somebody asks whose calls take their turns elsewhere."""
        with self._lock:
            self._note(None, self.clock())

    def wait(self, turn: Turn, start: Callable[[], None]) -> None:
        """Have ``start`` called once it is the turn of a call that has begun before."""
        with self._lock:
            found = self._put_in_line(turn, start, self.clock())
        self._go_on(found)

    def leave(self, turn: Turn, used: float) -> None:
        """Give a turn up, after so many seconds of processor time."""
        with self._lock:
            self._charge(turn, used)
            at = self.clock()
            self._moved(turn, at)
            found = self._next(at)
        self._go_on(found)

    def at_work(self) -> bool:
        """True if a call is under way, and not only waiting for something that takes long."""
        with self._lock:
            last = next(reversed(self._under_way.values()), -math.inf)
            return self.clock() - last < AT_WORK

    def _lighter_at_work(self, caller: _Share) -> bool:
        """True if a call of another caller, one that uses little, is at work."""
        with self._lock:
            now = self.clock()
            for turn, moved in reversed(self._under_way.items()):
                if now - moved >= AT_WORK:
                    return False
                if turn.shares[0] is not caller and turn.shares[0].budget.left(now) > 0.0:
                    return True
            return False

    def give_way(self, turn: Turn, used: float) -> None:
        """Take note of so many seconds of processor time, and stand still while a call that goes first is at work.

        A caller that uses little does not. Another has patience for that as far as it would rest for what it has used,
        and for :data:`AT_ONCE` at most, so that it comes on however many calls go ahead.
        """
        if used:
            with self._lock:
                self._take_note(turn, used)
        caller, began = turn.shares[0], self.clock()
        while True:
            with self._lock:
                if caller.patience <= 0.0 or caller.budget.left(began) > AT_ONCE / 2:
                    return
            if not (self._lighter_at_work(caller) if self.ahead is None else self.ahead.at_work()):
                return
            self._sleep(STEP)
            with self._lock:
                now = self.clock()
                caller.patience -= now - began
                if self.ahead is None:
                    # Elsewhere the time by the clock is charged, and this is a part of it.
                    turn.stood += now - began
                began = now

    def end(self, turn: Turn, used: float, whole: float) -> None:
        """Give a turn up for good, after so many seconds; ``whole`` is the time of the whole call. Where its caller is
        to rest, one thread of its does that here."""
        with self._lock:
            self._charge(turn, used)
            del self._under_way[turn]
            for share in turn.shares:
                share.calling -= 1
            caller, at = turn.shares[0], self.clock()
            if caller.budget.left(at) <= 0.0 and at - self._others_asked(caller) < ASKING:
                rest = max(0.0, (whole + caller.owed) * (1 / SHARE - 1) - turn.stood)
                caller.rests_until = min(max(caller.rests_until, at) + rest, at + LONGEST_REST)
            caller.owed = 0.0
            rests = caller.rested and caller.rests_until > at
            if rests:
                caller.rested = False
            found = self._next(at)
        self._go_on(found)
        while rests:
            self._sleep(caller.rests_until - at)
            with self._lock:
                at = self.clock()
                rests = caller.rests_until > at
                caller.rested = not rests
                found = self._next(at)
            self._go_on(found)

    def _note(self, caller: _Share | None, at: float) -> None:
        if self._asked[0][0] is not caller:
            self._asked[1] = self._asked[0]
        self._asked[0] = caller, at

    def _others_asked(self, caller: _Share) -> float:
        last, before = self._asked
        return before[1] if last[0] is caller else last[1]

    def _moved(self, turn: Turn, at: float) -> None:
        self._under_way.pop(turn, None)
        self._under_way[turn] = at

    def _charge(self, turn: Turn, used: float) -> None:
        self._take_note(turn, used)
        for share in turn.shares:
            share.running -= 1
        self._all.running -= 1

    def _take_note(self, turn: Turn, used: float) -> None:
        for share in turn.shares:
            share.used += used
        caller, at = turn.shares[0], self.clock()
        # Time that it takes while nobody else asks is not held against it for long.
        caller.budget.take(min(used, caller.budget.left(at) + AT_ONCE), at)
        caller.patience = min(AT_ONCE, caller.patience + used * (1 / SHARE - 1))

    def come_back(self, turn: Turn) -> None:
        """Take a turn at once, whoever has one."""
        with self._lock:
            self._begin(turn, self.clock())

    def _begin(self, turn: Turn, at: float) -> None:
        self._moved(turn, at)
        self._all.running += 1
        for share in turn.shares:
            share.running += 1

    def _put_in_line(self, turn: Turn, start: Callable[[], None], at: float) -> Callable[[], None] | None:
        """Have a call wait for its turn. Returns what is to begin, as :meth:`_next`."""
        caller, address = turn.shares
        address.waiting.append((turn, start))
        caller.line[address] = self._all.line[caller] = None
        return self._next(at)

    def _go_on(self, found: Callable[[], None] | None) -> None:
        """Begin what was found, and what may begin after it."""
        while found is not None:
            found()
            with self._lock:
                found = self._next(self.clock())

    def _next(self, now: float) -> Callable[[], None] | None:
        """Take the next call out of the line; returns what begins it, to be called without the lock."""
        if not self._all.line or self._all.running >= self._most:
            return None
        free = [share for share in self._all.line if share.running < self._most_of_one and share.rests_until <= now]
        few = [share for share in free if share.budget.left(now) > 0.0 or now - self._others_asked(share) >= ASKING]
        # One that uses much begins while nobody else is at work, where others ask.
        if not few and self._all.running:
            return None
        caller = min(few or free, key=_used, default=None)
        if caller is None:
            return None
        address = min(caller.line, key=_used)
        self._all.now = max(self._all.now, caller.used)
        caller.now = max(caller.now, address.used)
        turn, start = address.waiting.popleft()
        if not address.waiting:
            del caller.line[address]
        if not caller.line:
            del self._all.line[caller]
        self._begin(turn, now)
        return start


class Turn:
    """A call's turn, for the thread that carries it out: ``with turn:``."""

    def __init__(self, turns: Turns, caller: _Share, address: _Share) -> None:
        self.shares = caller, address
        self._turns = turns
        # The processor's time and the clock's up to which is counted.
        self._since = 0.0
        self._at = 0.0
        self._whole = 0.0
        self._aside = 0
        # Seconds in which it has stood still, which count as rest.
        self.stood = 0.0

    def __enter__(self) -> Self:
        self._since, self._at = self._turns.processor(), self._turns.clock()
        _OF_THREAD.turn = self
        self._turns.give_way(self, 0.0)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _OF_THREAD.turn = None
        used = self._used()
        self._turns.end(self, used, self._whole)

    def step_aside(self) -> None:
        """Let others calculate."""
        if not self._aside:
            self._turns.leave(self, self._used())
        self._aside += 1

    def come_back(self) -> None:
        """Calculate again."""
        self._aside -= 1
        if not self._aside:
            self._turns.come_back(self)
            self._at = self._turns.clock()

    def again(self) -> None:
        """Wait for another turn."""
        if self._aside:
            return
        self._turns.leave(self, self._used())
        ours = threading.Event()
        self._turns.wait(self, ours.set)
        ours.wait()
        self._at = self._turns.clock()
        self.give_way()

    def give_way(self) -> None:
        """Let those go ahead that do so."""
        if not self._aside:
            self._turns.give_way(self, self._used())
            self._at = self._turns.clock()

    @property
    def gives_way(self) -> bool:
        """True if others go ahead of this call."""
        return self._turns.ahead is not None

    def by_portions(self, values: Iterable[T]) -> Iterator[T]:
        """The values. Once a portion's time has passed since the call has given way or waited last, it gives way."""
        clock = self._turns.clock
        for value in values:
            if clock() - self._at >= PORTION:
                self.give_way()
            yield value

    def charge(self, used: float) -> None:
        """Charge the caller with so many seconds of processor time of another thread."""
        self._turns.charge(self, used)

    def _used(self) -> float:
        now, at = self._turns.processor(), self._turns.clock()
        used, self._since = now - self._since, now
        # While the processor is short, a call takes longer than it calculates; one that gives way to others is charged
        # with all of that, and leaves them as much more.
        if self.gives_way and not self._aside:
            used = max(used, at - self._at)
        self._whole += used
        self._at = at
        return used


@contextmanager
def aside() -> Iterator[None]:
    """Let others calculate while this thread waits for something. It goes on without another turn, so that it may hold
    locks."""
    turn: Turn | None = getattr(_OF_THREAD, "turn", None)
    if turn is None:
        yield
        return
    turn.step_aside()
    try:
        yield
    finally:
        turn.come_back()


def gives_way() -> bool:
    """True if others go ahead of the call that this thread carries out."""
    turn: Turn | None = getattr(_OF_THREAD, "turn", None)
    return turn is not None and turn.gives_way


def next_turn() -> None:
    """Wait for another turn, where much is left to calculate after a wait. Not to be called with a lock held: others
    may wait for that lock, each with a turn."""
    turn: Turn | None = getattr(_OF_THREAD, "turn", None)
    if turn is not None:
        turn.again()


def give_way() -> None:
    """Stand still while calls that go ahead are at work, between two portions of a long work. Not to be called with a
    lock held."""
    turn: Turn | None = getattr(_OF_THREAD, "turn", None)
    if turn is not None:
        turn.give_way()


class Elsewhere:
    """The processor time that another thread takes for a call: measured there, charged by the call's thread once it has
    the answer, so that the other thread takes no lock."""

    __slots__ = ("_processor", "seconds")

    def __init__(self, processor: Callable[[], float] = time.thread_time) -> None:
        self._processor = processor
        self.seconds = 0.0

    def measured(self, work: Callable[[], T]) -> T:
        """Call ``work``, on the other thread."""
        began = self._processor()
        try:
            return work()
        finally:
            self.seconds += self._processor() - began

    async def measured_steps(self, work: Coroutine[Any, Any, T]) -> T:
        """Carry ``work`` out on the other thread's event loop; the time in which it waits does not count."""
        return await _Steps(self, work)

    def charge(self) -> None:
        """Charge the caller of the call that this thread carries out, if it is one that gives way: what goes ahead has
        the other thread work on what others have changed as well."""
        turn: Turn | None = getattr(_OF_THREAD, "turn", None)
        if turn is not None and turn.gives_way and self.seconds:
            turn.charge(self.seconds)
        self.seconds = 0.0


class _Steps(Generic[T]):
    """A coroutine, each step of which is measured."""

    def __init__(self, elsewhere: Elsewhere, work: Coroutine[Any, Any, T]) -> None:
        self._elsewhere = elsewhere
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        step: Callable[[Any], Any] = self._work.send
        given: Any = None
        while True:
            try:
                awaited = self._elsewhere.measured(partial(step, given))
            except StopIteration as end:
                return cast("T", end.value)
            try:
                given, step = (yield awaited), self._work.send
            except BaseException as error:
                given, step = error, self._work.throw


def by_portions(values: Iterable[T]) -> Iterator[T]:
    """The values, with :func:`give_way` between portions of them, and before the first where much was calculated for
    it."""
    turn: Turn | None = getattr(_OF_THREAD, "turn", None)
    return iter(values) if turn is None else turn.by_portions(values)


def _used(share: _Share) -> float:
    return share.used


def _among(above: _Share, name: str, at: float) -> _Share:
    """The share of a name. One that asks nothing at the moment begins where all others are."""
    found = above.of.get(name)
    if found is None:
        if len(above.of) >= _REMEMBERED:
            for other in [other for other, share in above.of.items() if not share.calling]:
                del above.of[other]
        found = above.of[name] = _Share(above.now, at)
    elif not found.calling:
        found.used = max(found.used, above.now)
    return found
