"""A database server as the term relies on it: transactions in flight, the row that they share, sessions, lost answers.

A transaction is let in by the look at the term, does its work, and commits: between the three, time passes. What it
reads is what is committed at the moment of its work (read committed), and whoever wants a row that another has changed
waits for its end and looks again, as PostgreSQL has it. A commit may be lost, come late, or be carried out without an
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Final, TypeVar

from lark_common.errors import FencedError, StoreError, UnansweredError
from lark_controller.api.instances import Identity, Look, Sign, Why
from tests.cluster.simulation.tables import Tables
from tests.cluster.simulation.world import Process, World

T = TypeVar("T")

# The server ends a transaction whose client is idle for so long, and a takeover waits for so long (store/instances.py).
IDLE: Final = 5.0
TAKE_WAIT: Final = 10.0
# Between two looks at what is waited for.
_LOOK: Final = 0.05


class Fate(Enum):
    """The fate of a commit."""

    ANSWERED = auto()
    UNANSWERED = auto()
    LATE = auto()
    LOST = auto()


@dataclass(eq=False)
class Transaction:
    """A write in flight; ``share`` is True where it keeps the row of the term, ``generation`` the one that wrote it."""

    number: int
    generation: int
    share: bool
    # Things that it keeps others from: rows that it has changed, and locks.
    keys: frozenset[tuple[Any, ...]] = frozenset()
    tables: Tables | None = None
    touched: int = 0
    committing: bool = False
    committed: bool = False
    over: bool = False


@dataclass
class Row:
    """An instance's row."""

    me: Identity
    beat: int
    at: float


@dataclass
class Counts:
    """The things that the faults of a schedule have met, so that it is known that they were there."""

    fenced: int = 0
    unanswered: int = 0
    late: int = 0
    waited: int = 0
    takeovers: list[Why] = field(default_factory=list)


