"""A program that waits for changes, and a service or controller that is away meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from lab.namespaces import temporary_directory
from lark_mpi import communicator
from lark_mpi.communicator import Reservation
from lark_mpi.errors import AwayError
from lark_mpi.patterns import Place
from tests.mpi.standin import Standin

LEASE = 300.0
RECEIVER = f"{1:016x}"
AWAY = b'HTTP/1.1 503 Away\r\n\r\n{"detail": "the controller is away"}'


class Clock:
    """Seconds that pass when the test has them pass."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(communicator, "time", SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep))
    return clock


@pytest.fixture
def standin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Standin]:
    with temporary_directory() as folder:
        made = Standin(Path(folder), ["a", "b"])
        monkeypatch.setenv("LARK_SOCKET", str(made.sockets[0]))
        yield made
        made.close()


def test_a_change_is_waited_for_though_nobody_answers_hours_after_the_last_look(standin: Standin, clock: Clock) -> None:
    made = Reservation([Place(f"{0:016x}", "a"), Place(RECEIVER, "b")], 0, LEASE)
    made._flows.prepare({RECEIVER: 30.0})
    made._flows.commit()
    standin.instead = lambda job, method, path: AWAY if path == "/v1/paths" else None
    # What is reserved is renewed all the time, and the first look comes in the moment of a restart.
    for seconds in (7200.0, 7200.0, LEASE / 2, LEASE / 2):
        clock.now += seconds
        assert made.changed(0) is False
    # There was none for a lease now.
    clock.now += LEASE / 2
    with pytest.raises(AwayError, match="the controller is away"):
        made.changed(0)
    # One answer is enough.
    standin.instead = lambda job, method, path: None
    made._look("", 0)
    clock.now += 1
    standin.instead = lambda job, method, path: AWAY if path == "/v1/paths" else None
    assert made.changed(0) is False
    made._flows.release()


def test_a_look_in_each_step_of_a_loop_asks_once_a_second_and_less_often_where_that_is_too_much(
    standin: Standin, clock: Clock
) -> None:
    made = Reservation([Place(f"{0:016x}", "a"), Place(RECEIVER, "b")], 0, LEASE)
    made._flows.prepare({RECEIVER: 30.0})
    made._flows.commit()
    made.paths()

    def asks(seconds: float, timeout: float) -> int:
        """The requests of a loop for so many seconds, in which each step takes a hundredth."""
        before, end = len(standin.requests), clock.now + seconds
        while clock.now < end:
            clock.now += 0.01
            assert made.changed(timeout) is False
        return len(standin.requests) - before

    assert 9 <= asks(10, 0) <= 11
    assert 9 <= asks(10, 0.05) <= 11
    # What has changed is told by the next one.
    standin.capacity = 50.0
    clock.now += 1
    assert made.changed(0) is True
    busy = b'HTTP/1.1 429 Too Many Requests\r\n\r\n{"detail": "This job asks too often"}'
    standin.instead = lambda job, method, path: busy if path == "/v1/paths" else None
    # After 2, 4, 8 and then 16 seconds each.
    assert asks(62, 0) <= 7
    standin.instead = lambda job, method, path: None
    made._flows.release()
