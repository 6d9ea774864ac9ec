"""Changes on their way to one switch: sent in order with barriers between, errors tied to what caused them.

OpenFlow 1.3.5, section 6.2: only a barrier orders messages. So meters that are new come before a barrier, flows after
it, and meters that go after another; the reply to the last barrier confirms the change.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from lark_controller.flows.model import Changes, FlowKey
from lark_controller.switches.openflow import wire
from lark_controller.switches.openflow.connection import Connection
from lark_controller.switches.openflow.replies import ErrorMessage

# Messages encoded for one switch before the loop turns to the others.
_CHUNK: Final = 64
# Changes that are remembered for other switches: those of one job are few, one for each tag that its slice has.
_LATEST: Final = 16
# Errors of what no switch could take.
_UNENCODABLE: Final = (KeyError, OverflowError, struct.error)

Build = Callable[[int], bytes]
Subject = FlowKey | int | None
# A message to send, and its flow or meter; a step without a build is a barrier.
Step = tuple[Subject, Build | None]


@dataclass(frozen=True, slots=True)
class FlowError:
    """An OpenFlow error and what caused it: a flow's key, a meter's number, or None where it is not known.

    ``type`` and ``code`` are OpenFlow's; both are -1 for a flow that could not even be encoded.
    """

    subject: FlowKey | int | None
    type: int
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a change.

    ``confirmed``: the switch has answered the last barrier, so all of it was processed, and what it refused stands in
    ``errors``. Otherwise ``reason`` is the cause of the uncertainty.
    """

    confirmed: bool
    errors: tuple[FlowError, ...] = ()
    reason: str = ""

    @property
    def complete(self) -> bool:
        """True where the switch now holds all that was asked."""
        return self.confirmed and not self.errors


@dataclass(slots=True)
class _Job:
    steps: Iterator[Step]
    future: asyncio.Future[Outcome]
    guarded: bool
    xids: list[int] = field(default_factory=list)
    errors: list[FlowError] = field(default_factory=list)
    started: bool = False
    timer: asyncio.TimerHandle | None = None


def steps_of(changes: Changes) -> Iterator[Step]:
    """The messages of a change in their order, barriers between the groups that need them, none at the end."""
    groups: tuple[Iterable[Step], ...] = (
        (
            (meter.number, partial(wire.meter_set, meter=meter, new=meter.number in changes.meters_new))
            for meter in changes.meters_set
        ),
        _flows(changes),
        ((number, partial(wire.meter_delete, number=number)) for number in changes.meters_gone),
    )
    sizes = (len(changes.meters_set), len(changes.flows_set) + len(changes.flows_gone), len(changes.meters_gone))
    sent = False
    for size, group in zip(sizes, groups, strict=True):
        if size and sent:
            yield None, None
        yield from group
        sent = sent or bool(size)


def _flows(changes: Changes) -> Iterator[Step]:
    for flow in changes.flows_set:
        yield flow.key, partial(wire.flow_add, flow=flow)
    for key in changes.flows_gone:
        yield key, partial(wire.flow_delete, key=key)


class SharedSteps:
    """The steps of changes, encoded once for all switches that get the same one.

    A job that opens a block of addresses changes a thousand switches alike. For one loop's thread.
    """

    def __init__(self) -> None:
        # The latest changes, by identity, with their steps once a second switch has had the same one.
        self._latest: dict[int, tuple[Changes, tuple[Step, ...] | None]] = {}

    def of(self, changes: Changes) -> Iterator[Step]:
        """As :func:`steps_of`."""
        known = self._latest.get(id(changes))
        if known is None:
            # The first switch may be the only one.
            if len(self._latest) >= _LATEST:
                del self._latest[next(iter(self._latest))]
            self._latest[id(changes)] = changes, None
            return steps_of(changes)
        steps = known[1]
        if steps is None:
            if len(changes) > _CHUNK:
                return steps_of(changes)
            steps = tuple(map(_encoded, steps_of(changes)))
            self._latest[id(changes)] = changes, steps
        return iter(steps)


def _encoded(step: Step) -> Step:
    subject, build = step
    if build is None:
        return step
    try:
        return subject, wire.with_xids(build(0))
    except _UNENCODABLE:
        # Its sender finds out which it is.
        return step


