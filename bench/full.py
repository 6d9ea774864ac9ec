"""A controller with 200,000 jobs: start, memory, first packets, a policy reload while hooks go on posting."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from bench.changes import fill, sqlite_in
from bench.http import Client
from bench.load import frame
from bench.percentiles import percentile
from bench.population import FIRST_PORT, PORTS, WORKERS, ads, jobs, policy_text
from bench.process import Lark
from bench.switches import Switches
from lark_controller.jobs.job import Job

BLOCK: Final = 22
MIB: Final = 1 << 20
# Users whose first packets the policy drops.
STOPPED: Final = frozenset({"user017", "user199"})


def measure(size: int, connected: int, frames: int = 2000) -> dict[str, Any]:
    """Start on a store of ``size`` jobs, connect ``connected`` workers' switches and the core, reload the policy."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        every = jobs(size + 20_000, BLOCK)
        live = list(itertools.islice(every, size))
        fill(sqlite_in(directory), policy_text(BLOCK), live)
        fresh = [job for job in every if job.datapath is not None and job.datapath <= connected]
        settings = {"lease_seconds": "86400", "switch_timeout": "60"}
        with Lark(directory, policy_text(BLOCK), **settings) as controller:
            found: dict[str, Any] = {
                "jobs": size, "workers": WORKERS, "connected": connected, "start_seconds": controller.seconds,
                "memory_loaded": controller.memory() / MIB,
            }  # fmt: skip
            with Switches(controller.openflow, connected) as switches:
                found["connect_seconds"] = switches.seconds
                found["memory"] = controller.memory() / MIB
                found |= {f"switch_{name}": value for name, value in switches.tell("counts").items()}
                firsts = json.dumps(_frames(live, connected, frames), separators=(",", ":"))
                found["first_packets"] = switches.tell("frames", firsts)
                found["reload"] = asyncio.run(_reload(controller, fresh))
                found["memory_after_reload"] = controller.memory() / MIB
                found["memory_peak"] = controller.memory("HWM") / MIB
    return found


def _frames(live: list[Job], connected: int, count: int) -> list[list[Any]]:
    """First packets to another job of the same user, or to the WAN, as the sender's switch sees them come in."""
    by_owner: dict[str, list[Job]] = {}
    for job in live:
        if job.owner not in STOPPED:
            by_owner.setdefault(job.owner, []).append(job)
    senders = [job for job in live if job.owner in by_owner and job.datapath is not None and job.datapath <= connected]
    frames: list[list[Any]] = []
    for sender in itertools.cycle(senders):
        mates = by_owner[sender.owner]
        receiver = mates[(mates.index(sender) + 1) % len(mates)]
        assert sender.ipv4 is not None
        assert receiver.ipv4 is not None
        outside = len(frames) % 2 == 1
        destination = b"\x02\0\0\0\xff\x01" if outside else _mac(receiver)
        data = frame(_mac(sender), destination, int(sender.ipv4), 0xC6336401 if outside else int(receiver.ipv4))
        frames.append([sender.datapath, FIRST_PORT + sender.number // WORKERS % PORTS, data.hex()])
        if len(frames) == count:
            break
    return frames


def _mac(job: Job) -> bytes:
    assert job.mac is not None
    return bytes.fromhex(job.mac.replace(":", ""))


async def _reload(controller: Lark, fresh: list[Job]) -> dict[str, Any]:
    """Put another policy in force; meanwhile ask for /healthz 20 times a second, and post a job 5 times a second."""
    client = Client(controller.rest, controller.token)
    await client.open(16)
    health: list[float] = []
    posts: list[float] = []
    statuses: set[int] = set()
    done = asyncio.Event()

    async def ask(pause: float, path: str, method: str, bodies: list[bytes], took: list[float]) -> None:
        due = time.perf_counter()
        turn = itertools.count()
        waiting = set()
        while not done.is_set():
            body = bodies[next(turn) % len(bodies)]
            waiting.add(asyncio.create_task(_timed(client, method, path, body, due, took, statuses)))
            due += pause
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        await asyncio.gather(*waiting)

    tasks = [
        asyncio.create_task(ask(0.05, "/healthz", "GET", [b""], health)),
        asyncio.create_task(ask(0.2, "/v1/jobs?wait=10", "POST", [ads(job).encode() for job in fresh], posts)),
    ]
    started = time.perf_counter()
    changed = policy_text(BLOCK, steered="group_04").encode()
    answer = await client.request("PUT", "/v1/policy", changed, "application/yaml")
    seconds = time.perf_counter() - started
    done.set()
    await asyncio.gather(*tasks)
    client.close()
    if answer.status != 200:
        raise RuntimeError(f"the policy was not taken: {answer.status} {answer.body!r}")
    return {
        "seconds": seconds, "health": _worst(health), "posts": _worst(posts),
        "statuses": sorted(statuses),
    }  # fmt: skip


async def _timed(
    client: Client, method: str, path: str, body: bytes, due: float, took: list[float], statuses: set[int]
) -> None:
    answer = await client.request(method, path, body)
    took.append((time.perf_counter() - due) * 1000)
    statuses.add(answer.status)


def _worst(took: list[float]) -> dict[str, Any]:
    ordered = sorted(took)
    return {"count": len(took), "p50": percentile(ordered, 50), "worst": percentile(ordered, 100)}
