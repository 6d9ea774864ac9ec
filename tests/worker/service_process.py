"""The worker service as a process of its own, to be killed: ``python -m tests.worker.service_process ADS [N]``.

ADS is a file with the slots' ads by process id of the starter, in JSON, in the startd's place. N: it kills itself
before the Nth program that it would run once it listens.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
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

    def __init__(self, number: int, socket: Path) -> None:
        self._number = number
        self._socket = socket
        self._count = itertools.count(1)

    def run(self, *arguments: Any, **options: Any) -> Any:
        if self._socket.exists() and next(self._count) == self._number:
            os.kill(os.getpid(), signal.SIGKILL)
        return subprocess.run(*arguments, **options)


if __name__ == "__main__":
    if len(sys.argv) > 2:
        killed = KilledBefore(int(sys.argv[2]), Path(os.environ["LARK_WORKER_SOCKET"]))
        setattr(commands, "subprocess", killed)  # noqa: B010  # a module's own name is no attribute for the type checker
    sys.exit(run(load(os.environ), FileStartd(Path(sys.argv[1]))))
