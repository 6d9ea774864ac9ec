"""A pool of 200,000 jobs on 3,125 workers, every switch connected: ``python -m bench --only scale``.

One controller process, one process that plays all switches and keeps every flow, one that posts as hooks do. Beside the
figures stand plain operations of the same machine in the same run, so that machines can be compared by ratios.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import re
import sqlite3
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from bench.changes import fill, sqlite_in
from bench.fleet import CORE_PORTS, CORES, PlayedSwitches, edge_ports, port_infos
from bench.http import Client
from bench.percentiles import percentile
from bench.population import PORTS, ads, jobs, policy_text, short_ads
from bench.process import Lark
from fake_switch.stored import StoredSwitch
from lark_common.classads.ads import parse_post
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import PORT_LOCAL, Flow
from lark_controller.flows.placement import Switch, mac_number, place_switch
from lark_controller.htcondor.compare import Word, judge
from lark_controller.htcondor.slots import reading, slot_of
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.store import Store
from lark_controller.switches.openflow import wire

MIB: Final = 1 << 20
BLOCK: Final = 26
JOB_PORTS: Final = 192
SAMPLED: Final = 20
CONNECTIONS: Final = 64
SYNC_SECONDS: Final = 1800.0
# Of the pool's jobs, so many start and end in a day: each is 8 hours long.
STARTS_A_DAY: Final = 3
PROGRESS_SECONDS: Final = 30.0
# Seconds between two looks at the switches that are in sync, at most: so much may a figure be too great.
LONGEST_PAUSE: Final = 5.0
_METRIC: Final = re.compile(r"^(lark_switches_in_sync|lark_switches_connected) (\S+)$", re.MULTILINE)


def policy(*, steered: str = "group_03", sliced: str = "Owner") -> str:
    """The pool's policy, with a second core."""
    text = policy_text(BLOCK, steered=steered).replace("slice: {by: Owner}", f"slice: {{by: {sliced}}}")
    core = f'  core2: {{datapath: "{CORES[1]:016x}", role: core, ports: {{lan: 1, wan: 2, wan-fast: 3}}}}\n'
    return text.replace("policies:\n", core + "policies:\n", 1)


@dataclass
class Scale:
    """One run: its parts, the jobs that were not registered yet, and what was found."""

    directory: Path
    size: int
    workers: int
    fresh: Iterator[Job]
    found: dict[str, Any] = field(default_factory=dict)
    ends_at: float = math.inf
    controller: Lark = field(init=False)
    switches: PlayedSwitches = field(init=False)
    token: str = ""

    def time_for(self, name: str) -> bool:
        """True while the time is not over; what it does not suffice for is noted, and the figures found so far stay."""
        if time.monotonic() < self.ends_at:
            print(f"  {time.strftime('%H:%M:%S')} … {name}", flush=True)
            return True
        self.found.setdefault("no_time_for", []).append(name)
        return False

    def say(self, name: str, value: object) -> None:
        """Keep a figure, and show it: the run is long."""
        self.found[name] = value
        print(f"  {time.strftime('%H:%M:%S')} {name}: {value}", flush=True)

    @contextmanager
    def running(self, text: str, **more: str) -> Iterator[None]:
        """A controller on the store, whose switches get its address; ``more`` are settings."""
        settings = {"lease_seconds": "86400", "switch_timeout": "120", "check_seconds": "600", **more}
        with Lark(self.directory, text, **settings) as controller:
            self.controller = controller
            self.token = controller.token = controller.token or self.token
            yield

    async def until(self, condition: Callable[[int, int], bool]) -> float:
        """Wait until (connected, in sync) switches are as wanted; the seconds that it took."""
        client = Client(self.controller.rest, self.token)
        started = time.perf_counter()
        while True:
            asked = time.perf_counter()
            answer = await client.request("GET", "/metrics")
            told = {name: int(float(value)) for name, value in _METRIC.findall(answer.body.decode())}
            if condition(told.get("lark_switches_connected", 0), told.get("lark_switches_in_sync", 0)):
                client.close()
                return time.perf_counter() - started
            if time.perf_counter() - started > SYNC_SECONDS:
                raise TimeoutError(f"the switches are not in sync: {told}")
            # The metrics of thousands of switches are no small request, and a late answer must not make a long pause.
            await asyncio.sleep(min(max(1.0, 10 * (time.perf_counter() - asked)), LONGEST_PAUSE))

    async def all_in_sync(self) -> float:
        """Wait until every switch is in sync."""
        everyone = self.workers + len(CORES)
        return await self.until(lambda connected, in_sync: connected == in_sync == everyone)


