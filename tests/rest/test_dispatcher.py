"""The order in which requests are answered, whoever asks without a pause."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from waitress.task import ThreadedTaskDispatcher

from lark_common.turns import aside
from lark_controller.rest.server.dispatcher import FIRST_THREADS, MOST, MOST_CHARGED, MOST_OF_ONE, Dispatcher
from lark_controller.rest.tokens import Scope, Token

PATIENCE = 60.0


@dataclass
class Server:
    """Answers requests of channels that need no socket; ``begun`` has the names of those under way or over."""

    dispatcher: Dispatcher
    begun: list[str] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def ask(
        self,
        token: str,
        path: str = "/v1/jobs",
        peer: str = "192.0.2.1",
        waits: bool = False,
        command: str = "GET",
        work: Callable[[], object] = lambda: None,
    ) -> Request:
        request = Request(self, token or peer, path, token, peer, waits, command, work)
        self.dispatcher.add_task(request)
        return request

    def wait_for(self, count: int) -> list[str]:
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.begun) >= count, PATIENCE), self.begun
            return list(self.begun)

    def wait_until_idle(self) -> None:
        """Wait until no thread has a request: one that begins, or has answered, is busy until it has looked for one."""
        until = time.monotonic() + PATIENCE
        while not self._is_idle():
            assert time.monotonic() < until, self.begun
            time.sleep(0.001)

    def _is_idle(self) -> bool:
        with self.dispatcher.lock:
            return not self.dispatcher.active_count and not self.dispatcher.queue


class Request:
    """A connection with one request, which is answered once it is let go; ``waits``: for others, not to calculate."""

    def __init__(
        self,
        server: Server,
        name: str,
        path: str,
        token: str,
        peer: str,
        waits: bool,
        command: str,
        work: Callable[[], object],
    ) -> None:
        headers = {"AUTHORIZATION": f"Bearer {token}"} if token else {}
        self.requests = [SimpleNamespace(headers=headers, path=path, command=command)]
        self._work = work
        self.peer = peer
        self.let_go = threading.Event()
        self._server, self._name, self._waits = server, name, waits

    def service(self) -> None:
        with self._server.changed:
            self._server.begun.append(self._name)
            self._server.changed.notify_all()
        self._work()
        if self._waits:
            with aside():
                assert self.let_go.wait(PATIENCE)
        else:
            assert self.let_go.wait(PATIENCE)

    def cancel(self) -> None:
        self.let_go.set()


def a_token(name: str) -> Token:
    """The token of that name: of a worker's hook, of the hooks of all workers, or one that reads."""
    scope = Scope.HOOK if name.startswith(("hook", "pool")) else Scope.READ
    return Token(name, "", frozenset({scope}), hosts=("worker1",) if name.startswith("hook") else None)


@pytest.fixture
def server() -> Iterator[Server]:
    made = Dispatcher(lambda header: a_token(header.removeprefix("Bearer ")) if "false" not in header else None)
    made.set_thread_count(40)
    yield Server(made)
    made.shutdown(timeout=PATIENCE)


def test_one_token_asks_without_a_pause_and_others_begin_at_once(server: Server) -> None:
    flood = [server.ask("script") for _ in range(200)]
    assert server.wait_for(MOST_OF_ONE) == ["script"] * MOST_OF_ONE
    others = [server.ask("hook"), server.ask("", "/healthz"), server.ask("", "/readyz", peer="192.0.2.9")]
    assert sorted(server.wait_for(MOST_OF_ONE + 3)[MOST_OF_ONE:]) == ["192.0.2.1", "192.0.2.9", "hook"]
    for request in (*flood, *others):
        request.let_go.set()
    assert server.wait_for(203).count("script") == 200


def test_strangers_take_no_turn_of_a_token_and_health_none_of_theirs(server: Server) -> None:
    flood = [server.ask(token, "/openapi.json") for token in ("", "false") for _ in range(50)]
    server.wait_for(1)
    others = [server.ask(f"token{number}") for number in range(MOST)] + [server.ask("", "/healthz", peer="192.0.2.9")]
    names = server.wait_for(1 + len(others))
    # Each has a thread of its own, so that they begin in any order.
    assert sorted(name for name in names if name.startswith("token")) == [f"token{number}" for number in range(MOST)]
    for request in (*flood, *others):
        request.let_go.set()
    assert "192.0.2.9" in server.wait_for(len(flood) + len(others))


def test_requests_that_wait_keep_no_turn(server: Server) -> None:
    waiting = [server.ask("hook", waits=True) for _ in range(30)]
    assert server.wait_for(30) == ["hook"] * 30
    working = server.ask("hook")
    server.wait_for(31)
    for request in (*waiting, working):
        request.let_go.set()


