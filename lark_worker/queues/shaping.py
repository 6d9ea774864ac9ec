"""Bandwidth of bridge and nat jobs: queues (HTB) of the worker's own, at its uplinks and towards each job.

Each job with a share is a class of its own at every uplink, chosen by the packet filter (``meta priority``, which HTB
takes for a class); everybody else shares the class :data:`DEFAULT`. What is sent to a job is limited at the outer end
of its link. What others have set up at a device stays, and the jobs concerned are refused.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from lark_common import log
from lark_common.deliveries import Delivered, Deliveries
from lark_common.threads import StoppableThread
from lark_common.worker_rules import Share, Uplink, WaysOut, WorkerRules
from lark_worker.errors import NetworkError
from lark_worker.network.commands import run
from lark_worker.queues import fair_queues, tc
from lark_worker.queues.uplinks import DEVICES, index, way_out, ways_out
from lark_worker.records.records import Record

# The handle of Lark's queueing discipline at a device, by which it is known again, and its classes: for everybody else,
# those of shares, and the one that holds all others to the device's rate.
HANDLE: Final = 0x1A4B
DEFAULT: Final = 1
_FIRST, _LAST = 0x10, 0xFF00
_WHOLE: Final = 0xFFFE
# HTB sends nothing at a rate of 0; bits a second, and the least burst in bytes.
_LEAST: Final = 12_000
_FRAME: Final = 1600
# Seconds between two looks whether packets wait.
SAMPLE: Final = 1.0
# Flows whose last counters wait to be reported.
_MOST_GONE: Final = 4096

# The classes that a device should have, each with the job's queue that it is.
_Shares = Mapping[int, tuple[Share, "_Queue | None"]]


@dataclass(frozen=True, slots=True)
class Seen:
    """Counters of a queue since it was made: bytes sent, packets dropped, seconds in which packets were waiting; and
    the bits a second that it is promised."""

    promised: int = 0
    sent: int = 0
    dropped: int = 0
    waited: float = 0.0


@dataclass(frozen=True, slots=True)
class Shaped:
    """The outcome of the shares: jobs that cannot have theirs (id, reason), the classes of shares by key (as HTB and
    the packet filter write them), and the worker's interfaces that lead away."""

    refused: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    classes: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    out: WaysOut = field(default_factory=WaysOut)


@dataclass(slots=True)
class _Queue:
    """One class that is a job's: whose, which way, and what it has seen; ``before`` is of classes that it replaced."""

    key: str
    inward: bool
    promised: int
    sent: int = 0
    dropped: int = 0
    waited: float = 0.0
    before: tuple[int, int] = (0, 0)


