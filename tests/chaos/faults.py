"""Faults, each as a beginning and an end, done to the running whole."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from bench.process import Lark
from tests.chaos.clock import Clock
from tests.chaos.databases import Postgres, Sqlite
from tests.chaos.loss import Loss
from tests.chaos.ovsdb import Server, Servers
from tests.chaos.schedule import Fault, Kind
from tests.chaos.switches import Fleet, Played
from tests.chaos.wires import Wire
from tests.chaos.workload import Workload

# By how much a clock is set, in seconds.
BACK: Final = (-7200.0, -60.0, -20.0)
AHEAD: Final = (30.0, 120.0, 3600.0)

_Step = Callable[[], object]
_T = TypeVar("_T")


@dataclass
class Whole:
    """Everything that runs. ``controller`` is started again by whoever watches it while ``wanted``."""

    controller: Lark
    database: Sqlite | Postgres
    fleet: Fleet
    switches: Wire
    hooks: Wire
    workload: Workload
    clock: Clock
    servers: Servers
    loss: Loss = field(default_factory=Loss)
    wanted: bool = True


def kinds(whole: Whole, *, own: bool) -> tuple[Kind, ...]:
    """The kinds of faults that can be done to it; ``own`` is whether it has a disk and a network of its own."""
    everywhere = (
        Kind.KILL, Kind.PAUSE, Kind.AWAY, Kind.REBOOT, Kind.HANG, Kind.CUT_SWITCHES, Kind.HALVE_SWITCHES,
        Kind.LOSE_SWITCHES, Kind.CUT_HOOKS, Kind.LOSE_HOOKS, Kind.CLOCK_BACK, Kind.CLOCK_AHEAD, Kind.POLICY,
        Kind.OVSDB_AWAY, Kind.OVSDB_HANG,
        *((Kind.LOSS,) if own else ()),
    )  # fmt: skip
    if isinstance(whole.database, Postgres):
        return (*everywhere, Kind.STOP, Kind.CRASH, Kind.SESSIONS)
    return (*everywhere, Kind.LOCK, *((Kind.DISK,) if own else ()))


async def undergo(whole: Whole, fault: Fault) -> None:
    """Do one fault, from its beginning to its end."""
    begin, end = _steps(whole, fault)
    await _do(begin)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        await _do(end)


async def _do(step: _Step) -> None:
    found = step()
    if isinstance(found, Awaitable):
        await found


def _apart(step: _Step) -> _Step:
    """A step that waits for processes and files: it must not stop the clients."""
    return lambda: asyncio.to_thread(step)


def _steps(whole: Whole, fault: Fault) -> tuple[_Step, _Step]:
    """The acts at a fault's beginning and at its end."""
    edge = _one_of(whole.fleet.edges, fault)
    servers = whole.servers.chosen(fault.chosen)
    database = whole.database
    steps: dict[Kind, tuple[_Step, _Step]] = {
        Kind.KILL: (lambda: _kill(whole), lambda: _want(whole)),
        Kind.PAUSE: (lambda: _pause(whole, fault.seconds), lambda: _signal(whole, signal.SIGCONT)),
        Kind.AWAY: (edge.leave, edge.there.set),
        Kind.REBOOT: (lambda: _switch_off(edge), edge.there.set),
        Kind.HANG: (edge.stall, edge.resume),
        Kind.CUT_SWITCHES: (whole.switches.cut, _nothing),
        Kind.HALVE_SWITCHES: (lambda: _halve(whole, fault), _nothing),
        Kind.LOSE_SWITCHES: (whole.switches.lose, whole.switches.restore),
        Kind.CUT_HOOKS: (whole.hooks.cut, _nothing),
        Kind.LOSE_HOOKS: (whole.hooks.lose, whole.hooks.restore),
        Kind.LOSS: (_apart(lambda: whole.loss.begin(fault.chosen)), _apart(whole.loss.end)),
        Kind.OVSDB_AWAY: (
            _apart(lambda: _each(servers, Server.kill)),
            # Some come back as they were made.
            _apart(lambda: _each(servers, lambda server: server.start(empty=fault.chosen * 10 % 1 > 1 / 2))),
        ),
        Kind.OVSDB_HANG: (
            lambda: _each(servers, lambda server: server.send(signal.SIGSTOP)),
            lambda: _each(servers, lambda server: server.send(signal.SIGCONT)),
        ),
        Kind.CLOCK_BACK: (
            lambda: whole.clock.set(fault.kind, _one_of(BACK, fault)),
            lambda: whole.clock.set(fault.kind, 0.0),
        ),
        Kind.CLOCK_AHEAD: (
            lambda: whole.clock.set(fault.kind, _one_of(AHEAD, fault)),
            lambda: whole.clock.set(fault.kind, 0.0),
        ),
        Kind.POLICY: (whole.workload.put_policy, _nothing),
    }
    if isinstance(database, Postgres):
        steps[Kind.STOP] = _apart(database.stop), _apart(database.start)
        steps[Kind.CRASH] = _apart(database.crash), _apart(database.start)
        steps[Kind.SESSIONS] = _apart(database.end_sessions), _nothing
    else:
        steps[Kind.LOCK] = _apart(database.lock), _apart(database.unlock)
        steps[Kind.DISK] = _apart(database.fill), _apart(database.make_room)
    return steps[fault.kind]


def _nothing() -> None:
    pass


def _kill(whole: Whole) -> None:
    whole.wanted = False
    whole.controller.kill()


def _want(whole: Whole) -> None:
    whole.wanted = True


async def _pause(whole: Whole, seconds: float) -> None:
    # Another fault may have ended it.
    deadline = time.monotonic() + seconds
    while not whole.controller.running and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    _signal(whole, signal.SIGSTOP)


async def _halve(whole: Whole, fault: Fault) -> None:
    # Another fault may have ended them all.
    deadline = time.monotonic() + fault.seconds
    while whole.switches.carries < len(whole.fleet.switches) / 2 and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    whole.switches.halve(client=fault.chosen < 1 / 2)


def _each(servers: Sequence[Server], do: Callable[[Server], None]) -> None:
    for server in servers:
        do(server)


def _one_of(items: Sequence[_T], fault: Fault) -> _T:
    return items[int(fault.chosen * len(items)) % len(items)]


def _signal(whole: Whole, number: signal.Signals) -> None:
    if whole.controller.running:
        os.kill(whole.controller.pid, number)


def _switch_off(edge: Played) -> None:
    edge.leave()
    edge.forget()
