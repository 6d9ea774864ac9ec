"""Batches of jobs that have a sandbox each moved by HTCondor: submitted in one transaction, with and without Lark by
turns, and the processor time that the pool's programs take for them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median
from typing import Final, NamedTuple

from experiments.pool import TRIAL
from lab import starts, submit
from lab.boot import Lab
from lab.inside.topology import MACHINES
from lab.run import LabError

USER: Final = "alice"
FOLDER: Final = f"/home/{USER}/sandboxes"
ACCESS_POINT: Final = "central"
CONTROLLER: Final = "controller"
WORKERS: Final = tuple(machine.name for machine in MACHINES if "execute" in machine.roles)
# A worker's processors by the lab's configuration of HTCondor (lab/inside/condor.py).
PROCESSORS: Final = 40
# HTCondor's transfer queue as it is by its limit alone. Sandboxes wait in it from a byte on, and not from 100 MiB.
# Without the first of the others it begins with one transfer at a time, and allows one more a minute, as long as few of
# them are at the disk; empty is none, and with 0 nothing is moved at all. Without the second a user who has a fifth of
# the limit on the way or waiting gets no further slots (since 25.11).
QUEUE_ALONE: Final = (
    "BYTES_REQUIRED_TO_QUEUE_FOR_TRANSFER = 1",
    "FILE_TRANSFER_DISK_LOAD_THROTTLE =",
    "MAX_CONCURRENT_UPLOADS_PER_USER = 0",
)
# Events of a job's log (HTCondor's manual, "Job Event Log Codes").
_SUBMITTED, _ENDED, _MOVING = "000", "005", "040"
_EVENT: Final = re.compile(
    r"^(\d{3}) \(\d+\.(\d+)\.\d+\) (\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(?:\.\d+)?) (.*)$", re.MULTILINE
)
_GOOD_END: Final = "Normal termination (return value 0)"
# Lists the processes of a machine: id, parent, ticks of its own and of the children that it has waited for, command.
_PROCESSES: Final = """\
import json, os
found = []
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        after = open(f"/proc/{name}/stat").read().rpartition(")")[2].split()
        command = open(f"/proc/{name}/cmdline", "rb").read().replace(bytes(1), b" ").decode(errors="replace")
    except OSError:
        continue
    found.append([int(name), int(after[1]), sum(map(int, after[11:15])), command])