class Shaping:
    """The queues of one worker; thread-safe. ``external`` is the interface of nat jobs, ``prefix`` that of devices."""

    def __init__(self, external: str, prefix: str) -> None:
        self._external, self._prefix = external, prefix
        self._lock = threading.Lock()
        self._minors: dict[str, int] = {}
        # By device, the queues in it by their class.
        self._devices: dict[str, dict[int, _Queue]] = {}
        self._swept = False
        self._sampled = 0.0
        # Of reserved flows, by key.
        self._delivered: Deliveries[str] = Deliveries()
        # The last counters of reserved flows whose queues are gone, by the names of :meth:`promises`, until they are
        # reported.
        self._gone: dict[tuple[str, str], Seen] = {}
        self._trouble = ""
        self._wake = threading.Event()
        self._thread = StoppableThread("shaping", self._run, self._wake.set)

    def start(self) -> None:
        """Start to look after the queues."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; queues stay."""
        self._thread.stop()

    def apply(self, rules: WorkerRules, records: Iterable[Record]) -> Shaped:
        """Make the queues that the rules of these jobs ask for. Raises NetworkError where that may be tried again."""
        live = {record.id: record for record in records if record.made and not record.over}
        found = ways_out(live.values(), self._external, self._prefix)
        own = {job: way_out(record, self._external, self._prefix) for job, record in live.items()}
        with self._lock:
            if rules.uplinks is None:
                return Shaped({}, self._names(), found)
            present = {job.id: job for job in rules.jobs if job.id in live}
            self._number(key for uplink in rules.uplinks.values() for key in (*uplink.shares, *uplink.parts))
            wanted = {name: self._uplink(each) for name, each in rules.uplinks.items()}
            wanted |= {
                live[job.id].port: {DEFAULT: (job.inward, _Queue(job.id, True, 0))}
                for job in present.values()
                if job.inward is not None
            }
            self._sweep(wanted)
            refused: dict[str, str] = {}
            for device, queues in wanted.items():
                uplink = rules.uplinks.get(device)
                why = self._make(device, None if uplink is None else uplink.rate, queues)
                if why and uplink is not None:
                    # Others leave by another way, and keep what they have there.
                    sharers = {key.partition("/")[0] for key in uplink.shares}
                    refused |= {job: why for job in sharers if device in own.get(job, ())}
                elif why and any(_whose(queues) in each.shares for each in rules.uplinks.values()):
                    refused[_whose(queues)] = why
            self._wake.set()
            return Shaped(refused, self._names(), found)

    def remove(self) -> None:
        """Take all queues away: no job is left. Raises NetworkError."""
        with self._lock:
            self._sweep({})
            self._minors.clear()

    def of_jobs(self) -> dict[str, dict[str, int]]:
        """Counters of each job's queues, by the job's id, under the names of reports: packets dropped,
        and milliseconds in which packets were waiting, of each direction."""
        self._sample(SAMPLE / 2)
        found: dict[str, dict[str, int]] = {}
        with self._lock:
            for queue in self._queues():
                way = "in" if queue.inward else "out"
                job = found.setdefault(
                    queue.key.partition("/")[0],
                    {f"{what}_{side}": 0 for what in ("queue_drops", "waited") for side in ("in", "out")},
                )
                job[f"queue_drops_{way}"] += queue.before[1] + queue.dropped
                job[f"waited_{way}"] += round(1000 * queue.waited)
        return found

    def promises(self) -> dict[tuple[str, str], Seen]:
        """Counters of the queues at the uplinks, by the job's id and the queue's name: the uplink's, and for a flow
        that the job has reserved the reservation's number behind it. Also the last ones of reserved flows whose queues
        are gone, as long as these are not :meth:`reported`."""
        self._sample(SAMPLE / 2)
        with self._lock:
            found = dict(self._gone)
            for device, queues in self._devices.items():
                for queue in queues.values():
                    if not queue.inward:
                        found[_named(device, queue)] = _seen(queue, queue.promised)
        return found

    def reported(self, queues: Mapping[tuple[str, str], Seen]) -> None:
        """Note that the controller has these counters: those of queues that were gone are forgotten. A queue that has
        gone since has newer ones."""
        with self._lock:
            for each, seen in queues.items():
                if self._gone.get(each) == seen:
                    del self._gone[each]

    def delivered(self, job_id: str, number: int) -> Delivered | None:
        """The delivery of a flow that a job has reserved, by the reservation's number; None where it is not counted."""
        with self._lock:
            return self._delivered.of(f"{job_id}/{number}")

    # -- making ------------------------------------------------------------------------------------------------------

    def _number(self, keys: Iterable[str]) -> None:
        """Give every share a class: the same after the service has started again, unless another has it."""
        wanted = sorted(set(keys))
        self._minors = {key: minor for key, minor in self._minors.items() if key in set(wanted)}
        taken = set(self._minors.values())
        for key in wanted:
            if key not in self._minors:
                job, _, flow = key.partition("/")
                place = (int(job[:8], 16) + int(flow or 0)) % (_LAST - _FIRST)
                while place + _FIRST in taken:
                    place = (place + 1) % (_LAST - _FIRST)
                taken.add(place + _FIRST)
                self._minors[key] = place + _FIRST

    def _names(self) -> dict[str, str]:
        return {key: f"{HANDLE:x}:{minor:x}" for key, minor in self._minors.items()}

    def _uplink(self, uplink: Uplink) -> dict[int, tuple[Share, _Queue | None]]:
        shares: dict[int, tuple[Share, _Queue | None]] = {
            self._minors[key]: (share, _Queue(key, False, share.least)) for key, share in uplink.shares.items()
        }
        # Parts are promised to nobody, so nothing is told of them.
        parts = {self._minors[key]: (share, None) for key, share in uplink.parts.items()}
        return {DEFAULT: (uplink.rest, None), **shares, **parts}

    def _make(self, device: str, rate: int | None, queues: _Shares) -> str:
        """Make a device's classes as they should be; returns the reason if that cannot be."""
        number = index(device)
        if number is None:
            return f"interface {device} is not there"
        kind, handle = tc.roots().get(number, ("", 0))
        if handle != HANDLE << 16:
            if handle:
                return f"interface {device} has a queueing discipline of its own ({kind}), which Lark leaves alone"
            try:
                _tc([f"qdisc replace dev {device} root handle {HANDLE:x}: htb default {DEFAULT:x}"])
            except NetworkError as error:
                return f"its kernel makes no queues at {device} (sch_htb): {error}"
        whole = max(share.most for share, _ in queues.values()) if rate is None else rate
        wanted = {_WHOLE: Share(whole, whole, queues[DEFAULT][0].burst)}
        wanted |= {minor: share for minor, (share, _) in queues.items()}
        held = {one.id & 0xFFFF: (one.rate, one.ceiling) for one in tc.classes(number)}
        lines = [
            _class_line(device, minor, share)
            for minor, share in wanted.items()
            if held.get(minor) != (_bytes(share.least), _bytes(share.most))
        ]
        lines += [f"class del dev {device} classid {HANDLE:x}:{minor:x}" for minor in held if minor not in wanted]
        before = self._devices.get(device, {})
        self._keep_last(device, number, [each for minor, each in before.items() if minor not in wanted], before)
        _tc(lines)
        self._tend(device, number)
        self._devices[device] = {
            minor: _kept(before.get(minor), queue) for minor, (_, queue) in queues.items() if queue is not None
        }
        return ""

    def _tend(self, device: str, number: int) -> None:
        """Fair leaves and turns, as the queues of Open vSwitch have them."""
        _, trouble = fair_queues.attach_leaves(tc.classes(number))
        if trouble and trouble != self._trouble:
            log.event("queues have no fair-queueing leaves", level=log.WARNING, port=device, reason=trouble)
        self._trouble = trouble or self._trouble

    def _sweep(self, wanted: Iterable[str]) -> None:
        """Take the queues away of devices that need none; the first time, also those of the service's former life."""
        names = set(self._devices)
        if not self._swept:
            roots = tc.roots()
            names |= {
                path.name
                for path in DEVICES.iterdir()
                if (number := index(path.name)) is not None and roots.get(number, ("", 0))[1] == HANDLE << 16
            }
            self._swept = True
        for name in names - set(wanted):
            if (number := index(name)) is not None and tc.roots().get(number, ("", 0))[1] == HANDLE << 16:
                queues = self._devices.get(name, {})
                self._keep_last(name, number, queues.values(), queues)
                _tc([f"qdisc del dev {name} root"])
            self._devices.pop(name, None)

    def _keep_last(self, device: str, number: int, going: Iterable[_Queue], queues: Mapping[int, _Queue]) -> None:
        """Keep the last counters of reserved flows whose queues are about to go."""
        flows = [queue for queue in going if not queue.inward and "/" in queue.key]
        if flows:
            _look(queues, number, tc.leaves(), 0.0)
        for queue in flows:
            while len(self._gone) >= _MOST_GONE:
                del self._gone[next(iter(self._gone))]
            # It is promised nothing any more.
            self._gone[_named(device, queue)] = _seen(queue, 0)

    # -- looking -----------------------------------------------------------------------------------------------------

    def _queues(self) -> Iterator[_Queue]:
        for queues in self._devices.values():
            yield from queues.values()

    def _run(self) -> None:
        while not self._thread.stopping:
            try:
                self._sample(SAMPLE / 2)
            except NetworkError as error:
                log.event("queues cannot be read", level=log.WARNING, reason=error)
            except Exception as error:  # an unexpected error must not stop this thread
                log.failure("queues cannot be read", error)
            self._wake.wait(SAMPLE if self._devices else None)
            self._wake.clear()

    def _sample(self, least: float) -> None:
        """Note which queues have packets waiting and what each has sent and dropped; not within ``least`` seconds.

        Raises NetworkError.
        """
        with self._lock:
            now = time.monotonic()
            past = min(now - self._sampled, 2 * SAMPLE)
            if past < least or not self._devices:
                return
            self._sampled = now
            leaves = tc.leaves()
            for device, queues in self._devices.items():
                if queues and (number := index(device)) is not None:
                    _look(queues, number, leaves, past)
            self._delivered.read(
                (
                    (queue.key, place, queue.before[0] + queue.sent)
                    for place, queues in enumerate(self._devices.values())
                    for queue in queues.values()
                    if "/" in queue.key
                ),
                now,
            )


