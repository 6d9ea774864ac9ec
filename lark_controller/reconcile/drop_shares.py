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
from lark_controller.reconcile.state import LoopState

_NONE: Final[Mapping[DropSource, int]] = MappingProxyType({})


class DropShares:
    """The last reading of each switch where something was dropped, and what had come since the one before."""

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._counted: dict[int, Counter[DropSource]] = {}
        self._new: dict[int, Mapping[DropSource, int]] = {}

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
        link, sources = state.link, drop_sources(switch, desired.policy)
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
