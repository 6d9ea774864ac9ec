"""Several controllers on one PostgreSQL: the active one is killed, stopped and ended, the database goes away or is
followed by its standby, and most of these faults overlap with another one (:mod:`tests.chaos.meanwhile`).

The promises are those of :mod:`tests.chaos.checker`, and two more: no switch carries out what anybody but its master
sends, and a switch has a master again after each fault.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final

import psycopg

from lark_common.client import Client, ProblemError, UnreachableError
from lark_common.errors import LarkError
from lark_controller.rest.tokens import Scope, add
from tests.chaos.checker import Violation, check
from tests.chaos.clock import VARIABLE, Clock
from tests.chaos.evidence import gather
from tests.chaos.log import Log
from tests.chaos.meanwhile import Beside, Meanwhile, turns
from tests.chaos.ovsdb import Servers
from tests.chaos.pool import policy
from tests.chaos.remains import in_words, keep
from tests.chaos.replicas import Replicated
from tests.chaos.rest import Rest
from tests.chaos.runner import LOOK, SETTINGS, SLOTS, SURELY, at_work, judged, ports_of_own
from tests.chaos.switches import Fleet
from tests.chaos.workload import Workload, summary

WORKERS: Final = 8
# Seconds until a process that has ended is started again: by systemd, or once somebody has looked.
SOON: Final = 1.0
LATE: Final = 12.0
# Seconds until switches have a master again after an instance is gone, at most.
PATIENCE: Final = 60.0
TICK: Final = 0.02


class Happens(StrEnum):
    """A fault of an instance, or of the database of all."""

    KILL = "the active instance is killed"
    STOP = "the active instance stands still for 10 s"
    END = "the active instance is ended"
    KILL_ANOTHER = "an instance that stands by is killed"
    SESSIONS = "the database ends all sessions"
    AWAY = "the database is away"
    PROMOTION = "the database crashes, and its standby takes its place"


# After these another instance is the master of all switches.
_MOVES: Final = frozenset({Happens.KILL, Happens.STOP, Happens.END})


class Instance:
    """One ``lark run``, with a directory and ports of its own; the tokens are those of all."""

    def __init__(self, directory: Path, name: str, text: str, openflow: int, rest: int, **settings: str) -> None:
        self.name, self.openflow, self.url = name, openflow, f"http://127.0.0.1:{rest}"
        self.rest = rest
        self._log = directory / "lark.log"
        directory.mkdir()
        (directory / "policy.yaml").write_text(text)
        self._environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("LARK_")},
            "LARK_STATE_DIR": str(directory),
            "LARK_POLICY_FILE": str(directory / "policy.yaml"),
            "LARK_INSTANCE_NAME": name,
            "LARK_INSTANCE_URL": self.url,
            "LARK_OPENFLOW_LISTEN": f"127.0.0.1:{openflow}",
            "LARK_REST_LISTEN": f"127.0.0.1:{rest}",
            **{f"LARK_{key.upper()}": value for key, value in settings.items()},
        }
        self._process: subprocess.Popen[bytes] | None = None
        # Monotonic; not to be started again before.
        self.not_before = 0.0
        self.starts = 0

    @property
    def running(self) -> bool:
        """True if the process is there, also where it stands still."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, and do not wait for anything."""
        self.starts += 1
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "tests.chaos.clock", "run"]
            self._process = subprocess.Popen(command, env=self._environment, stderr=log)

    def send(self, number: int) -> None:
        """Send a signal, if there is a process."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self) -> None:
        """Wait for the process's end."""
        if self._process is not None:
            self._process.wait()

    def log(self) -> str:
        """The log of all its lives."""
        return self._log.read_text("utf-8", "replace") if self._log.exists() else ""


@dataclass
class Result:
    """A run's result. ``took`` is the seconds from each fault of an active instance, where nothing else went wrong,
    until all switches had a master again, ``answered`` until a controller answered again."""

    broken: list[str] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    answered: list[float] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    asked: dict[str, dict[int, int]] = field(default_factory=dict)
    judged: dict[str, int] = field(default_factory=dict)
    refused: int = 0

    def figures(self) -> str:
        """The times in a line."""
        return f"master again after {_spread(self.took)}; answers again after {_spread(self.answered)}"


