"""Jobs in the lab's pool that run as long as the network is looked at from inside them.

::

    with running(lab, [Wish("alice"), Wish("bob", worker="worker2")]) as (alice, bob):
        assert alice.reach([("tcp", bob.ipv4)]) == [""]
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab import controller, submit
from lab.boot import Lab, Result
from lab.inside import job_agent
from lab.run import LabError

START_TIMEOUT = 150
Target = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Wish:
    """A job to run: whose, with which further lines of the submit file, and (if not empty) on which worker."""

    user: str
    lines: Mapping[str, str] = field(default_factory=dict)
    worker: str = ""


@dataclass(frozen=True, slots=True)
class Running:
    """A job that runs, and the controller's record of it (``record``; empty where it has no network of its own)."""

    lab: Lab
    jobs: submit.Jobs
    worker: str
    record: Mapping[str, Any]

    @property
    def user(self) -> str:
        """The job's user."""
        return self.jobs.user

    @property
    def id(self) -> str:
        """The controller's id of it."""
        return str(self.record["id"])

    @property
    def ipv4(self) -> str:
        """Its IPv4 address."""
        return self._address(":", False)

    @property
    def ipv6(self) -> str:
        """Its IPv6 address."""
        return self._address(":", True)

    def _address(self, mark: str, wanted: bool) -> str:
        addresses = [each["address"] for each in self.record["addresses"]]
        return next((address for address in addresses if (mark in address) is wanted), "")

    def reach(self, targets: Sequence[Target], seconds: float = 2.0) -> list[str]:
        """The answers to the job from each (protocol, address); see ``lab.inside.job_agent``. "" is nothing."""
        answer = self._ask({"reach": [list(target) for target in targets], "seconds": seconds}, seconds * 4 + 30)
        return list(answer["reached"])

    def run(self, command: str, seconds: float = 20.0) -> Result:
        """Run a shell command inside the job."""
        answer = self._ask({"run": command, "seconds": seconds}, seconds + 20)
        return Result(answer["status"], answer["stdout"], answer["stderr"])

    def end(self, status: int = 0) -> None:
        """Let the job exit, and wait until it has left the queue. Raises LabError."""
        self._ask({"end": status}, 20)
        submit.wait(self.lab, self.jobs)

    def _ask(self, document: Mapping[str, object], timeout: float) -> dict[str, Any]:
        socket = f"/home/{self.user}/agents/{self.jobs.cluster}.0"
        command = ["curl", "-sS", "--unix-socket", socket, "--data-binary", "@-", "http://job/"]
        given = json.dumps(document)
        answer: dict[str, Any] = json.loads(self.lab.on(self.worker, *command, stdin=given, timeout=timeout).stdout)
        return answer


def start(lab: Lab, wishes: Sequence[Wish], timeout: float = START_TIMEOUT) -> list[Running]:
    """Submit jobs and wait until all of them run, in the order of ``wishes``.

    Raises LabError, with the queue's output, after ``timeout`` seconds.
    """
    return _start(lab, wishes, timeout, [])


def _start(lab: Lab, wishes: Sequence[Wish], timeout: float, clusters: list[submit.Jobs]) -> list[Running]:
    """``clusters`` holds what has been submitted, also where starting them fails."""
    program = Path(job_agent.__file__).read_text()
    with ThreadPoolExecutor(8) as threads:
        clusters += threads.map(lambda wish: _submit(lab, wish, program), wishes)
    sockets = {f"/home/{jobs.user}/agents/{jobs.cluster}.0" for jobs in clusters}
    deadline = time.monotonic() + timeout
    while not sockets <= (found := _agents(lab)).keys():
        if time.monotonic() > deadline:
            queue = lab.on("central", "condor_q", "-all", "-nobatch", "-better-analyze").stdout
            raise LabError(f"jobs do not run within {timeout:g} s: {sorted(sockets - found.keys())}\n{queue}")
        time.sleep(0.2)
    known = {_cluster(job): job for job in controller.jobs(lab)}
    return [
        Running(lab, jobs, found[f"/home/{jobs.user}/agents/{jobs.cluster}.0"], known.get(str(jobs.cluster), {}))
        for jobs in clusters
    ]


def reach_from(lab: Lab, machine: str, targets: Sequence[Target], seconds: float = 2.0) -> list[str]:
    """The same as :meth:`Running.reach`, from a machine of the lab."""
    words = [f"{protocol}/{address}" for protocol, address in targets]
    command = ["env", "PYTHONPATH=/lark/run/code", "python3", "-m", "lab.inside.job_agent", "reach", str(seconds)]
    answers: list[str] = json.loads(lab.on(machine, *command, *words, timeout=seconds * 4 + 30).stdout)
    return answers


@contextmanager
def running(lab: Lab, wishes: Sequence[Wish]) -> Iterator[list[Running]]:
    """Jobs that run for the time of a ``with``; they are removed after it. Raises as :func:`start`."""
    clusters: list[submit.Jobs] = []
    try:
        yield _start(lab, wishes, START_TIMEOUT, clusters)
    finally:
        remove(lab, clusters)


def remove(lab: Lab, clusters: Sequence[submit.Jobs]) -> None:
    """Remove jobs from the queue, and wait until neither queue nor controller has them. Raises LabError."""
    if not clusters:
        return
    names = {str(jobs.cluster) for jobs in clusters}
    lab.on("central", "condor_rm", *names, check=False)
    deadline = time.monotonic() + START_TIMEOUT
    while left := names & (_queued(lab) | {_cluster(job) for job in controller.jobs(lab)}):
        if time.monotonic() > deadline:
            raise LabError(f"jobs that were removed are still there: {', '.join(sorted(left))}")
        time.sleep(0.3)


def _queued(lab: Lab) -> set[str]:
    return set(lab.on("central", "condor_q", "-all", "-af", "ClusterId").stdout.split())


def _cluster(job: Mapping[str, Any]) -> str:
    return str(job["global_job_id"]).split("#")[1].split(".")[0]


def _submit(lab: Lab, wish: Wish, program: str) -> submit.Jobs:
    lines = dict(wish.lines)
    if wish.worker:
        wanted = f'Machine == "{wish.worker}.lab.test"'
        lines["requirements"] = f"({lines['requirements']}) && {wanted}" if "requirements" in lines else wanted
    return submit.submit_program(lab, wish.user, program, lines)


def _agents(lab: Lab) -> dict[str, str]:
    """The agents that listen: path of the socket, and the worker."""
    listing = 'cd /lark/machines && for s in */upper/home/*/agents/*; do [ -S "$s" ] && echo "$s"; done; true'
    lines = lab.run(["sh", "-c", listing]).stdout.split()
    return {"/" + line.split("/", 2)[2]: line.split("/", 1)[0] for line in lines}
