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
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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
# Rounds without an attack and under it, by turns; after each the controller has so many seconds to itself.
ROUNDS: Final = 2
SETTLE: Final = 2.0
# Descriptors that the controller is left with beyond those in use.
FEW: Final = 300


@dataclass(frozen=True, slots=True)
class Attack:
    """An attack: which program of :mod:`bench.attacks` makes it, and what is done to the controller's process or disk
    for its time. ``refused``: posts may get 503."""

    what: str
    program: str
    state: Callable[[Lark], AbstractContextManager[None]] = lambda _: nullcontext()
    refused: bool = False


@contextmanager
def _few_descriptors(controller: Lark) -> Iterator[None]:
    used = len(list(Path(f"/proc/{controller.pid}/fd").iterdir()))
    before = resource.prlimit(controller.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(controller.pid, resource.RLIMIT_NOFILE, (used + FEW, before[1]))
    yield
    resource.prlimit(controller.pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def _full(controller: Lark) -> Iterator[None]:
    size = 1 << 20
    rest = controller.directory / "rest"
    with rest.open("wb", buffering=0) as file:
        while size >= 1024:
            try:
                file.write(b"\0" * size)
            except OSError:
                size //= 2
    yield
    rest.unlink()


ATTACKS: Final = (
    Attack("a regular expression without end in an ad, posted by three clients", "regexp"),
    Attack("114 kB of long names in an ad, posted by three clients", "names"),
    Attack("policies to plan that take time and memory without end, two clients", "plan"),
    Attack("policies of 16,000 directives of YAML to check and to plan, two clients", "directives"),
    Attack("rules of workers, read by 64 clients without a pause", "rules"),
    Attack("the longest lists, read by 16 clients without a pause", "lists"),
    Attack("32 switches that connect again and again", "reconnects"),
    Attack("two switches with one datapath id, each again and again in the other's place", "twins"),
    Attack("PacketIns of one job to ever new addresses", "destinations"),
    Attack("1,000 connections of a stranger, opened again when closed", "connections"),
    Attack("ports of one switch, 20,000 that come and go", "ports"),
    Attack("a full disk", "nothing", state=_full, refused=True),
    Attack("neighbour solicitations of one job, each a PacketIn", "neighbours"),
    Attack(f"{FEW} descriptors, and 1,000 connections of a stranger", "connections", state=_few_descriptors),
    Attack("dumps of flows without end from four switches", "dumps"),
    Attack("the same, of ever other flows with the controller's own cookies", "stale"),
    Attack("requests of a stranger with 32 kB of blanks before a field's value", "blanks"),
    Attack("bodies of a stranger in chunks of one byte", "chunks"),
    Attack("bodies of 256 kB with 87,000 mistakes, by a worker's token", "mistakes"),
)


def measure(seconds: float, workers: int, only: str = "") -> dict[str, Any]:
    """Every attack (or those of one program) for ``seconds`` in :data:`ROUNDS` rounds, each after as long without, on
    ``workers`` switches. Needs root, for the namespaces."""
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
    return {"seconds": seconds, "workers": workers, "rate": RATE, "rounds": ROUNDS, "rows": rows}


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
            chosen = (_at(job, job.number % workers + 1, job.number // workers) for job in _jobs(seconds))
            asyncio.run(load(controller, chosen, min(2.0, seconds)))
            without, under, memory, logged, ready = Asked(), Asked(), 0, 0, 0
            for each in range(ROUNDS):
                without += asyncio.run(load(controller, chosen, seconds, each))
                memory, logged = memory or controller.memory("HWM"), logged or len(controller.log())
                with attack.state(controller), _attacking(attack.program, target):
                    time.sleep(0.5)
                    under += asyncio.run(load(controller, chosen, seconds, each))
                    ready = asyncio.run(_ready(controller))
                time.sleep(SETTLE)
            away = switches.tell("counts")["away"]
            return {
                "what": attack.what, "refused": attack.refused, "without": without.summary(),
                "under": under.summary(), "away": away, "memory": controller.memory("HWM") / memory, "ready": ready,
                "logged": len(controller.log()) - logged,
            }  # fmt: skip


def _jobs(seconds: float) -> Iterator[Job]:
    return jobs(int(3 * ROUNDS * RATE * seconds) + 300, BLOCK)


@dataclass(frozen=True, slots=True)
class Asked:
    """Posts, and requests of ``/healthz``: milliseconds and status of each."""

    posts: tuple[tuple[float, int], ...] = ()
    health: tuple[tuple[float, int], ...] = ()

    def __add__(self, other: Asked) -> Asked:
        return Asked(self.posts + other.posts, self.health + other.health)

    def summary(self) -> dict[str, Any]:
        """The numbers of both."""
        return {"posts": _summary(self.posts), "health": _summary(self.health)}


async def load(controller: Lark, chosen: Iterator[Job], seconds: float, seed: int = 7) -> Asked:
    """Post jobs at times of a Poisson process, and ask ``/healthz`` by ever new connections."""
    client = Client(controller.rest, controller.token)
    await client.open(8)
    draw, due = random.Random(seed), time.perf_counter() + 0.1
    end = due + seconds
    tasks = []
    while (due := due + draw.expovariate(RATE)) < end:
        job = next(chosen)
        tasks.append(asyncio.create_task(_timed(client, "POST", "/v1/jobs?wait=2", ads(job).encode(), due)))
    health = asyncio.create_task(_health(controller, end))
    posts = await asyncio.gather(*tasks)
    asked = await health
    client.close()
    return Asked(tuple(posts), tuple(asked))


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


def _summary(asked: Sequence[tuple[float, int]]) -> dict[str, Any]:
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
    # Attackers have machines of their own: here theirs is what the others leave of this one.
    command = ["nice", "-n", "10", sys.executable, "-m", "bench.attacks", program]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
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
