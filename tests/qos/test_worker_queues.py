"""The queues that a worker's jobs request: tables, and properties for any jobs and links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.jobs.job import ReservedFlow
from lark_controller.policies.file import load
from lark_controller.policies.model import HostBandwidth, InboundShares
from lark_controller.qos.queues import DEFAULT_QUEUE, LEAST_BITS, Queue
from lark_controller.qos.worker_queues import (
    LEAST_REST,
    Claim,
    QueueDemand,
    QueuePlan,
    Way,
    carried,
    flow_demand,
    worker_queue_plan,
)
from tests.flows.test_desired import a_job

UPLINK = {"eth0": 1000.0}
SPLIT, OPEN = InboundShares.SPLIT, InboundShares.OPEN


def demand(
    number: int, rate: float | None = None, *, borrows: bool = False, ceiling: float | None = None
) -> QueueDemand:
    return QueueDemand(Claim.of_job(number), 0 if rate is None else number, f"p{number}", rate, borrows, ceiling)


def part(number: int, **more: Any) -> QueueDemand:
    """The demand of a job that asked for nothing, and has a queue."""
    return QueueDemand(Claim.of_part(number), number, f"p{number}", **more)


def table(plan: QueuePlan) -> dict[str, dict[int, tuple[float, float]]]:
    """(least, most) in Mb/s by port and queue."""
    return {
        name: {number: (queue.least / 1e6, queue.most / 1e6) for number, queue in port.queues.items()}
        for name, port in plan.ports.items()
    }


@pytest.mark.parametrize(
    ("demands", "inbound", "expected"),
    [
        ([], SPLIT, {}),
        ([demand(1), demand(2)], SPLIT, {}),
        (
            [demand(1, 100), demand(2, 300), demand(3, 600)],
            SPLIT,
            {
                "eth0": {0: (10, 1000), 1: (100, 100), 2: (300, 300), 3: (600, 600)},
                "p1": {0: (100, 100)}, "p2": {0: (300, 300)}, "p3": {0: (600, 600)},
            },
        ),
        (
            [demand(1, 600), demand(2), demand(3)],
            SPLIT,
            {"eth0": {0: (400, 1000), 1: (600, 600)}, "p1": {0: (600, 600)}, "p2": {0: (200, 200)},
             "p3": {0: (200, 200)}},
        ),
        ([demand(1, 600), demand(2)], OPEN, {"eth0": {0: (400, 1000), 1: (600, 600)}, "p1": {0: (600, 600)}}),
        (
            [demand(1, 600, borrows=True), demand(2, 100, borrows=True, ceiling=200), demand(3)],
            SPLIT,
            {"eth0": {0: (300, 1000), 1: (600, 1000), 2: (100, 200)}, "p1": {0: (700, 700)}, "p2": {0: (200, 200)},
             "p3": {0: (100, 100)}},
        ),
        (
            [demand(1, 600, borrows=True), demand(2, 100, borrows=True, ceiling=200)],
            OPEN,
            {"eth0": {0: (300, 1000), 1: (600, 1000), 2: (100, 200)}, "p2": {0: (200, 200)}},
        ),
    ],
)  # fmt: skip
def test_what_stands(
    demands: Sequence[QueueDemand], inbound: InboundShares, expected: dict[str, dict[int, tuple[float, float]]]
) -> None:
    plan = worker_queue_plan(demands, UPLINK, inbound)
    assert table(plan) == expected
    assert not plan.short


def test_the_last_comes_short_where_a_link_cannot_hold_all_and_is_limited_all_the_same() -> None:
    plan = worker_queue_plan([demand(1, 700), demand(2, 400, borrows=True), demand(3, 200)], UPLINK)
    assert list(plan.short) == [Claim.of_job(2)]
    assert "has 300 Mb/s left, and this job needs 400" in plan.short[Claim.of_job(2)]
    assert table(plan)["eth0"] == {0: (100, 1000), 1: (700, 700), 2: (0, 400), 3: (200, 200)}
    assert table(plan)["p2"] == {0: (400, 400)}


def test_what_a_link_cannot_promise_takes_nothing_from_those_who_share() -> None:
    plan = worker_queue_plan([demand(1, 700), demand(2, 400), demand(3)], UPLINK)
    assert list(plan.short) == [Claim.of_job(2)]
    assert table(plan)["p3"] == {0: (300, 300)}


def test_a_flow_counts_the_way_it_goes() -> None:
    out = QueueDemand(Claim.of_flow(1), 8, None, 200, way=Way.OUT)
    into = QueueDemand(Claim.of_flow(2), 9, None, 300, way=Way.IN)
    plan = worker_queue_plan([demand(1, 100), out, into, demand(2)], UPLINK)
    assert table(plan) == {
        "eth0": {0: (700, 1000), 1: (100, 100), 8: (200, 200)},
        "p1": {0: (100, 100)},
        "p2": {0: (600, 600)},
    }
    assert worker_queue_plan([into, demand(2)], UPLINK) == QueuePlan()


def flow(number: int, rate: float, job: int, ceiling: float | None = None, way: Way = Way.OUT) -> QueueDemand:
    return QueueDemand(Claim.of_flow(number), 100 + number, None, rate, way is Way.OUT, ceiling, way, job)


@pytest.mark.parametrize(
    ("demands", "uplink"),
    [
        # Alone: all of the link. What has no queue, such as the worker's own, has a part, too.
        ([flow(1, 200, 1)], {0: (400, 1000), 101: (600, 1000)}),
        # And so has what the job sends besides.
        ([flow(1, 100, 1), part(1), part(2)], {0: (200, 1000), 1: (200, 1000), 2: (200, 1000), 101: (300, 1000)}),
        # A small promise is no worse than none: each queue has an even part of what nobody was promised, rounded down.
        (
            [flow(1, 10, 1), part(1), part(2), part(3)],
            {0: (150, 1000), 1: (150, 1000), 2: (150, 1000), 3: (150, 1000), 101: (160, 1000)},
        ),
        # Each flow of a job has a part: it may use one at a time, beside a job that reserved nothing.
        (
            [flow(1, 100, 1), flow(2, 200, 1), flow(3, 120, 2), part(1), replace(demand(2, 100), port=None), part(3)],
            {0: (80, 1000), 1: (80, 1000), 2: (100, 100), 3: (80, 1000), 101: (180, 1000), 102: (280, 1000),
             103: (200, 1000)},
        ),
        # What the policy lets a job send is the most.
        ([flow(1, 100, 1, 150), part(2)], {0: (300, 1000), 2: (300, 1000), 101: (150, 150)}),
        # Where all is promised there is nothing to give.
        ([flow(1, 1000, 1), part(2)], {0: (10, 1000), 2: (0, 1000), 101: (1000, 1000)}),
        # A job that leaves by other uplinks has neither queue nor part here.
        ([flow(1, 200, 1), part(2, uplinks=frozenset({"eth1"}))], {0: (400, 1000), 101: (600, 1000)}),
        # Queues of parts stand until the flows that choose them are gone, also where nothing is reserved any more.
        (list(map(part, (1, 2, 3))), {0: (250, 1000), 1: (250, 1000), 2: (250, 1000), 3: (250, 1000)}),
        # Without room it gets what is free, as if it had asked for nothing.
        ([flow(1, 900, 1), flow(2, 200, 2)], {0: (30, 1000), 101: (930, 1000), 102: (30, 1000)}),
    ],
)  # fmt: skip
def test_a_flow_that_is_not_steady_gets_an_even_part_of_what_is_free_as_well(
    demands: Sequence[QueueDemand], uplink: dict[int, tuple[float, float]]
) -> None:
    plan = worker_queue_plan(demands, UPLINK, OPEN)
    assert table(plan) == {"eth0": uplink}
    assert [why.rpartition("; ")[2] for why in plan.short.values()] == ["it has no guarantee"] * len(plan.short)


def guaranteed(number: int, rate: float, ceiling: float | None = None) -> QueueDemand:
    return demand(number, rate, borrows=True, ceiling=ceiling)


@pytest.mark.parametrize(
    ("demands", "uplink"),
    [
        # Alone they share what is left by borrowing, in proportion to what they are guaranteed.
        ([guaranteed(1, 600), guaranteed(2, 100)], {0: (300, 1000), 1: (600, 1000), 2: (100, 1000)}),
        # Beside one that asked for nothing each has as much of it as that one has.
        (
            [guaranteed(1, 600), guaranteed(2, 100), part(3)],
            {0: (60, 1000), 1: (660, 1000), 2: (160, 1000), 3: (60, 1000)},
        ),
        ([guaranteed(1, 10), part(2), part(3)], {0: (200, 1000), 1: (210, 1000), 2: (200, 1000), 3: (200, 1000)}),
        # A ceiling is one still, and a cap.
        (
            [guaranteed(1, 100, 150), guaranteed(2, 50, 50), demand(3, 50), part(4)],
            {0: (250, 1000), 1: (150, 150), 2: (50, 50), 3: (50, 50), 4: (250, 1000)},
        ),
        # Beside a flow that has a part, too: what else its job sends, and others that asked for a rate.
        (
            [flow(1, 100, 1), guaranteed(1, 50), guaranteed(2, 50)],
            {0: (200, 1000), 1: (250, 1000), 2: (250, 1000), 101: (300, 1000)},
        ),
        # Without room it is limited to what it asked for, and has of that what one that asked for nothing has.
        (
            [guaranteed(1, 700), guaranteed(2, 400), guaranteed(3, 20), part(4)],
            {0: (50, 1000), 1: (750, 1000), 2: (50, 400), 3: (70, 1000), 4: (50, 1000)},
        ),
        ([guaranteed(1, 700), guaranteed(2, 290), guaranteed(3, 20), part(4)],
         {0: (10, 1000), 1: (702, 1000), 2: (292, 1000), 3: (2, 20), 4: (2, 1000)}),
        # One of them leaves by other uplinks.
        (
            [guaranteed(1, 600), replace(guaranteed(2, 100), uplinks=frozenset({"eth1"})), part(3)],
            {0: (100, 1000), 1: (700, 1000), 2: (100, 1000), 3: (100, 1000)},
        ),
        (
            [guaranteed(1, 600), part(2, uplinks=frozenset({"eth1"}))],
            {0: (400, 1000), 1: (600, 1000)},
        ),
    ],
)  # fmt: skip
def test_a_job_that_may_exceed_its_guarantee_has_a_part_beside_those_that_asked_for_nothing(
    demands: Sequence[QueueDemand], uplink: dict[int, tuple[float, float]]
) -> None:
    assert table(worker_queue_plan(demands, UPLINK, OPEN))["eth0"] == uplink


def test_of_many_guaranteed_jobs_few_change_the_queues_of_all() -> None:
    parts = {
        table(worker_queue_plan([*map(part, range(65, 129)), *(guaranteed(each, 1) for each in range(1, number + 1))],
                                UPLINK, OPEN))["eth0"][65]
        for number in range(1, 65)
    }  # fmt: skip
    assert len(parts) <= 6


def test_of_many_flows_few_change_the_queues_of_all() -> None:
    parts = {
        table(worker_queue_plan([flow(each, 1, 1) for each in range(1, number + 1)], UPLINK, OPEN))["eth0"][101]
        for number in range(1, 129)
    }
    assert len(parts) <= 22


def test_a_jobs_own_port_has_room_for_what_is_reserved_towards_it() -> None:
    into = flow(1, 300, 2, way=Way.IN)
    plan = worker_queue_plan([demand(1, 100), demand(2), demand(3), into], UPLINK)
    assert table(plan) == {
        "eth0": {0: (900, 1000), 1: (100, 100)},
        "p1": {0: (100, 100)},
        "p2": {0: (600, 600)},
        "p3": {0: (300, 300)},
    }


@pytest.mark.parametrize("steady", [True, False])
def test_what_is_reserved_away_from_jobs_limits_nobodys_receiving(steady: bool) -> None:
    out = flow(1, 300, 2) if not steady else QueueDemand(Claim.of_flow(1), 101, None, 300, way=Way.OUT, job=2)
    plan = worker_queue_plan([out, demand(2), demand(3)], UPLINK, SPLIT)
    assert set(plan.ports) == {"eth0"}
    # What is promised towards one of them does: others could take it.
    plan = worker_queue_plan([out, flow(2, 100, 3, way=Way.IN), demand(2), demand(3)], UPLINK, SPLIT)
    assert {name: port.rate for name, port in plan.ports.items()} == {"eth0": 10**9, "p2": 45 * 10**7, "p3": 55 * 10**7}


@pytest.mark.parametrize(
    ("steady", "share", "expected"),
    [
        (False, None, (True, None)),
        (True, None, (False, None)),
        (False, HostBandwidth(False), (True, None)),
        (False, HostBandwidth(False, default=5), (False, None)),
        (False, HostBandwidth(True, default=5, ceiling=50), (True, 50)),
        (False, HostBandwidth(True, default=5, ceiling=10), (True, 20)),
        (False, HostBandwidth(True, default=5), (True, None)),
    ],
)
def test_a_flow_borrows_no_more_than_the_policy_lets_its_job(
    steady: bool, share: HostBandwidth | None, expected: tuple[bool, float | None]
) -> None:
    job = a_job(3)
    made = flow_demand(job, ReservedFlow(7, 20_000, steady=steady), 9, share)
    assert (made.borrows, made.ceiling) == expected
    assert (made.rate, made.way, made.job, made.number) == (20, Way.OUT, job.number, 9)
    assert not flow_demand(job, ReservedFlow(7, 20_000, incoming=True), 0, share).borrows


def test_what_comes_in_is_promised_by_the_slowest_uplink() -> None:
    plan = worker_queue_plan([demand(1, 100), demand(2)], {"eth0": 1000.0, "eth1": 400.0})
    assert table(plan) == {
        "eth0": {0: (900, 1000), 1: (100, 100)},
        "eth1": {0: (300, 400), 1: (100, 100)},
        "p1": {0: (100, 100)},
        "p2": {0: (300, 300)},
    }
    unknown = worker_queue_plan([demand(1, 100), demand(2)], {"eth0": 1000.0, "eth2": None})
    assert "uplink eth2 is not known" in unknown.short[Claim.of_job(1)]
    assert table(unknown)["p2"] == {0: (1000, 1000)}


TOPOLOGY = """
version: 1
topology:
  links: {spine: {between: [a, w3], capacity: 300, duplex: half}}
  hosts:
    w1: {switch: a, capacity: 400}
    w2: {switch: a, capacity: 400, duplex: half}
    default: {switch: a}
