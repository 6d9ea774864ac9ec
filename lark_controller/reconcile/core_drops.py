"""Packets that cores dropped, by accounting group: packets that found a queue full or a meter exceeded.

A core's queues and meters are a group's and not a job's, so nobody can tell whose packets those were. For the reconcile
loop's thread; :meth:`CoreDrops.by_group` may be asked from any.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from lark_common.errors import SwitchError
from lark_controller.flows.placement import Switch
from lark_controller.policies.model import Policy
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


class _Look(NamedTuple):
    """A look at a core: over which connection, under which policy, and when (seconds since 1970); and each place's
    group and packets dropped, as they were seen last. ``absent`` are the places that this look has not seen."""

    link: SwitchLink
    policy: Policy
    at: float
    places: Mapping[_Place, tuple[str, int]]
    absent: frozenset[_Place] = frozenset()
    drops: tuple[CoreDrop, ...] = ()


class CoreDrops:
    """The last reading of each core, and the sums since this start."""

    def __init__(self, loop: Reconciler) -> None:
        self._loop = loop
        self._seen: dict[int, _Look] = {}
        self._sums: Mapping[str, int] = {}

    def by_group(self) -> Mapping[str, int]:
        """Packets dropped by the policy's group."""
        return self._sums

    def now(self) -> list[CoreDrop]:
        """The groups whose packets cores dropped between their last two looks: of cores that have been connected since
        then, and under the policy by which they drop now."""
        return [each for look in list(self._seen.values()) if self._is_of_now(look) for each in look.drops]

    def _is_of_now(self, look: _Look) -> bool:
        datapath = look.link.datapath
        state = self._loop.switches.get(datapath)
        return state is not None and state.link is look.link and self._loop.desired_of(datapath).policy is look.policy

    async def look(self, datapath: int) -> None:
        """Count what a core's queues and meters have dropped since the last look. Raises SwitchError."""
        state = self._loop.switches.get(datapath)
        desired = self._loop.desired_of(datapath)
        switch, policy = desired.switches.get(datapath), desired.policy
        if state is None or state.link is None or switch is None or switch.is_edge:
            return
        link, before = state.link, self._seen.get(datapath)
        try:
            places = await self._count(link, switch)
        except SwitchError:
            if before is not None:
                self._seen[datapath] = before._replace(drops=())
            raise
        now = time.time()
        known = {} if before is None else before.places
        absent = frozenset(known.keys() - places.keys())
        self._seen[datapath] = look = _Look(link, policy, now, {**known, **places}, absent)
        if before is None:
            # Drops from before this controller came belong to no known group.
            return
        # Of those of the time between the two looks, and of all.
        new: Counter[str] = Counter()
        every: Counter[str] = Counter()
        for place, (group, packets) in places.items():
            # Since when one that was never seen before has counted is not known: its drops are nobody's.
            of, old = known.get(place, (group, packets))
            # One that was made anew counts from 0. What came while another group had the place is nobody's.
            if of == group:
                more = packets if packets < old else packets - old
                every[group] += more
                # One that the last look has not seen has dropped an unknown part of them before that.
                if place not in before.absent:
                    new[group] += more
        self._sums = Counter(self._sums) + every
        if before.link is not link or before.policy is not policy:
            # It dropped an unknown part of them while it was away, or under the policy before.
            return
        rates = (
            CoreDrop(datapath, group, packets / max(0.001, now - before.at), now)
            for group, packets in new.items()
            if packets
        )
        self._seen[datapath] = look._replace(drops=tuple(rates))

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
