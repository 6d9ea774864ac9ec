"""The controller beside the OVSDB servers of 1,000 workers: connecting, a job's change of rate, memory, idle processor.

Everything is measured beside a reference in the same run: connecting, memory and processor beside a controller that has
the same switches and jobs without databases, and a change of rate by turns with a controller of one worker.
"""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.changes import fill, sqlite_in
from bench.databases import Databases, address
from bench.http import Client
from bench.percentiles import percentile
from bench.population import WORKERS, ads, jobs, policy_text
from bench.process import Lark
from bench.switches import Switches
from lark_controller.jobs.job import Job

BLOCK: Final = 22
# Jobs with a rate of their own on each worker: each has a queue at the uplink, and its own port has one.
JOBS: Final = 8
RATE: Final = 100
# Whom the population's policy blocks: such jobs have no queues.
BLOCKED: Final = "user199"
WAIT: Final = 10.0
PATIENCE: Final = 300.0
IDLE_SECONDS: Final = 20.0
# Changes before those that are counted.
WARM: Final = 5


def measure(workers: int, changes: int, idle: float = IDLE_SECONDS) -> dict[str, Any]:
    """``workers`` of at most 1,000 with a database each, and ``changes`` of rates there and on a pool of one worker."""
    # A socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="lark-bench-", dir="/tmp") as name:
        directory = Path(name)
        without = _without(directory / "without", workers, idle)
        with ExitStack() as stack:
            databases = stack.enter_context(Databases(_made(directory / "d"), workers + 1))
            one, one_jobs = _pool(directory / "one", [workers + 1], directory / "d")
            many, many_jobs = _pool(directory / "many", list(range(1, workers + 1)), directory / "d")
            stack.enter_context(one)
            stack.enter_context(Switches(one.openflow, 1, workers + 1))
            _all_committed(databases, {workers + 1})
            stack.enter_context(many)
            began = time.monotonic()
            switches = stack.enter_context(Switches(many.openflow, workers))
            committed = _all_committed(databases, set(range(1, workers + 1)))
            _managed(many, workers)
            connected = time.monotonic() - began
            memory, threads = many.memory(), many.threads()
            spent = _idle(many, idle)
            found = asyncio.run(_by_turns(databases, (many, many_jobs), (one, one_jobs), changes))
            found["storm"] = _storm(many, databases, directory / "d", workers)
    return {
        "workers": workers, "jobs": JOBS * workers, "changes": changes, "start_seconds": databases.seconds,
        "connect_seconds": connected, "committed_seconds": committed - began, "switch_seconds": switches.seconds,
        "memory": memory, "threads": threads, "idle": spent, "without": without, **found,
    }  # fmt: skip


def _without(directory: Path, workers: int, idle: float) -> dict[str, float]:
    """The same switches and jobs, without the databases' addresses."""
    controller, _ = _pool(directory, list(range(1, workers + 1)), None)
    with controller:
        began = time.monotonic()
        with Switches(controller.openflow, workers):
            connected = time.monotonic() - began
            memory, threads = controller.memory(), controller.threads()
            return {"connect_seconds": connected, "memory": memory, "threads": threads, "idle": _idle(controller, idle)}


def _pool(directory: Path, workers: list[int], databases: Path | None) -> tuple[Lark, list[Job]]:
    """A controller whose store has :data:`JOBS` jobs on each worker."""
    text = _policy(workers, databases)
    chosen: list[Job] = []
    free = (job for job in jobs(2 * JOBS * WORKERS, BLOCK) if job.owner != BLOCKED)
    for job in itertools.islice(free, JOBS * len(workers)):
        place, at = divmod(len(chosen), len(workers))
        run = job.run._replace(slot=f"slot1_{place}@worker{workers[at]}")
        chosen.append(
            replace(
                job, run=run, id=run.id, host=f"worker{workers[at]}", datapath=workers[at], port=f"job{place}",
                bandwidth=float(RATE),
            )
        )  # fmt: skip
    fill(sqlite_in(_made(directory)), text, chosen)
    return Lark(directory, text, lease_seconds="86400", switch_timeout="60", check_seconds="0"), chosen


