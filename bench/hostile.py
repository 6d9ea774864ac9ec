"""Under attack: ``/healthz``, posts, switches and memory beside the same without attack, in one run of each controller.

In namespaces of its own (network and mounts), so that addresses on the loopback device are strangers', and a disk is
full.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench import attacks
from bench.attacks import HERE, STRANGER, Target
from bench.http import Client
from bench.percentiles import percentile
from bench.population import ads, jobs, policy_text
from bench.posts import BLOCK, _at
from bench.process import Lark
from bench.switches import Switches
from lark_controller.jobs.job import Job
from lark_controller.rest.tokens import Scope, add

REST: Final = 8080
RATE: Final = 20.0
HEALTH_SECONDS: Final = 0.05
PATIENCE: Final = 30.0
# Descriptors that the controller is left with beyond those in use.
FEW: Final = 300


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack: which program of :mod:`bench.attacks` makes it, and what is done to the controller's process or disk
    at its begin. ``refused``: posts may get 503."""

    what: str
    program: str
    begin: Callable[[Lark], None] = lambda _: None
    refused: bool = False


def _few_descriptors(controller: Lark) -> None:
    used = len(list(Path(f"/proc/{controller.pid}/fd").iterdir()))
    resource.prlimit(controller.pid, resource.RLIMIT_NOFILE, (used + FEW, used + FEW))


def _fill(controller: Lark) -> None:
    size = 1 << 20
    with (controller.directory / "rest").open("wb", buffering=0) as file:
        while size >= 1024:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2


ATTACKS: Final = (
    Attack("a regular expression without end in an ad, posted by three clients", "regexp"),
    Attack("114 kB of long names in an ad, posted by three clients", "names"),
    Attack("policies to plan that take time and memory without end, two clients", "plan"),
    Attack("PacketIns of one job to ever new addresses", "destinations"),
    Attack("1,000 connections of a stranger, opened again when closed", "connections"),
    Attack("ports of one switch, 20,000 that come and go", "ports"),
    Attack("a full disk", "nothing", begin=_fill, refused=True),
    Attack("neighbour solicitations of one job, each a PacketIn", "neighbours"),
    Attack(f"{FEW} descriptors, and 1,000 connections of a stranger", "connections", begin=_few_descriptors),
    Attack("dumps of flows without end from four switches", "dumps"),
    Attack("the same, of ever other flows with the controller's own cookies", "stale"),
)


def measure(seconds: float, workers: int, only: str = "") -> dict[str, Any]:
    """Every attack (or those of one program) for ``seconds``, after as long without, on ``workers`` switches. Needs
    root, for the namespaces."""
    inner = (
        f"ip link set lo up && ip address add {HERE}/32 dev lo && ip address add {STRANGER}/32 dev lo && "
        f"exec {sys.executable} -m bench.hostile {seconds} {workers} {only}"
    )
    done = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", inner], check=True, stdout=subprocess.PIPE)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def all_attacks(seconds: float, workers: int, only: str = "") -> dict[str, Any]:
    """As :func:`measure`, in the namespaces."""
    rows = []
    for attack in (each for each in ATTACKS if only in ("", each.program)):
        rows.append(one(attack, seconds, workers))
        print(f"  {attack.what}", file=sys.stderr, flush=True)
    return {"seconds": seconds, "workers": workers, "rate": RATE, "rows": rows}


