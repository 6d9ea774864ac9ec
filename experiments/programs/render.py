"""POV-Ray over MPI: ``mpiexec … python3 render.py SCENE [--width W] [--height H] [--frames N]``.

Each rank renders as many rows of every frame as the others with POV-Ray, and rank 0 gathers them. The first frame does
not count: it is rendered small. Rank 0 prints ``{"seconds": …}``. Needs mpi4py and POV-Ray alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from mpi4py import MPI

# Bytes of a pixel.
DEPTH = 3
# A binary PPM's begin, with its width.
HEAD = re.compile(rb"P6\s+(?:#[^\n]*\n)*(\d+)\s+\d+\s+255\s")


def rows(rank: int, ranks: int, height: int) -> tuple[int, int]:
    """The first row of a rank, counted from 0, and the row behind its last."""
    return height * rank // ranks, height * (rank + 1) // ranks


def pixels(picture: bytes, width: int, first: int, last: int) -> bytes:
    """The bytes of rows of a binary PPM: those that were rendered come first, or stand where they belong. Raises
    ValueError."""
    head = HEAD.match(picture)
    body = b"" if head is None else picture[head.end() :]
    size = width * DEPTH * (last - first)
    if head is None or int(head[1]) != width or len(body) < size:
        raise ValueError("POV-Ray wrote no picture of that size")
    begin = width * DEPTH * first
    return body[begin : begin + size] if len(body) >= begin + size else body[:size]


def render(scene: str, width: int, height: int, part: tuple[int, int], clock: float) -> bytes:
    """Render some rows. Raises CalledProcessError, ValueError."""
    first, last = part
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "part.ppm"
        subprocess.run(
            ["povray", f"+I{scene}", f"+W{width}", f"+H{height}", f"+SR{first + 1}", f"+ER{last}", f"+K{clock:g}",
             "+FP", f"+O{made}", "-D", "-GA", "+WT1", "-A"],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return pixels(made.read_bytes(), width, first, last)


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="render")
    parser.add_argument("scene")
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--height", type=int, default=240)
    parser.add_argument("--frames", type=int, default=2)
    given = parser.parse_args()
    comm = MPI.COMM_WORLD
    part = rows(comm.rank, comm.size, given.height)
    render(given.scene, given.width // 8, given.height // 8, rows(comm.rank, comm.size, given.height // 8), 0)
    comm.Barrier()
    began = time.monotonic()
    size = 0
    for frame in range(given.frames):
        whole = comm.gather(render(given.scene, given.width, given.height, part, frame / given.frames))
        size = 0 if whole is None else sum(map(len, whole))
    comm.Barrier()
    took = time.monotonic() - began
    if comm.rank:
        return 0
    print(json.dumps({"seconds": round(took, 4)}), flush=True)
    return 0 if size == given.width * given.height * DEPTH else 1


if __name__ == "__main__":
    sys.exit(main())