def _policy(workers: list[int], databases: Path | None, rule: str = "{mode: cap}") -> str:
    """The pool's policy, with every worker declared and where its database is."""
    declared = []
    for number in workers:
        at = "" if databases is None else f', ovsdb: "{address(databases, number)}"'
        declared.append(f'  w{number}: {{datapath: "{number:016x}", role: edge, host: worker{number}{at}}}\n')
    text = policy_text(BLOCK, extra=f"  - bandwidth: {rule}\n").replace("edge: {", "edge: {speed: 10Gbit, ")
    return text.replace("policies:", f"{''.join(declared)}policies:", 1)


def _all_committed(databases: Databases, workers: set[int]) -> float:
    """Wait until each worker's database has had a transaction; when the last of them had its first."""
    last, deadline = 0.0, time.monotonic() + PATIENCE
    while workers:
        for number, at in databases.commits():
            if number in workers:
                workers.discard(number)
                last = max(last, at)
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(workers)} databases were given no queues")
        time.sleep(0.02)
    return last


def _managed(controller: Lark, count: int) -> None:
    """Wait until a controller reports each switch's queues as in force."""
    deadline = time.monotonic() + PATIENCE
    while controller.log().count(" queues are managed ") < count:
        if time.monotonic() > deadline:
            raise TimeoutError("not every database is connected")
        time.sleep(0.05)


def _idle(controller: Lark, seconds: float) -> float:
    """The share of one processor that a controller takes while nothing changes."""
    time.sleep(1.0)
    before, began = controller.processor_seconds(), time.monotonic()
    time.sleep(seconds)
    return (controller.processor_seconds() - before) / (time.monotonic() - began)


async def _by_turns(
    databases: Databases, many: tuple[Lark, list[Job]], one: tuple[Lark, list[Job]], changes: int
) -> dict[str, Any]:
    """Other rates for jobs of both pools, one after the other: milliseconds to the commit and to the answer."""
    took: dict[str, list[tuple[float, float]]] = {"many": [], "one": []}
    clients = {"many": Client(many[0].rest, many[0].token), "one": Client(one[0].rest, one[0].token)}
    # Jobs of other workers each time.
    turns = {"many": itertools.cycle(many[1][:: JOBS + 1]), "one": itertools.cycle(one[1])}
    for number in range(changes + WARM):
        for name, client in clients.items():
            job = next(turns[name])
            databases.commits()
            began = time.monotonic()
            answer = await client.request("POST", f"/v1/jobs?wait={WAIT:g}", _ads(job, RATE + number + 1))
            answered = time.monotonic() - began
            if answer.status not in (200, 201) or answer.json["waiting"]:
                raise RuntimeError(f"a change of rate was not confirmed: {answer}")
            committed = [at - began for worker, at in databases.commits() if worker == job.datapath]
            if not committed:
                raise RuntimeError(f"the database of worker {job.datapath} was not changed")
            if number >= WARM:
                took[name].append((committed[0] * 1000, answered * 1000))
    for client in clients.values():
        client.close()
    return {name: _summary(each) for name, each in took.items()}


def _summary(took: list[tuple[float, float]]) -> dict[str, dict[str, float]]:
    """Percentiles of the time until the commit and until the answer."""
    found = {}
    for what, values in zip(("committed", "answered"), zip(*took, strict=True), strict=True):
        ordered = sorted(values)
        found[what] = {f"p{each}": percentile(ordered, each) for each in (50, 95, 99)}
    return found


def _ads(job: Job, rate: int) -> bytes:
    return ads(job).replace("------\n", f"RequestBandwidth = {rate}\n------\n").encode()


def _storm(controller: Lark, databases: Databases, directory: Path, workers: int) -> dict[str, float]:
    """Another policy that changes a rate on every worker: seconds until the last database has it."""
    databases.commits()
    text = _policy(list(range(1, workers + 1)), directory, f"{{mode: cap, maximum: {RATE // 2}Mbit}}")
    began = time.monotonic()
    asyncio.run(_put(controller, text))
    answered = time.monotonic() - began
    return {"answered": answered, "committed": _all_committed(databases, set(range(1, workers + 1))) - began}


async def _put(controller: Lark, text: str) -> None:
    client = Client(controller.rest, controller.token)
    answer = await client.request("PUT", "/v1/policy", text.encode(), "application/yaml")
    client.close()
    if answer.status != 200:
        raise RuntimeError(f"the policy was not taken: {answer}")


def _made(path: Path) -> Path:
    path.mkdir()
    return path
