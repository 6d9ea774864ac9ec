"""Requests at the worker's socket: its answers, and what is none."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import temporary_directory
from lark_mpi import held, service
from lark_mpi.errors import ReservationError
from lark_mpi.held import Flows
from lark_mpi.service import ask
from tests.mpi.odd_answers import ODD
from tests.mpi.standin import Standin
from tests.worker.pool import eventually

OTHER = f"{1:016x}"
THIRD = f"{2:016x}"


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    with temporary_directory() as folder:
        made = Standin(Path(folder), ["a", "b", "c"])
        monkeypatch.setenv("LARK_SOCKET", str(made.sockets[0]))
        yield made
        made.close()


def test_a_machine_without_a_worker_service_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LARK_SOCKET", "/nonexistent")
    with pytest.raises(ReservationError, match="/nonexistent: no worker service of Lark is here"):
        ask("GET", "/v1/job")


def test_the_usual_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LARK_SOCKET", raising=False)
    assert service.path() == "/run/lark-worker/worker.sock"


@pytest.mark.parametrize("answer", ODD)
def test_an_answer_that_is_none_is_a_sentence(standin: Standin, answer: bytes) -> None:
    standin.instead = lambda job, method, path: answer
    with pytest.raises(ReservationError, match=r"the worker service cannot be asked: its? "):
        ask("GET", "/v1/job", patience=0)


def test_an_answer_without_end_is_not_kept(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "MAX_ANSWER", 1000)
    standin.instead = lambda job, method, path: b"HTTP/1.1 200 OK\r\n\r\n" + b" " * 2000
    with pytest.raises(ReservationError, match="its answer is too long"):
        ask("GET", "/v1/job", patience=0)


def test_a_job_that_asks_too_often_asks_again(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PAUSE", 0.01)
    answers = [b"HTTP/1.1 429 Too Many Requests\r\n\r\n{}", b"HTTP/1.1 503 Away\r\n\r\n{}", b""]
    standin.instead = lambda job, method, path: answers.pop() if answers else None
    assert ask("GET", "/v1/job")[1]["host"] == "a"
    answers += [b'HTTP/1.1 503 Away\r\n\r\n{"detail": "no controller"}'] * 2
    assert service.reason(ask("GET", "/v1/job", patience=0)) == "no controller"


def test_a_reason_is_a_line_for_a_terminal() -> None:
    assert service.reason((409, {"detail": "link \x1b[31m is full\n\u2026"})) == "link ?[31m is full?\u2026"
    assert service.reason((409, {"detail": "no " * 10_000})) == ("no " * 200)[:512]


def test_a_full_queue_is_waited_for_in_the_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening, temporary_directory() as folder:
        path = f"{folder}/full.sock"
        listening.bind(path)
        listening.listen(0)
        monkeypatch.setenv("LARK_SOCKET", path)
        with socket.socket(socket.AF_UNIX) as filler:
            filler.connect(path)
            answers: list[object] = []
            asking = threading.Thread(target=lambda: answers.append(ask("GET", "/v1/job", patience=0)))
            asking.start()
            listening.accept()[0].close()
            caller, _ = listening.accept()
            with caller:
                assert caller.recv(4096).startswith(b"GET /v1/job HTTP/1.1\r\n")
                caller.sendall(b'HTTP/1.1 200 OK\r\n\r\n{"id": "one"}')
            asking.join(60)
        assert answers == [(200, {"id": "one"})]


def reserved(*peers: str, lease: float = held.LEASE) -> Flows:
    """Flows of this job to others, with 30 Mb/s reserved for each."""
    flows = Flows(lease=lease)
    flows.prepare(dict.fromkeys(peers, 30.0))
    flows.commit()
    return flows


def test_a_change_is_taken_first_and_given_back_last(standin: Standin) -> None:
    flows = reserved(OTHER, THIRD)
    own = f"{0:016x}"
    assert standin.rates() == {(own, OTHER): 30.0, (own, THIRD): 30.0}
    flows.prepare({OTHER: 60.0})
    assert standin.rates() == {(own, OTHER): 60.0, (own, THIRD): 30.0}
    flows.undo()
    assert standin.rates() == {(own, OTHER): 30.0, (own, THIRD): 30.0}
    with pytest.raises(ReservationError, match="Mb/s left… and 45 are asked"):
        flows.prepare({OTHER: 20.0, THIRD: 75.0})
    flows.undo()
    assert standin.rates() == {(own, OTHER): 30.0, (own, THIRD): 30.0}
    flows.prepare({OTHER: 20.0})
    flows.commit()
    assert standin.rates() == {(own, OTHER): 20.0}
    flows.release()
    flows.release()
    assert standin.rates() == {}


def test_a_flow_that_is_over_is_lost_and_can_be_had_anew(standin: Standin) -> None:
    flows = reserved(OTHER, lease=3)
    standin.reservations.clear()
    eventually(lambda: "no reservation has the id" in flows.made()[OTHER].lost)
    flows.prepare({OTHER: 30.0})
    flows.commit()
    assert not flows.made()[OTHER].lost
    assert list(standin.rates().values()) == [30.0]
    flows.release()


@pytest.mark.parametrize("rate", [30.0, 60.0, 20.0])
def test_a_flow_that_has_ended_since_its_last_renewal_is_had_anew(standin: Standin, rate: float) -> None:
    flows = reserved(OTHER, THIRD)
    # As an operator releases one of them.
    released = next(key for key, each in standin.reservations.items() if each["peer"] == OTHER)
    del standin.reservations[released]
    flows.prepare({OTHER: rate, THIRD: 30.0})
    flows.commit()
    own = f"{0:016x}"
    assert standin.rates() == {(own, OTHER): rate, (own, THIRD): 30.0}
    flows.release()


def test_a_share_that_has_ended_though_its_flow_lives_on_is_had_anew(standin: Standin) -> None:
    flows = reserved(OTHER)
    over = b'HTTP/1.1 404 Not Found\r\n\r\n{"detail": "no share has that id"}'
    standin.instead = lambda job, method, path: over if method == "PATCH" else None
    flows.prepare({OTHER: 60.0})
    assert flows.made()[OTHER].rate == 60.0
    standin.instead = lambda job, method, path: None
    # What the program had before is what it has after a refusal.
    flows.undo()
    assert flows.made()[OTHER].rate == 30.0
    flows.release()


def test_where_nobody_answers_a_release_ends_nevertheless(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PAUSE", 0.01)
    monkeypatch.setattr(held, "RENEWAL_PATIENCE", 0.05)
    flows = reserved(OTHER, lease=3)
    standin.instead = lambda job, method, path: b""
    flows.release()
    assert flows.made() == {}
    eventually(lambda: standin.rates() == {})


def test_where_nobody_answers_the_end_of_a_program_waits_for_one_flow_and_not_for_each(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "PAUSE", 0.01)
    monkeypatch.setattr(held, "RENEWAL_PATIENCE", 0.05)
    flows = reserved(OTHER, THIRD, lease=60)
    standin.instead = lambda job, method, path: b"HTTP/1.1 503 Away\r\n\r\n{}"
    flows.release()
    assert flows.made() == {}
    assert len({path for _, method, path in standin.requests if method == "DELETE"}) == 1


def test_what_is_reserved_is_renewed_before_the_last_flow_is_there(standin: Standin) -> None:
    renewed = threading.Event()

    def delay(job: int, method: str) -> None:
        if method == "PATCH":
            renewed.set()
        elif method == "POST" and standin.rates():
            renewed.wait(15)

    standin.delay = delay
    flows = reserved(OTHER, THIRD, lease=3)
    assert renewed.is_set()
    flows.release()


def test_a_change_of_one_flow_holds_up_no_other_ones_renewal(standin: Standin) -> None:
    flows, change = reserved(OTHER, THIRD), threading.Event()
    begun = threading.Event()

    def delay(job: int, method: str) -> None:
        if method == "PATCH" and not begun.is_set():
            begun.set()
            change.wait(15)

    standin.delay = delay
    changing = threading.Thread(target=flows.prepare, args=({OTHER: 60.0, THIRD: 30.0},))
    changing.start()
    assert begun.wait(15)
    assert flows._renew(THIRD)
    assert not change.is_set()
    change.set()
    changing.join()
    flows.commit()
    flows.release()


def test_a_thread_that_could_not_be_started_is_started_by_the_next_request(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "_renewal", held._Renewal())
    with monkeypatch.context() as patch:

        def none(_thread: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        patch.setattr(threading.Thread, "start", none)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            reserved(OTHER, lease=3)
    assert [request for request in standin.requests if request[1] == "POST"] == []
    flows = reserved(OTHER, lease=3)
    eventually(lambda: any(method == "PATCH" for _, method, _ in standin.requests))
    flows.release()


def test_a_renewal_that_fails_is_tried_again(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    flows = reserved(OTHER, THIRD, lease=3)
    failures = [MemoryError(), MemoryError()]

    def failing(*arguments: Any, **more: Any) -> service.Answer:
        if failures:
            raise failures.pop()
        return ask(*arguments, **more)

    monkeypatch.setattr(held, "ask", failing)
    eventually(lambda: sum(method == "PATCH" for _, method, _ in standin.requests) >= 2)
    assert not failures
    flows.release()


def test_an_id_that_is_none_becomes_no_part_of_a_request(standin: Standin) -> None:
    answer = b""
    standin.instead = lambda job, method, path: answer
    for text in ("", "a b", "a/../b", "a\\r\\nX: y", "\\ud800", "\u00e9"):
        answer = f'HTTP/1.1 201 Created\r\n\r\n{{"id": "{text}"}}'.encode()
        flows = Flows()
        with pytest.raises(ReservationError, match="the worker service answered 201"):
            flows.prepare({OTHER: 1.0})
        assert flows.made() == {}
        flows.release()


def test_where_nobody_answers_the_end_of_a_program_waits_for_one_communicator_and_not_for_each(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "RENEWAL_PATIENCE", 0.0)
    monkeypatch.setattr(held, "_renewal", held._Renewal())
    each = [reserved(OTHER), reserved(THIRD), reserved(OTHER)]
    standin.instead = lambda job, method, path: b"HTTP/1.1 503 Away\r\n\r\n{}"
    held._renewal.release()
    assert [flows.made() for flows in each] == [{}, {}, {}]
    assert len({path for _, method, path in standin.requests if method == "DELETE"}) == 1


def test_a_renewal_does_not_overtake_a_change(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    flows = reserved(OTHER)
    begun, changed = threading.Event(), threading.Event()
    flows._due = 0.0
    renewal = threading.Thread(target=flows.renew)

    def slow(method: str, *arguments: Any, **more: Any) -> service.Answer:
        if threading.current_thread() is renewal:
            begun.set()
            # The change has its chance to be made meanwhile; it is not to take it.
            changed.wait(0.3)
        return ask(method, *arguments, **more)

    monkeypatch.setattr(held, "ask", slow)
    renewal.start()
    assert begun.wait(10)
    flows.prepare({OTHER: 60.0})
    changed.set()
    renewal.join()
    assert list(standin.rates().values()) == [60.0]
    flows.commit()
    flows.release()


def test_a_renewal_without_an_answer_is_tried_again_soon_and_the_others_are_not(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "RENEWAL_PATIENCE", 0.0)
    flows = reserved(OTHER, THIRD, lease=1200)
    first = next(path for path, each in standin.reservations.items() if each["peer"] == OTHER)
    away = b"HTTP/1.1 503 Away\r\n\r\n{}"
    standin.instead = lambda job, method, path: away if path.endswith(first) else None
    flows._due, before = 0.0, time.monotonic()
    assert 90 < flows.renew() - before < 200
    standin.instead = lambda job, method, path: None
    # At the next turn of all, as it was before.
    assert 390 < flows.renew() - before < 600
    renewed = [path.rpartition("/")[2] for _, method, path in standin.requests if method == "PATCH"]
    assert [path == first for path in renewed] == [True, False, True]
    flows.release()


def test_where_nobody_answers_rates_are_lowered_by_the_next_renewal(
    standin: Standin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held, "RENEWAL_PATIENCE", 0.0)
    flows = reserved(OTHER, THIRD, lease=1200)
    standin.instead = lambda job, method, path: b""
    flows.prepare({OTHER: 10.0, THIRD: 10.0})
    monkeypatch.setattr(held, "ask", lambda *arguments, **more: ask(*arguments, **{**more, "patience": 0.0}))
    flows.commit()
    assert len([method for _, method, _ in standin.requests if method == "PATCH"]) == 1
    standin.instead = lambda job, method, path: None
    flows._due = 0.0
    flows.renew()
    assert list(standin.rates().values()) == [10.0, 10.0]
    flows.release()


def test_a_service_that_has_answered_before_is_waited_for(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "PAUSE", 0.01)
    path = standin.sockets[0]
    assert ask("GET", "/v1/job")[0] == 200
    path.rename(path.with_suffix(".away"))
    with pytest.raises(ReservationError, match=r"the worker service cannot be asked: .* is not there"):
        ask("GET", "/v1/job", patience=0.05)
    back = threading.Timer(0.2, path.with_suffix(".away").rename, [path])
    back.start()
    assert ask("GET", "/v1/job")[0] == 200
    back.join()


def test_a_longer_lease_puts_off_no_renewal(standin: Standin) -> None:
    flows = reserved(OTHER, lease=3)
    flows.lease = 3000
    flows.prepare({OTHER: 30.0})
    flows.commit()
    # The reservation is over in three seconds, if it is not renewed before.
    eventually(lambda: any(each["until"] > time.time() + 1000 for each in standin.live().values()), 20)
    flows.release()


def test_many_flows_have_as_long_a_lease_as_their_renewals_need(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def answer(method: str, target: str, body: Any = None, *_: Any, **__: Any) -> service.Answer:
        if method == "GET":
            return 200, {"state": "enforced"}
        asked.append(body)
        return 201, {"id": "0123456789abcdefs1"}

    monkeypatch.setattr(held, "ask", answer)
    flows = Flows(lease=3)
    flows.prepare({f"{number:016x}": 1.0 for number in range(128)})
    assert {body["duration"] for body in asked} == {128.0}
    # Each has a number of its own, by which the service finds a request whose answer was lost.
    assert len({body["share"] for body in asked}) == 128
    assert all(1 <= body["share"] < 10**12 for body in asked)
    flows.release()


def in_a_child(work: Callable[[], object]) -> None:
    """Do something in a child of this process, which must come back from it."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            work()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_frees_its_communicator_releases_nothing_of_its_parents(standin: Standin) -> None:
    flows = reserved(OTHER)
    in_a_child(flows.release)
    assert list(standin.rates().values()) == [30.0]
    flows.release()
    assert standin.rates() == {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_child_that_ends_releases_nothing_of_its_parents(standin: Standin) -> None:
    reserved(OTHER)
    in_a_child(held._renewal.release)
    assert list(standin.rates().values()) == [30.0]
    held._renewal.release()
    assert standin.rates() == {}
