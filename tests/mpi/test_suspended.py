"""A process that goes on after its lease is told what is so, though the flow lives on by others' shares of it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lab.namespaces import temporary_directory
from tests.mpi.ranks import MPIS, PROGRAMS, built, finish, start
from tests.mpi.standin import Standin
from tests.worker.pool import eventually

A, B = (f"{number:016x}" for number in range(2))


@pytest.fixture
def folder() -> Iterator[Path]:
    with temporary_directory() as name:
        yield Path(name)


@pytest.mark.parametrize("first", ["paths", "changed", "reserve"])
@pytest.mark.parametrize(("mpi", "language"), [(MPIS[0], "python"), (MPIS[1], "c")])
def test_a_process_that_was_suspended_beyond_its_lease_is_not_told_of_what_it_had(
    mpi: str, language: str, first: str, folder: Path
) -> None:
    standin = Standin(folder, ["one", "two"])
    others: list[dict[str, Any]] = []

    def instead(job: int, method: str, path: str) -> bytes | None:
        if not others or (job, method, path) != (0, "GET", "/v1/paths"):
            return None
        found = standin._paths(A)
        document = {"version": f"{found['version']} others", "paths": [*found["paths"], *others]}
        return b"HTTP/1.1 200 OK\r\n\r\n" + json.dumps(document).encode()

    standin.instead = instead
    command = [sys.executable, PROGRAMS / "suspended.py"] if language == "python" else [built(mpi) / "suspended"]
    process = start(mpi, folder, standin.sockets, [*command, first])
    pid = folder / "pid"
    eventually(lambda: (pid.exists() and pid.read_text().endswith(".")) or process.poll() is not None, 60)
    (had,) = (each for each in standin.live().values() if each["job"] == A)
    os.kill(int(pid.read_text()[:-1]), signal.SIGSTOP)
    eventually(lambda: standin.rates().get((A, B)) is None, 10)
    others.append({"reservation": had["id"], "peer": B, "rate": 40.0, "free": 20.0, "pending": ""})
    # The renewals' thread is as late as the program, and no faster than it.
    standin.delay = lambda job, method: time.sleep(0.7) if (job, method) == (0, "PATCH") else None
    (folder / "go on").touch()
    os.kill(int(pid.read_text()[:-1]), signal.SIGCONT)
    eventually(lambda: (folder / "reserved").exists() or process.poll() is not None, 60)
    rates = standin.rates()
    (folder / "reserved seen").touch()
    outcome = finish(process, folder)
    standin.close()
    assert outcome.status == 0, outcome.output
    seen = outcome.told[0]
    if first != "reserve":
        assert seen["lost"] == [f"no reservation has the id {had['id']}"]
    assert seen.get("changed") is (True if first == "changed" else None)
    # It was asked for anew: what is promised is there.
    assert rates[A, B] == pytest.approx(8.365)
    assert seen["made"] == {B: [1000, 10955]}
    assert standin.rates() == {}
