"""The worker service as a process of its own, to be killed: ``python -m tests.worker.service_process ADS [COUNT]``.

ADS is a file with the slots' ads by process id of the starter, in JSON, in the startd's place. While there is a file
COUNT with a number N, the service kills itself before the Nth program that it would run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import classad2

from lark_worker.cli import run
from lark_worker.errors import StartdError
from lark_worker.identity.processes import Process
from lark_worker.identity.startd import Slot, read_slot
from lark_worker.network import commands
from lark_worker.settings import load


class FileStartd:
    """A startd that says what a file says."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def gives_jobs_its_network(self) -> bool | None:
        return False

    def slot(self, starter: Process) -> Slot:
        ads = json.loads(self._path.read_text())
        if str(starter.pid) not in ads:
            raise StartdError("no such slot")
        return read_slot(classad2.parseOne(ads[str(starter.pid)], classad2.Parser.Old))


class KilledBefore:
    """``subprocess`` as :mod:`lark_worker.network.commands` uses it, until so many programs have been run."""

    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self, count: Path) -> None:
        self._file = count
        self._lock = threading.Lock()

    def run(self, *arguments: Any, **options: Any) -> Any:
        with self._lock:
            if self._file.exists():
                left = int(self._file.read_text()) - 1
                self._file.write_text(str(left))
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
        return subprocess.run(*arguments, **options)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        killed = KilledBefore(Path(sys.argv[2]))
        setattr(commands, "subprocess", killed)  # noqa: B010  # a module's own name is no attribute for the type checker
    sys.exit(run(load(os.environ), FileStartd(Path(sys.argv[1]))))
