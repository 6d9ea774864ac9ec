"""The audit of guarantees: a queue is made slower behind the controller's back, and the controller says so."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab import controller
from lab.boot import Lab
from lab.inside.topology import WAN_ADDRESSES
from lab.jobs import Running, Wish, running
from tests.lab import beside

pytestmark = [pytest.mark.kernel_datapath, pytest.mark.usefixtures("policy_restored")]

GUARANTEE = 25
PORT = 5401
# The controller looks at each switch's queues so often here (LARK_CHECK_SECONDS), and two looks make a comparison.
CHECK_SECONDS = 15
PATIENCE = 120
# As long as a measurement may be made again.
LONGEST = 900
POLICY = f"""\
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  hosts: [10.64.0.1, 10.64.0.2, 10.64.0.4, "2001:db8:64::1", "2001:db8:64::2"]
  local: [10.0.0.0/8, "2001:db8::/32"]
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    groups_by: queues
    ports:
      lan: {{port: 1, speed: 1Gbit}}
      wan: {{port: 2, next_hop: "02:00:00:00:00:01", speed: 100Mbit}}
  worker1: {{datapath: "00000000000000e1", role: edge, host: worker1.lab.test, ports: {{uplink: eth0}}}}
  worker2: {{datapath: "00000000000000e2", role: edge, host: worker2.lab.test, ports: {{uplink: eth0}}}}
groups:
  group_cms: {{port: wan, guarantee: {GUARANTEE}Mbit, ceiling: {GUARANTEE}Mbit, dscp: 18}}
"""
# Open vSwitch's linux-htb makes queue N class 1:(N+1), in hexadecimal; the group's queue has its DSCP as its number.
CLASS = f"1:{18 + 1:x}"


def counted(lab: Lab, name: str) -> float:
    script = 'exec curl -sS --fail -H "Authorization: Bearer $(cat /etc/lark/operator.token)" 127.0.0.1:8080/metrics'
    shown = lab.on("controller", "sh", "-c", script).stdout
    found = re.search(rf"^{name} (\S+)$", shown, re.MULTILINE)
    assert found is not None, shown
    return float(found[1])


def until(met: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not met():
        assert time.monotonic() < deadline
        time.sleep(0.5)


def send(job: Running, seconds: int) -> None:
    job.run(f"iperf3 --client {WAN_ADDRESSES[1][0]} --port {PORT} --time {seconds}", seconds + 60.0)


def told(lab: Lab) -> float:
    """The rate that the group got, in the problem of the core."""
    found = re.match(rf"guarantee missed: group group_cms got ([\d.]+) of {GUARANTEE} Mb/s at port wan", missed(lab)[0])
    assert found is not None, missed(lab)
    return float(found[1])


def missed(lab: Lab) -> list[str]:
    problems = controller.api(lab, "/v1/switches/core1")["problems"]
    return [each["problem"] for each in problems if each["problem"].startswith("guarantee missed")]


def test_a_guarantee_that_a_switch_does_not_keep_is_told(lab: Lab) -> None:
    lab.on("wan1", "iperf3", "--server", "--daemon", "--port", str(PORT))
    controller.api(lab, "/v1/policy", "PUT", POLICY)
    controller.wait_in_sync(lab)
    before = counted(lab, "lark_guarantees_missed_total")
    with running(lab, [Wish("alice", {"accounting_group": "group_cms"})]) as (job,), ThreadPoolExecutor(1) as thread:
        sending = thread.submit(send, job, LONGEST)
        # Behind the back of controller and Open vSwitch: neither database nor flows say anything else than before.
        lowered = ("tc", "class", "change", "dev", "wan", "parent", "1:fffe", "classid", CLASS,
                   "htb", "rate", "5mbit", "ceil", "5mbit")  # fmt: skip
        lab.on("core", *lowered)
        until(lambda: bool(missed(lab)))
        # A look that began before the rate was lowered has seen some of the old one.
        assert told(lab) < 0.95 * GUARANTEE

        def measure() -> list[float]:
            # The next look may compare with one from before the reference began.
            looks = counted(lab, "lark_guarantees_checked_total")
            until(lambda: counted(lab, "lark_guarantees_checked_total") >= looks + 2)
            # A look in which the sender was kept waiting finds nothing missed; the next ones are asked then.
            until(lambda: bool(missed(lab)) or counted(lab, "lark_guarantees_checked_total") >= looks + 5)
            return [told(lab) if missed(lab) else 0.0]

        found = beside.measured(lab, beside.wan(), 6 * CHECK_SECONDS, measure)
        # All of it is of the new rate, and the machine was not late.
        assert 4 <= found.found[0] < 0.95 * GUARANTEE, found
        assert counted(lab, "lark_guarantees_missed_total") > before
        said = lab.on("controller", "grep", "guarantee missed", "/var/log/lark-controller.log").stdout
        assert "group=group_cms" in said, said
        job.run("kill $(pidof iperf3)", 20.0)
        sending.result()


def test_a_guarantee_that_nobody_wants_is_not_missed(lab: Lab) -> None:
    controller.api(lab, "/v1/policy", "PUT", POLICY)
    controller.wait_in_sync(lab)
    checked = counted(lab, "lark_guarantees_checked_total")
    before = counted(lab, "lark_guarantees_missed_total")
    with running(lab, [Wish("alice", {"accounting_group": "group_cms"})]) as (job,):
        until(lambda: counted(lab, "lark_guarantees_checked_total") >= checked + 2)
        assert job.run("true").status == 0
    assert counted(lab, "lark_guarantees_missed_total") == before
