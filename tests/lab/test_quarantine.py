"""Reports posted straight to the controller, with a worker's own token, that the pool contradicts."""

from __future__ import annotations

import json

from lab import controller, submit
from lab.boot import Lab
from lab.inside.lark import URL
from tests.lab.remains import WAN, network, remove, wait_enforced, wait_for, wait_until

HERE = {"requirements": 'Machine == "worker1.lab.test"'}
AD = """\
Owner = "{owner}"
GlobalJobId = "{job}"
JobCurrentStartDate = {started}
------
Machine = "worker1.lab.test"
Name = "{slot}"
LarkAddressType = "controller"
LarkDatapathId = "00000000000000e1"
LarkExternalInterface = "{port}"
LarkInnerMacAddress = "{mac}"
"""


def post(lab: Lab, ads: str) -> str:
    """Post as whoever is root on worker1 could; the job's id."""
    script = (
        'exec curl -sS --fail-with-body -H "Authorization: Bearer $(cat /etc/lark/worker.token)"'
        f' -H "Content-Type: text/plain" --data-binary @- {URL}/v1/jobs'
    )
    return str(json.loads(lab.on("worker1", "sh", "-c", script, stdin=ads).stdout)["id"])


def state(lab: Lab, job_id: str) -> str:
    return str(controller.api(lab, f"/v1/jobs/{job_id}")["state"])


def quarantines(lab: Lab) -> set[str]:
    entries = controller.api(lab, "/v1/audit?limit=500")["entries"]
    return {line["subject"] for line in entries if line["action"] == "quarantine"}


def test_lies_are_quarantined_and_the_truth_is_not(lab: Lab) -> None:
    already = quarantines(lab)
    before = network(lab)
    jobs = submit.submit(lab, "bob", "exec sleep 3600", HERE, 2)
    first, second = wait_enforced(lab, jobs, 2)
    here = {"started": first["started"], "port": first["port"], "mac": first["mac"]}
    # The job that runs there, as another user's; and a job on a slot that is not there.
    lied = post(lab, AD.format(owner="alice", job=first["global_job_id"], slot=first["slot"], **here))
    assert lied == first["id"]
    ghost = post(
        lab,
        AD.format(
            owner="alice", job="central.lab.test#999.0#1", started=1, slot="slot1_30@worker1.lab.test",
            port="larkghost", mac="02:00:00:00:09:99",
        ),
    )  # fmt: skip
    try:
        wait_until(
            lambda: {state(lab, job_id) for job_id in (lied, ghost)} == {"quarantined"}, 90, "both are quarantined"
        )
        assert "is bob's, it is registered as alice's" in controller.api(lab, f"/v1/jobs/{lied}")["reason"]
        assert "has no slot slot1_30" in controller.api(lab, f"/v1/jobs/{ghost}")["reason"]
        assert state(lab, str(second["id"])) == "enforced"
        assert quarantines(lab) - already == {lied, ghost}
        told = json.loads(lab.run(["lark", "explain", "--json", lied, WAN], check=False).stdout)
        assert told["verdict"] == "dropped"
        # The truth again, as the worker's service would post it.
        post(lab, AD.format(owner="bob", job=first["global_job_id"], slot=first["slot"], **here))
        wait_until(lambda: state(lab, lied) == "enforced", 30, "the pool agrees again")
    finally:
        lab.run(["lark", "lift", ghost])
        script = f'curl -sS -X DELETE -H "Authorization: Bearer $(cat /etc/lark/worker.token)" {URL}/v1/jobs/{ghost}'
        lab.on("worker1", "sh", "-c", script)
        remove(lab, jobs)
    wait_for(lab, before)