def one(attack: Attack, seconds: float, workers: int) -> dict[str, Any]:
    """One attack on a controller of its own."""
    with _disk() as directory:
        listen = {"rest_listen": f"127.0.0.1:{REST},{HERE}:{REST}", "state_dir": str(directory)}
        with (
            Lark(directory, policy_text(BLOCK), **listen) as controller,
            Switches(controller.openflow, workers) as switches,
        ):
            token = add(directory / "tokens.yaml", "attacker", [Scope.HOOK, Scope.READ])
            target = Target(controller.rest, controller.openflow, token)
            chosen = [_at(job, job.number % workers + 1, job.number // workers) for job in _jobs(seconds)]
            third = len(chosen) // 3
            asyncio.run(load(controller, chosen[:third], min(2.0, seconds)))
            without = asyncio.run(load(controller, chosen[third : 2 * third], seconds))
            memory, logged = controller.memory("HWM"), len(controller.log())
            attack.begin(controller)
            with _attacking(attack.program, target):
                time.sleep(0.5)
                under = asyncio.run(load(controller, chosen[2 * third :], seconds))
                ready = asyncio.run(_ready(controller))
            away = switches.tell("counts")["away"]
            return {
                "what": attack.what, "refused": attack.refused, "without": without,
                "under": under, "away": away, "memory": controller.memory("HWM") / memory, "ready": ready,
                "logged": len(controller.log()) - logged,
            }  # fmt: skip


def _jobs(seconds: float) -> Iterator[Job]:
    return jobs(int(3 * RATE * seconds * 2) + 300, BLOCK)


async def load(controller: Lark, chosen: list[Job], seconds: float) -> dict[str, Any]:
    """Post jobs at times of a Poisson process, and ask ``/healthz`` by ever new connections; milliseconds."""
    client = Client(controller.rest, controller.token)
    await client.open(8)
    draw, due = random.Random(7), time.perf_counter() + 0.1
    end = due + seconds
    tasks = []
    for job in chosen:
        due += draw.expovariate(RATE)
        if due > end:
            break
        tasks.append(asyncio.create_task(_timed(client, "POST", "/v1/jobs?wait=2", ads(job).encode(), due)))
    health = asyncio.create_task(_health(controller, end))
    posts = await asyncio.gather(*tasks)
    asked = await health
    client.close()
    return {"posts": _summary(posts), "health": _summary(asked)}


async def _health(controller: Lark, end: float) -> list[tuple[float, int]]:
    asked = []
    while (now := time.perf_counter()) < end:
        client = Client(controller.rest, controller.token)
        asked.append(asyncio.create_task(_timed(client, "GET", "/healthz", b"", now, close=True)))
        await asyncio.sleep(HEALTH_SECONDS)
    return list(await asyncio.gather(*asked))


async def _timed(
    client: Client, method: str, path: str, body: bytes, due: float, *, close: bool = False
) -> tuple[float, int]:
    """Milliseconds from when it was due, and the status; 0 where nothing was answered."""
    await asyncio.sleep(max(0.0, due - time.perf_counter()))
    status = 0
    with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
        async with asyncio.timeout(PATIENCE):
            status = (await client.request(method, path, body)).status
    took = (time.perf_counter() - due) * 1000
    if close:
        client.close()
    return took, status


async def _ready(controller: Lark) -> int:
    client = Client(controller.rest, controller.token)
    return (await _timed(client, "GET", "/readyz", b"", time.perf_counter(), close=True))[1]


def _summary(asked: list[tuple[float, int]]) -> dict[str, Any]:
    ordered = sorted(took for took, _ in asked)
    statuses: dict[str, int] = {}
    for _, status in asked:
        statuses[str(status)] = statuses.get(str(status), 0) + 1
    return {
        "count": len(asked), "statuses": statuses, "p50": percentile(ordered, 50), "p99": percentile(ordered, 99),
        "worst": percentile(ordered, 100),
    }  # fmt: skip


@contextmanager
def _attacking(program: str, target: Target) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "bench.attacks", program], stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(attacks.line(target))
    process.stdin.flush()
    try:
        yield
    finally:
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextmanager
def _disk() -> Iterator[Path]:
    """A small disk of its own."""
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "none", directory], check=True)
        try:
            yield Path(directory)
        finally:
            subprocess.run(["umount", "--lazy", directory], check=True)


if __name__ == "__main__":
    print(json.dumps(all_attacks(float(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])))
