"""Two controllers on one PostgreSQL, as processes: killed, paused, stopped, drained, and without their database.

What a post was answered stands after each takeover.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lab.postgres import PostgresServer
from lab.run import free_port
from lark_common.client import Client
from lark_controller.cli.run import HANDED_OVER
from lark_controller.rest.tokens import Scope, add

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[2]
OPEN = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
policies: [{slice: {by: Owner}}]
"""
ADS = """\
Owner = "alice"
GlobalJobId = "s#{number}.0#1"
JobCurrentStartDate = 1
------
Machine = "worker1"
Name = "slot{number}@worker1"
LarkNetworkType = "bridge"
LarkInnerMacAddress = "02:00:00:00:00:{number:02x}"
LarkInnerAddressIPv4 = "10.64.0.{number}"
"""


class Instance:
    """A controller in a process of its own, with a state directory and ports that outlive it. ``tree`` has its code."""

    def __init__(self, name: str, folder: Path, url: str, tree: Path = ROOT) -> None:
        self.name, self.folder, self.log, self.tree = name, folder, folder / f"{name}.log", tree
        self.rest, self.openflow = free_port(), free_port()
        policy = folder / f"{name}.yaml"
        policy.write_text(OPEN)
        self.environ = {
            **os.environ,
            "LARK_STATE_DIR": str(folder),
            "LARK_POLICY_FILE": str(policy),
            "LARK_TOKENS_FILE": str(folder / "tokens.yaml"),
            "LARK_OPENFLOW_LISTEN": f"127.0.0.1:{self.openflow}",
            "LARK_REST_LISTEN": f"127.0.0.1:{self.rest}",
            "LARK_DATABASE_URL": url,
            "LARK_INSTANCE_NAME": name,
        }
        self.token = add(folder / "tokens.yaml", name, [Scope.HOOK, Scope.OPERATE, Scope.READ])
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.rest}"

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = [sys.executable, "-m", "lark_controller.cli.main", "run"]
            self.process = subprocess.Popen(command, env=self.environ, cwd=self.tree, stderr=log)

    def stop(self, number: int = signal.SIGKILL) -> int:
        """End the process by a signal; returns its status."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(120)

    def ask(
        self, path: str, method: str = "GET", body: str | None = None, content: str = "text/plain"
    ) -> tuple[int, Any]:
        """The answer of a route; status 0 where there is none."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content}
        data = None if body is None else body.encode()
        request = urllib.request.Request(f"{self.url}{path}", data, headers, method=method)
        try:
            try:
                with urllib.request.urlopen(request, timeout=15) as answer:
                    return answer.status, json.loads(answer.read())
            except urllib.error.HTTPError as error:
                return error.code, json.loads(error.read())
        except (OSError, http.client.HTTPException):
            # It is not there, or has ended within its answer.
            return 0, None

    def is_active(self) -> bool:
        return self.ask("/readyz")[0] == 200

    def stands_by(self) -> bool:
        """True once it has read the term, and another is active."""
        status, body = self.ask("/readyz")
        return status == 503 and "stands by" in str(body) and " at http://" in str(body)

    def post(self, number: int) -> str:
        """Post a run, which must be taken; returns its id."""
        status, body = self.ask("/v1/jobs", "POST", ADS.format(number=number))
        assert status in (200, 201), body
        return str(body["id"])

    def live(self) -> set[str]:
        return {job["id"] for job in self.ask("/v1/jobs?limit=1000")[1]["jobs"]}


