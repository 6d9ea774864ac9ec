"""A pool in which every job has a rate of its own, each worker with a database: ``python -m bench --only limited``.

Every worker has a real ``ovsdb-server`` (:mod:`bench.databases`), 3.7 MB each: 3,125 of them take 12 GB of memory. The
switches are played as for :mod:`bench.scale`. The memory stands beside that of the same pool in which no job has a
rate.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from bench.changes import fill, sqlite_in
from bench.databases import Databases
from bench.fleet import PlayedSwitches
from bench.http import Client
from bench.population import jobs
from bench.scale import BLOCK, JOB_PORTS, MIB, Scale, policy, reference
from lab.run import free_port
from lark_controller.jobs.job import Job

# Mb/s that a job asks for, and one more for each: rates of a pool are not all the same.
RATE: Final = 100
PATIENCE: Final = 3600.0
_ENFORCED: Final = re.compile(r'^lark_jobs\{state="enforced"\} (\S+)$', re.MULTILINE)


def measure(size: int = 200_000, workers: int = 3125) -> dict[str, Any]:
    """The memory of the controller, and its time until every job is enforced, with rates and without."""
    found: dict[str, Any] = {"jobs": size, "workers": workers}
    with tempfile.TemporaryDirectory(prefix="lark-bench-", dir="/tmp") as name:
        directory = Path(name)
        found["reference"] = reference(directory)
        for kind in ("without", "with"):
            place = directory / kind
            place.mkdir()
            found[kind] = _measure(place, size, workers, rates=kind == "with")
            print(f"  {kind} rates: {found[kind]}", flush=True)
    return found


def _measure(directory: Path, size: int, workers: int, *, rates: bool) -> dict[str, float]:
    text, port = _policy() if rates else policy(), free_port()
    fill(sqlite_in(directory), text, _jobs(size, workers, rates=rates))
    run = Scale(directory, size, workers, iter(()), {}, math.inf)
    with ExitStack() as stack:
        if rates:
            stack.enter_context(Databases(directory, workers, port))
        stack.enter_context(run.running(text, ovsdb=f"tcp:{{host}}:{port}" if rates else ""))
        loaded = run.controller.memory() / MIB
        run.switches = stack.enter_context(PlayedSwitches(run.controller.openflow, workers, JOB_PORTS))
        before, began = run.controller.processor_seconds(), time.monotonic()
        run.switches.tell("connect")
        asyncio.run(run.all_in_sync())
        asyncio.run(_all_enforced(run))
        return {
            "loaded": loaded,
            "enforced": run.controller.memory() / MIB,
            "most": run.controller.memory("HWM") / MIB,
            "seconds": time.monotonic() - began,
            "processor_seconds": run.controller.processor_seconds() - before,
        }


def _jobs(size: int, workers: int, *, rates: bool) -> Iterator[Job]:
    for number, job in enumerate(itertools.islice(jobs(size, BLOCK, workers=workers), size)):
        yield replace(job, bandwidth=float(RATE + number % 64)) if rates else job


def _policy() -> str:
    """The pool's policy with a ceiling for each job."""
    text = policy().replace("edge: {", "edge: {speed: 100Gbit, ")
    return text.replace("groups:\n", "  - bandwidth: {mode: cap}\ngroups:\n", 1)


async def _all_enforced(run: Scale) -> None:
    """Wait until each job has its flows and its queues."""
    client = Client(run.controller.rest, run.token)
    deadline = time.monotonic() + PATIENCE
    while True:
        answer = await client.request("GET", "/metrics")
        told = _ENFORCED.search(answer.body.decode())
        if told is not None and float(told[1]) == run.size:
            client.close()
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"jobs are not enforced: {told and told[1]} of {run.size}")
        await asyncio.sleep(1.0)
