"""Measurements of the runs of :mod:`experiments.cluster`, judged by a reference stream; what failed is left out.

Every measurement is written when it is made, so that one that fails, and a lab that ends before it should, leave the
others.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from experiments.beside import Kept, Processors, Taken, keep
from experiments.cluster import MEASURED, Played, of_json
from experiments.nodes import Request
from experiments.result import Beside, Result
from lab.boot import Lab
from lab.run import LabError
from lab.settings import from_environment

LAB_CODE: Final = {"PYTHONPATH": "/lark/run/code:/lark/run/source"}
# Characters of a reason that a note has.
SHOWN: Final = 200

Samples = list[tuple[float, Processors]]


class NotMeasuredError(LabError):
    """A run failed each time, or none of a figure's did not."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measurements of each run, by its name, and the reasons of those that ``failed`` each time."""

    kept: Mapping[str, Kept[Played]]
    failed: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Kept[Played]:
        """The measurements of a run. Raises NotMeasuredError."""
        try:
            return self.kept[name]
        except KeyError:
            raise NotMeasuredError(f"{name}: {self.failed.get(name, 'not measured')}") from None

    def has(self, *names: str) -> bool:
        """Say if something was measured of every one of these runs."""
        return all(name in self.kept for name in names)

    def beside(self, *names: str) -> Beside | None:
        """The reference streams of these runs."""
        return Beside.of(one for name, kept in self.kept.items() if name in names for one in kept.taken)

    def repetitions(self, *names: str) -> int | str:
        """The measurements that count of each of these runs, or the least and the most of them."""
        counts = [len(kept.values) for name, kept in self.kept.items() if name in names]
        least, most = min(counts, default=0), max(counts, default=0)
        return most if least == most else f"{least} to {most}"

    def missing(self, *names: str) -> tuple[str, ...]:
        """A note of these runs of which nothing was measured; none where there are none."""
        told = [f"{name} ({why})" for name, why in self.failed.items() if name in names]
        return (f"Not measured, and left out: {'; '.join(told)}.",) if told else ()


def measure(request: Request, packages: Sequence[str], seconds: float) -> Measured:
    """Play a request in a lab of its own, with these packages: what counts of each run's repetitions.

    Raises LabError where nothing was measured at all.
    """
    stopped = ""
    with Lab.start(from_environment(), packages) as lab, watched() as processors:
        try:
            lab.run(
                ["python3", "-m", "experiments.cluster"],
                timeout=seconds,
                stdin=json.dumps(asdict(request)),
                env=LAB_CODE,
            )
        except LabError as error:
            stopped = str(error)
            print(f"cluster: {stopped}", file=sys.stderr)
        lines = lab.directory / Path(MEASURED).name
        text = lines.read_text() if lines.exists() else ""
    return read(text.splitlines(), request, processors, stopped)  # fmt: skip


def read(lines: Iterable[str], request: Request, processors: Samples, stopped: str = "") -> Measured:
    """Read what :func:`experiments.cluster.measure` wrote; ``stopped`` is the reason why it ended before its end.

    Raises LabError where nothing was measured.
    """
    taken: dict[str, list[Taken[Played]]] = {}
    failed: dict[str, str] = {}
    for line in lines:
        try:
            found: dict[str, Any] = json.loads(line)
        except ValueError:
            # The last one, where the lab ended while it was written.
            continue
        if "failed" in found:
            failed[found["run"]] = " ".join(found["failed"].split())[:SHOWN]
        else:
            taken.setdefault(found["run"], []).append(_beside(found["taken"], processors))
    if not taken:
        raise LabError(stopped or f"nothing was measured: {'; '.join(failed.values())}")
    reasons = {each.name: failed.get(each.name, "not reached") for each in request.runs if each.name not in taken}
    return Measured({name: keep(several) for name, several in taken.items()}, reasons)


def figures(name: str, made: Iterable[Callable[[], Result]]) -> Iterator[Result]:
    """The figures of which enough was measured; of each other one the reason is printed.

    Raises LabError where there is none.
    """
    done, reasons = 0, []
    for each in made:
        try:
            yield each()
            done += 1
        except NotMeasuredError as error:
            reasons.append(str(error))
            print(f"{name}: a figure is left out: {error}", file=sys.stderr)
    if not done:
        raise LabError(f"no figure was measured: {'; '.join(reasons)}")


def _beside(one: dict[str, Any], processors: Samples) -> Taken[Played]:
    """A measurement with this machine's processors meanwhile. The lab's clock is this machine's."""
    before = max((each for each in processors if each[0] <= one["began"]), default=processors[0], key=_at)
    after = min((each for each in processors if each[0] >= one["ended"]), default=processors[-1], key=_at)
    outside, steal = before[1].shares(after[1])
    return of_json(one, steal, outside)


def _at(sample: tuple[float, Processors]) -> float:
    return sample[0]


@contextmanager
def watched() -> Iterator[Samples]:
    """Look at this machine's processors twice a second during the block: (seconds since 1970, what they have done)."""
    found: Samples = []
    over = threading.Event()

    def watch() -> None:
        while True:
            found.append((time.time(), Processors.of(Path("/proc/stat").read_text())))
            if over.wait(0.5):
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
