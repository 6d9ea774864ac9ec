"""One run: rounds of faults, after each of which everything is mended, comes to rest, and is judged."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from bench.process import Lark
from lark_common.errors import LarkError
from tests.chaos.checker import Evidence, Violation, check
from tests.chaos.clock import VARIABLE, Clock
from tests.chaos.databases import Postgres, Sqlite
from tests.chaos.evidence import gather
from tests.chaos.faults import Whole, kinds, undergo
from tests.chaos.log import Log
from tests.chaos.ovsdb import Servers
from tests.chaos.pool import policy
from tests.chaos.remains import both_sides, in_words, keep
from tests.chaos.rest import Rest
from tests.chaos.schedule import Fault, rounds
from tests.chaos.switches import Fleet
from tests.chaos.wires import Wire
from tests.chaos.workload import Workload, summary

WORKERS: Final = 20
SLOTS: Final = 3
# A job's lease, and for how much of it what was acknowledged surely stands: longer than faults last together.
LEASE: Final = 90.0
SURELY: Final = 45.0
# Seconds between two looks at whether everything has come to rest.
LOOK: Final = 1.0
# Seconds until something of everything is to have been judged; the limit only ends a run that has failed already.
PATIENCE: Final = 180.0
ROUND: Final = 30.0
DISK_MIB: Final = 64
SETTINGS: Final = {
    "switch_timeout": "3", "echo_interval": "1", "counter_seconds": "2", "usage_write_seconds": "2",
    "check_seconds": "20", "lease_seconds": f"{LEASE:g}", "rate_limit": "100000", "rate_burst": "100000",
}  # fmt: skip


@dataclass
class Result:
    """A run's result: the violations, and then the connections, a line for each switch."""

    rounds: int = 0
    broken: list[str] = field(default_factory=list)
    switches: list[str] = field(default_factory=list)
    asked: dict[str, dict[int, int]] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)


async def run(database: str, seed: int, seconds: float, found: Path, say: Callable[[str], None]) -> Result:
    """Run for about so long (without what it takes to come to rest); what remains of a run that failed lies in
    ``found``."""
    with _directory() as (directory, own), tempfile.TemporaryDirectory(prefix="lark-ovsdb-", dir="/tmp") as apart:
        held: Sqlite | Postgres = Postgres() if database == "postgresql" else Sqlite(directory)
        try:
            # Not on the small disk.
            servers = Servers(Path(apart), WORKERS, ports_of_own() + 10)
            try:
                return await _run(held, servers, own, directory, seed, seconds, found, say)
            finally:
                await servers.stop()
        finally:
            held.close()


