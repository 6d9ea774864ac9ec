"""Table II and the site's script, in a pool: both ends of a job's link are in its slot's ad, and a program is run at
the start and at the end of the job's namespace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from lab import controller
from lab.boot import Lab
from lab.jobs import Wish, running

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


@pytest.fixture
def noted(lab: Lab) -> Iterator[None]:
    """The worker has a script that notes what it is given."""
    env = "/etc/lark/worker.env"
    again = f"unit stop lark-worker; {{}} {env}; unit start lark-worker; until lark-worker jobs; do sleep 0.2; done"
    lab.write(WORKER, SCRIPT, TEXT, mode=0o755)
    lab.on(WORKER, "sh", "-c", again.format(f"echo LARK_WORKER_NAMESPACE_SCRIPT={SCRIPT} >>"))
    yield
    lab.on(WORKER, "sh", "-c", again.format("sed -i /LARK_WORKER_NAMESPACE_SCRIPT/d"))
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


def test_a_slots_ad_has_both_ends_of_its_jobs_link(lab: Lab) -> None:
    with running(lab, [Wish("alice", worker=WORKER)]) as (job,):
        record = controller.api(lab, f"/v1/jobs/{job.id}")
        constraint = f'GlobalJobId == "{record["global_job_id"]}"'
        ask = f"condor_status -constraint '{constraint}' -af ExternalInterface InternalInterface"
        # What the slot's last job had may be there for a while.
        lab.on("central", "sh", "-c", f"until {ask} | grep -qx '{record['port']} eth0'; do sleep 0.5; done", timeout=90)
        assert lab.on(WORKER, "cat", f"/sys/class/net/{record['port']}/operstate").stdout.strip() == "up"
        assert job.run("cat /sys/class/net/eth0/operstate").stdout.strip() == "up"
