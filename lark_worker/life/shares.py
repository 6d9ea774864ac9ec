"""Shares of reserved flows: several requests of a job for the same receiver add up to one reservation.

A packet takes one queue, so a job has one reservation to each receiver. Each share has a rate and an end of its own;
one that is released, or that nobody renews, gives its rate back and leaves the others theirs. The latter is seen to by
the next request for the flow, and by :meth:`Shares.give_back`, which the service calls all the time.

The reservation is steady where all its shares are: packets of one that is not may use what is free.

Shares are on disk before the controller is asked, so that they outlive the service, whenever it ends. Where they cannot
be read, a renewal (with rate and duration) makes a share known as it was, and one that is released before that ends
with the flow.

Where an answer of the controller is lost, the next request finds out by the flow's rate if the change was made. A
caller that has lost this service's answer repeats its request with the same number, and gets the share that it has.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Container, Iterable
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

from lark_common.errors import AdError
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError, CallerError
from lark_worker.life.own_reservations import CHANGE, SELF, WISH, ControllerAnswer, OwnReservations, read
from lark_worker.records.records import Record
from lark_worker.records.shares import MOST, NOTHING, Ends, Share, SharedFlow, ShareFiles

# Between a reservation's id, which is hexadecimal, and the number of the share.
MARK: Final = "s"
# The member of a request that asks for one.
SHARE: Final = "share"
LONGEST: Final = 86_400.0
_JOB: Final = re.compile(r"[0-9a-f]{16}")
_NUMBERS: Final = 10**12
_DIGITS: Final = 12
# Mb/s by which a rate may be more than was asked for: a controller rounds up to whole kb/s.
_ROUNDED: Final = 0.0015
_LOCKS: Final = 64
# The problem of a controller that has no room.
NO_ROOM: Final = "urn:lark:problem:capacity"
# Flows of one job that are kept. A controller accepts half as many at a time; others were asked for, and no answer has
# come, or are over though their shares were not released.
MOST_FLOWS: Final = 256
# Flows of which shares are given back in a row, and seconds until one is tried again where that did not work.
MOST_AT_A_TIME: Final = 32
AGAIN: Final = 30.0
# Seconds between two writings of what queues have counted.
_WRITE_SECONDS: Final = 1.0


class Shares:
    """The shares of this worker's jobs; thread-safe. Every call raises AwayError where the controller cannot be
    asked, CallerError for what is not the job's, AdError for a body that is none. ``is_live`` is False for a job that
    is over, before that is forgotten."""

    def __init__(
        self,
        link: ControllerLink,
        own: OwnReservations,
        files: ShareFiles,
        is_live: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._link, self._own, self._files, self._is_live, self._clock = link, own, files, is_live, clock
        # One change of a job's shares at a time; a lock is of several jobs, so that there are few.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._lock = threading.Lock()
        # By job and receiver, the oldest of a job first.
        self._flows: dict[str, dict[str, SharedFlow]] = {}

    def resume(self, jobs: Collection[str]) -> None:
        """Take up the shares of these jobs, as they are on disk."""
        with self._lock:
            self._flows = {}
            for flow in self._files.load(jobs, self._clock()):
                job, receiver = flow.ends
                self._flows.setdefault(job, {})[receiver] = flow

    def forget(self, job_id: str) -> None:
        """Forget the shares of a job that is over."""
        with self._lock:
            self._drop([flow.ends for flow in self._flows.get(job_id, {}).values()])

    def reserve(self, record: Record, wish: dict[str, Any], wait: float, number: int | None = None) -> ControllerAnswer:
        """Take a share: of the reservation to the same receiver, or of a new one. With the ``number`` of a share that
        is there the request is the one of before, and the answer that share."""
        rate, seconds, receiver = _rate(wish), _seconds(wish), wish.get("destination")
        steady = _steady(wish) or False
        if rate is None or seconds is None or not isinstance(receiver, str) or not _JOB.fullmatch(receiver):
            raise AdError("", "a share needs rate, duration, and as destination the id of a job")
        share = Share(rate, seconds, self._clock() + seconds, steady)
        with self._of(record.id):
            status, document = self._take(record, receiver, number, share)
        if wait <= 0 or status != HTTPStatus.CREATED:
            return status, document
        # Without the lock: renewals of the job's other shares, and of other jobs' as well, are not to wait that long.
        return self._enforced(record, document, wait)

    def _take(self, record: Record, receiver: str, number: int | None, share: Share) -> ControllerAnswer:
        flow = self._known(record, receiver)
        if flow is not None and not flow.id:
            flow = self._recovered(record, flow)
        found = None if flow is None else self._show(record, flow)
        if flow is None or found is None:
            return self._begin(record, receiver, number or _new(()), share)
        if number in flow.shares:
            return HTTPStatus.CREATED, _shown(found, number, flow.shares[number].rate)
        if len(flow.shares) >= MOST:
            raise AdError("", f"the flow has {MOST} shares, and no more are accepted")
        number = number or _new(flow.shares.keys() | flow.over)
        status, document = self._set(flow, found, {**flow.shares, number: share})
        if status != HTTPStatus.OK:
            return status, _refused(document, flow, number, share.rate)
        return HTTPStatus.CREATED, _shown(document, number, share.rate)

    def _enforced(self, record: Record, share: dict[str, Any], wait: float) -> ControllerAnswer:
        """A share that was taken, once its flow is enforced; as it was where nobody tells: it is there all the same."""
        try:
            status, found = self._own.show(record, str(share["id"]).partition(MARK)[0], wait)
        except AwayError:
            return HTTPStatus.CREATED, share
        if status != HTTPStatus.OK:
            return status, found
        return HTTPStatus.CREATED, {**found, "id": share["id"], "rate": share["rate"]}

    def _begin(self, record: Record, receiver: str, number: int, share: Share) -> ControllerAnswer:
        """Reserve a flow, of which this is the only share."""
        flow = SharedFlow((record.id, receiver), "", whole=True, shares={number: share})
        self._keep(flow)
        body = {"destination": receiver, "rate": share.rate, "duration": share.seconds, "steady": share.steady}
        status, document = self._own.reserve(record, json.dumps(body).encode(), 0.0)
        if status != HTTPStatus.CREATED:
            with self._lock:
                self._drop([flow.ends])
            return status, document
        flow.id = str(document["id"])
        self._write(flow)
        return status, _shown(document, number, share.rate)

    def _recovered(self, record: Record, flow: SharedFlow) -> SharedFlow | None:
        """A flow that was asked for, if it is reserved, though no answer has come; else None."""
        (share,) = flow.shares.values()
        status, document = self._link.passed(lambda client: client.watch_paths(record.machine))
        for each in (document.get("paths") or ()) if status == HTTPStatus.OK else ():
            ends = (each.get("job"), each.get("peer"))
            if ends == flow.ends and abs(each.get("rate", 0.0) - share.rate) < _ROUNDED:
                flow.id = str(each.get("reservation"))
                self._write(flow)
                return flow
        return None

    def change(self, record: Record, share_id: str, change: dict[str, Any]) -> ControllerAnswer:
        """Give a share another rate, another end, or both."""
        rate, seconds, steady = _rate(change), _seconds(change), _steady(change)
        with self._of(record.id):
            flow, number, found = self._find(record, share_id)
            share = flow.shares.get(number)
            if share is None:
                # Of a former run of the service, where the flow's rate can have this share in it already: what is
                # others' is never taken for it.
                known = sum(each.rate for each in flow.shares.values()) - _ROUNDED * (1 + len(flow.shares))
                if rate is None or seconds is None or known + rate > found["rate"]:
                    raise CallerError(f"no share has the id {share_id}; it may be over")
                asked = bool(found.get("steady")) if steady is None else steady
                share = Share(rate, seconds, self._clock() + seconds, asked)
                flow.become({**flow.shares, number: share})
            wanted = Share(
                share.rate if rate is None else rate,
                share.seconds if seconds is None else seconds,
                share.until if seconds is None else self._clock() + seconds,
                share.steady if steady is None else steady,
            )
            status, document = self._set(flow, found, {**flow.shares, number: wanted})
            if status != HTTPStatus.OK:
                return status, _refused(document, flow, number, wanted.rate)
            return status, _shown(document, number, wanted.rate)

    def show(self, record: Record, share_id: str, wait: float = 0.0) -> ControllerAnswer:
        """A share, as the reservation is shown once it is enforced or ``wait`` seconds are over, with the share's
        rate."""
        if wait > 0:
            self._own.show(record, share_id.partition(MARK)[0], wait)
        with self._of(record.id):
            flow, number, found = self._find(record, share_id)
            share = flow.shares.get(number)
            return HTTPStatus.OK, _shown(found, number, found["rate"] if share is None else share.rate)

    def release(self, record: Record, share_id: str) -> ControllerAnswer:
        """Give a share back; with the last one the reservation ends."""
        with self._of(record.id):
            flow, number, found = self._find(record, share_id)
            share = flow.shares.get(number)
            if share is None:
                # How much of the flow is others' is not known: its end is near, where they do not renew it.
                return HTTPStatus.OK, _shown(found, number, 0.0)
            rest, alone = found["rate"] - share.rate, len(flow.shares) == 1
            left = {each: other for each, other in flow.shares.items() if each != number}
            if rest < NOTHING or (alone and flow.whole):
                status, document = self._link.passed(lambda client: client.release(flow.id))
                if status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
                    flow.become(left)
                    self._write_or_drop(flow)
            else:
                # The end is left as it is where all that is known goes, and others may not be known yet.
                status, document = self._set(flow, found, left)
            return status, _shown(document, number, share.rate) if status == HTTPStatus.OK else document

    def give_back(self) -> None:
        """Give back shares that nobody has renewed, though nobody asks for their flows: of some flows, others are for
        the next call. Raises AwayError. Where all shares are over, the controller has ended the reservation."""
        now, tried = self._clock(), 0
        with self._lock:
            flows = [flow for kept in self._flows.values() for flow in kept.values()]
        for flow in flows:
            if tried == MOST_AT_A_TIME:
                break
            lock = self._of(flow.ends[0])
            # A job that asks at this moment does not hold up the thread that calls.
            if flow.retry <= now and flow.is_partly_over(now) and lock.acquire(blocking=False):
                try:
                    tried, flow.retry = tried + 1, now + AGAIN
                    self._give_back(flow)
                finally:
                    lock.release()

    def _give_back(self, flow: SharedFlow) -> None:
        job, receiver = flow.ends
        with self._lock:
            if self._flows.get(job, {}).get(receiver) is not flow:
                return
        status, found = self._link.passed(lambda client: client.reservation(flow.id))
        if status == HTTPStatus.NOT_FOUND:
            # It was ended by somebody else: its shares are over.
            with self._lock:
                self._drop([flow.ends])
        elif status == HTTPStatus.OK:
            flow.settle(found["rate"])
            self._without_those_over(flow, found)
            if not flow.is_partly_over(self._clock()):
                flow.retry = 0.0

    def _find(self, record: Record, share_id: str) -> tuple[SharedFlow, int, dict[str, Any]]:
        """A share's flow, its number, and the reservation. Raises CallerError where it is over."""
        reservation_id, _, digits = share_id.partition(MARK)
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS else 0
        status, found = self._own.show(record, reservation_id)
        if status != HTTPStatus.OK or not number or not isinstance(receiver := found.get("peer"), str):
            raise CallerError(f"no share has the id {share_id}; it may be over")
        flow = self._known(record, receiver)
        if flow is None or flow.id != reservation_id:
            flow = SharedFlow((record.id, receiver), reservation_id, whole=False)
            self._keep(flow)
        flow.settle(found["rate"])
        # First: the share itself may be over. Its rate is given back, and it is none of a former run then.
        found = self._without_those_over(flow, found)
        if number not in flow.shares and not flow.may_be_unknown(number):
            raise CallerError(f"no share has the id {share_id}; it may be over")
        return flow, number, found

    def _show(self, record: Record, flow: SharedFlow) -> dict[str, Any] | None:
        status, found = self._own.show(record, flow.id)
        if status != HTTPStatus.OK:
            return None
        flow.settle(found["rate"])
        return self._without_those_over(flow, found) if flow.shares else None

    def _without_those_over(self, flow: SharedFlow, found: dict[str, Any]) -> dict[str, Any]:
        """The reservation, once shares that nobody has renewed are given back; one is left in any case."""
        now = self._clock()
        past = [number for number, share in flow.shares.items() if share.until <= now][: len(flow.shares) - 1]
        if past:
            status, document = self._set(
                flow, found, {number: share for number, share in flow.shares.items() if number not in past}
            )
            if status == HTTPStatus.OK:
                found = document
        return found

    def _set(self, flow: SharedFlow, found: dict[str, Any], shares: dict[int, Share]) -> ControllerAnswer:
        """Give a flow these shares: the reservation its rate as it was ``found`` with what they have more or less, and
        the end of the share that lasts longest (none: leave that). It is steady if all shares are."""
        more = sum(each.rate for each in shares.values()) - sum(each.rate for each in flow.shares.values())
        change: dict[str, float] = {"rate": max(round(found["rate"] + more, 3), 0.001)}
        if shares:
            change["duration"] = max(1.0, *(each.until - self._clock() for each in shares.values()))
        told = [each.steady for each in shares.values()]
        # Of one of a former run of the service there may be shares that are not known yet.
        if told and (flow.whole or not all(told)):
            change["steady"] = all(told)
        flow.doubt = change["rate"], shares
        self._write(flow)
        status, document = self._link.passed(lambda client: client.change_reservation(flow.id, **change))
        flow.doubt = None
        if status == HTTPStatus.OK:
            flow.become(shares)
        self._write(flow)
        return status, document

    def _of(self, job: str) -> threading.Lock:
        return self._locks[hash(job) % _LOCKS]

    def _known(self, record: Record, receiver: str) -> SharedFlow | None:
        with self._lock:
            return self._flows.get(record.id, {}).get(receiver)

    def _keep(self, flow: SharedFlow) -> None:
        """Keep a flow, in the place of the oldest where a job has too many; one that lives is known again from its
        renewal on."""
        job, receiver = flow.ends
        with self._lock:
            # The job's end may come while its last requests are under way.
            if self._is_live(job):
                kept, now = self._flows.setdefault(job, {}), self._clock()
                kept.pop(receiver, None)
                if len(kept) >= MOST_FLOWS:
                    # A share that nobody renews is over.
                    over = (each for each in kept.values() if all(share.until <= now for share in each.shares.values()))
                    self._drop([next(over, next(iter(kept.values()))).ends])
                self._flows.setdefault(job, {})[receiver] = flow
        self._write(flow)

    def _write(self, flow: SharedFlow) -> None:
        """Keep a flow on disk; not one whose job has ended meanwhile."""
        job, receiver = flow.ends
        self._files.write(flow)
        with self._lock:
            if self._flows.get(job, {}).get(receiver) is not flow:
                self._files.remove(flow.ends)

    def _write_or_drop(self, flow: SharedFlow) -> None:
        """Keep a flow that is over only where its shares of before are needed to find what is unknown."""
        if flow.shares or not flow.whole:
            self._write(flow)
            return
        with self._lock:
            self._drop([flow.ends])

    def _drop(self, flows: Iterable[Ends]) -> None:
        """Forget flows; the caller holds the lock."""
        for ends in flows:
            job, receiver = ends
            kept = self._flows.get(job, {})
            kept.pop(receiver, None)
            if not kept:
                self._flows.pop(job, None)
            self._files.remove(ends)