class Applies:
    """The changes of one connection: any number may be under way, they are sent in the order in which they came.

    Before any message of a ``guarded`` change is sent, ``proven`` must be True; it is asked again by :meth:`pump`, and
    what was submitted later waits.
    """

    def __init__(self, connection: Connection, proven: Callable[[], bool] = lambda: True) -> None:
        self._connection = connection
        self._proven = proven
        self._held = False
        self._queue: deque[_Job] = deque()
        self._by_xid: dict[int, tuple[_Job, Subject]] = {}
        self._by_barrier: dict[int, _Job] = {}
        self._scheduled = False
        self._idle: list[Callable[[], None]] = []

    def submit(self, steps: Iterator[Step], timeout: float, *, guarded: bool = False) -> asyncio.Future[Outcome]:
        """Send steps and a final barrier; the future ends by ``timeout`` seconds, whatever the switch does.

        A change of which nothing was sent by then is dropped; one that was begun is sent to its end, never half.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Outcome] = loop.create_future()
        if self._connection.closed_because:
            future.set_result(Outcome(False, reason=f"switch is gone ({self._connection.closed_because})"))
            return future
        job = _Job(steps, future, guarded)
        job.timer = loop.call_later(timeout, self._expired, job, timeout)
        self._queue.append(job)
        if not self._scheduled:
            self.pump()
        return future

    def pump(self) -> None:
        """Send what the outbox takes, a chunk at a time; called again whenever the outbox has emptied."""
        self._scheduled = False
        if not self._queue or self._held or self._connection.paused or self._connection.closed_because:
            return
        messages: list[bytes] = []
        waits = False
        while self._queue and len(messages) < _CHUNK:
            job = self._queue[0]
            if job.guarded and not self._proven():
                waits = True
                break
            job.started = True
            before = len(messages)
            messages.extend(map(partial(self._encode, job), islice(job.steps, _CHUNK - before)))
            if len(messages) < _CHUNK:
                self._queue.popleft()
                last_barrier = self._connection.next_xid()
                self._by_barrier[last_barrier] = job
                messages.append(wire.barrier_request(last_barrier))
        if messages:
            self._connection.write(b"".join(messages))
        if self._queue and not waits and not self._scheduled and not self._connection.paused:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.pump)

    def _encode(self, job: _Job, step: Step) -> bytes:
        subject, build = step
        xid = self._connection.next_xid()
        if build is None:
            return wire.barrier_request(xid)
        job.xids.append(xid)
        self._by_xid[xid] = job, subject
        try:
            return build(xid)
        except _UNENCODABLE as error:
            job.errors.append(FlowError(subject, -1, -1, f"cannot be encoded in OpenFlow 1.3: {error!r}"))
            return b""

    def hold(self) -> None:
        """Send nothing more and confirm nothing: the switch has refused a message for a reason that concerns all."""
        self._held = True

    def barrier(self, xid: int) -> bool:
        """A barrier reply: whether a change waited for it. Those between the groups of a change confirm nothing."""
        job = None if self._held else self._by_barrier.pop(xid, None)
        if job is not None:
            reason = "; ".join(dict.fromkeys(error.text for error in job.errors))
            self._finish(job, Outcome(True, tuple(job.errors), reason))
        return job is not None

    def error(self, xid: int, error: ErrorMessage) -> tuple[FlowError, bool]:
        """An error with its cause, as far as it is known, and whether the outcome of a change will name it."""
        found = self._by_xid.get(xid)
        if found is None:
            return FlowError(None, *error), False
        job, subject = found
        tied = FlowError(subject, *error)
        if len(job.errors) < len(job.xids):  # a switch refuses each message once
            job.errors.append(tied)
        return tied, not job.future.done()

    def fail(self, reason: str) -> None:
        """Ends every change unconfirmed, since the connection is gone."""
        jobs = [*self._queue, *self._by_barrier.values()]
        self._queue.clear()
        self._by_barrier.clear()
        for job in jobs:
            self._finish(job, Outcome(False, tuple(job.errors), f"switch is gone ({reason})"))

    @property
    def idle(self) -> bool:
        """True while nothing waits to be sent or confirmed."""
        return not self._queue and not self._by_barrier

    def when_idle(self, then: Callable[[], None]) -> None:
        """Calls ``then`` once nothing waits to be sent or confirmed (at once if that is so now)."""
        self._idle.append(then)
        self._call_if_idle()

    def _call_if_idle(self) -> None:
        if self.idle:
            waiting, self._idle = self._idle, []
            for then in waiting:
                then()

    def _expired(self, job: _Job, timeout: float) -> None:
        if not job.started:
            self._queue.remove(job)
            reason = f"nothing could be sent within {timeout:g} s: the switch reads too slowly"
        else:
            reason = f"no barrier reply within {timeout:g} s"
        if not job.future.done():
            job.future.set_result(Outcome(False, tuple(job.errors), reason))

    def _finish(self, job: _Job, outcome: Outcome) -> None:
        if job.timer is not None:
            job.timer.cancel()
        for xid in job.xids:
            del self._by_xid[xid]
        if not self._by_xid:
            # An emptied dictionary keeps the room that a whole program took.
            self._by_xid = {}
        if not job.future.done():
            job.future.set_result(outcome)
        self._call_if_idle()
