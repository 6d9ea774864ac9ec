"""MPI programs whose ranks run on the nodes of :mod:`experiments.cluster`, inside the lab.

Open MPI starts them: ``mpiexec`` on the first node, and its daemons on the others through a script in place of SSH.
Each node is a network namespace, and for Open MPI a host with that name. Ranks use the processor that is left over
(``SCHED_IDLE``): they ask again and again whether a message has come, and would take the time of what brings it.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.run import LabError

INPUTS = Path(__file__).parent / "programs"
SECONDS = 240
# The programs' packages, of Debian.
PACKAGES = ("hpcc", "lammps", "openmpi-bin", "povray", "python3-mpi4py")
# Open MPI's way to another node: its name, and the words of a command line for a shell there.
AGENT = """#!/bin/sh
node=$1
shift
exec nsenter --net=/run/netns/"$node" unshare --uts sh -c 'hostname "$1"; shift; exec sh -c "$*"' sh "$node" "$@"
"""
# Open MPI 4 and 5 have other names for the same.
SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "PRTE_ALLOW_RUN_AS_ROOT": "1",
    "PRTE_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "tcp,self",
    "OMPI_MCA_btl_tcp_if_include": "eth0",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "PRTE_MCA_hwloc_default_binding_policy": "none",
}
AGENT_SETTINGS = ("OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent")
# The last lines of HPC Challenge that are looked at. RandomAccess is its first section; behind FFT's it sends 4 GB
# (b_eff), and factors a matrix. The last one of these lines follows b_eff's first message of 2 MB.
RANDOM_ACCESS_END = "End of MPIRandomAccess section."
HPCC_END = "End of MPIFFT section."
B_EFF_END = "max time :                             30.000000 secs"
HPCC_OUTPUT = "hpccoutf.txt"
# Parts of HPC Challenge: section, and the line of its time.
HPCC_PARTS = {
    "PTRANS": ("PTRANS", r"^WALL .* (\S+) PASSED"),
    "RandomAccess": ("MPIRandomAccess", r"^Real time used = (\S+) seconds"),
    "FFT": ("MPIFFT", r"^Computing: +(\S+)"),
    # In milliseconds.
    "b_eff": ("LatencyBandwidth", r"^Message Length: 2000000\nLatency +min / avg / max: +\S+ / +(\S+) /"),
}
# The numbers of updates that RandomAccess made, and that it makes where it has the time.
UPDATES = (r"Number of updates EXECUTED", r"Default number of updates \(RECOMMENDED\)")

# Reads a program's output and folder: seconds of each part.
Read = Callable[[str, Path], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Program:
    """``command`` is that of every rank, in a folder with the ``inputs``. ``read`` returns the seconds of its parts.

    Ranks of programs that are ``calm`` hardly need the processor, and have it before others.
    A program with a line ``until`` in its ``log`` is ended there: the rest of it is not looked at.
    """

    command: tuple[str, ...]
    inputs: tuple[str, ...]
    read: Read
    log: str = ""
    until: str = ""
    calm: bool = False


def _own(printed: str, _folder: Path) -> dict[str, float]:
    return {"": float(json.loads(printed.strip().splitlines()[-1]).get("seconds", 0.0))}


def _lammps(printed: str, _folder: Path) -> dict[str, float]:
    return {"": float(re.findall(r"^Loop time of (\S+) ", printed, flags=re.MULTILINE)[-1])}


def _hpcc(_printed: str, folder: Path) -> dict[str, float]:
    text = (folder / HPCC_OUTPUT).read_text()
    return {name: hpcc_seconds(text, name) for name in ("PTRANS", "FFT")}


def _with_b_eff(printed: str, folder: Path) -> dict[str, float]:
    milliseconds = hpcc_seconds((folder / HPCC_OUTPUT).read_text(), "b_eff")
    return {**_hpcc(printed, folder), "b_eff": milliseconds / 1000}


def _random_access(_printed: str, folder: Path) -> dict[str, float]:
    return {"": hpcc_seconds((folder / HPCC_OUTPUT).read_text(), "RandomAccess")}


def hpcc_seconds(text: str, name: str) -> float:
    """The time of a part of HPC Challenge, in its unit; PTRANS transposes several times. Raises LabError where it is
    missing."""
    section, line = HPCC_PARTS[name]
    part = text.partition(f"Begin of {section} section.")[2].partition(f"End of {section} section.")[0]
    times = re.findall(line, part, flags=re.MULTILINE)
    if not times:
        raise LabError(f"hpcc printed no time of {section}: {part[-500:]}")
    return round(sum(map(float, times)) * _left_out(part), 6)


def _left_out(part: str) -> float:
    """The factor from the updates that RandomAccess made, which takes a minute at most, to those that it is to make."""
    counts = [re.search(rf"^{name} = (\d+)", part, flags=re.MULTILINE) for name in UPDATES]
    made, wanted = (float(each[1]) if each else 1.0 for each in counts)
    return wanted / made


_PYTHON = "python3"
PROGRAMS: Mapping[str, Program] = {
    "integer sort": Program((_PYTHON, "integer_sort.py"), ("integer_sort.py", "waiting.py"), _own),
    "POV-Ray": Program((_PYTHON, "render.py", "scene.pov"), ("render.py", "waiting.py", "scene.pov"), _own),
    "LAMMPS": Program(("lmp", "-in", "silicon.lammps", "-log", "none"), ("silicon.lammps",), _lammps),
    "hpcc": Program(("hpcc",), ("hpccinf.txt",), _hpcc, HPCC_OUTPUT, HPCC_END),
    "hpcc with b_eff": Program(("hpcc",), ("hpccinf.txt",), _with_b_eff, HPCC_OUTPUT, B_EFF_END),
    "hpcc's RandomAccess": Program(("hpcc",), ("hpccinf.txt",), _random_access, HPCC_OUTPUT, RANDOM_ACCESS_END),
    "frames": Program((_PYTHON, "frames.py"), ("frames.py", "waiting.py"), _own, calm=True),
    "frames, adapting": Program((_PYTHON, "frames.py", "--adapt"), ("frames.py", "waiting.py"), _own, calm=True),
}


class Application:
    """A program that runs on some nodes (names of network namespaces), one rank on each.

    ``sockets`` is the directory of their jobs' sockets.
    """

    def __init__(
        self, name: str, nodes: Sequence[str], folder: Path, sockets: Path, arguments: Sequence[str] = ()
    ) -> None:
        self._program = PROGRAMS[name]
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for each in self._program.inputs:
            shutil.copy(INPUTS / each, folder)
        agent = folder / "agent"
        agent.write_text(AGENT)
        agent.chmod(0o755)
        self._out, self._err = folder / "printed", folder / "errors"
        with self._out.open("w") as out, self._err.open("w") as err:
            self._process = subprocess.Popen(
                command((*self._program.command, *arguments), nodes, sockets, self._program.calm),
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, **SETTINGS, **dict.fromkeys(AGENT_SETTINGS, str(agent))},
                start_new_session=True,
            )

    def wait(self) -> dict[str, float]:
        """The seconds of its parts, when it has ended. Raises LabError where it fails or does not end."""
        deadline = time.monotonic() + SECONDS
        while self._process.poll() is None:
            if self._program.until and self._is_over():
                self.end()
                return self._read("")
            if time.monotonic() > deadline:
                self.end()
                raise LabError(f"{self._told()}: no end within {SECONDS} s: {self.printed()[-1000:]}")
            time.sleep(0.05)
        if self._process.returncode:
            raise LabError(f"{self._told()}: status {self._process.returncode}: {self.errors()[-3000:]}")
        return self._read(self.printed())

    def shown(self) -> tuple[tuple[float, int], ...]:
        """The times at which it showed frames, since 1970, each with its bytes; empty for programs that show none."""
        last = (self.printed().strip().splitlines() or [""])[-1]
        found = json.loads(last) if last.startswith('{"frames"') else {"frames": [], "bytes": []}
        return tuple(zip(found["frames"], found["bytes"], strict=True))

    def printed(self) -> str:
        """Its standard output so far."""
        return self._out.read_text(errors="replace")

    def errors(self) -> str:
        """Its standard error so far."""
        return self._err.read_text(errors="replace")

    def end(self) -> None:
        """End it, if it has not, with every rank that has outlived mpiexec: it would run beside the next ones."""
        if self._process.poll() is None:
            # mpiexec ends its ranks, and is waited for.
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for rank in ranks(self._folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank, signal.SIGKILL)

    def _read(self, printed: str) -> dict[str, float]:
        try:
            return self._program.read(printed, self._folder)
        except (ValueError, LookupError, OSError) as error:
            raise LabError(f"{self._told()}: no times: {error!r}: {printed[-1000:]}{self.errors()[-1000:]}") from None

    def _is_over(self) -> bool:
        log = self._folder / self._program.log
        return log.is_file() and self._program.until in log.read_text(errors="replace")

    def _told(self) -> str:
        return " ".join(self._program.command)


def ranks(folder: Path) -> list[int]:
    """The processes that run in a program's folder."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if each.readlink() == folder:
                found.append(int(each.parent.name))
    return found


def command(program: Sequence[str], nodes: Sequence[str], sockets: Path, calm: bool) -> list[str]:
    """The command line that starts a program's ranks, one on each node, each with its job's socket."""
    idle = () if calm else ("chrt", "--idle", "0")
    ranks: list[str] = []
    for node in nodes:
        ranks += [":"] if ranks else []
        own = ["env", f"LARK_SOCKET={sockets / node}.sock"]
        ranks += ["-np", "1", "--host", node, *own, *idle, *program]
    first = nodes[0]
    enter = ["nsenter", f"--net=/run/netns/{first}", "unshare", "--uts"]
    return [*enter, "sh", "-c", 'hostname "$1"; shift; exec "$@"', "sh", first, "mpiexec.openmpi", *ranks]
