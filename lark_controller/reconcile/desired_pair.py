"""The pool in force and, while a policy changes, the one that comes. For the reconcile loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from lark_common.errors import RuleLimitError, UnsupportedError
from lark_controller.flows.desired import Pool
from lark_controller.flows.model import Changes
from lark_controller.flows.placement import Placed, Switch
from lark_controller.flows.worker_rules import unsupported
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.model import Decision, Policy
from lark_controller.qos.worker_queues import Claim

# By pool (0: in force, 1: coming), then by datapath.
PoolChanges = dict[int, dict[int, Changes]]
# Jobs that a new policy is asked about before the loop turns to others.
PORTION = 200


class Pools:
    """One pool, or two while the switches go over from one policy to the next one by one (``moved``)."""

    def __init__(self, policy: Policy) -> None:
        self.pool = Pool(policy)
        self.decider = Decider(policy)
        self.moved: set[int] = set()
        self._coming: tuple[Pool, Decider] | None = None

    def all(self) -> list[tuple[Pool, Decider]]:
        """Every pool with its decider, the one in force first."""
        now = [(self.pool, self.decider)]
        return now if self._coming is None else [*now, self._coming]

    def of(self, datapath: int) -> Pool:
        """The pool whose program a switch holds."""
        return self._coming[0] if self._coming is not None and datapath in self.moved else self.pool

    @property
    def coming(self) -> Pool:
        """The pool of a prepared policy."""
        assert self._coming is not None
        return self._coming[0]

    def admit(self, job: Job, old: Job | None) -> PoolChanges:
        """Put a job into every pool, or into none; ``old`` is what it was before.

        Raises RuleLimitError or UnsupportedError, whichever switch says so.
        """
        changes: PoolChanges = {}
        done: list[tuple[Pool, Decider]] = []
        try:
            for place, (pool, decider) in enumerate(self.all()):
                decision = decider.of(job)
                _check_support(pool, job, decision)
                limited = any(spec.max_rules for spec in pool.policy.switches.values())
                counts = dict(pool.rules) if limited else {}
                before = pool.placed.get(job.number)
                changes[place] = pool.put(job, decision)
                done.append((pool, decider))
                if limited:
                    _check_limits(pool, counts, changes[place], before)
        except (RuleLimitError, UnsupportedError):
            for pool, decider in done:
                if old is None:
                    pool.remove(job.number)
                else:
                    pool.put(old, decider.of(old))
            raise
        return changes

    def set_queue(self, claim: Claim, queue: int | None, job: int | None) -> PoolChanges:
        """A queue through which ``job`` sends stands, or no longer; answers what that changes in every pool."""
        changes = {place: pool.set_queue(claim, queue, job) for place, (pool, _) in enumerate(self.all())}
        return {place: change for place, change in changes.items() if change}

    def set_group_queues(self, datapath: int, dscps: frozenset[int]) -> PoolChanges:
        """The queues of these groups stand on a core, and no others; answers what that changes in every pool."""
        changes = {place: pool.set_group_queues(datapath, dscps) for place, (pool, _) in enumerate(self.all())}
        return {place: {datapath: change} for place, change in changes.items() if change}

    def remove(self, number: int) -> PoolChanges:
        """Take a job out of every pool."""
        return {place: pool.remove(number) for place, (pool, _) in enumerate(self.all())}

    async def prepare(self, policy: Policy, switches: Callable[[], Iterable[tuple[Switch, tuple[str, ...]]]]) -> None:
        """Build the pool of a new policy beside the one in force; jobs that come meanwhile enter both.

        ``switches`` gives the connected switches as the new policy places them, with their workers' names. Raises
        RuleLimitError or UnsupportedError where the policy cannot be enforced; nothing has changed then.
        """
        pool, decider = Pool(policy, self.pool), Decider(policy)
        self._coming = (pool, decider)
        try:
            for count, number in enumerate(list(self.pool.placed)):
                placed = self.pool.placed.get(number)
                if placed is not None:
                    pool.put(placed.job, decider.of(placed.job))
                if count % PORTION == 0:
                    await asyncio.sleep(0)
            for switch, hosts in switches():
                pool.place_switch(switch, hosts)
                await asyncio.sleep(0)
            _check_whole(pool)
        except BaseException:
            self._coming = None
            raise

    def abandon(self) -> None:
        """Forget a prepared policy, which no switch holds."""
        self._coming = None
        self.moved = set()

    def finish(self) -> None:
        """All switches have gone over: what was coming is in force."""
        assert self._coming is not None
        self.pool, self.decider = self._coming
        self._coming = None
        self.moved = set()


def _check_support(pool: Pool, job: Job, decision: Decision) -> None:
    if why := unsupported(pool.policy, job, decision):
        raise UnsupportedError(why)
    datapath = pool.datapath_of(job)
    switch = None if datapath is None else pool.switches.get(datapath)
    if switch is not None and decision.one_way and not switch.tracks:
        raise UnsupportedError(
            f"switch {switch.name} has no connection tracking, which one-way connectivity "
            f"(inbound {decision.inbound}, outbound {decision.outbound}) needs"
        )


def _check_limits(pool: Pool, counts: dict[int, int], changes: dict[int, Changes], before: Placed | None) -> None:
    for datapath in changes:
        switch = pool.switches[datapath]
        was, wanted = counts.get(datapath, 0), pool.rules[datapath]
        if switch.max_rules and wanted > switch.max_rules and wanted > was:
            raise RuleLimitError(
                f"switch {switch.name} takes {switch.max_rules} rules and has {was}; this job "
                f"{'needs' if before is None else 'would need'} {wanted - was} more"
            )


def _check_whole(pool: Pool) -> None:
    for host in pool.ruled.hosts():
        for placed in pool.ruled_at(host):
            if why := unsupported(pool.policy, placed.job, placed.decision):
                raise UnsupportedError(f"job {placed.job.id}: {why}")
    for datapath, switch in pool.switches.items():
        if switch.max_rules and pool.rules[datapath] > switch.max_rules:
            raise RuleLimitError(
                f"switch {switch.name} takes {switch.max_rules} rules; this policy needs {pool.rules[datapath]}"
            )
        if switch.tracks:
            continue
        for placed in pool.jobs_at(datapath):
            if placed.decision.one_way:
                raise UnsupportedError(
                    f"switch {switch.name} has no connection tracking, which one-way connectivity of job "
                    f"{placed.job.id} needs"
                )
