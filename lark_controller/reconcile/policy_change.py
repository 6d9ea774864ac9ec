"""A change of policy: the new desired state is built beside that in force, then the switches go over one by one.

For the reconcile loop's thread, which turns to other work between portions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Final, NamedTuple

from lark_common.log import failure
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import Changes
from lark_controller.flows.placement import Placed, Switch
from lark_controller.flows.transition import Transition
from lark_controller.policies.model import GroupControl, Policy
from lark_controller.qos.warnings import QueueMaker
from lark_controller.qos.worker_queues import why_none
from lark_controller.reconcile.confirmations import FlowsAt
from lark_controller.reconcile.counters import CounterReader
from lark_controller.reconcile.desired_pair import KnownSwitch, PlacedSwitch
from lark_controller.reconcile.pace import Pace
from lark_controller.reconcile.packet_ins import Reactions
from lark_controller.reconcile.progress import Progress
from lark_controller.reconcile.queues import Queues, uplink_speeds
from lark_controller.reconcile.sending import Sending
from lark_controller.reconcile.state import LoopState
from lark_controller.reconcile.switch import SwitchState, dpid_text, placed_switch
from lark_controller.reconcile.workers import Workers
from lark_controller.switches.openflow.applies import Outcome
from lark_controller.switches.openflow.features import SwitchFeatures

# Switches whose changes are under way at a time: what one is sent takes megabytes meanwhile, and each has a part of
# every turn of the loop, which jobs that start wait for. Where none ends for so long (seconds), one more begins.
_AT_ONCE: Final = 8
_LONGEST: Final = 0.25
# Jobs that are looked at before other work may go ahead.
_LOOKED_AT: Final = 256


class BothPlaces(NamedTuple):
    """A connected switch as it is placed ``now``, and ``then`` under another policy, with the names by which jobs may
    name its worker, and the jobs whose external addresses have room there."""

    now: Switch
    then: Switch
    hosts: tuple[str, ...] = ()
    with_room: frozenset[int] = frozenset()


class PolicyChange:
    """Puts policies in force: :meth:`prepare`, then :meth:`adopt`, or ``loop.pair.abandon``."""

    def __init__(
        self,
        loop: LoopState,
        sending: Sending,
        queues: Queues,
        workers: Workers,
        counters: CounterReader,
        reactions: Reactions,
        progress: Progress,
    ) -> None:
        self._loop = loop
        self._progress = progress
        self._sending = sending
        self._queues = queues
        self._workers = workers
        self._counters = counters
        self._reactions = reactions

    async def prepare(self, policy: Policy) -> None:
        """Build the desired state of a new policy beside the one in force. Raises RuleLimitError, UnsupportedError."""
        await self._loop.pair.prepare(policy, lambda: self._known_switches(policy))

    def _known_switches(self, policy: Policy) -> dict[int, KnownSwitch]:
        def placed(datapath: int, features: SwitchFeatures, hosts: tuple[str, ...]) -> PlacedSwitch:
            return placed_switch(policy, datapath, features), hosts

        return {
            state.datapath: KnownSwitch(partial(placed, state.datapath, features, state.hosts), state.link is not None)
            for state in self._loop.switches.values()
            # One that is away stays known: its jobs are at its ports, and what it should hold is shown.
            if (features := state.features if state.link is None else state.link.features) is not None
        }

    def placed_switches(self, policy: Policy) -> list[BothPlaces]:
        """The connected switches as they are placed now, and as another policy would place them."""
        desired = self._loop.desired
        return [
            BothPlaces(
                desired.switches[state.datapath],
                placed_switch(policy, state.datapath, state.link.features),
                state.hosts,
                frozenset(desired.with_room(state.datapath)),
            )
            for state in self._loop.switches.values()
            if state.link is not None
        ]

    def away(self, policy: Policy) -> dict[int, str]:
        """The switches that this policy or the one in force declares and that are not connected, each with the reason
        for which jobs wait for it."""
        loop, found = self._loop, dict[int, str]()
        for datapath in {**loop.desired.policy.switches, **policy.switches}:
            state = loop.switches.get(datapath)
            if state is None or state.link is None:
                found[datapath] = loop.why_away(datapath)
        return found

    def without_jobs(self, policy: Policy) -> Desired:
        """The desired state of a policy with what stands now, queues and refusals, and without jobs and switches."""
        return Desired(policy, self._loop.desired)

    def queue_makers(self, policy: Policy) -> list[QueueMaker]:
        """The connected switches, each with what keeps it from making queues under another policy."""
        found = []
        for state in self._loop.switches.values():
            if state.link is not None:
                switch = placed_switch(policy, state.datapath, state.link.features)
                queues = switch.group_control is GroupControl.QUEUES
                why = self._queues.obstacle(state.link, policy)
                if switch.is_edge and not why:
                    why = why_none(uplink_speeds(switch))
                found.append(QueueMaker(switch.name, switch.role, queues, why))
        return sorted(found)

    async def adopt(self) -> int:
        """Bring the switches over to the prepared policy, one by one; returns how many flows were sent.

        A switch for which that fails is disconnected: whatever it holds then, it is compared when it returns.
        """
        loop = self._loop
        before, after, sent = loop.desired, loop.pair.coming, 0
        transition = Transition(before, after)
        outstanding: list[asyncio.Future[Outcome]] = []
        pace = Pace()
        # A switch that connects meanwhile holds the old program, so it is asked for again until there is none left.
        while left := [datapath for datapath in loop.switches if datapath not in loop.pair.moved]:
            for datapath in left:
                state = loop.switches[datapath]
                loop.pair.moved.add(datapath)
                try:
                    count, outcome = self._bring_over(state, transition)
                    sent += count
                    outstanding += [] if outcome is None else [outcome]
                except Exception as error:  # the policy is the store's already, and the other switches follow it
                    failure("a switch could not be brought over to the policy", error, datapath=dpid_text(datapath))
                    if state.link is not None:
                        state.link.close("its change of policy failed; it is compared as a whole when it returns")
                await pace.step()
                outstanding = await _room(outstanding)
        loop.pair.finish()
        changed: dict[int, Placed] = {}
        for count, number in enumerate(list(after.placed)):
            if (each := after.placed.get(number)) is not None and before.placed.get(number) is not each:
                changed[number] = each
            if count % _LOOKED_AT == 0:
                await pace.step()
        steps: tuple[tuple[str, Callable[[], Awaitable[None]]], ...] = (
            (
                "jobs are not awaited at their places",
                lambda: self._follow_places(before, changed if transition.moves_jobs else ()),
            ),
            ("external addresses are not judged anew", lambda: self._judge_external(before)),
            ("workers are not sent the policy", self._update_workers),
            ("jobs wait for cores that are none any more", lambda: self._forget_cores(before.policy)),
            ("jobs do not wait for cores that are away", lambda: self._await_cores(changed)),
            ("reserved flows are not looked at anew", lambda: self._settle_reserving(changed)),
            ("accounts are not grouped anew", lambda: self._counters.regroup(changed, loop.desired.placed)),
            ("decisions of the policy before are not forgotten", self._forget_decisions),
        )
        for what, follow in steps:
            try:
                await follow()
            except Exception as error:  # a failed step must not keep the others from being done
                failure(what, error)
        return sent

    async def _follow_places(self, before: Desired, changed: Iterable[int]) -> None:
        """Let jobs wait at the places that this policy gives them, and no more at those before."""
        pace = Pace()
        for count, number in enumerate(changed):
            if (was := before.placed.get(number)) is not None:
                self._follow(was, before)
            if count % _LOOKED_AT == 0:
                await pace.step()

    def _follow(self, was: Placed, before: Desired) -> None:
        now = self._loop.desired.placed.get(was.job.number)
        if now is not None and was.port is not None and now.port is None:
            self._counters.lost((now,))
        self._progress.follow(was, before)

    async def _judge_external(self, before: Desired) -> None:
        """Let all external addresses be judged: they may need other cores now, or have room at theirs."""
        pace = Pace()
        for count, number in enumerate(self._loop.desired.jobs_with_external()):
            if (was := before.placed.get(number)) is not None:
                self._progress.follow(was, before)
            self._loop.dirty.job(number)
            if count % _LOOKED_AT == 0:
                await pace.step()

    async def _update_workers(self) -> None:
        self._workers.policy_changed()

    async def _forget_cores(self, before: Policy) -> None:
        """Let jobs wait no more for cores that are away and that this policy does not have."""
        loop, pace = self._loop, Pace()
        for datapath in before.cores - loop.desired.policy.cores:
            if loop.connected(datapath) or not loop.confirmations.waiting_for(FlowsAt(datapath)):
                continue
            # Those that wait for something else as well have another reason.
            waiting = loop.confirmations.open()
            own = {placed.job.number for placed in loop.desired.jobs_at(datapath)}
            for _ in loop.confirmations.synced(FlowsAt(datapath), own):
                pass
            for count, number in enumerate(waiting):
                loop.dirty.job(number)
                if count % _LOOKED_AT == 0:
                    await pace.step()

    async def _await_cores(self, changed: Mapping[int, Placed]) -> None:
        """Let jobs wait for cores that are away and are to treat their traffic by this policy, and others for none."""
        loop, pace = self._loop, Pace()
        away = [FlowsAt(each) for each in sorted(loop.desired.policy.cores) if not loop.connected(each)]
        for count, (number, placed) in enumerate(changed.items() if away else ()):
            if loop.desired.placed.get(number) is placed and not placed.job.external:
                for core in away:
                    # One that has come since has confirmed what it was asked for, and confirms nothing again.
                    if not (why := loop.why_away(core.datapath)):
                        continue
                    if loop.desired.is_classed(placed):
                        loop.confirmations.blocked(number, core, why)
                    elif loop.confirmations.awaits(number, core):
                        loop.confirmations.confirmed(number, core)
                loop.dirty.job(number)
            if count % _LOOKED_AT == 0:
                await pace.step()

    async def _settle_reserving(self, changed: Mapping[int, Placed]) -> None:
        """Let jobs that have reserved flows say whether anything of them passes by this policy."""
        pace = Pace()
        for count, (number, placed) in enumerate(changed.items()):
            if placed.job.reserved:
                self._loop.dirty.job(number)
            if count % _LOOKED_AT == 0:
                await pace.step()

    async def _forget_decisions(self) -> None:
        for datapath, keys in self._reactions.forget_all().items():
            self._sending.send_to(datapath, Changes(flows_gone=tuple(keys)), None)

    def _bring_over(self, state: SwitchState, transition: Transition) -> tuple[int, asyncio.Future[Outcome] | None]:
        """Send one switch the difference to the coming desired state; returns how many flows that are."""
        datapath, before, after = state.datapath, self._loop.desired, self._loop.pair.coming
        outcome, changes = None, Changes()
        # Jobs that come to the switch wait for it, however its change ends.
        arriving = self._arriving(datapath) if transition.moves_jobs else []
        for placed in arriving:
            self._counters.begin(placed)
            if not state.compared:
                self._loop.confirmations.blocked(placed.job.number, FlowsAt(datapath), state.reason)
        if state.compared:
            changes = transition.changes(datapath)
            if changes or arriving:
                outcome = self._send(state, changes, [placed.job.number for placed in arriving])
        elif datapath in before.rules and datapath in after.switches:
            # Nothing is sent to one that is away; what it should hold is counted all the same.
            transition.changes(datapath)
        other: list[Placed] = []
        for placed in before.jobs_at(datapath):
            now = after.placed.get(placed.job.number)
            if now is not placed:
                other.append(placed)
                self._sending.forget_connections(placed)
        if state.link is not None:
            state.note_shortcomings(after)
            for happening in state.note_policy(after):
                self._loop.note(happening)
        alike = _queues_alike(before.policy, after.policy)
        self._queues.policy_changed(datapath, [placed.job.number for placed in other] if alike else None)
        return len(changes), outcome

    def _arriving(self, datapath: int) -> list[Placed]:
        """The jobs that have a port at a switch by the coming policy, and none or another by the one before."""
        before, after = self._loop.desired, self._loop.pair.coming
        found = []
        for placed in after.jobs_at(datapath):
            was = before.placed.get(placed.job.number)
            if placed.port is not None and (was is None or (was.datapath, was.port) != (datapath, placed.port)):
                found.append(placed)
        return found

    def _send(self, state: SwitchState, changes: Changes, arriving: list[int]) -> asyncio.Future[Outcome] | None:
        """Send a switch its changes, which these jobs wait for."""
        seen, link, what = self._loop.confirmations, state.link, FlowsAt(state.datapath)
        for number in arriving:
            seen.sent(number, what)
        outcome = self._sending.send_to(state.datapath, changes, None)

        def arrived(done: asyncio.Future[Outcome]) -> None:
            # One that is not confirmed ends the connection, and all that is out waits for the next.
            if not done.cancelled() and done.result().confirmed and state.link is link:
                for number in arriving:
                    if seen.confirmed(number, what) or seen.stuck(number):
                        self._loop.dirty.job(number)

        if outcome is not None and arriving:
            outcome.add_done_callback(arrived)
        return outcome


async def _room(outstanding: list[asyncio.Future[Outcome]]) -> list[asyncio.Future[Outcome]]:
    """Wait until few enough changes are under way; returns those that are, the oldest first."""
    outstanding = [each for each in outstanding if not each.done()]
    if len(outstanding) < _AT_ONCE:
        return outstanding
    done, _ = await asyncio.wait(outstanding, timeout=_LONGEST, return_when=asyncio.FIRST_COMPLETED)
    # The oldest alone is not waited for: were all of them left, slow switches would soon be under way in any number.
    return [each for each in outstanding if not each.done()] if done else outstanding[1:]


def _queues_alike(before: Policy, after: Policy) -> bool:
    """True where equal decisions have the same queues under both policies."""
    return (before.bandwidths, before.edge_inbound, before.topology, before.groups) == (
        after.bandwidths, after.edge_inbound, after.topology, after.groups
    )  # fmt: skip
