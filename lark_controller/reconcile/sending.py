"""Changes on their way to switches, and their outcome: confirmed or refused. For the reconcile loop's thread."""

from __future__ import annotations

import time
from asyncio import Future
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from lark_common.log import WARNING, event
from lark_common.runs import Address
from lark_common.worker_rules import CT_ZONE, CT_ZONE_OTHERS
from lark_controller.api.metrics import Metrics
from lark_controller.api.switches import SwitchProblem
from lark_controller.flows.model import Changes
from lark_controller.flows.placement import Placed
from lark_controller.jobs.job import Job
from lark_controller.reconcile.confirmations import FlowsAt
from lark_controller.reconcile.desired_pair import PairChanges
from lark_controller.reconcile.packet_ins import Reactions
from lark_controller.reconcile.state import LoopState
from lark_controller.reconcile.switch import SwitchState, blamed, dpid_text
from lark_controller.reconcile.workers import Workers
from lark_controller.switches.openflow.applies import FlowError, Outcome
from lark_controller.switches.openflow.link import SwitchLink

# Refusals of one change that are logged one by one.
_LOGGED: Final = 20


class Sending:
    """Sends to all switches and workers."""

    def __init__(
        self,
        loop: LoopState,
        workers: Workers,
        reactions: Reactions,
        metrics: Metrics,
    ) -> None:
        self._loop = loop
        self._workers = workers
        self._reactions = reactions
        self._metrics = metrics

    def send(self, changes: PairChanges, number: int | None) -> None:
        """Send each switch the changes of the state that it holds, and tell workers; the job ``number`` waits."""
        self._workers.revise()
        for place, by_switch in changes.items():
            for datapath, change in by_switch.items():
                if (place == 1) == (datapath in self._loop.pair.moved):
                    stale = self._reactions.forget_tags(datapath, self._loop.desired_of(datapath))
                    gone = replace(change, flows_gone=(*change.flows_gone, *stale)) if stale else change
                    self.send_to(datapath, gone, number)

    def send_to(self, datapath: int, change: Changes, number: int | None) -> Future[Outcome] | None:
        """Send one switch a change, if it takes changes now (None: it does not); ``number`` is the job that waits for
        it."""
        state = self._loop.switches.get(datapath)
        if state is None or state.link is None or not state.compared:
            if number is not None and state is not None:
                self._loop.confirmations.blocked(number, FlowsAt(datapath), state.reason)
            return None
        link = state.link
        if number is not None:
            self._loop.confirmations.sent(number, FlowsAt(datapath))
        outcome = link.apply(change)
        outcome.add_done_callback(
            lambda done: self.applied(state, link, number, done.result()) if not done.cancelled() else None
        )
        return outcome

    def forget_connections(self, before: Placed | None) -> None:
        """Forget connections of addresses that a switch no longer tracks for a job, which was ``before`` there.

        No later job inherits them. A switch that is away gets the order when it returns.
        """
        if before is None or before.datapath is None or not before.tracked:
            return
        now = self._loop.desired_of(before.datapath).placed.get(before.job.number)
        stays = now is not None and now.datapath == before.datapath and now.tracked
        gone = set(before.job.addresses).difference(now.job.addresses if now is not None and stays else ())
        if (was := before.opened) is not None and (now is None or now.opened != was):
            # Connections to ports that are no longer open end with them.
            gone.add(was.address)
        if (state := self._loop.switches.get(before.datapath)) is not None:
            self.forget_tracked(state, gone)

    def forget_tracked(self, state: SwitchState, gone: set[Address]) -> None:
        """Let a switch forget the connections of addresses; an unconfirmed order is repeated when it returns."""
        switch = self._loop.desired_of(state.datapath).switches.get(state.datapath)
        if not gone or (switch is not None and not switch.tracks):
            return
        if state.link is None or not state.compared:
            state.to_forget |= gone
            return

        def kept(done: Future[Outcome]) -> None:
            if done.cancelled() or not done.result().confirmed:
                state.to_forget |= gone

        forgotten = state.link.forget_connections(CT_ZONE, CT_ZONE_OTHERS, sorted(gone, key=str))
        forgotten.add_done_callback(kept)

    def applied(self, state: SwitchState, link: SwitchLink, number: int | None, outcome: Outcome) -> None:
        """Handle a switch's answer to a change; ``number`` is the job that waited for it."""
        if state.link is not link:
            return
        if nobodys := self.refused(state, outcome.errors):
            state.in_sync, state.reason = False, nobodys
        seen = self._loop.confirmations
        if not outcome.confirmed:
            state.in_sync = False
            state.reason = outcome.reason or "did not confirm in time"
            # A job that has another place by now does not need this one's flows.
            if number is not None and seen.awaits(number, FlowsAt(state.datapath)):
                seen.blocked(number, FlowsAt(state.datapath), state.reason)
                self._loop.dirty.job(number)
            link.close(f"a change was not confirmed: {state.reason}")
            return
        desired = self._loop.desired_of(state.datapath)
        state.installed = desired.rules.get(state.datapath, state.installed)
        if number is not None and (seen.confirmed(number, FlowsAt(state.datapath)) or seen.stuck(number)):
            self._loop.dirty.job(number)

    def refused(self, state: SwitchState, errors: Sequence[FlowError]) -> str:
        """Log the flows or meters that a switch refused; a job that one belongs to is refused as a whole, but where it
        is of an external address, which is closed then.

        Returns a sentence if there are any that belong to no job, else ``""``.
        """
        if not errors:
            return ""
        self._metrics.flow_errors.inc(len(errors))
        desired = self._loop.desired_of(state.datapath)
        flows = desired.build(state.datapath).flows
        refused: dict[tuple[Job, bool], str] = {}
        nobodys = []
        for count, error in enumerate(errors):
            flow, job, external = blamed(desired, flows, error)
            job_id = None if job is None else job.id
            state.problems.append(SwitchProblem(time.time(), error.text, flow, job_id))
            where = dpid_text(state.datapath)
            if count < _LOGGED:
                event("switch refused", level=WARNING, datapath=where, job=job_id, error=error.text, flow=flow)
            if job is None:
                nobodys.append(error.text)
            else:
                refused.setdefault((job, external), f"switch {state.label(desired)} refused {flow}: {error.text}")
        if len(errors) > _LOGGED:
            event("switch refused more", level=WARNING, datapath=dpid_text(state.datapath), times=len(errors) - _LOGGED)
        for (job, external), reason in refused.items():
            if external:
                self._loop.dirty.close(state.datapath, job.number, reason)
            else:
                self._loop.dirty.refuse(job.number, reason)
        return f"refused {len(nobodys)} flows or meters of the policy: {nobodys[0]}" if nobodys else ""
