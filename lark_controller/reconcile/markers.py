"""Markers of switches: set where one has held its whole program for a while, read where one connects again.

Used by the reconcile loop, on its thread. A controller that starts again reads a marker in place of thousands of flows:
where it shows the program that the edge should hold, nothing is sent, and the next full check compares the flows. A
core, of which there are few, is compared as ever; its marker spares it the flows with which the handshake tries it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from hashlib import blake2b
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

import lark_common
import lark_controller
from lark_common.log import failure
from lark_controller.flows.desired import Desired
from lark_controller.flows.fingerprint import Fingerprints
from lark_controller.flows.marker import MOST_RULES, NO_PROGRAM, Marker
from lark_controller.flows.model import Changes
from lark_controller.flows.placement import Placed
from lark_controller.flows.transition import Transition
from lark_controller.qos.worker_queues import Claim
from lark_controller.reconcile.job_queues import job_demand
from lark_controller.reconcile.packet_ins import Reactions
from lark_controller.reconcile.queues import Queues
from lark_controller.reconcile.state import LoopState
from lark_controller.reconcile.switch import SwitchState, dpid_text, placed_switch
from lark_controller.switches.openflow.applies import Outcome
from lark_controller.switches.openflow.link import SwitchLink

# Seconds without a change after which a switch gets a marker, and between two looks at all of them.
QUIET: Final = 10.0
LOOK: Final = 1.0
# Seconds of calculation before the loop turns to other work; it then has so many times as long for that.
PORTION: Final = 0.005
SHARE: Final = 20
# Seconds after a start for which its state is kept, unless all switches are back before.
KEPT_SECONDS: Final = 120.0
# Seconds that the switches have to confirm the markers of a controller that stops.
LAST_SECONDS: Final = 5.0


class Markers:
    """The markers of all switches; they are read where they are ``trusted``."""

    def __init__(self, loop: LoopState, queues: Queues, reactions: Reactions, *, trusted: bool) -> None:
        self._trusted = trusted
        self._running: asyncio.Task[None] | None = None
        self._loop = loop
        self._queues = queues
        self._reactions = reactions
        self._fingerprints = Fingerprints(loop.desired, code_digest())
        # As of the start, with which the markers agree whatever jobs came and went since.
        self._loaded: Fingerprints | None = None
        self._loaded_until = 0.0

    def load(self) -> None:
        """Keep the desired state as it is now, before any job comes or goes, until the switches are back."""
        if self._trusted:
            self._loaded = Fingerprints(Desired.as_of_now(self._loop.desired), code_digest())

    async def start(self) -> None:
        """Mark switches that are quiet, until the loop ends."""
        self._loaded_until = asyncio.get_running_loop().time() + KEPT_SECONDS
        self._running = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            self._forget_loaded()
            # Let go of the state before a change of policy, which is as large as all jobs: where the change concerns
            # cores alone, no edge is marked anew, and nobody asks for a fingerprint.
            self._current()
            since = asyncio.get_running_loop().time() - QUIET
            until = time.perf_counter() + PORTION
            for state in list(self._loop.switches.values()):
                if state.link is not None and state.link.changed_at < since:
                    self._mark(state)
                if time.perf_counter() > until:
                    await asyncio.sleep(SHARE * PORTION)
                    until = time.perf_counter() + PORTION

    async def finish(self) -> None:
        """Mark every switch that holds its whole program now, before the controller stops."""
        under_way = []
        for state in list(self._loop.switches.values()):
            if (sent := self._mark(state)) is not None:
                under_way.append(sent)
                await asyncio.sleep(0)
        if under_way:
            await asyncio.wait(under_way, timeout=LAST_SECONDS)

    def place(self, link: SwitchLink, hosts: Iterable[str]) -> None:
        """Place a switch, which is in the state of now, in that as of the start, too."""
        if self._loaded is None:
            return
        loaded, now = self._loaded.desired, self._loop.desired
        # Until all switches are back there are two states, and what they have in common is in memory once.
        same = loaded.policy is now.policy
        switch = now.switches[link.datapath] if same else placed_switch(loaded.policy, link.datapath, link.features)
        loaded.place_switch(switch, hosts, like=now.placed)

    def agrees(self, link: SwitchLink) -> bool:
        """True where a switch's marker shows the program that it should hold, or should have held as of the start, with
        the queues that stand by now or with all that its jobs should have."""
        datapath = link.datapath
        switch = self._loop.desired_of(datapath).switches[datapath]
        if link.marker is None or not switch.is_edge or not self._trusted or self._loop.pair.changing:
            return False
        (marker, _), software, known = link.marker, link.features.software, self._known()
        if marker.fingerprint == known.of(datapath, software):
            return True
        return marker.fingerprint == known.of(datapath, software, self._with_queues(datapath, known.desired))

    def take(self, link: SwitchLink) -> Changes:
        """Take over what the marker of a switch, which :meth:`agrees`, shows; returns what has changed since."""
        assert link.marker is not None
        marker, _ = link.marker
        datapath, known, desired = link.datapath, self._known(), self._loop.desired
        if marker.fingerprint != known.of(datapath, link.features.software):
            jobs = {claim: each.job.number for each in known.desired.jobs_at(datapath) for claim in _claims(each)}
            there = {claim: each.job.number for each in desired.jobs_at(datapath) for claim in _claims(each)}
            for claim, queue in self._queues.likely(datapath, known.desired).items():
                if claim in jobs:
                    known.desired.set_queue(claim, queue, jobs[claim])
                if claim in there:
                    self._queues.stands(datapath, claim, queue, there[claim])
        known.desired.rules[datapath] = desired.rules[datapath] = marker.rules
        return Changes() if known.desired is desired else Transition(known.desired, desired).changes(datapath)

    def fingerprint(self, datapath: int) -> int | None:
        """The fingerprint of what a switch should hold now; None of one that has none, and during a change of
        policy."""
        switch = self._loop.desired.switches.get(datapath)
        if switch is None or not switch.is_edge or self._loop.pair.changing:
            return None
        return self._current().of(datapath)

    def _mark(self, state: SwitchState) -> asyncio.Future[Outcome] | None:
        """As :meth:`_marked`; one that fails must not keep the others from being marked, nor the controller from
        stopping."""
        try:
            return self._marked(state)
        except Exception as error:
            failure("a switch could not be marked", error, datapath=dpid_text(state.datapath))
            return None

    def _marked(self, state: SwitchState) -> asyncio.Future[Outcome] | None:
        """Mark a switch, if it holds its whole program, confirmed, and nothing else."""
        link, datapath = state.link, state.datapath
        if link is None or not (state.compared and state.in_sync and link.may_be_marked) or self._loop.pair.changing:
            return None
        desired = self._loop.desired
        switch, rules = desired.switches[datapath], desired.rules.get(datapath, MOST_RULES + 1)
        features = link.features
        if features.spare_table is None or rules > MOST_RULES or self._reactions.count(datapath):
            return None
        fingerprint = self._current().of(datapath, features.software) if switch.is_edge else NO_PROGRAM
        return link.mark(Marker(fingerprint, rules, features.normal, features.tracks))

    def _known(self) -> Fingerprints:
        """The fingerprints that a switch which connects may show."""
        return self._current() if self._loaded is None else self._loaded

    def _forget_loaded(self) -> None:
        """Forget the state as of the start, once its switches are back, or have had the time for that."""
        if self._loaded is None:
            return
        loop, loaded = self._loop, self._loaded.desired
        if (
            asyncio.get_running_loop().time() > self._loaded_until
            or loaded.policy is not loop.desired.policy
            or all(map(loop.connected, loaded.edges()))
        ):
            self._loaded = None

    def _current(self) -> Fingerprints:
        if self._fingerprints.desired is not self._loop.desired:
            self._fingerprints = Fingerprints(self._loop.desired, code_digest())
        return self._fingerprints

    def _with_queues(self, datapath: int, desired: Desired) -> Iterator[Placed]:
        """The jobs of a switch as they would be if all their queues stood."""
        likely = self._queues.likely(datapath, desired)
        for placed in desired.jobs_at(datapath):
            flows = (each for each in placed.job.reserved if not each.incoming)
            claims = ((each.target, Claim.of_flow(each.number)) for each in flows)
            reserved = tuple((target, likely[claim]) for target, claim in claims if claim in likely)
            queue = likely.get(job_demand(placed).claim)
            yield placed if placed.port is None else replace(placed, queue=queue, reserved=reserved)


def _claims(placed: Placed) -> Iterator[Claim]:
    yield job_demand(placed).claim
    yield from (Claim.of_flow(each.number) for each in placed.job.reserved if not each.incoming)


@lru_cache(maxsize=1)
def code_digest() -> bytes:
    """A digest of the code: another version of Lark may calculate other flows from the same jobs."""
    found = blake2b(digest_size=16)
    for package in (lark_common, lark_controller):
        for source in _sources(files(package)):
            found.update(source.read_bytes())
    return found.digest()


def _sources(folder: Traversable) -> Iterator[Traversable]:
    for entry in sorted(folder.iterdir(), key=lambda each: each.name):
        if entry.is_dir():
            yield from _sources(entry)
        elif entry.name.endswith(".py"):
            yield entry
