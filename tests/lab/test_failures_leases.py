"""Leases run out: of jobs on a worker that does not come back, and of jobs that live, while nobody can be asked."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import controller, submit
from lab.boot import Lab
from tests.lab.remains import (
    Neighbour,
    by_the_directory,
    by_the_pool,
    live,
    network,
    remove,
    services_are_back,
    startd_is_back,
    wait_enforced,
    wait_for,
    wait_ready,
    wait_until,
)

WORKER = "worker1"
HERE = {"requirements": 'Machine == "worker1.lab.test"'}


@pytest.fixture(scope="module")
def short_leases(lab: Lab) -> Iterator[None]:
    """The controller with leases of half a minute, as long as the module lasts."""
    file = "/etc/lark/lark.env"
    change = f"unit stop lark-controller; {{}} {file}; unit start lark-controller"
    lab.on("controller", "sh", "-c", change.format("echo LARK_LEASE_SECONDS=30 >>"))
    wait_ready(lab)
    yield
    lab.on("controller", "sh", "-c", change.format("sed -i /LEASE_SECONDS/d"))
    wait_ready(lab)


@pytest.fixture
def elsewhere(lab: Lab) -> Iterator[Neighbour]:
    """On the other worker."""
    neighbour = Neighbour(lab, "worker2")
    yield neighbour
    remove(lab, neighbour.jobs)


def test_the_lease_ends_the_jobs_of_a_worker_that_does_not_come_back(
    lab: Lab, short_leases: None, elsewhere: Neighbour
) -> None:
    before = network(lab)
    jobs = submit.submit(lab, "bob", "exec sleep 3600", HERE)
    wait_enforced(lab, jobs)
    elsewhere.lost()
    lab.pool("off", WORKER)
    try:
        remove(lab, jobs, force=True)
        wait_until(lambda: not live(lab, jobs), 180, "the lease has ended the job")
        off = (WORKER,)
        left = {line for line in network(lab, off=off) if not line.startswith(f"{WORKER} ")}
        assert left == {line for line in before if not line.startswith(f"{WORKER} ")}
        why = controller.api(lab, "/v1/audit?limit=20")["entries"]
        assert "expire" in {line["action"] for line in why}
        assert elsewhere.lost() <= 1
    finally:
        lab.pool("on", WORKER)
    wait_for(lab, before, 120)
    startd_is_back(lab, WORKER)


def test_the_collector_is_away_and_leases_run_out(lab: Lab, short_leases: None, neighbour: Neighbour) -> None:
    with_neighbour = network(lab)
    neighbour.lost()
    lab.on(
        "central", "sh", "-c", "condor_off -fast -daemon collector; while pgrep -x condor_collecto; do sleep 0.2; done"
    )
    lab.on(WORKER, "unit", "stop", "lark-worker")
    try:
        kept = "grep -q 'job kept beyond its lease.*cannot be asked' /var/log/lark-controller.log"
        wait_until(lambda: lab.on("controller", "sh", "-c", kept, check=False).status == 0, 120, "a lease is over")
        assert live(lab, neighbour.jobs)
        assert neighbour.lost() <= 1
    finally:
        lab.on("central", "condor_on", "-daemon", "collector", check=False)
        services_are_back(lab, WORKER)
    wait_until(lambda: by_the_directory(lab) == by_the_pool(lab), 90, "directory and pool agree")
    assert neighbour.lost() <= 1
    wait_for(lab, with_neighbour)
