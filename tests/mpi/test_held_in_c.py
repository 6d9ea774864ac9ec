"""Flows that the C library holds: their renewal beside a change, a child of the process, their end beside a thread."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import temporary_directory
from tests.mpi.ranks import built
from tests.mpi.standin import Standin
from tests.worker.pool import eventually


class Program:
    """The program, and the standin that it asks."""

    def __init__(self, folder: Path) -> None:
        self.standin = Standin(folder, ["one", "two", "three"])
        self._process = subprocess.Popen(
            [built("mpich") / "held"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LARK_SOCKET": str(self.standin.sockets[0])},
        )

    def begin(self, step: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{step}\n")
        self._process.stdin.flush()

    def done(self, step: str) -> None:
        assert self._process.stdout is not None
        # One that has locked itself out would write nothing for ever.
        late = threading.Timer(60, self._process.kill)
        late.start()
        try:
            assert self._process.stdout.readline() == f"{step}\n"
        finally:
            late.cancel()

    def do(self, *steps: str) -> None:
        for step in steps:
            self.begin(step)
            self.done(step)

    def rates(self) -> list[float]:
        return list(self.standin.rates().values())

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            assert self._process.wait(30) == 0
        finally:
            self._process.kill()
            self._process.wait()
            self.standin.close()


@pytest.fixture
def program() -> Iterator[Program]:
    with temporary_directory() as name:
        made = Program(Path(name))
        yield made
        made.close()


def test_a_renewal_does_not_overtake_a_change(program: Program) -> None:
    begun, changed = threading.Event(), threading.Event()

    def delay(job: int, method: str) -> None:
        if method == "PATCH" and not begun.is_set():
            begun.set()
            # The change has its chance to be made meanwhile; it is not to take it.
            changed.wait(0.3)

    program.do("take")
    program.standin.delay = delay
    program.do("renew")
    assert begun.wait(10)
    program.do("change")
    changed.set()
    eventually(lambda: sum(each[1] == "PATCH" for each in program.standin.requests) == 2)
    assert program.rates() == [60.0]
    program.do("end")
    assert program.rates() == []


def test_a_longer_lease_puts_off_no_renewal(program: Program) -> None:
    program.do("take", "longer", "end")


def test_what_is_reserved_is_renewed_before_the_last_flow_is_there(program: Program) -> None:
    renewed = threading.Event()

    def delay(job: int, method: str) -> None:
        if method == "PATCH":
            renewed.set()
        elif method == "POST" and program.standin.rates():
            renewed.wait(15)

    program.standin.delay = delay
    program.do("slow")
    assert renewed.is_set()
    assert program.rates() == [30.0, 30.0]
    program.do("end")


def test_renewals_go_on_though_the_program_changes_its_environment(program: Program) -> None:
    program.do("take", "setenv", "renew")
    eventually(lambda: any(each[1] == "PATCH" for each in program.standin.requests))
    program.do("end")
    assert program.rates() == []


def test_where_nobody_answers_the_end_waits_for_one_communicator_and_not_for_each(program: Program) -> None:
    program.do("take", "second")
    program.standin.instead = lambda job, method, path: b"HTTP/1.1 503 Away\r\n\r\n{}"
    program.do("end")
    assert len({path for _, method, path in program.standin.requests if method == "DELETE"}) == 1


def test_a_child_that_frees_its_communicators_releases_nothing_of_its_parents(program: Program) -> None:
    program.do("take", "fork")
    assert program.rates() == [30.0]
    program.do("end")
    assert program.rates() == []


def test_a_thread_that_begins_to_wait_while_another_one_releases_is_told_of_it(program: Program) -> None:
    program.do("take", "part")
    assert program.rates() == []
    program.do("end")


def test_a_change_is_waited_for_though_nobody_answers_hours_after_the_last_look(program: Program) -> None:
    # In Python: test_unanswered_looks.py.
    program.do("take")
    program.standin.instead = lambda job, method, path: b"HTTP/1.1 503 Away\r\n\r\n{}"
    program.do("listen", "listen", "silent")
    program.standin.instead = lambda job, method, path: None
    program.do("end")


def test_a_look_in_each_step_of_a_loop_is_no_request_in_each(program: Program) -> None:
    # In Python: test_unanswered_looks.py.
    program.do("take")
    asked = len(program.standin.requests)

    def delay(job: int, method: str) -> None:
        program.standin.capacity -= 1

    # Each answer is another than the one before, so that whoever asks is told of a change.
    program.do("take")
    program.standin.delay = delay
    program.do("often")
    assert len(program.standin.requests) - asked <= 10
    program.do("end")


def test_what_was_lost_is_still_shown_as_lost_after_a_refusal(program: Program) -> None:
    program.do("take")
    program.standin.reservations.clear()
    gone = b'HTTP/1.1 404 Not Found\r\n\r\n{"detail": "it is over"}'
    program.standin.instead = lambda job, method, path: gone if method == "GET" and "/reservations/" in path else None
    program.do("refused", "refused")
    assert program.rates() == []
    program.standin.instead = lambda job, method, path: None
    program.do("take")
    assert program.rates() == [30.0]
    program.do("end")


def test_a_value_of_the_attribute_that_is_not_the_librarys_is_left_alone(program: Program) -> None:
    program.do("take", "foreign")
    assert program.rates() == [30.0]
    program.do("end")
