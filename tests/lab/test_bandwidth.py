"""The papers' experiments in short: who requests bandwidth gets it, groups share the WAN, and nobody is promised what a
link does not have. `make experiments` measures at length; here rates are held against a reference
stream of the same moment.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial

import pytest

from lab import controller, submit
from lab.boot import Lab
from lab.inside.condor import BANDWIDTH
from lab.jobs import Running, Wish, remove, running
from tests.lab import beside, streams
from tests.lab.beside import MOST
from tests.lab.trials import configured

pytestmark = [pytest.mark.kernel_datapath, pytest.mark.usefixtures("policy_restored")]

LINK = 100
SITE, WAN = ("dhcp", "10.64.0.4"), ("wan1", "192.0.2.1")
FIRST_PORT = 5501
SECONDS = 6


def policy(rule: str = "", groups: str = "", refused: str = "hold") -> str:
    core = "queues" if groups else "preprovisioned"
    return f"""\
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  hosts: [10.64.0.1, 10.64.0.2, 10.64.0.4, "2001:db8:64::1", "2001:db8:64::2"]
  local: [10.0.0.0/8, "2001:db8::/32"]
switches:
  core1:
    datapath: "00000000000000c0"
    role: core
    groups_by: {core}
    ports:
      lan: {{port: 1, speed: {LINK}}}
      wan: {{port: 2, next_hop: "02:00:00:00:00:01", speed: {LINK}}}
  worker1: {{datapath: "00000000000000e1", role: edge, host: worker1.lab.test, ports: {{uplink: eth0}}}}
  worker2: {{datapath: "00000000000000e2", role: edge, host: worker2.lab.test, ports: {{uplink: eth0}}}}
policies:
  - slice: {{by: Owner}}
{f"  - bandwidth: {rule}" if rule else ""}
{f"groups:{groups}" if groups else ""}
topology:
  refused: {refused}
  links: {{internet: {{between: [core1, wan], capacity: {LINK}}}}}
  hosts:
    dhcp: {{switch: core1, capacity: 1000, addresses: [{SITE[1]}]}}
    default: {{switch: core1, capacity: {LINK}}}
"""


def put(lab: Lab, text: str) -> None:
    controller.api(lab, "/v1/policy", "PUT", text)
    controller.wait_in_sync(lab)


def enforced(lab: Lab) -> None:
    deadline = time.monotonic() + 60
    while waiting := [job for job in controller.jobs(lab) if job["state"] != "enforced"]:
        assert time.monotonic() < deadline, [(job["state"], job["reason"]) for job in waiting]
        time.sleep(0.3)


def serve(lab: Lab, machine: str, number: int) -> None:
    lab.on(machine, "sh", "-c", streams.servers(range(FIRST_PORT, FIRST_PORT + number)))


def rates(lab: Lab, jobs: Sequence[Running], server: str, *, down: bool) -> list[float]:
    """Mb/s of L2 bytes of one TCP stream in each job, all at the same time."""
    ports = range(FIRST_PORT, FIRST_PORT + len(jobs))
    return streams.together(lab, [(job, "--reverse" if down else "") for job in jobs], server, ports, SECONDS)


@pytest.fixture(params=["ovs_bridge", "bridge"])
def network_type(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    """The network type of jobs on worker1; nat needs nftables' inet family, which User Mode Linux lacks."""
    with ExitStack() as stack:
        if request.param != "ovs_bridge":
            stack.enter_context(configured(lab, "worker1", f'NetworkType = "{request.param}"\n', "NetworkType"))
        yield request.param


def test_figure_8_in_short_each_job_gets_what_it_requests(lab: Lab, network_type: str) -> None:
    serve(lab, SITE[0], 3)
    put(lab, policy("{mode: cap}"))
    requested = {"alice": 10, "bob": 30, "carol": 60}
    wishes = [Wish(user, {"+RequestBandwidth": str(rate)}, "worker1") for user, rate in requested.items()]
    with running(lab, wishes) as jobs:
        enforced(lab)
        assert {job.record["network_type"] for job in jobs} == {network_type}
        for down in (True, False):
            measure = partial(rates, lab, jobs, SITE[1], down=down)
            got = beside.measured(lab, beside.site(), SECONDS, measure, list(requested.values()))
            assert got.have(list(requested.values())), (down, got)
            for rate, wanted in zip(got.found, requested.values(), strict=True):
                assert rate <= MOST * wanted, (down, got)
        links = {(each["name"], each["source"]): each for each in controller.api(lab, "/v1/links")["links"]}
        assert links["access:worker1.lab.test", "core1"]["best_effort"] == 0


