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


# Sends a request a byte at a time, and prints how long it was listened to.
DRIP = """
import socket, sys, time
one = socket.socket(socket.AF_UNIX)
one.connect(sys.argv[1])
began = time.monotonic()
one.sendall(b"POST /v1/jobs HTTP/1.1\\r\\nContent-Length: 200000\\r\\n\\r\\n")
one.settimeout(0.1)
while time.monotonic() - began < 20:
    try:
        one.sendall(b"x")
        if not one.recv(4096):
            break
    except TimeoutError:
        continue
    except OSError:
        break
print(round(time.monotonic() - began, 1))
"""


@pytest.mark.ovs
def test_a_request_that_comes_a_byte_at_a_time_keeps_no_place(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = pool.starter(1, "alice")
    monkeypatch.setattr(service, "WHOLE", 1.0)
    script = slow.scratch / "drip.py"
    script.write_text(DRIP)
    _, said = slow.as_user(f"/usr/bin/python3 {script} {pool.socket}")
    assert float(said) < 10


@pytest.mark.ovs
def test_callers_outside_of_jobs_do_not_fill_the_log(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    pool.starter(2, "bob")
    ask = (
        "import socket,sys\nfor _ in range(200):\n s=socket.socket(socket.AF_UNIX)\n s.connect(sys.argv[1])\n"
        " s.sendall(b'GET / HTTP/1.1\\r\\n\\r\\n')\n s.recv(4096)\n"
    )
    subprocess.run(
        ["setpriv", f"--reuid={OUTSIDER}", f"--regid={OUTSIDER}", "--clear-groups", "/usr/bin/python3", "-c", ask,
         str(pool.socket)],
        check=True, timeout=60,
    )  # fmt: skip
    refused = [record for record in caplog.records if record.getMessage() == "caller refused"]
    assert 1 <= len(refused) <= 2 * service.REFUSALS_AT_ONCE


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
