"""The how-to page's script that starts ranks on the nodes of a parallel job, on hosts with a network each."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.run import run
from tests.mpi.ranks import MPIS, environment
from tests.mpi.test_page import example

PROGRAM = """\
import os, sys
from mpi4py import MPI
def ancestors(pid):
    while pid > 1:
        yield pid
        pid = int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
comm = MPI.COMM_WORLD
block = bytearray(1 << 20)
comm.sendrecv(block, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
on = len(os.sched_getaffinity(0))
print("rank", comm.rank, "of", comm.size, "on", on, "below", *ancestors(os.getpid()), flush=True)
sys.exit(int(sys.argv[1]))
"""


def started(
    folder: Path, namespaces: list[str], mpi: str, program: list[str], env: dict[str, str]
) -> list[tuple[int, str, int]]:
    """Run the script on every node: status, output and process id of each."""
    script = folder / "nodes.sh"
    script.write_text(example("sh"))
    shared = folder / f"shared{len(list(folder.iterdir()))}"
    processes = []
    for number, namespace in enumerate(namespaces):
        scratch = folder / f"scratch{number}"
        scratch.mkdir(exist_ok=True)
        # As HTCondor transfers it to each node.
        (scratch / "program.py").write_text(PROGRAM)
        processes.append(
            subprocess.Popen(
                ["nsenter", f"--net=/run/netns/{namespace}", "sh", script, shared, mpi, *program],
                cwd=scratch, env={**env, "_CONDOR_PROCNO": f"{number}", "_CONDOR_NPROCS": f"{len(namespaces)}"},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
        )  # fmt: skip
    try:
        return [(each.wait(120), each.communicate()[0], each.pid) for each in processes]
    finally:
        for each in processes:
            each.kill()
            each.wait()


def test_open_mpi_starts_the_agents_of_many_nodes_at_once(tmp_path: Path) -> None:
    """Each node gets its own command, though all agents have written theirs before the first one moves it."""
    nodes, shared, programs = 6, tmp_path / "shared", tmp_path / "bin"
    shared.mkdir()
    programs.mkdir()
    (agent,) = re.findall(r"(?ms)cat > agent << 'END'\n(.*?)^END$", example("sh"))
    (shared / "agent").write_text(agent)
    move = programs / "mv"
    move.write_text(
        f'''#!/bin/sh
: > "{tmp_path}/written.$$"
until [ "$(ls "{tmp_path}" | grep -c written)" -ge {nodes} ]; do sleep 0.02; done
exec {shutil.which("mv")} "$@"
'''
    )
    move.chmod(0o755)
    for node in range(1, nodes + 1):
        (shared / f"address.{node}").write_text(f"10.64.0.{node}\n")
    env = {**os.environ, "SHARED": str(shared), "PATH": f"{programs}:{os.environ['PATH']}"}
    agents = [
        subprocess.Popen(["sh", shared / "agent", f"10.64.0.{node}", "orted", "--daemonize", f"{node}"], env=env)
        for node in range(1, nodes + 1)
    ]
    try:
        assert [each.wait(60) for each in agents] == nodes * [0]
    finally:
        for each in agents:
            each.kill()
    commands = {path.name: path.read_text() for path in shared.glob("command.*")}
    assert commands == {f"command.{node}": f"orted {node}\n" for node in range(1, nodes + 1)}


@pytest.mark.ovs
@pytest.mark.parametrize("mpi", MPIS)
def test_one_rank_starts_on_each_node_and_its_end_is_the_jobs(net: Net, mpi: str) -> None:
    bridge = net.name("br")
    run(["ip", "link", "add", bridge, "type", "bridge"])
    try:
        run(["ip", "link", "set", bridge, "up"])
        hosts = [net.host(f"n{number}", addresses=[f"10.64.0.{number}/24"]) for number in (1, 2, 3, 4)]
        for each in hosts:
            run(["ip", "link", "set", each.port, "master", bridge])
        with temporary_directory() as name:
            folder = Path(name)
            env = environment(mpi, folder) | {"OMPI_MCA_btl": "tcp,self"}
            # The job's user is an ordinary one; the tests' is not.
            env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            namespaces = [each.namespace for each in hosts]
            program = [sys.executable, "program.py"]
            good, *others = started(folder, namespaces, mpi, [*program, "0"], env)
            assert good[0] == 0, [good[1], *(each[1] for each in others)]
            ranks = [line.split() for line in sorted(good[1].splitlines()) if line.startswith("rank")]
            assert [line[:4] for line in ranks] == [["rank", f"{rank}", "of", "4"] for rank in range(4)]
            # Other jobs' ranks are on the first core as well.
            assert [int(line[5]) for line in ranks] == 4 * [len(os.sched_getaffinity(0))]
            # A worker finds the job of a process by its ancestors.
            assert all(f"{each[2]}" in rank for each, rank in zip([good, *others], ranks, strict=True))
            bad, *_ = started(folder, namespaces, mpi, [*program, "3"], env)
            assert bad[0] != 0
    finally:
        run(["ip", "link", "del", bridge])
