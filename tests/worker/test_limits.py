"""Limits on one user's share of the service, so that the jobs of others start all the same."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from lark_common.limits import Buckets
from lark_worker import hook_socket as service
from lark_worker.errors import AwayError
from lark_worker.life.admission import FORGERIES_AT_ONCE, LINES_A_SECOND, LINES_AT_ONCE
from lark_worker.life.own_reservations import ControllerAnswer
from tests.fixtures.peak_memory import forget_peak, peak
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


# Makes its own command line a gigabyte long, opens as many connections as it is told, and ends when they end.
LONG_COMMAND_LINE = """
import ctypes, mmap, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = libc.sbrk.restype = ctypes.c_void_p
libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
size, no_reserve = 1 << 30, 0x4000
start = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve, -1, 0)
fields = [0, 0, *open("/proc/self/stat").read().rpartition(")")[2].split()]
number = lambda place: int(fields[place - 1])
areas = [number(place) for place in (26, 27, 45, 46, 47)] + [libc.sbrk(0), number(28), start, start + size]
told = struct.pack("12QII", *areas, number(50), number(51), 0, 0, 0xFFFFFFFF)
PR_SET_MM, PR_SET_MM_MAP = 35, 14
assert libc.prctl(PR_SET_MM, PR_SET_MM_MAP, told, len(told), 0) == 0, ctypes.get_errno()
held = []
for _ in range(int(sys.argv[2])):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].connect(sys.argv[1])
print("open", flush=True)
for one in held:
    one.recv(4096)
"""
# Connects and hangs up as fast as it can, below more processes than are looked at.
FLOOD = """
import os, socket, sys
for _ in range(150):
    if os.fork():
        os.wait()
        os._exit(0)
print("open", flush=True)
while os.getppid() != 1 and os.stat(sys.argv[2]).st_size == 0:
    one = socket.socket(socket.AF_UNIX)
    one.setblocking(False)
    try:
        one.connect(sys.argv[1])
    except OSError:
        pass
    one.close()
"""


def as_outsider(program: str, *arguments: object) -> subprocess.Popen[str]:
    """The program of a user who is part of no job."""
    return subprocess.Popen(
        ["setpriv", f"--reuid={OUTSIDER}", f"--regid={OUTSIDER}", "--clear-groups", "/usr/bin/python3", "-c", program,
         *map(str, arguments)],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.mark.ovs
def test_a_callers_command_line_is_not_read_however_long_it_is(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    before = forget_peak()
    with as_outsider(LONG_COMMAND_LINE, pool.socket, service.CONNECTIONS_OUTSIDE) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == "open\n"
        assert value(pool.hook(starter, "start", "alice", 1), "LarkState") == "enforced"
        assert caller.wait(30) == 0
    assert peak() < before + (256 << 20)


@pytest.mark.ovs
def test_a_flood_of_connections_holds_up_no_hook(pool: Pool) -> None:
    stop = pool.folder / "stop"
    stop.write_text("")
    pool.starter(2, "bob")
    with as_outsider(FLOOD, pool.socket, stop) as flood, as_outsider(FLOOD, pool.socket, stop) as second:
        try:
            for each in (flood, second):
                assert each.stdout is not None
                assert each.stdout.readline() == "open\n"
            for number in range(3, 8):
                starter = pool.starter(number, "alice")
                assert value(pool.hook(starter, "start", "alice", number), "LarkState") == "enforced"
        finally:
            stop.write_text("stop")


@pytest.mark.ovs
def test_a_user_pays_for_being_looked_at_and_others_do_not(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    starter = pool.starter(1, "alice")
    assert pool.service is not None
    pool.service.looks = Buckets(0.0, 4 * service.CONNECTION_COST)
    ask = f"for i in 1 2 3 4 5 6 7 8; do curl -s --unix-socket {pool.socket} -w '%{{http_code}} ' -o /dev/null x; done"
    done = subprocess.run(
        ["setpriv", f"--reuid={OUTSIDER}", f"--regid={OUTSIDER}", "--clear-groups", "sh", "-c", ask],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    statuses = done.stdout.split()
    assert 1 <= statuses.count("403") <= 4
    assert statuses[4:] == ["000"] * 4
    assert any("too many connections" in str(vars(record)) for record in caplog.records)
    assert value(pool.hook(starter, "start", "alice", 1), "LarkState") == "enforced"


@pytest.mark.ovs
def test_a_refusal_is_a_short_line_of_the_log(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    job = "x" * 30_000
    _, said = starter.as_user(f"curl -s --unix-socket {pool.socket} -X POST http://localhost/v1/jobs/{job}/renew")
    assert "is not this job" in said
    refused = [record for record in caplog.records if record.getMessage() == "caller refused"]
    assert len(refused) == 1
    assert len(str(vars(refused[0])["lark_fields"])) < 1000


@pytest.mark.ovs
def test_a_target_that_is_no_url_is_refused_in_words(pool: Pool) -> None:
    with socket.socket(socket.AF_UNIX) as caller:
        caller.connect(str(pool.socket))
        caller.sendall(b"GET http://[ HTTP/1.1\r\n\r\n")
        assert b" 400 " in caller.recv(4096).split(b"\r\n")[0]


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
while time.monotonic() - began < 120:
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
    assert float(said) < 60


# Asks again and again, and prints the status of each answer, - where there is none.
ASK = """
import socket, sys
for _ in range(int(sys.argv[2])):
    with socket.socket(socket.AF_UNIX) as one:
        one.connect(sys.argv[1])
        try:
            one.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
            print(one.recv(4096).decode().partition(" ")[2][:3] or "-")
        except OSError:
            print("-")
