"""The reserved flows that this process holds for its job, renewed on a thread until they are released.

Each has an end, one lease away, which is put off while the process lives: whatever way it dies, its flows are free
after a lease at the latest. The thread makes no call to MPI.
"""

from __future__ import annotations

import atexit
import math
import os
import secrets
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from lark_mpi.errors import AwayError, NoRoomError, ReservationError
from lark_mpi.service import (
    AGAIN,
    AWAY,
    LONGEST_PAUSE,
    PATIENCE,
    PAUSE,
    SECONDS,
    Answer,
    ask,
    is_id,
    number,
    printable,
    reason,
)

# Seconds for which a flow stays reserved when nobody renews it.
LEASE: Final = 300.0
SHORTEST_LEASE, LONGEST_LEASE = 3.0, 86400.0
# Seconds of a lease for each flow: a worker accepts five requests a second of a job, of which three in each lease are
# renewals.
SECONDS_FOR_EACH: Final = 1.0
# Between a reservation's id and the number of a share of it.
SHARE: Final = "s"
# Numbers of shares, from 1 on.
NUMBERS: Final = 999_999_999_999
OK: Final = 200
NOT_FOUND: Final = 404
# Seconds to wait for the queues: while something stands in their way, and while they are being made.
WAIT: Final = 10.0
LONGEST_WAIT: Final = 30.0
# The states of a reservation that is not enforced: the queue is being made, or cannot be.
_UNDER_WAY: Final = "registering"
_IN_THE_WAY: Final = ("pending", "quarantined")
# A renewal's patience in seconds: the next one has its turn as well. Those without an answer are asked for again, as
# often in a lease as the second figure.
RENEWAL_PATIENCE: Final = 2.0
AGAIN_IN_A_LEASE: Final = 12
# Seconds for the answer to what is given back where nobody has answered before.
BRIEFLY: Final = 2.0


@dataclass(frozen=True, slots=True)
class Flow:
    """A reserved flow of this job: the controller's id, its rate in Mb/s. ``lost``: why it is not reserved any more.
    ``steady``: the rate is the most as well. ``until``: the end of its lease at the earliest, by the monotonic clock; a
    renewal has put it off or not, and other shares of the flow hide that this one is over."""

    id: str
    rate: float
    lost: str = ""
    steady: bool = False
    until: float = math.inf


