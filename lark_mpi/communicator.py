"""Reservations over a communicator, kept as its MPI attribute.

The calls that ask are collective: every rank of the communicator makes them, and every rank gets the same outcome.
One rank of each job, the lowest, makes the job's requests; so a job pair has one reserved flow, with the sum of its
ranks' rates. Reading and releasing are local.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final
from urllib.parse import quote

from mpi4py import MPI

from lark_mpi.errors import AwayError, NoRoomError, ReservationError
from lark_mpi.held import LEASE, LONGEST_LEASE, SHARE, SHORTEST_LEASE, Flow, Flows, release_all
from lark_mpi.patterns import (
    MTU,
    Pattern,
    Place,
    application_rate,
    headers,
    megabits,
    row,
    table,
    to_jobs,
    together,
    uses_ipv6,
    within,
)
from lark_mpi.service import AWAY, BUSY, MAX_REASON, PATIENCE, ask, is_id, number, path, printable, reason

# Linux's numbers; Python has no names for them.
_IP_MTU, _IPV6_MTU = 14, 24
# Any port: nothing is sent.
_PORT: Final = 9
# Seconds that one request waits for a change, and between two that are answered at once: first so many, then twice as
# many each time, and no more than the last figure.
LONGEST_WAIT: Final = 30.0
PACE: Final = 2.0
# Seconds between two requests that wait for less than that. Changes come no more often, and a program that looks for
# one in each step of a loop would leave its renewals no requests.
LEAST_WAIT: Final = 1.0
SLOWEST_PACE: Final = 16.0
NO_WISH: Final = "the attribute's value is a lark_mpi.Wish"
# Letters of what is not accepted, such as a list with a rate for each rank.
SHOWN: Final = 80


class _BusyError(ReservationError):
    """The job's processes ask too often."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A request as the value of an attribute: a pattern with its rate in bytes a second, or this rank's own table.
    ``steady``: the rate is the most as well; else what is free may be used, too."""

    pattern: Pattern | str | Mapping[int, float]
    rate: float | None = None
    lease: float = LEASE
    steady: bool = False


@dataclass(frozen=True, slots=True)
class Path:
    """The path from one job to another, as :meth:`Reservation.paths` reads it; bytes a second of the application.

    ``free`` is the best effort of the path's narrowest link, None where no link is shared. ``lost``: why it is not
    promised any more. ``pending``: why the promise is not enforced at present, though it was. ``delivered`` is what the
    job has sent there (whichever communicator) a second in about the last second, ``total`` the bytes since the
    reservation's queue was made, ``age`` how many seconds ago both were counted; None where the worker counts nothing.
    """

    job: str
    host: str
    promised: float
    free: float | None
    lost: str = ""
    delivered: float | None = None
    total: float | None = None
    age: float | None = None
    pending: str = ""


class Reservation:
    """A communicator's reservation. ``admitted``: all of it is promised and was enforced; else nothing more than before
    this request, and ``reason`` has the cause, the same on every rank."""

    def __init__(self, places: Sequence[Place], rank: int, lease: float) -> None:
        self.admitted = False
        self.reason = ""
        self._places = {place.job: place for place in places}
        self._place = places[rank] if places else None
        # The flows of this job: its own where this rank makes the requests, else as that rank reported them.
        self._flows = Flows(lease)
        self._told: dict[str, Flow] = {}
        # Of the paths as they were read last.
        self._version = ""
        # The first of the questions in a row that had no answer, and the last one; none where there was one since.
        self._silent: float | None = None
        self._unanswered = 0.0
        # No question about a change before this time, by the monotonic clock, but one that waits itself.
        self._not_before, self._pace = 0.0, PACE
        self._over = False

    def paths(self) -> tuple[Path, ...]:
        """Read what is promised to this communicator from this rank's job, and free beside it. Raises
        ReservationError."""
        self._flows.check(self._flows.made())
        return self._paths("", 0.0)

    def changed(self, timeout: float) -> bool:
        """Wait until paths are others than when this was last asked, or :meth:`paths` was called; False after
        ``timeout`` seconds without. Local, and waits in the kernel; in a loop with short times it asks once a second.
        Raises ReservationError, where nobody answers only after a lease: a service or controller that starts anew has
        kept what is reserved."""
        # NaN is no time.
        end = time.monotonic() + (timeout if timeout > 0 else 0.0)
        was_over = self._over
        if time.monotonic() - self._unanswered > self._flows.lease:
            # There may have been an answer since, for which nobody has asked.
            self._silent = None
        if not (self._flows.made() or self._told):
            while self._over == was_over and (left := end - time.monotonic()) > 0:
                time.sleep(min(left, LONGEST_WAIT))
            return self._over != was_over
        before, pace = self._version, PACE
        while True:
            began = time.monotonic()
            wait = min(max(end - began, 0.0), LONGEST_WAIT)
            if wait < LEAST_WAIT and began < self._not_before:
                if wait > 0:
                    time.sleep(min(wait, self._not_before - began))
                if self._over != was_over or time.monotonic() >= end:
                    return self._over != was_over
                continue
            self._not_before = began + LEAST_WAIT
            answers = self._look(before, wait if before else 0.0)
            if (before and self._version != before) or self._over != was_over:
                return True
            if not before and answers and self._version:
                # A change is one from the paths as they are now.
                before = self._version
                continue
            if time.monotonic() >= end:
                return False
            # Where too many wait already, or nobody answers, the answer comes at once.
            if time.monotonic() - began < wait / 2:
                time.sleep(min(pace, max(end - time.monotonic(), 0.0)))
                pace = min(2 * pace, SLOWEST_PACE)

    def _look(self, after: str, wait: float) -> bool:
        """Wait for paths once; False where they could not be read, which a job that asks too often cannot."""
        try:
            self._paths(after, wait, 0.0)
        except _BusyError:
            self._not_before, self._pace = time.monotonic() + self._pace, min(2 * self._pace, SLOWEST_PACE)
            return False
        except AwayError:
            if self._is_silent():
                raise
            return False
        self._pace = PACE
        return True

    def _is_silent(self) -> bool:
        """Note a question without an answer; True where there was none for a lease."""
        self._unanswered = now = time.monotonic()
        if self._silent is None:
            self._silent = now
        return now - self._silent > self._flows.lease

    def _paths(self, after: str, wait: float, patience: float = PATIENCE) -> tuple[Path, ...]:
        flows = self._flows.made() or self._told
        if not flows:
            return ()
        answer = ask("GET", f"/v1/paths?after={after}&wait={wait:g}", wait=wait, patience=patience)
        if answer[0] == AWAY:
            raise AwayError(reason(answer))
        self._silent = None
        if answer[0] == BUSY:
            raise _BusyError(reason(answer))
        version, listed = answer[1].get("version"), answer[1].get("paths")
        if answer[0] != 200 or not isinstance(version, str) or not isinstance(listed, list):
            raise ReservationError(reason(answer))
        self._version = quote(version, safe="")
        found = {str(each.get("reservation")): each for each in listed if isinstance(each, dict)}
        return tuple(
            self._path(job, flow, found.get(flow.id.partition(SHARE)[0])) for job, flow in sorted(flows.items())
        )

    def _path(self, job: str, flow: Flow, found: Mapping[str, object] | None) -> Path:
        here, there = self._place, self._places[job]
        assert here is not None
        if flow.lost or found is None:
            return Path(job, there.host, 0.0, None, flow.lost or f"the reservation {flow.id} is over")
        mtu, ipv6 = _mtu(there), uses_ipv6(here, there)
        whole, left = number(found.get("rate")), number(found.get("free"))
        # The reservation is the sum of its shares.
        promised = 0.0 if whole is None else min(flow.rate, whole)
        free = None if left is None else application_rate(max(left, 0.0), mtu, ipv6)
        sent, total, age = (number(found.get(name)) for name in ("delivered", "delivered_bytes", "age"))
        return Path(
            job,
            there.host,
            application_rate(promised, mtu, ipv6),
            free,
            delivered=None if sent is None else application_rate(sent, mtu, ipv6),
            total=None if total is None else total / headers(mtu, ipv6),
            age=age,
            pending=printable(found.get("pending")),
        )

    def _agree(self, comm: MPI.Intracomm, sent: Mapping[str, float], makes: bool, lease: float, steady: bool) -> None:
        """Take what the ranks of this job send, bytes a second to each other job, on every job or on none."""
        here, there = self._place, self._places
        assert here is not None
        wanted = {job: megabits(rate, _mtu(there[job]), uses_ipv6(here, there[job])) for job, rate in sent.items()}
        refused, before = "", (self._flows.lease, self._flows.steady)
        self._flows.lease, self._flows.steady = lease, steady
        try:
            if makes:
                self._flows.prepare(wanted)
        except NoRoomError as error:
            refused = self._no_room(error, sent)
        except Exception as error:  # whatever it is, such as a thread that cannot be started: the other ranks wait
            refused = str(error) or type(error).__name__
        self.reason = _first(comm, refused)
        if self.reason:
            self._flows.lease, self._flows.steady = before
            self._flows.undo()
        elif makes:
            self._flows.commit()
        self.admitted = not self.reason
        told = comm.allgather((self._place, self._flows.made() if makes else None))
        self._told = next((flows for place, flows in told if place == self._place and flows and not makes), {})

    def _no_room(self, error: NoRoomError, sent: Mapping[str, float]) -> str:
        """A refusal with what this job asked for, and could have, as the application counts it: the rest of it has the
        rates of links."""
        here, there = self._place, self._places[error.job]
        assert here is not None
        free = application_rate(error.free, _mtu(there), uses_ipv6(here, there))
        return (
            f"{sent[error.job]:.0f} bytes a second to {there.host} are asked ({error.rate:.3f} Mb/s with headers), "
            f"and {int(free)} could be had: {error}"
        )[:MAX_REASON]

    def _release(self) -> None:
        self._over = True
        self._flows.release()
        self._told = {}


def _gone(_comm: MPI.Comm, _keyval: int, reservation: object) -> None:
    """MPI's delete callback: the attribute, or its communicator, goes."""
    if isinstance(reservation, Reservation):
        reservation._release()


