"""MPI jobs of each kind in a whole pool: over two workers and within one job, with both MPIs, in Python and in C.

The programs and the script that starts them are those of docs/how-to/mpi.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lab import controller, submit
from lab.boot import Lab
from lab.submit import Jobs
from tests.lab import trials
from tests.lab.remains import remove, startd_is_back, wait_enforced, wait_until
from tests.mpi.test_page import example

pytestmark = pytest.mark.kernel_datapath

WORKERS: Final = ("worker1", "worker2")
DEDICATED = """\
DedicatedScheduler = "DedicatedScheduler@central.lab.test"
STARTD_ATTRS = $(STARTD_ATTRS), DedicatedScheduler
RANK = Scheduler =?= $(DedicatedScheduler)
"""
TOPOLOGY = "topology: {hosts: {default: {switch: lan, capacity: 100}}}\n"
# All machines of the lab have one /dev, so that this stands for a file system that workers share.
SHARED = "/dev/shared"
# In the run's directory, which every machine sees.
BUILT = "/lark/run/mpi"
PYTHON = {"environment": '"PYTHONPATH=/lark/run/source"'}
ASKED = 40


@pytest.fixture(scope="module", autouse=True)
def prepared(lab: Lab) -> Iterator[None]:
    """A dedicated scheduler of both workers, a directory that they share, links, and the examples compiled."""
    lab.run(["install", "-d", "-m", "1777", SHARED])
    ring = Path(lab.directory, "ring.c")
    ring.write_text(example("c"))
    for mpi in ("openmpi", "mpich"):
        own = f"{BUILT}/{mpi}"
        lab.run(
            ["sh", "-ec", f"cp -r /lark/run/source/lark_mpi/c /tmp/{mpi}; cd /tmp/{mpi}; "
             f"make install MPICC=mpicc.{mpi} PREFIX={own}; mpicc.{mpi} -o {own}/ring /lark/run/ring.c "
             f"-I{own}/include -L{own}/lib -llark_mpi -Wl,-rpath,{own}/lib; chmod -R a+rX {BUILT}"],
            timeout=120,
        )  # fmt: skip
    base = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    with (
        trials.configured(lab, WORKERS[0], DEDICATED, "DedicatedScheduler"),
        trials.configured(lab, WORKERS[1], DEDICATED, "DedicatedScheduler"),
        trials.policy(lab, base + TOPOLOGY),
    ):
        yield
    # The dedicated scheduler keeps what it has claimed for ten minutes, but not of workers that went away.
    for worker in WORKERS:
        lab.pool("off", worker)
        lab.pool("on", worker)
        startd_is_back(lab, worker)
    lab.run(["rm", "-rf", SHARED])


def program(language: str, mpi: str) -> str:
    """The command of the page's ring."""
    return "/usr/bin/python3 ring.py" if language == "python" else f"{BUILT}/{mpi}/ring"


def submitted(lab: Lab, script: str, lines: dict[str, str]) -> Jobs:
    """Submit a script as alice, with the page's Python program beside it."""
    lab.write("central", "/home/alice/ring.py", example("python"), user="alice")
    return submit.submit_program(lab, "alice", script, {"transfer_input_files": "/home/alice/ring.py", **lines})


def parallel(lab: Lab, script: str, arguments: str, **lines: str) -> Jobs:
    """Submit a job of two nodes, each of which needs more than half of a worker."""
    nodes = {"universe": "parallel", "machine_count": "2", "request_cpus": "25", "arguments": arguments}
    return submitted(lab, script, {**nodes, "output": "out.$(NODE)", "error": "err.$(NODE)", **lines})