def measure(
    size: int = 200_000, workers: int = 3125, seconds: float = 60.0, bound: float = 5400.0, day_seconds: float = 1800.0
) -> dict[str, Any]:
    """All of it; ``seconds`` is how long each kind of posts goes on, ``day_seconds`` the most for the day's churn.

    After ``bound`` seconds no further step begins.
    """
    with tempfile.TemporaryDirectory() as name:
        every = jobs(100_000 + (1 + STARTS_A_DAY) * size, BLOCK, workers=workers)
        run = Scale(Path(name), size, workers, every, {"jobs": size, "workers": workers}, time.monotonic() + bound)
        run.say("reference", reference(run.directory))
        run.say("comparison_seconds", comparison(size, workers))
        fill(sqlite_in(run.directory), policy(), itertools.islice(every, size))
        with run.running(policy()):
            run.say("start_seconds", run.controller.seconds)
            run.say("memory_loaded", run.controller.memory() / MIB)
            with PlayedSwitches(run.controller.openflow, workers, JOB_PORTS) as run.switches:
                asyncio.run(_empty(run))
                _verify(run, "verified_after_sync", policy())
                _connected(run, seconds, day_seconds)
    return run.found


def _connected(run: Scale, seconds: float, day_seconds: float) -> None:
    """The steps with all switches in sync."""
    texts = policy(steered="group_04"), policy(steered="group_04", sliced="AcctGroup")
    now = policy()
    if run.time_for("posts"):
        asyncio.run(_steady(run, seconds))
    if run.time_for("reload_5_percent"):
        asyncio.run(_reload(run, "reload_5_percent", texts[0]))
        _verify(run, "verified_after_reload", texts[0])
        now = texts[0]
    if run.time_for("reload_all"):
        asyncio.run(_reload(run, "reload_all", texts[1]))
        _verify(run, "verified_after_second_reload", texts[1])
        now = texts[1]
    if run.time_for("counters"):
        asyncio.run(_counters(run, seconds))
    if run.time_for("day"):
        asyncio.run(_day(run, day_seconds))
    run.say("memory_peak", run.controller.memory("HWM") / MIB)
    if run.time_for("restart"):
        _restart(run, now)


async def _empty(run: Scale) -> None:
    """All switches come empty; the first hundred that jobs wait for must not wait for all others."""
    run.switches.tell("connect")
    chosen = [job for job in itertools.islice(run.fresh, 3 * run.workers) if job.number % 7 == 0][:100]
    waited = asyncio.create_task(steady_posts(run, chosen, rate=100.0, wait=30.0))
    run.say("sync_seconds", await run.all_in_sync())
    run.say("first_jobs", summary(await waited))
    run.say("flows", run.switches.tell("counts"))
    run.say("memory_in_sync", run.controller.memory() / MIB)


async def _steady(run: Scale, seconds: float) -> None:
    for rate in (50.0, 100.0):
        chosen = list(itertools.islice(run.fresh, int(rate * seconds)))
        run.say(f"posts_at_{rate:g}", summary(await steady_posts(run, chosen, rate=rate, wait=10.0)))
    run.say("posts_at_most", await _throughput(run, seconds))


