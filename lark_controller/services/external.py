"""External addresses: from a wish to an address in the network, and the addresses of live jobs in memory.

The feed's lock keeps store, memory and loop in one order in this process; that no address is given twice, and no limit
exceeded, is the store's doing, for all processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from lark_common.classads.ads import JobAd
from lark_common.errors import (
    AdError,
    ExternalAddressError,
    NotFoundError,
    PoolExhaustedError,
    StateError,
    StoreError,
    UnansweredError,
)
from lark_common.limits import Buckets
from lark_common.log import WARNING, event
from lark_common.runs import Network
from lark_common.turns import by_portions
from lark_controller.api.external import (
    ExternalPage,
    ExternalStanding,
    ExternalState,
    ExternalWish,
    GatewayWord,
    Given,
    TranslationChanges,
)
from lark_controller.jobs.external import Association, PoolState, listed, refused, renamed, size
from lark_controller.jobs.external_names import WANTED, label
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import decide
from lark_controller.policies.external import leaves_by, pool_of, rule_of
from lark_controller.policies.external_spec import ExternalSpec, WithoutExternal
from lark_controller.policies.model import Policy
from lark_controller.services.external_rules import (
    awaits_lease,
    full_name,
    no_pool,
    rule_for,
    why_nameless,
    why_not,
    why_over,
)
from lark_controller.services.external_standing import WhyUnreached, nothing_known, standing_of
from lark_controller.services.external_translations import Translations
from lark_controller.services.feed import Feed
from lark_controller.store import Store
from lark_controller.store.cursors import cursor_for, number_in
from lark_controller.store.external_addresses import RESERVATION_OVER, Claim

PORTS, FAMILY, NAME = "ExternalPorts", "ExternalFamily", "ExternalName"
# The words of ExternalFamily with the families that they ask for; None is the one that the policy gives.
FAMILIES: Final[Mapping[str | None, tuple[int | None, ...]]] = MappingProxyType(
    {None: (None,), "ipv4": (4,), "ipv6": (6,), "both": (4, 6)}
)
# Seconds in which one refusal of a job is written.
REFUSED_EVERY = 60.0
# Addresses that one job is given, one after the other: at once, and a second afterwards. Each is a row, two lines of
# the audit trail and a change of switches, and a job may ask and release in a loop.
GIVEN_AT_ONCE: Final = 60
GIVEN_A_SECOND: Final = 1 / 60


class ExternalAddresses:
    """External addresses of this controller's jobs; thread-safe. They are part of the live jobs in ``feed``."""

    def __init__(
        self,
        store: Store,
        feed: Feed,
        translations: Translations | None = None,
        why_unreached: WhyUnreached = nothing_known,
    ) -> None:
        self._why_unreached = why_unreached
        self._store = store.external_addresses
        self._reservations = store.reservations
        self._trail = store.trail
        self._feed = feed
        self._lock = feed.lock
        self._policy: Policy | None = None
        # The pools by whose names associations were called last.
        self._pools: Mapping[str, tuple[Network, ...]] | None = None
        # Those of live jobs that are not over, by the job's id and the family.
        self._of_job: dict[tuple[str, int], Association] = {}
        # Those that the policy in force gave when they were compared, with the job as it was then: while both are the
        # same nobody waits for another comparison.
        self._compared: dict[tuple[str, int], tuple[Job, Association]] = {}
        # No association is past its end before this time.
        self._soonest = -math.inf
        # The pools that had no address left, as they were then, until one is free: whoever asks again and again does
        # not have all of them looked at.
        self._exhausted: dict[str, tuple[Network, ...]] = {}
        # When a refusal of a job's was written last: a job may ask in a loop.
        self._refused: dict[str, float] = {}
        self._given = Buckets(GIVEN_A_SECOND, GIVEN_AT_ONCE)
        # The ids of jobs of whose addresses the store gave no answer.
        self._doubtful: set[str] = set()
        self._settle = store.settle
        self._translations = translations or Translations()
        feed.completed_by(self.with_external)
        feed.followed_by(self._translations.note)

    def load(self) -> None:
        """Take over what the store has, before live jobs are handed to the loop. Raises StoreError."""
        now = self._feed.clock.earliest()
        self._store.expire(time.time(), past=now)
        with self._lock:
            self._of_job = {each.place: each for each in self._store.held() if each.live(now)}
            for job_id in {each.job for each in self._of_job.values()}:
                self._feed.tell(job_id)

    def use(self, policy: Policy) -> None:
        """Go over to a policy. What it gives its job no more ends; where the database is away, with the next call of
        :meth:`expire`."""
        with self._lock:
            self._policy = policy
            self._compared.clear()
            try:
                self._release_refused()
            except StoreError as error:
                event("external addresses are compared with the policy later", level=WARNING, error=str(error))

    def with_external(self, job: Job) -> Job:
        """The job with its external addresses; the caller holds the lock."""
        if not self._of_job and not job.external:
            return job
        has = (self._of_job.get((job.id, family)) for family in (4, 6))
        found = tuple(each.external for each in has if each is not None and not _reservation_over(job, each))
        return job if found == job.external else replace(job, external=found)

    def associate(self, wish: ExternalWish, actor: str) -> Given:
        """Give a live job an external address; it keeps the one that it has. Raises ExternalAddressError, StateError,
        NotFoundError, StoreError."""
        now, past = time.time(), self._feed.clock.earliest()
        with self._lock:
            job = self._feed.directory.by_id.get(wish.job)
            if job is None:
                raise NotFoundError(f"no live job has the id {wish.job}")
            family = wish.family or self._family(job)
            try:
                if (has := self._kept(job, family, past)) is not None:
                    self._check_same(job, has, wish)
                    return Given(has, False)
                self._forget_past(past)
                claim = self._claim(job, replace(wish, family=family), past)
                self._check_rate(job)
                made = self._made(claim, now, past, actor)
            except ExternalAddressError as error:
                error.idle = self._without() is WithoutExternal.IDLE
                self.refused(job.id, actor, str(error))
                raise
            except StateError as error:
                self.refused(job.id, actor, str(error))
                raise
            self._of_job[made.place] = made
            self._soonest = min(self._soonest, made.end)
            self._feed.tell(job.id)
        event("external address", job=job.id, owner=job.owner, address=made.address, pool=made.pool, actor=actor)
        return Given(made, made.created == now)

    def _check_rate(self, job: Job) -> None:
        """Raise ExternalAddressError where a job was given too many addresses of late."""
        if left := self._given.until(job.id):
            raise ExternalAddressError(
                f"job {job.called} has asked and released too often; another address in {math.ceil(left)} s"
            )

    def _made(self, claim: Claim, now: float, past: float, actor: str) -> Association:
        """Give an address in the store. The caller holds the lock. Raises ExternalAddressError, NotFoundError,
        StoreError."""
        exhausted = claim.own is None and self._exhausted.get(claim.pool) == claim.networks
        try:
            made = self._store.associate(replace(claim, exhausted=exhausted), now, actor, past=past)
        except PoolExhaustedError:
            self._exhausted[claim.pool] = claim.networks
            raise
        except UnansweredError:
            self._doubtful.add(claim.job.id)
            raise
        self._exhausted.pop(claim.pool, None)
        if made.created == now:
            self._given.take(made.job)
        return made

    def _kept(self, job: Job, family: int, now: float) -> Association | None:
        """The address that a job has, as the store has it, with the state of its name; None where it is over, or the
        policy gives it no more. The caller holds the lock. Raises StoreError."""
        has = self._of_job.get((job.id, family))
        if has is None or not has.live(now):
            return None
        self._follow_policy(job, has)
        found = self._store.find(has.id)
        if found is None or not found.live(now):
            self._forget(has if found is None else found)
            return None
        return found

    def _reservation(self, job: Job, wish: ExternalWish, now: float) -> int | None:
        """The number of the job's reservation with which an address is to end. Raises ExternalAddressError,
        StoreError."""
        if not wish.reservation:
            return None
        found = self._reservations.find(wish.reservation, now)
        if found is None or all(each.number != found.number for each in job.reserved):
            raise ExternalAddressError(f"no reserved flow of job {job.called} has the id {wish.reservation}")
        return found.number

    def _check_same(self, job: Job, has: Association, wish: ExternalWish) -> None:
        """Raise StateError where a job has an address on other terms than it asks for, and ExternalAddressError where
        the policy gives what it asks for no more."""
        if wish.openings and wish.openings != has.openings:
            opened = ", ".join(map(str, has.openings))
            raise StateError(f"job {job.called} has {has.address} with {opened}; release that first")
        if wish.name and wish.name != has.name.partition(".")[0]:
            called = has.name or "without a name"
            raise StateError(f"job {job.called} has {has.address}, {called}; release that first")
        if wish.reservation and self._reservation(job, wish, self._feed.clock.earliest()) != has.reservation:
            raise StateError(f"job {job.called} has {has.address}, not with that reservation; release that first")
        if wish.name and has.name_state not in WANTED:
            full_name(rule_for(self._policy, job, has.address.version)[2], wish.name, job)
            raise StateError(f"the policy has taken the name {has.name} of {has.address}; release that first")

    def asked_in_ad(self, job: Job, job_ad: JobAd, actor: str) -> None:
        """Give a job the external addresses that its ad asks for, once.

        Raises ExternalAddressError where the site lets it not run without, AdError, StoreError.
        """
        if not job_ad.external:
            return
        try:
            openings = listed(job_ad.external_ports or "")
        except ValueError as error:
            raise AdError(PORTS, str(error)) from None
        word = None if job_ad.external_family is None else job_ad.external_family.lower()
        if word not in FAMILIES:
            raise AdError(FAMILY, f"{word!a:.60} is no family; accepted: ipv4, ipv6, both")
        try:
            name = label(job_ad.external_name) if job_ad.external_name else ""
        except ValueError as error:
            raise AdError(NAME, str(error)) from None
        # A name leads to one address: of two to the IPv4 one.
        for number, each in enumerate(FAMILIES[word]):
            self._asked(job, ExternalWish(job.id, openings, family=each, name="" if number else name), actor)

    def _asked(self, job: Job, wish: ExternalWish, actor: str) -> None:
        """As :meth:`asked_in_ad`, of one family."""
        family = wish.family or self._family(job)
        if family == 4 and awaits_lease(job):
            # The post with its lease asks again.
            return
        if (job.id, family) in self._of_job or self._store.had(job.id, family):
            return
        try:
            self.associate(replace(wish, family=family), actor)
        except ExternalAddressError:
            if self._without() is not WithoutExternal.RUN:
                raise
        except (NotFoundError, StateError):
            # It has ended meanwhile, or a request of its user's was quicker.
            return

    def refused(self, job_id: str, actor: str, reason: str, foreign: bool = False) -> None:
        """Write a refusal into the audit trail and the log, once in a while for each job, or each actor who asks for
        ``foreign`` ones. Raises StoreError."""
        now, key = time.time(), f"actor {actor}" if foreign else job_id
        with self._lock:
            if now - self._refused.get(key, -REFUSED_EVERY) < REFUSED_EVERY:
                return
            self._refused[key] = now
        event("no external address", level=WARNING, job=job_id, actor=actor, reason=reason)
        self._trail.record(now, actor, "no external address", job_id, reason)

    def release(self, association_id: str, actor: str, why: str = "released") -> Association:
        """End an association; one that is over stays as it is. Raises NotFoundError, StoreError."""
        with self._lock:
            try:
                found = self._store.release(association_id, time.time(), why, actor)
            except UnansweredError:
                self._doubtful |= {each.job for each in self._of_job.values() if each.id == association_id}
                raise
            if found is None:
                raise _missing(association_id)
            self._forget(found)
        return found

    def find(self, association_id: str) -> Association:
        """An association, also one that is over. Raises NotFoundError, StoreError."""
        found = self._store.find(association_id)
        if found is None:
            raise _missing(association_id)
        return found

    def page(
        self, job: str | None = None, owner: str | None = None, cursor: str | None = None, limit: int = 1000
    ) -> ExternalPage:
        """A page of the associations that are not over. Raises NotFoundError, StoreError."""
        after = 0 if cursor is None else number_in(cursor)
        found, now = self._store.held(after, limit, job, owner), self._feed.clock.earliest()
        jobs = self._feed.directory.by_id
        with self._lock:
            known = ((each, jobs.get(each.job)) for each in (self._of_job.get(one.place) for one in found) if each)
            live = {each.id for each, job in known if each.live(now) and job and not _reservation_over(job, each)}
        more = cursor_for(found[-1].number) if len(found) == limit else None
        return ExternalPage(tuple(each for each in found if each.id in live), more)

    def standing(self, association: Association) -> ExternalStanding:
        """The state of an association in the network."""
        directory = self._feed.directory
        job = directory.by_id.get(association.job)
        if job is None or not association.live(self._feed.clock.earliest()):
            return ExternalStanding(ExternalState.OVER, association.why)
        if _reservation_over(job, association):
            return ExternalStanding(ExternalState.OVER, RESERVATION_OVER)
        return standing_of(directory, job, association, self._why_unreached)

    def translations(self, revision: str, wait: float) -> TranslationChanges:
        """The changes of translations after a revision, once there are any; after ``wait`` seconds in any case."""
        return self._translations.since(revision, wait)

    def translated(self, word: GatewayWord) -> None:
        """A gateway confirms what it translates."""
        self._translations.confirm(word)

    def stop_waiting(self) -> None:
        """Answer all who wait for changes: the controller stops."""
        self._translations.close()

    @property
    def changes(self) -> int:
        """A number that grows with each change of the addresses that live jobs have, and of whether they are closed."""
        return self._feed.directory.external_changes

    def named(self) -> list[Association]:
        """Those of live jobs that have a name."""
        with self._lock:
            return [each for each in self._of_job.values() if each.name]

    def pools(self) -> tuple[PoolState, ...]:
        """The state of each pool of the policy. Raises StoreError."""
        spec, now = self._spec, self._feed.clock.earliest()
        places = self._store.places(now) if spec is not None else []
        states = []
        for name, networks in () if spec is None else spec.pools.items():
            theirs = [lives for address, lives in by_portions(places) if any(address in each for each in networks)]
            states.append(PoolState(name, size(networks), sum(theirs), len(theirs) - sum(theirs)))
        return tuple(states)

    def expire(self, now: float) -> int:
        """End what is past its end, whose job has ended, or what the policy gives no more; returns how many. Raises
        StoreError."""
        self._translations.forget_away()
        self._find_out(now)
        with self._lock:
            self._forget_past(now)
            self._exhausted.clear()
            self._refused = {job: at for job, at in self._refused.items() if now - at < REFUSED_EVERY}
            gone = [place for place in self._of_job if place[0] not in self._feed.directory.by_id]
            for place in gone:
                del self._of_job[place]
            return self._store.expire(time.time(), past=now) + self._release_refused()

    def _find_out(self, now: float) -> None:
        """Take what the store has of the jobs about whose addresses it gave no answer. Raises StoreError."""
        if not self._doubtful:
            return
        with self._lock:
            doubtful, self._doubtful = self._doubtful, set()
        try:
            # The server may still carry out what it has not answered.
            self._settle()
            for job_id in doubtful:
                with self._lock:
                    there = [each for each in self._store.held(job=job_id) if each.live(now)]
                    for family in (4, 6):
                        self._of_job.pop((job_id, family), None)
                    if job_id in self._feed.directory.by_id:
                        self._of_job.update((each.place, each) for each in there)
                        self._soonest = min([self._soonest, *(each.end for each in there)])
                        self._feed.tell(job_id)
        except StoreError:
            with self._lock:
                self._doubtful |= doubtful
            raise

    @property
    def _spec(self) -> ExternalSpec | None:
        return None if self._policy is None else self._policy.external

    def _without(self) -> WithoutExternal:
        return WithoutExternal.HOLD if self._spec is None else self._spec.refused

    def _family(self, job: Job) -> int:
        """The family that a job gets which names none: IPv4 where a rule gives that, else IPv6 where one does."""
        rule = None if self._policy is None else rule_of(self._policy, job.facts)
        return 4 if rule is None else rule.family

    def _claim(self, job: Job, wish: ExternalWish, now: float) -> Claim:
        """The terms of what a job asks for. Raises ExternalAddressError."""
        policy, spec, rule = rule_for(self._policy, job, wish.family or 4)
        wanted = wish.openings or rule.openings
        if closed := refused(wanted, rule.openings):
            wanted_words, open_words = (", ".join(map(str, each)) for each in (closed, rule.openings))
            raise ExternalAddressError(f"{wanted_words}: the policy opens {open_words} (line {rule.line})")
        if reason := why_not(policy, job, rule.family):
            raise ExternalAddressError(reason)
        decision = decide(job.facts, policy)
        if (pool := pool_of(policy, rule, decision)) is None:
            raise ExternalAddressError(no_pool(rule, leaves_by(policy, decision)))
        seconds = min((each for each in (wish.seconds, rule.seconds) if each is not None), default=None)
        own = job.ipv6 if rule.family == 6 else None
        return Claim(
            job,
            pool,
            spec.pools.get(pool, ()),
            wanted,
            rule.per_user,
            rule.per_group,
            None if seconds is None else self._feed.clock.latest() + seconds,
            # The address stays the job's, and then goes to whoever the site gives it.
            spec.quarantine if own is None else 0.0,
            own,
            full_name(rule, wish.name, job) if wish.name else None,
            self._reservation(job, wish, now),
        )

    def _release_refused(self) -> int:
        """End what the policy gives its job no more; returns how many. The caller holds the lock. Raises StoreError."""
        self._rename()
        count, compared = 0, self._compared
        self._compared = {}
        for place, each in list(self._of_job.items()):
            job = self._feed.directory.by_id.get(each.job)
            if job is None:
                continue
            seen = compared.get(place)
            if seen is None or seen[0] is not job or seen[1] is not each:
                count += self._follow_policy(job, each)
            if self._of_job.get(place) is each:
                self._compared[place] = job, each
        return count

    def _rename(self) -> None:
        """Call associations by the pools that they are in now. The caller holds the lock. Raises StoreError."""
        if (spec := self._spec) is not None and self._pools != spec.pools:
            self._store.name_pools(spec.pools)
            self._of_job |= renamed(self._of_job, spec.pools)
            self._pools = spec.pools

    def _follow_policy(self, job: Job, has: Association) -> bool:
        """End what the policy gives a job no more, the address or its name alone; returns whether that is the address.
        The caller holds the lock. Raises StoreError."""
        if _reservation_over(job, has):
            self.release(has.id, "lark", RESERVATION_OVER)
            return True
        if reason := why_over(self._policy, job, has.external):
            self.release(has.id, "policy", reason)
            return True
        if reason := why_nameless(self._policy, job, has.external):
            over = self._store.drop_name(has.id, time.time(), reason)
            if over is not None:
                self._of_job[over.place] = over
                self._feed.tell(job.id)
        return False

    def _forget_past(self, now: float) -> None:
        """Take what is past its end out of the network, before the store may give it to the next job."""
        if now < self._soonest:
            return
        for each in [each for each in self._of_job.values() if not each.live(now)]:
            self._forget(each)
        self._soonest = min((each.end for each in self._of_job.values()), default=math.inf)

    def _forget(self, over: Association) -> None:
        """Take an association out of the network. The caller holds the lock."""
        has = self._of_job.get(over.place)
        if has is not None and has.id == over.id:
            del self._of_job[over.place]
            self._feed.tell(over.job)
            event("external address over", job=over.job, address=over.address, why=over.why)


def _reservation_over(job: Job, has: Association) -> bool:
    """True where an address was to end with a reservation, which the job has no more."""
    return has.reservation is not None and all(each.number != has.reservation for each in job.reserved)


def _missing(association_id: str) -> NotFoundError:
    return NotFoundError(f"no external address was given under the id {association_id}")
