"""Workers that enforce policy for their own jobs: the revisions of their rules, sent and confirmed.

Used by the reconcile loop, on its thread.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from lark_common.worker_rules import RULED, UNTOLD, WaysOut, WorkerRules
from lark_controller.flows.placement import Placed
from lark_controller.flows.worker_shares import is_limited, worker_shares
from lark_controller.jobs.job import Job
from lark_controller.reconcile.confirmations import RulesAt, Waiter
from lark_controller.reconcile.queue_obstacles import NoQueue
from lark_controller.reconcile.state import LoopState

NOT_YET: Final = "has not put the job's rules in place yet"
# Seconds for which a worker may be behind its rules until its jobs are no longer shown as enforced. One that is there
# takes a second or two.
PATIENCE: Final = 30.0
LATE: Final = f"has not confirmed its rules for {PATIENCE:g} s and more, and may have those of before"
# Seconds by which a report of queues may be older than the last one before it: one that is older by more is of a worker
# that has booted, whose clock begins anew.
OVERTAKEN: Final = 300.0
_COUNT: Final = re.compile(r"[0-9]{1,18}")


class Workers:
    """All workers. ``states`` are the revisions of their rules."""

    def __init__(self, loop: LoopState) -> None:
        self.states = WorkerStates()
        self._loop = loop
        # By host, its interfaces that lead away, as the worker has reported them.
        self._out: dict[str, WaysOut] = {}
        # By host, the time of the last report of its queues, on the worker's clock.
        self._counted_at: dict[str, float] = {}

    def is_overtaken(self, host: str, at: float) -> bool:
        """True for a report of a worker's queues at ``at`` (seconds of its own clock) after which it has sent another
        one that came first: counters that fall would be taken for those of queues made anew."""
        last = self._counted_at.get(host, at)
        if at < last <= at + OVERTAKEN:
            return True
        # A request may name any host; only those that have jobs are kept.
        if self._loop.desired.ruled.numbers(host):
            self._counted_at[host] = at
        return False

    def rules(self, host: str) -> WorkerRules:
        """The rules of a worker as they should be now."""
        return self._loop.desired.worker_rules(host, self._out.get(host))

    def revise(self) -> None:
        """Give workers whose rules changed a new revision; jobs with new rules wait for it."""
        for host, numbers in self._loop.desired.ruled.take().items():
            self.states.changed(host, numbers)
            for number in numbers:
                self._loop.confirmations.blocked(number, RulesAt(host), NOT_YET)

    def policy_changed(self) -> None:
        """Follow another policy. As on switches, jobs stay as they are while their rules change."""
        ruled = self._loop.desired.ruled
        ruled.take()
        for host in ruled.hosts():
            self.states.changed(host, ())

    def note_late(self, now: float) -> Iterator[None]:
        """Let the jobs wait of workers that have been behind their rules for too long (``now`` is monotonic), a worker
        a step: what was decided meanwhile may not hold there."""
        for host in self.states.late(now - PATIENCE):
            numbers = self._loop.desired.ruled.numbers(host)
            self.states.need(host, numbers)
            for number in numbers:
                self._loop.confirmations.blocked(number, RulesAt(host), LATE)
                self._loop.dirty.job(number)
            yield

    def confirmed(
        self,
        host: str,
        revision: str,
        refused: Mapping[str, str],
        late: Iterable[str] = (),
        out: WaysOut = UNTOLD,
    ) -> None:
        """Note that a worker has a revision of its rules in place, but for the jobs that it refuses, each with the
        reason, and those that are ``late``: their networks are not made yet. ``out`` are its interfaces that lead
        away."""
        for job_id, reason in refused.items():
            job = self._job(job_id)
            if job is not None and job.host == host and job.network_type in RULED:
                self._loop.dirty.refuse(job.number, f"worker {host}: {reason}")
        waiting = {job.number for job_id in late if (job := self._job(job_id)) is not None}
        limited = [placed for placed in self._loop.desired.ruled_at(host) if is_limited(placed)]
        if self._learn(host, out) and limited:
            # The jobs' shares follow from the uplinks' speeds.
            self.states.changed(host, [placed.job.number for placed in limited])
            for placed in limited:
                self._loop.confirmations.blocked(placed.job.number, RulesAt(host), NOT_YET)
        done = self.states.confirmed(host, revision, waiting)
        for number in done:
            self._loop.confirmations.confirmed(number, RulesAt(host))
        self._judge(host, limited)
        for number in {*done, *(placed.job.number for placed in limited)}:
            self._loop.dirty.job(number)

    def _learn(self, host: str, out: WaysOut) -> bool:
        """Keep a worker's report of its interfaces; True where it is new, and the worker has jobs."""
        if self._out.get(host) == out or not self._loop.desired.ruled.numbers(host):
            return False
        self._out[host] = out
        return True

    def _judge(self, host: str, limited: Iterable[Placed]) -> None:
        """Let the jobs wait whose bandwidth the worker's uplinks cannot hold, and no others."""
        key, seen = RulesAt(host), self._loop.confirmations
        desired = self._loop.desired
        short = worker_shares(desired.policy, host, desired.ruled_at(host), self._out.get(host)).short
        for placed in limited:
            number = placed.job.number
            if self.states.needs(host, number):
                continue
            why = short.get(placed.job.id)
            if why is not None:
                seen.blocked(number, key, NoQueue(why))
            else:
                seen.confirmed(number, key)

    def _job(self, job_id: str) -> Job | None:
        job = self._loop.directory.by_id.get(job_id)
        return None if job is None or job.number not in self._loop.desired.placed else job


