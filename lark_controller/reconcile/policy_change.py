"""A change of policy: the new desired state is built beside that in force, then the switches go over one by one.

For the reconcile loop's thread, which turns to other work between portions.
"""

from __future__ import annotations

import asyncio

from lark_common.log import failure
from lark_controller.flows.desired import Desired
from lark_controller.flows.diff import diff
from lark_controller.flows.model import Changes
from lark_controller.flows.placement import Switch
from lark_controller.policies.model import Policy
from lark_controller.reconcile.counters import CounterReader
from lark_controller.reconcile.packet_ins import Reactions
from lark_controller.reconcile.queues import Queues
from lark_controller.reconcile.sending import Sending
from lark_controller.reconcile.state import LoopState
from lark_controller.reconcile.switch import SwitchState, dpid_text, placed_switch
from lark_controller.reconcile.workers import Workers


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
    ) -> None:
        self._loop = loop
        self._sending = sending
        self._queues = queues
        self._workers = workers
        self._counters = counters
        self._reactions = reactions

    async def prepare(self, policy: Policy) -> None:
        """Build the desired state of a new policy beside the one in force. Raises RuleLimitError, UnsupportedError."""
        await self._loop.pair.prepare(policy, lambda: self._connected_switches(policy))

    def _connected_switches(self, policy: Policy) -> list[tuple[Switch, tuple[str, ...]]]:
        return [
            (placed_switch(policy, state.link), state.hosts)
            for state in self._loop.switches.values()
            if state.link is not None
        ]

    def placed_switches(self, policy: Policy) -> list[tuple[Switch, Switch]]:
        """The connected switches as they are placed now, and as another policy would place them."""
        return [
            (self._loop.desired.switches[state.datapath], placed_switch(policy, state.link))
            for state in self._loop.switches.values()
            if state.link is not None
        ]

    async def adopt(self) -> int:
        """Bring the switches over to the prepared policy, one by one; returns how many flows were sent.

        A switch for which that fails is disconnected: whatever it holds then, it is compared when it returns.
        """
        loop = self._loop
        desired, sent = loop.pair.coming, 0
        # A switch that connects meanwhile holds the old program, so it is asked for again until there is none left.
        while (datapath := next((dp for dp in loop.switches if dp not in loop.pair.moved), None)) is not None:
            loop.pair.moved.add(datapath)
            state = loop.switches[datapath]
            try:
                sent += self._bring_over(state, desired)
            except Exception as error:  # the policy is the store's already, and the other switches follow it
                failure("a switch could not be brought over to the policy", error, datapath=dpid_text(datapath))
                if state.link is not None:
                    state.link.close("its change of policy failed; it is compared as a whole when it returns")
            await asyncio.sleep(0)
        loop.pair.finish()
        for what, follow in (
            ("workers are not told of the policy", self._tell_workers),
            ("accounts are not grouped anew", self._regroup),
            ("decisions of the policy before are not forgotten", self._forget_decisions),
        ):
            try:
                await follow()
            except Exception as error:  # a failed step must not keep the others from being done
                failure(what, error)
        return sent

    async def _tell_workers(self) -> None:
        self._workers.policy_changed()

    async def _regroup(self) -> None:
        await self._counters.regroup(self._loop.desired.placed)

    async def _forget_decisions(self) -> None:
        for datapath, keys in self._reactions.forget_all().items():
            self._sending.send_to(datapath, Changes(flows_gone=tuple(keys)), None)

    def _bring_over(self, state: SwitchState, desired: Desired) -> int:
        """Send one switch the difference to the coming desired state; returns how many flows that are."""
        datapath, sent = state.datapath, 0
        before = self._loop.desired.jobs_at(datapath)
        if state.told and (changes := diff(desired.program(datapath), self._loop.desired.build(datapath))):
            sent = len(changes)
            self._sending.send_to(datapath, changes, None)
        for placed in before:
            self._sending.forget_connections(placed)
        if state.link is not None:
            state.note_shortcomings(desired)
        self._queues.policy_changed(datapath)
        return sent
