"""Runs one program to its end, within a time limit, and reports its output when it failed; finds a port for one."""

from __future__ import annotations

import contextlib
import itertools
import random
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


# Below those that Linux gives to connections (net.ipv4.ip_local_port_range), and none twice.
_PORTS = itertools.cycle(random.SystemRandom().sample(range(20_000, 32_000), 2_000))


def free_port(address: str = "127.0.0.1") -> int:
    """A port of the loopback interface at which nothing listens now, and which no connection takes by itself."""
    while True:
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind((address, port := next(_PORTS)))
            return port
