"""Counts what the TCP sockets of a machine receive over time, and runs a reference stream until it is ended.

iperf3 gives no measurement of a stream that is ended before its time, so the receiving kernel is asked
(:mod:`experiments.socket_counts`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from experiments import reference
from experiments.cable import REFERENCE_PORT
from lab.boot import Lab, Stream
from lab.channel import Kind

# Seconds between two counts, and those that a stream of unknown length may last.
INTERVAL: Final = 0.1
LONGEST: Final = 1800.0
_PID: Final = "/run/reference.pid"
_COUNT: Final = (
    f"cd /lark/run/source && exec env PYTHONPATH=.:/lark/run/code python3 -m experiments.socket_counts {INTERVAL:g}"
)


@dataclass(frozen=True, slots=True)
class Counts:
    """Bytes of payload that every port has received, at several times (seconds since 1970)."""

    samples: tuple[tuple[float, Mapping[int, int]], ...]

    def rate(self, port: int, begin: float, end: float) -> float:
        """Mb/s of payload of a port from ``begin`` to ``end``, by the counts that are next to them.

        Raises ValueError where there are no two counts.
        """
        if len(self.samples) < 2:
            raise ValueError("nothing was counted")
        first = max((each for each in self.samples[:-1] if each[0] <= begin), default=self.samples[0], key=_at)
        last = min((each for each in self.samples[1:] if each[0] >= end), default=self.samples[-1], key=_at)
        if last[0] <= first[0]:
            return 0.0
        return (last[1].get(port, 0) - first[1].get(port, 0)) * 8 / 1e6 / (last[0] - first[0])


def _at(sample: tuple[float, Mapping[int, int]]) -> float:
    return sample[0]


def counts(printed: str) -> Counts:
    """Read the counting program's output; a last line that is cut off is left out.

    A socket that is closed is listed no more, and keeps what it had.
    """
    samples: list[tuple[float, Mapping[int, int]]] = []
    sockets: dict[int, tuple[int, int]] = {}
    for line in printed.splitlines(keepends=True):
        if not line.startswith("[") or not line.endswith("\n"):
            continue
        when, listed = json.loads(line)
        sockets |= {number: (port, received) for port, number, received in listed}
        ports: dict[int, int] = {}
        for port, received in sockets.values():
            ports[port] = ports.get(port, 0) + received
        samples.append((float(when), ports))
    return Counts(tuple(samples))


class Counting:
    """The counts of :func:`counted`, while they are made."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def so_far(self) -> Counts:
        """The counts until now."""
        return counts(bytes(self._stream.output).decode(errors="replace"))


@contextmanager
def counted(lab: Lab, way: reference.Way) -> Iterator[Counting]:
    """Let a reference stream run during the block, and count what its server's machine receives."""
    client = way.client(REFERENCE_PORT, LONGEST, INTERVAL)
    sending, counting = Stream(), Stream()
    numbers = [
        _open(lab, counting, ["on", way.server, "-u", "root", "sh", "-c", _COUNT]),
        _open(lab, sending, [*way.inside, "sh", "-c", f"echo $$ >{_PID}; exec {client}"]),
    ]
    try:
        yield Counting(counting)
    finally:
        # Ended so, the server is there for the next one at once.
        lab.run([*way.inside, "sh", "-c", f"kill $(cat {_PID})"], check=False)
        sending.ended.wait(5)
        for number in numbers:
            lab.kill(number)


def _open(lab: Lab, stream: Stream, command: list[str]) -> int:
    number = lab.open(stream, Kind.EXEC, {"argv": command, "env": {}})
    lab.give(number, b"", end=True)
    return number


def settled(counting: Counting, end: float, timeout: float = 10.0) -> Counts:
    """The counts, when there is one after ``end``, or ``timeout`` seconds later."""
    deadline = time.monotonic() + timeout
    while not (found := counting.so_far()).samples or found.samples[-1][0] < end:
        if time.monotonic() > deadline:
            break
        time.sleep(INTERVAL)
    return found