class Flows:
    """The flows of one communicator, by the job that they go to. Thread-safe.

    A change has two steps, with the agreement of all jobs between them: :meth:`prepare` takes what is more than before,
    and :meth:`commit` gives back what is less, or :meth:`undo` what was taken. Neither of these two can be refused.
    """

    def __init__(self, lease: float = LEASE) -> None:
        self.lease = lease
        # Of what is prepared from now on.
        self.steady = False
        self._lock = threading.Lock()
        # One request about a flow's rate at a time: a renewal with the rate of before must not overtake a change. Of
        # each flow its own, since a change of many flows in a row would leave the renewals none.
        self._asking: dict[str, threading.Lock] = {}
        self._process = os.getpid()
        self._made: dict[str, Flow] = {}
        self._wanted: Mapping[str, float] = {}
        self._taken: list[tuple[str, Flow | None]] = []
        # Nobody has answered what was asked last for this change: what it gives back waits for no long answer.
        self._away = False
        # The time of the next renewal of all, by the monotonic clock, and those whose last one had no answer.
        self._due = math.inf
        self._late: set[str] = set()

    def made(self) -> dict[str, Flow]:
        """The flows as they are now."""
        with self._lock:
            return dict(self._made)

    def prepare(self, wanted: Mapping[str, float]) -> None:
        """Take new flows, and the higher rates of others, Mb/s by job. Raises ReservationError."""
        self.lease = max(self.lease, len(wanted) * SECONDS_FOR_EACH)
        self._wanted, self._taken, self._away = dict(wanted), [], False
        try:
            self._prepare(wanted)
        except AwayError:
            self._away = True
            raise

    def _prepare(self, wanted: Mapping[str, float]) -> None:
        if self._more(wanted):
            self._look_for(wanted, PATIENCE)
        else:
            try:
                self._look_for(wanted, RENEWAL_PATIENCE)
            except ReservationError:
                # A request for no more is not refused.
                self._away = True
        if wanted:
            # First: where the service takes its time, one is to be renewed before the last one is there. With a longer
            # lease than before, no later than what is reserved already needs it.
            self._due = min(self._due, time.monotonic() + self.lease / 3)
            _renewal.add(self, self._due)
        more = self._more(wanted)
        for job, rate in more:
            self._take(job, rate)
        if more:
            # The queues of all flows of the job are asked for together.
            self._confirm(more[-1][0])

    def _more(self, wanted: Mapping[str, float]) -> list[tuple[str, float]]:
        """The rates that are new, higher than before, or of a flow that is lost."""
        before = self.made()
        return [
            (job, rate)
            for job, rate in wanted.items()
            if job not in before or before[job].lost or rate > before[job].rate
        ]

    def commit(self) -> None:
        """Keep what was prepared, and give back the rest."""
        answers, seconds = True, self._for_answer()
        for job, flow in self.made().items():
            rate = self._wanted.get(job)
            if rate is None:
                answers = self._give(job, answers, seconds)
            elif rate < flow.rate or flow.steady != self.steady:
                answers = self._set(job, flow, rate, self.steady, answers, seconds)
        self._taken = []

    def undo(self) -> None:
        """Give back what was prepared."""
        answers, seconds = True, self._for_answer()
        for job, before in reversed(self._taken):
            if before is None:
                answers = self._give(job, answers, seconds)
            elif before.lost:
                answers = self._give(job, answers, seconds)
                # The program reads that it is lost, and reserves it again by its next request.
                with self._lock:
                    self._made[job] = before
            else:
                answers = self._set(job, self.made()[job], before.rate, before.steady, answers, seconds)
        self._taken = []

    def release(self, answers: bool = True) -> bool:
        """Give back everything, as long as somebody ``answers``; may be repeated. False where nobody does. Nothing in
        a child of the process, which goes on without it."""
        if os.getpid() != self._process:
            return answers
        for job in self.made():
            answers = self._give(job, answers)
        _renewal.remove(self)
        return answers

    def renew(self) -> float:
        """Put off the end of every flow whose time it is; one that is over is lost. Returns the time of the next
        renewal, which is soon where there was no answer."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + self.lease / 3
            self._late = set(self.made())
        for job in sorted(self._late):
            if self._renew(job):
                self._late.discard(job)
        return min(self._due, time.monotonic() + self.lease / AGAIN_IN_A_LEASE) if self._late else self._due

    def check(self, jobs: Iterable[str]) -> None:
        """Renew those of the flows now whose lease may be over: the process was suspended, and what it had may be
        another's. Those of which nobody tells are as before."""
        now = time.monotonic()
        made = self.made()
        for job in jobs:
            if job in made and made[job].until <= now and not self._renew(job, overdue=True):
                break

    def _renew(self, job: str, overdue: bool = False) -> bool:
        """Renew a flow, or only one whose lease may be over; False where nobody has answered."""
        with self._turn(job):
            flow, began = self.made().get(job), time.monotonic()
            # Another thread may have renewed it since.
            if flow is None or flow.lost or (overdue and flow.until > began):
                return True
            terms = self._terms(flow.rate, flow.steady)
            try:
                answer = ask("PATCH", _target(flow), terms, patience=RENEWAL_PATIENCE)
            except Exception:  # whatever it is, such as no memory for a moment: the other flows are to be renewed
                return False
            if answer[0] == NOT_FOUND:
                self._lose(job, flow, reason(answer))
            elif answer[0] == OK:
                self._put_off(job, flow.id, began + terms["duration"])
            return answer[0] not in AGAIN

    def _put_off(self, job: str, flow_id: str, until: float) -> None:
        with self._lock:
            if (flow := self._made.get(job)) is not None and flow.id == flow_id:
                self._made[job] = replace(flow, until=until)

    def _look_for(self, wanted: Mapping[str, float], patience: float) -> None:
        """Lose those of the flows that are wanted again and are over: an operator may have released them since the last
        renewal, and what is reserved already would not be asked for. Raises AwayError where nobody answers."""
        before = {job: flow for job, flow in self.made().items() if job in wanted and not flow.lost}
        if not before:
            return
        status, document = _answered(ask("GET", "/v1/paths", patience=patience))
        paths = document.get("paths")
        if status != 200 or not isinstance(paths, list):
            return
        there = {each.get("reservation") for each in paths if isinstance(each, dict)}
        for job, flow in before.items():
            if flow.id.partition(SHARE)[0] not in there:
                self._lose(job, flow, f"the reservation {flow.id} is over")
        self.check(before)

    def _confirm(self, job: str) -> None:
        """Wait until what was taken is enforced. Raises ReservationError with the reason where it is not."""
        flow, began, pause = self.made().get(job), time.monotonic(), PAUSE
        # Another thread may have released it meanwhile.
        while flow is not None:
            answer = _answered(ask("GET", f"{_target(flow)}?wait={WAIT:g}", wait=WAIT))
            if answer[0] != 200:
                raise ReservationError(reason(answer))
            state, waited = answer[1].get("state"), time.monotonic() - began
            # A worker service of before tells no state.
            if state != _UNDER_WAY and state not in _IN_THE_WAY:
                return
            if waited >= (LONGEST_WAIT if state == _UNDER_WAY else WAIT):
                raise ReservationError(f"what is reserved is not enforced: {_why(answer[1])}")
            # Where too many wait already, the answer comes at once.
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _take(self, job: str, rate: float) -> None:
        with self._turn(job):
            before, answer, began = self.made().get(job), None, time.monotonic()
            if before is not None and not before.lost:
                answer = ask("PATCH", _target(before), self._terms(rate, self.steady))
            if answer is None or answer[0] == NOT_FOUND:
                # A share: another communicator of the same jobs may have its own. By its number the worker service
                # finds that a request is the one of before, whose answer was lost.
                number = 1 + secrets.randbelow(NUMBERS)
                wish = {"destination": job, "share": number, **self._terms(rate, self.steady)}
                answer = ask("POST", "/v1/reservations", wish)
            status, document = _answered(answer)
            if status not in (200, 201) or not is_id(document.get("id")):
                if (free := _free(document, rate)) is not None:
                    raise NoRoomError(reason(answer), job, rate, free)
                raise ReservationError(reason(answer))
            with self._lock:
                self._made[job] = Flow(document["id"], rate, steady=self.steady, until=began + self.lease)
        self._taken.append((job, before))

    def _for_answer(self) -> float:
        """The seconds for the answer to a request that gives something back."""
        return BRIEFLY if self._away else SECONDS

    def _turn(self, job: str) -> threading.Lock:
        with self._lock:
            return self._asking.setdefault(job, threading.Lock())

    def _terms(self, rate: float, steady: bool) -> dict[str, float]:
        return {"rate": rate, "duration": self.lease, "steady": steady}

    def _set(self, job: str, flow: Flow, rate: float, steady: bool, answers: bool, seconds: float = SECONDS) -> bool:
        """Lower a rate, or make it steady or not, which is never refused; False where nobody answers in so many
        ``seconds``, or nobody ``answers`` as it is: the next renewal does it then."""
        with self._turn(job):
            if answers:
                began = time.monotonic()
                try:
                    terms = self._terms(rate, steady)
                    answer = ask("PATCH", _target(flow), terms, patience=RENEWAL_PATIENCE, seconds=seconds)
                    answers = answer[0] != AWAY
                    if answer[0] == OK:
                        self._put_off(job, flow.id, began + terms["duration"])
                except ReservationError:
                    answers = False
            with self._lock:
                if job in self._made:
                    self._made[job] = replace(self._made[job], rate=rate, steady=steady)
        return answers

    def _give(self, job: str, answers: bool = True, seconds: float = SECONDS) -> bool:
        """Release a flow; False where nobody answers in so many ``seconds``, or nobody ``answers`` as it is: its end
        does it then."""
        with self._lock:
            flow = self._made.pop(job, None)
        if flow is None or flow.lost or not answers:
            return answers
        try:
            return ask("DELETE", _target(flow), patience=RENEWAL_PATIENCE, seconds=seconds)[0] != AWAY
        except ReservationError:
            return False

    def _lose(self, job: str, flow: Flow, why: str) -> None:
        with self._lock:
            there = self._made.get(job)
            if there is not None and replace(there, until=flow.until) == flow:
                self._made[job] = replace(flow, lost=why)


