"""Fireflies: what a datagram says, when each is due, and those that leave a worker with real transfers."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_common.limits import Bucket
from lark_common.scitags import LABEL_MASK, Collector, Marks, Scitag
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError
from lark_worker.records.records import Record
from lark_worker.transfers import fireflies as sending
from lark_worker.transfers import flow_lives, reports
from lark_worker.transfers.book import Flow, Turns
from lark_worker.transfers.fireflies import Fireflies
from lark_worker.transfers.firefly import State, Times, datagram
from lark_worker.transfers.flow_lives import FlowLives, Message
from lark_worker.transfers.inet_diag import Connection
from tests.fixtures.service import wait
from tests.worker.pool import Pool
from tests.worker.test_flow_labels import CMS, FAR6, PREFIX, capturing
from tests.worker.test_transfers import client, serving

SCHEMA = json.loads(Path(__file__).with_name("firefly.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
ONE, TWO = (100, 1), (200, 2)
NO_MARKER = Path("/nonexistent/labelled")
HERE = ip_address("10.0.0.5")


def a_connection(cookie: int = 1, received: int = 0, sent: int = 0, remote: str = "192.0.2.1") -> Connection:
    return Connection(cookie, 9, ip_address(remote), received, sent, HERE, (40000, 9618))


def read(data: bytes) -> dict[str, Any]:
    """A datagram as collectors take it apart: seven words of syslog, and an object that the schema accepts."""
    words = data.decode("ascii").split(" ", 7)
    assert words[0] == "<134>1"
    assert words[2:7] == ["-", "lark", "-", "firefly-json", "-"]
    assert datetime.fromisoformat(words[1]).tzinfo is not None
    found: dict[str, Any] = json.loads(words[7])
    VALIDATOR.validate(found)
    return found


@given(
    st.sampled_from(State), st.integers(1, 511), st.integers(1, 63), st.ip_addresses(v=6), st.integers(1, 65535),
    st.integers(0, 2**64 - 1), st.floats(0, 4e9), st.booleans(),
)  # fmt: skip
def test_a_datagram_is_what_the_schema_describes_and_fits_into_any_path(
    state: State, experiment: int, activity: int, address: Any, port: int, count: int, at: float, four: bool
) -> None:
    remote = ip_address(int(address) & 0xFFFFFFFF) if four else address
    local = ip_address("192.0.2.5") if four else ip_address("3fff:ffff:ffff:ffff:ffff:ffff:ffff:ffff")
    connection = Connection(7, 9, remote, count, count, local, (port, 9618))
    data = datagram(state, Scitag(experiment, activity), connection, Times(at, at + 60))
    found = read(data)
    # IPv6's least MTU, less the headers.
    assert len(data) <= 1232
    assert found["flow-id"] == {
        "afi": f"ipv{remote.version}", "src-ip": str(local), "dst-ip": str(remote), "protocol": "tcp",
        "src-port": port, "dst-port": 9618,
    }  # fmt: skip
    assert found["usage"] == {"received": count, "sent": count}
    assert (found["context"]["experiment-id"], found["context"]["activity-id"]) == (experiment, activity)
    lifecycle = found["flow-lifecycle"]
    assert lifecycle["state"] == state
    assert ("end-time" in lifecycle) == (state is State.END)
    assert abs(datetime.fromisoformat(lifecycle["start-time"]).timestamp() - at) < 0.01


def due(
    lives: FlowLives, now: float, known: dict[tuple[int, int], Scitag | None], ongoing: float = 60
) -> list[Message]:
    return list(lives.due(now, ongoing, known.__contains__, lambda _, key: known.get(key)))


def states(messages: list[Message]) -> list[tuple[str, int]]:
    return [(str(each.state), each.connection.received) for each in messages]


def test_a_flow_is_told_at_its_start_while_it_goes_on_and_at_its_end() -> None:
    lives = FlowLives()
    lives.begin(Flow(ONE, a_connection(), 10.0))
    assert due(lives, 10.5, {}) == []
    assert states(due(lives, 11.0, {ONE: CMS})) == [("start", 0)]
    assert due(lives, 70.0, {ONE: CMS}) == []
    lives.count(Flow(ONE, a_connection(received=500), 10.0))
    (message,) = due(lives, 71.0, {ONE: CMS})
    assert (message.state, message.connection.received, message.since, message.ended) == ("ongoing", 500, 10.0, None)
    assert due(lives, 72.0, {ONE: CMS}) == []
    lives.end(Flow(ONE, a_connection(received=900), 10.0), 80.0)
    (message,) = due(lives, 81.0, {ONE: CMS})
    assert (message.state, message.connection.received, message.since, message.ended) == ("end", 900, 10.0, 80.0)
    assert len(lives) == 0
    lives.begin(Flow(ONE, a_connection(), 90.0))
    assert states(due(lives, 91.0, {ONE: CMS}, 0)) == [("start", 0)]
    assert due(lives, 9000.0, {ONE: CMS}, 0) == []


def test_messages_wait_for_the_jobs_mark_with_the_times_that_they_are_about() -> None:
    lives = FlowLives()
    lives.begin(Flow(ONE, a_connection(1), 10.0))
    lives.end(Flow(ONE, a_connection(1, received=7), 10.0), 11.0)
    lives.begin(Flow(TWO, a_connection(2), 10.0))
    lives.end(Flow(TWO, a_connection(2), 10.0), 12.0)
    assert due(lives, 200.0, {}) == []
    assert lives.keys() == {ONE, TWO}
    found = due(lives, 300.0, {TWO: None, ONE: CMS})
    assert [(each.state, each.since, each.ended) for each in found] == [("start", 10.0, None), ("end", 10.0, 11.0)]
    # A job without a mark is nobody's business.
    assert (len(lives), lives.lost) == (0, 0)
    lives.begin(Flow(ONE, a_connection(), 10.0))
    lives.end(Flow(ONE, a_connection(), 10.0), 11.0)
    assert due(lives, 11.0 + flow_lives.PATIENCE, {}) == []
    assert (len(lives), lives.lost) == (0, 1)


def test_a_flow_of_an_earlier_service_is_not_started_again() -> None:
    lives = FlowLives()
    lives.begin(Flow(ONE, a_connection(), 10.0, again=True))
    assert states(due(lives, 30.0, {ONE: CMS})) == []
    assert states(due(lives, 70.0, {ONE: CMS})) == [("ongoing", 0)]
    lives.end(Flow(ONE, a_connection(), 10.0), 80.0)
    assert states(due(lives, 81.0, {ONE: CMS})) == [("end", 0)]


def test_a_flow_that_is_known_stays_as_it_is() -> None:
    lives = FlowLives()
    lives.begin(Flow(ONE, a_connection(), 10.0))
    assert states(due(lives, 11.0, {ONE: CMS})) == [("start", 0)]
    lives.begin(Flow(ONE, a_connection(received=9), 10.0))
    assert due(lives, 12.0, {ONE: CMS}) == []


def test_what_is_not_sent_yet_is_due_again() -> None:
    lives = FlowLives()
    for cookie in (1, 2):
        lives.begin(Flow(ONE, a_connection(cookie), 10.0))
        lives.end(Flow(ONE, a_connection(cookie), 10.0), 11.0)
    lives.begin(Flow(ONE, a_connection(3), 10.0))
    seen = []
    # One message at a time, as a sender has it that is at its limit.
    while len(lives) and (found := next(iter(one(lives)), None)) is not None:
        seen.append((str(found.state), found.connection.cookie))
        if len(seen) == 20:
            break
    assert set(seen) == {("start", 1), ("end", 1), ("start", 2), ("end", 2), ("start", 3)}


def one(lives: FlowLives) -> Iterator[Message]:
    """The first message that is due, taken as sent."""
    messages = lives.due(20.0, 60, lambda key: True, lambda _, key: CMS)
    for message in messages:
        next(messages, None)
        yield message
        return


def test_flows_beyond_the_limits_are_counted_and_nothing_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_lives, "MOST_OPEN", 3)
    monkeypatch.setattr(flow_lives, "MOST_OVER", 2)
    lives = FlowLives()
    for cookie in range(5):
        lives.begin(Flow(ONE, a_connection(cookie), 1.0))
    assert (len(lives), lives.lost) == (3, 2)
    for cookie in range(5):
        lives.end(Flow(ONE, a_connection(cookie), 1.0), 2.0)
    assert (len(lives), lives.lost) == (2, 3)


class Receiver:
    """A UDP socket, and what came there."""

    def __init__(self, address: str, port: int = 0) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.bind((address, port))
        self.port = int(self._socket.getsockname()[1])
        self.seen: list[dict[str, Any]] = []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                data = self._socket.recv(65536)
            except OSError:
                return
            if not data:
                return
            self.seen.append(read(data))

    def states(self) -> list[str]:
        return [each["flow-lifecycle"]["state"] for each in self.seen]

    def close(self) -> None:
        # Wakes the thread, which a closed descriptor alone would not.
        with socket.socket(self._socket.family, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self._socket.getsockname()[:2])
        self._socket.close()


@contextmanager
def receiving(address: str = "127.0.0.1", port: int = 0) -> Iterator[Receiver]:
    receiver = Receiver(address, port)
    try:
        yield receiver
    finally:
        receiver.close()


class Link:
    """A controller that answers what a test sets."""

    def __init__(self, marks: Marks | None) -> None:
        self.marks_now = marks
        self.asked = 0

    def marks(self, host: str, job_ids: list[str]) -> Marks:
        self.asked += 1
        if self.marks_now is None:
            raise AwayError("away")
        return self.marks_now


@contextmanager
def fireflies(link: Link, jobs: dict[tuple[int, int], str]) -> Iterator[Fireflies]:
    def records() -> tuple[Record, ...]:
        found = tuple(
            SimpleNamespace(starter=pid, started=at, id=job, machine="w", pending=(), over=False, made=False)
            for (pid, at), job in tuple(jobs.items())
        )
        return cast("tuple[Record, ...]", found)

    made = Fireflies(cast("ControllerLink", link), records, PREFIX, NO_MARKER)
    made.start(list)
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_every_collector_is_told_over_either_family(address: str) -> None:
    with receiving(address) as first, receiving("127.0.0.1") as second:
        link = Link(Marks("1", (Collector(address, first.port), Collector("127.0.0.1", second.port)), jobs={"a": CMS}))
        with fireflies(link, {ONE: "a"}) as made:
            made.revise("1")
            made.note(Turns([Flow(ONE, a_connection(), time.monotonic())], []), time.monotonic())
            made.note(Turns([], [Flow(ONE, a_connection(sent=5), 0.0)]), time.monotonic())
            wait(lambda: first.states() == second.states() == ["start", "end"])
            assert made.sent == 4
    assert [each["usage"]["sent"] for each in first.seen] == [5, 5]
    assert abs(datetime.fromisoformat(first.seen[1]["flow-lifecycle"]["end-time"]).timestamp() - time.time()) < 60


def test_flows_to_silent_networks_and_of_jobs_without_a_mark_are_told_to_nobody() -> None:
    with receiving() as receiver:
        place = (Collector("127.0.0.1", receiver.port),)
        link = Link(Marks("1", place, silent=(ip_network("192.0.2.0/24"),), jobs={"a": CMS, "b": None}))
        with fireflies(link, {ONE: "a", TWO: "b"}) as made:
            made.revise("1")
            flows = [
                Flow(ONE, a_connection(1), 0.0),
                Flow(TWO, a_connection(2, remote="3fff::1"), 0.0),
                Flow(ONE, a_connection(3, remote="198.51.100.1"), 0.0),
            ]
            made.note(Turns(flows, []), time.monotonic())
            wait(lambda: len(receiver.seen) == 1)
            made.note(Turns([], flows), time.monotonic())
            wait(lambda: len(receiver.seen) == 2)
        assert {each["flow-id"]["dst-ip"] for each in receiver.seen} == {"198.51.100.1"}


def test_a_flow_that_goes_on_has_the_mark_that_its_job_gets_later() -> None:
    flow = Flow(ONE, a_connection(), time.monotonic())
    with receiving() as receiver:
        place = (Collector("127.0.0.1", receiver.port),)
        link = Link(Marks("2", place, jobs={"a": None}))
        with fireflies(link, {ONE: "a"}) as made:
            made._announce = lambda: made.note(Turns([flow], []), time.monotonic())
            # While nobody is told, and while its job has no mark.
            made.revise("")
            made.note(Turns([flow], []), time.monotonic())
            made.revise("2")
            wait(lambda: link.asked == 1 and len(made._lives) == 0)
            link.marks_now = Marks("3", place, jobs={"a": CMS})
            made.revise("3")
            wait(lambda: receiver.states() == ["start"])


def test_nobody_is_asked_and_nothing_kept_while_nobody_is_told() -> None:
    link = Link(Marks("1", jobs={"a": CMS}))
    with fireflies(link, {ONE: "a"}) as made:
        informed = [made.informed]
        made.revise("")
        assert [*informed, made.informed] == [False, True]
        made.note(Turns([Flow(ONE, a_connection(), 0.0)], []), 1.0)
        assert len(made._lives) == 0
        assert (link.asked, made.sent) == (0, 0)


def test_a_controller_that_is_away_delays_messages_and_no_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "AWAY_SECONDS", 0.1)
    with receiving() as receiver:
        link = Link(None)
        with fireflies(link, {ONE: "a"}) as made:
            made.revise("1")
            made.note(Turns([Flow(ONE, a_connection(), 0.0)], []), 1.0)
            wait(lambda: link.asked >= 2)
            assert receiver.seen == []
            link.marks_now = Marks("1", (Collector("127.0.0.1", receiver.port),), jobs={"a": CMS})
            wait(lambda: receiver.states() == ["start"])


def test_a_controller_that_answers_late_does_not_put_off_the_next_jobs_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    late = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + late[0], time=time.time, thread_time=time.thread_time)
    monkeypatch.setattr(sending, "time", clock)

    class Late(Link):
        def marks(self, host: str, job_ids: list[str]) -> Marks:
            late[0] += 600.0
            return super().marks(host, job_ids)

    link, jobs = Late(Marks("1", jobs={"a": CMS, "b": CMS})), {ONE: "a"}
    with fireflies(link, jobs) as made:
        made.revise("1")
        wait(lambda: link.asked == 1)
        jobs[TWO] = "b"
        wait(lambda: link.asked == 2)


def test_no_more_is_sent_than_the_limit_and_the_rest_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BURST", 10.0)
    monkeypatch.setattr(sending, "RATE", 1e-9)
    with receiving() as receiver:
        link = Link(Marks("1", (Collector("127.0.0.1", receiver.port),), jobs={"a": CMS}))
        with fireflies(link, {ONE: "a"}) as made:
            made.revise("1")
            made.note(Turns([Flow(ONE, a_connection(each), 0.0) for each in range(100)], []), 1.0)
            wait(lambda: made.sent == 10)
            made._bucket = Bucket(1.0, 90.0, time.monotonic())
            wait(lambda: len(receiver.seen) == 100)
        assert len({(each["flow-lifecycle"]["state"]) for each in receiver.seen}) == 1


POLICY = """
version: 1
networks: {local: [10.0.0.0/8]}
scitags: {collectors: ["127.0.0.1:PORT"], destinations: true, flows: all, ongoing: 5, labels: true}
policies:
  - scitags: {experiment: 3, activity: 12, requested: [15], when: 'Owner == "alice"'}
