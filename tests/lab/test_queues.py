"""Queues and real TCP in the kernel datapath: rates, latency, shares; on workers and on the core.

Rates are L2 frame bytes: what iperf3 counts is payload, 1448 of 1514 bytes a frame at an MTU of 1500. They are held
against a reference stream of the same moment (tests/lab/beside.py); docs/design/queues.md has what was measured.
"""

from __future__ import annotations

import json
import re
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from lab import controller
from lab.boot import Lab
from lab.inside.topology import BY_NAME, WAN_ADDRESSES
from lab.jobs import Running, Wish, running
from tests.lab import beside, streams
from tests.lab.beside import MOST

pytestmark = pytest.mark.kernel_datapath

PAYLOAD = 1448 / 1514
SECONDS = 6
SERVER = BY_NAME["central"].address
PORTS = range(5301, 5309)


@pytest.fixture(scope="module", autouse=True)
def servers(lab: Lab) -> Iterator[None]:
    """iperf3 on the central machine and on a WAN host, one for each port, since each serves one client at a time."""
    for machine in ("central", "wan1"):
        lab.on(machine, "sh", "-c", streams.servers(PORTS))
    yield
    for machine in ("central", "wan1"):
        lab.on(machine, "sh", "-c", "kill $(pidof iperf3)", check=False)
    lab.on("wan1", "iperf3", "--server", "--daemon")


@contextmanager
def policy(lab: Lab, *changes: tuple[str, str], groups: str = "") -> Iterator[None]:
    """The lab's policy with some of its text, and perhaps its groups, replaced."""
    before = controller.api(lab, "/v1/policy")["text"]
    text = before
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    if groups:
        text = re.sub(r"^groups:\n(?:  .*\n)*", groups, text, flags=re.MULTILINE)
    controller.api(lab, "/v1/policy", "PUT", text)
    try:
        yield
    finally:
        controller.api(lab, "/v1/policy", "PUT", before)


def rate(job: Running, port: int, *options: str, server: str = SERVER) -> float:
    """Mb/s of L2 frame bytes that a job sends (with ``-R`` receives), without the first second."""
    command = f"iperf3 --client {server} --port {port} --omit 1 --time {SECONDS} --json {' '.join(options)}"
    result = job.run(command, SECONDS + 30.0)
    found = json.loads(result.stdout)
    assert "error" not in found, found["error"]
    return float(found["end"]["sum_received"]["bits_per_second"]) / 1e6 / PAYLOAD


def together(lab: Lab, *tries: tuple[Running, str], server: str = SERVER) -> list[float]:
    """The rates of jobs at the same time, each with its options of iperf3."""
    return streams.together(lab, tries, server, PORTS, SECONDS)


def pings(job: Running, count: int = 40) -> float:
    """The median round trip in ms."""
    printed = job.run(f"ping -n -c {count} -i 0.1 {SERVER}", 30.0).stdout
    return statistics.median(float(each) for each in re.findall(r"time=([\d.]+)", printed))


def asks(user: str, megabits: int, **lines: str) -> Wish:
    return Wish(user, {"request_bandwidth": str(megabits), **lines}, worker="worker1")


def test_what_a_jobs_queues_drop_is_what_its_own_datagrams_lack(lab: Lab) -> None:
    with running(lab, [asks("alice", 4), asks("alice", 30)]) as (job, quiet):

        def used(one: Running) -> dict[str, Any]:
            found: dict[str, Any] = controller.api(lab, f"/v1/jobs/{one.id}")["usage"]
            return found

        for options, drops in (("", "rate_drops_out"), ("-R", "rate_drops_in")):
            before = used(job)
            udp = "--udp --bitrate 16M --length 1400"
            command = f"iperf3 --client {SERVER} --port {PORTS[0]} --time {SECONDS} --json {udp} {options}"
            lost = json.loads(job.run(command, SECONDS + 30.0).stdout)["end"]["sum"]["lost_packets"]
            # Most of what is too much is held back in the sender: its socket waits for the queue.
            assert lost > 20
            # What was in the queue when the sender's time was over may not be missed by the receiver any more.
            deadline = time.monotonic() + 40
            while abs(used(job)[drops] - before[drops] - lost) > lost * 0.05 + 50:
                assert time.monotonic() < deadline, (lost, before, used(job))
                time.sleep(1.0)
            throttled = used(job)["throttled_seconds"] - before["throttled_seconds"]
            assert SECONDS - 3 <= throttled <= SECONDS + 3
        after = used(quiet)
        assert (after["rate_drops_in"], after["rate_drops_out"], after["throttled_seconds"]) == (0, 0, 0)
        last = used(job)
    deadline = time.monotonic() + 30
    while not (ended := used(job))["final"]:
        assert time.monotonic() < deadline, ended
        time.sleep(0.5)
    assert (ended["rate_drops_in"], ended["rate_drops_out"]) == (last["rate_drops_in"], last["rate_drops_out"])