def _new(taken: Container[int]) -> int:
    """A number that is not taken."""
    number = 1 + secrets.randbelow(_NUMBERS - 1)
    while number in taken:
        number = 1 + secrets.randbelow(_NUMBERS - 1)
    return number


def is_share(reservation_id: str) -> bool:
    """True for the id of a share."""
    return MARK in reservation_id


def _shown(reservation: dict[str, Any], number: int, rate: float) -> dict[str, Any]:
    return {**reservation, "id": f"{reservation.get('id')}{MARK}{number}", "rate": rate}


def _refused(problem: dict[str, Any], flow: SharedFlow, number: int, rate: float) -> dict[str, Any]:
    """A problem of a flow, which is asked for with the sum of its shares: with the part of this one."""
    others = sum(share.rate for each, share in flow.shares.items() if each != number)
    if others < NOTHING or problem.get("type") != NO_ROOM:
        return problem
    parts = f"of this flow {rate:g} Mb/s are of this request, and {others:g} of others of the job"
    return {**problem, "detail": f"{problem.get('detail')}; {parts}"}


def _rate(body: dict[str, Any]) -> float | None:
    return _number(body, "rate", 0.001, 1e7)


def _seconds(body: dict[str, Any]) -> float | None:
    return _number(body, "duration", 1.0, LONGEST)


