"""Programs on four ranks that wait for changes of their paths, with a stand-in for worker service and controller."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import temporary_directory
from tests.mpi.ranks import MPIS, c, environment, finish, python, start
from tests.mpi.standin import Standin
from tests.worker.pool import eventually


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_directory() as name:
        yield Path(name)


@pytest.mark.parametrize("language", ["python", "c"])
@pytest.mark.parametrize("mpi", MPIS)
def test_every_rank_is_told_of_a_change_and_of_none_before(mpi: str, language: str, folder: Path) -> None:
    standin = Standin(folder, ["one", "two"])
    process = start(
        mpi, folder, standin.sockets, (python if language == "python" else lambda name: c(mpi, name))("adapts")
    )
    eventually(lambda: (folder / "waiting").exists() or process.poll() is not None, 60)
    asked = len(standin.requests)
    standin.counts = mpi == "mpich"
    standin.capacity = 50.0
    outcome = finish(process, folder)
    standin.close()
    assert outcome.status == 0, outcome.output
    for seen in outcome.told.values():
        ((job, before),) = seen["before"].items()
        assert (seen["idle"], seen["changed"]) == (False, True)
        # Of 100 Mb/s, then 50, one stream of 1 MB/s has 8.365.
        assert (before, seen["after"][job]) == ([1000, 10955], [1000, 4978])
        # Half of what is promised; nothing where the worker counts nothing.
        assert seen["sent"] == ([[500, 1000, 0.25]] if standin.counts else [None])
    # One request to wait, two to read, for each rank; then what is released. Nobody asked again and again.
    assert len(standin.requests) - asked <= 4 * 4 + 4


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
    standin = Standin(folder, ["one", "two"])
    process = start(
        mpi, folder, standin.sockets, (python if language == "python" else lambda name: c(mpi, name))("busy")
    )
    eventually(lambda: (folder / "busy").exists() or process.poll() is not None, 60)
    asked = len(standin.requests)
    standin.instead = lambda job, method, path: answer if path == "/v1/paths" else None
    (folder / "busy seen").touch()
    eventually(lambda: (folder / "free").exists() or process.poll() is not None, 60)
    asks = len(standin.requests) - asked
    standin.instead = lambda job, method, path: None
    (folder / "free seen").touch()
    outcome = finish(process, folder)
    standin.close()
    assert outcome.status == 0, outcome.output
    assert asks >= 4
    assert list(outcome.told.values()) == [{"changed": False}] * 4
    # Two or three each, and not one after the other.
    assert asks <= 4 * 3


@pytest.mark.parametrize(("mpi", "language"), [("openmpi", "python"), ("mpich", "c")])
def test_ranks_go_on_while_the_worker_service_starts_anew_and_learn_where_it_stays_away(
    mpi: str, language: str, folder: Path
) -> None:
    standin = Standin(folder, ["one", "two"])
    process = start(
        mpi, folder, standin.sockets, (python if language == "python" else lambda name: c(mpi, name))("away")
    )

    def await_step(name: str) -> None:
        eventually(lambda: (folder / name).exists() or process.poll() is not None, 60)

    def move(source: str, target: str) -> None:
        for path in standin.sockets:
            path.with_suffix(source).rename(path.with_suffix(target))

    # Without its socket, as a service that has ended; what is reserved stays so meanwhile.
    for step, source, target in (("away", ".sock", ".away"), ("gone", ".sock", ".away")):
        await_step(step)
        move(source, target)
        (folder / f"{step} seen").touch()
        if step == "away":
            await_step("coming")
            (folder / "coming seen").touch()
            move(target, source)
    await_step("end")
    move(".away", ".sock")
    (folder / "end seen").touch()
    outcome = finish(process, folder)
    standin.close()
    assert outcome.status == 0, outcome.output
    for seen in outcome.told.values():
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