async def _reload(run: Scale, name: str, text: str) -> None:
    """Put another policy in force while jobs are posted at 50 a second."""
    done = asyncio.Event()
    poster = asyncio.create_task(steady_posts(run, run.fresh, rate=50.0, wait=10.0, until=done))
    client = Client(run.controller.rest, run.token)
    run.switches.tell("forget")
    started = time.perf_counter()
    answer = await client.request("PUT", "/v1/policy", text.encode(), "application/yaml")
    answered = time.perf_counter() - started
    await run.all_in_sync()
    in_force = time.perf_counter() - started
    done.set()
    posts = summary(await poster)
    client.close()
    if answer.status != 200:
        raise RuntimeError(f"the policy was not taken: {answer.status} {answer.body!r}")
    mods = run.switches.tell("counts")["flow_mods"]
    run.say(name, {"answered": answered, "in_sync": in_force, "flow_mods": mods, "posts": posts})


async def _counters(run: Scale, seconds: float) -> None:
    """Measure a reading of all jobs' counters and a write of their use, while every job is busy."""
    run.switches.tell("busy")
    await asyncio.sleep(min(seconds, 15.0))
    run.switches.tell("forget")
    before, started = run.controller.processor_seconds(), time.perf_counter()
    await asyncio.sleep(2 * seconds)
    took = time.perf_counter() - started
    rounds = run.switches.tell("counts")["rounds"]
    share = (run.controller.processor_seconds() - before) / took
    run.say("counters", {"share": share, "round_seconds": took * (run.workers + len(CORES)) / max(1, rounds)})


async def _day(run: Scale, seconds: float) -> None:
    """A day's starts and ends, one after the other as fast as they go: each new job takes the place of the oldest."""
    wanted = STARTS_A_DAY * run.size
    first_hour = max(1, wanted // 24)
    # The id, datapath, host and port of each job that stands, the oldest first.
    standing = deque((job.id, job.datapath, job.host, job.port) for job in jobs(run.size, BLOCK, workers=run.workers))
    end, said = time.perf_counter() + seconds, time.perf_counter()
    done = 0
    memory: list[float] = []
    statuses: set[int] = set()

    async def worker() -> None:
        nonlocal done, said
        client = Client(run.controller.rest, run.token)
        while done < wanted and time.perf_counter() < end:
            done += 1
            old, datapath, host, port = standing.popleft()
            ended = await client.request("DELETE", f"/v1/jobs/{old}")
            # On the same worker, at the port that is free now.
            placed = replace(next(run.fresh), datapath=datapath, host=host, port=port)
            posted = await client.request("POST", "/v1/jobs?wait=0", ads(placed).encode())
            standing.append((placed.id, datapath, host, port))
            statuses.update((ended.status, posted.status))
            if not memory and done >= first_hour:
                memory.append(run.controller.memory() / MIB)
            if time.perf_counter() - said > PROGRESS_SECONDS:
                said = time.perf_counter()
                run.say("day_so_far", {"starts": done, "of": wanted, "memory": run.controller.memory() / MIB})
        client.close()

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(CONNECTIONS)))
    took = time.perf_counter() - started
    memory.append(run.controller.memory() / MIB)
    run.found.pop("day_so_far", None)
    run.say("day", {"starts": done, "of": wanted, "seconds": took, "first_hour": memory[0], "end": memory[-1],
                    "statuses": sorted(statuses), "flows": run.switches.tell("counts")["flows"]})  # fmt: skip


def _restart(run: Scale, text: str) -> None:
    """End the controller and start it again, without posts and with them; the switches are as they were, and connect
    again by themselves."""
    for name, posting in (("restart", False), ("restart_with_posts", True)):
        run.controller.__exit__(None, None, None)
        run.switches.tell("forget")
        started = time.perf_counter()
        with run.running(text):
            run.switches.tell("port", run.controller.openflow)
            found = {"listens": run.controller.seconds} | asyncio.run(_returning(run, started, posting=posting))
            counts = run.switches.tell("counts")
            found |= {"flow_mods": counts["flow_mods"], "untouched": counts["untouched"]}
            run.say(name, found | {"memory": run.controller.memory() / MIB})


