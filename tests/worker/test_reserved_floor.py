"""Reservations of bridge and nat jobs that are a floor, and jobs with a guarantee, on a real kernel: by the rates of
streams beside each other."""

from __future__ import annotations

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lab.run import run
from tests.worker.pool import Pool, eventually
from tests.worker.test_bridge_nat import LAN, enforced
from tests.worker.test_jobs import value
from tests.worker.test_shaping import KINDS, LINK, asks, device, policy, rates, rates_once_in_time, shaped, shares, told

pytestmark = pytest.mark.ovs

# What one of two has of a link, nearly.
HALF = 0.9 * LINK / 2


def single_frames(pool: Pool) -> None:
    """Let each job hand over single frames: joined ones are as long as their stream is fast, and this kernel may lack
    the leaves (CAKE) that take them apart, by which turns are fair."""
    assert pool.worker is not None
    for each in pool.worker.records():
        run(["ip", "-n", each.namespace, "link", "set", "eth0", "gso_max_segs", "1"])


@KINDS
def test_who_reserves_is_not_worse_off_than_who_does_not(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with shaped(ovs, net) as (pool, site):
        first, second = pool.starter(1, "alice", kind), pool.starter(2, "bob", kind)
        said = enforced(pool, first, "alice", 1)
        jobs = [(first, device(pool, said)), (second, device(pool, enforced(pool, second, "bob", 2)))]
        single_frames(pool)
        # Those that send nothing have their part, which is for all then.
        for number in (3, 4):
            enforced(pool, pool.starter(number, "carol", kind), "carol", number)
        made, others = pool.client.reserve(value(said, "LarkJobId"), LAN, 10), list[str]()
        part = (LINK - 10) / 6
        eventually(lambda: shares(site.lan.port) == [*4 * [(part, LINK)], (10 + part, LINK)])
        (alone,) = rates_once_in_time(pool, site, jobs[:1], 0.8 * LINK, down=False)
        assert 0.8 * LINK <= alone <= 1.1 * LINK, told(site, alone)
        got, other = rates_once_in_time(pool, site, jobs, HALF, down=False)
        assert got >= HALF, told(site, got, other)
        assert got + other <= 1.1 * LINK, told(site, got, other)
        # However many connections the job beside it has.
        got, *other_streams = rates_once_in_time(pool, site, [*jobs, *2 * jobs[1:]], HALF, down=False)
        assert got >= HALF, told(site, got, *other_streams)
        # However many others it has reserved and does not use.
        for last in range(1, 9):
            others.append(pool.client.reserve(value(said, "LarkJobId"), f"192.0.2.{last}", 1)["id"])
        eventually(lambda: len(shares(site.lan.port)) == 5 + len(others))
        got, other = rates_once_in_time(pool, site, jobs, HALF, down=False)
        assert got >= HALF, told(site, got, other)
        for each in others:
            pool.client.release(each)
        pool.client.change_reservation(made["id"], steady=True)
        eventually(lambda: shares(site.lan.port) == [(10, 10)])
        got, other = rates(pool, site, jobs, down=False)
        assert 0.8 * 10 <= got <= 1.1 * 10, told(site, got, other)
        assert other >= 0.8 * (LINK - 10), told(site, got, other)


@KINDS
def test_a_guaranteed_job_is_not_worse_off_than_one_that_asks_for_nothing(
    ovs: OpenVSwitch, net: Net, kind: str
) -> None:
    with shaped(ovs, net, policy("guarantee")) as (pool, site):
        first, second = pool.starter(1, "alice", kind), pool.starter(2, "bob", kind)
        jobs = [(first, device(pool, enforced(pool, first, "alice", 1, asks(1))))]
        # Alone with others that ask for a rate it borrows what is left.
        assert shares(site.lan.port) == [(1, LINK)]
        jobs.append((second, device(pool, enforced(pool, second, "bob", 2))))
        idle = [pool.starter(number, "carol", kind) for number in (3, 4, 5)]
        for number, each in enumerate(idle, 3):
            enforced(pool, each, "carol", number)
        single_frames(pool)
        # Of the 99 each of six queues has 16.5 at most.
        eventually(lambda: shares(site.lan.port) == [*4 * [(15, LINK)], (16, LINK)])
        (alone,) = rates_once_in_time(pool, site, jobs[:1], 0.8 * LINK, down=False)
        assert 0.8 * LINK <= alone <= 1.1 * LINK, told(site, alone)
        got, other = rates_once_in_time(pool, site, jobs, HALF, down=False)
        assert got >= HALF, told(site, got, other)
        assert got + other <= 1.1 * LINK, told(site, got, other)
        got, *streams = rates_once_in_time(pool, site, [*jobs, *2 * jobs[1:]], HALF, down=False)
        assert got >= HALF, told(site, got, *streams)
        # With the last job that asked for nothing its part goes.
        for owner, number, starter in (("bob", 2, second), *(("carol", 3 + at, each) for at, each in enumerate(idle))):
            pool.hook(starter, "exit", owner, number)
        eventually(lambda: shares(site.lan.port) == [(1, LINK)])
