"""``lark run`` as a process of its own, on free ports and a directory of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lark_controller.rest.tokens import Scope, add

START_SECONDS: Final = 300.0
_TICK: Final = os.sysconf("SC_CLK_TCK")
_RUNNING: Final = re.compile(r" running openflow=\S+?:(\d+) rest=\S+?:(\d+)")
STANDS_BY: Final = re.compile(r" stands by active=\S")
# The one that stands by has the directory, and follows it.
COPIED: Final = re.compile(r" directory copied jobs=\d")


class Lark:
    """A controller process. ``seconds`` is how long it took from its start until it listened for hooks and switches.

    It may be entered again after :meth:`kill` or its end. ``module`` is the program, ``lark`` unless something is put
    around it.
    """

    def __init__(
        self, directory: Path, policy: str, *, module: str = "lark_controller.cli.main", **settings: str
    ) -> None:
        self.directory = directory
        self.policy_file = directory / "policy.yaml"
        self.policy_file.write_text(policy)
        tokens = directory / "tokens.yaml"
        self.token = add(tokens, "bench", [Scope.HOOK, Scope.READ, Scope.OPERATE]) if not tokens.exists() else ""
        self._environment = {
            # Installed controllers have their bytecode: without it a start compiles 400 modules.
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("LARK_") and name != "PYTHONDONTWRITEBYTECODE"
            },
            "LARK_STATE_DIR": str(directory),
            "LARK_POLICY_FILE": str(self.policy_file),
            "LARK_TOKENS_FILE": str(tokens),
            "LARK_OPENFLOW_LISTEN": "127.0.0.1:0",
            "LARK_REST_LISTEN": "127.0.0.1:0",
            **{f"LARK_{name.upper()}": value for name, value in settings.items()},
        }
        self._module = module
        self._log = directory / "lark.log"
        self._begin = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.openflow = 0
        self.rest = 0
        self.seconds = 0.0

    def __enter__(self) -> Self:
        started = time.perf_counter()
        self.begin()
        self.serves()
        self.seconds = time.perf_counter() - started
        return self

    def begin(self) -> None:
        """Start the process, and wait for nothing."""
        self._begin = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, "run"], env=self._environment, stderr=log
            )

    def serves(self) -> None:
        """Wait until it listens for hooks and switches, and note where."""
        found = self.until(_RUNNING)
        self.openflow, self.rest = int(found[1]), int(found[2])

    def until(self, line: re.Pattern[str]) -> re.Match[str]:
        """Wait for a line of the log since the last start. Raises RuntimeError."""
        started = time.perf_counter()
        while not (found := line.search(self.log())):
            if not self.running or time.perf_counter() - started > START_SECONDS:
                state = f"after {time.perf_counter() - started:.0f} s, " + ("running" if self.running else "ended")
                raise RuntimeError(f"lark run did not get to {line.pattern!r} ({state}): {self.log()[-2000:]}")
            time.sleep(0.01)
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def kill(self) -> None:
        """End it at once, as a machine does that loses its power."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def running(self) -> bool:
        """True if the process is there."""
        return self._process is not None and self._process.poll() is None

    @property
    def is_active(self) -> bool:
        """True if it serves, by its log, since its last start."""
        return self.running and _RUNNING.search(self.log()) is not None

    @property
    def pid(self) -> int:
        """The process's id."""
        assert self._process is not None
        return self._process.pid

    def memory(self, what: str = "RSS") -> int:
        """The process's memory now (RSS), or at most so far (HWM), in bytes."""
        found = re.search(rf"Vm{what}:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        return 0 if found is None else int(found[1]) * 1024

    def threads(self) -> int:
        """The number of the process's threads."""
        return len(list(Path(f"/proc/{self.pid}/task").iterdir()))

    def processor_seconds(self) -> float:
        """The seconds of processor time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def log(self) -> str:
        """The log since the last start."""
        return self._log.read_bytes()[self._begin :].decode()
