"""All jobs, switches and the policy together: what each switch should hold, in whole and change by change.

:meth:`Desired.build` is the full calculation and the oracle. :meth:`Desired.put` and :meth:`Desired.remove` change one
job and answer what that changes on which switch, at a cost that does not grow with the number of jobs; a property test
holds the two against each other on random histories. No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from lark_common.worker_rules import WaysOut, WorkerRules
from lark_controller.flows import access_point, core
from lark_controller.flows.diff import diff
from lark_controller.flows.edge import program as edge
from lark_controller.flows.edge.delivery import announced, announcements
from lark_controller.flows.edge.slices import slice_change, slice_flows
from lark_controller.flows.external_jobs import ExternalJobs, no_room
from lark_controller.flows.labelled_prefixes import LabelledPrefixes
from lark_controller.flows.live_addresses import NOTHING_CLOSED, live_addresses
from lark_controller.flows.model import Changes, Flow, FlowData, FlowKey, Program
from lark_controller.flows.placement import Placed, Switch, same_for_switches, same_frame
from lark_controller.flows.prefixes import Prefix
from lark_controller.flows.relabel import Followed, Net, enter, fill, move_blocks, relabel, slice_at_port, slice_label
from lark_controller.flows.wan import local_networks
from lark_controller.flows.worker_rules import slices_of, worker_rules
from lark_controller.jobs.job import Job
from lark_controller.policies.model import NO_SLICE, Decision, GroupControl, Policy, SliceKey, SwitchRole, WanAction
from lark_controller.qos.worker_queues import Claim


class Desired(ExternalJobs):
    """The jobs that are admitted, the switches that are known, and one policy.

    ``group_queues`` are the DSCPs of the groups whose queues stand, by core. What stands is that of the desired
    ``before``. ``networks`` are not the WAN.
    """

    def __init__(self, policy: Policy, before: Desired | None = None) -> None:
        super().__init__(policy)
        # The addresses of jobs in no slice are asked for by jobs behind NAT alone.
        self._slices: LabelledPrefixes = LabelledPrefixes(unasked=(NO_SLICE,))
        self._classes: LabelledPrefixes = LabelledPrefixes()
        if before is not None:
            self.queues = dict(before.queues)
            self._refusals = before._refusals.copy()
        self.group_queues: dict[int, frozenset[int]] = {} if before is None else dict(before.group_queues)
        self._inbound: LabelledPrefixes = LabelledPrefixes()
        controls = {spec.group_control for spec in policy.switches.values()}
        self._grouped = bool(policy.groups) and GroupControl.QUEUES in controls
        self.networks = local_networks(policy)
        # The addresses that are closed to slices because many jobs have others near them.
        self.closed = NOTHING_CLOSED
        self._dscp = {group.name: group.dscp for group in policy.groups}
        self._classed = {rule.position: rule for rule in policy.wans if rule.action is not WanAction.ALLOW}
        self._edge_rules: dict[bool, tuple[Flow, ...]] = {}
        # Label sets in use that were taken over, and whether the labels in them were: see :meth:`following`.
        self._followed: list[Followed] = []
        self._decided_anew: list[int] = []

    @classmethod
    def following(cls, policy: Policy, before: Desired) -> Desired:
        """The desired state of another policy, with all jobs and switches of ``before`` taken over, if
        :func:`.transition.places_alike`. They are copied, at a small part of the cost of putting every job again; each
        job keeps the decision that it had until :meth:`decide_anew`, with :meth:`move_labels` after the last."""
        after = cls._with_jobs_of(policy, before)
        # Labels stay where they mean the same; where not, every job enters anew.
        if kept := bool(policy.slices and before.policy.slices):
            after._slices = before._slices.copy()
        if policy.slices:
            after._followed.append((after._slices, slice_label, kept))
        if kept := bool(after._classed) and after._classed.keys() == before._classed.keys():
            after._classes = before._classes.copy()
        if after._classed:
            after._followed.append((after._classes, after._class_label, kept))
        if kept := after._grouped and before._grouped and after._dscp == before._dscp:
            after._inbound = before._inbound.copy()
        if after._grouped:
            after._followed.append((after._inbound, after._group_label, kept))
        return after

    @classmethod
    def as_of_now(cls, before: Desired) -> Desired:
        """A copy for what edges hold now: switches and queues may come in it, jobs may not. It has nothing for cores,
        and of labelled prefixes only the covers, so it takes a small part of the memory."""
        after = cls._with_jobs_of(before.policy, before)
        after._slices = before._slices.covers()
        return after

    @classmethod
    def _with_jobs_of(cls, policy: Policy, before: Desired) -> Desired:
        after = cls(policy, before)
        after._take_over(before)
        return after

    def decide_anew(self, number: int, decision: Decision) -> None:
        """Take this policy's decision for a job; the flows that this changes are calculated in :mod:`.transition`."""
        if (old := self.placed.get(number)) is None:
            return
        new = old
        if decision is not old.decision and decision != old.decision:
            new = self.where(old.job, decision)
            self._index(old, new)
            self._decided_anew.append(number)
        for prefixes, label_of, kept in self._followed:
            if not kept:
                enter(prefixes, new, label_of)

    def move_labels(self) -> Iterator[None]:
        """Move the jobs of which something else was decided to their labels, in steps that are a block's jobs each."""
        yield from move_blocks(self.placed, self._decided_anew, self._followed)
        self._followed, self._decided_anew = [], []

    @property
    def enters_all(self) -> bool:
        """True while jobs of which nothing else is decided are to be given to :meth:`decide_anew`, too."""
        return not all(kept for _, _, kept in self._followed)

    # -- questions ---------------------------------------------------------------------------------------------------

    def dscp_of(self, decision: Decision) -> int:
        """The DSCP that marks a decision's group; 0 where there is none."""
        return self._dscp.get(decision.group, 0)

    def is_classed(self, placed: Placed) -> bool:
        """True where cores need the job's addresses, because a WAN rule drops or steers its traffic."""
        return placed.job.has_pool_address and self._class_label(placed) is not None

    def needed_cores(self, placed: Placed) -> set[int]:
        """The cores, known or not, that a job needs: where a WAN rule drops or steers its traffic, or an external
        address of it is translated."""
        cores = set(self.translating(placed)) if placed.job.external else set[int]()
        return cores | self.policy.cores if self.is_classed(placed) else cores

    def worker_rules(self, host: str, out: WaysOut | None = None) -> WorkerRules:
        """The rules that a worker enforces for its jobs that are at no switch; ``out`` as in
        :func:`~lark_controller.flows.worker_rules.worker_rules`."""
        jobs = self.ruled_at(host)
        covers = {key: self._slices.cover(key) for key in slices_of(self.policy, jobs)}
        return worker_rules(self.policy, host, jobs, covers, self._dscp, out)

    def build(self, datapath: int) -> Program:
        """Everything that a known switch should hold, from scratch. Raises KeyError for an unknown one."""
        switch = self.switches[datapath]
        return Program.of(self._all(switch), core.meters(switch, self.policy))

    def _all(self, switch: Switch) -> Iterator[Flow]:
        if switch.role is SwitchRole.ACCESS_POINT:
            yield from access_point.frame(switch, self.policy, self.group_queues.get(switch.datapath, frozenset()))
            return
        if switch.is_core:
            yield from core.frame(switch, self.policy, self.group_queues.get(switch.datapath, frozenset()))
            for dscp in self._inbound_at(switch):
                yield from core.inbound_flows(dscp, self._inbound.prefixes(dscp))
            for position, rule in self._classed.items():
                yield from core.class_flows(rule, self._classes.prefixes(position))
            for number in self._external:
                if self._opens(switch.datapath, self.placed[number]):
                    yield from self._external_flows(self.placed[number], switch)
            return
        yield from edge.frame(switch)
        yield from self.edge_rules(switch.tracks)
        for placed in self.present_at(switch.datapath):
            yield from self.job_flows(placed, switch)
        for key, tag in self._local.at(switch.datapath).tags.items():
            yield from slice_flows(tag, self._slices.prefixes(key))
        yield from announcements(self.present_at(switch.datapath), switch)

    def slice_prefixes(self, key: SliceKey) -> tuple[Prefix, ...]:
        """The prefixes of a slice's jobs."""
        return self._slices.prefixes(key)

    def slice_digest(self, key: SliceKey) -> bytes:
        """A digest of the prefixes of a slice's jobs, equal for equal prefixes alone."""
        return self._slices.digest(key)

    @property
    def slice_changes(self) -> int:
        """A number that grows wherever the prefixes of a slice's jobs may change."""
        return self._slices.changes

    def build_job(self, datapath: int, number: int) -> Program:
        """The flows at a job's own port that a known switch should hold; none where the job is not attached to it."""
        placed, switch = self.placed.get(number), self.switches.get(datapath)
        if placed is None or switch is None or not switch.is_edge or placed.datapath != datapath:
            return Program()
        return Program.of(self.job_flows(placed, switch))

    def edge_rules(self, tracks: bool) -> tuple[Flow, ...]:
        """The policy's own flows on every edge; ``tracks``: with connection tracking."""
        found = self._edge_rules.get(tracks)
        if found is None:
            found = self._edge_rules[tracks] = tuple(edge.rules(self.policy, tracks=tracks))
        return found

    def marks(self, placed: Placed) -> edge.Marks:
        """The numbers by which a job's own edge recognises it."""
        decision = placed.decision
        tag = 0 if decision.slice is None else self._local.at(placed.datapath).tags.get(decision.slice, 0)
        dscp = self.dscp_of(decision) if self.policy.marks_packets else None
        # Steering is the cores' business, so an edge needs no other number for it.
        return edge.Marks(tag, decision.wan if decision.wan in self._dropping else 0, dscp)

    def job_flows(self, placed: Placed, switch: Switch) -> Iterator[Flow]:
        """A job's own flows at its edge."""
        return edge.job_flows(placed, switch, self.marks(placed), self.networks)

    # -- switches ----------------------------------------------------------------------------------------------------

    def set_switch(self, switch: Switch, hosts: Iterable[str] = ()) -> Changes:
        """Adds a switch, or takes its changed ports. ``hosts`` are the names by which jobs may name its worker.

        Returns the changes on that switch (of a switch that was not known before: everything that it should hold).
        """
        known = self.switches.get(switch.datapath)
        if known is not None and same_frame(known, switch):
            return self._move_ports(switch)
        before = Program() if known is None else self.build(switch.datapath)
        self.place_switch(switch, hosts)
        return diff(self.program(switch.datapath), before)

    def place_switch(
        self,
        switch: Switch,
        hosts: Iterable[str] = (),
        open_there: Collection[int] = (),
        like: Mapping[int, Placed] = MappingProxyType({}),
    ) -> set[int]:
        """As :meth:`set_switch`, without calculating what changes, for callers that need the whole program or none.

        Returns the numbers of the jobs whose switch was not known until now. ``rules`` has the switch at once only
        where its rules are limited, else from :meth:`program` on. ``open_there`` are the jobs whose external addresses
        a core has already: they keep their room before others. Places that are in ``like``, too, are shared with it.
        """
        self.switches[switch.datapath] = switch
        # It is compared as a whole, and so asked again.
        self.moved |= self._refusals.forget_at(switch.datapath)
        found: set[int] = set()
        if switch.is_edge:
            for host in map(str.lower, hosts):
                if self._hosts.setdefault(host, switch.datapath) == switch.datapath:
                    found |= self._homeless.pop(host, set())
        for number in found | self._local.at(switch.datapath).numbers:
            placed = self.placed[number]
            new, other = self.where(placed.job, placed.decision), like.get(number)
            self._index(placed, new if other is None or other != new else other)
        if switch.max_rules:
            self.fit(switch.datapath, open_there)
        return found

    def fit(self, datapath: int, open_there: Collection[int] = ()) -> None:
        """Share out anew the room for external addresses at a switch whose rules are limited, and count its rules.
        Those that have room keep it first."""
        if not (switch := self.switches[datapath]).is_edge:
            self._empty_room(datapath, open_there)
            self._fill_room(switch, len(self.build(datapath).flows))
        here = (self.placed[number] for number in self._external)
        opened = sorted(each.job.number for each in here if each.datapath == datapath and each.opened is not None)
        too_many = len(self.program(datapath).flows) - switch.max_rules
        while too_many > 0 and opened:
            placed = self.placed[opened.pop()]
            self._refusals.note(datapath, placed.job, no_room(switch))
            without = self.where(placed.job, placed.decision)
            too_many -= len(list(self.job_flows(placed, switch))) - len(list(self.job_flows(without, switch)))
            self._index(placed, without)
            self.moved.add(placed.job.number)
            self.rules[datapath] = too_many + switch.max_rules

    def program(self, datapath: int) -> Program:
        """:meth:`build`, and count its rules."""
        program = self.build(datapath)
        self.rules[datapath] = len(program.flows)
        return program

    def _move_ports(self, switch: Switch) -> Changes:
        """Takes ports that came or went, where nothing else changed: only the jobs at these ports are looked up."""
        self.switches[switch.datapath] = switch
        wanted, gone = Program(), set[FlowKey]()
        for placed in self.jobs_at(switch.datapath):
            new = self.where(placed.job, placed.decision)
            if (new.port, new.queue, new.reserved) == (placed.port, placed.queue, placed.reserved):
                continue
            change = self._change(placed.job.number, new).get(switch.datapath, Changes())
            for key in change.flows_gone:
                wanted.flows.pop(key, None)
                gone.add(key)
            for flow in change.flows_set:
                wanted.flows[flow.key] = flow.data
                gone.discard(flow.key)
        return diff(wanted, Program({key: FlowData(0) for key in gone}))

    # -- jobs --------------------------------------------------------------------------------------------------------

    def put(self, job: Job, decision: Decision) -> dict[int, Changes]:
        """Admit a job, or change it; returns the changes of each known switch."""
        return self._change(job.number, self.where(job, decision))

    def load(self, jobs: Iterable[tuple[Job, Decision]]) -> None:
        """:meth:`put` of all jobs at a small part of the cost, where there are neither jobs nor switches yet."""
        assert not self.placed, "jobs are loaded first"
        assert not self.switches, "jobs are loaded before switches connect"
        self._place_first(jobs)
        live = live_addresses(self.policy, (placed.job for placed in self.placed.values()))
        self.policy, self.closed = live.enforced(), live.closed()
        self.networks = local_networks(self.policy)
        used = (bool(self.policy.slices), bool(self._classed), self._grouped)
        sets = (self._slices, slice_label), (self._classes, self._class_label), (self._inbound, self._group_label)
        fill(self.placed.values(), (each for each, wanted in zip(sets, used, strict=True) if wanted))

    def remove(self, number: int) -> dict[int, Changes]:
        """Removes a job; returns the changes of each known switch."""
        for claim in (Claim.of_job(number), Claim.of_part(number)):
            self.queues.pop(claim, None)
        if (placed := self.placed.get(number)) is not None:
            for each in placed.job.reserved:
                self.queues.pop(Claim.of_flow(each.number), None)
        return self._change(number, None)

    def set_queue(self, claim: Claim, queue: int | None, job: int | None) -> dict[int, Changes]:
        """A queue at a worker's uplinks stands (None: no longer); returns the changes of each switch.

        ``job`` is the number of the job that sends through it, which may not be put yet; None where it is over.
        """
        if self.queues.get(claim) == queue:
            return {}
        if queue is None:
            del self.queues[claim]
        else:
            self.queues[claim] = queue
        placed = None if job is None else self.placed.get(job)
        return {} if placed is None else self.put(placed.job, placed.decision)

    def set_group_queues(self, datapath: int, dscps: frozenset[int]) -> Changes:
        """The queues of these groups stand on a core, and no others; returns the changes there."""
        if self.group_queues.get(datapath, frozenset()) == dscps:
            return Changes()
        if datapath not in self.switches:
            self.group_queues[datapath] = dscps
            return Changes()
        before = self.build(datapath)
        self.group_queues[datapath] = dscps
        if self.switches[datapath].max_rules:
            self.fit(datapath)
        return diff(self.program(datapath), before)

    def _inbound_at(self, switch: Switch) -> Iterator[int]:
        """The groups for which a core has flows towards the site."""
        if switch.group_control is GroupControl.QUEUES:
            known = set(self._dscp.values())
            yield from (dscp for dscp in sorted(self.group_queues.get(switch.datapath, ())) if dscp in known)

    def _group_label(self, placed: Placed) -> int | None:
        return None if placed.decision.isolated else self.dscp_of(placed.decision) or None

    def _change(self, number: int, new: Placed | None) -> dict[int, Changes]:
        old = self.placed.get(number)
        if old == new:
            return {}
        if (
            old is not None
            and new is not None
            and same_for_switches(old.job, new.job)
            and replace(old, job=new.job) == new
        ):
            self.placed[number] = new
            return {}
        edges = {dp for p in (old, new) if p is not None and (dp := p.datapath) is not None and dp in self.switches}
        touched = {dp: self._touched(dp, old, new) for dp in edges}
        announcing = any(placed is not None and announced(placed) for placed in (old, new))
        before = {dp: list(self._part(dp, old, keys, announcing)) for dp, keys in touched.items()}
        was_open = {dp: self._opens(dp, old) for dp in self._cores()} if old is not None and old.job.external else {}
        self._index(old, new)
        slices = relabel(self._slices, old, new, slice_label) if self.policy.slices else {}
        classes = relabel(self._classes, old, new, self._class_label) if self._classed else {}
        inbound = relabel(self._inbound, old, new, self._group_label) if self._grouped else {}
        after = {dp: list(self._part(dp, new, keys, announcing)) for dp, keys in touched.items()}
        changes: dict[int, Changes] = {}
        # Those that no switch has a flow for count for nothing.
        several = len(slices) - (NO_SLICE in slices) > 1
        for key, net in slices.items():
            assert isinstance(key, SliceKey)
            self.ruled.slice_changed(key)
            if self._followed:
                # No switch holds any of this yet. Until labels are moved a job breaks up the block of those beside it,
                # which would change every switch of both slices.
                continue
            made: dict[int, tuple[Changes, int]] = {}
            for datapath in self._local.edges_of(key):
                if datapath not in self.switches or key in touched.get(datapath, ()):
                    continue
                tag = self._local.at(datapath).tags[key]
                if datapath in touched or several:
                    after.setdefault(datapath, []).extend(slice_flows(tag, net.added))
                    before.setdefault(datapath, []).extend(slice_flows(tag, net.removed))
                    continue
                # A slice has the same tag on nearly every switch, and then they all get the same.
                if tag not in made:
                    made[tag] = slice_change(tag, net.added, net.removed)
                changes[datapath], more = made[tag]
                self._count_rules(datapath, more)
        for position, net in classes.items():
            assert isinstance(position, int)
            for datapath in self._cores():
                after.setdefault(datapath, []).extend(core.class_flows(self._classed[position], net.added))
                before.setdefault(datapath, []).extend(core.class_flows(self._classed[position], net.removed))
        for datapath in self._cores() if inbound else ():
            for dscp in self._inbound_at(self.switches[datapath]):
                moved = inbound.get(dscp, Net())
                after.setdefault(datapath, []).extend(core.inbound_flows(dscp, moved.added))
                before.setdefault(datapath, []).extend(core.inbound_flows(dscp, moved.removed))
        asks = any(each is not None and each.job.external for each in (old, new))
        for datapath in self._cores() if asks else self._rooms:
            come, go = after.setdefault(datapath, []), before.setdefault(datapath, [])
            self._move_external(self.switches[datapath], (old, was_open.get(datapath, False)), new, come, go)
        for datapath in before.keys() | after.keys():
            wanted, there = Program.of(after.get(datapath, ())), Program.of(before.get(datapath, ()))
            self._count_rules(datapath, len(wanted.flows) - len(there.flows))
            if change := diff(wanted, there):
                changes[datapath] = change
        return changes

    # -- external addresses ------------------------------------------------------------------------------------------

    def refuse_external(self, datapath: int, number: int, reason: str) -> dict[int, Changes]:
        """Let nothing of a job's external address stand at a switch that refuses it; returns the changes."""
        placed, switch = self.placed.get(number), self.switches.get(datapath)
        if placed is None or switch is None or self._refusals.why(datapath, placed.job):
            return {}
        return self._refusal_moved(switch, placed, lambda: self._refusals.note(datapath, placed.job, reason))

    def try_external(self, datapath: int, number: int) -> dict[int, Changes]:
        """Forget that a switch refused a job's external address; returns the changes."""
        placed, switch = self.placed.get(number), self.switches.get(datapath)
        if placed is None or switch is None:
            self._refusals.forget(number, datapath)
            return {}
        return self._refusal_moved(switch, placed, lambda: self._refusals.forget(number, datapath))

    def refused_external(self) -> dict[int, int]:
        """The oldest job of which each switch has refused an external address."""
        return self._refusals.oldest()

    def expect_refusal(self, datapath: int, job: Job, reason: str) -> bool:
        """Let a job that is to be put have no external address at a switch; False where that is so already."""
        known = bool(self._refusals.why(datapath, job))
        self._refusals.note(datapath, job, reason)
        return not known

    def _refusal_moved(self, switch: Switch, placed: Placed, move: Callable[[], None]) -> dict[int, Changes]:
        self.moved.add(placed.job.number)
        if switch.is_edge:
            move()
            return self.put(placed.job, placed.decision)
        come, go = list[Flow](), list[Flow]()
        was_open = self._opens(switch.datapath, placed)
        move()
        self._move_external(switch, (placed, was_open), placed, come, go)
        wanted, there = Program.of(come), Program.of(go)
        self._count_rules(switch.datapath, len(wanted.flows) - len(there.flows))
        return {switch.datapath: diff(wanted, there)}

    def _touched(self, datapath: int, old: Placed | None, new: Placed | None) -> frozenset[SliceKey]:
        """The slices whose tag on an edge comes, goes or changes when ``old`` becomes ``new``."""
        keys = (None if each is None or each.datapath != datapath else slice_at_port(each) for each in (old, new))
        return self._local.at(datapath).moved(*keys)

    def _part(
        self, datapath: int, changed: Placed | None, keys: frozenset[SliceKey], announcing: bool
    ) -> Iterator[Flow]:
        """The flows of an edge that a change may touch: the job's, those of the slices in ``keys``, announcements.

        Announcements go to all local jobs concerned, so they are left out where none of those changes.
        """
        switch = self.switches[datapath]
        local = self._local.at(datapath)
        if changed is not None and changed.datapath == datapath:
            yield from self.job_flows(changed, switch)
        for key in keys:
            if key in local.tags:
                yield from slice_flows(local.tags[key], self._slices.prefixes(key))
        # A job without a slice at its port has no flow that depends on a tag.
        own = None if changed is None or changed.datapath != datapath else slice_at_port(changed)
        if any(local.slices.get(key, 0) > (key == own) for key in keys):
            for placed in self.present_at(datapath):
                if placed.decision.slice in keys and placed is not changed:
                    yield from self.job_flows(placed, switch)
        if announcing:
            yield from announcements(self.present_at(datapath), switch)

    def _class_label(self, placed: Placed) -> int | None:
        wan = placed.decision.wan
        return wan if wan in self._classed and not placed.decision.isolated else None