async def _run(
    database: Sqlite | Postgres, servers: Servers, own: bool, directory: Path, seed: int, seconds: float, found: Path,
    say: Callable[[str], None],
) -> Result:  # fmt: skip
    clock = Clock(directory / "clock")
    os.environ[VARIABLE] = str(clock.path)
    policies = partial(policy, servers.addresses)
    openflow, rest = ports_of_own(), ports_of_own() + 1
    controller = Lark(
        directory, policies(0), module="tests.chaos.clock", database_url=database.url,
        openflow_listen=f"127.0.0.1:{openflow}", rest_listen=f"127.0.0.1:{rest}", **SETTINGS,
    )  # fmt: skip
    log = Log(SURELY)
    fleet, switches, hooks = Fleet(WORKERS, SLOTS), Wire(openflow), Wire(rest)
    await switches.open()
    await hooks.open()
    workload = Workload(log, (hooks.port,), controller.token, seed, WORKERS, SLOTS, policies)
    whole = Whole(controller, database, fleet, switches, hooks, workload, clock, servers)
    watch = asyncio.create_task(_watch(whole))
    fleet.start(switches.port)
    servers.start()
    result = Result()
    try:
        # Before there is a controller, nothing is promised.
        async with asyncio.timeout(PATIENCE):
            while not (controller.running and controller.rest):
                await asyncio.sleep(0.1)
        workload.start()
        await at_work(partial(gather, database.url, fleet, servers, log), log)
        lengths = [ROUND] * int(seconds // ROUND) + ([rest_of] if (rest_of := seconds % ROUND) >= 5.0 else [])
        for faults in rounds(seed, lengths or [seconds], kinds(whole, own=own)):
            result.rounds += 1
            result.kinds.update(fault.kind.value for fault in faults)
            await asyncio.gather(_in_time(whole, faults), asyncio.sleep(lengths[result.rounds - 1]))
            await workload.rest()
            began = time.monotonic()
            looked, seen = await _at_rest(whole, log)
            result.broken = in_words(looked.looks)
            took = f"{'broken' if result.broken else 'at rest'} after {time.monotonic() - began:.1f} s"
            say(f"round {result.rounds}: {len(faults)} faults, {took}, {len(result.broken)} promises broken; "
                f"{judged(log, seen)}")  # fmt: skip
            if result.broken:
                told = await workload.look("/v1/switches")
                result.switches = both_sides(fleet, told.json["switches"] if told.status == 200 else ())
                keep(directory, database.url, log, faults, result.broken, result.switches, found)
                break
            workload.go_on()
    finally:
        whole.wanted = False
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        controller.kill()
        await workload.stop()
        await fleet.stop()
        await switches.close()
        await hooks.close()
    result.asked = summary(log)
    return result


async def _watch(whole: Whole) -> None:
    """Start the controller whenever it does not run, as systemd does."""
    while True:
        if whole.wanted and not whole.controller.running:
            with contextlib.suppress(RuntimeError):
                await asyncio.to_thread(whole.controller.__enter__)
        await asyncio.sleep(0.3)


async def _in_time(whole: Whole, faults: Sequence[Fault]) -> None:
    async def at(fault: Fault) -> None:
        await asyncio.sleep(fault.at)
        await undergo(whole, fault)

    await asyncio.gather(*map(at, faults))


async def at_work(look: Callable[[], Evidence], log: Log) -> None:
    """Wait, before the first fault, until there is something of everything that is judged: on a slow machine nothing
    might be acknowledged in a short run otherwise. Raises TimeoutError."""
    end, amounts = time.monotonic() + PATIENCE, dict[str, int]()
    while time.monotonic() < end:
        await asyncio.sleep(LOOK)
        with contextlib.suppress(LarkError, OSError, psycopg.Error, sqlite3.Error):
            amounts = judged(log, await asyncio.to_thread(look))
            if all(amounts.values()):
                return
    raise TimeoutError(f"after {PATIENCE:g} s there is not something of everything that is judged: {amounts}")


async def _at_rest(whole: Whole, log: Log) -> tuple[Rest, Evidence]:
    """The violations once nothing changes any more, and the last evidence. Raises what the databases raise."""
    looked, seen = Rest(), Evidence()
    while True:
        await asyncio.sleep(LOOK)
        broken: list[Violation] | None = None
        unseen: Exception | None = None
        # What is renewed lives for certain, and a controller that does not answer has not come back.
        answered = await whole.workload.renew()
        try:
            seen = await asyncio.to_thread(gather, whole.database.url, whole.fleet, whole.servers, log)
            seen = replace(seen, running=answered and whole.controller.running)
            broken = check(log, seen, time.monotonic())
        except (LarkError, OSError, psycopg.Error, sqlite3.Error) as error:
            unseen = error
        if looked.over(broken):
            if unseen is not None:
                raise unseen
            return looked, seen


def judged(log: Log, seen: Evidence) -> dict[str, int]:
    """The amount that was judged: a checker that sees nothing finds nothing."""
    standing = log.standing(time.monotonic())
    return {
        "standing": len(standing), "gone": len(log.gone()), "reserved": len(log.reserved(standing)),
        "flows": sum(map(len, seen.desired.values())),
        "queues": sum(map(len, seen.wanted_queues.values())), "kbps": sum(seen.reserved.values()),
        "megabytes": sum(map(sum, seen.used.values())) // 1_000_000,
    }  # fmt: skip


@contextmanager
def _directory() -> Iterator[tuple[Path, bool]]:
    """A directory, and whether it is a small disk of its own: root has namespaces, whose mounts go with them."""
    directory = Path(tempfile.mkdtemp(prefix="lark-chaos-", dir="/tmp"))
    own = os.geteuid() == 0
    try:
        if own:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", directory], check=True)
        yield directory, own
    finally:
        if own:
            subprocess.run(["umount", "--lazy", directory], check=False)
        shutil.rmtree(directory, ignore_errors=True)


def ports_of_own() -> int:
    """The first of a hundred ports that no connection is given while their server is away: root's network is its own,
    and others' differ by process."""
    return 20_000 + os.getpid() % 100 * 100