print(json.dumps([os.sysconf("SC_CLK_TCK"), found]))
"""


class Part(NamedTuple):
    """A part of the pool: its machines, and the command that its programs are under."""

    machines: tuple[str, ...]
    command: str


PARTS: Final[Mapping[str, Part]] = {
    "HTCondor, workers": Part(WORKERS, "condor_master"),
    "HTCondor, access point": Part((ACCESS_POINT,), "condor_master"),
    "worker service": Part(WORKERS, "/lark-worker run"),
    "controller": Part((CONTROLLER,), "/lark run"),
    "its database": Part((CONTROLLER,), "/postgres "),
    "Open vSwitch, workers": Part(WORKERS, "ovs-vswitchd"),
}


@dataclass(frozen=True, slots=True)
class Batch:
    """So many ``jobs`` with a sandbox of ``size`` bytes each, through so many ``slots`` of the pool together."""

    jobs: int
    size: int
    slots: int

    @property
    def processors(self) -> int:
        """The processors that each job asks for, so that there are no more slots."""
        return PROCESSORS * len(WORKERS) // self.slots


@dataclass(frozen=True, slots=True)
class Ran:
    """The run of a batch: ``seconds`` from its submission to the last job's end, the median seconds for which an input
    was on its way (``moving``), the ``most`` inputs on their way at once, how often a job was started ``again``, and
    the processor time in seconds of each of :data:`PARTS`."""

    seconds: float
    moving: float
    most: int
    again: int
    spent: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Process:
    """A process of a machine, with the processor time of its own and of the children that it has waited for."""

    pid: int
    parent: int
    ticks: int
    command: str


def prepare(lab: Lab, batch: Batch) -> None:
    """Make the sandboxes at the access point: one file of random bytes under as many names as there are jobs, so that
    they are different files for the user and one area of memory for the disk."""
    script = (
        f"rm -rf {FOLDER}; mkdir -p {FOLDER} && cd {FOLDER} && head -c {batch.size} /dev/urandom >data\n"
        f"seq 0 {batch.jobs - 1} | while read -r number; do ln data in.$number; done"
    )
    lab.on(ACCESS_POINT, "sh", "-ec", script, user=USER)


@contextmanager
def queue(lab: Lab, most: int | None) -> Iterator[None]:
    """Let HTCondor's transfer queue at the access point have ``most`` transfers at a time in each direction (None: no
    limit), and the job logs fractions of a second."""
    limit = most or 0
    lines = (
        "DEFAULT_USERLOG_FORMAT_OPTIONS = ISO_DATE, SUB_SECOND",
        f"MAX_CONCURRENT_UPLOADS = {limit}",
        f"MAX_CONCURRENT_DOWNLOADS = {limit}",
        *QUEUE_ALONE,
    )
    lab.write(ACCESS_POINT, TRIAL, "\n".join(lines) + "\n")
    lab.on(ACCESS_POINT, "condor_reconfig")
    try:
        yield
    finally:
        lab.on(ACCESS_POINT, "rm", "-f", TRIAL)
        lab.on(ACCESS_POINT, "condor_reconfig")


@contextmanager
def without_lark(lab: Lab) -> Iterator[None]:
    """Let the workers run jobs without hook, wrapper and worker service during the block."""
    for worker in WORKERS:
        lab.write(worker, starts.CONFIG, starts.PLAIN)
        lab.on(worker, "condor_reconfig")
        lab.on(worker, "unit", "stop", "lark-worker")
    try:
        yield
    finally:
        for worker in WORKERS:
            lab.on(worker, "rm", "-f", starts.CONFIG)
            lab.on(worker, "condor_reconfig")
            lab.on(worker, "unit", "start", "lark-worker")
            lab.on(worker, "sh", "-c", "until [ -S /run/lark-worker/worker.sock ]; do sleep 0.1; done")


def run(lab: Lab, batch: Batch, timeout: float, attributes: Mapping[str, str] | None = None) -> tuple[submit.Jobs, Ran]:
    """Submit a batch whose sandboxes are there (:func:`prepare`), and wait until every job has ended as it should.

    Raises LabError where one has not.
    """
    lines = {
        "request_cpus": str(batch.processors),
        "request_disk": str(2 * batch.size // 1024 + 1000),
        "transfer_input_files": f"{FOLDER}/in.$(ProcId)",
        **(attributes or {}),
    }
    before = spent(lab)
    jobs = submit.submit(lab, USER, f"[ $(stat -c %s in.*) = {batch.size} ]", lines, batch.jobs)
    submit.wait(lab, jobs, timeout)
    after = spent(lab)
    log = lab.on(ACCESS_POINT, "cat", f"{jobs.directory}/log").stdout
    took = {name: after[name] - before[name] for name in PARTS}
    return jobs, Ran(*times(log, batch.jobs), took)


def times(log: str, jobs: int) -> tuple[float, float, int, int]:
    """The seconds from a batch's submission to its last end, the median seconds of an input's way, the most on their
    way at once, and how often a job was started again, by the batch's log.

    Raises LabError where it has other than one good end a job, or no input of one.
    """
    spans, events = inputs(log), list(_events(log))
    submitted, ended = ([event.at for event in events if event.code == code] for code in (_SUBMITTED, _ENDED))
    good = log.count(_GOOD_END)
    if (len(submitted), len(ended), good) != (jobs,) * 3 or len(spans) < jobs:
        raise LabError(
            f"of {jobs} jobs {len(submitted)} submitted, {len(spans)} inputs moved, {len(ended)} ended, {good} well"
        )
    moving = median(end - begin for begin, end in spans)
    return max(ended) - min(submitted), moving, at_once(spans), len(spans) - jobs


def inputs(log: str) -> list[tuple[float, float]]:
    """The times of each input's beginning and end, by a batch's log, in the order of their ends."""
    begun: dict[str, float] = {}
    spans: list[tuple[float, float]] = []
    for event in _events(log):
        if event.code == _MOVING and event.text.startswith("Started transferring input"):
            begun[event.process] = event.at
        elif event.code == _MOVING and event.text.startswith("Finished transferring input"):
            spans.append((begun[event.process], event.at))
    return spans


class _Event(NamedTuple):
    """An event of a job's log, with its time in seconds since 1970."""

    code: str
    process: str
    at: float
    text: str


def _events(log: str) -> Iterator[_Event]:
    for code, process, day, clock, text in _EVENT.findall(log):
        form = "%Y-%m-%d %H:%M:%S.%f" if "." in clock else "%Y-%m-%d %H:%M:%S"
        at = datetime.strptime(f"{day} {clock}", form).replace(tzinfo=UTC).timestamp()
        yield _Event(code, process, at, text)


def at_once(spans: Sequence[tuple[float, float]]) -> int:
    """The most of these spans of time that overlap."""
    # Of one moment, ends come first.
    moments = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    most = now = 0
    for _, step in moments:
        now += step
        most = max(most, now)
    return most


def ticks(processes: Sequence[Process], command: str) -> int:
    """The processor time of the processes under a command: its own, and that of all below it."""
    by_id = {each.pid: each for each in processes}

    def is_below(each: Process) -> bool:
        seen: Process | None = each
        while seen is not None:
            if command in seen.command:
                return True
            seen = by_id.get(seen.parent)
        return False

    return sum(each.ticks for each in processes if is_below(each))


def spent(lab: Lab) -> dict[str, float]:
    """The processor time of each part until now, in seconds."""
    machines = dict.fromkeys(machine for part in PARTS.values() for machine in part.machines)
    found: dict[str, tuple[int, list[Process]]] = {}
    for machine in machines:
        second, listed = json.loads(lab.on(machine, "python3", "-c", _PROCESSES).stdout)
        found[machine] = second, [Process(*each) for each in listed]
    return {
        name: sum(ticks(found[machine][1], part.command) / found[machine][0] for machine in part.machines)
        for name, part in PARTS.items()
    }