"""


@pytest.mark.ovs
@pytest.mark.parametrize("address", ["127.77.0.1", "::1"])
def test_real_transfers_are_told_from_their_start_to_their_end(pool: Pool, address: str) -> None:
    pool.stop_service()
    pool.environment["LARK_WORKER_COUNTER_SECONDS"] = "0.2"
    with (
        receiving() as collector,
        serving(address) as server,
        receiving("127.77.0.1", 10514) as destination,
        capturing() as capture,
    ):
        server.second_half.clear()
        pool.client.put_policy(POLICY.replace("PORT", str(collector.port)))
        pool.start_service()
        worker = pool.worker
        assert worker is not None
        starter = pool.starter(1, "alice", 'NetworkType = "none"\n')
        other = pool.starter(2, "bob", 'NetworkType = "none"\n')
        # Input begins before the job's start is registered; bob's job has no mark.
        starter.run(f"( {client(pool, server, 200_000)}; true ) & copy=$!")
        other.run(f"( {client(pool, server, 200_000)}; true ) & copy=$!")
        wait(lambda: worker.transfers.followed == 2)
        pool.hook(starter, "start", "alice", 1, "ScitagActivity = 15\n")
        pool.hook(other, "start", "bob", 2)
        wait(lambda: collector.states() == ["start", "ongoing"], limit=40)
        (connection,) = [each.connection for each in worker.transfers.flows() if each.key[0] == starter.pid]
        assert len(worker.fireflies._labels) == (address == "::1")
        server.second_half.set()
        if address == "::1":
            marked = Scitag(3, 15).label
            wait(lambda: marked in {each & LABEL_MASK for each in capture.labels(connection.ports[0])})
            # Neither bob's packets nor the server's are marked.
            ports = {each[0] for each in capture.seen if each[2] & LABEL_MASK == marked}
            assert ports == {connection.ports[0]}
        server.release.set()
        starter.run("wait $copy")
        wait(lambda: collector.states() == ["start", "ongoing", "end"])
        wait(lambda: len(worker.fireflies._labels) == 0)
        last = collector.seen[-1]
        assert last["flow-id"]["dst-ip"] == address
        assert last["flow-id"]["dst-port"] == server.port
        assert last["context"] == {"experiment-id": 3, "activity-id": 15, "application": "lark"}
        assert 1_000_000 <= last["usage"]["received"] <= 1_000_004
        assert 200_000 <= last["usage"]["sent"] <= 200_004
        if address != "::1":
            wait(lambda: destination.states() == collector.states())
            assert destination.seen == collector.seen


@pytest.mark.ovs
def test_a_policy_that_comes_while_files_are_moved_marks_them(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "OLD_SECONDS", 0.5)
    pool.stop_service()
    pool.environment["LARK_WORKER_COUNTER_SECONDS"] = "0.2"
    with receiving() as collector, serving("::1") as server:
        pool.start_service()
        worker = pool.worker
        assert worker is not None
        starter = pool.starter(1, "alice", 'NetworkType = "none"\n')
        starter.run(f"( {client(pool, server, 200_000)}; true ) & copy=$!")
        pool.hook(starter, "start", "alice", 1)
        wait(lambda: worker.transfers.followed == 1 and worker.fireflies.informed)
        pool.client.put_policy(POLICY.replace("PORT", str(collector.port)))
        wait(lambda: collector.states()[:1] == ["start"])
        wait(lambda: len(worker.fireflies._labels) == 1)
        server.release.set()
        starter.run("wait $copy")
        wait(lambda: collector.states()[-1:] == ["end"])


FLOWD = """
import queue, socket, sys, threading, types
# Its own file of settings is below /etc, and its absence ends the program.
sys.modules["scitags.config"] = types.SimpleNamespace(config={})
from scitags.plugins import firefly
found = queue.Queue()
server = firefly.ThreadedUDPServer(("127.0.0.1", 0), firefly.ThreadedUDPRequestHandler, found)
threading.Thread(target=server.serve_forever, daemon=True).start()
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for line in sys.stdin:
    sender.sendto(bytes.fromhex(line), server.server_address)
    print("read", *found.get(timeout=20)[:10], flush=True)
"""


def test_the_scitags_projects_own_daemon_reads_them() -> None:
    connection = Connection(1, 9, FAR6, 7, 8, ip_address("3fff::2"), (40000, 9618))
    sent = [datagram(state, CMS, connection, Times(1e9, 1e9 + 60)).hex() for state in State]
    done = subprocess.run(
        [sys.executable, "-c", FLOWD], input="\n".join(sent), capture_output=True, text=True, timeout=60, check=True
    )
    start, end = "2001-09-09T01:46:40.000+00:00", "2001-09-09T01:47:40.000+00:00"
    flow = "tcp 3fff::2 40000 3fff::1 9618 3 12"
    assert [line for line in done.stdout.splitlines() if line.startswith("read ")] == [
        f"read start {flow} {start} None",
        f"read ongoing {flow} None None",
        f"read end {flow} {start} {end}",
    ]
