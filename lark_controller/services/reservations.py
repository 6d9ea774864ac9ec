"""Reservations: from a wish to an admitted reservation, and the reserved flows in memory.

The feed's lock keeps topology, store and memory in the same order in this process; that no link is promised more than
it carries is the store's doing, for all processes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

from lark_common.classads.ads import JobAd
from lark_common.errors import AdmissionError, PathError, StoreError
from lark_common.log import WARNING, event
from lark_controller.api.reservations import Change, LinkStatus, PathStatus, Seen, Wish
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Policy, Refused
from lark_controller.policies.topology import ACCESS
from lark_controller.qos.admission import ReservedCapacity
from lark_controller.qos.booking import (
    NO_TOPOLOGY,
    End,
    Finder,
    demand_of,
    end_of,
    flow_booking,
    job_booking,
    present_node,
)
from lark_controller.qos.recount import Recount
from lark_controller.qos.reservation import Booking, Reservation, ReservationKind, ReservationPage
from lark_controller.qos.topology import KILO, Channel, Demand, Topology, channels, requested_rate
from lark_controller.services.apart_flows import ApartFlows
from lark_controller.services.feed import Feed
from lark_controller.services.link_watch import LinkWatch
from lark_controller.services.node_patterns import NONE, NodePatterns, PatternBookings
from lark_controller.services.own_changes import OwnChanges, is_renewal
from lark_controller.services.past_reservations import PastReservations
from lark_controller.services.queueless import Queueless
from lark_controller.services.reserved_flows import as_of_now, check_owner, flows_of, missing, takes_part_of
from lark_controller.services.unanswered_reservations import UnansweredReservations
from lark_controller.store import Store

# Flows that one job may have reserved. Each is a queue at its worker's uplinks, of which there are 28,672 for such, and
# any user may ask for them.
MOST_FLOWS: Final = 128


class Reservations:
    """Reservations of this controller; thread-safe.

    The reserved flows from and to a live job, and its RequestBandwidth, are part of the job in ``feed``. ``holds`` is
    true while the queue of a flow that is over may still stand.
    """

    def __init__(self, store: Store, feed: Feed, holds: Callable[[Reservation], bool] = lambda _: False) -> None:
        self._store = store
        self._feed = feed
        self._find: Finder = feed.find
        self._nodes = NodePatterns(feed.find)
        self._queueless = Queueless(feed)
        self._lock = feed.lock
        self._policy: Policy | None = None
        self._topology: Topology | None = None
        # Reserved flows by id, and their ids by the jobs at either end.
        self._flows: dict[str, Reservation] = {}
        self._of_job: dict[str, set[str]] = {}
        # The policy to go over to, until that is done.
        self._coming: Policy | None = None
        # The speeds of workers' access links by machine ads, Mb/s; and workers that have registered a job.
        self._capacities: dict[str, float] = {}
        # Those of them that the store does not have yet: they are written with the next post of that worker.
        self.new_links: dict[str, float] = {}
        self._hosts: set[str] = set()
        self.apart = ApartFlows(feed)
        self._watch = LinkWatch(self._links, self._flows_by_host, self.apart.why_unenforced)
        self._own_changes = OwnChanges(store)
        self._past = PastReservations(store, self._lock, self._own_changes, holds)
        self._unanswered = UnansweredReservations(store, self._lock, self._take, self._over)

    def use(self, policy: Policy) -> None:
        """Go over to a policy: every reservation counts on its links from now on, and what the policy promises to live
        jobs, whether there is room or not.

        At the first policy StoreError is raised. Later, where the database is away, nothing is admitted until it is
        back and this was done.
        """
        with self._lock:
            self._coming = policy
            try:
                self._go_over()
            except StoreError as error:
                if self._policy is None:
                    raise
                event("reservations are counted anew once the database is back", level=WARNING, error=str(error))

    def _go_over(self) -> None:
        """Finish going over to a policy; nothing has changed where that fails. Raises StoreError."""
        if self._coming is None:
            return
        policy, live = self._coming, self._feed.live()
        self._nodes.note_all(live)
        capacities = self._store.reservations.worker_capacities() | self.new_links
        topology = None if policy.topology is None else Topology(policy.topology, dict(capacities))
        count = Recount(policy, topology, self._find)
        lost = self._store.reservations.reroute(
            count.demand, count.promised(live), time.time(), count.is_over, count.followed
        )
        flows = self._store.reservations.flows(self._feed.clock.earliest())
        self._coming = None
        self._policy, self._topology, self._capacities = policy, topology, capacities
        self._hosts.update(self._feed.directory.hosts)
        self.apart.use(policy)
        before, self._flows, self._of_job = self._flows, {}, {}
        for reservation in flows:
            self._keep(reservation)
        concerned = {job_id for each in [*before.values(), *self._flows.values()] for job_id in (each.job, each.peer)}
        for job_id in sorted(job_id for job_id in concerned if job_id is not None):
            self._feed.change(job_id, self.with_flows)
        self._watch.bump()
        if lost and policy.topology is not None:
            event("reservations without a path", level=WARNING, reservations=",".join(lost))
        with suppress(StoreError):
            self._log_small_links()

    def _log_small_links(self) -> None:
        for link in self._links():
            if link.best_effort < 0:
                event(
                    "a link carries less than was reserved before",
                    level=WARNING,
                    link=link.name,
                    capacity=link.capacity,
                    reserved=link.reserved,
                )

    def booking(self, job: Job, available: float | None) -> Booking | None:
        """The demand of a job's RequestBandwidth; ``available`` is its machine ad's AvailBandwidth in Mb/s.

        Raises PathError, whose ``idle`` is true where the job goes back to idle.
        """
        with self._lock:
            self._go_over()
            if available:
                self._learn(job.host.lower(), available)
            topology, policy = self._topology, self._policy
            if topology is None or policy is None:
                return None
            if job.host.lower() not in self._hosts:
                self._hosts.add(job.host.lower())
                self._watch.bump()
            try:
                return job_booking(job, policy, topology)
            except AdmissionError as error:
                raise self.judged(error) from None

    def pattern(self, job: Job, ad: JobAd) -> PatternBookings:
        """The bookings of a job whose submit file asks for a pattern, as far as its nodes are there. Raises AdError,
        PathError, ApartError."""
        with self._lock:
            if ad.mpi_bandwidth is None or self._topology is None:
                return NONE
            try:
                return self._nodes.bookings(job, ad, self._topology, self._is_reserved, self.apart.check)
            except AdmissionError as error:
                raise self.judged(error) from None

    def _is_reserved(self, job_id: str, peer: str) -> bool:
        return any(self._flows[each].job == job_id for each in self._of_job.get(peer, ()))

    def tell_peers(self, made: Iterable[Reservation], job_id: str) -> None:
        """Let jobs at the other ends of what was reserved with a job have it, the flows to it its addresses, and those
        from and to it the reasons that follow from its ads."""
        for each in self.towards(job_id):
            if (now := as_of_now(each, self._find)) != each:
                self._keep(now)
                self._flows_changed(now)
        self.judge_again(job_id)
        for peer in sorted({end for each in made for end in (each.job, each.peer) if end not in (None, job_id)}):
            self._feed.change(peer, self.with_flows)

    def judge_again(self, job_id: str) -> None:
        """Find out anew of which flows from and to a job, which has changed, nothing passes; under the feed's lock."""
        for each in (flows := self.at(job_id)):
            self.apart.note(each)
        if flows:
            self._watch.bump()

    def access_rate(self, host: str) -> float | None:
        """The rate that a worker's link carries, in Mb/s: its capacity by topology or machine ads, and no more than the
        policy's speed of uplinks; None where neither has one."""
        topology, policy = self._topology, self._policy
        declared = None if topology is None else topology.access_rate(host)
        given = (declared, None if policy is None else policy.edge_speed)
        return min((rate for rate in given if rate is not None), default=None)

    def path_rate(self, sender: Job, node: str) -> float | None:
        """The rate that the path from a job to a node of the topology carries, in Mb/s; None where it is not known."""
        topology, policy, path = self._topology, self._policy, tuple[Channel, ...]()
        with suppress(PathError):
            if topology is not None and policy is not None:
                path = topology.path(sender.host, present_node(node, sender, policy, topology))
        return min((each.capacity / KILO for each in path), default=None)

    def judged(self, error: AdmissionError) -> AdmissionError:
        """The error with what the site chose for jobs that are refused, and why there is no room."""
        error = self._queueless.explained(error, self._policy, self._topology)
        error.idle = self._topology is not None and self._topology.spec.refused is Refused.IDLE
        return error

    def reserve(self, wish: Wish, actor: str, of_job: bool) -> Reservation:
        """Reserve a flow; ``of_job`` accepts only flows that a live job sends.

        Raises CapacityError, PathError, ApartError, NotFoundError, StoreError.
        """
        # One that is asked for again may be there.
        now = self._feed.clock.earliest()
        self._unanswered.look_again(now)
        with self._lock:
            self._go_over()
            topology, policy = self._topology, self._policy
            if topology is None or policy is None:
                raise PathError(NO_TOPOLOGY)
            source = end_of(wish.source, self._find, self._find(wish.source), policy, topology)
            if of_job and source.job is None:
                raise PathError(f"{wish.source} is no live job; a job may reserve what it sends itself")
            destination = end_of(wish.destination, self._find, source.job, policy, topology)
            if destination.job is not None and not destination.networks:
                raise PathError(f"job {destination.job.called} has no address of its own")
            if wish.duration is None and source.job is None and destination.job is None:
                raise PathError("a reservation between hosts needs a duration: no job ends it")
            self.apart.check(source.job, destination)
            self._check_new(source, destination, now)
            until = None if wish.duration is None else self._feed.clock.latest() + wish.duration
            booking = flow_booking(source, destination, wish.rate, until, topology, steady=wish.steady)
            has_line = self._own_changes.has_line(booking.job, of_job)
            with self._unanswered.made():
                made = self._store.reservations.admit(booking, time.time(), actor, has_line=has_line)
            self._keep(made)
            self._flows_changed(made)
            self._own_changes.count(made.job, has_line, of_job)
        if has_line:
            event("reserved", job=made.job, reservation=made.id, rate=made.rate, to=made.destination, actor=actor)
        return made

    def change(self, reservation_id: str, change: Change, actor: str, of_job: bool) -> Reservation:
        """Change rate, end or both. Raises CapacityError, PathError, NotFoundError, StoreError."""
        found: list[Reservation] = []

        def rebook(before: Reservation) -> tuple[int, float | None, bool, Demand]:
            check_owner(before, of_job)
            found.append(before)
            if (change.reschedule or change.steady is not None) and before.kind is ReservationKind.JOB:
                raise PathError("a job's RequestBandwidth ends with the job; only its rate can be changed")
            kbps = before.kbps if change.rate is None else requested_rate(change.rate)
            until = before.until
            if change.reschedule:
                until = None if change.duration is None else self._feed.clock.latest() + change.duration
                if until is None and before.job is None and before.peer is None:
                    raise PathError("a reservation between hosts needs a duration: no job ends it")
            steady = before.steady if change.steady is None else change.steady
            return kbps, until, steady, demand_of(before, self._topology, self._policy, self._find, kbps)

        with self._lock:
            self._go_over()
            known = self._flows.get(reservation_id)
            renews = of_job and is_renewal(known, change)
            has_line = not renews and self._own_changes.has_line(known.job if known else None, of_job)
            with self._unanswered.changed(found):
                made = self._store.reservations.change(
                    reservation_id, rebook, time.time(), actor, has_line=has_line, past=self._feed.clock.earliest()
                )
            if made is None:
                raise missing(reservation_id)
            made = as_of_now(made, self._find)
            if known is not None and replace(known, until=made.until) == made:
                # Neither links nor the job's flows are others: an application renews each of its flows all the time.
                self._flows[made.id] = made
                if not of_job:
                    event("reservation changed", job=made.job, reservation=made.id, rate=made.rate, actor=actor)
                return made
            if made.kind is ReservationKind.FLOW:
                self._keep(made)
                self._flows_changed(made)
            self._resize(made)
            self._watch.bump()
            if not renews:
                self._own_changes.count(made.job, has_line, of_job)
        if has_line:
            event("reservation changed", job=made.job, reservation=made.id, rate=made.rate, actor=actor)
        return made

    def release(self, reservation_id: str, actor: str, of_job: bool) -> Reservation:
        """Release a reservation. Raises NotFoundError, StoreError."""
        with self._lock:
            over = before = self._store.reservations.find(reservation_id, self._feed.clock.earliest())
            has_line = True
            if before is not None:
                check_owner(before, of_job)
                has_line = self._own_changes.has_line(before.job, of_job)
                with self._unanswered.changed([before]):
                    before = self._store.reservations.release(reservation_id, time.time(), actor, has_line=has_line)
            if (over := self._unanswered.forget(reservation_id) or over) is not None:
                self._over(over)
            if before is None:
                raise missing(reservation_id)
            self._own_changes.count(before.job, has_line, of_job)
        if has_line:
            event("reservation released", job=before.job, reservation=before.id, actor=actor)
        return before

    def ended(self, job_id: str) -> None:
        """Forget the reservations of a job that has ended; the store has ended them."""
        with self._lock:
            self._nodes.forget(job_id)
            for each in list(self._of_job.get(job_id, ())):
                self._drop(each)
            if self._topology is not None:
                self._watch.bump()

    def expire(self, now: float) -> int:
        """End reservations past their end, and release those without a queue any more; returns how many.

        Raises StoreError.
        """
        self._unanswered.look_again(now)
        with self._lock:
            self._go_over()
            self._end(self._flows.values(), now)
        # Its bandwidth is free for others only when its queue is gone, which the loop sees to meanwhile.
        swept = self._past.sweep(now)
        if swept:
            self._watch.bump()
        with self._lock:
            self._own_changes.write(time.time())
        return swept

    def _end(self, flows: Iterable[Reservation], now: float) -> None:
        """End those of the flows that are past their end; the caller holds the lock."""
        for each in [each for each in flows if each.until is not None and each.until <= now]:
            self._drop(each.id)
            self._past.add(each)
            self._watch.bump()

    def with_flows(self, job: Job, made: Iterable[Reservation] = ()) -> Job:
        """The job with the reserved flows from and to it, those that were ``made`` with it included; the caller holds
        the feed's lock, and has stored the job."""
        self._nodes.note(job)
        for each in made:
            self._keep(each)
        found = sorted((self._flows[each] for each in self._of_job.get(job.id, ())), key=lambda each: each.number)
        self.apart.note_shared(job.id, found)
        if self._topology is not None:
            # It may have a booking of its own.
            self._watch.bump()
        flows = flows_of(job.id, found)
        return job if flows == job.reserved else replace(job, reserved=flows)

    def find(self, reservation_id: str, owner: str | None = None) -> Reservation:
        """A valid reservation (of one of this user's jobs). Raises NotFoundError, StoreError."""
        found = self._store.reservations.find(reservation_id, self._feed.clock.earliest(), owner)
        if found is None:
            raise missing(reservation_id)
        return as_of_now(found, self._find)

    def page(self, job: str | None, cursor: str | None, limit: int, owner: str | None = None) -> ReservationPage:
        """A page of valid reservations (of this user's jobs). Raises NotFoundError, StoreError."""
        page = self._store.reservations.page(job, self._feed.clock.earliest(), cursor, limit, owner)
        return replace(page, reservations=tuple(as_of_now(each, self._find) for each in page.reservations))

    def links(self, after: str = "", wait: float = 0.0) -> Seen[LinkStatus]:
        """The capacity of each link, and how much of it is reserved, once that is another than at the version
        ``after``; after ``wait`` seconds in any case. Raises StoreError."""
        return self._watch.links(after, wait)

    def paths(self, host: str, after: str = "", wait: float = 0.0) -> Seen[PathStatus]:
        """The reserved flows that a host's live jobs send, in the same way. Raises StoreError."""
        return self._watch.paths(host, after, wait)

    def sent_by(self, job_id: str) -> tuple[Reservation, ...]:
        """The flows that a job has reserved and sends, in order of number."""
        return tuple(each for each in self.at(job_id) if each.job == job_id)

    def towards(self, job_id: str) -> tuple[Reservation, ...]:
        """The flows that others have reserved to a job, in order of number."""
        return tuple(each for each in self.at(job_id) if each.peer == job_id)

    def at(self, job_id: str) -> tuple[Reservation, ...]:
        """The reserved flows from and to a job, in order of number."""
        with self._lock:
            found = [self._flows[each] for each in self._of_job.get(job_id, ())]
        return tuple(sorted(found, key=lambda each: each.number))

    def state_changed(self) -> None:
        """Tell those who wait for paths that what a job has reserved may be enforced, or not any more."""
        self._watch.bump()

    def stop_waiting(self) -> None:
        """Answer all who wait for changes."""
        self._watch.close()

    def _flows_by_host(self) -> dict[str, list[Reservation]]:
        found: dict[str, list[Reservation]] = {}
        with self._lock:
            for each in self._flows.values():
                if each.job is not None and (job := self._find(each.job)) is not None:
                    found.setdefault(job.host.lower(), []).append(each)
        return found

    def _links(self) -> tuple[LinkStatus, ...]:
        topology = self._topology
        if topology is None:
            return ()
        capacity = ReservedCapacity(self._store.reservations.use())
        held = {key.partition(" ")[0].removeprefix(ACCESS) for key in capacity.reserved if key.startswith(ACCESS)}
        return tuple(
            LinkStatus(
                each.link,
                each.source,
                each.target,
                link.duplex.value,
                each.capacity / KILO,
                capacity.reserved.get(each.key, 0) / KILO,
                link.ends,
            )
            for link in topology.declared(held | set(self._hosts))
            for each in channels(link)
        )

    def _check_new(self, source: End, destination: End, now: float) -> None:
        """Check that a flow is not reserved yet (a packet takes one queue), and a job's limit. Raises PathError."""
        job = source.job
        if job is None:
            return
        # One that is over is shown nowhere, so nobody could change it.
        self._end([self._flows[each] for each in self._of_job.get(job.id, ())], now)
        sent = [each for of_job in self._of_job.get(job.id, ()) if (each := self._flows[of_job]).job == job.id]
        for each in sent:
            if takes_part_of(each, destination.networks):
                raise PathError(f"reservation {each.id} is for the same flow; change that one")
        if len(sent) >= MOST_FLOWS:
            raise PathError(f"job {job.called} has {len(sent)} reserved flows; at most {MOST_FLOWS} are accepted")

    def _learn(self, node: str, available: float) -> None:
        """Keep the speed of a worker's access link from its machine ad, if new; also while no topology needs it."""
        topology = self._topology
        if self._capacities.get(node) == available or not (topology is None or topology.learns_from(node)):
            return
        self.new_links[node] = available
        if topology is not None:  # something may be booked on it at once
            self._store.reservations.set_worker_capacity(node, self.new_links.pop(node))
            self._topology = topology.with_worker(node, available)
            self._watch.bump()
        self._capacities[node] = available

    def _keep(self, reservation: Reservation) -> None:
        self._flows[reservation.id] = reservation = as_of_now(reservation, self._find)
        self.apart.note(reservation)
        self._watch.bump()
        for job_id in filter(None, (reservation.job, reservation.peer)):
            self._of_job.setdefault(job_id, set()).add(reservation.id)

    def _take(self, stored: Reservation) -> None:
        stored = as_of_now(stored, self._find)
        if stored.kind is ReservationKind.FLOW and self._flows.get(stored.id) != stored:
            self._keep(stored)
            self._flows_changed(stored)
        self._resize(stored)
        self._watch.bump()

    def _over(self, reservation: Reservation) -> None:
        self._drop(reservation.id)
        self._resize(reservation, gone=True)
        self._watch.bump()

    def _drop(self, reservation_id: str) -> None:
        gone = self._flows.pop(reservation_id, None)
        self.apart.forget(reservation_id)
        if gone is None:
            return
        for job_id in filter(None, (gone.job, gone.peer)):
            if (ids := self._of_job.get(job_id)) is not None:
                ids.discard(reservation_id)
                if not ids:
                    del self._of_job[job_id]
        self._flows_changed(gone)

    def _flows_changed(self, reservation: Reservation) -> None:
        # The receiver has a flow first and loses it last: a worker with both ends makes no queue for one in between.
        ends = (reservation.job, reservation.peer)
        for job_id in filter(None, reversed(ends) if reservation.id in self._flows else ends):
            self._feed.change(job_id, self.with_flows)

    def _resize(self, reservation: Reservation, gone: bool = False) -> None:
        if reservation.kind is ReservationKind.JOB and reservation.job is not None:
            rate = None if gone else reservation.rate
            self._feed.change(reservation.job, lambda job: replace(job, bandwidth=rate))
