"""However a job ends, nothing of it is left on its worker, the switches and the controller; its neighbour goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from lab import submit
from lab.boot import Lab
from lab.submit import Jobs
from tests.lab.remains import Neighbour, live, network, remove, wait_enforced, wait_for, wait_process, wait_until

HERE = {"requirements": 'Machine == "worker1.lab.test"'}
FOR_LONG = "exec sleep 3600"


@pytest.fixture(scope="module")
def neighbour(lab: Lab) -> Iterator[Neighbour]:
    neighbour = Neighbour(lab, "worker1")
    yield neighbour
    remove(lab, neighbour.jobs)


def exits(lab: Lab, jobs: Jobs) -> None:
    """It ends by itself, when it is told."""
    lab.on("worker1", "pkill", "-TERM", "-x", "-u", jobs.user, "sleep")
    submit.wait(lab, jobs)


def dies(lab: Lab, jobs: Jobs) -> None:
    lab.on("worker1", "pkill", "-KILL", "-x", "-u", jobs.user, "sleep")
    submit.wait(lab, jobs)


def is_held(lab: Lab, jobs: Jobs) -> None:
    lab.on("central", "condor_hold", str(jobs.cluster), user=jobs.user)
    wait_until(lambda: submit.attribute(lab, jobs, "JobStatus") == "5", 30, "the job is held")


def is_removed(lab: Lab, jobs: Jobs) -> None:
    lab.on("central", "condor_rm", str(jobs.cluster), user=jobs.user)


def is_evicted(lab: Lab, jobs: Jobs) -> None:
    another_run(lab, jobs, "central", "condor_vacate_job", str(jobs.cluster))


def is_evicted_fast(lab: Lab, jobs: Jobs) -> None:
    another_run(lab, jobs, "central", "condor_vacate_job", "-fast", str(jobs.cluster))


def loses_its_starter(lab: Lab, jobs: Jobs) -> None:
    chosen = f'regexp("#{jobs.cluster}[.]0#", GlobalJobId)'
    pid = lab.on("central", "condor_status", "-constraint", chosen, "-af", "StarterPid").stdout.strip()
    another_run(lab, jobs, "worker1", "kill", "-9", pid)


def another_run(lab: Lab, jobs: Jobs, *command: str) -> None:
    """Do what ends a run and lets the job start again; the run before is over when this returns."""
    before = {job["id"] for job in live(lab, jobs)}
    lab.on(*command)

    def later() -> bool:
        now = [job for job in live(lab, jobs) if job["state"] == "enforced"]
        return bool(now) and not before & {job["id"] for job in live(lab, jobs)}

    wait_until(later, 90, "the job runs again")


@pytest.mark.parametrize(
    "ends",
    [exits, dies, is_held, is_removed, is_evicted, is_evicted_fast, loses_its_starter],
    ids=lambda ends: ends.__name__,
)
def test_nothing_is_left_behind(lab: Lab, neighbour: Neighbour, ends: Callable[[Lab, Jobs], None]) -> None:
    before = network(lab)
    neighbour.lost()
    jobs = submit.submit(lab, "bob", FOR_LONG, HERE)
    wait_enforced(lab, jobs)
    wait_process(lab, "worker1", jobs.user)
    ends(lab, jobs)
    remove(lab, jobs)
    wait_for(lab, before)
    assert neighbour.lost() <= 1
