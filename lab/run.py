"""Runs one program to its end, within a time limit, and reports its output when it failed; finds a port for one."""

from __future__ import annotations

import shlex
import socket
import subprocess
from collections.abc import Mapping, Sequence


class LabError(Exception):
    """A program of the lab failed or did not end in time; the text names it and holds what it wrote."""


class MirrorError(LabError):
    """The archive that the lab's root file system is made from cannot be reached."""


def run(
    command: Sequence[str],
    *,
    timeout: float = 20,
    check: bool = True,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run ``command`` and return its result; ``timeout`` is in seconds.

    Raises LabError if it cannot be started, does not end in time, or (with ``check``) ends with another status than 0.
    """
    shown = shlex.join(command)
    try:
        result = subprocess.run(
            list(command), input=stdin, capture_output=True, text=True, timeout=timeout, check=False, env=env
        )
    except FileNotFoundError as error:
        raise LabError(f"{shown}: {command[0]} is not installed") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{shown}: no end within {timeout:g} s") from error
    if check and result.returncode != 0:
        raise LabError(f"{shown}: status {result.returncode}: {(result.stderr or result.stdout).strip()}")
    return result


def free_port() -> int:
    """A port of the loopback interface at which nothing listens now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