"""


@pytest.mark.ovs
def test_callers_outside_of_jobs_do_not_fill_the_log(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    pool.starter(2, "bob")
    assert pool.service is not None
    pool.service._refusals = Buckets(0.0, service.REFUSALS_AT_ONCE)
    with as_outsider(ASK, pool.socket, 200) as asking:
        said, _ = asking.communicate(timeout=120)
    assert asking.returncode == 0
    # Whoever comes while the service has not seen yet that those before have gone is hung up on, and told nothing.
    assert set(said.split()) in ({"403"}, {"403", "-"})
    assert len(said.split()) == 200

    def refused() -> int:
        return sum(record.getMessage() == "caller refused" for record in caplog.records)

    eventually(lambda: refused() >= service.REFUSALS_AT_ONCE)
    assert refused() == service.REFUSALS_AT_ONCE


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
def test_a_job_that_asks_without_end_while_the_controller_is_away_does_not_fill_the_log(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    assert pool.service is not None
    pool.service._refusals = Buckets(0.0, 3)

    def away(_after: str, _wait: float) -> ControllerAnswer:
        raise AwayError("nobody listens there")

    monkeypatch.setattr(pool.service.worker.paths, "links", away)
    command = f"curl -s --unix-socket {pool.socket} -o /dev/null -w '%{{http_code}} ' http://localhost/v1/links"
    _, said = starter.as_user(f"for i in 1 2 3 4 5 6; do {command}; done")
    assert said.split() == ["503"] * 6
    assert sum(record.getMessage() == "a request failed" for record in caplog.records) == 3


@pytest.mark.ovs
def test_forged_ads_without_end_fill_neither_the_audit_trail_nor_the_log(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    starter = pool.starter(1, "alice")
    forged = starter.scratch / "forged"
    forged.write_text('Owner = "bob"\nGlobalJobId = "submit#1.0#1"\n------\n')
    command = (
        f"curl -s --unix-socket {pool.socket} -o /dev/null -H 'Content-Type: text/plain' --data-binary @{forged}"
        " -w '%{http_code} ' http://localhost/v1/jobs"
    )
    began = time.monotonic()
    _, said = starter.as_user(f"i=0; while [ $i -lt {FORGERIES_AT_ONCE * 4} ]; do {command}; i=$((i+1)); done")
    took = time.monotonic() - began
    assert said.split() == ["422"] * (FORGERIES_AT_ONCE * 4)

    def told() -> int:
        return sum(entry["action"] == "forged ad" for entry in pool.client.audit())

    eventually(lambda: told() >= FORGERIES_AT_ONCE)
    assert told() <= FORGERIES_AT_ONCE + 1
    lines = sum(record.getMessage() == "forged ad refused" for record in caplog.records)
    assert FORGERIES_AT_ONCE <= lines <= LINES_AT_ONCE + LINES_A_SECOND * took + 1