def _ends(_comm: MPI.Comm, _keyval: int, _value: object) -> None:
    """MPI's delete callback of MPI_COMM_SELF's attribute, which MPI_Finalize deletes first: it need not delete those of
    communicators that are not freed, and the program may go on for hours."""
    release_all()


_making: Final = threading.Lock()
_made: list[int] = []


def key() -> int:
    """The MPI attribute; ``MPI.KEYVAL_INVALID`` before MPI_Init and after MPI_Finalize."""
    if not _is_running():
        return MPI.KEYVAL_INVALID
    with _making:
        if not _made:
            # Without a copy callback, a duplicate of a communicator has no reservation.
            made = MPI.Comm.Create_keyval(delete_fn=_gone)
            MPI.COMM_SELF.Set_attr(MPI.Comm.Create_keyval(delete_fn=_ends), True)
            _made.append(made)
    return _made[0]


class Comm(MPI.Intracomm):
    """A communicator whose attribute KEYVAL asks: ``Set_attr(KEYVAL, Wish(…))``, on every rank.

    ``Get_attr(KEYVAL)`` reads the outcome back, a Reservation.
    """

    def Set_attr(self, keyval: int, attrval: Any) -> None:  # noqa: N802  # mpi4py's name
        """Set an attribute; KEYVAL's is a Wish. A refusal is no exception: the attribute has it."""
        if keyval == MPI.KEYVAL_INVALID or keyval != key():
            super().Set_attr(keyval, attrval)
            return
        _ask(self, attrval)
        if not isinstance(attrval, Wish):
            raise TypeError(NO_WISH)


