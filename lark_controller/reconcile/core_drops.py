"""Packets that cores dropped, by accounting group: packets that found a queue full or a meter exceeded.

A core's queues and meters are a group's and not a job's, so nobody can tell whose packets those were. For the reconcile
loop's thread; :meth:`CoreDrops.by_group`, :meth:`CoreDrops.now` and :meth:`CoreDrops.unread` may be asked from any.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from lark_common.errors import SwitchError
from lark_common.log import failure
from lark_controller.flows.placement import Switch
from lark_controller.policies.model import GroupControl, GroupSpec, Policy, SwitchRole, SwitchSpec, WanRule
from lark_controller.qos.groups import has_queue, treatments
from lark_controller.reconcile.reconciler import Reconciler
from lark_controller.reconcile.switch import dpid_text
from lark_controller.switches.openflow.link import SwitchLink

# Seconds between two looks at a core whose drops are not known, and between two looks for such cores.
SOON: Final = 5.0
_TURN: Final = 1.0
# Seconds between two looks at one core, at least: of less a rate says nothing.
_LEAST: Final = 1.0
# Looks that are begun in one turn, at most: where very many cores are due, each waits for its turn.
_AT_ONCE: Final = 32


class _Place(NamedTuple):
    """A queue of a port, or (``port`` is empty) a meter."""

    port: str
    number: int


class _Count(NamedTuple):
    """The packets that a place has dropped of a group's, and for how long (seconds) the switch has had it; None where
    it does not say."""

    group: str
    packets: int
    age: float | None = None


class CoreDrop(NamedTuple):
    """A group whose packets a core drops: packets a second, as of ``at`` (seconds since 1970). ``inward``: on the way
    to its jobs, None at an access point, whose transfers leave by one port whatever way they go."""

    datapath: int
    group: str
    packets: float
    at: float
    inward: bool | None = False


class _Rules(NamedTuple):
    """The part of a policy by which a core treats groups, without places in its text."""

    groups: tuple[GroupSpec, ...]
    wans: tuple[WanRule, ...]
    spec: SwitchSpec | None


class _Look(NamedTuple):
    """A look at a core: over which connection, by which rules, when it answered (seconds since 1970) and when it was
    asked (monotonic); and each place's group and packets dropped, as they were seen last. ``absent`` are the places
    that this look has not seen. ``drops`` is None where they are not known."""

    link: SwitchLink
    rules: _Rules
    at: float
    asked: float
    places: Mapping[_Place, tuple[str, int]]
    absent: frozenset[_Place] = frozenset()
    drops: tuple[CoreDrop, ...] | None = None


class CoreDrops:
    """The last reading of each core, and the sums since this start."""

    def __init__(self, loop: Reconciler) -> None:
        self._loop = loop
        self._seen: dict[int, _Look] = {}
        self._sums: Mapping[str, int] = {}
        # The rules of the policy that was asked for last, by core.
        self._rules: dict[int, tuple[Policy, _Rules]] = {}
        # Cores that are asked now; and over which connection, by which rules and when each was asked last.
        self._under_way: set[int] = set()
        self._asked: dict[int, tuple[SwitchLink, _Rules, float]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def by_group(self) -> Mapping[str, int]:
        """Packets dropped by the policy's group."""
        return self._sums

    def now(self) -> list[CoreDrop]:
        """The groups whose packets cores dropped between their last two looks: of cores that have been connected since
        then, and by the rules by which they drop now."""
        return [each for look in list(self._seen.values()) if self._is_of_now(look) for each in look.drops or ()]

    def unread(self) -> int:
        """The number of connected cores that treat groups, and of which it is not known what they drop now."""
        return sum(map(self._is_unread, self._treating()))

    async def start(self, every: float = 0.0) -> None:
        """Begin to look at each core, until the loop ends: at those whose drops are not known every few seconds until
        they are, and at the others ``every`` so many seconds, 0 for never."""
        self._begin(self._follow(every))

    async def _follow(self, every: float) -> None:
        while True:
            await asyncio.sleep(_TURN)
            for datapath in self._due(time.monotonic(), every):
                self._begin(self._look_quietly(datapath))

    def _due(self, now: float, every: float) -> list[int]:
        """The cores whose turn it is: those that were asked longest ago, as many as one turn may ask."""
        due = []
        for datapath in self._treating():
            link, rules, asked = self._asked.get(datapath, (None, None, 0.0))
            alike = link is self._loop.switches[datapath].link and rules == self._rules_of(datapath)
            if self._is_unread(datapath):
                is_due = not alike or now - asked >= min(SOON, every or SOON)
            else:
                # Half a turn before, or by whole turns it would be up to one later.
                is_due = bool(every) and now - asked >= every - _TURN / 2
            if is_due and datapath not in self._under_way:
                due.append((asked, datapath))
        return [datapath for _, datapath in sorted(due)[:_AT_ONCE]]

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_quietly(self, datapath: int) -> None:
        try:
            await self.look(datapath)
        except SwitchError:
            return  # It is asked again.
        except Exception as error:
            failure("the drops at a core could not be read", error, datapath=dpid_text(datapath))

    def _treating(self) -> Iterator[int]:
        """The connected cores that treat groups."""
        for datapath, spec in self._loop.desired.policy.switches.items():
            if spec.role is SwitchRole.EDGE:
                continue
            state, switch = self._loop.switches.get(datapath), self._loop.desired_of(datapath).switches.get(datapath)
            if state is None or state.link is None or switch is None or switch.is_edge:
                continue
            if any(self._treated(switch, self._loop.desired_of(datapath).policy)):
                yield datapath

    def _is_unread(self, datapath: int) -> bool:
        look = self._seen.get(datapath)
        return look is None or look.drops is None or not self._is_of_now(look)

    def _is_of_now(self, look: _Look) -> bool:
        datapath = look.link.datapath
        state = self._loop.switches.get(datapath)
        return state is not None and state.link is look.link and self._rules_of(datapath) == look.rules

    def _rules_of(self, datapath: int) -> _Rules:
        """The rules by which a core drops packets of groups now. A change of the policy that leaves them as they are
        makes what is known no less so."""
        policy, known = self._loop.desired_of(datapath).policy, self._rules.get(datapath)
        if known is not None and known[0] is policy:
            return known[1]
        groups = tuple(replace(group, line=0) for group in policy.groups)
        wans = tuple(replace(rule, line=0) for rule in policy.wans)
        rules = _Rules(groups, wans, policy.switches.get(datapath))
        self._rules[datapath] = policy, rules
        return rules

    async def look(self, datapath: int) -> None:
        """Count what a core's queues and meters have dropped since the last look. Raises SwitchError."""
        state = self._loop.switches.get(datapath)
        switch = self._loop.desired_of(datapath).switches.get(datapath)
        if state is None or state.link is None or switch is None or switch.is_edge or datapath in self._under_way:
            return
        asked, rules, before = time.monotonic(), self._rules_of(datapath), self._seen.get(datapath)
        alike = before is not None and before.link is state.link and before.rules == rules
        if before is not None and alike and asked - before.asked < _LEAST:
            return
        self._under_way.add(datapath)
        self._asked[datapath] = state.link, rules, asked
        try:
            counts = await self._count(state.link, switch)
        except SwitchError:
            if before is not None:
                self._seen[datapath] = before._replace(drops=None)
            raise
        finally:
            self._under_way.discard(datapath)
        now = time.time()
        known = {} if before is None else before.places
        absent = frozenset(known.keys() - counts.keys())
        places = {**known, **{place: (each.group, each.packets) for place, each in counts.items()}}
        look = _Look(state.link, rules, now, asked, places, absent)
        # Of those of the time between the two looks, and of all.
        new: Counter[tuple[str, bool | None]] = Counter()
        site = _to_site(state.link, switch)
        every: Counter[str] = Counter()
        for place, each in counts.items():
            more, is_new = _since(place, each, before, look)
            every[each.group] += more
            new[each.group, place.port in site if switch.is_core else None] += more if is_new else 0
        self._sums = Counter(self._sums) + every
        if before is not None and alike:
            # Otherwise it dropped an unknown part of them while it was away, or by the rules before.
            seconds = max(0.001, asked - before.asked)
            rates = (
                CoreDrop(datapath, group, packets / seconds, now, inward)
                for (group, inward), packets in new.items()
                if packets
            )
            look = look._replace(drops=tuple(rates))
        self._seen[datapath] = look

    def _treated(self, switch: Switch, policy: Policy) -> Iterator[tuple[bool, int, str]]:
        """The queues (True) and meters (False) of groups at a core, by number, each with the group's name."""
        if switch.group_control is GroupControl.QUEUES:
            # Also those that do not stand yet: no packet has chosen one until it does.
            yield from ((True, group.dscp, group.name) for group in policy.groups if has_queue(group))
            return
        names = {group.dscp: group.name for group in policy.groups}
        for each in treatments(policy, switch.max_meter, switch.group_control):
            if each.queue is not None:
                yield True, each.queue, names[each.dscp]
            if each.rate is not None:
                yield False, each.dscp, names[each.dscp]

    async def _count(self, link: SwitchLink, switch: Switch) -> dict[_Place, _Count]:
        treated = list(self._treated(switch, self._loop.desired_of(link.datapath).policy))
        queues = {number: name for is_queue, number, name in treated if is_queue}
        meters = {number: name for is_queue, number, name in treated if not is_queue}
        found: dict[_Place, _Count] = {}
        if queues:
            ports = {port.number: port.name for port in link.features.ports.values()}
            # Queues that are maintained on their host drop inside, which Open vSwitch does not count.
            dropped = self._loop.queues.dropped(link.datapath)
            for queue in await link.queue_stats():
                if queue.queue in queues and queue.port in ports:
                    place = _Place(ports[queue.port], queue.queue)
                    packets = max(queue.errors, dropped.get((place.port, place.number), 0))
                    found[place] = _Count(queues[queue.queue], packets, queue.age)
        if meters:
            for number, meter in (await link.meter_stats()).items():
                if number in meters:
                    found[_Place("", number)] = _Count(meters[number], meter.band_packets, meter.age)
        return found


def _to_site(link: SwitchLink, switch: Switch) -> frozenset[str]:
    """The names of a core's ports to the site, by which packets go in. A meter is for those that leave."""
    ports = (link.features.ports.get(number) for number in switch.lan)
    return frozenset(port.name for port in ports if port is not None)


def _since(place: _Place, count: _Count, before: _Look | None, look: _Look) -> tuple[int, bool]:
    """The packets that a place has dropped of its group's since it was seen last, and whether all of them are of the
    time since the look before."""
    old = None if before is None else before.places.get(place)
    # A switch that has started again may have kept queues whose age begins anew: that of those alone is known which
    # were made over this connection.
    since = look.link.began if before is None else max(look.link.began, before.asked)
    unseen = before is None or old is None or place in before.absent
    if unseen and count.age and look.asked - count.age > since:
        # It was made since then, and began at 0.
        return count.packets, True
    if old is None:
        # Since when it has counted is not known: its drops are nobody's.
        return 0, False
    group, packets = old
    if group != count.group:
        # Those that came while another group had the place are nobody's.
        return 0, False
    # One that was made anew counts from 0. One that the last look has not seen has dropped an unknown part before that.
    more = count.packets if count.packets < packets else count.packets - packets
    return more, before is not None and place not in before.absent