def _answered(answer: Answer) -> Answer:
    """An answer of one who has time. Raises AwayError."""
    if answer[0] in AGAIN:
        raise AwayError(reason(answer))
    return answer


def _free(document: Mapping[str, Any], rate: float) -> float | None:
    """The rate in Mb/s that is free for a share which was refused; None where it is not for want of room.

    A link is asked for with the sum of a flow's shares: what it lacks of that, it lacks of this one.
    """
    links = document.get("links")
    lacks = []
    for link in links if isinstance(links, list) else ():
        asked, most = (
            (number(link.get(name)) for name in ("asked", "available")) if isinstance(link, dict) else (None,) * 2
        )
        if asked is None or most is None:
            return None
        lacks.append(asked - most)
    return max(rate - max(lacks), 0.0) if lacks else None


def _target(flow: Flow) -> str:
    return f"/v1/reservations/{flow.id}"


def _why(document: Mapping[str, Any]) -> str:
    return printable(document.get("reason")) or "its queues are being made"


class _Renewal:
    """Renews the flows of all communicators on a thread, three times a lease."""

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._next: dict[Flows, float] = {}
        self._thread: threading.Thread | None = None
        self._process = 0

    def add(self, flows: Flows, at: float) -> None:
        """Renew these from a time on."""
        with self._lock:
            self._next[flows] = min(self._next.get(flows, math.inf), at)
            if self._thread is None:
                self._process = os.getpid()
                thread = threading.Thread(target=self._run, name="lark_mpi", daemon=True)
                thread.start()
                # One that could not be started is tried again by the next one who asks.
                self._thread = thread
                atexit.register(self.release)
            self._lock.notify()

    def remove(self, flows: Flows) -> None:
        """Renew these no longer."""
        with self._lock:
            self._next.pop(flows, None)

    def release(self) -> None:
        """Release everything that the process holds; nothing in a child of it, which ends earlier than it."""
        if os.getpid() != self._process:
            return
        with self._lock:
            held = list(self._next)
        # The program's end is not to wait for each communicator where nobody answers.
        answers = True
        for flows in held:
            answers = flows.release(answers)

    def _run(self) -> None:
        while True:
            with self._lock:
                now = time.monotonic()
                due = [flows for flows, at in self._next.items() if at <= now]
                if not due:
                    self._lock.wait(min(self._next.values()) - now if self._next else None)
                    continue
                for flows in due:
                    # Meanwhile another thread may set it for an earlier time.
                    self._next[flows] = math.inf
            for flows in due:
                at = flows.renew()
                with self._lock:
                    if flows in self._next:
                        self._next[flows] = min(self._next[flows], at)


_renewal = _Renewal()


def release_all() -> None:
    """Release everything that the process holds."""
    _renewal.release()