def reserve(
    comm: MPI.Intracomm,
    pattern: Pattern | str | Mapping[int, float],
    rate: float | None = None,
    lease: float = LEASE,
    *,
    steady: bool = False,
) -> Reservation:
    """Reserve a rate in bytes a second for each stream of a pattern, or change the communicator's reservation to that.

    Collective. ``pattern`` is ``all``, ``ring`` or ``neighbours``, with a ``rate``; or what this rank sends, bytes a
    second by destination rank. ``lease``: seconds for which it outlives a process that dies while its job lives on.
    What is free may be used as well, unless it is ``steady``: then the rate is the most.
    Raises ReservationError, on every rank with the same reason; what was reserved before is then as it was.
    """
    fresh = reserved(comm) is None
    made = _ask(comm, Wish(pattern, rate, lease, steady))
    if not made.admitted:
        if fresh:
            release(comm)
        raise ReservationError(made.reason)
    return made


def reserved(comm: MPI.Comm) -> Reservation | None:
    """The reservation of a communicator; None where it has none, and where MPI is not running. Local."""
    if not _is_running():
        return None
    found = comm.Get_attr(key())
    return found if isinstance(found, Reservation) else None


def release(comm: MPI.Comm) -> None:
    """Release a communicator's reservation, if it has one. Local: what this rank's job sends, by the rank that asked
    for it, so every rank calls it. Freeing the communicator does the same."""
    if reserved(comm) is not None:
        comm.Delete_attr(key())


