"""A program that imports the library before it starts MPI itself, and calls it after MPI's end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import mpi4py

mpi4py.rc.initialize = False
mpi4py.rc.finalize = False

# Both behind the settings, as programs have it.
from mpi4py import MPI  # noqa: E402

import lark_mpi  # noqa: E402


def refused() -> str:
    try:
        lark_mpi.reserve(MPI.COMM_WORLD, "ring", 1e6)
    except lark_mpi.ReservationError as error:
        return str(error).partition(";")[0]
    return ""


before = [lark_mpi.KEYVAL == MPI.KEYVAL_INVALID, lark_mpi.reserved(MPI.COMM_WORLD) is None, refused()]
MPI.Init()
comm = MPI.COMM_WORLD
made = lark_mpi.reserve(comm, "ring", 1e6)
while_running = [made.admitted, comm.Get_attr(lark_mpi.KEYVAL) is made, len(made.paths())]
told = Path(os.environ["TOLD"], f"rank{comm.rank}.json")
comm.Barrier()
lark_mpi.release(comm)
MPI.Finalize()
after = [lark_mpi.KEYVAL == MPI.KEYVAL_INVALID, lark_mpi.reserved(comm) is None, refused()]
told.write_text(json.dumps({"before": before, "running": while_running, "after": after}))