async def _returning(run: Scale, started: float, *, posting: bool) -> dict[str, Any]:
    """Wait until a controller that was started again has all switches in sync."""
    done, poster = asyncio.Event(), None
    found: dict[str, Any] = {}
    if posting:
        first = await steady_posts(run, list(itertools.islice(run.fresh, 1)), rate=100.0, wait=0.0)
        found |= {"first_post": time.perf_counter() - started, "status": first[0].status}
        poster = asyncio.create_task(steady_posts(run, run.fresh, rate=50.0, wait=10.0, until=done))
    await run.all_in_sync()
    found["in_sync"] = time.perf_counter() - started
    done.set()
    return found if poster is None else found | {"posts": summary(await poster)}


# -- posts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Post:
    """One post: milliseconds from the time when it was due until its answer, and whether the switches confirmed."""

    milliseconds: float
    status: int
    confirmed: bool


async def steady_posts(
    run: Scale, chosen: Iterator[Job] | list[Job], *, rate: float, wait: float, until: asyncio.Event | None = None
) -> list[Post]:
    """Post jobs at a steady rate whatever became of those before."""
    client = Client(run.controller.rest, run.token)
    due = time.perf_counter()
    tasks = []
    for job in chosen:
        if until is not None and until.is_set():
            break
        tasks.append(asyncio.create_task(post_one(client, job, due, wait)))
        due += 1 / rate
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
    done = list(await asyncio.gather(*tasks))
    client.close()
    return done


async def post_one(client: Client, job: Job, due: float, wait: float) -> Post:
    """Post a job that was due then."""
    answer = await client.request("POST", f"/v1/jobs?wait={wait:g}", ads(job).encode())
    took = (time.perf_counter() - due) * 1000
    return Post(took, answer.status, answer.status == 201 and not answer.json["waiting"])


async def _throughput(run: Scale, seconds: float) -> dict[str, Any]:
    """As many posts, and ends of the jobs posted before, as go through."""
    end = time.perf_counter() + seconds
    # Ports are given in turn: a small pool's must not be used up before the measurements that follow.
    most = run.workers * PORTS // 4
    taken: list[float] = []
    confirmed = 0

    async def hook() -> None:
        nonlocal confirmed
        client = Client(run.controller.rest, run.token)
        while time.perf_counter() < end and len(taken) < most:
            post = await post_one(client, next(run.fresh), time.perf_counter(), 10.0)
            taken.append(post.milliseconds)
            confirmed += post.confirmed
        client.close()

    before = run.controller.processor_seconds()
    started = time.perf_counter()
    await asyncio.gather(*(hook() for _ in range(CONNECTIONS)))
    took = time.perf_counter() - started
    ordered = sorted(taken)
    return {
        "per_second": len(taken) / took, "confirmed": confirmed, "p50": percentile(ordered, 50),
        "p99": percentile(ordered, 99),
        "processor_ms": (run.controller.processor_seconds() - before) / len(taken) * 1000,
    }  # fmt: skip


def summary(posts: list[Post]) -> dict[str, Any]:
    """The number of posts, how many were confirmed, and their latency in milliseconds."""
    ordered = sorted(post.milliseconds for post in posts)
    return {
        "posts": len(posts), "confirmed": sum(post.confirmed for post in posts),
        "statuses": sorted({post.status for post in posts}),
        "p50": percentile(ordered, 50), "p99": percentile(ordered, 99), "worst": ordered[-1] if ordered else 0.0,
    }  # fmt: skip


# -- what the switches should hold ------------------------------------------------------------------------------------