def _is_running() -> bool:
    """True between MPI_Init and MPI_Finalize: at any other time MPI itself would end the process."""
    return MPI.Is_initialized() and not MPI.Is_finalized()


def _ask(comm: MPI.Intracomm, wish: object) -> Reservation:
    """Set the attribute: the reservation that was there, changed, or another."""
    if not _is_running():
        raise ReservationError("MPI is not running; between MPI_Init and MPI_Finalize it is accepted")
    if comm.Is_inter():
        # Between two groups, collective calls give each group the other's values.
        raise ReservationError("the communicator is between two groups; one of a single group is accepted")
    problem, sent, lease, steady = "", dict[int, float](), LEASE, False
    try:
        if not isinstance(wish, Wish):
            raise TypeError(NO_WISH)
        lease, steady = _checked_lease(wish.lease), bool(wish.steady)
        sent = _sent(comm, wish)
    except Exception as error:  # whatever it is: the other ranks wait for this one in a collective call
        problem = str(error) or type(error).__name__
    places: list[Place] = []
    if not (problem := _first(comm, problem)):
        places, problem = _places(comm)
    found = reserved(comm)
    if found is None:
        found = Reservation(places, comm.rank, LEASE)
        # Not by Comm's own, which asks.
        MPI.Intracomm.Set_attr(comm, key(), found)
    if problem:
        found.admitted, found.reason = False, problem
        return found
    here = places[comm.rank]
    # A job may have another address than at the request before, or another id.
    found._places |= {place.job: place for place in places}
    found._place = here
    sums = comm.allgather((here.job, to_jobs(sent, comm.rank, places)))
    makes = [place.job for place in places].index(here.job) == comm.rank
    total = together(each for job, each in sums if job == here.job)
    found._agree(comm, total if makes else {}, makes, lease, steady)
    return found