class Server:
    """The server. ``losses`` of a hundred statements are lost; each commit has one of the ``fates``."""

    def __init__(self, world: World, changed: Callable[[Transaction, Tables], None] = lambda *_: None) -> None:
        self.world = world
        self.generation, self.holder, self.why = 0, "", ""
        self.run = 0
        self.away = False
        self.rows: dict[str, Row] = {}
        self.sessions: dict[int, str] = {}
        self.tables = Tables(guards=world.guards)
        self.open: dict[int, Transaction] = {}
        self.taking: Transaction | None = None
        self.counts = Counts()
        self.losses = 0
        self.fates: tuple[Fate, ...] = (Fate.ANSWERED,)
        self.latency = 0.01
        # Called as a commit goes to the server: a process may be paused, or die, just then.
        self.commits: Callable[[Process, Transaction], None] = lambda *_: None
        # Called as each write takes effect, with the tables as they were before.
        self.changed = changed

    # -- the way there and back ----------------------------------------------------------------------------------------

    def _travel(self, process: Process) -> None:
        process.sleep(self.world.random.random() * self.latency)
        if self.away or self.world.random.randrange(100) < self.losses:
            process.sleep(self.world.random.choice((0.0, 2.0)))
            raise StoreError("the database does not answer")

    def read(self, process: Process, question: Callable[[Tables], T]) -> T:
        self._travel(process)
        return question(self.tables)

    # -- writes --------------------------------------------------------------------------------------------------------

    def write(
        self,
        process: Process,
        generation: int | None,
        fenced: Callable[[str], None],
        work: Callable[[Tables], T],
        settling: bool = False,
    ) -> T:
        """Write in the term of a generation; None: nobody guards it. Raises StoreError, and what ``work`` raises."""
        self._travel(process)
        transaction = self._let_in(process, generation, fenced)
        try:
            if settling:
                self._settle(process, transaction)
            found = self._work(process, transaction, work)
        except StoreError:
            # The server may not know yet that nobody goes on with it.
            if self.world.random.random() < 0.5:
                self._end(transaction)
            raise
        except BaseException:
            self._end(transaction)
            raise
        self._commit(process, transaction)
        return found

    def _let_in(self, process: Process, generation: int | None, fenced: Callable[[str], None]) -> Transaction:
        guards = self.world.guards
        while self.taking is not None and guards.term_is_held:
            process.sleep(_LOOK)
        if generation is not None and guards.term_is_checked and self.generation != generation:
            self.counts.fenced += 1
            reason = f"generation {self.generation} has taken over from generation {generation}"
            fenced(reason)
            raise FencedError(reason)
        transaction = Transaction(next(self.world.numbers), generation or 0, guards.term_is_held)
        self.open[transaction.number] = transaction
        self._touch(transaction)
        return transaction

    def _work(self, process: Process, transaction: Transaction, work: Callable[[Tables], T]) -> T:
        while True:
            process.sleep(self.world.random.random() * self.latency)
            if transaction.over:
                raise StoreError("the server has ended the session")
            tables = self.tables.copy()
            found = work(tables)
            keys = tables.keys_beside(self.tables)
            self._touch(transaction)
            if not any(other is not transaction and not keys.isdisjoint(other.keys) for other in self.open.values()):
                transaction.keys, transaction.tables = keys, tables
                return found
            self.counts.waited += 1
            process.sleep(_LOOK)

    def _commit(self, process: Process, transaction: Transaction) -> None:
        world = self.world
        process.sleep(world.random.random() * self.latency)
        fate = Fate.LOST if self.away else world.random.choice(self.fates)
        if fate is Fate.LOST:
            process.sleep(world.random.uniform(0.1, 4.0))
            self.counts.unanswered += 1
            raise UnansweredError("the commit was not answered")
        transaction.committing = True
        late = fate is Fate.LATE
        self.counts.late += late
        delay = world.random.uniform(0.5, 8.0) if late else world.random.random() * self.latency
        world.at(delay, lambda: self._take_effect(transaction))
        self.commits(process, transaction)
        if fate is not Fate.ANSWERED:
            process.sleep(world.random.uniform(0.1, 3.0))
            self.counts.unanswered += 1
            raise UnansweredError("the commit was not answered")
        process.sleep(delay + world.random.random() * self.latency)
        if not transaction.committed:
            self.counts.unanswered += 1
            raise UnansweredError("the commit was not answered")

    def _take_effect(self, transaction: Transaction) -> None:
        if transaction.over or transaction.tables is None:
            return
        before = self.tables
        self.tables = before.with_changes_of(transaction.tables)
        transaction.committed = True
        self._end(transaction)
        self.changed(transaction, before)

    def _end(self, transaction: Transaction) -> None:
        transaction.over = True
        self.open.pop(transaction.number, None)

    def _touch(self, transaction: Transaction) -> None:
        """Begin to count the time for which the client is idle."""
        transaction.touched = touched = next(self.world.numbers)

        def idle() -> None:
            if not transaction.over and not transaction.committing and transaction.touched == touched:
                self._end(transaction)

        self.world.at(IDLE, idle)

    def _settle(self, process: Process, own: Transaction) -> None:
        """Wait for the ends of all writes that have begun (store/instances.py:settle)."""
        if not self.world.guards.doubts_are_settled:
            return
        process.sleep(self.world.random.random() * self.latency)
        begun = [each for each in self.open.values() if each is not own and each.share]
        deadline = self.world.now + TAKE_WAIT
        while any(not each.over for each in begun):
            if self.world.now > deadline:
                self._end(own)
                raise StoreError("writes that began before are not over")
            process.sleep(_LOOK)
            self._touch(own)

    # -- the term ------------------------------------------------------------------------------------------------------

    def register(self, me: Identity) -> None:
        """Write an instance down, in the place of the one that it was before it was started again."""
        for old in [each for each, row in self.rows.items() if row.me.name == me.name and each != self.holder]:
            del self.rows[old]
        self.rows[me.id] = Row(me, 0, self.world.now)

    def meet(self, process: Process, me: Identity, session: int) -> Look:
        """Give a sign of life, and look at the term; what was seen is what stood there as it was asked."""
        self._travel(process)
        row = self.rows.setdefault(me.id, Row(me, 0, self.world.now))
        row.beat, row.at = row.beat + 1, self.world.now
        if session:
            self.sessions[session] = me.id
        holder = self.rows.get(self.holder)
        found = Look(
            self.generation,
            self.holder,
            "" if holder is None else holder.me.name,
            "" if holder is None else holder.me.url,
            0 if holder is None else holder.beat,
            self.generation in self.sessions,
            str(self.run),
            self.why,
            boot="" if holder is None else holder.me.boot,
            signs=tuple(Sign(name, each.beat, self.world.now - each.at) for name, each in self.rows.items()),
        )
        self._travel(process)
        return found

    def take(self, process: Process, me: Identity, seen: int, why: Why) -> int | None:
        """Count the generation up, once nobody writes in the term (store/instances.py:take)."""
        self._travel(process)
        deadline = self.world.now + TAKE_WAIT
        while self.taking is not None or any(each.share and each.generation for each in self.open.values()):
            if self.world.now > deadline:
                raise StoreError("the row of the term is held")
            process.sleep(_LOOK)
        if self.generation != seen:
            return None
        self.taking = own = Transaction(next(self.world.numbers), 0, share=False)
        self._touch(own)
        self.world.at(IDLE, lambda: self._taken(own))
        try:
            self._travel(process)
        except BaseException:
            self._taken(own)
            raise
        if own.over:
            raise StoreError("the server has ended the session")
        self.generation = max(seen + 1, int(self.world.time()))
        self.holder, self.why = me.id, str(why)
        self.sessions[self.generation] = me.id
        self.counts.takeovers.append(why)
        self._taken(own)
        generation = self.generation
        # The answer may be lost: then the next look finds it.
        self._travel(process)
        return generation

    def _taken(self, own: Transaction) -> None:
        own.over = True
        if self.taking is own:
            self.taking = None

    def release(self, me: Identity, generation: int, why: Why) -> None:
        """Let a term go."""
        if not self.away and (self.generation, self.holder) == (generation, me.id):
            self.holder, self.why = "", str(why)

    def left(self, instance: str) -> None:
        """Notice that a process is gone: its sessions end, and what it was in the midst of is not written."""
        self.sessions = {term: holder for term, holder in self.sessions.items() if holder != instance}

    def end_sessions(self) -> None:
        """End all sessions, and the writes that are not being committed."""
        self.sessions.clear()
        for each in list(self.open.values()):
            if not each.committing:
                self._end(each)

    def restart(self) -> None:
        """Be away, and be another run when it is back."""
        self.away, self.run = True, self.run + 1
        self.sessions.clear()
        for each in list(self.open.values()):
            self._end(each)
        self.taking = None
