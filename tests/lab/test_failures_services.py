"""Controller and worker service are away, each for a while: who runs goes on, and all agree in the end."""

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
    wait_enforced,
    wait_for,
    wait_process,
    wait_until,
)

WORKER = "worker1"
HERE = {"requirements": 'Machine == "worker1.lab.test"'}
FOR_LONG = "exec sleep 3600"
ENV = "/etc/lark/worker.env"


@pytest.fixture
def starts_anyway(lab: Lab) -> Iterator[None]:
    """The site's choice that jobs start although the controller is away."""
    change = f"unit stop lark-worker; {{}} {ENV}; unit start lark-worker; until lark-worker jobs; do sleep 0.2; done"
    lab.on(WORKER, "sh", "-c", change.format("echo LARK_WORKER_ON_FAILURE=start >>"))
    yield
    lab.on(WORKER, "sh", "-c", change.format("sed -i /ON_FAILURE/d"))


def off(lab: Lab, machine: str, unit: str) -> None:
    lab.on(machine, "unit", "stop", unit)


def status(lab: Lab, jobs: submit.Jobs) -> str:
    return submit.attribute(lab, jobs, "JobStatus")


def audit(lab: Lab) -> list[dict[str, str]]:
    return list(controller.api(lab, "/v1/audit?limit=200")["entries"])


def test_jobs_start_and_end_while_the_controller_is_away(lab: Lab, starts_anyway: None, neighbour: Neighbour) -> None:
    with_neighbour = network(lab)
    ends = submit.submit(lab, "bob", FOR_LONG, HERE)
    wait_enforced(lab, ends)
    wait_process(lab, WORKER, "bob")
    last = audit(lab)[0]["number"]
    neighbour.lost()
    off(lab, "controller", "lark-controller")
    try:
        # One ends, one starts and ends, one starts and stays.
        remove(lab, ends)
        short = submit.submit(lab, "alice", "hostname", HERE)
        submit.wait(lab, short, timeout=120)
        assert submit.output(lab, short) == "worker1.lab.test\n"
        stays = submit.submit(lab, "bob", FOR_LONG, HERE)
        wait_process(lab, WORKER, "bob")
    finally:
        services_are_back(lab, WORKER)
    wait_enforced(lab, stays)
    wait_until(lambda: by_the_directory(lab) == by_the_pool(lab), 60, "directory and pool agree")
    # Each job's posts came in the order in which it lived.
    seen: dict[str, list[str]] = {}
    for line in reversed([line for line in audit(lab) if line["number"] > last]):
        seen.setdefault(line["subject"], []).append(line["action"])
    lives = [actions for actions in seen.values() if "register" in actions]
    assert [actions[0] for actions in lives] == ["register", "register"]
    assert ["end" in actions for actions in lives] == [True, False]
    assert all(actions.index("register") < actions.index("end") for actions in lives if "end" in actions)
    assert neighbour.lost() <= 1
    remove(lab, stays)
    wait_for(lab, with_neighbour)


def test_jobs_wait_for_the_controller_where_the_site_chose_so(lab: Lab, neighbour: Neighbour) -> None:
    with_neighbour = network(lab)
    neighbour.lost()
    off(lab, "controller", "lark-controller")
    try:
        jobs = submit.submit(lab, "bob", FOR_LONG, HERE)
        log = f"{jobs.directory}/log"
        wait_until(
            lambda: "controller" in lab.on("central", "cat", log).stdout, 90, "the job's log names the controller"
        )
        assert status(lab, jobs) in ("1", "2")
    finally:
        services_are_back(lab, WORKER)
    wait_enforced(lab, jobs)
    assert neighbour.lost() <= 1
    remove(lab, jobs)
    wait_for(lab, with_neighbour)


def test_the_worker_service_is_away(lab: Lab, neighbour: Neighbour) -> None:
    with_neighbour = network(lab)
    ends = submit.submit(lab, "bob", FOR_LONG, HERE)
    wait_enforced(lab, ends)
    wait_process(lab, WORKER, "bob")
    neighbour.lost()
    off(lab, WORKER, "lark-worker")
    try:
        remove(lab, ends)
        jobs = submit.submit(lab, "alice", FOR_LONG, HERE)
        log = f"{jobs.directory}/log"
        wait_until(lambda: "worker.sock" in lab.on("central", "cat", log).stdout, 90, "the job's log says what is away")
        assert status(lab, jobs) in ("1", "2")
        assert neighbour.lost() <= 1
    finally:
        services_are_back(lab, WORKER)
    wait_enforced(lab, jobs)
    wait_until(lambda: not live(lab, ends), 60, "what ended meanwhile is over")
    assert neighbour.lost() <= 1
    remove(lab, jobs)
    wait_for(lab, with_neighbour)


def test_the_worker_service_is_killed(lab: Lab, neighbour: Neighbour) -> None:
    with_neighbour = network(lab)
    jobs = submit.submit(lab, "bob", FOR_LONG, HERE, number=4)
    # In the middle of their starts, and again while they run.
    wait_until(lambda: live(lab, jobs), 60, "the first starts")
    neighbour.lost()
    lab.on(WORKER, "unit", "kill", "lark-worker")
    services_are_back(lab, WORKER)
    # A start that was left half done goes back to the queue, and is tried again.
    wait_process(lab, WORKER, "bob", seconds=150, number=4)
    wait_enforced(lab, jobs, 4)
    lab.on(WORKER, "unit", "kill", "lark-worker")
    services_are_back(lab, WORKER)
    assert neighbour.lost() <= 1
    assert len(live(lab, jobs)) == 4
    remove(lab, jobs)
    wait_for(lab, with_neighbour)
