"""Reads the slots' ads from the pool's collector, in a process of its own that cannot hold anything up."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

from lark_common.errors import PoolError
from lark_controller.htcondor.slots import Reading, Slot, reading, slot_of

# Ads that are read before other threads get their turn.
PORTION: Final = 500
PAUSE: Final = 0.001


def read_pool(collector: str, timeout: float) -> Reading:
    """Reads all slots from a collector (``host``, ``host:port``, or several with commas between); takes at most about
    ``timeout`` seconds. Raises PoolError."""
    at = time.time()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "lark_controller.htcondor.ask", collector],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise PoolError(f"the collector {collector} has not answered within {timeout:g} s") from None
    except OSError as error:
        raise PoolError(f"the collector {collector} cannot be asked: {error.strerror}") from None
    if done.returncode:
        message = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        raise PoolError(message or f"the collector {collector} cannot be asked: status {done.returncode}")
    lines = done.stdout.decode(errors="replace").splitlines()
    try:
        return reading(at, float(lines[0]), _slots(lines[1:]))
    except (ValueError, IndexError):
        raise PoolError(f"what the collector {collector} answers cannot be read") from None


def _slots(lines: list[str]) -> Iterator[Slot]:
    for number, line in enumerate(lines):
        slot = slot_of(json.loads(line))
        if slot is not None:
            yield slot
        if number % PORTION == 0:
            time.sleep(PAUSE)
