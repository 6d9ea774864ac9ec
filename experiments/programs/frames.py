"""Frames for a display over MPI: ``mpiexec … python3 frames.py [--rate F] [--bytes N] [--seconds S] [--adapt]``.

Every rank but 0 sends its part of ``F`` frames a second to rank 0, ``N`` bytes each, and waits where they do not pass
so fast. With ``--adapt`` it reserves a floor with ``lark_mpi``, notices when the best effort beside it changes, and
sends as many bytes as pass in time. Rank 0 prints ``{"frames": […], "bytes": […]}``: when each frame was whole, seconds
since 1970, and its size. Needs mpi4py, and ``lark_mpi`` to adapt.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time

from mpi4py import MPI
from waiting import finish

# Of what is promised and free, what is sent: TCP does not find the last tenth.
PART = 0.85
LEAST = 1000
END = b""


class Budget:
    """The bytes a second that this rank may send: read anew whenever ``lark_mpi`` has news."""

    def __init__(self, comm: MPI.Intracomm, floor: float) -> None:
        import lark_mpi  # the program runs without it

        self._senders = comm.size - 1
        self._reservation = lark_mpi.reserve(comm, {0: floor} if comm.rank else {}, steady=False)
        self.rate = self._read()
        if comm.rank:
            threading.Thread(target=self._watch, daemon=True).start()

    def _read(self) -> float:
        # All parts come in over rank 0's link, so each sender has its even part of what is free there.
        paths = self._reservation.paths()
        return sum(path.promised + (path.free or 0.0) / self._senders for path in paths)

    def _watch(self) -> None:
        while True:
            if self._reservation.changed(30):
                self.rate = self._read()


def send(comm: MPI.Intracomm, given: argparse.Namespace, budget: Budget | None) -> None:
    """Send frames until the time is over."""
    block = bytes(given.bytes)
    due = time.monotonic()
    over = due + given.seconds
    while due < over:
        time.sleep(max(0.0, due - time.monotonic()))
        size = given.bytes
        if budget is not None:
            size = max(LEAST, min(size, int(budget.rate * PART / given.rate)))
        finish(comm.Isend([block, size, MPI.BYTE], dest=0))
        # A late frame is not made up for.
        due = max(due + 1 / given.rate, time.monotonic())
    finish(comm.Isend([END, 0, MPI.BYTE], dest=0))


def show(comm: MPI.Intracomm, most: int) -> dict[str, list[float]]:
    """Receive frames until the first sender ends."""
    part = bytearray(most)
    status = MPI.Status()
    found: dict[str, list[float]] = {"frames": [], "bytes": []}
    live = set(range(1, comm.size))
    while live:
        size = 0
        for rank in sorted(live):
            finish(comm.Irecv([part, MPI.BYTE], source=rank), status)
            got = status.Get_count(MPI.BYTE)
            size += got
            if not got:
                live.discard(rank)
        if len(live) == comm.size - 1:
            found["frames"].append(round(time.time(), 3))
            found["bytes"].append(size)
    return found


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="frames")
    parser.add_argument("--rate", type=float, default=10.0, help="frames a second")
    parser.add_argument("--bytes", type=int, default=100_000, help="of each rank in each frame, at most")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--adapt", action="store_true")
    parser.add_argument("--floor", type=float, default=20_000.0, help="bytes a second that each rank reserves")
    given = parser.parse_args()
    comm = MPI.COMM_WORLD
    budget = Budget(comm, given.floor) if given.adapt else None
    comm.Barrier()
    if comm.rank:
        send(comm, given, budget)
    else:
        print(json.dumps(show(comm, given.bytes)), flush=True)
    comm.Barrier()
    return 0


if __name__ == "__main__":
    sys.exit(main())
