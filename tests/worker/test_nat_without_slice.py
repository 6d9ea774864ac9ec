"""A job behind NAT that is in no slice, in the machine's own kernel: its worker keeps it from jobs of slices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from tests.worker.pool import Pool, Starter, eventually
from tests.worker.test_bridge_nat import BRIDGE, LAN, NAT, POLICY, a_site, enforced, pings
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs

BOTH = POLICY.replace("hosts: [10.64.0.1]", 'hosts: [10.64.0.1, "2001:db8:64::1"]')
SOME = BOTH.replace("slice: {by: Owner}", "slice: {by: Owner, when: 'stringListMember(Owner, \"alice,bob\")'}")
OPEN = BOTH.replace("  - slice: {by: Owner}\n", "")


@pytest.fixture
def forwarding() -> Iterator[None]:
    """A machine that forwards IPv6, as NAT66 needs."""
    setting = Path("/proc/sys/net/ipv6/conf/all/forwarding")
    before = setting.read_text()
    setting.write_text("1")
    try:
        yield
    finally:
        setting.write_text(before)


def _reaches(pool: Pool, starter: Starter, said: dict[str, str]) -> set[str]:
    """The names of the jobs that answer, by the addresses that both families of a job have."""
    found = set()
    for name, ad in said.items():
        for family in ("IPv4", "IPv6"):
            address = value(ad, f"LarkInnerAddress{family}")
            if address and pings(pool, starter, address.partition("/")[0]):
                found.add(f"{name} {family}")
    return found


@pytest.mark.usefixtures("forwarding")
def test_it_reaches_jobs_without_a_slice_and_none_of_a_slice(ovs: OpenVSwitch, net: Net) -> None:
    networks = {"nat_networks": "10.255.64.0/24, fd64::/64", "gateways": "10.64.0.1, 2001:db8:64::1"}
    with a_site(ovs, net, policy=SOME, **networks) as (pool, _site):
        jobs = {
            name: (pool.starter(number, owner, kind), owner, number)
            for number, (name, owner, kind) in enumerate(
                (
                    ("asking", "carol", NAT),
                    ("nat neighbour", "dave", NAT),
                    ("sliced nat", "alice", NAT),
                    ("sliced", "alice", BRIDGE),
                    ("unsliced", "dave", BRIDGE),
                ),
                1,
            )
        }
        said = {name: enforced(pool, starter, owner, number) for name, (starter, owner, number) in jobs.items()}
        asking, sliced = jobs["asking"][0], jobs["sliced nat"][0]
        others = {name: ad for name, ad in said.items() if name != "asking"}
        both = {f"{name} {family}" for name in ("nat neighbour", "unsliced") for family in ("IPv4", "IPv6")}
        assert _reaches(pool, asking, others) == both
        assert pings(pool, asking, LAN)
        own = {name: ad for name, ad in said.items() if name != "sliced nat"}
        assert _reaches(pool, sliced, own) == {"sliced IPv4", "sliced IPv6"}
        # By a policy without slices it reaches all, and by the first one again what it reached before.
        (pool.folder / "policy.yaml").write_text(OPEN)
        everybody = {f"{name} {family}" for name in others for family in ("IPv4", "IPv6")}
        eventually(lambda: _reaches(pool, asking, others) == everybody)
        (pool.folder / "policy.yaml").write_text(SOME)
        eventually(lambda: _reaches(pool, asking, others) == both)
