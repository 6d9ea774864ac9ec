"""What one user may take of the service, so that the jobs of others start all the same."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from lark_common.limits import Buckets
from lark_worker import hook_socket as service
from lark_worker.life.admission import FORGERIES_AT_ONCE
from tests.worker.pool import Pool, eventually
from tests.worker.test_jobs import value

OUTSIDER = 4000
# Opens connections, says that they are open, and holds them until it is told to end.
HOLD = """
import socket, sys
held = []
for _ in range(int(sys.argv[2])):
    one = socket.socket(socket.AF_UNIX)
    one.connect(sys.argv[1])
    held.append(one)
print("open", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def outsider(pool: Pool) -> Iterator[subprocess.Popen[str]]:
    """A user who is part of no job, and has opened many connections to the service."""
    pool.starter(2, "bob")  # makes the way to the socket, as it is on a worker
    process = subprocess.Popen(
        ["setpriv", f"--reuid={OUTSIDER}", f"--regid={OUTSIDER}", "--clear-groups", "/usr/bin/python3", "-c", HOLD,
         str(pool.socket), str(service.CONNECTIONS + 50)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "open\n"
    yield process
    process.communicate("")


@pytest.mark.ovs
@pytest.mark.usefixtures("outsider")
def test_a_users_connections_from_outside_of_jobs_hold_up_nobody(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    assert value(pool.hook(starter, "start", "alice", 1), "LarkState") == "enforced"


@pytest.mark.ovs
def test_a_job_that_asks_without_end_is_told_to_wait_and_others_are_answered(pool: Pool) -> None:
    busy, other = pool.starter(1, "alice"), pool.starter(2, "bob")
    pool.hook(busy, "start", "alice", 1)
    assert pool.service is not None
    pool.service.rates = Buckets(0.0, 3)
    command = f"curl -s --unix-socket {pool.socket} -o /dev/null -w '%{{http_code}} ' http://localhost/v1/links"
    _, said = busy.as_user(f"for i in 1 2 3 4 5; do {command}; done")
    assert said.split() == ["200", "200", "200", "429", "429"]
    assert value(pool.hook(other, "start", "bob", 2), "LarkState") == "enforced"


@pytest.mark.ovs
def test_forged_ads_without_end_do_not_fill_the_audit_trail(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    forged = starter.scratch / "forged"
    forged.write_text('Owner = "bob"\nGlobalJobId = "submit#1.0#1"\n------\n')
    command = (
        f"curl -s --unix-socket {pool.socket} -o /dev/null -H 'Content-Type: text/plain' --data-binary @{forged}"
        " -w '%{http_code} ' http://localhost/v1/jobs"
    )
    _, said = starter.as_user(f"i=0; while [ $i -lt {FORGERIES_AT_ONCE * 3} ]; do {command}; i=$((i+1)); done")
    assert said.split() == ["422"] * (FORGERIES_AT_ONCE * 3)

    def told() -> int:
        return sum(entry["action"] == "forged ad" for entry in pool.client.audit())

    eventually(lambda: told() >= FORGERIES_AT_ONCE)
    assert told() <= FORGERIES_AT_ONCE + 1