def _steady(body: dict[str, Any]) -> bool | None:
    given = body.get("steady")
    if given is not None and not isinstance(given, bool):
        raise AdError("", "steady: true or false is accepted")
    return given


def _number(body: dict[str, Any], name: str, least: float, most: float) -> float | None:
    given = body.get(name)
    if given is None:
        return None
    if isinstance(given, bool) or not isinstance(given, int | float) or not least <= given <= most:
        raise AdError("", f"{name}: {least:g} to {most:g} are accepted for a share")
    return float(given)


class Requests:
    """A job's requests for reservations at the socket: of its own, or shares of them. ``write_queues`` writes what
    the worker has seen of its queues, of which one goes with a reservation; ``is_live`` as in :class:`Shares`."""

    def __init__(
        self,
        link: ControllerLink,
        write_queues: Callable[[], None],
        directory: Path,
        is_live: Callable[[str], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._own = OwnReservations(link)
        self._shares = Shares(link, self._own, ShareFiles(directory), is_live)
        self._write_queues, self._clock = write_queues, clock
        self._written_at = -_WRITE_SECONDS

    def resume(self, jobs: Collection[str]) -> None:
        """Take up what these jobs have had, when the service starts."""
        self._shares.resume(jobs)

    def forget(self, job_id: str) -> None:
        """Forget what a job has had that is over."""
        self._shares.forget(job_id)

    def give_back(self) -> None:
        """Give back shares whose time is over; to be called all the time. Raises AwayError."""
        self._shares.give_back()

    def reserve(self, record: Record, body: bytes, wait: float) -> ControllerAnswer:
        """Reserve a flow that the job sends; with ``share`` a share of it. Raises AdError, CallerError, AwayError."""
        wish = read(body, WISH | {SHARE})
        share = wish.pop(SHARE, False)
        if share is False:
            return self._own.reserve(record, json.dumps(wish).encode(), wait)
        if not isinstance(share, int) or not 0 < share < _NUMBERS:
            raise AdError("", f"share: true, or a number of 1 to {_NUMBERS - 1}, is accepted")
        if wish.get("source", SELF) not in (SELF, record.id):
            raise CallerError("a job reserves what it sends itself: leave source out, or write self")
        return self._shares.reserve(record, wish, wait, None if share is True else share)

    def show(self, record: Record, reservation_id: str, wait: float = 0.0) -> ControllerAnswer:
        """One of the job's own reservations or shares, once it is enforced, or after ``wait`` seconds. Raises
        CallerError for any other, AwayError."""
        return (self._shares if is_share(reservation_id) else self._own).show(record, reservation_id, wait)

    def change(self, record: Record, reservation_id: str, body: bytes) -> ControllerAnswer:
        """Change one of them. Raises AdError, CallerError, AwayError."""
        if is_share(reservation_id):
            return self._shares.change(record, reservation_id, read(body, CHANGE))
        return self._own.change(record, reservation_id, body)

    def release(self, record: Record, reservation_id: str) -> ControllerAnswer:
        """Release one of them. Raises CallerError, AwayError."""
        # An application releases one flow after the other.
        if (now := self._clock()) - self._written_at >= _WRITE_SECONDS:
            self._written_at = now
            self._write_queues()
        return (self._shares if is_share(reservation_id) else self._own).release(record, reservation_id)
