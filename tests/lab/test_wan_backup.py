"""A WAN port that goes down under a running transfer: it goes on by the port that the policy names, and comes back.

Time is counted by the bytes of a reference stream of the same rate beside it (tests/lab/beside.py), which passes none
of the core's ports: on a machine that is late both are slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from experiments import reference
from experiments.cable import REFERENCE_PORT
from experiments.pool import Pool
from experiments.received import Counting, Counts, counted, settled
from lab import controller
from lab.boot import Lab
from lab.inside.topology import WAN_ADDRESSES
from lab.jobs import Wish, running
from tests.lab import stage
from tests.lab.remains import wait_until

pytestmark = [pytest.mark.kernel_datapath, pytest.mark.usefixtures("policy_restored")]

PORT = 5401
# Mb/s of the transfer and of the reference, and the bytes of a second.
RATE = 20
SECOND = RATE * 1_000_000 // 8
# Seconds before the port goes down, while it is down, and after it.
BEFORE, DOWN, AFTER = 6, 9, 9
# How long a transfer may stand still when its way changes: TCP sends again after its timeout, and that doubles.
STILL = 4
# It stands still where it moves less than this part of what the reference does.
LEAST = 0.05


@contextmanager
def down(lab: Lab) -> Iterator[None]:
    """The port wan-fast has no link, and the outside answers by the other way, as its own routing would have it."""
    back = ["ip", "route", "replace", "10.0.0.0/8", "table", "100", "via"]
    lab.on("wan1", *back, "203.0.113.1")
    lab.on("core", "ip", "link", "set", "wan-fast", "down")
    try:
        yield
    finally:
        lab.on("core", "ip", "link", "set", "wan-fast", "up")
        lab.on("wan1", *back, "203.0.113.17")


def test_a_running_transfer_goes_on_by_the_backup_and_back(lab: Lab) -> None:
    before = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    named = 'wan-fast: {port: 3, next_hop: "02:00:00:00:00:02"'
    assert named in before
    controller.api(lab, "/v1/policy", "PUT", before.replace(named, f"{named}, backup: wan"))
    controller.wait_in_sync(lab)
    lab.on("wan1", "iperf3", "--server", "--daemon", "--port", str(PORT))
    way = reference.to_wan(RATE / reference.PART, "wan1")
    pool = Pool(lab)
    pool.refer(way)
    with (
        running(lab, [Wish("carol", stage.GROUP, worker="worker1")]) as (job,),
        ThreadPoolExecutor(1) as thread,
        counted(lab, way) as counting,
    ):
        assert stage.wan_ways(job, "wan1") == {"wan-fast"}
        command = f"iperf3 --client {WAN_ADDRESSES[1][0]} --port {PORT} --time 600 --bitrate {RATE}M"
        transfer = thread.submit(job.run, command, 630)
        try:
            wait_until(lambda: so_far(counting, PORT) > SECOND, 60, "the transfer has begun")
            begun = pool.now()
            let_pass(counting, BEFORE)
            with down(lab):
                cut = pool.now()
                let_pass(counting, 2)
                # Another connection, at once: nobody has to wait for the first one's timers.
                assert stage.wan_ways(job, "wan1") >= {"wan"}
                problems = [each["problem"] for each in controller.api(lab, "/v1/switches/core1")["problems"]]
                assert "WAN port wan-fast is down; wan is used" in problems
                let_pass(counting, DOWN - 2)
                mended = pool.now()
            let_pass(counting, AFTER)
            ended = pool.now()
            assert not transfer.done(), transfer.result()
            found = settled(counting, ended)
        finally:
            job.run("kill $(pidof iperf3)")
        whole = pieces(found, begun, ended)
        assert sum(beside for moved, beside in whole if moved < LEAST * beside) <= STILL * SECOND, whole
        meanwhile = pieces(found, cut, mended)
        late = [
            piece
            for place, piece in enumerate(meanwhile)
            if sum(each for _, each in meanwhile[:place]) >= STILL * SECOND
        ]
        assert len(late) >= DOWN - STILL - 2, meanwhile
        assert all(moved >= LEAST * beside for moved, beside in late), meanwhile
        assert sum(moved for moved, _ in whole) > 0.6 * sum(beside for _, beside in whole), whole
        assert stage.wan_ways(job, "wan1") == {"wan-fast"}


def so_far(counting: Counting, port: int) -> int:
    """The bytes that a port of the WAN host has received."""
    samples = counting.so_far().samples
    return samples[-1][1].get(port, 0) if samples else 0


def let_pass(counting: Counting, seconds: int) -> None:
    """Wait until the reference has moved the bytes of so many seconds."""
    before = so_far(counting, REFERENCE_PORT)
    moved = seconds * SECOND
    wait_until(
        lambda: so_far(counting, REFERENCE_PORT) - before >= moved, 30 + 10 * seconds, "the reference has passed"
    )


def pieces(found: Counts, begin: float, end: float) -> list[tuple[int, int]]:
    """The bytes of the transfer and of the reference between two moments, in pieces of a second of the reference."""
    chosen = [ports for moment, ports in found.samples if begin <= moment <= end]
    divided: list[tuple[int, int]] = []
    last = chosen[0]
    for ports in chosen:
        beside = ports.get(REFERENCE_PORT, 0) - last.get(REFERENCE_PORT, 0)
        if beside >= SECOND:
            divided.append((ports.get(PORT, 0) - last.get(PORT, 0), beside))
            last = ports
    return divided
