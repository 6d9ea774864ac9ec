"""The packets that each rule has dropped of late at the workers' switches, from the counters of the flows that drop.

They are read only where a rule drops packets of a job, and where there is a job that several rules may drop packets of:
elsewhere they stand still, or nobody needs them. For the reconcile loop's thread; :meth:`DropShares.of` may be asked
from any.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from lark_controller.flows.drop_sources import DropSource, are_several, cookies_of, drop_sources
from lark_controller.flows.model import FlowKey
from lark_controller.policies.model import Policy
from lark_controller.reconcile.state import LoopState


class Shares(NamedTuple):
    """The packets that each rule dropped between two readings; ``is_of_now`` where these are the last two rounds, and
    not the last and one that was long ago or of another policy, whose rules may have other places."""

    packets: Mapping[DropSource, int] = MappingProxyType({})
    is_of_now: bool = False


class _Wanted(NamedTuple):
    """The flows of a policy that drop, and the cookies and masks that choose them."""

    sources: Mapping[FlowKey, DropSource]
    cookies: tuple[tuple[int, int], ...]


_NONE: Final = Shares()


class DropShares:
    """The last reading of each switch where something was dropped, and what had come since the one before."""

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._counted: dict[int, Counter[DropSource]] = {}
        self._new: dict[int, Shares] = {}
        # The policies by which switches were read in their last round.
        self._followed: dict[int, Policy] = {}
        # By whether a switch tracks connections, for the policy that is in force.
        self._policy: Policy | None = None
        self._wanted: dict[bool, _Wanted] = {}

    def of(self, datapath: int | None) -> Shares:
        """The packets dropped at a switch between its last two readings; empty where it was never read."""
        return _NONE if datapath is None else self._new.get(datapath, _NONE)

    async def look(self, datapath: int, *, drops: bool) -> None:
        """Read a switch, as far as that tells anything; ``drops``: packets of a job there are dropped by a rule now.
        Raises SwitchError."""
        followed = self._followed.pop(datapath, None)
        if not drops:
            return
        state = self._loop.switches.get(datapath)
        desired = self._loop.desired_of(datapath)
        switch, policy = desired.switches.get(datapath), desired.policy
        if state is None or state.link is None or switch is None or not switch.is_edge:
            return
        # A job that drops nothing yet may in the next round, and is then to be compared with this one.
        if not any(are_several(placed.decision, policy) for placed in desired.present_at(datapath)):
            return
        link, wanted = state.link, self._wanted_of(policy, switch.tracks)
        answers = [link.drop_counts(cookie, mask) for cookie, mask in wanted.cookies]
        await asyncio.gather(*answers, return_exceptions=True)
        counted: Counter[DropSource] = Counter()
        for answer in answers:
            for key, packets in answer.result():
                if key in wanted.sources:
                    counted[wanted.sources[key]] += packets
        before = self._counted.get(datapath, Counter())
        # Flows that were made anew count from 0.
        new = {
            source: packets - before[source] if packets >= before[source] else packets
            for source, packets in counted.items()
            if packets != before[source]
        }
        self._new[datapath], self._counted[datapath] = Shares(new, followed is policy), counted
        self._followed[datapath] = policy

    def gone(self, datapath: int) -> None:
        """Note that a switch is gone: what it counted meanwhile is not of now."""
        self._followed.pop(datapath, None)

    def _wanted_of(self, policy: Policy, tracks: bool) -> _Wanted:
        if policy is not self._policy:
            self._policy, self._wanted = policy, {}
        found = self._wanted.get(tracks)
        if found is None:
            sources = drop_sources(policy, tracks=tracks)
            found = self._wanted[tracks] = _Wanted(sources, cookies_of(sources.values()))
        return found
