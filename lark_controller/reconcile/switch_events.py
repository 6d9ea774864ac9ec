"""Events of switches' connections: connected with a dump, gone, other ports, PacketIn, refusal.

Called by :mod:`lark_controller.switches.openflow` on the reconcile loop's thread. A switch is sent nothing before its
complete dump is there; from then on what changes is sent in order behind the first difference, and the switch is in
sync once that difference is confirmed by barrier.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from lark_common.log import INFO, event
from lark_controller.api.audit import Happening
from lark_controller.api.switches import SwitchProblem
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.diff import diff
from lark_controller.flows.marker import NO_PROGRAM
from lark_controller.flows.model import Changes, FlowKey
from lark_controller.flows.tracked import tracked
from lark_controller.reconcile.confirmations import FlowsAt
from lark_controller.reconcile.counters import CounterReader
from lark_controller.reconcile.markers import Markers
from lark_controller.reconcile.packet_ins import Reactions
from lark_controller.reconcile.progress import Progress
from lark_controller.reconcile.queues import Queues
from lark_controller.reconcile.sending import Sending
from lark_controller.reconcile.state import LoopState
from lark_controller.reconcile.switch import SwitchState, dpid_text, placed_switch
from lark_controller.switches.fence import FENCED
from lark_controller.switches.openflow.applies import FlowError, Outcome
from lark_controller.switches.openflow.dumps import Dump
from lark_controller.switches.openflow.link import STOPS, SUPERSEDED, SwitchLink
from lark_controller.switches.openflow.replies import FlowRemoved, PacketIn

SWITCH_GONE: Final = "switch gone"
SWITCH_RETURNED: Final = "switch returned"

# Flows that a switch is to be expected to hold before its program was made once: its frame, for each of its own jobs,
# for each job of the pool. And those of changes under way.
_FRAME: Final = 512
_OF_JOB: Final = 64
_OF_OTHER_JOB: Final = 6
_CHANGING: Final = 256


class SwitchEvents:
    """The reconcile loop's handlers for connections."""

    def __init__(
        self,
        loop: LoopState,
        progress: Progress,
        sending: Sending,
        queues: Queues,
        counters: CounterReader,
        reactions: Reactions,
        markers: Markers,
    ) -> None:
        self._loop = loop
        self._markers = markers
        self._progress = progress
        self._sending = sending
        self._queues = queues
        self._counters = counters
        self._reactions = reactions

    def waited_for(self) -> Iterator[int]:
        """The switches of the jobs whose callers wait for their confirmation."""
        confirmations = self._loop.confirmations
        for number in confirmations.awaited():
            yield from (what.datapath for what in confirmations.waiting(number) if isinstance(what, FlowsAt))

    def is_waited_for(self, datapath: int) -> bool:
        """True for a switch of a job whose caller waits for its confirmation."""
        return self._loop.confirmations.is_awaited(FlowsAt(datapath))

    def expects(self, datapath: int) -> bool:
        """True for a switch that is declared or has jobs."""
        desired = self._loop.desired
        return datapath in desired.policy.switches or bool(desired.count_at(datapath))

    def flows_expected(self, link: SwitchLink) -> int:
        """The number of Lark's own flows that a switch is to be expected to hold, rather too many than too few."""
        datapath = link.datapath
        desired = self._loop.desired_of(datapath)
        known = desired.rules.get(datapath)
        if known is not None:
            return known + self._reactions.count(datapath) + _CHANGING
        jobs = desired.count_at(datapath)
        # Each job of the pool may be a prefix of each address, in both directions and for ARP.
        others = len(desired.placed) if jobs or datapath in desired.policy.switches else 0
        return _FRAME + _OF_JOB * jobs + _OF_OTHER_JOB * others

    def holds(self, link: SwitchLink) -> bool:
        """True where a switch's marker shows that it holds its whole program; it is not reported as connected yet."""
        if link.marker is None or link.marker[0].fingerprint == NO_PROGRAM:
            return False
        state = self._loop.switch_state(link.datapath)
        self._place(state, link)
        self._markers.place(link, state.hosts)
        return self._markers.agrees(link)

    def leftovers(self, link: SwitchLink, dump: Dump) -> list[FlowKey]:
        """The flows of a dump that a switch should not hold; it is not reported as connected yet."""
        state = self._loop.switch_state(link.datapath)
        self._place(state, link, dump)
        wanted = self._loop.desired_of(link.datapath).program(link.datapath).flows
        return sorted(key for key in dump.program.flows if key not in wanted)

    def _place(self, state: SwitchState, link: SwitchLink, dump: Dump | None = None) -> None:
        state.features = link.features
        state.address = link.features.address
        state.description = link.features.description
        # The one in force stands first. Whatever the switch holds is compared with the whole program afterwards.
        open_there = frozenset[int]() if dump is None else _external_in(dump)
        arrived, *_ = [
            desired.place_switch(placed_switch(desired.policy, link.datapath, link.features), state.hosts, open_there)
            for desired, _ in self._loop.pair.all()
        ]
        state.arrived |= arrived

    def switch_connected(self, link: SwitchLink, dump: Dump | None) -> None:
        """Handle a switch that has connected, with its dump: compare, and send the difference. Without a dump, its
        marker has shown that there is none."""
        loop = self._loop
        state = loop.switch_state(link.datapath)
        left, still, state.still = state.since, state.still, ""
        state.link, state.compared, state.in_sync, state.trusted = link, False, False, False
        state.since = time.time()
        state.reason = "is being compared"
        if dump is not None:
            self._place(state, link, dump)
        arrived, state.arrived = state.arrived, set()
        switch = loop.desired_of(link.datapath).switches[link.datapath]
        if left is not None:
            text = f"{switch.name} is connected again after {state.since - left:.0f} s"
            if still:
                text += f"; {still}"
            loop.note(Happening(dpid_text(link.datapath), SWITCH_RETURNED, text))
        for happening in state.note_policy(loop.desired_of(link.datapath)):
            loop.note(happening)
        self._reactions.switch_gone(link.datapath)
        if dump is not None:
            state.installed = len(dump.program.flows)
            self._counters.compared(link.datapath, dump)
        self._queues.switch_connected(link, {} if dump is None else dump.program.flows)
        for number in arrived:
            if (placed := loop.desired.placed.get(number)) is not None:
                self._progress.expect(placed.job)
        if dump is not None:
            self._compare(state, link, dump)
        else:
            self._trust(state, link)
        loop.dirty.switch(link.datapath)

    def _compare(self, state: SwitchState, link: SwitchLink, dump: Dump) -> None:
        desired = self._loop.desired_of(link.datapath)
        switch = desired.switches[link.datapath]
        program = desired.program(link.datapath)
        if switch.max_rules and len(program.flows) > switch.max_rules:
            state.reason = (
                f"needs {len(program.flows)} rules and takes {switch.max_rules}; nothing was sent, what it holds stays"
            )
            state.problems.append(SwitchProblem(time.time(), state.reason))
            self._progress.lost(state)
            return
        state.note_shortcomings(desired)
        state.compared, state.compared_at = True, time.monotonic()
        changes = diff(program, dump.program)
        event(
            "switch compared",
            level=link.connection.level(INFO),
            datapath=dpid_text(link.datapath),
            installed=len(dump.program.flows),
            desired=len(program.flows),
            changes=len(changes),
        )
        self._bring_up(state, link, changes)
        gone, state.to_forget = state.to_forget, set()
        # Its flows may be of jobs that ended while another controller, or none, was in charge of it.
        if switch.is_edge and (there := tracked(dump.program)):
            gone |= {each.address for each in there - tracked(program)}
        self._sending.forget_tracked(state, gone)

    def _trust(self, state: SwitchState, link: SwitchLink) -> None:
        """Take a switch's marker for its dump. The next full check compares it."""
        changes = self._markers.take(link)
        state.note_shortcomings(self._loop.desired_of(link.datapath))
        state.compared = state.trusted = True
        if changes:
            self._bring_up(state, link, changes)
        else:
            self._synced(state, link, Outcome(confirmed=True))
        gone, state.to_forget = state.to_forget, set()
        self._sending.forget_tracked(state, gone)

    def _bring_up(self, state: SwitchState, link: SwitchLink, changes: Changes) -> None:
        """Send a switch the difference between what it holds and what it should hold."""
        state.reason = "is being brought up to date"
        link.apply(changes).add_done_callback(
            lambda done: self._synced(state, link, done.result()) if not done.cancelled() else None
        )

    def _synced(self, state: SwitchState, link: SwitchLink, outcome: Outcome) -> None:
        if state.link is not link:
            return
        nobodys = self._sending.refused(state, outcome.errors)
        if not outcome.confirmed:
            state.reason = outcome.reason or "did not confirm in time"
            link.close(f"the first comparison was not confirmed: {state.reason}")
            return
        state.in_sync, state.reason = not nobodys, nobodys
        desired = self._loop.desired_of(state.datapath)
        state.installed = desired.rules.get(state.datapath, 0)
        event(
            "switch in sync" if state.in_sync else "switch not in sync",
            level=link.connection.level(INFO),
            datapath=dpid_text(state.datapath),
            reason=state.reason or None,
        )
        portless = {placed.job.number for placed in desired.jobs_at(state.datapath) if placed.port is None}
        for number in portless:
            self._progress.expect(desired.placed[number].job)
        waited = self._loop.confirmations.open_at(FlowsAt(state.datapath))
        settled = set(self._loop.confirmations.synced(FlowsAt(state.datapath), portless))
        for number in settled:
            self._loop.dirty.job(number)
        self._progress.name_others(state, [number for number in waited if number not in settled])
        for placed in desired.jobs_at(state.datapath):
            self._loop.dirty.job(placed.job.number)

    def switch_gone(self, link: SwitchLink, reason: str) -> None:
        """Handle the end of a connection; the flows stay on the switch, which is compared anew when it returns."""
        state = self._state_of(link)
        if state is None:
            return
        state.link, state.compared, state.in_sync, state.trusted = None, False, False, False
        if reason in (STOPS, FENCED):
            # The stored states of its jobs hold until the next controller has asked it.
            return
        state.since, state.still = time.time(), self._loop.standstill.after()
        why = f"{reason}; {state.still}" if state.still else reason
        state.reason = f"is not connected ({why})"
        text = f"{state.label(self._loop.desired)}: {why}"
        self._loop.note(Happening(dpid_text(link.datapath), SWITCH_GONE, text))
        if reason.startswith(SUPERSEDED):
            state.note_rival(_host(link.connection.address), _host(reason.removeprefix(SUPERSEDED).strip()))
        self._reactions.switch_gone(link.datapath)
        self._counters.gone(link.datapath)
        self._progress.lost(state)

    def ports_changed(self, link: SwitchLink) -> None:
        """Handle ports that came, went, were renumbered, or are up or down now.

        The switch's flows are calculated again with the ports as they are: jobs of a WAN port that is down leave by the
        one that the policy names as next, and come back.
        """
        state = self._state_of(link)
        if state is None:
            return
        loop = self._loop
        state.features = link.features
        self._reactions.ports_changed(link)
        waiting = [p.job.number for p in loop.desired.jobs_at(link.datapath) if p.port is None]
        held = {p.job.number: p.port for p in loop.desired.jobs_at(link.datapath) if p.port is not None}
        holds = loop.desired_of(link.datapath)
        known = holds.switches.get(link.datapath)
        for desired, _ in loop.pair.all():
            changes = desired.set_switch(placed_switch(desired.policy, link.datapath, link.features), state.hosts)
            if desired is holds and state.compared and changes:
                arrived = [n for n in waiting if (p := desired.placed.get(n)) is not None and p.port is not None]
                for number in arrived:
                    self._counters.begin(desired.placed[number])
                    loop.confirmations.sent(number, FlowsAt(link.datapath))
                link.apply(changes).add_done_callback(partial(self._arrived, state, link, arrived))
        now = holds.switches[link.datapath]
        # A core's ports are named in the policy: one that comes, goes or has another speed may be all that it lacks.
        if state.compared and (known is None or known.uplinks != now.uplinks or not now.is_edge):
            state.note_shortcomings(holds)
        for happening in (*state.note_wan(known, now), *state.note_links(link, now)):
            loop.note(happening)
        for number in (*waiting, *held):
            placed = loop.desired.placed.get(number)
            if placed is not None and placed.port is None:
                self._counters.lost((placed,))
                self._progress.expect(placed.job)
                loop.dirty.job(number)
        loop.dirty.switch(link.datapath)
        for number in waiting:
            if (placed := loop.desired.placed.get(number)) is not None:
                self._queues.expect(placed)

    def _arrived(self, state: SwitchState, link: SwitchLink, numbers: list[int], done: asyncio.Future[Outcome]) -> None:
        if not done.cancelled():
            for number in numbers or (None,):
                self._sending.applied(state, link, number, done.result())

    def packet_in(self, link: SwitchLink, packet: PacketIn) -> None:
        """Handle a PacketIn."""
        state = self._state_of(link)
        if state is not None:
            state.packet_ins += 1
            if link.packet_ins_dropped != state.packet_ins_dropped:
                state.note_flood(link.packet_ins_dropped)
            self._reactions.packet_in(link, packet)

    def flow_removed(self, link: SwitchLink, removed: FlowRemoved) -> None:
        """Handle a FlowRemoved: a reactive or learned flow aged out."""
        self._counters.flow_removed(removed)
        self._reactions.flow_removed(link, removed)

    def switch_error(self, link: SwitchLink, error: FlowError) -> None:
        """Handle an error that belongs to no change (a PacketOut, a probe)."""
        state = self._state_of(link)
        if state is not None:
            self._sending.refused(state, (error,))

    def _state_of(self, link: SwitchLink) -> SwitchState | None:
        """The state of a link's switch, unless another link has taken its place."""
        state = self._loop.switches.get(link.datapath)
        return state if state is not None and state.link is link else None


def _external_in(dump: Dump) -> frozenset[int]:
    """The jobs whose external addresses a switch has flows of."""
    whose = (parse(data.cookie) for data in dump.program.flows.values())
    return frozenset(each.number for each in whose if each.category == Category.EXTERNAL and each.number)


def _host(address: str) -> str:
    return address.rpartition(":")[0]
