"""A worker loses its startd, its Open vSwitch or its power: nothing of its jobs is left in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import submit
from lab.boot import Lab
from tests.lab.remains import (
    Neighbour,
    live,
    network,
    remove,
    startd_is_back,
    wait_enforced,
    wait_for,
    wait_process,
    wait_until,
)

# What the kernel's datapath keeps while Open vSwitch is away is part of it.
pytestmark = pytest.mark.kernel_datapath

HERE = {"requirements": 'Machine == "worker1.lab.test"'}
FOR_LONG = "exec sleep 3600"


@pytest.fixture
def elsewhere(lab: Lab) -> Iterator[Neighbour]:
    """On the other worker."""
    neighbour = Neighbour(lab, "worker2")
    yield neighbour
    remove(lab, neighbour.jobs)


def test_a_killed_startd_leaves_nothing_behind(lab: Lab, elsewhere: Neighbour) -> None:
    before = network(lab)
    elsewhere.lost()
    jobs = submit.submit(lab, "bob", FOR_LONG, HERE)
    first = {job["id"] for job in wait_enforced(lab, jobs)}
    wait_process(lab, "worker1", "bob")
    lab.on("worker1", "pkill", "-KILL", "-x", "condor_startd")
    wait_until(lambda: not first & {job["id"] for job in live(lab, jobs)}, 120, "the run is over")
    remove(lab, jobs)
    wait_for(lab, before, 120)
    startd_is_back(lab, "worker1")
    assert elsewhere.lost() <= 1


def test_open_vswitch_starts_again_under_running_jobs(lab: Lab, elsewhere: Neighbour) -> None:
    before = network(lab)
    neighbour = Neighbour(lab, "worker1")
    with_neighbour = network(lab)
    jobs = submit.submit(lab, "bob", FOR_LONG, HERE)
    wait_enforced(lab, jobs)
    wait_process(lab, "worker1", "bob")
    neighbour.lost()
    elsewhere.lost()
    lab.on("worker1", "/usr/share/openvswitch/scripts/ovs-ctl", "restart", "--system-id=worker1", "--no-mlockall")
    remove(lab, jobs)
    wait_for(lab, with_neighbour)
    # Ten a second: what was lost, was lost while there was no switch.
    lost = neighbour.lost()
    assert lost < 100
    assert neighbour.lost() <= 1
    assert elsewhere.lost() <= 1
    remove(lab, neighbour.jobs)
    wait_for(lab, before)


def test_a_worker_that_loses_power_leaves_nothing_once_it_is_back(lab: Lab, elsewhere: Neighbour) -> None:
    before = network(lab)
    jobs = submit.submit(lab, "bob", FOR_LONG, HERE, number=2)
    first = {job["id"] for job in wait_enforced(lab, jobs, 2)}
    elsewhere.lost()
    lab.pool("off", "worker1")
    # Nobody may take the directory's word away while the worker may come back: the lease holds.
    assert first <= {job["id"] for job in live(lab, jobs)}
    lab.pool("on", "worker1")
    wait_until(lambda: not first & {job["id"] for job in live(lab, jobs)}, 90, "the runs are over")
    remove(lab, jobs)
    wait_for(lab, before, 120)
    startd_is_back(lab, "worker1")
    assert elsewhere.lost() <= 1
