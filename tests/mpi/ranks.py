"""Programs on several ranks by a real mpiexec, with a worker's socket for each job."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

SOURCE: Final = Path(__file__).parents[2] / "lark_mpi" / "c"
PROGRAMS: Final = Path(__file__).parent / "programs"
MPIS: Final = ("openmpi", "mpich")


@dataclass(frozen=True, slots=True)
class Outcome:
    """Status and output of mpiexec, and what each rank has told last."""

    status: int
    output: str
    told: dict[int, Any]


def environment(mpi: str, folder: Path) -> dict[str, str]:
    """The environment of mpiexec; Debian's MPICH has another name than the one that mpi4py's wheels load."""
    named = folder / "lib"
    named.mkdir(exist_ok=True)
    if not (named / "libmpi.so.12").is_symlink():
        library = subprocess.run(["mpicc.mpich", "-show"], capture_output=True, text=True, check=True).stdout
        paths = [word[2:] for word in library.split() if word.startswith("-L")]
        found = next(path for each in [*paths, "/usr/lib"] if (path := Path(each, "libmpich.so.12")).exists())
        (named / "libmpi.so.12").symlink_to(found)
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    own = {"MPI4PY_MPIABI": mpi, "TMPDIR": "/tmp", "OMPI_MCA_rmaps_base_oversubscribe": "1"}
    # This checkout's library, whichever is installed.
    own["PYTHONPATH"] = str(SOURCE.parents[1])
    # Waiting ranks leave the processor to others.
    own |= {"OMPI_MCA_mpi_yield_when_idle": "1", "OMPI_MCA_btl": "self,vader,tcp"}
    # The MPIs themselves keep what they have until they end.
    own |= {"ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "print_stacktrace=1"}
    return {**kept, **own, **({"LD_LIBRARY_PATH": str(named)} if mpi == "mpich" else {})}


def start(
    mpi: str, folder: Path, sockets: Sequence[Path], command: Sequence[str | Path], ranks: int = 4, **extra: str
) -> subprocess.Popen[str]:
    """Start a program on ranks, below ``folder``; ranks are dealt to the sockets' jobs in blocks."""
    deal = folder / "deal"
    cases = "\n".join(f"{number}) LARK_SOCKET={socket} ;;" for number, socket in enumerate(sockets))
    deal.write_text(
        "#!/bin/sh\nrank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}\n"
        f'case $((rank * {len(sockets)} / {ranks})) in\n{cases}\nesac\nexport LARK_SOCKET\nexec "$@"\n'
    )
    deal.chmod(0o755)
    root = ["--allow-run-as-root"] if mpi == "openmpi" else []
    return subprocess.Popen(
        [f"mpiexec.{mpi}", *root, "-n", str(ranks), str(deal), *map(str, command)],
        env={**environment(mpi, folder), "TOLD": str(folder), **extra},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=folder,
    )


def finish(process: subprocess.Popen[str], folder: Path, seconds: float = 60) -> Outcome:
    """Wait for its end."""
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
        process.wait()
    # A rank that died has told nothing, or a part.
    told = {
        int(path.stem.removeprefix("rank")): json.loads(text)
        for path in folder.glob("rank*.json")
        if (text := path.read_text()).endswith("}")
    }
    return Outcome(process.returncode, output, told)


def python(program: str) -> list[str | Path]:
    """The command of one of the programs in Python."""
    return [sys.executable, PROGRAMS / "exchange.py", program]


def run(mpi: str, folder: Path, sockets: Sequence[Path], command: Sequence[str | Path]) -> Outcome:
    """Run a program on four ranks to its end."""
    return finish(start(mpi, folder, sockets, command), folder)


@cache
def built(mpi: str) -> Path:
    """The programs in C and the library, with sanitizers, in a folder that ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="lark-mpi-c-"))
    atexit.register(shutil.rmtree, folder, True)
    build = f"BUILD={folder}/build"
    flags = "-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all"
    make = ["make", "-s", "-C", str(SOURCE), build, f"MPICC=mpicc.{mpi}", f"CFLAGS={flags}", f"PREFIX={folder}"]
    subprocess.run([*make, "install"], check=True)
    strict = [f"mpicc.{mpi}", "-std=gnu11", "-pthread", "-Wall", "-Wextra", "-Werror", *flags.split()]
    library = [f"-I{folder}/include", f"-L{folder}/lib", "-llark_mpi", f"-Wl,-rpath,{folder}/lib"]
    for name in ("exchange", "suspended", "attributes"):
        subprocess.run([*strict, "-o", folder / name, PROGRAMS / f"{name}.c", *library], check=True)
    for name in ("answers", "away", "held", "places"):
        subprocess.run([*strict, "-o", folder / name, PROGRAMS / f"{name}.c", f"-I{SOURCE}"], check=True)
    return folder


def c(mpi: str, program: str) -> list[str | Path]:
    """The command of one of the programs in C."""
    return [built(mpi) / "exchange", program]