def _verify(run: Scale, name: str, text: str) -> None:
    """Compare switches with what is calculated anew, in this process, from the store's live jobs."""
    chosen = sorted({1, run.workers, *range(1, run.workers + 1, max(1, run.workers // SAMPLED)), *CORES})
    told = run.switches.tell("digests", *chosen)
    desired = oracle(run.directory, text, chosen)
    wrong = [number for number in chosen if told[str(number)] != desired[number]]
    if wrong:
        raise RuntimeError(f"switches do not hold what they should: {wrong}")
    run.say(name, len(chosen))


def oracle(directory: Path, text: str, chosen: list[int]) -> dict[int, str]:
    """The digests of what switches should hold."""
    store = Store.open(sqlite_in(directory))
    in_force = load(text)
    desired, decider = Desired(in_force), Decider(in_force)
    for job in store.runs.live():
        desired.put(job, decider.decide(job.facts))
    store.close()
    digests = {}
    for number in chosen:
        desired.set_switch(_placed(text, number))
        played = StoredSwitch(number, {})
        for key, data in desired.build(number).flows.items():
            played.data_received(wire.flow_add(1, Flow(key, data)))
        digests[number] = played.digest()
    return digests


def _placed(text: str, number: int) -> Switch:
    infos = port_infos(CORE_PORTS if number in CORES else edge_ports(JOB_PORTS))
    local = infos.get(PORT_LOCAL)
    return place_switch(
        load(text), number, {info.name: info.number for info in infos.values()}, normal=True, tracks=True,
        local_mac=None if local is None else mac_number(local.mac), max_meter=1024,
        description=f"fake {number:016x}",
    )  # fmt: skip


# -- plain operations --------------------------------------------------------------------------------------------------


def reference(directory: Path) -> dict[str, float]:
    """The cost of one plain operation here, in microseconds: a flow-mod built, a row written, a post's ads parsed."""
    job = next(jobs(1, BLOCK))
    desired, decider = Desired(load(policy())), Decider(load(policy()))
    desired.set_switch(_placed(policy(), 2))
    desired.put(job, decider.decide(job.facts))
    flows = [Flow(key, data) for key, data in desired.build(2).flows.items()]
    body, row = ads(job).encode(), "".join(short_ads(job))
    database = sqlite3.connect(directory / "reference.db")
    database.execute("CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT)")

    def rows() -> None:
        for _ in range(1000):
            database.execute("INSERT INTO rows (text) VALUES (?)", (row,))
        database.commit()

    found = {
        "flow_mod_built": _micros(lambda: [wire.flow_add(1, flow) for flow in flows], len(flows)),
        "row_written": _micros(rows, 1000),
        "ads_parsed": _micros(lambda: parse_post(body, "text/plain"), 1),
    }
    database.close()
    return found


def comparison(size: int, workers: int) -> float:
    """Seconds of processor for one comparison of all jobs with a collector of as many slots, once its ads are there."""
    chosen = list(jobs(size, BLOCK, workers=workers))
    heard = time.time()
    ads_of = [
        {
            "Name": job.run.slot, "Machine": job.host, "LastHeardFrom": heard, "GlobalJobId": job.run.global_job_id,
            "JobCurrentStartDate": job.run.started, "RemoteOwner": job.user, "AcctGroup": job.group,
        }
        for job in chosen
    ]  # fmt: skip
    started = time.process_time()
    pool = reading(heard, heard - 86400, (slot for ad in ads_of if (slot := slot_of(ad)) is not None))
    agreed = sum(judge(job, pool, 60.0).word is Word.AGREES for job in chosen)
    took = time.process_time() - started
    if agreed != size:
        raise RuntimeError(f"the pool agrees with {agreed} of {size} jobs")
    return took


def _micros(work: Callable[[], object], count: int, rounds: int = 20) -> float:
    best = min(_timed(work) for _ in range(rounds))
    return best / count * 1e6


def _timed(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
