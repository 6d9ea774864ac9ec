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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(communicator, "time", SimpleNamespace(monotonic=clock.monotonic))
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
    standin.instead = lambda job, method, path: AWAY if path == "/v1/paths" else None
    assert made.changed(0) is False
    made._flows.release()
