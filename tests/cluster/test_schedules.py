"""Several instances over one term in virtual time: pauses, slow and lost statements, sessions that end, by the seed.

The rules are the real ones (``cluster/takeover.py``). The database is a stand-in with what they rely on: a row that
writers share and a takeover has for itself, conditional updates, sessions that end with their process or by
themselves, outages. Two things are checked in every schedule: what is committed was written in the present term, and
whenever nothing has been wrong for a while somebody is active.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import pytest

from lark_controller.api.instances import Identity, Look, Sign, Why
from lark_controller.cluster.member import ACTIVE_SECONDS, STANDBY_SECONDS
from lark_controller.cluster.silence import Peer, interrupted, judged
from lark_controller.cluster.takeover import Watch, reason, watched

# Seconds of virtual time with faults, and after them.
FAULTS: Final = 60.0
CALM: Final = 20.0
# The database ends a write whose client is idle for so long.
IDLE: Final = 5.0


@dataclass
class Database:
    """The one row, the beats, sessions and writes in flight."""

    generation: int = 0
    holder: str = ""
    why: str = ""
    run: int = 0
    away: bool = False
    # Signs of life by the instance: how many, and when the last one was written.
    beats: dict[str, tuple[int, float]] = field(default_factory=dict)
    sessions: dict[int, str] = field(default_factory=dict)
    # Writes in flight by their number: the generation that they were let in with, and when they are cut off.
    writes: dict[int, tuple[int, float]] = field(default_factory=dict)
    committed: int = 0
    stale: int = 0
    refused: int = 0
    takeovers: list[Why] = field(default_factory=list)


class Process:
    """One process of an instance."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.me = Identity(f"{name}{next(world.numbers)}", name, f"http://{name}", "1")
        self.term = 0
        self.watch: Watch | None = None
        self.peers: dict[str, Peer] = {}
        self.alive = True
        self.paused_until = 0.0

    def at(self, delay: float, step: Callable[[], None]) -> None:
        """Do something later: after the pause where the process is paused, and not at all where it has ended."""

        def guarded() -> None:
            if not self.alive:
                return
            if self.world.now < self.paused_until:
                self.world.at(self.paused_until - self.world.now, guarded)
            else:
                step()

        self.world.at(delay, guarded)

    def begin(self) -> None:
        self.at(0.0, self.look)
        self.at(self.world.random.random(), self.write)

    def look(self) -> None:
        """One turn of the member's thread, whose statements take time or are lost. Its sign of life is seen by others
        at its end, and the next turn begins a pause after that."""
        database, world = self.world.database, self.world
        if world.lost():
            self.watch, self.peers = None, interrupted(self.peers)
            self.turn_again()
            return
        if self.term:
            database.sessions[self.term] = self.me.id
        began, seen = world.now, self._seen()

        def answered() -> None:
            database.beats[self.me.id] = database.beats.get(self.me.id, (0, 0.0))[0] + 1, began
            self.peers = judged(self.peers, seen.signs, world.now, world.now - began)
            self.act(seen, world.now - began)
            self.turn_again()

        self.at(world.latency(), answered)

    def turn_again(self) -> None:
        self.at(ACTIVE_SECONDS if self.term else STANDBY_SECONDS, self.look)

    def _seen(self) -> Look:
        database, holder = self.world.database, self.world.names.get(self.world.database.holder, "")
        held = database.generation in database.sessions
        return Look(
            database.generation,
            database.holder,
            holder,
            f"http://{holder}" if holder else "",
            database.beats.get(database.holder, (0, 0.0))[0],
            held,
            str(database.run),
            database.why,
            signs=tuple(Sign(each, beat, self.world.now - at) for each, (beat, at) in database.beats.items()),
        )

    @property
    def lost(self) -> set[str]:
        """The instances that it takes for lost."""
        return {instance for instance, each in self.peers.items() if each.is_lost}

    def act(self, look: Look, took: float) -> None:
        if self.term:
            if (look.generation, look.holder) != (self.term, self.me.id):
                self.end()
            return
        if look.holder == self.me.id:
            self.term = look.generation
            return
        self.watch = watched(self.watch, look, self.world.now, took)
        why = reason(self.watch, self.me)
        if why is not None:
            self.take(look.generation, why)

    def take(self, seen: int, why: Why) -> None:
        database = self.world.database
        if self.world.lost():
            return
        if any(let_in == database.generation for let_in, _ in database.writes.values()):
            # The row is shared by a write: the takeover waits for it.
            self.at(0.1, lambda: self.take(seen, why))
            return
        if database.generation != seen:
            return
        database.generation, database.holder, database.why = seen + 1, self.me.id, str(why)
        database.sessions[seen + 1] = self.me.id
        self.world.names[self.me.id] = self.name
        database.takeovers.append(why)
        self.watch = None
        # The answer may be lost: then the next look finds it.
        if not self.world.lost():
            self.term = seen + 1

    def write(self) -> None:
        """A write: the check, then a while later the commit. A process that believes in its term tries."""
        database, world = self.world.database, self.world
        self.at(world.random.expovariate(2.0), self.write)
        if not self.term or world.lost():
            return
        own, number = self.term, next(world.numbers)
        if world.guarded and database.generation != own:
            database.refused += 1
            self.end()
            return
        database.writes[number] = own, world.now + IDLE
        world.at(IDLE, lambda: database.writes.pop(number, None))

        def commit() -> None:
            if number in database.writes:
                del database.writes[number]
                database.committed += 1
                database.stale += database.generation != own

        self.at(world.latency(), commit)

    def end(self) -> None:
        """The end of the process, with its sessions; systemd starts it again."""
        if not self.alive:
            return
        self.alive = False
        database = self.world.database
        database.sessions = {term: holder for term, holder in database.sessions.items() if holder != self.me.id}
        self.world.start_again(self.name)

    def stop(self) -> None:
        """A clean end."""
        database = self.world.database
        if self.term and database.holder == self.me.id and not database.away:
            database.holder, database.why = "", str(Why.RELEASED)
        self.end()


