"""From one policy to the next on one switch: the changes, at a cost that grows with what differs. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from lark_controller.flows.desired import Desired
from lark_controller.flows.diff import diff
from lark_controller.flows.edge import program as edge
from lark_controller.flows.edge.delivery import announced, announcements
from lark_controller.flows.edge.slices import slice_flows
from lark_controller.flows.model import Changes, Flow, Program
from lark_controller.flows.placement import Placed
from lark_controller.policies.model import Policy, SliceKey, WanAction


def places_alike(one: Policy, other: Policy) -> bool:
    """True where two policies place switches and their ports alike."""
    if (one.edge_uplinks, one.edge_speed) != (other.edge_uplinks, other.edge_speed):
        return False
    return one.switches == other.switches


def _marks_alike(one: Policy, other: Policy) -> bool:
    """True where equal decisions of two policies have equal marks, but for tags: steering is no business of edges."""
    return (one.groups, one.marks_packets) == (other.groups, other.marks_packets) and _dropping(one) == _dropping(other)


def _dropping(policy: Policy) -> frozenset[int]:
    return frozenset(rule.position for rule in policy.wans if rule.action is WanAction.DROP)


class Transition:
    """The way of switches from the desired state ``before`` to ``after``, which may both change in between.

    ``moves_jobs`` is True where jobs may have other places at switches than before.
    """

    def __init__(self, before: Desired, after: Desired) -> None:
        self._before = before
        self._after = after
        self.moves_jobs = not places_alike(before.policy, after.policy)
        # Jobs of which the same is decided differ by their slices' tags alone.
        self._unmarked = _marks_alike(before.policy, after.policy) and before.networks == after.networks
        self._rules: dict[bool, tuple[tuple[Flow, ...], tuple[Flow, ...]]] = {}
        # Slices whose prefixes were compared, and those of them that differ, as long as neither state's change: a slice
        # has jobs on many switches.
        self._compared: set[SliceKey] = set()
        self._differing: set[SliceKey] = set()
        self._compared_at = (-1, -1)

    def changes(self, datapath: int) -> Changes:
        """The changes that a switch needs which holds what it should hold in ``before``; counts its rules in ``after``.

        Equal to the difference of both whole programs (a property test shows it).
        """
        before, after = self._before, self._after
        was, now = before.switches.get(datapath), after.switches[datapath]
        if was != now or not now.is_edge or now.max_rules or datapath not in before.rules:
            return diff(after.program(datapath), before.build(datapath))
        there, new_flows = (list(flows) for flows in self._differing_rules(now.tracks))
        tags, old_tags = after.tags_at(datapath), before.tags_at(datapath)
        for key in self._moved_slices(tags, old_tags):
            if key in old_tags:
                there += slice_flows(old_tags[key], before.slice_prefixes(key))
            if key in tags:
                new_flows += slice_flows(tags[key], after.slice_prefixes(key))
        changed, marked = self.changed(datapath), 0
        for was_there, is_there in changed:
            if was_there is not None and is_there is not None and self._alike(was_there, is_there):
                flows = edge.marked_flows(is_there, before.marks(was_there), after.marks(is_there), after.networks)
                new_flows += (found := list(flows))
                marked += len(found)
                continue
            there += [] if was_there is None else before.job_flows(was_there, now)
            new_flows += [] if is_there is None else after.job_flows(is_there, now)
        announcing = any(placed is not None and announced(placed) for pair in changed for placed in pair)
        if announcing:
            there += announcements(before.jobs_at(datapath), now)
            new_flows += announcements(after.jobs_at(datapath), now)
        old, new = Program.of(there), Program.of(new_flows)
        after.rules[datapath] = before.rules[datapath] + len(new.flows) - len(old.flows) - marked
        return diff(new, old)

    def changed(self, datapath: int) -> list[tuple[Placed | None, Placed | None]]:
        """The jobs of a switch whose own flows there differ, as they are placed before and after."""
        before, after = self._before, self._after
        if self._unmarked and after.tags_at(datapath) == before.tags_at(datapath):
            was_at, is_at = before.placed, after.placed
            here = before.numbers_at(datapath) | after.numbers_at(datapath)
            numbers = {number for number in here if was_at.get(number) is not is_at.get(number)}
        else:
            numbers = {*before.numbers_at(datapath), *after.numbers_at(datapath)}
        found = []
        for number in sorted(numbers):
            was, now = before.placed.get(number), after.placed.get(number)
            was = was if was is not None and was.datapath == datapath else None
            now = now if now is not None and now.datapath == datapath else None
            if was is None or now is None or not self._alike(was, now) or before.marks(was) != after.marks(now):
                found.append((was, now))
        return found

    def _moved_slices(self, tags: Mapping[SliceKey, int], old_tags: Mapping[SliceKey, int]) -> set[SliceKey]:
        """The slices with one of these tags that have another before and after, or other prefixes."""
        before, after = self._before, self._after
        if self._compared_at != (at := (before.slice_changes, after.slice_changes)):
            self._compared, self._differing, self._compared_at = set(), set(), at
        keys = tags.keys() | old_tags.keys()
        for key in keys - self._compared:
            if after.slice_digest(key) != before.slice_digest(key):
                self._differing.add(key)
        self._compared |= keys
        moved = keys & self._differing
        return moved if tags == old_tags else moved | {key for key in keys if tags.get(key) != old_tags.get(key)}

    def _alike(self, was: Placed, now: Placed) -> bool:
        """True where a job has the same flows but for its marks."""
        if now.reserved and self._before.networks != self._after.networks:
            return False
        return edge.alike(was, now)

    def _differing_rules(self, tracks: bool) -> tuple[tuple[Flow, ...], tuple[Flow, ...]]:
        """The policies' own flows on every edge that are not the same: those before, and those after."""
        found = self._rules.get(tracks)
        if found is None:
            before, after = self._before.edge_rules(tracks), self._after.edge_rules(tracks)
            held, new_flows = set(before), set(after)
            found = self._rules[tracks] = (
                tuple(flow for flow in before if flow not in new_flows),
                tuple(flow for flow in after if flow not in held),
            )
        return found
