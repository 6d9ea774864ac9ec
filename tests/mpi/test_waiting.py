"""Jobs wait for changes of their paths and of links, at a real worker service with a real controller."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_worker.hook_socket import WAITING_PER_JOB
from tests.fixtures.ovs import a_net
from tests.worker.pool import NOBODY, POLICY, Pool, Starter, a_pool, eventually
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs
TOPOLOGY = (
    "topology: {hosts: {files: {switch: s, capacity: 100, addresses: [10.0.0.5]}, "
    "default: {switch: s, capacity: 100}}}\n"
)


class Two:
    """Two jobs of two users on one worker, each asking at the worker's socket."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self.alice, self.bob = pool.starter(1, "alice"), pool.starter(2, "bob")
        self.ids = [
            value(pool.hook(starter, "start", owner, number), "LarkJobId")
            for number, (starter, owner) in enumerate(((self.alice, "alice"), (self.bob, "bob")), 1)
        ]
        self._turn = threading.Lock()

    def ask(self, starter: Starter, method: str, path: str, body: object = None) -> tuple[int, Any]:
        said, _, status = starter.as_user(self._curl(method, path, body))[1].strip().rpartition("|")
        return int(status), json.loads(said)

    def _curl(self, method: str, path: str, body: object) -> str:
        data = "" if body is None else f" -H 'Content-Type: application/json' -d '{json.dumps(body)}'"
        return f"curl -s -w '|%{{http_code}}' --unix-socket {self.pool.socket} -X {method}{data} 'http://lark{path}'"

    def waiting(self) -> int:
        assert self.pool.worker is not None
        return sum(each._waiting for each in self.pool.worker.paths._shared.values())


@pytest.fixture
def two(ovs: OpenVSwitch) -> Iterator[Two]:
    with temporary_directory() as folder, a_net(ovs) as net, _pool(Path(folder), ovs, net) as pool:
        yield Two(pool)


def _pool(folder: Path, ovs: OpenVSwitch, net: Net) -> Any:
    return a_pool(folder, ovs, net, POLICY + TOPOLOGY)


def test_a_job_is_told_what_becomes_of_its_own_paths(two: Two) -> None:
    nothing = two.ask(two.alice, "GET", "/v1/paths")[1]
    assert nothing["paths"] == []
    made = two.ask(two.alice, "POST", "/v1/reservations", {"destination": "files", "rate": 20})[1]
    # It has another version already, and is not made to wait. No queue can be made here, which is a change by itself.
    eventually(lambda: [each["pending"] != "" for each in two.ask(two.alice, "GET", "/v1/paths")[1]["paths"]] == [True])
    seen = two.ask(two.alice, "GET", f"/v1/paths?after={nothing['version']}&wait=60")[1]
    path = {"reservation": made["id"], "peer": None, "destination": "files", "rate": 20.0, "free": 80.0}
    assert [each | path for each in seen["paths"]] == seen["paths"] != []
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(two.ask, two.alice, "GET", f"/v1/paths?after={seen['version']}&wait=60")
        eventually(lambda: two.waiting() == 1)
        theirs = two.ask(two.bob, "POST", "/v1/reservations", {"destination": "files", "rate": 30})[1]
        status, told = found.result(30)
        assert (status, [each["free"] for each in told["paths"]]) == (200, [50.0])
        assert told["version"] != seen["version"]
        # Nobody else's are shown.
        assert [each["reservation"] for each in told["paths"]] == [made["id"]]
        assert [each["reservation"] for each in two.ask(two.bob, "GET", "/v1/paths")[1]["paths"]] == [theirs["id"]]
        found = threads.submit(two.ask, two.alice, "GET", f"/v1/paths?after={told['version']}&wait=60")
        eventually(lambda: two.waiting() == 1)
        # What an operator takes away is told as well.
        two.pool.client.release(made["id"])
        assert found.result(30)[1]["paths"] == []


