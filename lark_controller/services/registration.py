"""From ads to jobs: what a post registers, which addresses it gets, how it ends.

One lock keeps the store, the address blocks and the reconcile loop in the same order; nothing under it waits for a
switch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from lark_common.classads.ads import JobAd, MachineAd
from lark_common.errors import AddressError, CapacityError, LarkError, NotFoundError, UnansweredError
from lark_common.limits import Buckets
from lark_common.log import DEBUG, INFO, WARNING, event
from lark_common.runs import Address, AddressType, RunKey
from lark_controller.api.jobs import Registered, Renewed
from lark_controller.jobs.job import Facts, Job, Standing, with_address
from lark_controller.policies.model import Policy
from lark_controller.qos.reservation import Reservation
from lark_controller.services.described_job import (
    Names,
    check_networks,
    check_room,
    check_switch,
    described,
    names_digest,
    place_of,
)
from lark_controller.services.feed import Feed
from lark_controller.services.gathering import Gathering
from lark_controller.services.holdings import Holdings, addressing
from lark_controller.services.posting import EndRequest, PostRequest, Prepared, as_stored
from lark_controller.services.reservations import Reservations
from lark_controller.services.unanswered import DoubtError, Unanswered
from lark_controller.store import LEASE_EXPIRED, Outcome, Post, Store, StoredRun

# Seconds for which a job kept beyond its lease lives on, until the pool is looked at again.
KEPT_SECONDS = 60.0
# Lines of the log about a run that is posted again, of each run: at once, and a second afterwards. A job may have its
# hook post it in a loop.
LINES_AT_ONCE: Final = 16
LINES_A_SECOND: Final = 1 / 60
# Runs whose lines are counted; of more, those that were not posted for longest begin again.
_RUNS: Final = 16_384


class Registration:
    """Registers, renews and ends jobs; thread-safe.

    ``feed`` has the live jobs, and hands what changes to the reconcile loop. ``why_kept`` is why a job lives on
    though its lease is over (``""``: it does not). Leases end by the feed's clock.
    """

    def __init__(
        self,
        store: Store,
        lease_seconds: float,
        feed: Feed,
        reservations: Reservations,
        why_kept: Callable[[Job], str] = lambda _: "",
    ) -> None:
        self._store = store
        self._reservations = reservations
        self._lease = lease_seconds
        self._feed = feed
        self._live = feed.directory.by_id
        self._why_kept = why_kept
        self._lock = feed.lock
        self._gathering: Gathering[PostRequest | EndRequest, Registered | Job] = Gathering(self._carry_out)
        self._leases: dict[str, float] = {}
        self._policy: Policy | None = None
        self._names: Names = (frozenset(), frozenset())
        self._held = Holdings()
        self._unanswered = Unanswered(store, feed, self._find_out)
        self._lines = Buckets(LINES_A_SECOND, LINES_AT_ONCE, _RUNS)

    def use(
        self,
        policy: Policy,
        names: Names,
        jobs: Iterable[tuple[Job, Standing]] | None = None,
        held: Holdings | None = None,
    ) -> None:
        """Go over to a policy: its job networks and the attributes that its predicates need.

        ``jobs`` are live ones that are not known here yet, with how far each is: at start those of the store. With
        ``held`` the directory has these already, and this is what they hold by the policy.
        """
        with self._lock:
            if jobs is not None:
                self._feed.load(jobs)
            # Addresses of live jobs stay as they are where the policy gives addresses as before: to go through all
            # jobs would hold up every post.
            if held is not None:
                self._held = held
            elif jobs is not None or self._policy is None or addressing(self._policy) != addressing(policy):
                self._held = Holdings(policy, self._feed.live())
            self._policy, self._names = policy, names
            self._reservations.use(policy)

    def need(self, names: Names) -> None:
        """Add attributes that the facts of new jobs hold from now on."""
        with self._lock:
            self._names = (self._names[0] | names[0], self._names[1] | names[1])

    def set_facts(self, found: Mapping[str, Facts]) -> None:
        """Replace live jobs' facts, by id, with those taken anew for the attributes of :meth:`need`."""
        with self._lock:
            for job_id, taken in found.items():
                self._feed.change(job_id, partial(_with_facts, taken))

    def register(self, job_ad: JobAd, machine_ad: MachineAd, actor: str) -> Registered:
        """Register a run, or update it by a second post.

        Raises AdError, AddressError, StoreError; CapacityError or PathError where the network has no room for its
        RequestBandwidth.
        """
        run = RunKey(job_ad.global_job_id, job_ad.started, machine_ad.slot)
        keys: list[Hashable] = [run.id, ("slot", run.slot)]
        if job_ad.mpi_bandwidth is not None:
            # The nodes of a job one after the other: each books what is between it and those before.
            keys.append(("nodes", job_ad.global_job_id))
        keys += [address for address in (machine_ad.ipv4, machine_ad.ipv6) if address is not None]
        if machine_ad.port is not None:
            keys += [(where, machine_ad.port) for where in (machine_ad.machine.lower(), machine_ad.datapath)]
        post = PostRequest(job_ad, machine_ad, actor)
        try:
            registered = self._gathering.ask(post, keys)
        except DoubtError:
            self._unanswered.look_again()
            registered = self._gathering.ask(post, keys)
        assert isinstance(registered, Registered)
        return registered

    def end(self, job_id: str, actor: str, why: str, exit_ad: str = "") -> Job:
        """End a job. Idempotent. Raises NotFoundError for an id never seen, StoreError."""
        ended = self._gathering.ask(EndRequest(job_id, actor, why, exit_ad), (job_id,))
        assert isinstance(ended, Job)
        return ended

    def _carry_out(self, requests: Sequence[PostRequest | EndRequest]) -> list[Registered | Job | Exception]:
        """Posts and ends that concern different runs, slots, ports and addresses, in one transaction."""
        with self._lock:
            now = time.time()
            found: dict[int, Registered | Job | Exception] = {}
            steps: list[tuple[int, Prepared | EndRequest]] = []
            for place, each in enumerate(requests):
                try:
                    steps.append((place, each if isinstance(each, EndRequest) else self._prepared(each, now)))
                except Exception as error:
                    # An error of one is its own alone.
                    found[place] = error
            outcomes = self._outcomes([step for _, step in steps], now)
            # Memory and loop follow in the order of the store, ends first: a post may have an ended job's address.
            done = sorted(zip(steps, outcomes, strict=True), key=lambda each: isinstance(each[0][1], Prepared))
            for (place, step), outcome in done:
                try:
                    found[place] = self._taken_in(step, outcome, now)
                except Exception as error:
                    found[place] = error
            return [found[place] for place in range(len(requests))]

    def _prepared(self, post: PostRequest, now: float, given_up: Job | None = None) -> Prepared:
        """Check a post, and give it its addresses: those of a run that was ``given_up``, if it was. The caller holds
        the lock."""
        policy = self._policy
        if policy is None:
            raise AddressError("", "the controller has no policy yet")
        job = described(post.job_ad, post.machine_ad, self._names, now, self._feed.clock() + self._lease)
        check_networks(policy, job)
        check_switch(policy, job)
        self._unanswered.check(job)
        self._check_port(job)
        booking = self._reservations.booking(job, post.machine_ad.available_bandwidth)
        known = self._live.get(job.id)
        if known is None:
            check_room(self._feed.directory.hosts[job.host.lower()], job)
        assigned: tuple[Address, ...] = ()
        if job.address_type is AddressType.CONTROLLER and job.has_pool_address:
            job, assigned = self._addressed(policy, job, known, given_up)
        try:
            # Now with its addresses.
            self._unanswered.check(job)
            pattern = self._reservations.pattern(job, post.job_ad)
        except LarkError:
            self._free(assigned)
            raise
        # A run whose lease has ended it may have addresses already: the store is to tell before it gets others.
        return Prepared(
            post, policy, job, booking, assigned, unseen=bool(assigned) and given_up is None, pattern=pattern
        )

    def _outcomes(self, steps: Sequence[Prepared | EndRequest], now: float) -> Sequence[Outcome]:
        """Write posts and ends to the store. The caller holds the lock."""
        if not steps:
            return ()
        digest, links = names_digest(self._names), self._reservations.new_links
        requests = [as_stored(step, now, digest, links) for step in steps]
        try:
            outcomes = self._store.runs.carry_out(requests)
        except BaseException as error:
            for step in steps:
                self._give_back(step)
            if isinstance(error, UnansweredError):
                self._unanswered.note(step.job_id if isinstance(step, EndRequest) else step.job for step in steps)
            raise
        for each in requests:
            if isinstance(each, Post) and each.link is not None:
                links.pop(each.job.host.lower(), None)
        return outcomes

    def _taken_in(self, step: Prepared | EndRequest, outcome: Outcome, now: float) -> Registered | Job:
        """Bring memory and the loop to what the store has now. The caller holds the lock."""
        if isinstance(outcome, Exception):
            self._give_back(step)
            raise self._refusal(step, outcome)
        if isinstance(step, EndRequest):
            assert not isinstance(outcome, StoredRun)
            return self._over(step, outcome)
        if isinstance(outcome, Job):
            self._give_back(step)
            again = self._prepared(step.post, now, outcome)
            return self._taken_in(again, self._outcomes([again], now)[0], now)
        assert outcome is not None
        for old in outcome.superseded:
            self._held.release(old)
            self._feed.remove(old.id)
            self._reservations.ended(old.id)
        job, machine_ad = outcome.job, step.post.machine_ad
        if machine_ad.lease_over and job.live and job.ipv4 is not None:
            actor = step.post.actor
            # The post itself is stored, and memory has nothing of it yet.
            with self._unanswered.noted(job):
                job = self._store.runs.set_address(job.id, None, job.ipv6, (None, job.ipv6_block), actor, now).job
        if job.live:
            job = self._hold(job, outcome.reserved, self._live.get(job.id))
        else:
            self._give_back(step)
        often = not outcome.created and self._lines.take(job.id)
        event(
            "job registered" if outcome.created else "job posted again",
            level=DEBUG if often else INFO,
            job=job.id,
            global_job_id=job.run.global_job_id,
            owner=job.owner,
            host=job.host,
            addresses=",".join(map(str, job.addresses)) or None,
            state=job.state.value,
        )
        return Registered(job, outcome.created)

    def _hold(self, job: Job, reserved: tuple[Reservation, ...], known: Job | None) -> Job:
        """Take in a live job, with what was reserved with it, in the place of the one that is ``known``."""
        if known is not None:
            self._held.release(known)
        job = self._reservations.with_flows(job, reserved)
        self._held.hold(job)
        self._feed.put(job)
        self._reservations.tell_peers(reserved, job.id)
        return job

    def _refusal(self, step: Prepared | EndRequest, error: Exception) -> Exception:
        if isinstance(step, Prepared) and isinstance(error, CapacityError):
            job = step.job
            event("job refused", job=job.id, owner=job.owner, host=job.host, reason=str(error))
            return self._reservations.judged(error)
        return error

    def _give_back(self, step: Prepared | EndRequest) -> None:
        self._free(step.assigned if isinstance(step, Prepared) else ())

    def _free(self, assigned: Iterable[Address]) -> None:
        for address in assigned:
            self._held.blocks.release(address)

    def _over(self, end: EndRequest, job: Job | None) -> Job:
        """Take an ended job out of memory and the loop. The caller holds the lock. Raises NotFoundError."""
        if job is None:
            raise NotFoundError(f"no job has the id {end.job_id}")
        live = self._feed.remove(end.job_id)
        if live is not None:
            self._held.release(live)
            self._reservations.ended(end.job_id)
            event("job ended", job=end.job_id, why=end.why)
        self._leases.pop(end.job_id, None)
        return job

    def renew(self, job_id: str) -> Job:
        """Renew a live job's lease; it is written to the store with others. Raises NotFoundError."""
        with self._lock:
            job = self._live.get(job_id)
            if job is None:
                raise NotFoundError(f"no live job has the id {job_id}; post its ads again")
            # Under the lock: what is renewed by a clock of before is written before leases begin anew.
            self._leases[job_id] = until = self._feed.clock() + self._lease
        return replace(job, lease_until=until)

    def refused(self, job: Job) -> bool:
        """Refuse a job that a switch or a limit refused: its addresses are free again.

        False where it was posted anew since then, so that the refusal is of a post that is history.
        """
        with self._lock:
            held = self._live.get(job.id)
            if held is None:
                # It has ended meanwhile, and another job may have its addresses.
                return True
            if held.lease_until != job.lease_until:
                return False
            self._held.release(held)
            self._feed.remove(job.id)
            self._reservations.ended(job.id)
            return True

    def renew_all(self, host: str, job_ids: Iterable[str]) -> Renewed:
        """As :meth:`renew`, of jobs on one host."""
        missing: list[str] = []
        name = host.lower()
        with self._lock:
            until = self._feed.clock() + self._lease
            for job_id in job_ids:
                job = self._live.get(job_id)
                if job is None or job.host.lower() != name:
                    missing.append(job_id)
                else:
                    self._leases[job_id] = until
        return Renewed(until, tuple(missing))

    def write_leases(self) -> None:
        """Write the leases that were renewed since the last call to the store."""
        with self._lock:
            leases, self._leases = self._leases, {}
            renewed = [(job.number, until) for job_id, until in leases.items() if (job := self._live.get(job_id))]
        try:
            self._store.runs.renew_many(renewed)
        except BaseException:
            with self._lock:
                self._leases = {**leases, **self._leases}
            raise

    def expire(self, now: float) -> int:
        """End the jobs whose lease is over, but for those that are kept; returns how many ended.

        None ends once the clock was set: leases that were renewed by a clock that was behind only look over.
        """
        self.write_leases()
        count = 0
        for job in self._store.runs.expired(now):
            if self._why_kept(job):
                # Until it is known to have ended, its address is not to be taken either.
                self._store.runs.renew(job.id, now + min(self._lease, KEPT_SECONDS))
                continue
            with self._lock:
                if self._feed.clock.was_set:
                    return count
                # A renewal, or the same run's ads once more, may have come since the store was asked.
                held = self._store.runs.find(job.id)
                if job.id not in self._leases and held is not None and held.live and held.lease_until < now:
                    # Once it is over in the store, nobody asks for it again.
                    with self._unanswered.noted(job.id):
                        ended = self._store.runs.end(job.id, time.time(), LEASE_EXPIRED, "", "lark")
                    self._over(EndRequest(job.id, "lark", LEASE_EXPIRED), ended)
                    count += 1
        return count

    def look_again(self) -> None:
        """Bring memory to what the store has of the runs about which it gave no answer. Raises StoreError."""
        self._unanswered.look_again()

    def _find_out(self, job_id: str, stored: Job | None, flows: Iterable[Reservation]) -> None:
        """Take a run as the store has it. The caller holds the lock."""
        known = self._live.get(job_id)
        if stored is not None and stored.live:
            # Its row may have facts for a policy before; those of a post that is the first are new.
            self._hold(stored if known is None else replace(stored, facts=known.facts), tuple(flows), known)
        elif known is not None:
            self._over(EndRequest(job_id, "lark", "" if stored is None else stored.reason), stored or known)

    def live(self) -> list[Job]:
        """The live jobs, a copy."""
        return self._feed.live()

    def quarantine(self, job_id: str, reason: str, actor: str) -> Job | None:
        """Quarantine a live job: nothing of it passes. None where it does not live any more. Raises StoreError."""
        with self._lock:
            with self._unanswered.noted(job_id):
                job = self._store.runs.quarantine(job_id, reason, actor, time.time())
            return self._changed(job, "job quarantined", WARNING, reason, actor)

    def lift(self, job_id: str, reason: str, actor: str, *, vouched: bool = False) -> Job | None:
        """End a live job's quarantine; None where it does not live any more. Raises StoreError.

        ``vouched``: by an operator; readings of the pool count no more against this run. Raises StateError then
        where the job is in no quarantine.
        """
        with self._lock:
            with self._unanswered.noted(job_id):
                job = self._store.runs.lift(job_id, reason, actor, time.time(), vouched=vouched)
            return self._changed(job, "job released from quarantine", INFO, reason, actor)

    def _changed(self, stored: Job | None, what: str, level: int, reason: str, actor: str) -> Job | None:
        known = None if stored is None else self._live.get(stored.id)
        if stored is None or known is None:
            return None
        changed = (stored.quarantine, stored.vouched) != (known.quarantine, known.vouched)
        job = replace(known, quarantine=stored.quarantine, vouched=stored.vouched)
        if changed:
            self._feed.put(job)
            self._reservations.judge_again(job.id)
            event(what, level=level, job=job.id, reason=reason, actor=actor)
        return job

    def _addressed(
        self, policy: Policy, job: Job, known: Job | None, given_up: Job | None
    ) -> tuple[Job, tuple[Address, ...]]:
        """A job with the addresses that it has already, or new ones from its group's and user's blocks."""
        had = given_up if known is None else known
        if had is not None and had.addresses:
            job = replace(job, ipv4=had.ipv4, ipv6=had.ipv6, ipv4_block=had.ipv4_block, ipv6_block=had.ipv6_block)
            if known is None:
                self._check_free(policy, job)
            return job, ()
        versions = sorted({network.version for network in policy.job_networks})
        if not versions:
            raise AddressError(
                "LarkAddressType", "controller: the policy declares no job networks (networks: jobs) to assign from"
            )
        assigned: list[Address] = []
        try:
            for version in versions:
                address, block = self._held.blocks.assign(version, job.group, job.owner)
                assigned.append(address)
                job = with_address(job, address, block)
        except AddressError:
            self._free(assigned)
            raise
        return job, tuple(assigned)

    def _check_free(self, policy: Policy, job: Job) -> None:
        check_networks(policy, job)
        for address in job.addresses:
            if self._held.blocks.holds(address):
                raise AddressError(
                    f"LarkInnerAddressIPv{address.version}",
                    f"{address} was given to another job after this run's lease had expired",
                )

    def _check_port(self, job: Job) -> None:
        held = None if job.port is None else self._held.at(place_of(job), job.port)
        holder = None if held is None else self._live.get(held)
        if holder is None or holder.id == job.id:
            return
        # The store ends an older run on the same slot. Another host's post may name any slot, and ends nothing.
        if (holder.host, holder.run.slot) != (job.host, job.run.slot):
            raise AddressError(
                "LarkExternalInterface",
                f"port {job.port} of {job.host} belongs to live job {holder.called} on {holder.run.slot}",
                holder.id,
            )


def _with_facts(taken: Facts, job: Job) -> Job:
    return replace(job, facts=taken)
