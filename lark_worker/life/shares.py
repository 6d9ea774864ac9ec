"""Shares of reserved flows: several requests of a job for the same receiver add up to one reservation.

A packet takes one queue, so a job has one reservation to each receiver. Each share has a rate and an end of its own;
one that is released, or that nobody renews, gives its rate back and leaves the others theirs.

The reservation is steady where all its shares are: packets of one that is not may use what is free.

Shares are in memory alone. After the service has started again, a renewal (with rate and duration) makes a share known
as it was, and one that is released before that ends with the flow.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final

from lark_common.errors import AdError
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import CallerError
from lark_worker.life.own_reservations import CHANGE, SELF, WISH, ControllerAnswer, OwnReservations, read
from lark_worker.records.records import Record

# Between a reservation's id, which is hexadecimal, and the number of the share.
MARK: Final = "s"
# The member of a request that asks for one.
SHARE: Final = "share"
# Shares of one flow; the communicators of an application are far fewer.
MOST: Final = 64
LONGEST: Final = 86_400.0
_JOB: Final = re.compile(r"[0-9a-f]{16}")
_NUMBERS: Final = 1_000_000
# Mb/s; less is nothing.
_NOTHING: Final = 0.0005
_LOCKS: Final = 64
_FORGET_AT: Final = 256
# Seconds between two writings of what queues have counted.
_WRITE_SECONDS: Final = 1.0


@dataclass(slots=True)
class _Share:
    """A share: Mb/s, its end by the monotonic clock, and whether the rate is the most as well."""

    rate: float
    until: float
    steady: bool


@dataclass(slots=True)
class _Flow:
    """The shares of one reservation, by number; ``whole`` if all of them are here, since it was made in this run of the
    service. Of another one ``over`` are those that have been here."""

    id: str
    whole: bool
    shares: dict[int, _Share] = field(default_factory=dict)
    over: set[int] = field(default_factory=set)

    def end(self, number: int) -> None:
        """Forget a share that is over."""
        del self.shares[number]
        if not self.whole:
            self.over.add(number)

    def may_be_unknown(self, number: int) -> bool:
        """True for a share that may be of a former run of the service."""
        return not self.whole and number not in self.over and len(self.shares) < MOST and len(self.over) < 16 * MOST


class Shares:
    """The shares of this worker's jobs; thread-safe. Every call raises AwayError where the controller cannot be
    asked, CallerError for what is not the job's, AdError for a body that is none."""

    def __init__(self, link: ControllerLink, own: OwnReservations, clock: Callable[[], float] = time.monotonic) -> None:
        self._link, self._own, self._clock = link, own, clock
        # One change of a job's shares at a time; a lock is of several jobs, so that there are few.
        self._locks = [threading.Lock() for _ in range(_LOCKS)]
        self._lock = threading.Lock()
        # By job and receiver.
        self._flows: dict[tuple[str, str], _Flow] = {}

    def reserve(self, record: Record, wish: dict[str, Any], wait: float) -> ControllerAnswer:
        """Take a share: of the reservation to the same receiver, or of a new one."""
        rate, seconds, receiver = _rate(wish), _seconds(wish), wish.get("destination")
        steady = _steady(wish) or False
        if rate is None or seconds is None or not isinstance(receiver, str) or not _JOB.fullmatch(receiver):
            raise AdError("", "a share needs rate, duration, and as destination the id of a job")
        with self._of(record):
            flow = self._known(record, receiver)
            found = None if flow is None else self._show(record, flow)
            if flow is None or found is None:
                body = {"destination": receiver, "rate": rate, "duration": seconds, "steady": steady}
                status, document = self._own.reserve(record, json.dumps(body).encode(), wait)
                if status != HTTPStatus.CREATED:
                    return status, document
                flow = _Flow(str(document["id"]), whole=True)
                self._keep(record, receiver, flow)
            else:
                if len(flow.shares) >= MOST:
                    raise AdError("", f"the flow has {MOST} shares, and no more are accepted")
                status, document = self._set(flow, found["rate"] + rate, seconds, more=(steady,))
                if status != HTTPStatus.OK:
                    return status, document
            number = 1 + secrets.randbelow(_NUMBERS - 1)
            while number in flow.shares or number in flow.over:
                number = 1 + secrets.randbelow(_NUMBERS - 1)
            flow.shares[number] = _Share(rate, self._clock() + seconds, steady)
            return HTTPStatus.CREATED, _shown(document, number, rate)

    def change(self, record: Record, share_id: str, change: dict[str, Any]) -> ControllerAnswer:
        """Give a share another rate, another end, or both."""
        rate, seconds, steady = _rate(change), _seconds(change), _steady(change)
        with self._of(record):
            flow, number, found = self._find(record, share_id)
            share = flow.shares.get(number)
            if share is None:
                if rate is None or seconds is None:
                    raise CallerError(f"no share has the id {share_id}; it may be over")
                # The service has started since: the flow's rate has this share in it already.
                asked = bool(found.get("steady")) if steady is None else steady
                share = flow.shares[number] = _Share(rate, self._clock() + seconds, asked)
            wanted = share.rate if rate is None else rate
            until = share.until if seconds is None else self._clock() + seconds
            steady = share.steady if steady is None else steady
            status, document = self._set(
                flow, found["rate"] + wanted - share.rate, until - self._clock(), but=(number,), more=(steady,)
            )
            if status == HTTPStatus.OK:
                share.rate, share.until, share.steady = wanted, until, steady
                document = _shown(document, number, wanted)
            return status, document

    def show(self, record: Record, share_id: str) -> ControllerAnswer:
        """A share, as the reservation is shown, with the share's rate."""
        with self._of(record):
            flow, number, found = self._find(record, share_id)
            share = flow.shares.get(number)
            return HTTPStatus.OK, _shown(found, number, found["rate"] if share is None else share.rate)

    def release(self, record: Record, share_id: str) -> ControllerAnswer:
        """Give a share back; with the last one the reservation ends."""
        with self._of(record):
            flow, number, found = self._find(record, share_id)
            share = flow.shares.get(number)
            if share is None:
                # How much of the flow is others' is not known: its end is near, where they do not renew it.
                return HTTPStatus.OK, _shown(found, number, 0.0)
            rest, alone = found["rate"] - share.rate, len(flow.shares) == 1
            if rest < _NOTHING or (alone and flow.whole):
                status, document = self._link.passed(lambda client: client.release(flow.id))
            else:
                # The end is left as it is where all that is known goes, and others may not be known yet.
                status, document = self._set(flow, rest, None if alone else 0.0, but=(number,))
            if status in (HTTPStatus.OK, HTTPStatus.NOT_FOUND):
                flow.end(number)
            return status, _shown(document, number, share.rate) if status == HTTPStatus.OK else document

    def _find(self, record: Record, share_id: str) -> tuple[_Flow, int, dict[str, Any]]:
        """A share's flow, its number, and the reservation. Raises CallerError where it is over."""
        reservation_id, _, digits = share_id.partition(MARK)
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 6 else 0
        status, found = self._own.show(record, reservation_id)
        if status != HTTPStatus.OK or not number or not isinstance(receiver := found.get("peer"), str):
            raise CallerError(f"no share has the id {share_id}; it may be over")
        flow = self._known(record, receiver)
        if flow is None or flow.id != reservation_id:
            flow = _Flow(reservation_id, whole=False)
            self._keep(record, receiver, flow)
        if number not in flow.shares and not flow.may_be_unknown(number):
            raise CallerError(f"no share has the id {share_id}; it may be over")
        return flow, number, self._without_those_over(flow, found)

    def _show(self, record: Record, flow: _Flow) -> dict[str, Any] | None:
        status, found = self._own.show(record, flow.id)
        return self._without_those_over(flow, found) if status == HTTPStatus.OK and flow.shares else None

    def _without_those_over(self, flow: _Flow, found: dict[str, Any]) -> dict[str, Any]:
        """The reservation, once shares that nobody has renewed are given back; one is left in any case."""
        now = self._clock()
        past = [number for number, share in flow.shares.items() if share.until <= now][: len(flow.shares) - 1]
        if past:
            less = sum(flow.shares[number].rate for number in past)
            status, document = self._set(flow, found["rate"] - less, 0.0, but=past)
            if status == HTTPStatus.OK:
                found = document
                for number in past:
                    flow.end(number)
        return found

    def _set(
        self,
        flow: _Flow,
        rate: float,
        seconds: float | None,
        but: Collection[int] = (),
        more: Iterable[bool] = (),
    ) -> ControllerAnswer:
        """Set the reservation's rate, and its end to that of the share that lasts longest (None: leave that). It is
        steady if all shares are: those here ``but`` for some, and ``more`` that are to be."""
        now = self._clock()
        change: dict[str, float] = {"rate": max(round(rate, 3), 0.001)}
        if seconds is not None:
            change["duration"] = max([1.0, seconds, *(share.until - now for share in flow.shares.values())])
        told = [*(share.steady for number, share in flow.shares.items() if number not in but), *more]
        # Of one of a former run of the service there may be shares that are not known yet.
        if told and (flow.whole or not all(told)):
            change["steady"] = all(told)
        return self._link.passed(lambda client: client.change_reservation(flow.id, **change))

    def _of(self, record: Record) -> threading.Lock:
        return self._locks[hash(record.id) % _LOCKS]

    def _known(self, record: Record, receiver: str) -> _Flow | None:
        with self._lock:
            return self._flows.get((record.id, receiver))

    def _keep(self, record: Record, receiver: str, flow: _Flow) -> None:
        with self._lock:
            if len(self._flows) >= _FORGET_AT:
                # A share that nobody renews is over, with the job or without.
                now = self._clock()
                self._flows = {
                    key: each
                    for key, each in self._flows.items()
                    if any(share.until > now for share in list(each.shares.values()))
                }
            self._flows[record.id, receiver] = flow


