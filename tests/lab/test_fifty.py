"""Fifty jobs at once: each has an address of its own, all are enforced, all are gone in the end."""

from __future__ import annotations

from lab import submit
from lab.boot import Lab
from lab.inside.topology import EDGE_BRIDGE
from tests.lab.remains import live, network, remove, wait_enforced, wait_for

USERS = {"alice": 17, "bob": 17, "carol": 16}


def test_fifty_jobs_at_once(lab: Lab) -> None:
    # User Mode Linux has one slow processor for the whole pool: fifty starts at once take longer there than hooks wait.
    before = network(lab)
    clusters = [
        submit.submit(lab, user, "exec sleep 3600", {"request_memory": "16"}, number) for user, number in USERS.items()
    ]
    try:
        for cluster in clusters:
            wait_enforced(lab, cluster, cluster.number, 200)
        jobs = [job for cluster in clusters for job in live(lab, cluster)]
        addresses = [address["address"] for job in jobs for address in job["addresses"]]
        assert len(jobs) == 50
        assert len(set(addresses)) == len(addresses) == 100
        assert len({job["mac"] for job in jobs}) == 50
        # Each switch admits each of its jobs from its own addresses alone.
        for worker in ("worker1", "worker2"):
            here = [job for job in jobs if job["host"].startswith(worker)]
            flows = lab.on(worker, "ovs-ofctl", "-O", "OpenFlow13", "dump-flows", EDGE_BRIDGE, "table=0").stdout
            for job in here:
                admitted = [line for line in flows.splitlines() if f"dl_src={job['mac']}" in line]
                assert any(f"nw_src={job['addresses'][0]['address']}" in line for line in admitted)
            assert lab.on(worker, "sh", "-c", "ip netns list | grep -c ^lark-").stdout.strip() == str(len(here))
    finally:
        for jobs_of in clusters:
            remove(lab, jobs_of)
    wait_for(lab, before, 200)