def test_posts_of_all_workers_do_not_rest_for_those_that_read(server: Server) -> None:
    """A dashboard that asks now and then must not slow down the starts of jobs, which one token may post for all."""

    # Processor and clock go on when this test says so: on a busy machine a thread may stand still between two lines for
    # longer than the others' question counts.
    used = now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    for turns in (server.dispatcher._turns, server.dispatcher._jobs):
        turns.processor, turns.clock, turns._sleep = lambda: used, lambda: now, sleep

    def work() -> None:
        nonlocal used
        used += 3.0
        sleep(1.0)
        # Another reader asks at the end as well: the first one's question is long ago.
        server.dispatcher._turns.others_ask()

    def rests(token: str, command: str) -> bool:
        """True where a token that has used much of the processor rests, while another one reads."""
        count = len(server.begun)
        server.ask("dashboard").let_go.set()
        server.wait_for(count + 1)
        server.wait_until_idle()
        server.ask(token, command=command, work=work).let_go.set()
        server.wait_for(count + 2)
        server.wait_until_idle()
        of = (server.dispatcher._jobs if command == "POST" else server.dispatcher._turns)._all.of
        return next(share for name, share in of.items() if name.startswith(token)).rests_until > 0

    assert rests("script", "GET")
    assert rests("hook1", "GET")
    assert not rests("pool", "POST")
    assert not rests("hook2", "POST")


def test_addresses_with_the_token_of_all_workers_are_callers_of_their_own(server: Server) -> None:
    flood = [server.ask("pool", command="POST", peer="192.0.2.7") for _ in range(50)]
    server.wait_for(MOST_OF_ONE)
    others = [server.ask("pool", command="POST", peer=f"192.0.2.{20 + number}") for number in range(MOST - MOST_OF_ONE)]
    server.wait_for(MOST)
    for request in (*flood, *others):
        request.let_go.set()
    server.wait_for(len(flood) + len(others))


def test_the_connections_thread_is_charged_to_those_whose_requests_came(server: Server) -> None:
    def used(token: str) -> float:
        return server.dispatcher._turns._all.of[token].used

    server.dispatcher.charge(0.0003)  # of a turn that brought no request whole
    asked = [server.ask("script") for _ in range(2)] + [server.ask("dashboard")]
    server.wait_for(3)
    server.dispatcher.charge(0.0006)
    assert used("script") == pytest.approx(0.0006, abs=1e-4)
    assert used("dashboard") == pytest.approx(0.0003, abs=1e-4)
    server.dispatcher.charge(0.0003)
    assert used("script") == pytest.approx(0.0006, abs=1e-4)
    # A stranger's connections may have taken most of the time.
    asked.append(server.ask("other"))
    server.wait_for(4)
    server.dispatcher.charge(5.0)
    assert MOST_CHARGED <= used("other") < 2 * MOST_CHARGED
    for request in asked:
        request.let_go.set()


def test_threads_are_started_when_they_are_needed(server: Server) -> None:
    for count in range(1, 60):
        server.wait_until_idle()
        server.ask("hook", command="POST").let_go.set()
        server.wait_for(count)
    assert len(server.dispatcher.threads) == FIRST_THREADS
    waiting = [server.ask(f"hook{number}", command="POST", waits=True) for number in range(60)]
    server.wait_for(59 + 40)
    assert len(server.dispatcher.threads) == 40
    for request in waiting:
        request.let_go.set()
    server.wait_for(59 + 60)


def test_requests_that_come_in_at_once_stop_no_thread(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    many = 24
    set_thread_count = ThreadedTaskDispatcher.set_thread_count

    def slowly(dispatcher: Dispatcher, count: int) -> None:
        time.sleep(0.01)
        assert count >= len(dispatcher.threads) - dispatcher.stop_count
        set_thread_count(dispatcher, count)

    monkeypatch.setattr(ThreadedTaskDispatcher, "set_thread_count", slowly)
    asked: list[Request] = []
    together = threading.Barrier(many)

    def ask(number: int) -> None:
        together.wait()
        asked.append(server.ask(f"hook{number}", command="POST", waits=True))

    asking = [threading.Thread(target=ask, args=(number,)) for number in range(many)]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    server.wait_for(many)
    assert len(asked) == many
    assert len(server.dispatcher.threads) >= many
    monkeypatch.undo()
    for request in asked:
        request.let_go.set()


def test_where_no_thread_can_be_started_those_that_are_there_answer(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none_left)
    waiting = [server.ask(f"hook{number}", command="POST", waits=True) for number in range(FIRST_THREADS + 2)]
    server.wait_for(FIRST_THREADS)
    assert len(server.dispatcher.threads) == FIRST_THREADS
    for request in waiting:
        request.let_go.set()
    server.wait_for(FIRST_THREADS + 2)
