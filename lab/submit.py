"""Submits jobs to the lab's pool as its users do, and waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from lab.boot import Lab

DEFAULTS = {
    "universe": "vanilla",
    "request_cpus": "1",
    "request_memory": "64",
    # The default, 1 GB, does not fit the lab's disk, which is memory. KiB.
    "request_disk": "1000",
    "should_transfer_files": "YES",
    "when_to_transfer_output": "ON_EXIT",
    "log": "log",
    "output": "out.$(ProcId)",
    "error": "err.$(ProcId)",
}
_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Jobs:
    """A cluster of ``number`` jobs of ``user``, submitted in ``directory`` on the central machine."""

    cluster: int
    number: int
    user: str
    directory: str


def description(script: str, attributes: Mapping[str, str], number: int) -> str:
    """A submit file that runs the file ``script``; ``attributes`` are its further lines and replace the defaults."""
    lines = {**DEFAULTS, "executable": script, **attributes}
    return "".join(f"{name} = {value}\n" for name, value in lines.items()) + f"queue {number}\n"


def submit(lab: Lab, user: str, script: str, attributes: Mapping[str, str] | None = None, number: int = 1) -> Jobs:
    """Submit ``number`` jobs that run the shell ``script``, as ``user``.

    ``attributes`` are lines of the submit file, such as ``{"+RequestBandwidth": "100"}``. Raises LabError if
    condor_submit refuses.
    """
    return submit_program(lab, user, f"#!/bin/sh\n{script}\n", attributes, number)


def submit_program(
    lab: Lab, user: str, program: str, attributes: Mapping[str, str] | None = None, number: int = 1
) -> Jobs:
    """The same with a whole program, whose first line names its interpreter."""
    directory = f"/home/{user}/jobs/{next(_numbers)}"
    lab.write("central", f"{directory}/script", program, user=user, mode=0o755)
    lab.write("central", f"{directory}/job.sub", description("script", attributes or {}, number), user=user)
    submitting = f"cd {directory} && exec condor_submit -terse job.sub"
    printed = lab.on("central", "sh", "-c", submitting, user=user).stdout
    return Jobs(int(printed.split(".")[0]), number, user, directory)


def wait(lab: Lab, jobs: Jobs, timeout: float = 150) -> None:
    """Wait until every job has left the queue. Raises LabError after ``timeout`` seconds, with the queue's output."""
    waiting = lab.on(
        "central", "condor_wait", "-wait", str(int(timeout)), f"{jobs.directory}/log", timeout=timeout + 20, check=False
    )
    if waiting.status != 0:
        lab.on("central", "sh", "-c", f"condor_q -all {jobs.cluster} -better-analyze; cat {jobs.directory}/log; exit 1")


def output(lab: Lab, jobs: Jobs, process: int = 0) -> str:
    """The standard output of a job that has ended."""
    return lab.on("central", "cat", f"{jobs.directory}/out.{process}").stdout


def attribute(lab: Lab, jobs: Jobs, name: str, process: int = 0) -> str:
    """An attribute of a job's ad, of a job in the queue or of one that has left it; empty if undefined."""
    for program in ("condor_q", "condor_history"):
        command = [program, f"{jobs.cluster}.{process}", "-af", name]
        value = lab.on("central", *command, user=jobs.user).stdout.strip()
        if value:
            return "" if value == "undefined" else value
    return ""