def _look(queues: Mapping[int, _Queue], number: int, leaves: Mapping[tuple[int, int], tc.Backlog], past: float) -> None:
    for one in tc.classes(number):
        queue = queues.get(one.id & 0xFFFF)
        if queue is None:
            continue
        # A leaf alone counts what it drops; a class without a leaf counts by itself.
        dropped = leaves.get((number, one.id), one.backlog).dropped
        if one.sent < queue.sent or dropped < queue.dropped:
            queue.before = (queue.before[0] + queue.sent, queue.before[1] + queue.dropped)
        queue.sent, queue.dropped = one.sent, dropped
        queue.waited += past if one.backlog.waiting else 0.0


def _kept(before: _Queue | None, now: _Queue) -> _Queue:
    """The same queue with what it is promised now, or another one in its place."""
    if before is None or (before.key, before.inward) != (now.key, now.inward):
        return now
    before.promised = now.promised
    return before


def _named(device: str, queue: _Queue) -> tuple[str, str]:
    """A queue's job and name, as they are reported."""
    job, _, flow = queue.key.partition("/")
    return job, f"{device}/{flow}" if flow else device


def _seen(queue: _Queue, promised: int) -> Seen:
    return Seen(promised, queue.before[0] + queue.sent, queue.before[1] + queue.dropped, queue.waited)


def _whose(queues: _Shares) -> str:
    """The job that a device's only queue is towards."""
    return next((queue.key for _, queue in queues.values() if queue is not None), "")


def _class_line(device: str, minor: int, share: Share) -> str:
    parent = f"{HANDLE:x}:" if minor == _WHOLE else f"{HANDLE:x}:{_WHOLE:x}"
    burst = max(share.burst // 8, _FRAME)
    return (
        f"class replace dev {device} parent {parent} classid {HANDLE:x}:{minor:x} htb rate {8 * _bytes(share.least)}bit"
        f" ceil {8 * _bytes(share.most)}bit burst {burst} cburst {burst} quantum {fair_queues.FRAMES}"
    )


def _bytes(bits: int) -> int:
    """Bytes a second, as HTB has them."""
    return max(bits, _LEAST) // 8


def _tc(lines: list[str]) -> None:
    if lines:
        run(["tc", "-batch", "-"], "".join(f"{line}\n" for line in lines))