def until(question: Callable[[], object], limit: float = 180.0) -> None:
    """The limit only ends a test that has failed already."""
    deadline = time.monotonic() + limit
    while not question():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own, which it may stop."""
    with tempfile.TemporaryDirectory(prefix="lark-two-", dir="/tmp") as directory:
        own = PostgresServer(Path(directory))
        own.create()
        own.start()
        yield own
        own.stop()


@contextmanager
def pair(url: str, folder: Path, way_of_a: str = "") -> Iterator[tuple[Instance, Instance]]:
    """``a``, which is active, and ``b``, which stands by; ``a`` may have a URL of its own to the same database."""
    a, b = Instance("a", folder, way_of_a or url), Instance("b", folder, url)
    try:
        a.start()
        until(a.is_active)
        b.start()
        until(b.stands_by)
        yield a, b
    finally:
        for each in (a, b):
            if each.process is not None and each.process.poll() is None:
                each.process.kill()
                each.process.wait()


@pytest.fixture
def two(server: PostgresServer, tmp_path: Path) -> Iterator[tuple[Instance, Instance]]:
    """``a``, which is active, and ``b``, which stands by."""
    with pair(server.new_database(), tmp_path) as both:
        yield both


def test_killed_stopped_and_drained(two: tuple[Instance, Instance]) -> None:
    a, b = two
    posted = {a.post(1)}
    generations = [a.ask("/v1/instances")[1]["generation"]]

    # One that stands by answers for the active one.
    posted.add(b.post(2))
    assert b.live() == a.live() == posted

    def follows(active: Instance, why: str) -> None:
        until(active.is_active)
        found = active.ask("/v1/instances")[1]
        assert (found["instances"][0]["name"], found["why"]) == (active.name, why)
        generations.append(found["generation"])
        assert active.live() == posted
        # The same run again is the same job.
        assert active.post(1) in posted
        posted.add(active.post(len(posted) + 1))

    # It has the directory beforehand, and what was posted since.
    until(lambda: "directory copied" in b.log.read_text())
    # Either shows how old that is, of the one that stands by.
    until(lambda: copy_ages(a).get("b") is not None)
    assert copy_ages(b).keys() == {"a", "b"}
    assert copy_ages(b)["a"] is None
    posted.add(a.post(len(posted) + 1))
    a.stop()
    follows(b, "ended")
    assert "directory taken over jobs=3" in b.log.read_text()
    a.start()
    until(a.stands_by)
    assert b.stop(signal.SIGTERM) == 0
    follows(a, "released")
    b.start()
    until(b.stands_by)
    # Who stands by has nothing to let go; who has is asked by way of it.
    assert b.ask("/v1/instances/b/drain", "POST")[0] == 409
    assert b.ask("/v1/instances/a/drain", "POST")[0] == 200
    assert a.process is not None
    assert a.process.wait(120) == HANDED_OVER
    follows(b, "drained")
    # Nobody stands by that could take over.
    assert b.ask("/v1/instances/b/drain", "POST")[0] == 409
    b.stop()
    b.start()
    follows(b, "restarted")
    # What it replaces is no instance any more, and is not shown as a lost one.
    assert [each["name"] for each in b.ask("/v1/instances")[1]["instances"]].count("b") == 1
    assert generations == sorted(set(generations))
    assert [each["detail"].split(":")[0].split(",")[0] for each in took_over(b)] == ["b", "b", "a", "b", "a"]


def copy_ages(instance: Instance) -> dict[str, float | None]:
    return {each["name"]: each["copy_age"] for each in instance.ask("/v1/instances")[1]["instances"]}


# Everything that the active one alone can answer.
ROUTES = (
    "/v1/jobs", "/v1/overview", "/v1/map", "/v1/policy", "/v1/policy/versions", "/v1/groups", "/v1/rates", "/v1/links",
    "/v1/drops", "/v1/usage", "/v1/audit", "/v1/switches", "/v1/reservations", "/v1/external-addresses",
    "/v1/explain?src=10.64.0.1&dst=10.64.0.2",
)  # fmt: skip


def test_any_instance_shows_the_whole(two: tuple[Instance, Instance]) -> None:
    a, b = two
    job = a.post(1)
    assert b.post(1) == job
    for route in ROUTES:
        own, others = a.ask(route), b.ask(route)
        assert own[0] == others[0] == 200, route
        assert set(own[1]) == set(others[1]), route
    assert b.ask(f"/v1/jobs/{job}")[1]["id"] == job
    assert b.ask(f"/v1/jobs/{job}/renew", "POST")[0] == 200
    assert b.ask(f"/v1/jobs/{job}", "DELETE")[0] == 200
    assert a.live() == set()


def took_over(instance: Instance) -> list[Any]:
    entries = instance.ask("/v1/audit?subject=controller&limit=1000")[1]["entries"]
    return [each for each in entries if each["action"] == "controller took over"]


def test_one_that_was_paused_writes_nothing_and_ends(two: tuple[Instance, Instance]) -> None:
    a, b = two
    posted = {a.post(1)}
    assert a.process is not None
    # A post that is on its way when everything stops.
    sending = socket.create_connection(("127.0.0.1", a.rest))
    body = ADS.format(number=2).encode()
    head = f"POST /v1/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {a.token}\r\nContent-Type: text/plain\r\n"
    a.process.send_signal(signal.SIGSTOP)
    sending.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    # A program that asks it first is not kept waiting for its part of the time, which is 300 s.
    began = time.monotonic()
    Client(f"{a.url},{b.url}", b.token, timeout=600.0).instances()
    assert time.monotonic() - began < 60.0
    until(b.is_active)
    posted.add(b.post(3))
    # It is not known to have crashed.
    told = {each["action"]: each["detail"] for each in b.ask("/v1/audit?subject=controller&limit=1000")[1]["entries"]}
    assert "gave no sign of life for" in told["controller lost"]
    assert "controller ended" not in told
    a.process.send_signal(signal.SIGCONT)
    assert a.process.wait(120) == HANDED_OVER
    sending.settimeout(60)
    try:
        answer = sending.recv(1 << 16)
    except OSError:
        answer = b""
    sending.close()
    assert b" 201 " not in answer
    assert b.live() == posted
    assert "fenced" in a.log.read_text()
    actors = [each["actor"] for each in b.ask("/v1/audit?limit=1000")[1]["entries"]]
    assert actors.count("a") == 1
    a.start()
    until(a.stands_by)


def test_nobody_takes_over_because_the_database_is_away(two: tuple[Instance, Instance], server: PostgresServer) -> None:
    a, b = two
    posted = {a.post(1)}
    generation = a.ask("/v1/instances")[1]["generation"]
    server.stop()
    until(lambda: "cannot be looked at" in a.log.read_text() and "cannot be looked at" in b.log.read_text())
    assert a.ask("/v1/jobs", "POST", ADS.format(number=2))[0] == 503
    # The active one goes on listening for switches.
    socket.create_connection(("127.0.0.1", a.openflow)).close()
    assert "stands by" in str(b.ask("/readyz")[1])
    server.start()
    until(a.is_active)
    posted.add(a.post(2))
    until(lambda: a.url in str(b.ask("/readyz")[1]))
    assert a.ask("/v1/instances")[1]["generation"] == generation
    assert a.live() == posted
    # And what held before holds after it.
    a.stop()
    until(b.is_active)
    assert b.live() == posted


def test_an_old_policy_file_rolls_nothing_back(two: tuple[Instance, Instance]) -> None:
    a, b = two
    newer = f"{OPEN}# newer\n"
    (a.folder / "a.yaml").write_text(newer)
    until(lambda: a.ask("/v1/policy")[1]["text"] == newer)
    a.stop()
    until(b.is_active)
    assert b.ask("/v1/policy")[1]["text"] == newer
    # What is written there from now on counts, and the other's file, which has not changed, does not.
    newest = f"{OPEN}# newest\n"
    (b.folder / "b.yaml").write_text(newest)
    until(lambda: b.ask("/v1/policy")[1]["text"] == newest)
    a.start()
    until(a.stands_by)
    b.stop()
    until(a.is_active)
    assert a.ask("/v1/policy")[1]["text"] == newest
