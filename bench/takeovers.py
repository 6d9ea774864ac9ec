"""Takeovers of a whole pool: ``python -m bench --only takeovers``.

Two controllers on one PostgreSQL, and one process that plays all switches, each connected to both controllers. The
active one is killed, again and again; measured is how long each switch has no master.

A cycle is as short as the next kill allows: all switches are in sync, the one that was killed stands by again and has
its copy of the directory, and every worker's switch has its marker. The two last ones go on side by side.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from bench.changes import fill
from bench.fleet import PlayedSwitches
from bench.percentiles import percentile
from bench.population import jobs
from bench.process import COPIED, STANDS_BY, Lark
from bench.scale import BLOCK, JOB_PORTS, MIB, Scale, policy
from lab.postgres import PostgresServer
from lab.run import free_port
from lark_controller.rest.tokens import Scope, add

NAMES: Final = ("a", "b", "c")
# Seconds that a pool has to have masters again, and between two looks.
PATIENCE: Final = 300.0
LOOK: Final = 0.25
# Seconds that workers' switches have to get their markers, by which the next controller recognises their flows. Those
# that have one keep it over a takeover that changes nothing, so only the first kill has to wait for them.
SETTLED: Final = 120.0


def measure(
    size: int = 200_000,
    workers: int = 3125,
    kills: int = 20,
    settled: float = SETTLED,
    connected: int | None = None,
    bound: float = 7200.0,
    keep: Callable[[dict[str, Any]], None] = lambda _found: None,
) -> dict[str, Any]:
    """Kill the active controller ``kills`` times, once all switches are in sync and have markers, or have had
    ``settled`` seconds for them, and the other one has a copy of the directory.

    ``connected`` is the number of workers whose switches are played, all of them by default: on a machine that is short
    of processor time a few show the takeover alone. After ``bound`` seconds none is killed any more. The figures so far
    go to ``keep`` after each kill.
    """
    played = workers if connected is None else connected
    ends_at = time.monotonic() + bound
    with ExitStack() as stack:
        # Not below the temporary directory of the tests, which the server's user may not enter.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lark-takeovers-", dir="/tmp")))
        url = stack.enter_context(database(directory / "database"))
        fill(url, policy(), itertools.islice(jobs(size, BLOCK, workers=workers), size))
        ports = [free_port(), free_port()]
        active, standby = instances(directory, ports, url)
        for each in (active, standby):
            stack.callback(each.kill)
        active.begin()
        active.serves()
        standby.begin()
        standby.until(STANDS_BY)
        switches = stack.enter_context(PlayedSwitches(ports, played, JOB_PORTS))
        run = Scale(directory, size, played, iter(()))
        run.switches, run.controller, run.token = switches, active, active.token
        switches.tell("connect")
        run.say("first_sync_seconds", asyncio.run(run.all_in_sync()))
        found: list[dict[str, Any]] = []
        sums: dict[str, Any] = {}
        began = time.monotonic()
        for number in range(kills):
            before = prepared(run, standby, settled)
            _, killed = kill(run, active, [standby])
            active.begin()
            active.until(STANDS_BY)
            found.append(killed | before | {"cycle": time.monotonic() - began})
            began = time.monotonic()
            run.say(f"kill_{number + 1}", found[-1])
            sums = {"jobs": size, "workers": workers, "played": played, **_sums(found), "each": found}
            keep(sums)
            active, standby = standby, active
            if time.monotonic() > ends_at:
                break
        return sums


def prepared(run: Scale, standby: Lark, settled: float = SETTLED) -> dict[str, Any]:
    """Wait until the next kill shows a takeover of a pool in its usual state.

    For markers it waits at most ``settled`` seconds.
    """
    began = time.monotonic()
    standby.until(COPIED)
    copied = time.monotonic() - began
    while (unmarked := run.switches.tell("unmarked")["edges"]) and time.monotonic() - began < settled:
        time.sleep(LOOK)
    return {"copied": copied, "unmarked": unmarked, "copy_memory": standby.memory() / MIB}


def kill(run: Scale, active: Lark, standing: Sequence[Lark]) -> tuple[Lark, dict[str, Any]]:
    """Kill the active one; the one that has taken over, and how long that took, once it has all switches in sync."""
    run.switches.tell("forget")
    before = [each.processor_seconds() for each in standing]
    began = time.monotonic()
    active.kill()
    while not all(at := run.switches.tell("masters")["at"]):
        if time.monotonic() - began > PATIENCE:
            raise TimeoutError(f"{at.count(0.0)} of {len(at)} switches have no master")
        time.sleep(LOOK)
    took = sorted(each - began for each in at)
    while not any(each.is_active for each in standing):
        if time.monotonic() - began > PATIENCE:
            raise TimeoutError("no controller has taken over")
        time.sleep(LOOK)
    number, successor = next((number, each) for number, each in enumerate(standing) if each.is_active)
    successor.serves()
    run.controller, run.token = successor, successor.token
    asyncio.run(run.all_in_sync())
    return successor, {
        "first": took[0], "median": percentile(took, 50), "last": took[-1], "in_sync": time.monotonic() - began,
        "changed": run.switches.tell("counts")["changed"],
        "processor": successor.processor_seconds() - before[number],
        "memory": successor.memory() / MIB,
    }  # fmt: skip


def _sums(found: list[dict[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {"kills": len(found)}
    for name in found[0]:
        values = sorted(each[name] for each in found)
        sums[name] = {"p50": percentile(values, 50), "p99": percentile(values, 99), "worst": values[-1]}
    return sums


@contextmanager
def database(directory: Path) -> Iterator[str]:
    """An empty database of a server of its own; its URL."""
    directory.mkdir()
    directory.parent.chmod(0o711)
    server = PostgresServer(directory)
    server.create()
    server.start()
    try:
        yield server.new_database()
    finally:
        server.stop()


def instances(directory: Path, ports: Sequence[int], url: str) -> list[Lark]:
    """Controllers on one database, each with one of the ports for switches. All know one token: any may be asked."""
    tokens = directory / "tokens.yaml"
    token = add(tokens, "bench", [Scope.HOOK, Scope.READ, Scope.OPERATE])
    made = []
    for name, openflow in zip(NAMES, ports, strict=False):
        own, rest = directory / name, free_port()
        own.mkdir()
        lark = Lark(
            own, policy(), database_url=url, instance_name=name, lease_seconds="86400", switch_timeout="120",
            openflow_listen=f"127.0.0.1:{openflow}", rest_listen=f"127.0.0.1:{rest}", tokens_file=str(tokens),
        )  # fmt: skip
        lark.rest, lark.token = rest, token
        made.append(lark)
    return made
