"""Table II and the site's script, in a pool: both ends of a job's link are in its slot's ad, with its use of the
network, and a program is run at the start and at the end of the job's namespace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from lab import controller
from lab.boot import Lab
from lab.inside.topology import BY_NAME
from lab.jobs import Running, Wish, running

WORKER = "worker1"
SCRIPT = "/usr/local/libexec/lark/namespace-notes"
NOTES = "/run/namespace-notes"
TEXT = f"""\
#!/bin/sh
{{
    echo "$1 $LARK_EXTERNAL_INTERFACE $LARK_ADDRESSES"
    [ -e "/sys/class/net/$LARK_EXTERNAL_INTERFACE" ] && ip netns exec "$LARK_NAMESPACE" true && echo "both are there"
    cat
    echo over
}} >>{NOTES}
"""
# Starts the worker service again; something may be done while it is away.
AGAIN = "unit stop lark-worker; {}; unit start lark-worker; until lark-worker jobs; do sleep 0.2; done"


@pytest.fixture
def noted(lab: Lab) -> Iterator[None]:
    """The worker has a script that notes what it is given."""
    env = "/etc/lark/worker.env"
    lab.write(WORKER, SCRIPT, TEXT, mode=0o755)
    lab.on(WORKER, "sh", "-c", AGAIN.format(f"echo LARK_WORKER_NAMESPACE_SCRIPT={SCRIPT} >>{env}"))
    yield
    lab.on(WORKER, "sh", "-c", AGAIN.format(f"sed -i /LARK_WORKER_NAMESPACE_SCRIPT/d {env}"))
    lab.on(WORKER, "rm", "-f", SCRIPT, NOTES)


def notes(lab: Lab, port: str, number: int) -> list[str]:
    """The script's notes of a job by its port, once there are so many. A run that came to nothing has others."""
    deadline = time.monotonic() + 60
    while True:
        every = lab.on(WORKER, "cat", NOTES, check=False).stdout.split("over\n")[:-1]
        found = [each for each in every if each.split()[1] == port]
        if len(found) >= number:
            return found
        assert time.monotonic() < deadline, every
        time.sleep(0.3)


def test_a_script_has_both_ads_when_a_jobs_namespace_stands_and_before_it_goes(lab: Lab, noted: None) -> None:
    with running(lab, [Wish("alice", {"+Project": '"north"'}, WORKER)]) as (job,):
        port = controller.api(lab, f"/v1/jobs/{job.id}")["port"]
        assert len(notes(lab, port, 1)) == 1
    started, ended = notes(lab, port, 2)
    for word, each in (("start", started), ("end", ended)):
        first, there, *ads = each.splitlines()
        assert first.split()[:2] == [word, port]
        assert there == "both are there"
        # The job ad, and behind the line between them the machine ad.
        mine, machine = "\n".join(ads).split("------")
        assert 'Project = "north"' in mine
        assert 'Owner = "alice"' in mine
        assert f'Machine = "{WORKER}.lab.test"' in machine
    addresses = ended.splitlines()[0].split()[2:]
    assert {each.partition("/")[0] for each in addresses} == {job.ipv4, job.ipv6}


def in_slot(lab: Lab, job: Running, *attributes: str) -> list[str]:
    """Attributes of a job's slot, as the collector has them."""
    constraint = f'GlobalJobId == "{job.record["global_job_id"]}"'
    return lab.on("central", "condor_status", "-constraint", constraint, "-af", *attributes).stdout.split()


def wait_for_slot(lab: Lab, job: Running, is_there: Callable[[list[str]], bool], *attributes: str) -> None:
    """Wait until attributes of a job's slot are as wanted; what the slot's last job had may be there for a while."""
    deadline = time.monotonic() + 120
    while not is_there(found := in_slot(lab, job, *attributes)):
        written = lab.on(WORKER, "cat", "/run/lark-worker/slots").stdout
        assert time.monotonic() < deadline, (job.record["port"], attributes, found, written)
        time.sleep(0.5)


def test_a_slots_ad_has_both_ends_of_its_jobs_link(lab: Lab) -> None:
    with running(lab, [Wish("alice", worker=WORKER)]) as (job,):
        port = job.record["port"]
        wait_for_slot(lab, job, lambda found: found == [port, "eth0"], "ExternalInterface", "InternalInterface")
        assert lab.on(WORKER, "cat", f"/sys/class/net/{port}/operstate").stdout.strip() == "up"
        assert job.run("cat /sys/class/net/eth0/operstate").stdout.strip() == "up"


def test_a_slots_ad_follows_its_job_after_the_worker_service_has_started_again(lab: Lab) -> None:
    def is_there(found: list[str]) -> bool:
        return len(found) == 1 and found[0] != "undefined"

    with running(lab, [Wish("alice", worker=WORKER)] * 2) as jobs:
        for job in jobs:
            wait_for_slot(lab, job, is_there, "NetworkOutputMb")
        # The file's last slot remains: before its ad, there is none any more.
        first, last = sorted(jobs, key=lambda job: in_slot(lab, job, "Name"))
        first.end()
        lab.on(WORKER, "sh", "-c", AGAIN.format(":"))
        target = BY_NAME["central"].address
        send = (
            f"import socket; s = socket.socket(type=2); [s.sendto(bytes(1000), ('{target}', 9)) for _ in range(5000)]"
        )
        assert last.run(f'python3 -c "{send}"').status == 0
        wait_for_slot(lab, last, lambda found: is_there(found) and float(found[0]) > 4, "NetworkOutputMb")
