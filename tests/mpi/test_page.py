"""The examples of the how-to page, as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from lab.namespaces import temporary_directory
from tests.mpi.ranks import built, run
from tests.mpi.standin import Standin

PAGE = Path(__file__).parents[2] / "docs/how-to/mpi.md"


def example(language: str) -> str:
    (found,) = re.findall(rf"(?ms)^```{language}\n(.*?)^```$", PAGE.read_text())
    return str(found)


@pytest.mark.parametrize("language", ["python", "c"])
def test_the_ring_of_the_page_runs(language: str) -> None:
    with temporary_directory() as name:
        folder = Path(name)
        if language == "python":
            (folder / "ring.py").write_text(example("python"))
            command: list[str | Path] = [sys.executable, folder / "ring.py"]
        else:
            (folder / "ring.c").write_text(example("c"))
            own = built("mpich")
            flags = [
                "-fsanitize=address,undefined",
                f"-I{own}/include",
                f"-L{own}/lib",
                "-llark_mpi",
                f"-Wl,-rpath,{own}/lib",
            ]
            compiled: list[str | Path] = [
                "mpicc.mpich",
                "-Wall",
                "-Wextra",
                "-Werror",
                "-o",
                folder / "ring",
                folder / "ring.c",
                *flags,
            ]
            subprocess.run(compiled, check=True)
            command = [folder / "ring"]
        standin = Standin(folder, ["one", "two"])
        outcome = run("mpich", folder, standin.sockets, command)
        assert outcome.status == 0, outcome.output
        assert len(re.findall(r"rank \d: 10000\d\d bytes a second to (?:one|two), and 109550\d\d", outcome.output)) == 4
        standin.capacity = 1.0
        refused = run("mpich", folder, standin.sockets, command)
        standin.close()
        assert refused.output.startswith("without a reservation: rank 0: link access:one")
        assert standin.rates() == {}
