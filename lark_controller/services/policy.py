"""The policy in force, and its replacement: as a whole, in the store and on every switch, or not at all.

Called by REST threads.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from lark_common.errors import (
    BusyError,
    ChangedError,
    LarkError,
    Mistake,
    NotFoundError,
    PolicyError,
    StoreError,
    UnansweredError,
)
from lark_common.log import ERROR, event
from lark_common.turns import aside
from lark_controller.api.metrics import Metrics
from lark_controller.api.policy import Plan, PolicyHistory, PolicyVersion
from lark_controller.flows.live_addresses import with_live_addresses
from lark_controller.flows.wan_down import DownWays, UnseenWays, are_unseen
from lark_controller.jobs.job import Job
from lark_controller.policies import predicate
from lark_controller.policies.compare import Comparison, compare
from lark_controller.policies.decide import Decider, needed_attributes
from lark_controller.policies.file import load
from lark_controller.policies.model import Policy
from lark_controller.policies.reach import Deciding, Reach, reach
from lark_controller.qos.recount import Recount
from lark_controller.qos.topology import Topology
from lark_controller.qos.warnings import policy_warnings, queue_warnings, refuse_all, worker_warnings
from lark_controller.reconcile.calls import LoopCalls
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.services import policy_plan as planning
from lark_controller.services.decided_jobs import decided
from lark_controller.services.described_job import Names
from lark_controller.services.job_facts import refresh_facts, with_facts
from lark_controller.services.registration import Registration
from lark_controller.services.scitags import RegistryFile, check_names
from lark_controller.services.stored_policy import load_stored
from lark_controller.services.switch_names import away_switches
from lark_controller.store import Store
from lark_controller.switches.openflow.loop_thread import OpenFlow

MAX_CHECKS: Final = 2
# Users whose reach is shown, and the seconds for which it is not calculated again.
MAX_PARTIES: Final = 12
REACH_SECONDS: Final = 5.0
# The greatest number that the store can hold.
MAX_VERSION: Final = 2**63 - 1
_CHECKING: Final = f"{MAX_CHECKS} policies are being checked already; ask again"


@contextmanager
def _one_of(places: threading.Semaphore, busy: str) -> Iterator[None]:
    """Hold one of a few places. Raises BusyError where none is free."""
    if not places.acquire(blocking=False):
        raise BusyError(busy)
    try:
        yield
    finally:
        # The texts of others' policies are not kept.
        predicate.forget()
        places.release()


def _nothing(_: Policy) -> None:
    """Follow no policy."""


class PolicyInForce:
    """One policy at a time: ``version`` as it was put, ``policy`` as it was read; ``follow`` gets each that comes into
    force after the first. Thread-safe."""

    def __init__(
        self,
        version: PolicyVersion,
        policy: Policy,
        store: Store,
        openflow: OpenFlow,
        reconciler: Reconciler,
        registration: Registration,
        metrics: Metrics,
        scitags: RegistryFile,
        *,
        follow: Callable[[Policy], None] = _nothing,
    ) -> None:
        self.version = version
        self.policy = policy
        self._store = store
        self._openflow = openflow
        self._loop = LoopCalls(openflow)
        self._reconciler = reconciler
        self._registration = registration
        self._follow = follow
        self._metrics = metrics
        self._scitags = scitags
        self._lock = threading.Lock()
        # The store gave no answer to a policy: it may have another than this one.
        self._doubtful = False
        # It has another, which cannot be brought into force.
        self._behind = False
        # Every reader may request these, so they leave the threads of REST to others.
        self._plans = threading.Semaphore(1)
        self._checks = threading.Semaphore(MAX_CHECKS)
        self._reaches = threading.Semaphore(1)
        # The users' reach, the decider that it was found by, and when; of no policy yet.
        self._reach = Reach(), Decider(policy), -math.inf

    def mistakes(self, text: str) -> tuple[Mistake, ...]:
        """Every mistake in a policy text; empty where it is valid. Raises BusyError."""
        with _one_of(self._checks, _CHECKING):
            try:
                self._load(text)
            except PolicyError as error:
                return error.mistakes
            return ()

    def warnings(self, text: str) -> tuple[str, ...]:
        """The promises of a valid policy text that nothing keeps, as far as it shows. Raises PolicyError, BusyError."""
        with _one_of(self._checks, _CHECKING):
            return policy_warnings(self._load(text))

    def plan(self, text: str) -> Plan:
        """Plan the changes that a policy text would make; changes nothing. Raises PolicyError, BusyError."""
        # At its own pace, with rests.
        with _one_of(self._plans, "a policy is being planned already; ask again when it is done"), aside():
            new = self._load(text)
            pace = planning.Pace(planning.MAX_SECONDS)
            with self._lock:
                old = self.policy
                change = self._reconciler.policy_change
                jobs, switches, away, left_out, makers, known, closed = self._loop.call(
                    lambda: (
                        self._reconciler.jobs(),
                        change.placed_switches(new),
                        change.away(new),
                        away_switches(self._reconciler),
                        change.queue_makers(new),
                        self._reconciler.desired.policy,
                        self._reconciler.desired.closed,
                    )
                )
                live = [planning.left_out_of(each, jobs, known, closed, pace) for each in (old, new)]
                policies = [each.enforced() for each in live]
                before, after = self._loop.call(lambda: tuple(map(change.without_jobs, policies)))
            names = needed_attributes(new)
            if not self._covers(names):
                jobs = with_facts(self._store, self._wider(names), jobs, pace.keep)
            made = planning.plan(before, after, jobs, switches, pace, live[1], away)
            capacities = self._store.reservations.worker_capacities()
            hosts = {*capacities, *(job.host for job in jobs)}
            warnings = (
                *policy_warnings(new, refused=refuse_all(new, capacities, hosts)),
                *worker_warnings(new, capacities, hosts),
                *planning.left_out_switches(left_out),
                *made.warnings,
                *queue_warnings(new, makers),
                *self._recounted(new, capacities, jobs, pace.step),
            )
            # A switch that is there and declared has some of them twice.
            return replace(made, warnings=tuple(dict.fromkeys(warnings)))

    def _recounted(
        self, new: Policy, capacities: Mapping[str, float], jobs: Sequence[Job], step: Callable[[], None]
    ) -> Iterator[str]:
        """Warn of reserved flows that a policy has no path or no addresses for, and of links that carry less than would
        be reserved on them; ``jobs`` have the facts that it needs."""
        topology = None if new.topology is None else Topology(new.topology, capacities)
        live = {job.id: job for job in jobs}
        recount, flows = Recount(new, topology, live.get), self._store.reservations.flows(time.time())
        yield from recount.pathless(flows, step)
        yield from recount.unaddressed(flows, step)
        yield from recount.small_links(flows, jobs, step)

    def put(self, text: str, actor: str, instead_of: str | None = None, file_of: str | None = None) -> PolicyVersion:
        """Put a policy in force; with ``instead_of`` only in place of the one with that digest. ``file_of`` is the
        instance whose file it was read from.

        Raises PolicyError, RuleLimitError, UnsupportedError, ChangedError; then nothing has changed.
        """
        return self._counted(text, actor, instead_of, file_of=file_of)

    def restore(self, version: int, actor: str, instead_of: str | None = None) -> PolicyVersion:
        """Put the text of an earlier version in force again, as a new version; otherwise as :meth:`put`.

        Raises NotFoundError, too.
        """
        return self._counted(self.past(version).text, actor, instead_of, version)

    def history(self, cursor: str | None, limit: int) -> PolicyHistory:
        """A page of all versions, newest first. Raises NotFoundError for a cursor that is none."""
        return self._store.trail.policy_history(cursor, limit)

    def past(self, version: int) -> PolicyVersion:
        """One version, in force or not. Raises NotFoundError."""
        found = self._store.trail.policy(version) if 0 < version <= MAX_VERSION else None
        if found is None:
            raise NotFoundError(f"There is no version {version} of the policy.")
        return found

    def compare(self, old: int, new: int | None = None) -> tuple[PolicyVersion, PolicyVersion, Comparison]:
        """Two versions and how they differ; the second is the one in force by default.

        Raises NotFoundError, BusyError.
        """
        before, after = self.past(old), self.version if new is None else self.past(new)
        with _one_of(self._checks, _CHECKING):
            return before, after, compare(before.text, after.text)

    def reach(self) -> Reach:
        """The users with the most live jobs, and whom they reach; some seconds old. Raises BusyError."""
        with _one_of(self._reaches, "the reach of users is being calculated already; ask again"), aside():
            found, decider, at = self._reach
            if decider.policy is self.policy and time.monotonic() - at < REACH_SECONDS:
                return found
            if decider.policy is not self.policy:
                decider = Decider(self.policy)
            pace = planning.Pace(planning.MAX_SECONDS)
            desired = self._reconciler.desired
            jobs, cores, unseen = self._loop.call(
                lambda: (self._reconciler.jobs(), desired.cores(), desired.unseen_cores())
            )
            ways, unseen_ways = DownWays(decider.policy, cores), UnseenWays(decider.policy, cores, unseen)

            def why_down(each: Deciding) -> str:
                way = ways.of(each.decision.wan, each.network) if ways else None
                return "" if way is None else str(way)

            def why_unknown(each: Deciding) -> str:
                names = unseen_ways.of(each.decision.wan, each.network) if unseen_ways else ()
                return are_unseen(names) if names else ways.unsure(each.decision.wan, each.network)

            enforced = desired.policy
            if enforced.digest != decider.policy.digest:
                # Another one is coming into force.
                enforced = with_live_addresses(decider.policy, jobs, enforced)
            found = reach(decided(decider, enforced, jobs, pace), decider.policy, MAX_PARTIES, why_down, why_unknown)
            self._reach = found, decider, time.monotonic()
            return found

    def _counted(
        self,
        text: str,
        actor: str,
        instead_of: str | None,
        again: int | None = None,
        file_of: str | None = None,
    ) -> PolicyVersion:
        try:
            version = self._adopt(text, actor, instead_of, again, file_of)
        except LarkError:
            self._metrics.policy_changes.labels("refused").inc()
            raise
        self._metrics.policy_changes.labels("accepted").inc()
        return version

    def _adopt(
        self, text: str, actor: str, instead_of: str | None, again: int | None, file_of: str | None
    ) -> PolicyVersion:
        policy = self._load(text)
        # Most of it is done by the loop, or by another that has the lock.
        with aside(), self._lock:
            self._find_out()
            if instead_of not in (None, self.policy.digest):
                now = self.version
                raise ChangedError(f"version {now.version} by {now.actor} is in force now; look at it and plan again")
            if policy.digest == self.policy.digest and not self._behind:
                if file_of is not None:
                    self._store.trail.note_file(file_of, policy.digest)
                return self.version
            put = partial(self._store.trail.put_policy, text, policy.digest, actor, time.time(), again, file_of)
            return self._enforce(policy, put)

    def look_again(self) -> None:
        """Follow the store where it gave no answer to a policy, and has it. Raises LarkError."""
        if self._doubtful:
            with aside(), self._lock:
                self._find_out()

    def _find_out(self) -> None:
        if not self._doubtful:
            return
        # The server may still carry out what it has not answered.
        self._store.settle()
        newest = self._store.trail.latest_policy()
        if newest is not None and newest.version != self.version.version:
            there = newest
            try:
                self._enforce(self._checked(load_stored(there)), lambda: there)
            except StoreError:
                raise
            except LarkError as error:
                # Not a reason to refuse every other one, nor to calculate it again every few seconds.
                self._behind = True
                event(
                    "a stored policy has no force until another is put",
                    level=ERROR,
                    version=there.version,
                    error=str(error),
                )
        self._doubtful = False

    def _enforce(self, policy: Policy, put: Callable[[], PolicyVersion]) -> PolicyVersion:
        """Bring the switches to a policy once ``put`` has it in the store. The caller holds the lock."""
        names = needed_attributes(policy)
        if not self._covers(names):
            self._learn_names(names)
        self._openflow.call(self._reconciler.policy_change.prepare(policy)).result()
        try:
            version = put()
        except BaseException as error:
            self._doubtful = self._doubtful or isinstance(error, UnansweredError)
            self._loop.call(self._reconciler.pair.abandon)
            raise
        self._behind = False
        try:
            sent = self._openflow.call(self._reconciler.policy_change.adopt()).result()
        finally:
            # The store has it, and the switches follow it, whatever else went wrong.
            self.policy, self.version = policy, version
            self._registration.use(policy, names)
            self._follow(policy)
        event("policy in force", version=version.version, actor=version.actor, flows=sent)
        return version

    def _load(self, text: str) -> Policy:
        return self._checked(load(text))

    def _checked(self, policy: Policy) -> Policy:
        check_names(policy, self._scitags.registry)
        return policy

    def _covers(self, names: Names) -> bool:
        have = self._reconciler.decider.names
        return names[0] <= have[0] and names[1] <= have[1]

    def _wider(self, names: Names) -> Names:
        have = self._reconciler.decider.names
        return have[0] | names[0], have[1] | names[1]

    def _learn_names(self, names: Names) -> None:
        """Take the facts of live jobs for more attributes, out of the ads in the store."""
        wider = self._wider(names)
        self._registration.need(wider)

        refresh_facts(self._store, wider, self._registration.set_facts)
        # The loop has taken them all.
        self._loop.call(lambda: None)