"""


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("W1", {"eth0": 400, "eth1": 100, "eth2": 400}),
        # 100 of the job and 200 of the flow towards it are not there.
        ("w2", {"eth0": 100, "eth1": 100, "eth2": 100}),
        ("w3", {"eth0": 3, "eth1": 3, "eth2": 3}),
        ("other", {"eth0": 1000, "eth1": 100, "eth2": None}),
    ],
)
def test_an_uplink_carries_no_more_than_the_topology_gives_the_worker(
    host: str, expected: dict[str, float | None]
) -> None:
    demands = [
        demand(1, 100),
        demand(2),
        QueueDemand(Claim.of_flow(1), 8, None, 200, way=Way.IN),
        QueueDemand(Claim.of_flow(2), 9, None, 500, way=Way.OUT),
    ]
    speeds = {"eth0": 1000.0, "eth1": 100.0, "eth2": None}
    assert carried(speeds, load(TOPOLOGY), host, demands) == expected
    assert carried(speeds, load("version: 1"), host, demands) == speeds


def test_an_unknown_speed_and_a_missing_uplink_are_said() -> None:
    plan = worker_queue_plan([demand(1, 100)], {"eth0": None})
    assert "the speed of uplink eth0 is not known" in plan.short[Claim.of_job(1)]
    assert table(plan) == {"p1": {0: (100, 100)}}
    assert "no uplink" in worker_queue_plan([demand(1, 100)], {}).short[Claim.of_job(1)]


rates = st.one_of(st.none(), st.integers(1, 1500).map(float))
demands = st.lists(st.tuples(rates, st.booleans(), rates), max_size=12).map(
    lambda rows: [
        demand(n, rate, borrows=borrows, ceiling=None if ceiling is None or rate is None else max(rate, ceiling))
        for n, (rate, borrows, ceiling) in enumerate(rows, 1)
    ]
)


@given(demands, st.sampled_from([100.0, 1000.0, 10_000.0]), st.sampled_from(list(InboundShares)))
def test_nobody_is_promised_what_a_link_does_not_have(
    jobs: list[QueueDemand], speed: float, inbound: InboundShares
) -> None:
    plan = worker_queue_plan(jobs, {"eth0": speed}, inbound)
    link = speed * 1e6
    limited = [each for each in jobs if each.rate is not None]
    if not limited:
        assert plan == QueuePlan()
        return
    uplink = plan.ports["eth0"]
    promised = sum(queue.least for queue in uplink.queues.values())
    assert promised <= link * (1 + LEAST_REST)
    assert uplink.queues[DEFAULT_QUEUE].least >= round(link * LEAST_REST)
    assert uplink.queues.keys() == {DEFAULT_QUEUE, *(each.number for each in limited)}
    for each in limited:
        queue = uplink.queues[each.number]
        assert queue.least == (0 if each.claim in plan.short else each.rate * 1e6)  # type: ignore[operator]  # limited
        if not each.borrows:
            assert queue.most <= each.rate * 1e6  # type: ignore[operator]  # limited
        assert queue.least <= queue.most <= link
    if inbound is InboundShares.SPLIT:
        towards = sum(plan.ports[each.port].rate for each in jobs if each.port and each.claim not in plan.short)
        assert towards <= link * (1 + LEAST_REST) + len(jobs)


@given(demands, st.lists(st.integers(1, 200), max_size=4), st.integers(1, 8), st.sampled_from([100.0, 1000.0]))
def test_whoever_asks_for_a_rate_has_no_less_for_certain_than_one_that_asks_for_nothing(
    jobs: list[QueueDemand], flows: list[int], others: int, speed: float
) -> None:
    reserved = [flow(number, float(rate), 1) for number, rate in enumerate(flows, 1)]
    limited = [each for each in jobs if each.rate is not None]
    parts = [part(number) for number in range(50, 50 + others)]
    plan = worker_queue_plan([*limited, *reserved, *parts], {"eth0": speed}, OPEN)
    queues, link = plan.ports["eth0"].queues, round(speed * 1e6)
    promised = [*limited, *reserved]
    assert sum(queue.least for queue in queues.values()) <= link * (1 + LEAST_REST)
    (has,) = {queues[each.number] for each in parts}
    for each in promised:
        queue = queues[each.number]
        certain = 0 if each.claim in plan.short else round((each.rate or 0) * 1e6)
        if each.may_exceed or each.is_floor:
            assert queue.least == min(certain + has.least, queue.most)
        else:
            assert queue.least == certain
        assert queue.most <= (link if each.ceiling is None else round(each.ceiling * 1e6))


@given(demands, st.permutations(range(12)))
def test_the_order_in_which_jobs_come_does_not_matter(jobs: list[QueueDemand], order: list[int]) -> None:
    shuffled = [jobs[place] for place in order if place < len(jobs)]
    assert worker_queue_plan(shuffled, UPLINK) == worker_queue_plan(jobs, UPLINK)


def test_whoever_asks_for_less_than_a_byte_a_second_is_limited_all_the_same() -> None:
    """Open vSwitch takes a port's rate of less than a byte for none."""
    plan = worker_queue_plan([demand(1, 1e-7), demand(2, 1e-12), demand(3, 0.001, borrows=True)], UPLINK)
    assert plan.ports["p1"].rate == plan.ports["p2"].rate == LEAST_BITS
    assert plan.ports["eth0"].queues[1] == Queue(LEAST_BITS, LEAST_BITS)
    assert all(queue.most >= LEAST_BITS for port in plan.ports.values() for queue in port.queues.values())