@dataclass(slots=True)
class _State:
    """One host. ``reached`` is the last revision that it has confirmed; ``needs`` has for each job the revision from
    which on its own rules are in force. It has been behind ``since`` that monotonic time, None where that was noted."""

    revision: int = 0
    reached: int = 0
    since: float | None = None
    needs: dict[int, int] = field(default_factory=dict)
    waiters: list[Waiter] = field(default_factory=list)


class WorkerStates:
    """Revisions of workers' rules, counted from the controller's start, which each of them names: ``5f0e12ab.17``."""

    def __init__(self) -> None:
        self._start = secrets.token_hex(4)
        self._states: dict[str, _State] = {}
        self._released = False

    def revision(self, host: str) -> str:
        """The revision of a host's rules as they should be now."""
        state = self._states.get(host)
        return f"{self._start}.{0 if state is None else state.revision}"

    def changed(self, host: str, numbers: Iterable[int]) -> None:
        """Begin a revision of a host's rules, with new rules for these jobs; waiters are called."""
        state = self._states.setdefault(host, _State())
        if state.reached == state.revision:
            state.since = time.monotonic()
        state.revision += 1
        for number in numbers:
            state.needs[number] = state.revision
        waiters, state.waiters = state.waiters, []
        for waiter in waiters:
            waiter()

    def confirmed(self, host: str, revision: str, late: Container[int] = ()) -> list[int]:
        """Note a worker's revision in place, but for the jobs ``late``; returns those whose rules it has by that.

        Revisions of another start of the controller, or of the future, confirm nothing.
        """
        state = self._states.get(host)
        start, _, count = revision.partition(".")
        if state is None or start != self._start or not _COUNT.fullmatch(count):
            return []
        reached = int(count)
        if reached > state.revision:
            return []
        if reached > state.reached:
            state.reached, state.since = reached, time.monotonic()
        done = [number for number, needed in state.needs.items() if needed <= reached and number not in late]
        for number in done:
            del state.needs[number]
        return done

    def behind(self, host: str) -> bool:
        """True while a worker has not confirmed the last revision of its rules."""
        state = self._states.get(host)
        return state is not None and state.reached < state.revision

    def late(self, before: float) -> Iterator[str]:
        """The hosts that have been behind since then or longer; each is named once, until it confirms anything. Others
        may confirm between two of them."""
        for host, state in list(self._states.items()):
            if state.reached < state.revision and state.since is not None and state.since <= before:
                state.since = None
                yield host

    def need(self, host: str, numbers: Iterable[int]) -> None:
        """Let these jobs need the last revision of their host's rules."""
        state = self._states[host]
        for number in numbers:
            state.needs[number] = state.revision

    def needs(self, host: str, number: int) -> bool:
        """True while a job's own rules are not confirmed."""
        state = self._states.get(host)
        return state is not None and number in state.needs

    def forget(self, host: str, number: int) -> None:
        """Forget a job that is over."""
        state = self._states.get(host)
        if state is not None:
            state.needs.pop(number, None)

    def release(self) -> None:
        """Release all waiters: the controller stops."""
        self._released = True
        for state in self._states.values():
            waiters, state.waiters = state.waiters, []
            for waiter in waiters:
                waiter()

    def when_changed(self, host: str, after: str, waiter: Waiter) -> None:
        """Call ``waiter`` once the host's revision is another than ``after`` (at once if it is so now)."""
        if self._released or self.revision(host) != after:
            waiter()
        else:
            self._states.setdefault(host, _State()).waiters.append(waiter)

    def stop_waiting(self, host: str, waiter: Waiter) -> None:
        """Forget a waiter that has given up."""
        state = self._states.get(host)
        if state is None:
            return
        if waiter in state.waiters:
            state.waiters.remove(waiter)
        # A request may name any host; only those that have had jobs are kept.
        if not state.waiters and not state.revision:
            del self._states[host]
