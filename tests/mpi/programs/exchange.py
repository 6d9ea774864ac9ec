"""Programs that use their reservations; each rank writes what it has seen to TOLD."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

from mpi4py import MPI

import lark_mpi

FOLDER = Path(os.environ["TOLD"])


def tell(**what: object) -> None:
    (FOLDER / f"rank{MPI.COMM_WORLD.rank}.json").write_text(json.dumps(what))


def refused(comm: MPI.Intracomm, pattern: Any, rate: float | None = None, lease: float = 300.0) -> str:
    try:
        lark_mpi.reserve(comm, pattern, rate, lease)
    except lark_mpi.ReservationError as error:
        return str(error)
    return ""


def paths(comm: MPI.Comm) -> dict[str, list[int | None]]:
    """Promised and free kB/s by job."""
    made = lark_mpi.reserved(comm)
    assert made is not None
    return {
        path.job: [round(path.promised / 1000), None if path.free is None else round(path.free / 1000)]
        for path in made.paths()
    }


def hold(until: str) -> None:
    """Wait until the test has written a file; without the test there is no folder any more, and nothing to wait for."""
    while not (FOLDER / until).exists():
        if not FOLDER.exists():
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)


def ring(comm: MPI.Intracomm) -> None:
    """A reservation that is held until the file ``seen`` is there."""
    made = lark_mpi.reserve(comm, "ring", 1e6)
    tell(admitted=made.admitted)
    hold("seen")
    comm.Barrier()
    lark_mpi.release(comm)


def life(comm: MPI.Intracomm) -> None:
    """A reservation made, changed, refused, duplicated, freed; the end of the program releases the last."""
    seen: dict[str, object] = {}
    lark_mpi.reserve(comm, lark_mpi.Pattern.ALL, 1e6)
    seen["made"] = paths(comm)
    comm.Barrier()
    lark_mpi.reserve(comm, "all", 2e6)
    seen["changed"] = paths(comm)
    seen["too much"] = refused(comm, "all", 4e6)
    seen["as before"] = paths(comm)
    comm.Barrier()
    other = comm.Dup()
    seen["of the duplicate"] = lark_mpi.reserved(other) is None
    other.Free()
    seen["still"] = paths(comm)
    comm.Barrier()
    lark_mpi.release(comm)
    lark_mpi.release(comm)
    seen["released"] = lark_mpi.reserved(comm) is None
    comm.Barrier()
    half = comm.Dup()
    lark_mpi.reserve(half, "ring", 1e6)
    seen["ring"] = paths(half)
    comm.Barrier()
    half.Free()
    comm.Barrier()
    attributes = lark_mpi.Comm(comm)
    attributes.Set_attr(lark_mpi.KEYVAL, lark_mpi.Wish("all", 9e9))
    found = comm.Get_attr(lark_mpi.KEYVAL)
    assert isinstance(found, lark_mpi.Reservation)
    seen["denied"] = [found.admitted, found.reason]
    attributes.Set_attr(lark_mpi.KEYVAL, lark_mpi.Wish("all", 1e6))
    seen["accepted"] = [found.admitted, found.reason, paths(comm)]
    comm.Barrier()
    tell(**seen)


def steadies(comm: MPI.Intracomm) -> None:
    """A steady reservation, refused as another one, then with what is free; the test looks between."""
    lark_mpi.reserve(comm, "ring", 1e6, steady=True)
    wait_for("steady")
    refused(comm, "ring", 9e9)
    wait_for("refused")
    lark_mpi.reserve(comm, "ring", 1e6)
    wait_for("free")


def wait_for(name: str) -> None:
    """Let the test look: rank 0 says where the ranks are, and all go on once it has seen that."""
    comm = MPI.COMM_WORLD
    comm.Barrier()
    if comm.rank == 0:
        (FOLDER / name).touch()
    hold(f"{name} seen")
    comm.Barrier()


class Strange(dict[int, float]):
    """A table that cannot be read."""

    def items(self) -> Any:
        raise RuntimeError("not to be read")


def shapes(comm: MPI.Intracomm) -> None:
    """Neighbours in the three kinds of topology, tables, and mistakes of one rank that all learn."""
    seen: dict[str, object] = {}
    rank = comm.rank
    made: list[tuple[str, MPI.Intracomm]] = [
        ("cart", comm.Create_cart([4], periods=[False])),
        ("graph", comm.Create_graph([1, 2, 3, 4], [1, 2, 3, 0])),
        ("dist_graph", comm.Create_dist_graph_adjacent([(rank - 1) % 4], [(rank + 1) % 4])),
    ]
    for name, shaped in made:
        lark_mpi.reserve(shaped, "neighbours", 1e6)
        seen[name] = paths(shaped)
        comm.Barrier()
        shaped.Free()
        comm.Barrier()
    lark_mpi.reserve(comm, {(rank + 2) % 4: 1e6 * rank, rank: 5e9})
    seen["table"] = paths(comm)
    comm.Barrier()
    lark_mpi.release(comm)
    seen["mistakes"] = [
        refused(comm, {7: 1e6} if rank == 1 else {}),
        refused(comm, "ring", float("nan") if rank == 2 else 1.0),
        refused(comm, "ring"),
        refused(comm, "star", 1e6),
        refused(comm, "neighbours", 1e6),
        refused(comm, "ring", 1e6, 0.1),
        refused(comm, {"one": 1e6}),
        # Of one rank alone: the others are not to wait for it.
        refused(comm, {2.0: 1e6} if rank == 3 else {}),
        refused(comm, "ring", 10**400 if rank == 3 else 1e6),
        refused(comm, "ring", 1e6, 10**400 if rank == 3 else 300.0),
        refused(comm, Strange() if rank == 3 else "ring", 1e6),
    ]
    # One rank's value of the attribute is none.
    attributes, raised = lark_mpi.Comm(comm), False
    try:
        attributes.Set_attr(lark_mpi.KEYVAL, lark_mpi.Wish("ring", 1e6) if rank < 3 else 1e6)
    except TypeError:
        raised = True
    found = lark_mpi.reserved(comm)
    seen["no wish"] = [found is not None and found.reason, raised]
    lark_mpi.release(comm)
    # Three ranks on the other side of one.
    half = MPI.Intracomm(comm.Split(rank == 0, rank))
    between = half.Create_intercomm(0, comm, int(rank == 0), 1)
    seen["between groups"] = refused(cast("MPI.Intracomm", between), "ring", 1e6)
    between.Free()
    half.Free()
    tell(**seen, left=lark_mpi.reserved(comm) is None)


def ended(comm: MPI.Intracomm) -> None:
    """A reservation that ends, and is asked for again before a renewal has noticed."""
    made = lark_mpi.reserve(comm, "ring", 1e6)
    wait_for("ended")
    lost = [path.lost for path in made.paths()]
    made = lark_mpi.reserve(comm, "ring", 1e6)
    tell(lost=lost, made=paths(comm), pending=[path.pending for path in made.paths()])
    wait_for("again")


def stuck(comm: MPI.Intracomm) -> None:
    """Each rank waits until its promise is not enforced any more; the test has it so once it sees the file."""
    made = lark_mpi.reserve(comm, "ring", 1e6)
    made.paths()
    comm.Barrier()
    if comm.rank == 0:
        (FOLDER / "stuck").touch()
    changed = made.changed(60)
    tell(changed=changed, pending=[path.pending for path in made.paths()], made=paths(comm))
    comm.Barrier()


def refusal(comm: MPI.Intracomm) -> None:
    tell(reason=refused(comm, "all", 1e6), left=lark_mpi.reserved(comm) is None)


def dies(comm: MPI.Intracomm) -> None:
    """Rank 3 ends in the way that the file ``end`` says."""
    lark_mpi.reserve(comm, "all", 1e6, lease=3)
    hold("end")
    if comm.rank == 3:
        if (FOLDER / "end").read_text() == "abort":
            comm.Abort(3)
        os.kill(os.getpid(), signal.SIGKILL)
    comm.Barrier()


def await_file(name: str) -> None:
    while not (FOLDER / name).exists():
        time.sleep(0.02)


def adapts(comm: MPI.Intracomm) -> None:
    """Each rank waits for a change of what is free; the test makes one once it sees the file ``waiting``."""
    made = lark_mpi.reserve(comm, "ring", 1e6)
    idle, before = made.changed(0.3) or made.changed(float("nan")), paths(comm)
    comm.Barrier()
    if comm.rank == 0:
        (FOLDER / "waiting").touch()
    changed = made.changed(60)
    sent = [
        None if path.delivered is None else [round(path.delivered / 1000), round((path.total or 0) / 1000), path.age]
        for path in made.paths()
    ]
    tell(before=before, idle=idle, changed=changed, after=paths(comm), sent=sent)
    comm.Barrier()


def busy(comm: MPI.Intracomm) -> None:
    """Each rank waits for a change while its worker has no time for the job."""
    made = lark_mpi.reserve(comm, "ring", 1e6)
    made.paths()
    wait_for("busy")
    tell(changed=made.changed(0.7))
    wait_for("free")


def away(comm: MPI.Intracomm) -> None:
    """Each rank goes on while the worker service is away, for as long as what it has is reserved."""
    made = lark_mpi.reserve(comm, "ring", 1e6, lease=60)
    made.paths()
    wait_for("away")
    changed = made.changed(0) or made.changed(0.7)
    wait_for("coming")
    after = paths(comm)
    lark_mpi.reserve(comm, "ring", 1e6, lease=3)
    wait_for("gone")
    try:
        over = str(made.changed(60))
    except lark_mpi.ReservationError as error:
        over = str(error)
    tell(changed=changed, after=after, over=over)
    wait_for("end")


def renamed(comm: MPI.Intracomm) -> None:
    """The worker service tells another job from now on."""
    before = refused(comm, "ring", 1e6)
    wait_for("renamed")
    tell(before=before, after=refused(comm, "ring", 2e6), made=paths(comm))
    comm.Barrier()


def twice(comm: MPI.Intracomm) -> None:
    """Two communicators of the same jobs, the second one with other ranks that ask; each is released by itself."""
    half = MPI.Intracomm(comm.Split(comm.rank % 2))
    lark_mpi.reserve(comm, "all", 1e6)
    lark_mpi.reserve(half, "ring", 1e6)
    comm.Barrier()
    tell(all=paths(comm), ring=paths(half))
    comm.Barrier()
    await_file("release")
    lark_mpi.release(comm)
    comm.Barrier()
    await_file("free")
    half.Free()
    comm.Barrier()
    await_file("end")


def parts(comm: MPI.Intracomm) -> None:
    """A thread waits for a change while another one releases what is reserved."""
    made, changed = lark_mpi.reserve(comm, "ring", 1e6), list[bool]()
    before = paths(comm)
    waiting = threading.Thread(target=lambda: changed.append(made.changed(60)))
    waiting.start()
    wait_for("waiting")
    lark_mpi.release(comm)
    waiting.join()
    tell(before=before, changed=changed[0], left=lark_mpi.reserved(comm) is None)


def between(comm: MPI.Intracomm) -> None:
    """Another thread releases what is reserved before this one has read the paths that it waits for."""
    made = lark_mpi.reserve(comm, "ring", 1e6)
    look = made._look

    def late(after: str, wait: float) -> bool:
        lark_mpi.release(comm)
        return look(after, wait)

    made._look = late  # type: ignore[method-assign]
    tell(changed=made.changed(5), again=made.changed(0.01))


if __name__ == "__main__":
    globals()[sys.argv[1]](MPI.COMM_WORLD)
