"""The remains of jobs in the lab's network, machine by machine; a failure leaves more than there was before."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from lab import controller, submit
from lab.boot import Lab
from lab.inside.topology import EDGE_BRIDGE
from lab.run import LabError
from lab.submit import Jobs

WORKERS = ("worker1", "worker2")
WAN = "192.0.2.1"
# Flows without counters, in the order of their text.
_FLOWS = (
    "ovs-ofctl -O OpenFlow13 --no-stats dump-flows {bridge} | grep -v cookie=0x1a4b0c | sed 's/^ *//; s/^/flow /'"
    " | grep -v -e OFPST -e idle_timeout | LC_ALL=C sort"
)
_ON_WORKER = f"""\
ip netns list | sed 's/^/namespace /'
[ ! -d /etc/netns ] || ls /etc/netns | sed 's/^/resolv.conf of /'
ip -o link | sed 's/^[0-9]*: /device /; s/[:@].*//' | grep -v -e ' lo$' -e ovs-system
ovs-vsctl list-ports {EDGE_BRIDGE} | sed 's/^/port /'
ovs-vsctl --bare --columns=external_ids list queue | sed 's/^/queue /'
ovs-vsctl --bare --columns=external_ids list qos | sed 's/^/qos /'
lark-worker jobs | sed 's/^/job of the service /'
ls /var/lib/lark-worker/jobs | sed 's/^/record /'
{_FLOWS.format(bridge=EDGE_BRIDGE)}
"""


def network(lab: Lab, *, off: tuple[str, ...] = ()) -> set[str]:
    """Everything that jobs have on the switches and workers (but for those that are ``off``), and at the controller."""
    found = {f"core {line}" for line in lab.on("core", "sh", "-c", _FLOWS.format(bridge="core")).stdout.splitlines()}
    for worker in WORKERS:
        if worker not in off:
            lines = lab.on(worker, "sh", "-c", _ON_WORKER).stdout.splitlines()
            found |= {f"{worker} {line}" for line in lines}
    for job in controller.jobs(lab):
        found.add(f"directory {job['id']} {[each['address'] for each in job['addresses']]} {job['state']}")
    return found


def wait_until(question: Callable[[], object], seconds: float, what: str) -> None:
    """Ask again until the answer is true; fails with ``what``."""
    deadline = time.monotonic() + seconds
    while not question():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.2)


def wait_for(lab: Lab, wanted: set[str], seconds: float = 60) -> None:
    """Wait until the network is as it was; fails with what is left over and what is missing."""
    deadline = time.monotonic() + seconds
    while (found := network(lab)) != wanted:
        if time.monotonic() > deadline:
            left, missing = sorted(found - wanted), sorted(wanted - found)
            raise AssertionError(f"left over: {left}\nmissing: {missing}")
        time.sleep(0.5)


def wait_ready(lab: Lab, seconds: float = 60) -> None:
    """Wait until the controller answers and every switch is in sync."""

    def ready() -> bool:
        try:
            return all(each["in_sync"] for each in controller.api(lab, "/v1/switches")["switches"])
        except LabError:
            return False

    wait_until(ready, seconds, "the controller is ready")


def startd_is_back(lab: Lab, worker: str) -> None:
    """Wait until the pool has a worker again."""
    asked = 'condor_status -af Machine | grep -q "^$1[.]"'
    wait_until(
        lambda: lab.on("central", "sh", "-c", asked, "lab", worker, check=False).status == 0, 90, f"{worker} is back"
    )


def services_are_back(lab: Lab, worker: str) -> None:
    """Start the controller and a worker's service, whichever was stopped, and wait until they are ready."""
    lab.on("controller", "unit", "start", "lark-controller")
    lab.on(worker, "sh", "-c", "unit start lark-worker; until lark-worker jobs >/dev/null; do sleep 0.2; done")
    wait_ready(lab)


def by_the_pool(lab: Lab) -> set[tuple[str, str]]:
    """The job of each slot, by the startds."""
    shown = lab.on("central", "condor_status", "-json", "-attributes", "Name,GlobalJobId").stdout
    return {(ad["GlobalJobId"], ad["Name"]) for ad in json.loads(shown or "[]") if "GlobalJobId" in ad}


def by_the_directory(lab: Lab) -> set[tuple[str, str]]:
    """The same as the controller has it."""
    return {(job["global_job_id"], job["slot"]) for job in controller.jobs(lab)}


def live(lab: Lab, jobs: Jobs) -> list[dict[str, Any]]:
    """The live jobs of a cluster, as the controller knows them."""
    return [dict(job) for job in controller.jobs(lab) if job["cluster"] == jobs.cluster]


def wait_enforced(lab: Lab, jobs: Jobs, number: int = 1, seconds: float = 90) -> list[dict[str, object]]:
    """Wait until ``number`` jobs of a cluster are enforced."""
    found: list[dict[str, object]] = []

    def enforced() -> bool:
        found[:] = [job for job in live(lab, jobs) if job["state"] == "enforced"]
        return len(found) == number

    wait_until(enforced, seconds, f"{number} jobs of cluster {jobs.cluster} are enforced; {live(lab, jobs)}")
    return found


def wait_process(
    lab: Lab, worker: str, user: str, program: str = "sleep", seconds: float = 60, number: int = 1
) -> None:
    """Wait until a user's program runs on a worker, ``number`` times: a job is enforced before it runs."""
    script = 'until [ "$(pgrep -c -x -u "$1" "$2")" -ge "$3" ]; do sleep 0.1; done'
    lab.on(worker, "sh", "-c", script, "lab", user, program, str(number), timeout=seconds)


def remove(lab: Lab, jobs: Jobs, *, force: bool = False) -> None:
    """Take a cluster out of the queue; with ``force`` without waiting for a worker that does not answer."""
    lab.on("central", "condor_rm", str(jobs.cluster), check=False)
    if force:
        lab.on("central", "condor_rm", "-forcex", str(jobs.cluster), check=False)


class Neighbour:
    """A job that asks a host in the WAN ten times a second, and counts what is not answered."""

    def __init__(self, lab: Lab, worker: str, user: str = "carol") -> None:
        self._lab = lab
        self._user = user
        self.worker = worker
        where = {"requirements": f'Machine == "{worker}.lab.test"', "stream_error": "False"}
        self.jobs = submit.submit(lab, user, f"exec ping -i 0.1 -q {WAN}", where)
        wait_enforced(lab, self.jobs)
        wait_process(lab, worker, user, "ping")
        self._before = self._counted()

    def lost(self) -> int:
        """The number of questions without an answer since the last call (one may still be on its way)."""
        sent, received = self._counted()
        lost = (sent - received) - (self._before[0] - self._before[1])
        assert sent > self._before[0], "the neighbour has not gone on"
        self._before = sent, received
        return lost

    def _counted(self) -> tuple[int, int]:
        """Sent and received, as ping says on SIGQUIT."""
        script = (
            'pkill -QUIT -x -u "$1" ping || exit 1; sleep 0.3;'
            ' find /var/lib/condor/execute -name _condor_stderr -user "$1" -exec tail -n 1 {} +'
        )
        said = self._lab.on(self.worker, "sh", "-c", script, "lab", self._user).stdout
        received, _, sent = said.split()[0].partition("/")
        return int(sent), int(received)
