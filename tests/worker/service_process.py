"""The worker service as a process of its own, which can be killed: ``python -m tests.worker.service_process ADS``.

ADS is a file with the slots' ads by process id of the starter, in JSON, in the startd's place.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import classad2

from lark_worker.cli import run
from lark_worker.errors import StartdError
from lark_worker.processes import Process
from lark_worker.settings import load
from lark_worker.startd import Slot, read_slot


class FileStartd:
    """A startd that says what a file says."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def slot(self, starter: Process) -> Slot:
        ads = json.loads(self._path.read_text())
        if str(starter.pid) not in ads:
            raise StartdError("no such slot")
        return read_slot(classad2.parseOne(ads[str(starter.pid)], classad2.Parser.Old))


if __name__ == "__main__":
    sys.exit(run(load(os.environ), FileStartd(Path(sys.argv[1]))))