def test_figure_10_in_short_groups_have_their_queues_and_jobs_of_one_share_it(lab: Lab) -> None:
    serve(lab, WAN[0], 4)
    put(lab, policy(groups="\n  group_cms: {port: wan, guarantee: 50, ceiling: 50}\n"
                           "  default: {port: wan, guarantee: 20, ceiling: 20}\n"))  # fmt: skip
    cms = {"accounting_group": "group_cms"}
    wishes = [Wish("alice", cms, "worker1"), Wish("alice", cms, "worker2")]
    wishes += [Wish("bob", worker="worker1"), Wish("bob", worker="worker2")]
    with running(lab, wishes) as jobs:
        enforced(lab)

        def measure() -> list[float]:
            got = rates(lab, jobs, WAN[1], down=False)
            return [got[0] + got[1], got[2] + got[3], min(got[2:]) / max(got[2:])]

        shares = beside.measured(lab, beside.wan(), SECONDS, measure, (50, 20, 0.7))
        assert shares.have((50, 20, 0.7)), shares
        assert shares.found[0] <= MOST * 50, shares
        assert shares.found[1] <= MOST * 20, shares


def test_of_many_jobs_that_start_at_once_only_those_start_that_the_link_holds(lab: Lab) -> None:
    put(lab, policy("{mode: cap}"))
    lines = {"+RequestBandwidth": "40", "requirements": 'Machine == "worker1.lab.test"'}
    jobs = submit.submit(lab, "alice", "sleep 600", lines, number=6)
    try:
        deadline = time.monotonic() + 240
        while sorted(states := _states(lab, jobs)) != ["2", "2", "5", "5", "5", "5"]:
            assert time.monotonic() < deadline, states
            time.sleep(0.5)
        reasons = lab.on("central", "condor_q", "-hold", str(jobs.cluster), "-af", "HoldReason", user="alice").stdout
        assert reasons.count("link access:worker1.lab.test (worker1.lab.test to core1)") == 4, reasons
        assert "has 20 of 100 Mb/s left, and 40 are asked" in reasons
        assert len(controller.jobs(lab, state="enforced")) == 2
    finally:
        remove(lab, [jobs])
    assert {each["reserved"] for each in controller.api(lab, "/v1/links")["links"]} == {0}


def test_a_worker_advertises_what_its_link_carries_where_the_policy_does_not_say(lab: Lab) -> None:
    put(lab, policy("{mode: cap}").replace(f"default: {{switch: core1, capacity: {LINK}}}", "default: {switch: core1}"))
    with running(lab, [Wish("alice", {"+RequestBandwidth": "40"}, "worker1")]):
        enforced(lab)
        links = {(each["name"], each["source"]): each for each in controller.api(lab, "/v1/links")["links"]}
        there = links["access:worker1.lab.test", "core1"]
        assert (there["capacity"], there["reserved"]) == (BANDWIDTH, 40)


def test_a_site_may_let_refused_jobs_wait_in_the_queue(lab: Lab) -> None:
    put(lab, policy("{mode: cap}", refused="idle"))
    lines = {"+RequestBandwidth": "70", "requirements": 'Machine == "worker1.lab.test"'}
    with running(lab, [Wish("alice", {"+RequestBandwidth": "70"}, "worker1")]) as (first,):
        jobs = submit.submit(lab, "bob", "echo started", lines)
        deadline = time.monotonic() + 60
        log = f"{jobs.directory}/log"
        while "has 30 of 100 Mb/s left" not in (said := lab.on("central", "cat", log).stdout):
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
        assert "5" not in _states(lab, jobs)
        first.end()
        submit.wait(lab, jobs, 90)
        assert submit.output(lab, jobs) == "started\n"


def test_a_jobs_reserved_flow_keeps_its_rate_beside_others(lab: Lab) -> None:
    serve(lab, SITE[0], 3)
    put(lab, policy())
    with running(lab, [Wish(user, worker="worker1") for user in ("alice", "bob", "carol")]) as jobs:
        enforced(lab)
        wish = json.dumps({"source": jobs[0].id, "destination": SITE[1], "rate": 50, "steady": True})
        made = controller.api(lab, "/v1/reservations?wait=10", "POST", wish, "application/json")
        enforced(lab)
        measure = partial(rates, lab, jobs, SITE[1], down=False)
        got = beside.measured(lab, beside.site(), SECONDS, measure, (50, 0, 0))
        assert got.have((50, 0, 0)), got
        assert got.found[0] <= MOST * 50, got
        assert got.found[1] + got.found[2] <= MOST * 50, got
        # By the counters of the switch's queue, in L2 bytes.
        (flow,) = controller.api(lab, f"/v1/reservations/{made['id']}/delivered")["flows"]
        assert flow["delivered_bytes"] >= 0.9 * 50e6 / 8 * SECONDS, flow
        controller.api(lab, f"/v1/reservations/{made['id']}", "PATCH", '{"rate": 80}', "application/json")
        enforced(lab)
        got = beside.measured(lab, beside.site(), SECONDS, measure, (80, 0, 0))
        assert got.have((80, 0, 0)), got
        assert got.found[0] <= MOST * 80, got


def _states(lab: Lab, jobs: submit.Jobs) -> list[str]:
    """JobStatus of each: 1 idle, 2 running, 5 on hold."""
    return lab.on("central", "condor_q", str(jobs.cluster), "-af", "JobStatus").stdout.split()
