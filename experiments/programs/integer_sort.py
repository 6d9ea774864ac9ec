"""An integer sort over MPI in the shape of NAS IS: ``mpiexec … python3 integer_sort.py [--keys N] [--rounds R]``.

Each rank has ``N`` keys with a bell-shaped distribution. In every round the ranks add up how many keys each bucket has,
agree which rank gets which buckets, send each other the keys, and count their own. With ``--passes P`` each rank puts
its keys into buckets ``P`` times before it sends them: so much it computes for what it sends. The first round does not
count. Rank 0 prints ``{"seconds": …}``. Needs mpi4py alone, since it runs where the project is not installed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from array import array
from collections.abc import Sequence
from itertools import accumulate, pairwise

from mpi4py import MPI
from waiting import finish

# Values of keys, and buckets, whose number divides them.
VALUES = 1 << 16
BUCKETS = 1 << 8
WIDTH = VALUES // BUCKETS
# Random numbers that are added up for a key.
DRAWN = 4


def keys_of(rank: int, number: int) -> array[int]:
    """A rank's keys, the same in every run."""
    drawn = array("H", random.Random(rank).randbytes(2 * DRAWN * number))
    return array("i", (sum(each) // DRAWN for each in zip(*[iter(drawn)] * DRAWN, strict=True)))


def boundaries(counts: Sequence[int], ranks: int) -> list[int]:
    """The first bucket of each rank and the end of the last: as even as whole buckets can be."""
    so_far, whole = list(accumulate(counts)), sum(counts)
    ends = [
        next(place for place, found in enumerate(so_far, 1) if found * ranks >= whole * rank)
        for rank in range(1, ranks)
    ]
    return [0, *ends, len(counts)]


def bucketed(keys: array[int]) -> list[array[int]]:
    """The keys of each bucket."""
    buckets: list[array[int]] = [array("i") for _ in range(BUCKETS)]
    for key in keys:
        buckets[key // WIDTH].append(key)
    return buckets


def sort(comm: MPI.Intracomm, keys: array[int], passes: int = 1) -> tuple[int, array[int]]:
    """One round: the first value that is this rank's, and how many keys there are of that one and each further."""
    for _ in range(passes - 1):
        bucketed(keys)
    buckets = bucketed(keys)
    own, counts = array("i", map(len, buckets)), array("i", bytes(4 * BUCKETS))
    finish(comm.Iallreduce(own, counts))
    ends = boundaries(counts, comm.size)
    sent: array[int] = array("i")
    for bucket in buckets:
        sent.extend(bucket)
    to_send = array("i", (sum(map(len, buckets[first:last])) for first, last in pairwise(ends)))
    to_get = array("i", bytes(4 * comm.size))
    finish(comm.Ialltoall(to_send, to_get))
    got = array("i", bytes(4 * sum(to_get)))
    ours, theirs = (to_send, _offsets(to_send)), (to_get, _offsets(to_get))
    finish(comm.Ialltoallv([sent, ours, MPI.INT], [got, theirs, MPI.INT]))
    first, last = (ends[comm.rank + more] * WIDTH for more in (0, 1))
    found = array("i", bytes(4 * (last - first)))
    for key in got:
        found[key - first] += 1
    return first, found


def _offsets(numbers: Sequence[int]) -> array[int]:
    return array("i", [0, *accumulate(numbers)][:-1])


def main() -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="integer_sort")
    parser.add_argument("--keys", type=int, default=1 << 15, help="of each rank")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--passes", type=int, default=1)
    given = parser.parse_args()
    comm = MPI.COMM_WORLD
    keys = keys_of(comm.rank, given.keys)
    _, found = sort(comm, keys)
    finish(comm.Ibarrier())
    began = time.monotonic()
    for number in range(given.rounds):
        # As in NAS IS, no round has the keys of the one before.
        keys[number % len(keys)] = number % VALUES
        _, found = sort(comm, keys, given.passes)
    finish(comm.Ibarrier())
    took = time.monotonic() - began
    every = comm.allreduce(sum(found))
    if comm.rank == 0:
        print(json.dumps({"seconds": round(took, 4)}), flush=True)
    return 0 if every == given.keys * comm.size else 1


if __name__ == "__main__":
    sys.exit(main())
