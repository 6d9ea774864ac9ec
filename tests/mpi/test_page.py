"""The examples of the how-to page, as they stand there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.namespaces import temporary_directory
from tests.install.pages import Page
from tests.mpi.ranks import MPIS, SOURCE, built, environment, run
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
        said = "1000000 bytes a second to two are asked (8.365 Mb/s with headers), and 119550 could be had: "
        assert refused.output.startswith(f"without a reservation: rank 0: {said}link access:one"), refused.output
        assert standin.rates() == {}


def test_the_commands_of_the_page_make_it_for_both_mpis_out_of_one_checkout(tmp_path: Path) -> None:
    """Without a worker service: ranks beside each other need none."""
    checkout = tmp_path / "checkout"
    shutil.copytree(SOURCE, checkout / "lark_mpi/c", ignore=shutil.ignore_patterns("build"))
    (tmp_path / "ring.c").write_text(example("c"))
    page = Page(PAGE.name, {"$HOME/lark": f"{tmp_path}/lark"})
    subprocess.run(["sh", "-ec", page.block("make -C")], cwd=checkout, check=True, stdout=subprocess.DEVNULL)
    for mpi, library in (("openmpi", r"libmpi\.so"), ("mpich", r"libmpich\.so")):
        subprocess.run(["sh", "-ec", page.block(f"mpicc.{mpi} -o ring")], cwd=tmp_path, check=True)
        built_for = subprocess.run(
            ["readelf", "-d", f"{tmp_path}/lark/{mpi}/lib/liblark_mpi.so"], capture_output=True, text=True, check=True
        ).stdout
        assert re.search(library, built_for), built_for
        command = page.block("mpiexec.openmpi -n 2").splitlines()[1].replace("openmpi", mpi)
        # Open MPI runs nothing for root unless it is asked twice.
        root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        ran = subprocess.run(
            ["sh", "-ec", command], cwd=tmp_path, capture_output=True, text=True, timeout=120,
            env={**os.environ, **environment(mpi, tmp_path), **root},
        )  # fmt: skip
        assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


def test_python_with_both_mpis_out_of_one_environment(tmp_path: Path) -> None:
    """MPICH's library stands where mpi4py does not look by itself: it looks into the environment's ``lib`` first."""
    (tmp_path / "ring.py").write_text(example("python"))
    page = Page(PAGE.name, {"$HOME/lark": f"{tmp_path}/lark"})
    subprocess.run(["sh", "-ec", 2 * page.block("mkdir -p")], check=True)
    assert not (tmp_path / "lark/lib").exists()
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "PYTHONPATH": str(PAGE.parents[2])}
    for mpi, before in (("openmpi", ""), ("mpich", page.block("export MPI4PY_MPIABI"))):
        script = f"{before}exec mpiexec.{mpi} -n 2 {sys.executable} ring.py"
        ran = subprocess.run(
            ["sh", "-ec", script], cwd=tmp_path, capture_output=True, text=True, timeout=120,
            env={**os.environ, "TMPDIR": "/tmp", "OMPI_MCA_rmaps_base_oversubscribe": "1", **root},
        )  # fmt: skip
        assert (ran.returncode, ran.stdout) == (0, ""), ran.stderr


@pytest.mark.parametrize("mpi", MPIS)
def test_the_script_of_many_ranks_in_one_job_starts_the_program_that_it_is_given(mpi: str, tmp_path: Path) -> None:
    script = Page(PAGE.name, {}).block("#!/bin/sh\nexec mpiexec.openmpi")
    if mpi == "mpich":
        (other,) = re.findall(r"with MPICH `(exec [^`]*)`", PAGE.read_text())
        script = f"#!/bin/sh\n{other}\n"
    (tmp_path / "ring.sh").write_text(script)
    (tmp_path / "program.py").write_text("from mpi4py import MPI\nprint('one of', MPI.COMM_WORLD.size)\n")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    ran = subprocess.run(
        ["sh", "ring.sh", sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120,
        env={**environment(mpi, tmp_path), **root},
    )  # fmt: skip
    assert (ran.returncode, ran.stdout) == (0, 4 * "one of 4\n"), ran.stderr


def test_the_page_says_how_to_see_which_mpi_a_program_was_compiled_for(tmp_path: Path) -> None:
    (command,) = re.findall(r"`(ldd ring [^`]*)`", PAGE.read_text())
    (tmp_path / "ring.c").write_text("#include <mpi.h>\nint main(void) { return MPI_Init(0, 0) || MPI_Finalize(); }\n")
    for mpi, library in (("openmpi", "libmpi.so"), ("mpich", "libmpich.so")):
        subprocess.run([f"mpicc.{mpi}", "-o", "ring", "ring.c"], cwd=tmp_path, check=True)
        shown = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
        assert [line.split(".so")[0].strip() + ".so" for line in shown.splitlines()] == [library]