def _sent(comm: MPI.Intracomm, wish: Wish) -> dict[int, float]:
    """The rates that this rank sends. Raises ReservationError."""
    if isinstance(wish.pattern, Mapping):
        return table(comm.rank, comm.size, wish.pattern)
    try:
        pattern = Pattern(wish.pattern)
    except ValueError:
        shown, accepted = str(wish.pattern)[:SHOWN], ", ".join(Pattern)
        raise ReservationError(f"{shown}: {accepted} or a table (a dictionary of rates by rank) are accepted") from None
    if wish.rate is None:
        raise ReservationError(f"the pattern {pattern} needs a rate, bytes a second")
    near = _neighbours(comm) if pattern is Pattern.NEIGHBOURS else ()
    return row(pattern, comm.rank, comm.size, wish.rate, near)


def _checked_lease(lease: float) -> float:
    if not within(lease, SHORTEST_LEASE, LONGEST_LEASE):
        raise ReservationError(f"a lease of {lease!r} seconds; {SHORTEST_LEASE:g} to {LONGEST_LEASE:g} are accepted")
    return float(lease)


def _neighbours(comm: MPI.Intracomm) -> Iterable[int]:
    """The ranks that this one sends to in the communicator's topology. Raises ReservationError."""
    kind = comm.Get_topology()
    if kind == MPI.CART:
        cart = MPI.Cartcomm(comm)
        both = [rank for direction in range(cart.dim) for rank in cart.Shift(direction, 1)]
        return [rank for rank in both if rank != MPI.PROC_NULL]
    if kind == MPI.GRAPH:
        return MPI.Graphcomm(comm).Get_neighbors(comm.rank)
    if kind == MPI.DIST_GRAPH:
        return MPI.Distgraphcomm(comm).Get_dist_neighbors()[1]
    raise ReservationError("the communicator has no topology, and so no neighbours")


def _first(comm: MPI.Intracomm, problem: str) -> str:
    """The first problem of any rank, with the rank; the same on all."""
    for rank, each in enumerate(comm.allgather(problem)):
        if each:
            return f"rank {rank}: {each}"
    return ""


def _places(comm: MPI.Intracomm) -> tuple[list[Place], str]:
    """The job of each rank, or the reason why one has none. One rank of each job asks."""
    keys = comm.allgather(_surroundings())
    # By job, its lowest rank.
    lowest = {key: rank for rank, key in reversed(list(enumerate(keys)))}
    asks, place, problem = lowest[keys[comm.rank]] == comm.rank, None, ""
    if asks and len(lowest) > 1:
        try:
            place = _own_place()
        except ReservationError as error:
            problem = str(error)
    elif asks:
        # All ranks are in one job, or in none: nothing is to be reserved, and nobody is asked.
        place = Place("", "")
    if problem := _first(comm, problem):
        return [], problem
    told = comm.allgather(place)
    return [told[lowest[key]] for key in keys], ""


def _surroundings() -> str:
    """A text that is the same for the ranks of a job, and another for those of each other job."""
    try:
        namespace = str(FilePath("/proc/self/ns/net").readlink())
    except OSError:
        namespace = ""
    return "\n".join((MPI.Get_processor_name(), namespace, os.environ.get("_CONDOR_SCRATCH_DIR", ""), path()))


def _own_place() -> Place:
    """The job of this process, by the worker service. Raises ReservationError."""
    answer = ask("GET", "/v1/job")
    status, found = answer
    job, host, addresses = found.get("id"), found.get("host"), found.get("addresses")
    if status != 200 or not is_id(job) or not isinstance(host, str) or not isinstance(addresses, list):
        raise ReservationError(reason(answer))
    return Place(job, host, tuple(str(address) for address in addresses))


def _mtu(there: Place) -> int:
    """The MTU of this job's route to another, by the kernel; 1500 where it has none."""
    for address in there.addresses:
        six = ":" in address
        try:
            with socket.socket(socket.AF_INET6 if six else socket.AF_INET, socket.SOCK_DGRAM) as trial:
                trial.connect((address, _PORT))
                level = socket.IPPROTO_IPV6 if six else socket.IPPROTO_IP
                return trial.getsockopt(level, _IPV6_MTU if six else _IP_MTU)
        except OSError:
            continue
    return MTU
