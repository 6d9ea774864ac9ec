"""Runs one of the site's own programs with a job's ads on its standard input."""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Final

SECONDS: Final = 10.0
MAX_OUTPUT: Final = 65536
# Of standard error, its end is enough for the last line; and the characters of that which a reason may have.
_MAX_ERRORS: Final = 4096
_REASON: Final = 200
_CHUNK: Final = 65536
# The content of a pipe at most (/proc/sys/fs/pipe-max-size), so that a program behind it is not read from for ever.
_PIPE: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Ended:
    """The outcome of a program: ``why`` it failed in a sentence, ``""`` where it did not, and what it printed, at most
    a byte more than MAX_OUTPUT."""

    why: str
    output: bytes = b""


def run_program(command: Sequence[str], given: str, environment: Mapping[str, str] | None = None) -> Ended:
    """Run a program until it ends, at most SECONDS. What it leaves running in the background is not waited for."""
    name = " ".join(command)
    try:
        with os.fdopen(os.memfd_create("ads"), "w+b") as ads:
            ads.write(given.encode("utf-8", "surrogatepass"))
            ads.seek(0)
            # Its output is read from pipes that are closed with its end: others may hold them longer.
            process = subprocess.Popen(
                list(command), stdin=ads, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, env=environment
            )
    except OSError as error:
        return Ended(f"{command[0]} cannot be run: {error.strerror}")
    output, errors = bytearray(), bytearray()
    with process:
        if not _follow(process, output, errors):
            process.kill()
            return Ended(f"{name} took longer than {SECONDS:g} s")
    if not process.returncode:
        return Ended("", bytes(output))
    lines = errors.decode("utf-8", "replace").strip().splitlines()
    return Ended(lines[-1][:_REASON] if lines else f"{name} ended with status {process.returncode}")


def _follow(process: subprocess.Popen[bytes], output: bytearray, errors: bytearray) -> bool:
    """Read what a program writes until it has ended; False where it has not in time."""
    assert process.stdout is not None
    assert process.stderr is not None
    deadline = time.monotonic() + SECONDS
    ended = os.pidfd_open(process.pid)
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(ended, selectors.EVENT_READ)
            for pipe in (process.stdout, process.stderr):
                os.set_blocking(pipe.fileno(), False)
                selector.register(pipe, selectors.EVENT_READ)
            while (left := deadline - time.monotonic()) > 0:
                ready = [key.fileobj for key, _ in selector.select(left)]
                for pipe, kept in ((process.stdout, output), (process.stderr, errors)):
                    if pipe in ready and not _read(pipe, kept):
                        selector.unregister(pipe)
                if ended in ready:
                    _drain(process.stdout, output)
                    _drain(process.stderr, errors)
                    return True
    finally:
        os.close(ended)
        del output[MAX_OUTPUT + 1 :], errors[:-_MAX_ERRORS]
    return False


def _read(pipe: IO[bytes], kept: bytearray) -> int:
    """Read once from a pipe that has something; 0 at its end. Of a long output beginning and end are kept."""
    chunk = os.read(pipe.fileno(), _CHUNK)
    kept += chunk
    del kept[MAX_OUTPUT + 1 : -_MAX_ERRORS]
    return len(chunk)


def _drain(pipe: IO[bytes], kept: bytearray) -> None:
    read = 0
    try:
        while read < _PIPE and (chunk := _read(pipe, kept)):
            read += chunk
    except BlockingIOError:
        return