def is_share(reservation_id: str) -> bool:
    """True for the id of a share."""
    return MARK in reservation_id


def _shown(reservation: dict[str, Any], number: int, rate: float) -> dict[str, Any]:
    return {**reservation, "id": f"{reservation.get('id')}{MARK}{number}", "rate": rate}


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
    the worker has seen of its queues, of which one goes with a reservation."""

    def __init__(
        self, link: ControllerLink, write_queues: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._own = OwnReservations(link)
        self._shares = Shares(link, self._own)
        self._write_queues, self._clock = write_queues, clock
        self._written_at = -_WRITE_SECONDS

    def reserve(self, record: Record, body: bytes, wait: float) -> ControllerAnswer:
        """Reserve a flow that the job sends; with ``share`` a share of it. Raises AdError, CallerError, AwayError."""
        wish = read(body, WISH | {SHARE})
        if wish.pop(SHARE, False) is not True:
            return self._own.reserve(record, json.dumps(wish).encode(), wait)
        if wish.get("source", SELF) not in (SELF, record.id):
            raise CallerError("a job reserves what it sends itself: leave source out, or write self")
        return self._shares.reserve(record, wish, wait)

    def show(self, record: Record, reservation_id: str) -> ControllerAnswer:
        """One of the job's own reservations or shares. Raises CallerError for any other, AwayError."""
        return (self._shares if is_share(reservation_id) else self._own).show(record, reservation_id)

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
