"""Sandboxes and URLs that a real HTCondor moves: known as their jobs', by HTCondor's own protocol and by its plugin."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab import controller, submit
from lab.boot import Lab
from lab.run import LabError

MEGA = 1_000_000
SIZE = 30 * MEGA
PORT = 8099
TRIAL = "/etc/condor/config.d/90-trial.conf"


@contextmanager
def of_type(lab: Lab, network: str) -> Iterator[None]:
    """Jobs of the first worker have this NetworkType."""
    lab.write("worker1", TRIAL, f'NetworkType = "{network}"\n')
    try:
        lab.on("worker1", "condor_reconfig")
        shown = "condor_status -constraint 'Machine == \"worker1.lab.test\"' -af NetworkType"
        lab.on("central", "sh", "-c", f"until {shown} | grep -q {network}; do sleep 0.5; done", timeout=120)
        yield
    finally:
        lab.on("worker1", "rm", TRIAL)
        lab.on("worker1", "condor_reconfig")


@contextmanager
def http_server(lab: Lab) -> Iterator[None]:
    """A real HTTP server in the WAN, for IPv4 and IPv6, with a file of 30 MB that takes a second or less."""
    script = f"mkdir -p /tmp/www; head -c {SIZE} /dev/zero >/tmp/www/data; cd /tmp/www"
    start = f"{script}; setsid python3 -m http.server --bind :: {PORT} >/dev/null 2>&1 & echo $!"
    pid = lab.on("wan1", "sh", "-c", start).stdout.strip()
    try:
        yield
    finally:
        lab.on("wan1", "kill", pid, check=False)


def use(lab: Lab, jobs: submit.Jobs, process: int = 0) -> dict[str, Any]:
    """A job's use, once its last counts are in."""
    deadline = time.monotonic() + 60
    while True:
        try:
            found: dict[str, Any] | None = controller.api(lab, f"/v1/jobs/{jobs.cluster}.{process}")["usage"]
        except LabError:
            found = None
        if found is not None and found["final"]:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.5)


@pytest.mark.parametrize(
    ("network", "family"), [("ovs_bridge", "IPv4"), ("ovs_bridge", "IPv6"), ("bridge", "IPv4"), ("nat", "IPv6"),
                            ("none", "IPv4")],
)  # fmt: skip
def test_what_htcondor_moves_is_in_the_job_s_account_and_apart_from_its_own_traffic(
    lab: Lab, network: str, family: str
) -> None:
    host = "192.0.2.1" if family == "IPv4" else "[3fff:0:1::1]"
    attributes = {
        "requirements": 'Machine == "worker1.lab.test"',
        "request_disk": "300000",
        "transfer_input_files": f"/etc/services, http://{host}:{PORT}/data",
    }
    make = f"head -c {2 * SIZE} /dev/zero >result; ls -l data; sleep 1"
    with http_server(lab), of_type(lab, network):
        jobs = submit.submit(lab, "alice", make, attributes, number=2)
        submit.wait(lab, jobs)
    for process in range(2):
        assert str(SIZE) in submit.output(lab, jobs, process)
        used = use(lab, jobs, process)
        # The payload, and HTTP's and HTCondor's own words.
        assert 0 <= used["transfer_wan_bytes_in"] - SIZE < 10_000, used
        assert 0 < used["transfer_bytes_in"] - used["transfer_wan_bytes_in"] < 200_000, used
        # Encrypted, HTCondor's protocol adds half a hundredth.
        assert 0 <= used["transfer_bytes_out"] - 2 * SIZE < SIZE // 50, used
        assert used["transfer_wan_bytes_out"] < 10_000, used
        assert 0 < used["transfer_seconds"] < 60, used
        # Nothing of it passed the job's own network.
        assert used["bytes_in"] < MEGA > used["bytes_out"], used
        # In the history is what was moved until the job's end: the input to the last byte.
        moved = int(submit.attribute(lab, jobs, "LarkTransferBytesIn", process))
        assert 0 <= used["transfer_bytes_in"] - moved < 10_000


def test_a_job_that_is_registered_before_its_input_starts_as_the_page_has_it(lab: Lab) -> None:
    """docs/how-to/transfers.md, "Limit, mark and block transfers"; with NO_JOB_NETWORKING it would not."""
    before = "LARK_HOOK_PREPARE_JOB_BEFORE_TRANSFER = /usr/local/libexec/lark/lark-start"
    lab.write("worker1", TRIAL, f"{before}\nNO_JOB_NETWORKING = False\n")
    lab.on("worker1", "condor_reconfig")
    try:
        jobs = submit.submit(lab, "alice", "echo well", {"requirements": 'Machine == "worker1.lab.test"'})
        submit.wait(lab, jobs)
        assert submit.output(lab, jobs) == "well\n"
        assert submit.attribute(lab, jobs, "NumJobStarts") == "1"
    finally:
        lab.on("worker1", "rm", TRIAL)
        lab.on("worker1", "condor_reconfig")
