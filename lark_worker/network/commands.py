"""Run the system's own network programs, and do work inside another network namespace."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from lark_worker.errors import NetworkError

NETNS: Final = Path("/run/netns")
_CLONE_NEWNET: Final = 0x40000000
# Where programs are searched.
SEARCHED: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PATH: Final = {"PATH": SEARCHED, "LC_ALL": "C"}
_FAILED: Final = re.compile(r"\s*Command failed -:([0-9]+)\s*$")
_libc = ctypes.CDLL(None, use_errno=True)


def run(
    command: Sequence[str], given: str = "", seconds: float = 20.0, *, check: bool = True, complaints: bool = False
) -> str:
    """Run a program and return its output, with ``complaints`` that on standard error as well.

    Raises NetworkError where it fails (with ``check``) or takes longer than ``seconds``.
    """
    try:
        done = subprocess.run(
            command, input=given, env=_PATH, capture_output=True, text=True, timeout=seconds, check=False
        )
    except FileNotFoundError:
        raise NetworkError(f"{command[0]} is not installed: it is in none of {_PATH['PATH']}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"{command[0]}: {error}") from None
    if check and done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout + done.stderr if complaints else done.stdout


def ip_batch(lines: Sequence[str]) -> None:
    """Give several commands to ``ip`` at once (ip(8), -batch); the first that fails ends it with NetworkError, which
    names it."""
    batch = ["ip", "-batch", "-"]
    try:
        run(batch, "".join(f"{line}\n" for line in lines))
    except NetworkError as error:
        if (failed := _FAILED.search(str(error))) is None:
            raise
        why = str(error)[: failed.start()].removeprefix(f"{' '.join(batch)}: ")
        for word in ("RTNETLINK answers: ", "Error: "):
            why = why.removeprefix(word)
        raise NetworkError(f"ip {lines[int(failed[1]) - 1]}: {why}") from None


def inside(namespace: str, work: Callable[[], None]) -> None:
    """Do ``work`` on a thread that has entered the namespace; programs that it starts are in there too.

    A thread's namespace is its own (setns(2)), so the rest of the process stays where it is. Raises what ``work``
    raises, and NetworkError where the namespace cannot be entered.
    """
    raised: list[BaseException] = []

    def enter() -> None:
        try:
            fd = os.open(NETNS / namespace, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _libc.setns(fd, _CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")
            finally:
                os.close(fd)
            work()
        except OSError as error:
            raised.append(NetworkError(f"namespace {namespace}: {error}"))
        except BaseException as error:  # handed to the caller, on its own thread
            raised.append(error)

    thread = threading.Thread(target=enter, name=f"inside {namespace}")
    thread.start()
    thread.join()
    if raised:
        raise raised[0]
