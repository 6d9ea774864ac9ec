"""POV-Ray over MPI: ``mpiexec … python3 render.py SCENE [--width W] [--height H] [--frames N]``.

Each rank renders as many rows of every frame as the others with POV-Ray, and rank 0 gathers them, as they are and not
compressed. ``--samples S`` follows ``S`` times ``S`` further rays through each pixel, ``--quality Q`` is POV-Ray's,
up to 9, and ``--bits`` are those of a colour. The first frame does not count: it is rendered small. Rank 0 prints
``{"seconds": …}``. Needs mpi4py and POV-Ray alone.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mpi4py import MPI
from waiting import finish

# Colours of a pixel.
COLOURS = 3
# A binary PPM's begin, with its width.
HEAD = re.compile(rb"P6\s+(?:#[^\n]*\n)*(\d+)\s+\d+\s+\d+\s")


def rows(rank: int, ranks: int, height: int) -> tuple[int, int]:
    """The first row of a rank, counted from 0, and the row behind its last."""
    return height * rank // ranks, height * (rank + 1) // ranks


def pixels(picture: bytes, width: int, depth: int, first: int, last: int) -> bytes:
    """The bytes of rows of a binary PPM, ``depth`` for each pixel: those that were rendered come first, or stand where
    they belong. Raises ValueError."""
    head = HEAD.match(picture)
    body = b"" if head is None else picture[head.end() :]
    size = width * depth * (last - first)
    if head is None or int(head[1]) != width or len(body) < size:
        raise ValueError("POV-Ray wrote no picture of that size")
    begin = width * depth * first
    return body[begin : begin + size] if len(body) >= begin + size else body[:size]


@dataclass(frozen=True)
class Picture:
    """A picture's pixels, the ``bits`` of a colour, and POV-Ray's options for the work at each pixel."""

    width: int
    height: int
    bits: int
    effort: tuple[str, ...]

    @property
    def depth(self) -> int:
        """Bytes of a pixel."""
        return COLOURS * self.bits // 8


def render(scene: str, picture: Picture, part: tuple[int, int], clock: float) -> bytes:
    """Render some rows. Raises CalledProcessError, ValueError."""
    first, last = part
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "part.ppm"
        subprocess.run(
            ["povray", f"+I{scene}", f"+W{picture.width}", f"+H{picture.height}", f"+SR{first + 1}", f"+ER{last}",
             f"+K{clock:g}", f"+FP{picture.bits}", f"+O{made}", "-D", "-GA", "+WT1", *picture.effort],
            check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return pixels(made.read_bytes(), picture.width, picture.depth, first, last)


def efforts(samples: int, quality: int) -> tuple[str, ...]:
    """The options of POV-Ray for its work at each pixel."""
    further = ("+A0.0", "+AM1", f"+R{samples}") if samples else ("-A",)
    return (f"+Q{quality}", *further)


def gather(comm: MPI.Intracomm, own: bytes, sizes: Sequence[int]) -> int:
    """Send the rows to rank 0; answers there how many bytes came of all, and 0 elsewhere."""
    if comm.rank:
        finish(comm.Isend([own, MPI.BYTE], dest=0))
        return 0
    parts = [bytearray(size) for size in sizes[1:]]
    for request in [comm.Irecv([part, MPI.BYTE], source=rank) for rank, part in enumerate(parts, 1)]:
        finish(request)
    return len(own) + sum(map(len, parts))


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="render")
    parser.add_argument("scene")
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--height", type=int, default=240)
    parser.add_argument("--frames", type=int, default=2)
    parser.add_argument("--samples", type=int, default=0)
    parser.add_argument("--quality", type=int, default=9)
    parser.add_argument("--bits", type=int, default=8, choices=(8, 16))
    given = parser.parse_args()
    comm = MPI.COMM_WORLD
    picture = Picture(given.width, given.height, given.bits, efforts(given.samples, given.quality))
    every = [rows(rank, comm.size, given.height) for rank in range(comm.size)]
    sizes = [given.width * picture.depth * (last - first) for first, last in every]
    small = replace(picture, width=given.width // 8, height=given.height // 8)
    render(given.scene, small, rows(comm.rank, comm.size, small.height), 0)
    # A connection to each rank is there before the clock begins.
    gather(comm, bytes(1), [1] * comm.size)
    finish(comm.Ibarrier())
    began = time.monotonic()
    size = 0
    for frame in range(given.frames):
        own = render(given.scene, picture, every[comm.rank], frame / given.frames)
        size = gather(comm, own, sizes)
    finish(comm.Ibarrier())
    took = time.monotonic() - began
    if comm.rank:
        return 0
    print(json.dumps({"seconds": round(took, 4)}), flush=True)
    return 0 if size == sum(sizes) else 1


if __name__ == "__main__":
    sys.exit(main())
