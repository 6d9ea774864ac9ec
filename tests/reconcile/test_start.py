"""A start takes in all jobs of the store together: as if each had come by itself, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.runs import RunKey
from lark_controller.flows.desired import Desired
from lark_controller.flows.live_addresses import with_live_addresses
from lark_controller.flows.model import Program
from lark_controller.flows.wan import local_networks
from lark_controller.jobs.external import External, listed
from lark_controller.jobs.job import Facts, Job, JobState, Standing
from lark_controller.policies.file import load
from lark_controller.reconcile.gateways import Gateways
from lark_controller.reconcile.progress import Progress
from lark_controller.reconcile.queues import Queues
from lark_controller.reconcile.state import LoopState
from lark_controller.services.feed import Feed
from lark_controller.services.holdings import Holdings
from lark_controller.services.node_patterns import NodePatterns
from lark_controller.store.rows import _NAMES, columns_of, live_job_from
from tests.flows.test_desired import CORE, EDGES, POLICIES, a_switch
from tests.flows.test_desired import jobs as plain_jobs

# A policy that gives its addresses out of the blocks that the jobs have, and one of which no job's address is.
ADDRESSING = "networks:\n  jobs: [10.64.0.0/16]\n  local: [10.0.0.0/8]\n  block_prefix: {ipv4: 29}\n"
SLICED = "version: 1\n" + ADDRESSING + "policies:\n  - slice: {by: Owner}\n  - block: {when: 'Owner == \"carol\"'}\n"
ELSEWHERE = SLICED.replace("10.64.0.0/16", "10.200.0.0/16")
STANDINGS = st.sampled_from(
    [
        Standing(JobState.REGISTERING), Standing(JobState.PENDING, "worker1 has not connected yet"),
        Standing(JobState.PENDING, "x" * 200), Standing(JobState.ENFORCED), Standing(JobState.QUARANTINED, "a word"),
    ]
)  # fmt: skip
Row = tuple[Job, Standing]


def varied(job: Job, quarantine: str, place: tuple[str, str], shared: int, node: bool, group: str) -> Job:
    """A job with more of what jobs may have; some share an address, a port or a run's place with others."""
    facts = job.facts.job + ((("node", str(job.number)), ("requestmpibandwidth", "5")) if node else ())
    if shared and job.ipv4:
        job = replace(job, ipv4=IPv4Address("10.64.0.0") + shared, ipv4_block=None)
    return replace(
        job, quarantine=quarantine, host=place[0] or job.host, port=place[1] or job.port, group=group,
        run=RunKey("schedd#1.0#1", 7, job.run.slot) if node else job.run, facts=Facts(tuple(sorted(facts))),
    )  # fmt: skip


def outside(number: int) -> tuple[External, ...]:
    """The external address of a job."""
    return (External(IPv4Address("192.0.2.0") + number, listed("tcp/22")),)


jobs = st.builds(
    varied, plain_jobs, st.sampled_from(["", "", "", "its owner is another"]),
    st.tuples(st.sampled_from(["", "", "Worker1", "WORKER1", "worker2"]), st.sampled_from(["", "", "p1"])),
    st.sampled_from([0, 0, 0, 1]), st.booleans(), st.sampled_from(["cms", "g" * 150]),
)  # fmt: skip
rows = st.lists(
    st.tuples(jobs, STANDINGS, st.sampled_from([False, False, True])),
    max_size=12, unique_by=(lambda each: each[0].number, lambda each: each[0].id),
)  # fmt: skip


class Parts:
    """The parts of a controller that hold live jobs; ``has`` are the external addresses by job."""

    def __init__(self, text: str, has: dict[str, tuple[External, ...]]) -> None:
        self.policy = load(text)
        self.loop = LoopState(self.policy, lambda: None, lambda _: None)
        self.put: list[Job] = []
        self.followed: list[tuple[Job | None, Job | None]] = []
        self.has: dict[str, tuple[External, ...]] = {}
        self._found = has
        self.feed = Feed(self.loop.directory, self._put, lambda _: None)
        self.feed.completed_by(lambda job: replace(job, external=self.has.get(job.id, ())))
        self.feed.followed_by(lambda before, after: self.followed.append((before, after)))
        self.nodes = NodePatterns(self.loop.directory.by_id.get)
        queues = cast("Queues", SimpleNamespace(expect=lambda _: None, why_no_flow=lambda _: ""))
        self.progress = Progress(self.loop, queues, Gateways(self.loop), lambda _: None)
        self.holdings = Holdings()

    def _put(self, job: Job) -> None:
        self.put.append(job)

    def know_external(self) -> None:
        """Learn of external addresses, as a start does once the jobs are there."""
        self.has = self._found
        for job_id in self._found:
            self.feed.tell(job_id)