def test_a_job_gets_what_it_requests_and_no_more(lab: Lab) -> None:
    rates = (10, 50, 100, 300)
    with running(lab, [asks("alice", each) for each in rates]) as jobs:
        assert [job.record["state"] for job in jobs] == ["enforced"] * len(rates)
        for options in ("", "-R"):
            # Large blocks cost less, and are fine enough for the larger rates.
            lengths = ("" if each < 100 else "--length 131072" for each in rates)
            tries = [(job, f"{options} {length}") for job, length in zip(jobs, lengths, strict=True)]
            measure = partial(together, lab, *tries)
            found = beside.measured(lab, beside.site(), SECONDS, measure, rates)
            assert found.have(rates), (options, found)
            for got, wanted in zip(found.found, rates, strict=True):
                assert got <= MOST * wanted, (wanted, options, found)
        # Many streams are one job's.
        assert rate(jobs[2], PORTS[0], "--parallel", "8") <= 100 * MOST
    # Nothing is left of jobs that have ended.
    lab.on("worker1", "sh", "-c", 'until [ -z "$(ovs-vsctl list qos)" ]; do sleep 0.2; done', timeout=60)


@pytest.mark.parametrize("direction", ["", "-R"])
def test_a_ping_passes_a_full_queue(lab: Lab, direction: str) -> None:
    with running(lab, [asks("alice", 50)]) as (job,):

        def measure() -> tuple[float, float]:
            idle = pings(job)
            with ThreadPoolExecutor(1) as thread:
                full = thread.submit(rate, job, PORTS[0], "--time", "12", *direction.split())
                loaded = pings(job)
                print(f"ping: {idle:.2f} ms idle, {loaded:.2f} ms through a full queue")
                return full.result(), loaded - idle

        found = beside.measured(lab, beside.site(), 20, measure)
        full, more = found.found
        assert full <= 50 * MOST, found
        # Through a plain FIFO it would be 14 ms and more; on an idle machine it is a fifth of one.
        assert more <= 3.0, found
        for port in ("eth0", job.record["port"]):
            leaves = lab.on("worker1", "tc", "qdisc", "show", "dev", port).stdout
            assert re.search("qdisc cake .* split-gso rtt 150ms", leaves), leaves


def test_what_is_left_is_shared_in_proportion_and_nobody_starves(lab: Lab) -> None:
    slow = ("{uplink: eth0}}\n  worker2", "{uplink: {port: eth0, speed: 100Mbit}}}\n  worker2")
    mode = {"+BandwidthMode": '"guarantee"'}
    with policy(lab, slow), running(lab, [asks("alice", 60, **mode), asks("bob", 10, **mode)]) as (large, small):
        # What one job does not send, the other has: of several streams one may have lost a packet.
        measure = partial(together, lab, (large, "--parallel 4"), (small, "--parallel 4"))
        # 60 and 10 are guaranteed; of the other 30, six to one, not one to one (75 to 25).
        shares = (60 + 30 * 6 / 7, 10 + 30 / 7)
        found = beside.measured(lab, beside.site(), SECONDS, measure, shares, 0.95)
        assert found.have((60, 10)), found
        assert sum(found.found) <= 100 * MOST
        assert found.found[0] / found.found[1] >= 4.5, found
        with running(lab, [Wish("carol", worker="worker1")]) as (unlimited,):
            # Towards jobs nobody is let to have more than what is left.
            for way in ("", "-R "):
                tries = (
                    (large, f"{way}--parallel 4"),
                    (small, f"{way}--parallel 4"),
                    (unlimited, f"{way}--parallel 16"),
                )
                found = beside.measured(lab, beside.site(), SECONDS, partial(together, lab, *tries), (60, 10, 0))
                assert found.have((60, 10, 0)), (way, found)


@pytest.mark.parametrize("direction", ["", "-R"])
def test_groups_share_a_wan_port_as_they_were_promised(lab: Lab, direction: str) -> None:
    """The paper's Figure 10 at a tenth of its rates: one group has 25, another 10 Mb/s; two jobs in each."""
    groups = """groups:
  group_cms: {guarantee: 25Mbit, ceiling: 25Mbit, dscp: 18}
  group_atlas: {guarantee: 10Mbit, ceiling: 10Mbit, dscp: 20}
"""
    core = (
        ("    max_rules: 4096\n", "    max_rules: 4096\n    groups_by: queues\n"),
        ("lan: 1\n", "lan: {port: 1, speed: 1Gbit}\n"),
        ("wan: {port: 2,", "wan: {port: 2, speed: 40Mbit,"),
        ("wan-fast: {port: 3,", "wan-fast: {port: 3, speed: 1Gbit,"),
    )
    wishes = [
        Wish("alice", {"accounting_group": group}, worker=worker)
        for group in ("group_cms", "group_atlas")
        for worker in ("worker1", "worker2")
    ]
    with policy(lab, *core, groups=groups), running(lab, wishes) as jobs:
        tries = [(job, direction) for job in jobs]

        def measure() -> list[float]:
            found = together(lab, *tries, server=WAN_ADDRESSES[1][0])
            return [sum(found[:2]), sum(found[2:])]

        shares = beside.measured(lab, beside.wan(), SECONDS, measure, (25, 10))
        assert shares.have((25, 10)), shares
        assert shares.found[0] <= 25 * MOST, shares
        assert shares.found[1] <= 10 * MOST, shares
        said = " ".join(each["problem"] for each in controller.api(lab, "/v1/switches/core1")["problems"])
        assert "is not known" not in said, said