@dataclass
class Cluster:
    """All that runs."""

    instances: Sequence[Instance]
    database: Replicated
    fleet: Fleet
    workload: Workload
    log: Log
    servers: Servers
    token: str
    wanted: bool = True

    def active(self) -> Instance | None:
        """The instance that answers as the active one."""
        return next((each for each in self.instances if self._standing(each) == "active"), None)

    def stands_by(self, instance: Instance) -> bool:
        """True where an instance knows the active one, and follows it if that is silent from now on."""
        return self._standing(instance) == "stands by"

    def _standing(self, instance: Instance) -> str:
        """The place of an instance by its own word: any of them answers all else for the active one."""
        try:
            reasons = Client(instance.url, self.token, timeout=0.5).ready()["reasons"]
        except (ProblemError, UnreachableError, KeyError):
            return ""
        word = next((reason for reason in reasons if reason.startswith(("stands by", "takes over"))), "active")
        # One that has just started, or that the database does not answer, counts nobody's silence.
        return "stands by" if word.startswith("stands by") and word.endswith("is active") else word

    def generations(self) -> dict[int, int]:
        """The generation that each switch obeys."""
        return {number: switch.masters.generation or 0 for number, switch in self.fleet.switches.items()}

    def mastered(self, after: dict[int, int]) -> bool:
        """True where each switch has a master, of a later generation than that."""
        return all(
            (switch.masters.generation or 0) > after[number]
            and any(map(switch.masters.is_master, self.fleet.connections[number]))
            for number, switch in self.fleet.switches.items()
        )


async def run(count: int, seed: int, seconds: float, found: Path, say: Callable[[str], None]) -> Result:
    """Run ``count`` instances with faults for about so long; what remains of a run that failed lies in ``found``."""
    with tempfile.TemporaryDirectory(prefix="lark-instances-", dir="/tmp") as directory:
        folder = Path(directory)
        database, servers = Replicated(), Servers(folder, WORKERS, ports_of_own() + 10)
        try:
            return await _run(folder, database, servers, count, seed, seconds, found, say)
        finally:
            await servers.stop()
            database.close()


async def _run(
    folder: Path, database: Replicated, servers: Servers, count: int, seed: int, seconds: float, found: Path,
    say: Callable[[str], None],
) -> Result:  # fmt: skip
    os.environ[VARIABLE] = str(Clock(folder / "clock").path)
    policies = partial(policy, servers.addresses)
    tokens = folder / "tokens.yaml"
    token = add(tokens, "chaos", [Scope.HOOK, Scope.READ, Scope.OPERATE])
    port = ports_of_own()
    instances = [
        Instance(folder / f"lark{number}", f"lark{number}", policies(0), port + 40 + number, port + 50 + number,
                 database_url=database.url, tokens_file=str(tokens), **SETTINGS)
        for number in range(count)
    ]  # fmt: skip
    log, fleet = Log(SURELY), Fleet(WORKERS, SLOTS)
    workload = Workload(log, [each.rest for each in instances], token, seed, WORKERS, SLOTS, policies)
    cluster = Cluster(instances, database, fleet, workload, log, servers, token)
    watch = asyncio.create_task(_watch(cluster))
    fleet.start(*(each.openflow for each in instances))
    servers.start()
    result = Result()
    try:
        await _until(lambda: cluster.mastered(dict.fromkeys(fleet.switches, 0)))
        workload.start()
        await at_work(partial(gather, cluster.database.url, fleet, cluster.servers, cluster.log), cluster.log)
        try:
            await _faults(cluster, seed, seconds, result, say)
            await workload.rest()
            looked, result.judged = await _at_rest(cluster)
            result.broken = in_words(looked.looks)
        except (RuntimeError, TimeoutError) as error:
            # What the instances have logged says why.
            result.broken = [f"not within {PATIENCE:g} s: {str(error) or 'an instance that stands by'}"]
        result.broken += [
            f"switch {number} carried out {each.unfenced} flow-mods of one that was not its master"
            for number, connections in fleet.connections.items()
            for each in connections
            if each.unfenced
        ]
        result.refused = sum(each.refused_as_slave for every in fleet.connections.values() for each in every)
        if result.broken:
            keep(folder, database.url, log, (), result.broken, (), found)
            for each in instances:
                (found / f"{each.name}.log").write_text(each.log())
    finally:
        cluster.wanted = False
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        for each in instances:
            each.send(signal.SIGKILL)
            await asyncio.to_thread(each.wait)
        await workload.stop()
        await fleet.stop()
    result.asked = summary(log)
    return result


async def _faults(cluster: Cluster, seed: int, seconds: float, result: Result, say: Callable[[str], None]) -> None:
    draw, end = random.Random(seed), time.monotonic() + seconds
    faults = turns(draw, list(Happens))
    while time.monotonic() < end:
        kind, beside = next(faults)
        await _undergo(cluster, kind, beside, result, say)
        await asyncio.sleep(draw.uniform(0.5, 3.0))


