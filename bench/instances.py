"""One, two and three controllers on one PostgreSQL: ``python -m bench --only instances``.

Each number of them has a copy of the same database, the same switches, and the same questions one after the other: how
many posts are confirmed a second, asked at the active one and at one that stands by; what changes at the active one, as
many as it takes, and 300 a second in the database cost one that stands by; and, of two or three, what becomes of posts
when the active one is killed.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from bench.changes import fill
from bench.feed import LIFE as LASTS
from bench.feed import RUNS, written
from bench.fleet import PlayedSwitches
from bench.http import Client
from bench.percentiles import percentile
from bench.population import PORTS, jobs
from bench.process import COPIED, STANDS_BY, Lark
from bench.scale import BLOCK, JOB_PORTS, MIB, Post, Scale, policy, post_one, steady_posts, summary
from bench.takeovers import NAMES, instances, kill, prepared
from lab.postgres import PostgresServer
from lab.run import free_port
from lark_controller.jobs.job import Job

COUNTS: Final = range(1, len(NAMES) + 1)
# Hooks that post one job after the other: fewer than an instance hands on at a time.
HOOKS: Final = 40
RATE: Final = 50.0
# Starts and as many ends a second: 300 changes. And the seconds of each of these jobs.
STARTS: Final = 150.0
LIFE: Final = 1.0
WAIT: Final = 10.0
# Posts a second while the active one is killed; seconds until a hook asks again that was answered 502 or 503, or not at
# all, and in which it must have its answer.
LOST_RATE: Final = 20.0
AGAIN: Final = 1.0
PATIENCE: Final = 120.0
_COPY_AT: Final = re.compile(r"^lark_directory_copy_timestamp_seconds (\S+)$", re.MULTILINE)


def measure(
    size: int = 20_000,
    seconds: float = 20.0,
    counts: range = COUNTS,
    keep: Callable[[dict[str, Any]], None] = lambda _found: None,
) -> dict[str, Any]:
    """Ask the same of each number of instances, with 64 jobs on each worker; each question takes ``seconds``.

    The figures so far go to ``keep`` after each of them.
    """
    workers = max(4, size // 64)
    found: dict[str, Any] = {"jobs": size, "workers": workers, "seconds": seconds, "rows": []}
    with ExitStack() as stack:
        # Not below the temporary directory of the tests, which the server's user may not enter.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lark-instances-", dir="/tmp")))
        directory.chmod(0o711)
        (directory / "database").mkdir()
        server = PostgresServer(directory / "database")
        server.create()
        server.start()
        stack.callback(server.stop)
        server.new_database(name="filled")
        fill(server.url("filled"), policy(), itertools.islice(jobs(size, BLOCK, workers=workers), size))
        for count in counts:
            own = directory / str(count)
            own.mkdir()
            url = server.new_database("filled", f"of_{count}")
            found["rows"].append(_row(own, url, count, size, workers, seconds))
            keep(found)
            server.drop_database(url)
    return found


def _row(directory: Path, url: str, count: int, size: int, workers: int, seconds: float) -> dict[str, Any]:
    with ExitStack() as stack:
        ports = [free_port() for _ in range(count)]
        every = instances(directory, ports, url)
        for each in every:
            stack.callback(each.kill)
        active, *standing = every
        active.begin()
        active.serves()
        for each in standing:
            each.begin()
            each.until(STANDS_BY)
        run = Scale(directory, size, workers, _fresh(size, workers))
        run.controller, run.token = active, active.token
        run.switches = stack.enter_context(PlayedSwitches(ports, workers, JOB_PORTS))
        run.switches.tell("connect")
        run.say(f"instances_{count}_sync_seconds", asyncio.run(run.all_in_sync()))
        for each in standing:
            each.until(COPIED)
        row: dict[str, Any] = {"instances": count, "memory": [each.memory() / MIB for each in every]}
        for name, asked in (("active", active), *(("standby", each) for each in standing[:1])):
            run.controller = asked
            row[name] = asyncio.run(_posted(run, seconds))
            run.say(f"instances_{count}_{name}", row[name])
        run.controller = active
        row["changes"] = asyncio.run(_changes(run, active, standing, seconds))
        if standing:
            row["feed"] = asyncio.run(_fed(run, url, standing, seconds))
            run.say(f"instances_{count}_feed", row["feed"])
        row["memory_most"] = [each.memory("HWM") / MIB for each in every]
        run.say(f"instances_{count}_changes", row["changes"])
        if standing:
            before = prepared(run, standing[0])
            row["lost"] = before | asyncio.run(_lost(run, active, standing))
            run.say(f"instances_{count}_lost", row["lost"])
        return row


def _fresh(size: int, workers: int) -> Iterator[Job]:
    """Jobs that are not registered yet, at ports that are free once those before them have ended."""
    # Jobs are counted from 1: the last of the pool may have a port beyond those of all others.
    taken = size // workers + 1
    every = jobs(1 << 40, BLOCK, workers=workers)
    return (job for job in itertools.islice(every, size, None) if taken <= (job.number // workers) % PORTS < JOB_PORTS)


async def _posted(run: Scale, seconds: float) -> dict[str, Any]:
    """Posts as many as go through, then at a steady rate; the jobs of each end before what follows."""
    done: list[Post] = []
    ended: list[Job] = []
    # No port of a worker is needed by two of them.
    most = run.workers * (JOB_PORTS - 64) // 2
    end = time.perf_counter() + seconds

    async def hook() -> None:
        client = Client(run.controller.rest, run.token)
        while time.perf_counter() < end and len(ended) < most:
            ended.append(job := next(run.fresh))
            done.append(await post_one(client, job, time.perf_counter(), WAIT))
        client.close()

    began = time.perf_counter()
    await asyncio.gather(*(hook() for _ in range(HOOKS)))
    took = time.perf_counter() - began
    await _end(run, ended)
    steady = list(itertools.islice(run.fresh, max(1, int(RATE * seconds))))
    at_rate = summary(await steady_posts(run, steady, rate=RATE, wait=WAIT))
    await _end(run, steady)
    found = summary(done)
    return {"per_second": found["confirmed"] / took, "most": found, "steady": at_rate}


async def _end(run: Scale, ended: list[Job]) -> None:
    """End jobs as fast as it goes."""
    left = iter(ended)

    async def one() -> None:
        client = Client(run.controller.rest, run.token)
        for job in left:
            await client.request("DELETE", f"/v1/jobs/{job.id}")
        client.close()

    await asyncio.gather(*(one() for _ in range(HOOKS)))


async def _changes(run: Scale, active: Lark, standing: list[Lark], seconds: float) -> dict[str, Any]:
    """The processor time of each without changes, then with 300 a second, and the age of a copy meanwhile."""
    every = [active, *standing]
    idle = await _shares(every, seconds)
    done, made = asyncio.Event(), [0]
    changing = asyncio.create_task(_change(run, made, done))
    ages: list[float] = []
    watched = [asyncio.create_task(_ages(run, each, ages, done)) for each in standing[:1]]
    # By then jobs end as fast as others start.
    await asyncio.sleep(2 * LIFE)
    before, began = made[0], time.perf_counter()
    busy = await _shares(every, seconds)
    per_second = (made[0] - before) / (time.perf_counter() - began)
    done.set()
    await asyncio.gather(changing, *watched)
    found: dict[str, Any] = {"idle": idle, "busy": busy, "per_second": per_second}
    if ages:
        found |= {"age_p50": percentile(sorted(ages), 50), "age_worst": max(ages)}
    return found


async def _fed(run: Scale, url: str, standing: list[Lark], seconds: float) -> dict[str, Any]:
    """The processor time of those that stand by without changes, then while another writes 300 a second, and the age of
    a copy meanwhile."""
    idle = await _shares(standing, seconds)
    done = asyncio.Event()
    ages: list[float] = []
    watched = asyncio.create_task(_ages(run, standing[0], ages, done))
    # No more runs stand than half of the ports that are free for them.
    life = min(LASTS, seconds)
    rate = min(RUNS, run.workers * (JOB_PORTS - 64) / life / 2)
    with written(url, policy(), run.fresh, rate, life) as feed:
        before, began = feed.changes, time.perf_counter()
        busy = await _shares(standing, seconds)
        per_second = (feed.changes - before) / (time.perf_counter() - began)
    done.set()
    await watched
    ordered = sorted(ages)
    return {
        "idle": idle, "busy": busy, "per_second": per_second, "age_p50": percentile(ordered, 50),
        "age_worst": ordered[-1],
    }  # fmt: skip


async def _shares(every: list[Lark], seconds: float) -> list[float]:
    """The part of a processor that each of them uses."""
    before, began = [each.processor_seconds() for each in every], time.perf_counter()
    await asyncio.sleep(seconds)
    took = time.perf_counter() - began
    return [(each.processor_seconds() - used) / took for each, used in zip(every, before, strict=True)]


async def _change(run: Scale, made: list[int], done: asyncio.Event) -> None:
    """Start jobs and end each after its short life, until it is done; the changes are counted. Where they take longer
    than they should there are fewer, and no more under way at a time."""
    standing: deque[tuple[float, Job]] = deque()
    begins = itertools.count()
    first = time.perf_counter()

    async def hook() -> None:
        client = Client(run.controller.rest, run.token)
        while not done.is_set():
            await asyncio.sleep(max(0.0, first + next(begins) / STARTS - time.perf_counter()))
            job = next(run.fresh)
            posted = await post_one(client, job, time.perf_counter(), 0.0)
            made[0] += posted.status == 201
            standing.append((time.perf_counter(), job))
            while standing and standing[0][0] + LIFE < time.perf_counter():
                ended = await client.request("DELETE", f"/v1/jobs/{standing.popleft()[1].id}")
                made[0] += ended.status == 200
        client.close()

    await asyncio.gather(*(hook() for _ in range(HOOKS)))
    await _end(run, [job for _, job in standing])


async def _ages(run: Scale, standby: Lark, ages: list[float], done: asyncio.Event) -> None:
    client = Client(standby.rest, run.token)
    while not done.is_set():
        answer = await client.request("GET", "/metrics")
        shown = _COPY_AT.search(answer.body.decode())
        if shown is not None and float(shown[1]):
            ages.append(max(0.0, time.time() - float(shown[1])))
        await asyncio.sleep(0.5)
    client.close()


async def _lost(run: Scale, active: Lark, standing: list[Lark]) -> dict[str, Any]:
    """Kill the active one while hooks post at one that stands by, and ask again where they are refused."""
    # The first one may be the one that takes over, or not: hooks have a list, and any of the others answers.
    asked = standing[-1]
    done = asyncio.Event()
    posted: dict[str, float] = {}

    async def post(client: Client, job: Job) -> None:
        began = time.perf_counter()
        while time.perf_counter() - began < PATIENCE:
            try:
                answered = await post_one(client, job, began, 0.0)
            except (OSError, asyncio.IncompleteReadError):
                answered = None
            if answered is not None and answered.status in (200, 201):
                posted[job.id] = time.perf_counter() - began
                return
            await asyncio.sleep(AGAIN)

    async def hooks() -> int:
        client = Client(asked.rest, run.token)
        tasks = []
        while not done.is_set():
            tasks.append(asyncio.create_task(post(client, next(run.fresh))))
            await asyncio.sleep(1 / LOST_RATE)
        await asyncio.gather(*tasks)
        client.close()
        return len(tasks)

    posting = asyncio.create_task(hooks())
    await asyncio.sleep(1.0)
    successor, taken = await asyncio.to_thread(kill, run, active, standing)
    done.set()
    tried = await posting
    client = Client(successor.rest, run.token)
    there = [(await client.request("GET", f"/v1/jobs/{each}")).status for each in posted]
    client.close()
    waited = sorted(posted.values())
    return taken | {
        "posts": tried, "acknowledged": len(posted), "missing": sum(status != 200 for status in there),
        "post_worst": waited[-1], "memory_left": [each.memory() / MIB for each in standing],
        "memory_left_most": [each.memory("HWM") / MIB for each in standing],
    }  # fmt: skip