def ended(lab: Lab, jobs: Jobs) -> str:
    """The output of a job's first node, or of its only one, once it has ended well."""
    submit.wait(lab, jobs, 300)
    errors = lab.on("central", "sh", "-c", f"tail -n 30 {jobs.directory}/out.* {jobs.directory}/err.*").stdout
    assert submit.attribute(lab, jobs, "ExitCode") == "0", errors
    return submit.output(lab, jobs)


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("openmpi", "c"), ("mpich", "c")])
def test_many_ranks_in_one_job_need_no_reservation(lab: Lab, mpi: str, language: str) -> None:
    options = "--oversubscribe --bind-to none " if mpi == "openmpi" else ""
    script = f"#!/bin/sh\nexec mpiexec.{mpi} {options}-n 4 {program(language, mpi)}\n"
    printed = ended(lab, submitted(lab, script, {"request_cpus": "4", **PYTHON}))
    # No rank has a path to another job, and none was refused.
    assert printed == ""


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("openmpi", "c"), ("mpich", "c")])
def test_ranks_on_two_workers_reserve_a_ring(lab: Lab, mpi: str, language: str) -> None:
    arguments = f"{SHARED}/ring.$(ClusterId) {mpi} {program(language, mpi)}"
    printed = ended(lab, parallel(lab, example("sh"), arguments, **PYTHON))
    found = re.findall(r"rank (\d): 1000\d\d\d bytes a second to (\w+)\.lab\.test, and \d+(?:\.\d+)? are free", printed)
    assert sorted(rank for rank, _ in found) == ["0", "1"], printed
    assert {worker for _, worker in found} == set(WORKERS)
    wait_until(lambda: not controller.api(lab, "/v1/reservations")["reservations"], 30, "nothing is reserved any more")


def test_a_pattern_of_the_submit_file_is_reserved_before_the_program_starts(lab: Lab) -> None:
    until = f"{SHARED}/pattern.seen"
    wait = f"#!/bin/sh\nuntil [ -e {until} ]; do sleep 0.2; done\n"
    jobs = parallel(lab, wait, "", **{"+RequestMpiBandwidth": f'"ring {ASKED}"'})
    live = wait_enforced(lab, jobs, 2, 200)
    held = controller.api(lab, "/v1/reservations")["reservations"]
    assert {(each["job"], each["peer"]) for each in held} == {
        (one["id"], other["id"]) for one in live for other in live if one is not other
    }
    assert {each["rate"] for each in held} == {float(ASKED)}
    assert {str(job["host"]).split(".")[0] for job in live} == set(WORKERS)
    pairs = f"/v1/jobs/{live[0]['id']}/pairs?application=true"
    names = ["node 0 to node 1", "node 1 to node 0"]

    def counted() -> bool:
        found = controller.api(lab, pairs)["pairs"]
        return [each["name"] for each in found] == names and all(each["seconds"] for each in found)

    wait_until(counted, 60, "the queue of each flow is counted")
    lab.run(["touch", until])
    submit.wait(lab, jobs, 120)
    # All nodes have one ad, in which the pairs of all are.
    wait_until(
        lambda: not any(each["so_far"] for each in controller.api(lab, pairs)["pairs"]), 30, "the ends are known"
    )
    assert all(each["asked"] == ASKED for each in controller.api(lab, pairs)["pairs"])
    words = submit.attribute(lab, jobs, "LarkMpiAdvice")
    assert words.startswith("2 pairs; node 0 to node 1: asked for 40 Mb/s"), words


def test_a_pattern_without_room_leaves_the_job_in_the_queue_with_the_reason(lab: Lab) -> None:
    jobs = parallel(lab, "#!/bin/sh\nexit 0\n", "", **{"+RequestMpiBandwidth": '"ring 140"'})
    try:
        wait_until(lambda: "Lark refused" in submit.attribute(lab, jobs, "VacateReason"), 240, "a node is refused")
        reason = submit.attribute(lab, jobs, "VacateReason")
        assert "has 100 of 100 Mb/s left, and 140 are asked" in reason, reason
        wait_until(lambda: submit.attribute(lab, jobs, "JobStatus") == "1", 60, "the job is idle again")
        assert not controller.api(lab, "/v1/reservations")["reservations"]
    finally:
        remove(lab, jobs)
