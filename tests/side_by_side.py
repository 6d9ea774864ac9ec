"""Several pytest processes side by side, each with tests of its own, and one result of them all.

So many at a time as there are lanes: the next share of a stage begins when one has ended. Every line that a process
prints has its share's name before it. What pytest says at its end (tracebacks, the list of failures) is printed in one
piece when the process has ended. One summary of all processes ends the run.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final

from tests.fixtures.again import AT_MOST

GRACE_SECONDS: Final = 30.0
"""Until a pytest that was interrupted is killed: it takes its switches, servers and pools down."""
SLOWEST: Final = 15

_NONE_CHOSEN: Final = 5
_STOPPED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# A heading of pytest's that is not its first one: from here on it tells its results.
_RESULTS = re.compile(r"^([=!])\1+ (?!test session starts).*[=!]+$")
# Pytest's own last line; the sums of all shares take its place.
_CLOSING = re.compile(r"^(=+ )?(\d+ \w+.*|no tests ran) in [\d.]+s( \([\d:]+\))?( =+)?$")


@dataclass(frozen=True, slots=True)
class Share:
    """The tests of one process: what its lines begin with, and pytest's arguments that choose them.

    With ``command`` it is another program, which takes no lane, runs with less priority, and is to end with status 0.
    """

    name: str
    arguments: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


@dataclass(slots=True)
class Outcome:
    """The outcomes of tests."""

    counts: Counter[str] = field(default_factory=Counter)
    bad: list[str] = field(default_factory=list)
    """Each failure, as ``FAILED test`` or ``ERROR test``, with its reason."""
    again: list[str] = field(default_factory=list)
    """Each with the reason of the first try."""
    skipped: list[str] = field(default_factory=list)
    """Each with its reason."""
    seconds: Counter[str] = field(default_factory=Counter)
    """By test, its fixtures included."""
    within: str | None = None
    """The test that had begun and not ended."""
    finished: bool = False
    """True where pytest has come to its own end."""

    def add(self, other: Outcome) -> None:
        """Take in what became of others."""
        self.counts.update(other.counts)
        self.bad += other.bad
        self.again += other.again
        self.skipped += other.skipped
        self.seconds.update(other.seconds)


def read(lines: Sequence[str]) -> Outcome:
    """The outcomes of the tests that wrote ``lines`` (:mod:`tests.fixtures.outcomes`); a last line may be torn."""
    found = Outcome()
    for text in lines:
        if not text.endswith("\n"):
            break
        line = json.loads(text)
        test, phase, outcome = line["test"], line["phase"], line.get("outcome")
        if phase == "start":
            found.within = test
            continue
        if phase == "finish":
            found.finished = True
            continue
        found.seconds[test] += line["seconds"]
        if phase == "teardown":
            found.within = None
        if outcome == "rerun":
            found.again.append(_with_reason(test, line))
        elif outcome == "failed":
            kind = "failed" if phase == "call" else "error"
            found.counts[kind] += 1
            found.bad.append(_with_reason(f"{kind.upper()} {test}", line))
        elif outcome == "skipped":
            found.counts[outcome] += 1
            found.skipped.append(f"{test}: {line['why']}")
        elif phase == "call":
            found.counts[outcome] += 1
    return found


def _with_reason(told: str, line: Mapping[str, object]) -> str:
    return f"{told}: {line['why']}" if line.get("why") else told


def run(
    stages: Sequence[Sequence[Share]], arguments: Sequence[str] = (), *, choosing: bool = True, lanes: int = 3
) -> int:
    """Run the shares of each stage in their order, ``lanes`` side by side, a stage after the other; the exit status, as
    pytest's.

    ``choosing``: the arguments may choose no test of a share; else a share without tests fails the run.
    SIGINT, SIGTERM and SIGHUP end every process: as Ctrl-C would, and by force after :data:`GRACE_SECONDS` or at the
    second signal. Its processes end, too, where this one is killed.
    """
    began = time.monotonic()
    total, troubles = Outcome(), list[str]()
    print_lock = threading.Lock()
    with tempfile.TemporaryDirectory(prefix="lark-tests-") as folder, _signals() as stop:
        for stage in stages:
            width = max(len(share.name) for share in stage) + 1
            begin = partial(_Process, arguments=arguments, folder=Path(folder), width=width, print_lock=print_lock)
            for process in _run_stage(stage, begin, lanes, stop):
                outcome = process.outcome()
                total.add(outcome)
                found = list(process.troubles(outcome, choosing=choosing))
                # A process that crashed is an error too, or the last line alone would tell that all is well.
                total.counts["error"] += bool(found) and not outcome.bad
                troubles += found
            if stop:
                break
    if stop:
        troubles.append(f"stopped by {stop[0].name}")
    return _close(total, troubles, time.monotonic() - began, stopped=bool(stop))


class _Process:
    """A running pytest, or the other program of its share, and the thread that prints its lines."""

    def __init__(
        self, share: Share, arguments: Sequence[str], folder: Path, width: int, print_lock: threading.Lock
    ) -> None:
        self.share = share
        self._file = folder / f"{share.name}.jsonl"
        self._prefix = f"{share.name + ':':{width}} "
        self._print_lock = print_lock
        self._began = time.monotonic()
        self._status: int | None = None
        pytest = [
            sys.executable, "-u", "-m", "pytest",
            "-p", "tests.fixtures.outcomes", f"--outcomes={self._file}", "-o", f"cache_dir=.pytest_cache/{share.name}",
            *arguments, *share.arguments,
        ]  # fmt: skip
        other = ["nice", *share.command]
        # The kernel interrupts it when this process dies, were it by SIGKILL.
        command = ["setpriv", "--pdeathsig", "INT", *(other if share.command else pytest)]
        # In a process group of its own: a terminal's Ctrl-C reaches this process alone, which passes it on once.
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", process_group=0, env=_environment(),
        )  # fmt: skip
        self._reader = threading.Thread(target=self._copy, daemon=True)
        self._reader.start()

    def ended(self) -> bool:
        """True once it has ended, and all it printed is told."""
        if self._status is None and self._process.poll() is not None:
            # What pytest started and left may hold its output open.
            self._reader.join(10)
            self._status = self._process.returncode
            outcome = self.outcome()
            minutes, seconds = divmod(round(time.monotonic() - self._began), 60)
            what = "ended after" if self.share.command else f"{len(outcome.seconds)} tests in"
            self._say([f"{what} {minutes} min {seconds} s, exit status {self._status}"])
        return self._status is not None

    def signal(self, number: signal.Signals) -> None:
        """Interrupt pytest, which ends what it has started, or kill its whole process group; of another program each
        process is interrupted."""
        if self._process.poll() is not None:
            return
        if number == signal.SIGKILL or self.share.command:
            os.killpg(self._process.pid, number)
        else:
            self._process.send_signal(number)

    def outcome(self) -> Outcome:
        """The outcomes of its tests so far."""
        if not self._file.exists():
            return Outcome()
        with self._file.open() as lines:
            return read(list(lines))

    def troubles(self, outcome: Outcome, *, choosing: bool) -> Iterator[str]:
        """Faults beside the tests that failed."""
        if self.share.command:
            if self._status:
                yield f"{self.share.name}: ended with status {self._status}"
            return
        ended = f"{self.share.name}: pytest ended with status {self._status}"
        if outcome.within:
            yield f"{ended} in {outcome.within}"
        elif self._status not in (0, 1, _NONE_CHOSEN):
            yield ended
        elif not outcome.finished:
            yield f"{ended}, and not by itself"
        elif self._status == 1 and not outcome.bad and len(outcome.again) <= AT_MOST:
            yield f"{ended}, and no test failed"
        elif not (outcome.seconds or choosing):
            yield f"{ended}, and has no test"

    def _copy(self) -> None:
        """Print lines as they come, and those that tell results at the end."""
        assert self._process.stdout is not None
        results: list[str] = []
        for line in self._process.stdout:
            text = line.rstrip("\n")
            if results or _RESULTS.match(text):
                results.append(text)
            elif not _CLOSING.match(text):
                self._say([text])
        while results and (_CLOSING.match(results[-1]) or not results[-1]):
            results.pop()
        self._say(results)

    def _say(self, lines: Sequence[str]) -> None:
        with self._print_lock:
            for line in lines:
                print(f"{self._prefix}{line}".rstrip())
            sys.stdout.flush()


def _environment() -> dict[str, str]:
    """The environment of a share: its programs keep their bytecode.

    Some images of Python forbid it, and each of the controllers and commands that tests start would compile all modules
    of the project: 0.7 s of 2.9 until a controller has what it imports.
    """
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@contextmanager
def _signals() -> Iterator[list[signal.Signals]]:
    """The signals to stop that have come, in a list that grows."""
    come: list[signal.Signals] = []

    def note(number: int, _frame: FrameType | None) -> None:
        come.append(signal.Signals(number))

    before = {number: signal.signal(number, note) for number in _STOPPED}
    try:
        yield come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_stage(
    shares: Sequence[Share], begin: Callable[[Share], _Process], lanes: int, stop: Sequence[signal.Signals]
) -> list[_Process]:
    """The processes of a stage, when all have ended; once ``stop`` has a signal, none begins and those that run are
    made to end."""
    deadline = 0.0
    waiting = deque(share for share in shares if not share.command)
    processes = [begin(share) for share in shares if share.command]
    while True:
        running = [process for process in processes if not process.ended()]
        free = lanes - sum(not process.share.command for process in running)
        if not stop and waiting and free > 0:
            processes.append(begin(waiting.popleft()))
            continue
        if not running:
            return processes
        if stop and not deadline:
            deadline = time.monotonic() + GRACE_SECONDS
            for process in running:
                process.signal(signal.SIGINT)
        if deadline and (len(stop) > 1 or time.monotonic() > deadline):
            for process in running:
                process.signal(signal.SIGKILL)
        time.sleep(0.05)


def _close(total: Outcome, troubles: Sequence[str], seconds: float, *, stopped: bool) -> int:
    """Print the summary of all, and answer the exit status."""
    files, rooms = Counter[str](), Counter[str]()
    for test, took in total.seconds.items():
        file = test.partition("::")[0]
        files[file] += took
        rooms[file.rpartition("/")[0]] += took
    for kind, times in (("tests", total.seconds), ("files", files)):
        _list(f"slowest {SLOWEST} {kind}", (f"{took:8.2f}s {name}" for name, took in times.most_common(SLOWEST)))
    _list("time of each room", (f"{took:8.2f}s {name}" for name, took in rooms.most_common()))
    if total.skipped:
        _list("skipped", total.skipped)
    if total.again:
        _list(f"tried again: {len(total.again)}, at most {AT_MOST} in a run", total.again)
    late = len(total.again) > AT_MOST
    failed = total.counts["failed"] + total.counts["error"]
    if total.bad or troubles or late:
        more = [f"more than {AT_MOST} tests were tried again"] if late else []
        _list("what failed", [*total.bad, *more, *troubles])
    counted: Mapping[str, int] = {**total.counts, "rerun": len(total.again)}
    order = ("failed", "passed", "skipped", "error", "rerun")
    said = ", ".join(f"{counted[kind]} {kind}" for kind in order if counted.get(kind)) or "no tests ran"
    print(f"{total.counts['passed']} passed, {failed} failed")
    clock = f" ({round(seconds) // 3600}:{round(seconds) // 60 % 60:02}:{round(seconds) % 60:02})"
    print(f" {said} in {seconds:.2f}s{clock} ".center(100, "="), flush=True)
    if stopped:
        return 2
    if failed or troubles or late:
        return 1
    return 0 if total.seconds else _NONE_CHOSEN


def _list(heading: str, lines: Sequence[str] | Iterator[str]) -> None:
    print(f" {heading} ".center(100, "="))
    print(*lines, sep="\n")