class World:
    """Virtual time, and the faults of one schedule."""

    def __init__(self, seed: int, guarded: bool = True) -> None:
        self.random = random.Random(seed)
        self.guarded = guarded
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.database = Database()
        self.names: dict[str, str] = {}
        self.processes: dict[str, Process] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        # Statements lost, of a hundred; the shortest latency, and how much longer it may be.
        self._losses = self.random.choice([0, 0, 5, 30])
        self._least, self._latency = self.random.choice([(0.0, 0.01), (0.0, 0.1), (0.0, 1.0), (0.0, 8.0)])

    def at(self, delay: float, step: Callable[[], object]) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self.numbers), step))  # type: ignore[misc]

    def lost(self) -> bool:
        return self.database.away or self.random.randrange(100) < self._losses

    def latency(self) -> float:
        return self._least + self.random.random() * self._latency

    def start(self, name: str) -> None:
        process = self.processes[name] = Process(self, name)
        process.begin()

    def start_again(self, name: str) -> None:
        self.at(self.random.uniform(0.5, 4.0), lambda: self.start(name))

    def fault(self) -> None:
        """Something goes wrong, and soon something else."""
        if self.now > FAULTS:
            return
        self.at(self.random.expovariate(0.3), self.fault)
        database = self.database
        process = self.random.choice(list(self.processes.values()))
        match self.random.randrange(6):
            case 0:
                process.end()
            case 1:
                process.stop()
            case 2 | 3:
                process.paused_until = self.now + self.random.choice([0.5, 4.0, 15.0])
            case 4:
                database.sessions.clear()
                database.writes.clear()
            case _:
                # The server is started again.
                database.away, database.run = True, database.run + 1
                database.sessions.clear()
                database.writes.clear()
                self.at(self.random.choice([0.5, 10.0]), self.back)

    def back(self) -> None:
        self.database.away = False

    def slow(self, least: float, more: float) -> None:
        """Have each statement take ``least`` seconds from now on, and up to so many ``more``."""
        self._least, self._latency = least, more

    def calm(self) -> None:
        """No statement is lost from now on, and nobody is paused."""
        self._losses = 0
        self.slow(0.0, 0.1)
        self.back()
        for process in self.processes.values():
            process.paused_until = 0.0

    def run(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, step = heapq.heappop(self._events)
            step()
        self.now = until


def played(seed: int, guarded: bool = True) -> World:
    world = World(seed, guarded)
    for name in "abc"[: world.random.randint(1, 3)]:
        world.at(world.random.random() * 3, lambda name=name: world.start(name))  # type: ignore[misc]
    world.run(3.0)
    world.fault()
    world.run(FAULTS)
    world.calm()
    # A pause that has begun ends when it was to end; then there is time for a takeover.
    world.run(FAULTS + 15.0 + CALM)
    return world


@pytest.mark.parametrize("block", range(10))
def test_no_schedule_lets_two_terms_write(block: int) -> None:
    reasons: set[Why] = set()
    refused = committed = 0
    for seed in range(block * 100, block * 100 + 100):
        world = played(seed)
        database = world.database
        assert database.stale == 0, f"seed {seed}"
        refused += database.refused
        committed += database.committed
        reasons.update(database.takeovers)
        # Somebody is active, and can write.
        before = database.committed
        (holder,) = [each for each in world.processes.values() if each.me.id == database.holder]
        assert (holder.alive, holder.term) == (True, database.generation), f"seed {seed}"
        # All know who lives.
        living = {each.me.id for each in world.processes.values() if each.alive}
        for each in world.processes.values():
            assert not each.alive or each.lost == database.beats.keys() - living, f"seed {seed}"
        takeovers = len(database.takeovers)
        world.run(world.now + 30.0)
        assert database.committed > before, f"seed {seed}"
        # And stays it, since nothing goes wrong.
        assert len(database.takeovers) == takeovers, f"seed {seed}"
    assert refused > 0
    assert committed > 1000
    assert reasons == {Why.FIRST, Why.RELEASED, Why.RESTARTED, Why.ENDED, Why.SILENT}


@pytest.mark.parametrize("seed", range(40))
def test_a_holder_is_followed_where_it_dies_and_not_where_the_database_is_slow(seed: int) -> None:
    world = World(seed)
    world.calm()
    for name in "abc":
        world.start(name)
    world.run(10.0)
    database, least = world.database, world.random.uniform(2.6, 20.0)
    world.slow(least, 0.3 * least)
    while world.now < 1000.0:
        world.run(world.now + 1.0)
        assert not any(each.lost for each in world.processes.values())
    assert database.takeovers == [Why.FIRST]
    (holder,) = [each for each in world.processes.values() if each.me.id == database.holder]
    holder.alive = False
    # Turns of another: the one in which it dies, and four after that; then the write that was in flight.
    world.run(world.now + 5 * (1.3 * least + STANDBY_SECONDS) + IDLE + 1.0)
    assert database.takeovers[1:] == [Why.SILENT]
    # And the third one knows it, too, after as many turns of its own.
    world.run(world.now + 1.3 * least + STANDBY_SECONDS)
    assert all(each.lost == {holder.me.id} for each in world.processes.values() if each.alive)


def test_without_the_guard_schedules_let_two_terms_write() -> None:
    assert sum(played(seed, guarded=False).database.stale for seed in range(100)) > 0


def test_a_schedule_is_the_same_again() -> None:
    assert replace(played(7).database) == replace(played(7).database)
