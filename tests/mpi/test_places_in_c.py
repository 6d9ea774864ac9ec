"""Ranks and their jobs, as the C library numbers them."""

from __future__ import annotations

import random
import resource
import subprocess
from collections.abc import Sequence

from tests.mpi.ranks import built

# Seconds of processor time. Each rank compared with each other one would take minutes.
MOST = 30
RANKS = 100_000


def numbered(ranks: Sequence[tuple[int, str]]) -> tuple[list[int], list[str]]:
    """The number of each rank's job, and the jobs, by the C library; ``ranks`` have surroundings and the job told."""
    lines = "".join(f"{key} {job}\n" for key, job in ranks)
    numbers, jobs = subprocess.run(
        [built("mpich") / "places"],
        input=f"{len(ranks)}\n{lines}",
        capture_output=True,
        text=True,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (MOST, MOST)),
    ).stdout.splitlines()
    return [int(each) for each in numbers.split()], jobs.split()


def test_jobs_are_in_order_of_their_lowest_ranks() -> None:
    # The third rank has the first one's surroundings, and so its job, whatever it has told itself; the last one has
    # others, and is told the same job.
    assert numbered([(7, "b"), (3, "a"), (7, "x"), (9, "c"), (5, "b")]) == ([0, 1, 0, 2, 0], ["b", "a", "c"])
    assert numbered([(1, "one")]) == ([0], ["one"])


def test_any_ranks_are_numbered_as_one_after_the_other_would_be() -> None:
    drawn = random.Random(1)
    for _ in range(30):
        keys = [drawn.randrange(2**64) for _ in range(drawn.randint(1, 8))]
        of_key = {key: f"job{drawn.randrange(6)}" for key in keys}
        ranks = [(key, of_key[key]) for key in (drawn.choice(keys) for _ in range(drawn.randint(1, 40)))]
        jobs = list(dict.fromkeys(job for _, job in ranks))
        assert numbered(ranks) == ([jobs.index(job) for _, job in ranks], jobs)


def test_a_hundred_thousand_ranks_are_compared_with_few_others_each() -> None:
    numbers, jobs = numbered([(RANKS - rank, f"{rank:016x}") for rank in range(RANKS)])
    assert numbers == list(range(RANKS))
    assert len(jobs) == RANKS
