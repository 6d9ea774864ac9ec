"""The packets that each rule has dropped of late at the workers' switches, from the counters of the flows that drop.

They are read only where a rule drops packets of a job: elsewhere they stand still. For the reconcile loop's thread;
:meth:`DropShares.of` may be asked from any.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from lark_controller.flows.drop_sources import COOKIES, DropSource, drop_sources
from lark_controller.flows.model import FlowKey
from lark_controller.policies.model import Policy
from lark_controller.reconcile.state import LoopState

_NONE: Final[Mapping[DropSource, int]] = MappingProxyType({})


class DropShares:
    """The last reading of each switch where something was dropped, and what had come since the one before."""

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._counted: dict[int, Counter[DropSource]] = {}
        self._new: dict[int, Mapping[DropSource, int]] = {}
        # By whether a switch tracks connections, for the policy that is in force.
        self._policy: Policy | None = None
        self._sources: dict[bool, Mapping[FlowKey, DropSource]] = {}

    def of(self, datapath: int | None) -> Mapping[DropSource, int]:
        """The packets dropped at a switch between its last two readings; empty where it was never read."""
        return _NONE if datapath is None else self._new.get(datapath, _NONE)

    async def look(self, datapath: int) -> None:
        """Read a switch. Raises SwitchError."""
        state = self._loop.switches.get(datapath)
        desired = self._loop.desired_of(datapath)
        switch = desired.switches.get(datapath)
        if state is None or state.link is None or switch is None or not switch.is_edge:
            return
        link, sources = state.link, self._sources_of(desired.policy, switch.tracks)
        counted: Counter[DropSource] = Counter()
        for cookie, mask in COOKIES:
            for key, (packets, _) in (await link.counters(cookie, mask)).items():
                if key in sources:
                    counted[sources[key]] += packets
        before = self._counted.get(datapath, Counter())
        # Flows that were made anew count from 0.
        self._new[datapath] = {
            source: packets - before[source] if packets >= before[source] else packets
            for source, packets in counted.items()
            if packets != before[source]
        }
        self._counted[datapath] = counted

    def _sources_of(self, policy: Policy, tracks: bool) -> Mapping[FlowKey, DropSource]:
        if policy is not self._policy:
            self._policy, self._sources = policy, {}
        found = self._sources.get(tracks)
        if found is None:
            found = self._sources[tracks] = drop_sources(policy, tracks=tracks)
        return found
