"""Advice on RequestBandwidth for jobs of each kind of network, after real traffic on a real kernel and Open vSwitch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_worker.network.commands import run
from tests.worker.pool import a_pool, eventually
from tests.worker.test_bridge_nat import LAN, NAT, enforced
from tests.worker.test_counters import HOSTS, OUTSIDE, ROUTER, send
from tests.worker.test_jobs import value
from tests.worker.test_shaping import KINDS, RATE, asks, device, rates, shaped, shares

pytestmark = pytest.mark.ovs


@KINDS
def test_a_throttled_stream_either_way_is_told_to_ask_for_more_and_an_idle_job_for_less(
    ovs: OpenVSwitch, net: Net, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("lark_controller.qos.advice.LEAST_SECONDS", 5.0)
    # A whole stretch fits into each stream, wherever it begins.
    monkeypatch.setattr("lark_controller.accounting.account.LEAST_STRETCH", 2.0)
    with shaped(ovs, net) as (pool, site):
        starter, other = pool.starter(1, "alice", kind), pool.starter(2, "bob", kind)
        said = enforced(pool, starter, "alice", 1, asks())
        job = value(said, "LarkJobId")
        idle = value(enforced(pool, other, "bob", 2, asks(50)), "LarkJobId")
        for down in (False, True):
            (got,) = rates(pool, site, [(starter, device(pool, said))], down=down, seconds=6)
            assert got >= 0.8 * RATE, (down, got)
        eventually(lambda: pool.client.advice(job)["throttled"] > 0.3)
        found = pool.client.advice("1.0")
        assert (found["verdict"], found["asked"], found["mode"], found["so_far"]) == ("too little", RATE, "cap", True)
        for way in ("inward", "outward"):
            assert 0.7 * RATE <= found["highest"][way] <= 1.5 * RATE, found
            assert found["mean"][way] < found["highest"][way]
        assert 1.25 * RATE <= found["advised"] <= 2 * RATE + 10, found
        # What lark-enter makes the worker ask at a job's end is by its counts of that moment.
        assert pool.worker is not None
        pool.inside(other, "ping -c3 -i0.2 -W1 10.0.9.9")
        for each in (starter, other):
            pool.hook(each, "exit", "alice" if each is starter else "bob", 1 if each is starter else 2)
        eventually(lambda: not pool.client.advice(job)["so_far"])
        ended = pool.client.advice(job)
        assert (ended["verdict"], ended["highest"]) == (found["verdict"], found["highest"])
        assert ended["sentence"].startswith(f"asked for {RATE} Mb/s, used ")
        eventually(lambda: not pool.client.advice(idle)["so_far"])
        assert (pool.client.advice(idle)["verdict"], pool.client.advice(idle)["advised"]) == ("too much", 1)


@KINDS
def test_reserved_flows_are_advised_by_the_workers_own_queues_to_their_end(
    ovs: OpenVSwitch, net: Net, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    for module in ("advice", "pair_advice"):
        monkeypatch.setattr(f"lark_controller.qos.{module}.LEAST_SECONDS", 5.0)
    monkeypatch.setattr("lark_controller.accounting.pairs.LEAST_STRETCH", 2.0)
    with shaped(ovs, net) as (pool, site):
        starter, other = pool.starter(1, "alice", kind), pool.starter(2, "bob", kind)
        said, others = enforced(pool, starter, "alice", 1), enforced(pool, other, "bob", 2)
        jobs = [value(said, "LarkJobId"), value(others, "LarkJobId")]
        made = [pool.client.reserve(job, LAN, RATE, steady=True) for job in jobs]
        eventually(lambda: shares(site.lan.port) == [(RATE, RATE)] * 2)
        pool.inside(other, "ping -c3 -i0.2 -W1 10.0.9.9")
        (got,) = rates(pool, site, [(starter, device(pool, said))], down=False, seconds=6)
        assert got >= 0.8 * RATE, got

        def pair(job: str) -> dict[str, Any]:
            (found,) = pool.client.pairs(job)["pairs"]
            return dict(found)

        eventually(lambda: pair(jobs[0])["throttled"] > 0.3)
        found = pair(jobs[0])
        assert (found["verdict"], found["asked"], found["steady"], found["so_far"]) == ("too little", RATE, True, True)
        assert 0.7 * RATE <= found["highest"] <= 1.5 * RATE, found
        assert 1.25 * RATE <= found["advised"] <= 2 * RATE + 10, found
        eventually(lambda: pair(jobs[1])["verdict"] == "too much")
        assert pair(jobs[1])["advised"] == 1
        pool.client.release(made[0]["id"])
        eventually(lambda: shares(site.lan.port) == [(RATE, RATE)])
        for each in (starter, other):
            pool.hook(each, "exit", "alice" if each is starter else "bob", 1 if each is starter else 2)
        eventually(lambda: not pair(jobs[0])["so_far"] and not pair(jobs[1])["so_far"])
        assert pair(jobs[0])["mean"] * pair(jobs[0])["seconds"] >= 0.999 * found["mean"] * found["seconds"]
        assert pair(jobs[0])["verdict"] == "too little"


@pytest.mark.parametrize("released", [True, False])
def test_the_last_counters_of_a_flow_are_reported_before_its_jobs_end(
    ovs: OpenVSwitch, net: Net, released: bool
) -> None:
    # No round of reports comes to help.
    with shaped(ovs, net, counter_seconds="1000") as (pool, site):
        starter = pool.starter(1, "alice", NAT)
        said = enforced(pool, starter, "alice", 1)
        job = value(said, "LarkJobId")
        made = pool.client.reserve(job, LAN, RATE)
        # That of the flow, and the part of what the job sends besides.
        eventually(lambda: len(shares(site.lan.port)) == 2)
        rates(pool, site, [(starter, device(pool, said))], down=False, seconds=0.5)
        if released:
            pool.client.release(made["id"])
            eventually(lambda: not shares(site.lan.port))
        (before,) = pool.client.pairs(job)["pairs"]
        assert (before["mean"], before["reason"]) == (0.0, "not counted")
        pool.hook(starter, "exit", "alice", 1)
        eventually(lambda: not pool.client.pairs(job)["pairs"][0]["so_far"])
        (ended,) = pool.client.pairs(job)["pairs"]
        assert ended["mean"] * ended["seconds"] >= 0.5 * RATE, ended


def test_a_job_on_the_switch_is_advised_by_the_switchs_counters(
    ovs: OpenVSwitch, net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lark_controller.qos.advice.LEAST_SECONDS", 1.0)
    with temporary_directory() as folder, a_pool(Path(folder), ovs, net, HOSTS, gateways=ROUTER) as pool:
        for command in (f"address add {ROUTER}/16", f"address add {OUTSIDE}/32"):
            run(["ip", *command.split(), "dev", pool.bridge])
        run(["ip", "link", "set", pool.bridge, "up"])
        alice = pool.starter(1, "alice")
        job = value(pool.hook(alice, "start", "alice", 1, "RequestBandwidth = 100\n"), "LarkJobId")
        send(pool, alice, OUTSIDE, 500)
        pool.hook(alice, "exit", "alice", 1)
        eventually(lambda: pool.client.advice(job)["seconds"] > 0 and not pool.client.advice(job)["so_far"])
        found = pool.client.advice(job)
        usage = pool.client.job(job)["usage"]
        # The policy has no rule for it.
        assert (found["mode"], found["counts"], found["throttled"]) == (None, 100, 0)
        assert found["mean"]["outward"] == pytest.approx(usage["bytes_out"] * 8 / 1e6 / found["seconds"])
        assert 0 < found["mean"]["outward"] <= found["highest"]["outward"] < 10
        assert found["verdict"] == "too much"
        assert found["highest"]["outward"] <= found["advised"] <= 12
        assert "which nothing enforced" in found["sentence"]


def test_a_job_without_a_network_is_told_so(ovs: OpenVSwitch, net: Net) -> None:
    with temporary_directory() as folder, a_pool(Path(folder), ovs, net) as pool:
        starter = pool.starter(1, "alice", 'NetworkType = "none"\n')
        job = value(pool.hook(starter, "start", "alice", 1), "LarkJobId")
        found = pool.client.advice(job)
        assert (found["reason"], found["advised"], found["sentence"]) == ("no network", None, "it has no network")
