"""The cost of one job's change at 1,000, 20,000 and 200,000 registered jobs: calculated alone, and as a whole."""

from __future__ import annotations

import gc
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from sqlalchemy import insert
from sqlalchemy import text as text_of

from bench.percentiles import median
from bench.population import CORE, STARTED, WORKERS, ads, jobs, policy_text, ports, short_ads, switches
from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.classads.ads import parse_post
from lark_controller.api.metrics import Metrics
from lark_controller.controller import Controller
from lark_controller.flows.desired import Desired
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider, needed_attributes
from lark_controller.policies.file import load
from lark_controller.services.described_job import names_digest
from lark_controller.services.policy_file import FILE_ACTOR
from lark_controller.store import Store
from lark_controller.store.database import connect
from lark_controller.store.rows import columns_of
from lark_controller.store.schema import run_ads, runs
from lark_controller.switches.openflow.connection import OpenFlowOptions

SIZES: Final = (1_000, 20_000, 200_000)
# Switches that are connected while the whole is measured; the jobs that come and go are theirs.
CONNECTED: Final = 20
# With scattered addresses each holds thousands of rules.
CONNECTED_SCATTERED: Final = 5


# -- calculated alone ------------------------------------------------------------------------------------------------


@dataclass
class Calculated:
    """The desired state of a pool with jobs, and the jobs that come and go.

    ``joining`` are those that come into a block where a job is already; ``beside`` is what they alone cost.
    """

    desired: Desired
    decider: Decider
    fresh: list[Job]
    micros: list[float] = field(default_factory=list)
    flows: list[int] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        held = {placed.job.ipv4_block for placed in self.desired.placed.values()}
        self.joining = [job.ipv4_block in held for job in self.fresh]

    def round(self) -> None:
        """Put and remove every fresh job, one after the other; the mean of the round."""
        desired, decide = self.desired, self.decider.decide
        touched = 0
        took, joined = 0.0, 0.0
        gc.collect()
        gc.disable()
        for job, joins in zip(self.fresh, self.joining, strict=True):
            started = time.perf_counter()
            changes = desired.put(job, decide(job.facts))
            desired.remove(job.number)
            spent = time.perf_counter() - started
            touched += sum(map(len, changes.values()))
            took += spent
            joined += spent if joins else 0.0
        gc.enable()
        self.micros.append(took / len(self.fresh) * 1e6)
        self.flows.append(touched // len(self.fresh))
        if any(self.joining):
            self.beside.append(joined / sum(self.joining) * 1e6)


def calculated(size: int, block: int | None, connected: int, fresh: int = 100) -> Calculated:
    """A pool of ``size`` jobs on 1,000 workers, of which ``connected`` have their switches here."""
    text = policy_text(block or 22)
    policy = load(text)
    desired, decider = Desired(policy), Decider(policy)
    every = jobs(size + fresh * (WORKERS // connected), block)
    for job in itertools.islice(every, size):
        desired.put(job, decider.decide(job.facts))
    for switch in switches(text):
        if switch.datapath <= connected or switch.datapath == CORE:
            desired.set_switch(switch)
    here = (job for job in every if job.datapath is not None and job.datapath <= connected)
    return Calculated(desired, decider, list(here)[:fresh])


def measure_calculated(
    rounds: int, block: int | None, sizes: tuple[int, ...] = SIZES, connected: int = 100
) -> dict[str, Any]:
    """The cost by size for each way of giving addresses; rounds by turns, ratios round by round."""
    sized = [calculated(size, block, connected) for size in sizes]
    for _ in range(rounds):
        for each in sized:
            each.round()
    return {
        "block": block, "sizes": sizes, "connected": connected,
        "micros": [median(each.micros) for each in sized],
        "ratio": median([last / first for first, last in zip(sized[0].micros, sized[-1].micros, strict=True)]),
        "joining": [sum(each.joining) / len(each.fresh) for each in sized],
        "micros_joining": [median(each.beside) if each.beside else None for each in sized],
        "ratio_joining": _ratio_joining(sized[0], sized[-1]),
        "flows": [each.flows[-1] for each in sized],
        "core_rules": [each.desired.rules[CORE] for each in sized],
        "edge_rules": [max(count for dp, count in each.desired.rules.items() if dp != CORE) for each in sized],
    }  # fmt: skip


def _ratio_joining(first: Calculated, last: Calculated) -> float | None:
    if not first.beside or not last.beside:
        return None
    return median([there / here for here, there in zip(first.beside, last.beside, strict=True)])


# -- as a whole ------------------------------------------------------------------------------------------------------


def sqlite_in(directory: Path) -> str:
    """The URL of a store in a directory, where a controller with that state directory finds it."""
    return f"sqlite:///{directory / 'lark.db'}"


_COUNTED: Final = "SELECT setval(pg_get_serial_sequence('runs', 'number'), (SELECT max(number) FROM runs))"


def insert_runs(connection: Any, part: list[Job], digest: str, lease: float) -> None:
    """Write live jobs with short ads, whose facts are those of the policy whose needed names have this digest."""
    rows = [
        {**columns_of(job), "number": job.number, "lease_until": lease, "created_at": lease, "facts_for": digest}
        for job in part
    ]
    texts = [dict(zip(("job_ad", "machine_ad"), short_ads(job), strict=True)) for job in part]
    connection.execute(insert(runs), rows)
    ad_rows = [{"number": job.number, "exit_ad": "", **ad} for job, ad in zip(part, texts, strict=True)]
    connection.execute(insert(run_ads), ad_rows)


def fill(url: str, text: str, chosen: Iterable[Job]) -> str:
    """Write a store as a controller leaves it that has these live jobs; returns its URL.

    Their ads are short ones, which nothing reads as long as policies refer to the same attributes.
    """
    store = Store.open(url)
    store.migrate()
    policy = load(text)
    store.trail.put_policy(text, policy.digest, FILE_ACTOR, time.time())
    store.close()
    digest = names_digest(needed_attributes(policy))
    lease = time.time() + 86_400
    database = connect(url)
    every = iter(chosen)
    while part := list(itertools.islice(every, 20_000)):
        database.write(partial(insert_runs, part=part, digest=digest, lease=lease))
    if not database.is_sqlite:
        # A run that is given its number leaves the sequence behind, and the next ones would get the same.
        database.write(lambda connection: connection.execute(text_of(_COUNTED)))
    database.close()
    return url


@dataclass
class Whole:
    """A controller with jobs in its store, and the bodies of the jobs that come and go."""

    controller: Controller
    store: Store
    fresh: list[bytes]
    millis: list[float] = field(default_factory=list)

    def round(self) -> None:
        """Register each job, wait until its switch has confirmed, end it; the median of the round."""
        controller = self.controller
        took = []
        # A run that has ended stays ended, so each round has runs of its own.
        later = b"JobCurrentStartDate = %d\n" % (STARTED + 1 + len(self.millis))
        for ads_text in self.fresh:
            body = ads_text.replace(b"JobCurrentStartDate = %d\n" % STARTED, later)
            started = time.perf_counter()
            registered = controller.jobs.register(*parse_post(body, "text/plain"), "bench")
            confirmation = controller.jobs.confirm(registered.job.id, 30.0)
            took.append((time.perf_counter() - started) * 1000)
            if not registered.created or confirmation.waiting or not confirmation.confirmed:
                raise RuntimeError(f"a job was not registered and confirmed: {confirmation}")
            controller.jobs.end(registered.job.id, "bench")
        self.millis.append(median(took))


def measure_whole(rounds: int, block: int | None, sizes: tuple[int, ...] = SIZES, fresh: int = 40) -> dict[str, Any]:
    """As :func:`measure_calculated`, from ads to the switch's barrier, with SQLite and an OpenFlow connection."""
    with tempfile.TemporaryDirectory() as directory, FakeNetwork() as network:
        wholes: list[Whole] = []
        try:
            for size in sizes:
                # One at a time: what was made is closed below even if the next one cannot be.
                whole = _whole(Path(directory) / str(size), network, size, block, fresh)
                wholes.append(whole)
            gc.collect()
            gc.freeze()
            for _ in range(rounds):
                for whole in wholes:
                    whole.round()
        finally:
            for whole in wholes:
                whole.controller.stop()
                whole.store.close()
            gc.unfreeze()
    return {
        "block": block, "sizes": sizes, "millis": [median(whole.millis) for whole in wholes],
        "ratio": median([last / one for one, last in zip(wholes[0].millis, wholes[-1].millis, strict=True)]),
    }  # fmt: skip


def _whole(directory: Path, network: FakeNetwork, size: int, block: int | None, fresh: int) -> Whole:
    directory.mkdir()
    text = policy_text(block or 22)
    connected = CONNECTED if block is not None else CONNECTED_SCATTERED
    every = jobs(size + WORKERS // connected * fresh, block)
    store = Store.open(fill(sqlite_in(directory), text, itertools.islice(every, size)))
    version = store.trail.latest_policy()
    assert version is not None
    options = OpenFlowOptions(listen=(("127.0.0.1", 0),), apply_timeout=120.0)
    controller = Controller(store, version, options, Metrics(), lease_seconds=86_400, check_seconds=0)
    controller.start()
    host, port = controller.openflow_addresses[0]
    named = {number: name for name, number in ports().items()}
    for datapath in range(1, connected + 1):
        network.call(FakeSwitch(datapath, named).connect(host, port))
    network.call(FakeSwitch(CORE, {1: "p1", 2: "p2", 3: "p3"}).connect(host, port))
    _until(lambda: sum(switch.in_sync for switch in controller.switches.all()) == connected + 1)
    here = [job for job in every if job.datapath is not None and job.datapath <= connected]
    return Whole(controller, store, [ads(job).encode() for job in here[:fresh]])


def _until(condition: Callable[[], bool], limit: float = 120.0) -> None:
    deadline = time.monotonic() + limit
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("the switches are not in sync")
        time.sleep(0.05)
