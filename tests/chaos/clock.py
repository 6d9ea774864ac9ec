"""``lark`` with a clock that can be set, for the faults: ``python -m tests.chaos.clock run``.

``CHAOS_CLOCK_FILE`` names a file of eight bytes, the seconds by which the clock is ahead. It goes with the process that
started it.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Final

VARIABLE: Final = "CHAOS_CLOCK_FILE"
_AHEAD: Final = struct.Struct("=d")
_PR_SET_PDEATHSIG: Final = 1


class Clock:
    """The clock of whoever reads this file. It is ahead by the sum of all that several have set it ahead or back by."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ahead: dict[str, float] = {}
        path.write_bytes(_AHEAD.pack(0.0))

    def set(self, by: str, seconds: float) -> None:
        """Set it ahead (or back) by so much, instead of what the same one has set it by before."""
        self._ahead[by] = seconds
        # In place: the reader has it mapped.
        with self.path.open("r+b") as file:
            file.write(_AHEAD.pack(sum(self._ahead.values())))


def _follow(path: Path) -> None:
    """Let ``time.time`` be ahead as the file says, from now on."""
    with path.open("rb") as file:
        ahead = mmap.mmap(file.fileno(), _AHEAD.size, prot=mmap.PROT_READ)
    true = time.time
    time.time = lambda: true() + _AHEAD.unpack_from(ahead)[0]


def _main() -> int:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    _follow(Path(os.environ[VARIABLE]))
    # Not before: functions take the clock that they find.
    from lark_controller.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(_main())