async def _undergo(cluster: Cluster, kind: Happens, beside: Beside, result: Result, say: Callable[[str], None]) -> None:
    active = await _found(cluster)
    async with asyncio.timeout(PATIENCE):
        while kind in _MOVES and not any(
            [await asyncio.to_thread(cluster.stands_by, each) for each in cluster.instances]
        ):
            # What is measured is how soon another one takes over, and not when there is one again.
            await asyncio.sleep(TICK)
    before, began = cluster.generations(), time.monotonic()
    result.kinds[kind.value] += 1
    first, *_, last = [each for each in cluster.instances if each is not active] * 2
    victim = first if kind is Happens.KILL_ANOTHER else active
    victim.not_before = began + (SOON if beside.chosen < 1 / 2 else LATE)
    if beside.kind is not Meanwhile.NOTHING:
        result.kinds[beside.kind.value] += 1
    overlaps = asyncio.create_task(beside.undergo(cluster.fleet, cluster.database, last.send))
    resumed: asyncio.Task[None] | None = None
    match kind:
        case Happens.KILL | Happens.KILL_ANOTHER:
            victim.send(signal.SIGKILL)
        case Happens.END:
            victim.send(signal.SIGTERM)
        case Happens.STOP:
            victim.send(signal.SIGSTOP)
            resumed = asyncio.create_task(_resume(victim))
        case Happens.SESSIONS:
            await asyncio.to_thread(cluster.database.end_sessions)
        case Happens.AWAY:
            await asyncio.to_thread(cluster.database.stop)
            await asyncio.sleep(1.0 + 7.0 * beside.chosen)
            await asyncio.to_thread(cluster.database.start)
        case Happens.PROMOTION:
            await asyncio.to_thread(cluster.database.promote)
    words = str(kind) if beside.kind is Meanwhile.NOTHING else f"{kind}, while {beside.kind}"
    if kind in _MOVES:
        # Where the other one that runs stood still, too, nobody may have taken over before the pause is over.
        same = {number: generation - 1 for number, generation in before.items()}
        await _until(lambda: cluster.mastered(same if resumed is not None and resumed.done() else before))
        took = time.monotonic() - began
        await _found(cluster)
        answered = time.monotonic() - began
        if beside.kind is Meanwhile.NOTHING:
            result.took.append(took)
            result.answered.append(answered)
        words += f": master again after {took:.1f} s, answers after {answered:.1f} s"
    if resumed is not None:
        await resumed
    await overlaps
    await _found(cluster)
    if kind is Happens.PROMOTION:
        await asyncio.to_thread(cluster.database.follow)
    say(words)


async def _resume(instance: Instance) -> None:
    try:
        await asyncio.sleep(10.0)
    finally:
        instance.send(signal.SIGCONT)


async def _found(cluster: Cluster) -> Instance:
    """The active instance, once there is one."""
    end = time.monotonic() + PATIENCE
    while (active := await asyncio.to_thread(cluster.active)) is None:
        if time.monotonic() > end:
            raise RuntimeError("an active instance")
        await asyncio.sleep(TICK)
    return active


async def _until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise RuntimeError("masters of all switches")
        await asyncio.sleep(TICK)


async def _watch(cluster: Cluster) -> None:
    """Start what does not run, as systemd does."""
    while cluster.wanted:
        for each in cluster.instances:
            if not each.running and time.monotonic() > each.not_before:
                each.not_before = time.monotonic() + SOON
                await asyncio.to_thread(each.start)
        await asyncio.sleep(0.1)


async def _at_rest(cluster: Cluster) -> tuple[Rest, dict[str, int]]:
    """The violations once nothing changes any more, and the amount that was judged."""
    looked, counts = Rest(), {}
    while True:
        await asyncio.sleep(LOOK)
        broken: list[Violation] | None = None
        answered = await cluster.workload.renew()
        with contextlib.suppress(LarkError, OSError, psycopg.Error):
            seen = await asyncio.to_thread(gather, cluster.database.url, cluster.fleet, cluster.servers, cluster.log)
            # After an hour it takes seconds, in which the played switches have to answer.
            broken = await asyncio.to_thread(check, cluster.log, replace(seen, running=answered), time.monotonic())
            counts = judged(cluster.log, seen)
        if looked.over(broken):
            return looked, counts


def _spread(times: Sequence[float]) -> str:
    if len(times) < 2:
        return ", ".join(f"{each:.1f} s" for each in times) or "nothing"
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    return f"{cuts[49]:.1f} s (p50), {cuts[98]:.1f} s (p99), {max(times):.1f} s at most, of {len(times)}"
