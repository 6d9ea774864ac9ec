"""Reservations of bridge and nat jobs that are a floor, on a real kernel: by the rates of streams beside each other."""

from __future__ import annotations

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from tests.worker.pool import eventually
from tests.worker.test_bridge_nat import LAN, enforced
from tests.worker.test_jobs import value
from tests.worker.test_shaping import KINDS, LINK, device, rates, shaped, shares, told

pytestmark = pytest.mark.ovs


@KINDS
def test_who_reserves_is_not_worse_off_than_who_does_not(ovs: OpenVSwitch, net: Net, kind: str) -> None:
    with shaped(ovs, net) as (pool, site):
        first, second = pool.starter(1, "alice", kind), pool.starter(2, "bob", kind)
        said = enforced(pool, first, "alice", 1)
        jobs = [(first, device(pool, said)), (second, device(pool, enforced(pool, second, "bob", 2)))]
        made = pool.client.reserve(value(said, "LarkJobId"), LAN, 10)
        eventually(lambda: shares(site.lan.port) == [(10 + (LINK - 10) / 2, LINK)])
        (alone,) = rates(pool, site, jobs[:1], down=False)
        assert 0.8 * LINK <= alone <= 1.1 * LINK, told(site, alone)
        got, other = rates(pool, site, jobs, down=False)
        assert got >= 0.9 * LINK / 2, told(site, got, other)
        assert got + other <= 1.1 * LINK, told(site, got, other)
        pool.client.change_reservation(made["id"], steady=True)
        eventually(lambda: shares(site.lan.port) == [(10, 10)])
        got, other = rates(pool, site, jobs, down=False)
        assert 0.8 * 10 <= got <= 1.1 * 10, told(site, got, other)
        assert other >= 0.8 * (LINK - 10), told(site, got, other)