def test_links_are_waited_for_and_those_who_wait_ask_nothing_meanwhile(two: Two) -> None:
    link, calls = two.pool.link, list[float]()
    before = link.passed

    def counted(call: Any) -> Any:
        calls.append(time.monotonic())
        return before(call)

    link.passed = counted  # type: ignore[method-assign]
    seen = two.ask(two.bob, "GET", "/v1/links")[1]
    path = f"/v1/links?after={seen['version']}&wait=60"
    with ThreadPoolExecutor(2) as threads:
        found = [threads.submit(two.ask, starter, "GET", path) for starter in (two.alice, two.bob)]
        eventually(lambda: two.waiting() == 2)
        asked = len(calls)
        time.sleep(1.0)
        assert len(calls) <= asked + 1
        two.pool.client.reserve("files", two.ids[0], 10.0)
        told = [each.result(30)[1] for each in found]
    assert told[0] == told[1] != seen
    (left,) = {each["best_effort"] for each in told[0]["links"] if each["source"] == "files"}
    assert left == 90.0


def test_a_wait_ends_with_its_time_and_then_shows_what_there_is(two: Two) -> None:
    seen = two.ask(two.alice, "GET", "/v1/links")[1]
    began = time.monotonic()
    assert two.ask(two.alice, "GET", f"/v1/links?after={seen['version']}&wait=1") == (
        200,
        {"version": seen["version"], "links": None},
    )
    assert time.monotonic() - began >= 1.0
    paths = two.ask(two.alice, "GET", "/v1/paths")[1]
    assert two.ask(two.alice, "GET", f"/v1/paths?after={paths['version']}&wait=0.5") == (200, paths)
    for query in ("wait=61", "wait=-1", "wait=x", f"after={'a' * 65}", "after=%00"):
        assert two.ask(two.alice, "GET", f"/v1/paths?{query}")[0] == 422


def test_a_job_has_few_places_to_wait_in_and_is_answered_at_once_beyond_them(two: Two) -> None:
    seen = two.ask(two.alice, "GET", "/v1/paths")[1]
    path = f"http://lark/v1/paths?after={seen['version']}&wait=60"
    # Children of the starter's own shell: what lost its parent would be of no job. They end with the starter.
    as_nobody = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups --pdeathsig KILL"
    one = f"{as_nobody} curl -s --unix-socket {two.pool.socket} '{path}' >/dev/null 2>&1 & "
    two.alice.run(one * WAITING_PER_JOB + ":")
    eventually(lambda: two.waiting() == WAITING_PER_JOB)
    began = time.monotonic()
    assert two.ask(two.alice, "GET", f"/v1/paths?after={seen['version']}&wait=60") == (200, seen)
    assert time.monotonic() - began < 30
    # The other job's places are its own.
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(two.ask, two.bob, "GET", f"/v1/paths?after={seen['version']}&wait=60")
        eventually(lambda: two.waiting() == WAITING_PER_JOB + 1)
        made = two.pool.client.reserve(two.ids[1], "files", 5.0)
        assert [each["reservation"] for each in found.result(30)[1]["paths"]] == [made["id"]]
    assert two.ask(two.alice, "GET", "/v1/paths") == (200, seen)


def test_a_controller_that_is_away_is_told_at_the_end_of_the_wait(two: Two) -> None:
    seen = two.ask(two.alice, "GET", "/v1/links")[1]
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(two.ask, two.alice, "GET", f"/v1/links?after={seen['version']}&wait=2")
        eventually(lambda: two.waiting() == 1)
        two.pool.stop_controller()
        status, told = found.result(60)
    assert status in (200, 503), told
    assert two.ask(two.alice, "GET", "/v1/links")[0] == 503


def test_the_end_of_the_service_ends_the_wait(two: Two) -> None:
    seen = two.ask(two.alice, "GET", "/v1/links")[1]
    with ThreadPoolExecutor(1) as threads:
        found = threads.submit(
            two.alice.as_user,
            f"curl -s --unix-socket {two.pool.socket} 'http://lark/v1/links?after={seen['version']}&wait=60'",
        )
        eventually(lambda: two.waiting() == 1)
        two.pool.stop_service()
        found.result(30)
