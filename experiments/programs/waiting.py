"""Waiting for messages without taking the processor, as MPI's own waiting does: ranks of all nodes share one here."""

from __future__ import annotations

import time

from mpi4py import MPI

# Seconds between two looks whether a message has passed.
PAUSE = 0.002


def finish(request: MPI.Request, status: MPI.Status | None = None) -> None:
    """Wait for a message, or for what all ranks do together."""
    while not request.Test(status):
        time.sleep(PAUSE)
