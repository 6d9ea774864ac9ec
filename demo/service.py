"""The controller as a process of its own, and the ``lark`` command that asks it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from lab.run import LabError, free_port, run
from lark_common.client import Client, UnreachableError

# On a machine that is busy with other work a start takes many times the usual two seconds.
START_LIMIT = 90.0
LARK = [sys.executable, "-m", "lark_controller.cli.main"]


class Service:
    """``lark run``, with its settings in the environment and all its files in one directory."""

    def __init__(self, directory: Path, policy: str) -> None:
        self.directory = directory
        self.policy_file = directory / "policy.yaml"
        self.policy_file.write_text(policy)
        self.log_file = directory / "controller.log"
        self.openflow = f"127.0.0.1:{free_port()}"
        self.rest = f"127.0.0.1:{free_port()}"
        self.url = f"http://{self.rest}"
        self.tokens_file = directory / "tokens.yaml"
        self._process: subprocess.Popen[bytes] | None = None
        self._log: IO[bytes] | None = None
        self.hook_token = self._token("hook", "hook")
        self.operator_token = self._token("operator", "operate")
        self.client = Client(self.url, self.operator_token.read_text())

    def start(self) -> None:
        """Start the process and wait until it answers. Raises LabError."""
        settings = {
            "LARK_STATE_DIR": str(self.directory / "state"),
            "LARK_POLICY_FILE": str(self.policy_file),
            "LARK_TOKENS_FILE": str(self.tokens_file),
            "LARK_OPENFLOW_LISTEN": self.openflow,
            "LARK_REST_LISTEN": self.rest,
            # HTCondor would have the leases renewed; here the jobs stay as long as somebody looks at them.
            "LARK_LEASE_SECONDS": "86400",
            # The pages have something new to show every other second.
            "LARK_COUNTER_SECONDS": "2",
            "LARK_USAGE_WRITE_SECONDS": "5",
        }
        self._log = self.log_file.open("ab")
        self._process = subprocess.Popen(
            # A demo that is killed takes its controller with it; Ctrl-C reaches the demo alone.
            ["setpriv", "--pdeathsig", "TERM", *LARK, "run"],
            env=_without_settings() | settings,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        self.wait_for("the controller to answer", self._ready)

    @property
    def pid(self) -> int:
        """The process id of the running controller; raises LabError when it does not run."""
        if self._process is None or self._process.poll() is not None:
            raise LabError("the controller is not running")
        return self._process.pid

    def kill(self) -> None:
        """End it as a crash does: it can send and save nothing."""
        os.kill(self.pid, signal.SIGKILL)
        self._wait()

    def stop(self) -> None:
        """End it; may be repeated."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._wait()
        if self._log is not None:
            self._log.close()

    def _wait(self) -> None:
        if self._process is not None:
            try:
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(5)

    def wait_for(self, what: str, true: Callable[[], bool], limit: float = START_LIMIT) -> None:
        """Wait until something is true of the running controller. Raises LabError with its log where it is not."""
        deadline = time.monotonic() + limit
        while not true():
            ended = self._process is None or self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                words = "the controller ended" if ended else f"{limit:g} s were not enough"
                raise LabError(f"{words} while waiting for {what}; its log:\n{self.log()}")
            time.sleep(0.05)

    def in_sync(self, number: int) -> bool:
        """True if that many switches hold exactly what they should."""
        synced = [each for each in self.client.switches() if each["in_sync"] and each["installed"] == each["desired"]]
        return len(synced) == number

    def log(self) -> str:
        """The controller's log since its first start."""
        return self.log_file.read_text(errors="replace")

    def lark(self, *arguments: str) -> str:
        """The output of the ``lark`` command; the answer "no" (status 1) is an answer. Raises LabError."""
        result = run([*LARK, *arguments], env=_without_settings() | self.access(), check=False, timeout=40)
        if result.returncode > 1 or (result.returncode == 1 and not result.stdout):
            raise LabError(f"lark {' '.join(arguments)}: {result.stderr.strip()}")
        return result.stdout

    def access(self) -> dict[str, str]:
        """The environment in which the ``lark`` command finds the controller."""
        return {"LARK_URL": self.url, "LARK_TOKEN_FILE": str(self.operator_token)}

    def _token(self, name: str, scope: str) -> Path:
        path = self.directory / f"{name}.token"
        made = run([*LARK, "token", name, "--scope", scope, "--file", str(self.tokens_file)], env=_without_settings())
        path.touch(mode=0o600)
        path.write_text(made.stdout.strip())
        return path

    def _ready(self) -> bool:
        try:
            return bool(self.client.ready()["ready"])
        except UnreachableError:
            return False


def compared(log: str) -> list[int]:
    """The numbers of flows and meters that comparisons with switches have changed, in the order of the log."""
    return [int(number) for number in re.findall(r"switch compared.* changes=(\d+)", log)]


def _without_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LARK_")}
