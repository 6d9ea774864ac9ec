"""Packets that cores dropped, by accounting group: packets that found a queue full or a meter exceeded.

A core's queues and meters are a group's and not a job's, so nobody can tell whose packets those were. For the reconcile
loop's thread; :meth:`CoreDrops.by_group` may be asked from any.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from lark_controller.flows.placement import Switch
from lark_controller.qos.groups import treatments
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.switches.openflow.link import SwitchLink


class _Place(NamedTuple):
    """A queue of a port, or (``port`` is empty) a meter."""

    port: str
    number: int


class CoreDrop(NamedTuple):
    """A group whose packets a core drops: packets a second, as of ``at`` (seconds since 1970)."""

    datapath: int
    group: str
    packets: float
    at: float


class CoreDrops:
    """The last reading of each core, and the sums since this start."""

    def __init__(self, loop: Reconciler) -> None:
        self._loop = loop
        self._seen: dict[int, dict[_Place, int]] = {}
        self._at: dict[int, float] = {}
        self._sums: Mapping[str, int] = {}
        self._now: Mapping[int, tuple[CoreDrop, ...]] = {}

    def by_group(self) -> Mapping[str, int]:
        """Packets dropped by the policy's group."""
        return self._sums

    def now(self) -> list[CoreDrop]:
        """The groups whose packets cores dropped between their last two looks."""
        return [each for some in self._now.values() for each in some]

    async def look(self, datapath: int) -> None:
        """Count what a core's queues and meters have dropped since the last look. Raises SwitchError."""
        state = self._loop.switches.get(datapath)
        switch = self._loop.desired_of(datapath).switches.get(datapath)
        if state is None or state.link is None or switch is None or switch.is_edge:
            return
        counted = await self._count(state.link, switch)
        before, self._seen[datapath] = (
            self._seen.get(datapath),
            {place: packets for place, (_, packets) in counted.items()},
        )
        if before is None:
            self._at[datapath] = time.time()
            # Drops from before this controller came belong to no known group.
            return
        new: Counter[str] = Counter()
        for place, (group, packets) in counted.items():
            old = before.get(place, 0)
            # One that was made anew counts from 0.
            new[group] += packets if packets < old else packets - old
        self._sums = Counter(self._sums) + new
        now, last = time.time(), self._at.get(datapath, 0.0)
        self._at[datapath] = now
        rates = (
            CoreDrop(datapath, group, packets / max(0.001, now - last), now)
            for group, packets in new.items()
            if packets
        )
        self._now = {**self._now, datapath: tuple(rates)}

    async def _count(self, link: SwitchLink, switch: Switch) -> dict[_Place, tuple[str, int]]:
        desired = self._loop.desired_of(link.datapath)
        names = {group.dscp: group.name for group in desired.policy.groups}
        standing = desired.group_queues.get(link.datapath, frozenset())
        chosen = list(treatments(desired.policy, switch.max_meter, switch.group_control, standing))
        queues = {each.queue: names[each.dscp] for each in chosen if each.queue is not None}
        meters = {each.dscp: names[each.dscp] for each in chosen if each.rate is not None}
        found: dict[_Place, tuple[str, int]] = {}
        if queues:
            ports = {port.number: port.name for port in link.features.ports.values()}
            # Queues that are maintained on their host drop inside, which Open vSwitch does not count.
            dropped = self._loop.queues.dropped(link.datapath)
            for queue in await link.queue_stats():
                if queue.queue in queues and queue.port in ports:
                    place = _Place(ports[queue.port], queue.queue)
                    found[place] = queues[queue.queue], max(queue.errors, dropped.get((place.port, place.number), 0))
        if meters:
            for number, meter in (await link.meter_stats()).items():
                if number in meters:
                    found[_Place("", number)] = meters[number], meter.band_packets
        return found
