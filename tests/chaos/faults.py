"""Faults, each as a beginning and an end, done to the running whole."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.process import Lark
from tests.chaos.clock import set_ahead
from tests.chaos.databases import Postgres, Sqlite
from tests.chaos.schedule import Fault, Kind
from tests.chaos.switches import Fleet, Played
from tests.chaos.wires import Wire
from tests.chaos.workload import Workload

# By how much a clock is set, in seconds.
JUMPS: Final = (-7200.0, -60.0, 30.0, 120.0, 3600.0)

_Step = Callable[[], object]


@dataclass
class Whole:
    """Everything that runs. ``controller`` is started again by whoever watches it while ``wanted``."""

    controller: Lark
    database: Sqlite | Postgres
    fleet: Fleet
    switches: Wire
    hooks: Wire
    workload: Workload
    clock: Path
    wanted: bool = True


def kinds(whole: Whole, *, own_disk: bool) -> tuple[Kind, ...]:
    """The kinds of faults that can be done to it."""
    everywhere = (
        Kind.KILL, Kind.PAUSE, Kind.AWAY, Kind.REBOOT, Kind.HANG, Kind.CUT_SWITCHES, Kind.LOSE_SWITCHES, Kind.CUT_HOOKS,
        Kind.LOSE_HOOKS, Kind.CLOCK, Kind.POLICY,
    )  # fmt: skip
    if isinstance(whole.database, Postgres):
        return (*everywhere, Kind.STOP, Kind.CRASH, Kind.SESSIONS)
    return (*everywhere, Kind.LOCK, *((Kind.DISK,) if own_disk else ()))


async def undergo(whole: Whole, fault: Fault) -> None:
    """Do one fault, from its beginning to its end."""
    begin, end = _steps(whole, fault)
    await _do(begin)
    try:
        await asyncio.sleep(fault.seconds)
    finally:
        await _do(end)


async def _do(step: _Step) -> None:
    # What waits for processes and files must not stop the clients.
    found = await asyncio.to_thread(step) if getattr(step, "__self__", None).__class__ in (Sqlite, Postgres) else step()
    if isinstance(found, Awaitable):
        await found


def _steps(whole: Whole, fault: Fault) -> tuple[_Step, _Step]:
    """What is done at a fault's beginning, and at its end."""
    edges = whole.fleet.edges
    edge = edges[int(fault.chosen * len(edges)) % len(edges)]
    database = whole.database
    steps: dict[Kind, tuple[_Step, _Step]] = {
        Kind.KILL: (lambda: _kill(whole), lambda: _want(whole)),
        Kind.PAUSE: (lambda: _signal(whole, signal.SIGSTOP), lambda: _signal(whole, signal.SIGCONT)),
        Kind.AWAY: (edge.leave, edge.there.set),
        Kind.REBOOT: (lambda: _switch_off(edge), edge.there.set),
        Kind.HANG: (edge.stall, edge.resume),
        Kind.CUT_SWITCHES: (whole.switches.cut, _nothing),
        Kind.LOSE_SWITCHES: (whole.switches.lose, whole.switches.restore),
        Kind.CUT_HOOKS: (whole.hooks.cut, _nothing),
        Kind.LOSE_HOOKS: (whole.hooks.lose, whole.hooks.restore),
        Kind.CLOCK: (
            lambda: set_ahead(whole.clock, JUMPS[int(fault.chosen * len(JUMPS)) % len(JUMPS)]),
            lambda: set_ahead(whole.clock, 0.0),
        ),
        Kind.POLICY: (whole.workload.put_policy, _nothing),
    }
    if isinstance(database, Postgres):
        steps[Kind.STOP] = database.stop, database.start
        steps[Kind.CRASH] = database.crash, database.start
        steps[Kind.SESSIONS] = database.end_sessions, _nothing
    else:
        steps[Kind.LOCK] = database.lock, database.unlock
        steps[Kind.DISK] = database.fill, database.make_room
    return steps[fault.kind]


def _nothing() -> None:
    pass


def _kill(whole: Whole) -> None:
    whole.wanted = False
    whole.controller.kill()


def _want(whole: Whole) -> None:
    whole.wanted = True


def _signal(whole: Whole, number: signal.Signals) -> None:
    if whole.controller.running:
        os.kill(whole.controller.pid, number)


def _switch_off(edge: Played) -> None:
    edge.leave()
    edge.forget()
