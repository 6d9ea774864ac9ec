"""A job cannot choose its owner; and the result of a stranger's submit file."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from lab import controller, submit
from lab.boot import Lab
from lab.jobs import Wish, running
from tests.lab.remains import wait_until

HOOK = "/usr/local/libexec/lark/starter_hook.sh"
# As somebody writes who has only read docs/how-to/worker.md.
STRANGER = """\
universe       = vanilla
executable     = /usr/bin/curl
transfer_executable = false
arguments      = -sS --max-time 10 http://198.51.100.1/
accounting_group = group_cms.prod
request_cpus   = 1
request_memory = 64MB
request_disk   = 1MB
request_bandwidth = 50
+OutboundConnectivity = true
log            = stranger.log
output         = stranger.$(ProcId).out
error          = stranger.$(ProcId).err
queue 2
"""


@pytest.mark.parametrize(
    ("attribute", "value"), [("Owner", '"bob"'), ("AcctGroup", '"group_cms.prod"'), ("GlobalJobId", '"other#1.0#1"')]
)
def test_a_forged_ad_is_refused_and_in_the_audit_trail(lab: Lab, attribute: str, value: str) -> None:
    with running(lab, [Wish("alice")]) as (job,):
        forge = (
            f"{{ grep -vi '^{attribute} =' \"$_CONDOR_JOB_AD\"; echo '{attribute} = {value}'; }} |"
            f" LARK_SOCKET=/run/lark-worker/worker.sock {HOOK} start"
        )
        said = job.run(forge)
        assert re.search(r"^HookStatusCode = [1-9]", said.stdout, re.MULTILINE), said
        assert attribute in said.stdout
        deadline = time.monotonic() + 20
        while not (trail := [entry for entry in audit(lab, job.id) if "forged" in json.dumps(entry)]):
            assert time.monotonic() < deadline
            time.sleep(0.2)
        assert attribute in json.dumps(trail)
        # It is alice's job as before, and no other has come.
        known = [(each["id"], each["owner"], each["group"]) for each in controller.jobs(lab)]
        assert known == [(job.id, "alice", "")]
        assert job.reach([("http", "198.51.100.1")])[0]


def audit(lab: Lab, job_id: str) -> list[dict[str, object]]:
    return list(controller.api(lab, f"/v1/audit?subject={job_id}")["entries"])


def test_the_token_and_the_records_of_the_service_are_out_of_a_jobs_reach(lab: Lab) -> None:
    with running(lab, [Wish("mallory"), Wish("alice", worker="worker1")]) as (job, victim):
        for path in ("/etc/lark/worker.token", "/etc/lark/worker.env"):
            assert job.run(f"cat {path}").status != 0, path
        assert job.run("ls /var/lib/lark-worker/jobs").status != 0
        assert job.run("sudo -n id").status != 0
        assert job.run(f"ip address add {victim.ipv4}/16 dev eth0").status != 0
        entered = job.run(f"nsenter --net=/run/netns/lark-{victim.id} ip address")
        assert entered.status != 0
        assert victim.ipv4 not in entered.stdout


def test_a_strangers_submit_file_runs_with_what_its_attributes_ask_for(lab: Lab) -> None:
    lab.write("central", "/home/carol/stranger.sub", STRANGER, user="carol")
    cluster = lab.on("central", "condor_submit", "-terse", "stranger.sub", user="carol").stdout.split(".")[0]
    lab.on("central", "condor_wait", "-wait", "60", "stranger.log", user="carol", timeout=80)
    for number in (0, 1):
        answer = json.loads(lab.on("central", "cat", f"/home/carol/stranger.{number}.out").stdout)
        assert (answer["server"], answer["through"]) == ("wan2", "wan-fast")

    def ended() -> list[Mapping[str, Any]]:
        return [job for job in controller.jobs(lab, state="ended") if f"#{cluster}." in job["global_job_id"]]

    # A job's end is in its log before its starter has ended.
    wait_until(lambda: len(ended()) == 2, 30, "both have ended")
    assert [(job["owner"], job["group"], job["bandwidth"], job["outbound"]) for job in ended()] == [
        ("carol", "group_cms.prod", 50, True)
    ] * 2
    assert submit.attribute(lab, submit.Jobs(int(cluster), 2, "carol", "/home/carol"), "ExitCode") == "0"


def test_around_the_wrapper_there_is_no_network(lab: Lab) -> None:
    # What runs before the wrapper's first line (LD_PRELOAD) is in the namespace that HTCondor starts the job in.
    said = lab.on("central", "condor_status", "-af", "HasJobNetworking").stdout.split()
    assert said == ["false", "false"]
    for worker in ("worker1", "worker2"):
        # A startd that came up after the service is asked again.
        wait_until(partial(is_closed, lab, worker), 60, f"{worker} is closed")


def is_closed(lab: Lab, worker: str) -> bool:
    return "no problems" in lab.on(worker, "lark-worker", "status", check=False).stdout
