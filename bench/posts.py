"""``POST /v1/jobs?wait=`` to confirmed flows: 1,000 switches, hooks that post whenever jobs start."""

from __future__ import annotations

import asyncio
import gc
import random
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bench.http import Client
from bench.percentiles import percentile
from bench.population import PORTS, ads, jobs, policy_text
from bench.process import Lark
from bench.switches import Switches
from lark_controller.jobs.job import Job

RATE: Final = 50.0
WAIT: Final = 10.0
BLOCK: Final = 22
CONNECTIONS: Final = 64


@dataclass(frozen=True, slots=True)
class Post:
    """One post: on which worker, milliseconds from the time it was due until its answer, whether all confirmed."""

    worker: int
    milliseconds: float
    status: int
    confirmed: bool


def measure(seconds: float, count: int, rate: float = RATE, wait: float = WAIT) -> dict[str, Any]:
    """Posts to ``count`` switches: with all of them well, and with one that stops reading."""
    with tempfile.TemporaryDirectory() as directory, Lark(Path(directory), policy_text(BLOCK)) as controller:
        chosen = iter(jobs(int(rate * seconds * 2.5) + 200, BLOCK))
        with Switches(controller.openflow, count) as switches:
            wanted = [_at(job, job.number % count + 1, job.number // count) for job in chosen]
            half = len(wanted) // 2
            asyncio.run(send(controller, wanted[:20], rate, wait))
            well = asyncio.run(send(controller, wanted[20:half], rate, wait, seconds))
            stalled = count // 2
            switches.tell("stall", stalled)
            # One job in fifty runs on the worker whose switch does not read.
            last = [
                _at(job, stalled, PORTS - 1 - job.number // 50) if job.number % 50 == 0 else job
                for job in wanted[half:]
            ]
            ill = asyncio.run(send(controller, last, rate, wait, seconds))
            counts = switches.tell("counts")
        memory = controller.memory()
    others = [post for post in ill if post.worker != stalled]
    there = [post for post in ill if post.worker == stalled]
    return {
        "switches": count, "rate": rate, "seconds": seconds, "well": summary(well), "others": summary(others),
        "stalled": summary(there), "flows": counts["flows"], "packet_ins": counts["packet_ins"], "memory": memory,
        "connect_seconds": switches.seconds,
    }  # fmt: skip


async def send(controller: Lark, chosen: list[Job], rate: float, wait: float, seconds: float = 5.0) -> list[Post]:
    """Post jobs at times of a Poisson process, whatever became of those before; counted from when each was due."""
    client = Client(controller.rest, controller.token)
    await client.open(min(CONNECTIONS, len(chosen)))
    draw = random.Random(7)
    due = time.perf_counter() + 1.0
    end = due + seconds
    tasks = []
    for job in chosen:
        due += draw.expovariate(rate)
        if due > end:
            break
        tasks.append(asyncio.create_task(_post(client, job, ads(job).encode(), due, wait)))
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        done = await asyncio.gather(*tasks)
    finally:
        gc.enable()
        gc.unfreeze()
    client.close()
    return list(done)


async def _post(client: Client, job: Job, body: bytes, due: float, wait: float) -> Post:
    await asyncio.sleep(due - time.perf_counter())
    answer = await client.request("POST", f"/v1/jobs?wait={wait:g}", body)
    took = (time.perf_counter() - due) * 1000
    confirmed = answer.status == 201 and not answer.json["waiting"]
    assert job.datapath is not None
    return Post(job.datapath, took, answer.status, confirmed)


def _at(job: Job, worker: int, place: int) -> Job:
    """A job as it is posted from that worker, at its port number ``place``."""
    run = job.run._replace(slot=f"slot1_{job.number}@worker{worker}")
    return replace(job, run=run, id=run.id, host=f"worker{worker}", datapath=worker, port=f"job{place % PORTS}")


def summary(posts: list[Post]) -> dict[str, Any]:
    """The number of posts, how many were confirmed, and their latency in milliseconds."""
    ordered = sorted(post.milliseconds for post in posts)
    return {
        "posts": len(posts),
        "confirmed": sum(post.confirmed for post in posts),
        "refused": sum(post.status != 201 for post in posts),
        "statuses": sorted({post.status for post in posts}),
        "p50": percentile(ordered, 50),
        "p99": percentile(ordered, 99),
        "worst": percentile(ordered, 100),
    }
