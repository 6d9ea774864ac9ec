"""Which hosts' rules change when a job comes, changes or goes that no switch but its worker enforces."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest

from lark_common.runs import AddressType, NetworkType
from lark_controller.flows.desired import Desired
from lark_controller.jobs.job import Job, JobState, ReservedFlow
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from tests.flows.test_desired import FULL, a_job, facts_of

HOST = "worker1"


def a_bridge_job(number: int, **changes: Any) -> Job:
    return a_job(number, **{"datapath": None, "network_type": NetworkType.BRIDGE, **changes})


class Site:
    """Jobs, and the hosts whose rules changed with each."""

    def __init__(self) -> None:
        self.desired, self._decider = Desired(load(FULL)), Decider(load(FULL))

    def put(self, job: Job) -> dict[str, set[int]]:
        self.desired.put(job, self._decider.decide(job.facts))
        return self.desired.ruled.take()

    def remove(self, number: int) -> dict[str, set[int]]:
        self.desired.remove(number)
        return self.desired.ruled.take()


def test_a_job_that_comes_and_goes_changes_its_host() -> None:
    site = Site()
    assert site.put(a_bridge_job(1)) == {HOST: {1}}
    assert site.desired.ruled.hosts() == [HOST]
    assert site.desired.ruled.numbers(HOST) == {1}
    assert site.remove(1) == {HOST: set()}
    assert site.desired.ruled.hosts() == []
    assert site.remove(1) == {}
    assert site.put(a_job(2)) == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"network_type": NetworkType.NAT},
        {"address_type": AddressType.DHCP},
        {"ipv4": IPv4Address("10.64.0.9")},
        {"mac": "02:00:00:00:00:99"},
        {"vlan": 7},
        {"bandwidth": 10.0},
        {"reserved": (ReservedFlow(1, 1000),)},
        {"facts": facts_of("mallory", "cms", True, True)},
        {"facts": facts_of("alice", "atlas", True, True)},
    ],
    ids=str,
)
def test_what_a_worker_enforces_changes_its_rules(changes: dict[str, Any]) -> None:
    site = Site()
    site.put(a_bridge_job(1))
    assert site.put(replace(a_bridge_job(1), **changes)) == {HOST: {1}}
    assert site.put(replace(a_bridge_job(1), **changes)) == {}
    assert site.desired.ruled.numbers(HOST) == {1}


def test_what_no_worker_enforces_changes_none() -> None:
    site = Site()
    job = a_bridge_job(1)
    site.put(job)
    for changes in ({"state": JobState.ENFORCED}, {"reason": "as well"}, {"lease_until": 99.0}, {"vouched": True}):
        assert site.put(replace(job, **changes)) == {}


def test_a_job_at_another_host_changes_both() -> None:
    site = Site()
    site.put(a_bridge_job(1))
    site.put(a_bridge_job(2))
    assert site.put(a_bridge_job(1, host="worker2")) == {HOST: set(), "worker2": {1}}
    assert site.desired.ruled.numbers(HOST) == {2}
    assert site.desired.ruled.numbers("worker2") == {1}
    assert site.put(a_job(2)) == {HOST: set()}
    assert site.desired.ruled.hosts() == ["worker2"]


def test_a_slice_that_grows_elsewhere_changes_the_hosts_of_its_jobs() -> None:
    site = Site()
    site.put(a_bridge_job(1))
    site.put(a_bridge_job(2, host="worker2", owner="bob"))
    block = IPv4Network("10.64.0.8/29")
    assert site.put(a_job(8, datapath=3, ipv4_block=block)) == {HOST: set()}
    assert site.put(a_job(9, datapath=3, ipv4_block=block)) == {}
    assert site.put(a_job(16, datapath=3, owner="bob")) == {"worker2": set()}
    assert site.remove(16) == {"worker2": set()}
    site.remove(1)
    assert site.remove(8) == {}
    assert site.remove(9) == {}
