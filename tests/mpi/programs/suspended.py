"""A program of which rank 0 is suspended beyond its lease, and what it is told then, first by the call of its name."""

from __future__ import annotations

import os
import sys

from mpi4py import MPI

import lark_mpi
from tests.mpi.programs.exchange import FOLDER, hold, paths, tell, wait_for


def main(first: str) -> None:
    comm = MPI.COMM_WORLD
    made = lark_mpi.reserve(comm, "ring", 1e6, lease=3)
    made.paths()
    if comm.rank == 0:
        (FOLDER / "pid").write_text(f"{os.getpid()}.")
        hold("go on")
    changed = None
    if comm.rank == 0 and first == "changed":
        changed = made.changed(5)
    lost = None
    if comm.rank == 0 and first != "reserve":
        lost = [path.lost for path in made.paths()]
    comm.Barrier()
    lark_mpi.reserve(comm, "ring", 1e6, lease=3)
    tell(changed=changed, lost=lost, made=paths(comm))
    wait_for("reserved")


if __name__ == "__main__":
    main(sys.argv[1])
