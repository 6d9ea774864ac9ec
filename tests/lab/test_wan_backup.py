"""A WAN port that goes down under a running transfer: it goes on by the port that the policy names, and comes back."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from lab import controller
from lab.boot import Lab
from lab.inside.topology import WAN_ADDRESSES
from lab.jobs import Wish, running
from tests.lab import stage

pytestmark = [pytest.mark.kernel_datapath, pytest.mark.usefixtures("policy_restored")]

PORT = 5401
SECONDS, BEFORE, DOWN = 24, 6, 9
# How long a transfer may stand still when its way changes: TCP sends again after its timeout, and that doubles.
STILL = 4


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
    address = WAN_ADDRESSES[1][0]
    with running(lab, [Wish("carol", stage.GROUP, worker="worker1")]) as (job,), ThreadPoolExecutor(1) as thread:
        assert stage.wan_ways(job, "wan1") == {"wan-fast"}
        command = f"iperf3 --client {address} --port {PORT} --time {SECONDS} --interval 1 --bitrate 20M --json"
        transfer = thread.submit(job.run, command, SECONDS + 30)
        time.sleep(BEFORE)
        with down(lab):
            time.sleep(2)
            # Another connection, at once: nobody has to wait for the first one's timers.
            assert stage.wan_ways(job, "wan1") >= {"wan"}
            problems = [each["problem"] for each in controller.api(lab, "/v1/switches/core1")["problems"]]
            assert "WAN port wan-fast is down; wan is used" in problems
            time.sleep(DOWN - 2)
        found = json.loads(transfer.result().stdout)
        assert "error" not in found, found["error"]
        rates = [each["sum"]["bits_per_second"] / 1e6 for each in found["intervals"]]
        still = [at for at, rate in enumerate(rates) if rate < 1]
        assert len(still) <= STILL, rates
        assert all(rate > 1 for rate in rates[BEFORE + STILL : BEFORE + DOWN - 1]), rates
        assert found["end"]["sum_received"]["bytes"] > 0.6 * 20e6 / 8 * SECONDS, rates
        assert stage.wan_ways(job, "wan1") == {"wan-fast"}
