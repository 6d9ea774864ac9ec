"""Communicators of every kind with reservations, and what becomes of these; the test looks after each step."""

from __future__ import annotations

import sys
import threading

from mpi4py import MPI

import lark_mpi
from tests.mpi.programs.exchange import FOLDER, hold, tell, wait_for

RATE = 1e6


def problem(comm: MPI.Comm) -> str:
    """The problem of a request over a communicator that is none between the ranks of one group."""
    try:
        lark_mpi.reserve(comm, "ring", RATE)  # type: ignore[arg-type]
    except lark_mpi.ReservationError as error:
        return str(error)
    return ""


def steps(comm: MPI.Intracomm) -> dict[str, object]:
    seen: dict[str, object] = {}
    # The original goes first, and then its duplicates.
    one = comm.Dup()
    lark_mpi.reserve(one, "ring", RATE)
    two, (three, made) = one.Dup(), one.Idup()
    made.Wait()
    wait_for("duplicated")
    one.Free()
    wait_for("original freed")
    lark_mpi.reserve(two, "ring", RATE)
    three.Free()
    wait_for("other duplicate freed")
    two.Disconnect()
    wait_for("disconnected")
    # Each half has ranks in both jobs, and one rank is in none.
    half = comm.Split(comm.rank % 2, comm.rank)
    lark_mpi.reserve(MPI.Intracomm(half), "ring", RATE)
    wait_for("split")
    half.Free()
    part = comm.Split(MPI.UNDEFINED if comm.rank == 3 else 0, comm.rank)
    if part != MPI.COMM_NULL:
        lark_mpi.reserve(MPI.Intracomm(part), "ring", RATE)
    wait_for("part")
    if part != MPI.COMM_NULL:
        part.Free()
    wait_for("part freed")
    # Between two groups, and of both together.
    near = MPI.Intracomm(comm.Split(comm.rank // 2, comm.rank))
    between = near.Create_intercomm(0, comm, 2 if comm.rank < 2 else 0, 1)
    seen["between"] = [problem(between), lark_mpi.reserved(between) is None]
    lark_mpi.release(between)
    merged = between.Merge(comm.rank > 1)
    lark_mpi.reserve(merged, "ring", RATE)
    between.Free()
    wait_for("merged")
    merged.Free()
    near.Free()
    wait_for("merged freed")
    # Alone: nothing is needed.
    seen["alone"] = lark_mpi.reserve(MPI.COMM_SELF, "all", RATE).admitted
    # Another value in its place, and the attribute set again.
    attributes = lark_mpi.Comm(comm)
    attributes.Set_attr(lark_mpi.KEYVAL, lark_mpi.Wish("ring", RATE))
    attributes.Set_attr(lark_mpi.KEYVAL, lark_mpi.Wish("ring", 2 * RATE))
    wait_for("set twice")
    MPI.Intracomm.Set_attr(comm, lark_mpi.KEYVAL, "another value")
    wait_for("overwritten")
    seen["overwritten"] = lark_mpi.reserved(comm) is None
    comm.Delete_attr(lark_mpi.KEYVAL)
    return seen


def threads(comm: MPI.Intracomm) -> bool:
    """Several threads, each with a communicator of its own, which nobody has used before."""
    comms, good = [comm.Dup() for _ in range(3)], list[bool]()

    def use(own: MPI.Intracomm) -> None:
        for turn in range(1, 4):
            made = lark_mpi.reserve(own, "ring", 1e5 * turn)
            good.append(made.admitted and all(path.promised >= 1e5 * turn for path in made.paths()))
            made.changed(0.01)
            own.Barrier()
        own.Free()

    running = [threading.Thread(target=use, args=(own,)) for own in comms]
    for each in running:
        each.start()
    for each in running:
        each.join()
    return good == [True] * 9


def main() -> None:
    comm = MPI.COMM_WORLD
    seen = steps(comm)
    seen["threads"] = threads(comm)
    wait_for("of threads")
    # At the end of MPI: of all ranks, of this one, of a duplicate, and of a topology that is not freed.
    left = comm.Dup()
    for each in (comm, left, comm.Create_cart([4], periods=[True])):
        lark_mpi.reserve(each, "ring", RATE)
    wait_for("left")
    tell(**seen)
    rank = comm.rank
    if sys.argv[1] == "finalize":
        MPI.Finalize()
        (FOLDER / f"finalized{rank}").touch()
        hold("finalized seen")


if __name__ == "__main__":
    main()
