"""Programs on four ranks that wait for changes of their paths, with a stand-in for worker service and controller."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import temporary_directory
from tests.mpi.ranks import MPIS, c, environment, finish, python, start
from tests.mpi.standin import Standin
from tests.worker.pool import eventually


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_directory() as name:
        yield Path(name)


class Ranks:
    """One of the programs on four ranks of two jobs, with the stand-in that answers them."""

    def __init__(self, mpi: str, language: str, folder: Path, program: str, *later: str) -> None:
        self.standin = Standin(folder, ["one", "two", *later])
        self._folder = folder
        command = python(program) if language == "python" else c(mpi, program)
        self._process = start(mpi, folder, self.standin.sockets[:2], command)

    def wait_for(self, step: str) -> None:
        """Wait until the ranks have come to a step, or have ended."""
        eventually(lambda: (self._folder / step).exists() or self._process.poll() is not None, 60)

    def go_on(self, step: str) -> None:
        """Let the ranks go on behind a step."""
        (self._folder / f"{step} seen").touch()

    def finish(self) -> list[Any]:
        """The answer of each rank at its end, which must be a good one."""
        outcome = finish(self._process, self._folder)
        self.standin.close()
        assert outcome.status == 0, outcome.output
        assert sorted(outcome.told) == [0, 1, 2, 3]
        return list(outcome.told.values())


@pytest.mark.parametrize("language", ["python", "c"])
@pytest.mark.parametrize("mpi", MPIS)
def test_every_rank_is_told_of_a_change_and_of_none_before(mpi: str, language: str, folder: Path) -> None:
    ranks = Ranks(mpi, language, folder, "adapts")
    standin = ranks.standin
    ranks.wait_for("waiting")
    asked = len(standin.requests)
    standin.counts = mpi == "mpich"
    standin.capacity = 50.0
    for seen in ranks.finish():
        ((job, before),) = seen["before"].items()
        assert (seen["idle"], seen["changed"]) == (False, True)
        # Of 100 Mb/s, then 50, one stream of 1 MB/s has 8.365.
        assert (before, seen["after"][job]) == ([1000, 10955], [1000, 4978])
        # Half of what is promised; nothing where the worker counts nothing.
        assert seen["sent"] == ([[500, 1000, 0.25]] if standin.counts else [None])
    # One request to wait, two to read, for each rank; then what is released. Nobody asked again and again.
    assert len(standin.requests) - asked <= 4 * 4 + 4


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("openmpi", "c"), ("mpich", "c")])
def test_a_thread_that_waits_is_told_of_a_release_by_another_one(mpi: str, language: str, folder: Path) -> None:
    ranks = Ranks(mpi, language, folder, "parts")
    ranks.wait_for("waiting")
    eventually(lambda: ranks.standin.waiting == 4)
    ranks.go_on("waiting")
    for seen in ranks.finish():
        assert list(seen["before"].values()) == [[1000, 10955]]
        assert (seen["changed"], seen["left"]) == (True, True)
    assert ranks.standin.rates() == {}


def test_a_release_before_the_first_answer_is_a_change_once(folder: Path) -> None:
    # In C: test_held_in_c.py.
    seen = Ranks("mpich", "python", folder, "between").finish()
    assert list(seen) == [{"changed": True, "again": False}] * 4


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_a_request_after_a_job_has_another_id_is_for_that_one(mpi: str, language: str, folder: Path) -> None:
    ranks = Ranks(mpi, language, folder, "renamed", "three")
    ranks.wait_for("renamed")
    answer = f'HTTP/1.1 200 OK\r\n\r\n{{"id": "{2:016x}", "host": "three", "addresses": []}}'.encode()
    ranks.standin.instead = lambda job, _method, path: answer if (job, path) == (1, "/v1/job") else None
    ranks.go_on("renamed")
    told = ranks.finish()
    assert [(seen["before"], seen["after"]) for seen in told] == [("", "")] * 4
    assert [list(seen["made"]) for seen in told] == [[f"{2:016x}"]] * 2 + [[f"{0:016x}"]] * 2
    assert {promised for seen in told for promised, _ in seen["made"].values()} == {2000}


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_what_has_ended_is_reserved_again_by_the_next_request(mpi: str, language: str, folder: Path) -> None:
    ranks = Ranks(mpi, language, folder, "ended")
    ranks.wait_for("ended")
    ids = list(ranks.standin.live())
    ranks.standin.reservations.clear()
    ranks.go_on("ended")
    ranks.wait_for("again")
    ranks.go_on("again")
    for seen in ranks.finish():
        assert [lost in [f"the reservation {each} is over" for each in ids] for lost in seen["lost"]] == [True]
        assert (list(seen["made"].values()), seen["pending"]) == ([[1000, 10955]], [""])
    assert ranks.standin.rates() == {}


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_a_promise_that_is_not_enforced_any_more_is_a_change_and_is_shown(
    mpi: str, language: str, folder: Path
) -> None:
    ranks = Ranks(mpi, language, folder, "stuck")
    ranks.wait_for("stuck")
    eventually(lambda: ranks.standin.waiting == 4)
    why = "switch w1: \u2026 no uplink"
    ranks.standin.standing = lambda job: ("pending", why)
    for seen in ranks.finish():
        assert (seen["changed"], seen["pending"], list(seen["made"].values())) == (True, [why], [[1000, 10955]])


@pytest.mark.parametrize(
    "answer",
    [
        b'HTTP/1.1 429 Too Many Requests\r\n\r\n{"detail": "This job asks too often"}',
        # A service that ends while it answers.
        b'HTTP/1.1 200 OK\r\n\r\n{"version": "',
    ],
    ids=["busy", "cut off"],
)
@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_ranks_that_are_turned_away_or_get_half_an_answer_are_told_of_nothing_and_go_on(
    mpi: str, language: str, answer: bytes, folder: Path
) -> None:
    ranks = Ranks(mpi, language, folder, "busy")
    standin = ranks.standin
    ranks.wait_for("busy")
    asked = len(standin.requests)
    standin.instead = lambda job, method, path: answer if path == "/v1/paths" else None
    ranks.go_on("busy")
    ranks.wait_for("free")
    asks = len(standin.requests) - asked
    standin.instead = lambda job, method, path: None
    ranks.go_on("free")
    assert ranks.finish() == [{"changed": False}] * 4
    # Two or three each, and not one after the other.
    assert 4 <= asks <= 4 * 3


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_ranks_go_on_while_the_worker_service_starts_anew_and_learn_where_it_stays_away(
    mpi: str, language: str, folder: Path
) -> None:
    ranks = Ranks(mpi, language, folder, "away")

    def move(source: str, target: str) -> None:
        for path in ranks.standin.sockets:
            path.with_suffix(source).rename(path.with_suffix(target))

    # Without its socket, as a service that has ended; what is reserved stays so meanwhile.
    ranks.wait_for("away")
    move(".sock", ".away")
    ranks.go_on("away")
    ranks.wait_for("coming")
    # They may ask before it is back.
    ranks.go_on("coming")
    move(".away", ".sock")
    ranks.wait_for("gone")
    move(".sock", ".away")
    ranks.go_on("gone")
    ranks.wait_for("end")
    move(".away", ".sock")
    ranks.go_on("end")
    for seen in ranks.finish():
        assert (seen["changed"], list(seen["after"].values())) == (False, [[1000, 10955]])
        assert seen["over"].startswith("the worker service cannot be asked: ")
        assert seen["over"].endswith(".sock is not there")


def test_one_that_is_freed_while_its_first_change_is_waited_for_ends_with_the_time(folder: Path) -> None:
    source = (
        "from lark_mpi import communicator\n"
        "from lark_mpi.held import Flow, Flows\n"
        "seen = iter([{'b': Flow('0as1', 1.0)}])\n"
        "Flows.made = lambda _flows: next(seen, {})\n"
        "assert communicator.Reservation([], 0, 300.0).changed(0.2) is False\n"
    )
    alone = subprocess.run([sys.executable, "-c", source], env=environment("mpich", folder), timeout=60)
    assert alone.returncode == 0