def together(text: str, found: list[Row], has: dict[str, tuple[External, ...]]) -> Parts:
    """As :meth:`Controller.start` takes them in."""
    parts = Parts(text, has)
    parts.feed.load(iter(found))
    parts.holdings = Holdings(parts.policy, parts.feed.live())
    parts.nodes.note_all(parts.feed.live())
    parts.know_external()
    live = parts.feed.open()
    parts.loop.desired.load((job, parts.loop.decider.of(job)) for job in live)
    parts.progress.expect_all(live)
    return parts


def one_by_one(text: str, found: list[Row], has: dict[str, tuple[External, ...]]) -> Parts:
    """As each job that comes is taken in."""
    parts = Parts(text, has)
    parts.holdings = Holdings(parts.policy)
    for job, standing in found:
        parts.feed.directory.begin(job.number, standing)
        parts.feed.put(job)
        parts.holdings.hold(job)
        parts.nodes.note(job)
    parts.know_external()
    # The policy that came over them has their addresses.
    desired = parts.loop.desired
    desired.policy = with_live_addresses(desired.policy, parts.feed.live())
    desired.networks = local_networks(desired.policy)
    for job in parts.feed.live():
        desired.put(job, parts.loop.decider.of(job))
        parts.progress.expect(job)
    return parts


def spaces(parts: Parts) -> Any:
    """All that is known of given addresses."""
    return parts.holdings._ports, {
        version: [
            getattr(space, name) if name != "_blocks" else {
                number: [getattr(block, each) for each in block.__slots__] for number, block in space._blocks.items()
            }
            for name in vars(space)
        ]
        for version, space in parts.holdings.blocks._spaces.items()
    }  # fmt: skip


def placed(desired: Desired) -> Any:
    """The places of jobs, and what is counted of them."""
    local = desired._local
    return (
        desired.placed, +desired.groups, desired.isolated, vars_of(desired.ruled), desired._external,
        {host: numbers for host, numbers in desired._homeless.items() if numbers},
        {edge: (local.at(edge).numbers, local.at(edge).slices) for edge in local.edges()}, local._edges,
    )  # fmt: skip


def vars_of(value: object) -> Any:
    """The members of a value with slots."""
    return {name: getattr(value, name) for name in cast("Any", value).__slots__}


def programs(text: str, desired: Desired) -> Iterator[Program]:
    """The programs that the switches should hold once they are there."""
    for datapath in (*EDGES, CORE):
        desired.set_switch(a_switch(text, datapath), (f"worker{datapath}",))
    yield from (desired.build(datapath) for datapath in (*EDGES, CORE))


def settled(parts: Parts) -> dict[int, Standing]:
    """The standings once each job is looked at."""
    for number in parts.loop.desired.placed:
        parts.progress.settle(number)
    return dict(parts.loop.directory.standings)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([*POLICIES, SLICED, ELSEWHERE]), rows)
def test_jobs_taken_in_together_are_as_those_that_came_one_by_one(
    text: str, drawn: list[tuple[Job, Standing, bool]]
) -> None:
    has = {job.id: outside(job.number) for job, _, mapped in drawn if mapped}
    found = [live_job_from(row_of(replace(job, reserved=()), standing)) for job, standing, _ in drawn]
    for (job, standing, _), (read, at) in zip(drawn, found, strict=True):
        assert (read, at) == (replace(job, reserved=(), external=()), standing)
    # What is reserved is the live job's alone.
    found = [(replace(read, reserved=job.reserved), at) for (job, _, _), (read, at) in zip(drawn, found, strict=True)]
    some, single = together(text, found, has), one_by_one(text, found, has)
    assert vars(some.loop.directory) == vars(single.loop.directory)
    assert list(some.loop.directory.by_id) == list(single.loop.directory.by_id)
    # Before it is open nothing is handed over; the loop is given all at once.
    assert some.put == []
    assert {after.id for _, after in some.followed if after} == {after.id for _, after in single.followed if after}
    assert vars(some.nodes)["_nodes"] == vars(single.nodes)["_nodes"]
    assert spaces(some) == spaces(single)
    assert placed(some.loop.desired) == placed(single.loop.desired)
    for job, _ in found:
        waiting: Callable[[int], Any] = some.loop.confirmations.waiting
        assert waiting(job.number) == single.loop.confirmations.waiting(job.number)
    assert sorted(some.loop.confirmations.open()) == sorted(single.loop.confirmations.open())
    hold = [list(programs(text, each.loop.desired)) for each in (some, single)]
    # Of two live jobs at one port, which no registration lets be, either may have its flows.
    assert hold[0] == hold[1] or len({job.port for job, _ in found}) < len(found)
    for datapath in EDGES:
        assert some.loop.desired.tags_at(datapath) == single.loop.desired.tags_at(datapath)
    # What the store had of each job is no longer shown once it was looked at.
    assert settled(some) == settled(single)


def row_of(job: Job, standing: Standing) -> tuple[object, ...]:
    """The columns of a job in the store's order, as a database gives them."""
    columns = columns_of(replace(job, state=standing.state, reason=standing.reason))
    return tuple({**columns, "number": job.number}[name] for name in _NAMES)
