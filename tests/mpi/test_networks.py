"""Applications of jobs with other networks than the usual one: on a Linux bridge, behind NAT, without any, with IPv6
alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from tests.fixtures.ovs import a_net
from tests.mpi.ranks import c, finish, python, start
from tests.mpi.test_pool import TOPOLOGY
from tests.mpi.test_shares import Jobs
from tests.worker import test_bridge_nat
from tests.worker.pool import POLICY, a_pool, eventually
from tests.worker.test_bridge_nat import a_site

pytestmark = pytest.mark.ovs
BRIDGE_TO_NAT = {
    ("ovs_bridge", "bridge"): "",
    ("bridge", "ovs_bridge"): "",
    ("nat", "ovs_bridge"): "",
    ("ovs_bridge", "nat"): "has no address of its own",
    ("ovs_bridge", "none"): "has no network of its own, so nothing can be reserved for it",
    ("none", "ovs_bridge"): "has no network of its own, so nothing can be reserved for it",
}


@pytest.mark.parametrize(("kinds", "reason"), BRIDGE_TO_NAT.items(), ids=map(" to ".join, BRIDGE_TO_NAT))
def test_what_a_job_of_each_network_reserves_to_one_of_another(
    ovs: OpenVSwitch, net: Net, kinds: tuple[str, str], reason: str
) -> None:
    with a_site(ovs, net, test_bridge_nat.POLICY + TOPOLOGY) as (pool, _):
        jobs = Jobs(pool, pool.folder, [f'LarkNetworkType = "{kind}"\n' for kind in kinds])
        wish = {"destination": jobs.ids[1], "rate": 30, "duration": 60, "share": True}
        status, document = jobs.ask("POST", "/v1/reservations?wait=10", wish)
        if not reason:
            assert (status, document["rate"], jobs.rates()) == (201, 30.0, [30.0])
            assert [each["peer"] for each in jobs.ask("GET", "/v1/paths")[1]["paths"]] == [jobs.ids[1]]
            return
        assert status == 422
        assert document["detail"].endswith(reason)
        assert jobs.rates() == []


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_jobs_with_ipv6_alone_reserve_with_its_headers(ovs: OpenVSwitch, mpi: str, language: str) -> None:
    policy = POLICY.replace('10.64.0.0/16, "2001:db8:64::/48"', '"2001:db8:64::/48"')
    with (
        temporary_directory() as name,
        a_net(ovs) as net,
        a_pool(Path(name), ovs, net, policy + TOPOLOGY, networks="2001:db8:64::/48") as pool,
    ):
        jobs = Jobs(pool, Path(name))
        program = python("ring") if language == "python" else c(mpi, "ring")
        process = start(mpi, jobs.folder, jobs.sockets, program)
        try:
            eventually(lambda: len(list(pool.client.reservations())) == 2 or process.poll() is not None, 60)
            held = list(pool.client.reservations())
            one, other = jobs.ids
            assert {each["job"]: each["peer"] for each in held} == {one: other, other: one}
            assert all(address.startswith("2001:db8:64:") for each in held for address in each["addresses"])
            # This machine has no route to them, and so their MTU is 1500: 1514 bytes on the link for 1428.
            assert [each["rate"] for each in held] == [8.482, 8.482]
        finally:
            (jobs.folder / "seen").touch()
            outcome = finish(process, jobs.folder)
        assert outcome.status == 0, outcome.output
        assert all(told["admitted"] for told in outcome.told.values())
