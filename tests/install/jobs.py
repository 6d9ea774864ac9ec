"""Jobs of the site's users, as HTCondor, the controller and the worker see them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import count

from lab.inside.topology import DOMAIN
from tests.install.machine import wait_until
from tests.install.site import Site

_numbers = count(1)


@dataclass(frozen=True, slots=True)
class Job:
    """A job that runs ``sleep`` on a worker, with its namespace there and its IPv4 address."""

    site: Site
    cluster: str
    user: str
    worker: str
    namespace: str
    address: str

    def reaches(self, address: str) -> bool:
        """True if an address answers a ping from the job's network; one of three is enough."""
        ping = f"ip netns exec {self.namespace} ping -c 1 -W 1 {address}"
        return self.site[self.worker].run(f"{ping} || {ping} || {ping}", check=False).returncode == 0

    def is_enforced(self) -> bool:
        """True if its program runs in its network, and the controller says that the job is enforced."""
        worker = self.site[self.worker]
        pid = worker.run(f"pgrep -x -u {self.user} sleep", check=False).stdout.split()
        inside = pid and worker.run(f"ip netns identify {pid[0]}", check=False).stdout.strip() == self.namespace
        known = [each for each in self.site.lark("jobs") if str(each["cluster"]) == self.cluster]
        return bool(inside) and [each["state"] for each in known] == ["enforced"]

    def remove(self) -> None:
        """Take it out of the queue, and wait until its network is gone."""
        self.site["central"].run(f"condor_rm {self.cluster}")
        gone = f"! ip netns list | grep -q {self.namespace}"
        wait_until(
            lambda: self.site[self.worker].run(gone, check=False).returncode == 0, 60, "the job's network is gone"
        )


def start(site: Site, user: str, worker: str) -> Job:
    """Start a job, and wait until it is enforced."""
    name = f"job{next(_numbers)}"
    lines = (
        # The access point's Debian is another one than the worker's.
        "executable = /bin/sleep", "transfer_executable = false", "arguments = 3000",
        f'requirements = Machine == "{worker}.{DOMAIN}"', f"log = {name}.log", "request_disk = 1000",
        "request_memory = 64", "queue",
    )  # fmt: skip
    submit = f"cat > {name}.sub; condor_submit -terse {name}.sub"
    cluster = site["central"].run(submit, user=user, stdin="\n".join(lines) + "\n").stdout.partition(".")[0]
    found: list[Job] = []

    def runs() -> bool:
        said = site[worker].run("lark-worker jobs --json", check=False).stdout
        for each in json.loads(said or "[]"):
            if f"#{cluster}." in each["global_job_id"]:
                address = next((one.partition("/")[0] for one in each["addresses"] if "." in one), "")
                found[:] = [Job(site, cluster, user, worker, each["namespace"], address)]
                return bool(address) and found[0].is_enforced()
        return False

    log = f"cat /home/{user}/{name}.log"
    wait_until(runs, 90, f"{user}'s job {cluster} runs on {worker}", 1)
    assert found, site["central"].run(log).stdout
    return found[0]
