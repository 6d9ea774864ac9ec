"""Takeovers of a whole pool: ``python -m bench --only takeovers``.

Two controllers on one PostgreSQL, and one process that plays all switches, each connected to both controllers. The
active one is killed, again and again; measured is how long each switch has no master.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Iterator
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

NAMES: Final = ("a", "b")
# Seconds that a pool has to have masters again, and between two looks.
PATIENCE: Final = 300.0
LOOK: Final = 0.25
# An edge that was quiet for so long has a marker, by which the next controller recognises its flows.
SETTLED: Final = 45.0


def measure(
    size: int = 200_000, workers: int = 3125, kills: int = 20, settled: float = SETTLED, connected: int | None = None
) -> dict[str, Any]:
    """Kill the active controller ``kills`` times, each time ``settled`` seconds after all switches are in sync,
    once the other one has a copy of the directory.

    ``connected`` is the number of workers whose switches are played, all of them by default: on a machine that is short
    of processor time a few show the takeover alone.
    """
    played = workers if connected is None else connected
    with ExitStack() as stack:
        # Not below the temporary directory of the tests, which the server's user may not enter.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lark-takeovers-", dir="/tmp")))
        url = stack.enter_context(_database(directory / "database"))
        fill(url, policy(), itertools.islice(jobs(size, BLOCK, workers=workers), size))
        ports = [free_port() for _ in NAMES]
        active, standby = (_instance(directory / name, port, url) for name, port in zip(NAMES, ports, strict=True))
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
        for number in range(kills):
            time.sleep(settled)
            standby.until(COPIED)
            found.append(_kill(run, active, standby))
            run.say(f"kill_{number + 1}", found[-1])
            active, standby = standby, active
        return {"jobs": size, "workers": workers, "played": played, **_sums(found)}


def _kill(run: Scale, active: Lark, standby: Lark) -> dict[str, Any]:
    """Kill the active one; the other takes over, and the killed one stands by in its turn."""
    run.switches.tell("forget")
    before = standby.processor_seconds()
    began = time.monotonic()
    active.kill()
    while not all(at := run.switches.tell("masters")["at"]):
        if time.monotonic() - began > PATIENCE:
            raise TimeoutError(f"{at.count(0.0)} of {len(at)} switches have no master")
        time.sleep(LOOK)
    took = sorted(each - began for each in at)
    standby.serves()
    run.controller, run.token = standby, standby.token
    asyncio.run(run.all_in_sync())
    in_sync = time.monotonic() - began
    counts = run.switches.tell("counts")
    processor, memory = standby.processor_seconds() - before, standby.memory() / MIB
    active.begin()
    active.until(STANDS_BY)
    return {
        "first": took[0], "median": percentile(took, 50), "last": took[-1], "in_sync": in_sync,
        "changed": counts["changed"], "processor": processor, "memory": memory,
    }  # fmt: skip


def _sums(found: list[dict[str, Any]]) -> dict[str, Any]:
    sums: dict[str, Any] = {"kills": len(found)}
    for name in found[0]:
        values = sorted(each[name] for each in found)
        sums[name] = {"p50": percentile(values, 50), "p99": percentile(values, 99), "worst": values[-1]}
    return sums


@contextmanager
def _database(directory: Path) -> Iterator[str]:
    directory.mkdir()
    directory.parent.chmod(0o711)
    server = PostgresServer(directory)
    server.create()
    server.start()
    try:
        yield server.new_database()
    finally:
        server.stop()


def _instance(directory: Path, openflow: int, url: str) -> Lark:
    directory.mkdir()
    return Lark(
        directory, policy(), database_url=url, instance_name=directory.name, lease_seconds="86400",
        switch_timeout="120", openflow_listen=f"127.0.0.1:{openflow}", rest_listen=f"127.0.0.1:{free_port()}",
    )  # fmt: skip
