"""Switches with roles, and the connections between them and instances: each in order, none in step with another.

A switch keeps its flows whatever becomes of its connections. What an instance has sent arrives, though the instance is
gone; it may be on its way for longer than a takeover takes. Roles are those of the fake switch that all tests have
(``fake_switch/masters.py``), and an instance's side is the product's ``Mastership``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Final, cast

from greenlet import getcurrent, greenlet
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch.masters import Masters
from lark_common.errors import SwitchError
from lark_common.runs import Address
from lark_controller.flows.model import PORT_LOCAL, Changes, FlowData, FlowKey, Program
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.policies.model import Policy
from lark_controller.switches.fence import FENCED, Fence
from lark_controller.switches.openflow import roles
from lark_controller.switches.openflow.connection import Connection
from lark_controller.switches.openflow.mastership import Mastership
from lark_controller.switches.openflow.replies import ErrorMessage
from lark_controller.switches.openflow.requests import RefusedError, Requests
from lark_controller.switches.openflow.roles import Role
from tests.cluster.simulation.world import Process, World

# Seconds after which a change that is not confirmed ends the connection.
CONFIRMED_IN: Final = 5.0
_STALE: Final = ErrorMessage(ofp.OFPET_ROLE_REQUEST_FAILED, ofp.OFPRRFC_STALE, "STALE")
_SLAVE: Final = ErrorMessage(ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_IS_SLAVE, "IS_SLAVE")
_NONE: Final = Role(0, 0)
PORTS: Final = {"uplink": 1, "p1": 11, "p2": 12, "p3": 13}


def placed(policy: Policy, datapath: int) -> Switch:
    """A switch of the site, as its handshake shows it."""
    core = datapath in policy.switches
    ports = {"lan": 1, "wan": 2} if core else PORTS
    return place_switch(policy, datapath, {**ports, "br": PORT_LOCAL}, normal=True, tracks=True, max_meter=0)


@dataclass(frozen=True)
class Sent:
    """A message to a switch: the generation of the instance that sends it, and when."""

    kind: str
    xid: int
    generation: int
    at: float
    role: Role = _NONE
    changes: Changes = field(default_factory=Changes)
    addresses: frozenset[Address] = frozenset()


class PlayedSwitch:
    """A switch: its flows, and the roles of its connections. ``done`` is called with each write that takes effect, and
    the highest generation that was obeyed before, with the time since when."""

    def __init__(self, world: World, datapath: int, done: Callable[[PlayedSwitch, Sent], None]) -> None:
        self.world, self.datapath = world, datapath
        self.flows: dict[FlowKey, FlowData] = {}
        self.masters = Masters()
        self.masters.tells = world.random.random() < 0.5
        self.refused = 0
        # The highest generation of a master, and since when.
        self.obeyed, self.obeyed_at = 0, 0.0
        self._done = done

    def receive(self, wire: Wire, sent: Sent) -> None:
        if sent.kind == "role":
            held = self.masters.ask(wire, sent.role)
            if held is None:
                wire.answer(sent.xid, _STALE)
                return
            if held.role == roles.MASTER and held.generation > self.obeyed:
                self.obeyed, self.obeyed_at = held.generation, self.world.now
            wire.answer(sent.xid, held)
        elif sent.kind == "dump":
            # Only who leads asks for that.
            if sent.generation > self.obeyed:
                self.obeyed, self.obeyed_at = sent.generation, self.world.now
            wire.answer(sent.xid, dict(self.flows))
        elif sent.kind == "flows" and self.masters.refuses(wire, ofp.OFPT_FLOW_MOD):
            self.refused += 1
            wire.answer(sent.xid, _SLAVE)
        else:
            self._done(self, sent)
            for flow in sent.changes.flows_set:
                self.flows[flow.key] = flow.data
            for key in sent.changes.flows_gone:
                self.flows.pop(key, None)
            wire.answer(sent.xid, None)

    def start_anew(self) -> None:
        """Forget the generation, as a switch does that is started anew; its flows come back from a file. All
        connections are gone."""
        self.masters.forget()
        self.obeyed = 0
        for wire in [each for each in self.masters.connected() if isinstance(each, Wire)]:
            wire.lose()


class Wire:
    """A connection as the switch has it; ``stall`` draws how long a message is on its way."""

    def __init__(self, switch: PlayedSwitch, link: Link, stall: Callable[[], float]) -> None:
        self.switch, self._link, self._stall = switch, link, stall
        self.open = True
        # Until then nothing arrives, in either direction.
        self.still_until = 0.0
        self._there = self._back = 0.0
        switch.masters.opened(self)

    def send(self, sent: Sent) -> None:
        world = self.switch.world
        self._there = max(self._there, self.still_until, world.now + self._stall())
        world.at(self._there - world.now, lambda: self.switch.receive(self, sent) if self.open else None)

    def answer(self, xid: int, found: object) -> None:
        world = self.switch.world
        self._back = max(self._back, self.still_until, world.now + self._stall())
        world.at(self._back - world.now, lambda: self._link.receive(xid, found), self._link.process, read=True)

    def send_raw(self, data: bytes) -> None:
        """A notice, which has no answer."""
        self.answer(0, data)

    def close(self, lost: bool) -> None:
        """End the connection; what was sent is ``lost``, or arrives before its end."""
        world = self.switch.world
        if lost:
            self.drop()
        else:
            world.at(max(0.0, self._there - world.now), self.drop)

    def lose(self) -> None:
        """Let both sides be without it."""
        self.drop()
        self._link.close("the switch is gone")

    def drop(self) -> None:
        """Let the switch take nothing more of it."""
        self.open = False
        self.switch.masters.closed(self)


class Answer:
    """The answer to a question, for a coroutine or a task that waits for it."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._done = False
        self._found: Any = None
        self._error: Exception | None = None
        self._waiting: greenlet | None = None
        self._callbacks: list[Callable[[Any], object]] = []

    def give(self, found: Any, error: Exception | None = None) -> None:
        if self._done:
            return
        self._done, self._found, self._error = True, found, error
        for each in self._callbacks:
            each(self)
        if self._waiting is not None:
            self._process.wake(self._waiting)

    def add_done_callback(self, call: Callable[[Any], object]) -> None:
        if self._done:
            call(self)
        else:
            self._callbacks.append(call)

    def cancelled(self) -> bool:
        return False

    def exception(self) -> Exception | None:
        return self._error

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._found

    def wait(self) -> Any:
        """Let the present task stand still until there is an answer."""
        if not self._done:
            self._waiting = getcurrent()
            self._process.park()
        return self.result()

    def __await__(self) -> Generator[Answer, None, Any]:
        if not self._done:
            yield self
        return self.result()


def driven(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine of the product, for the present task."""
    while True:
        try:
            answer: Answer = coroutine.send(None)
        except StopIteration as end:
            return end.value
        try:
            answer.wait()
        except SwitchError:
            # It is the coroutine's to raise.
            continue


class Link:
    """A connection as an instance has it. ``gone`` is called once at its end."""

    def __init__(
        self,
        process: Process,
        switch: PlayedSwitch,
        fence: Fence,
        gone: Callable[[Link], None],
        stall: Callable[[], float],
    ) -> None:
        self.process, self.world, self.datapath = process, process.world, switch.datapath
        self.address = f"{switch.datapath}"
        self.options = SimpleNamespace(handshake_timeout=CONFIRMED_IN)
        self.fence = fence
        self.closed_because = ""
        self.generation = 0
        # True once the switch has answered that this is its master; and once it was compared, and takes changes.
        self.mastered = self.ready = False
        self.mastership = Mastership(cast(Connection, self), cast(Requests, self))
        self.mastership.resume = self._pump
        self.wire = Wire(switch, self, stall)
        self._gone = gone
        self._asked: dict[int, Answer] = {}
        self._outbox: list[Sent] = []

    # -- as the product's connection and requests ----------------------------------------------------------------------

    def ask(self, what: str, build: Callable[[int], bytes], decode: Callable[[bytes], Role], timeout: float) -> Answer:
        """Ask for a role, or which one the connection has."""
        del what
        xid = next(self.world.numbers)
        role = Role(*roles.ROLE.unpack_from(build(xid), 8))
        return self._question(Sent("role", xid, self.generation, self.world.now, role=role), timeout)

    def close(self, reason: str, lost: bool = False) -> None:
        if self.closed_because:
            return
        self.closed_because, self.ready = reason, False
        self.wire.close(lost)
        asked, self._asked = self._asked, {}
        for each in asked.values():
            each.give(None, SwitchError(reason))
        self._gone(self)

    # -- for the instance ----------------------------------------------------------------------------------------------

    def lead(self, generation: int, *, slave: bool = False) -> None:
        """Become the switch's master (or slave), and wait for its answer. Raises SwitchError."""
        self.generation = generation
        asked = generation if self.world.guards.generation_is_sent else 0
        answer = self.mastership.ask(asked, slave=slave)
        if answer is not None:
            driven(self.mastership.take(answer))

    def dump(self) -> Program:
        """All flows of the switch. Raises SwitchError."""
        sent = Sent("dump", next(self.world.numbers), self.generation, self.world.now)
        return Program(self._question(sent, CONFIRMED_IN).wait())

    def apply(self, changes: Changes) -> None:
        """Send a change, which is to be confirmed in time."""
        if changes:
            self._put(Sent("flows", next(self.world.numbers), self.generation, 0.0, changes=changes))

    def forget_connections(self, addresses: frozenset[Address]) -> None:
        """Send an order that a switch obeys whoever sends it."""
        self._put(Sent("forget", next(self.world.numbers), self.generation, 0.0, addresses=addresses))

    def _put(self, sent: Sent) -> None:
        self._outbox.append(sent)
        self._pump()

    def _pump(self) -> None:
        proven = not self.world.guards.role_is_proven
        while self._outbox and not self.closed_because:
            if self._outbox[0].kind == "forget" and not proven and not self.mastership.is_proven():
                return
            sent = self._outbox.pop(0)
            now = Sent(
                sent.kind, sent.xid, sent.generation, self.world.now, changes=sent.changes, addresses=sent.addresses
            )
            self._question(now, CONFIRMED_IN).add_done_callback(self._confirmed)

    def _confirmed(self, done: Answer) -> None:
        if done.exception() is not None:
            self.close("a change was not confirmed")

    def _question(self, sent: Sent, timeout: float) -> Answer:
        answer = Answer(self.process)
        if self.fence.is_shut:
            self.close(FENCED)
            answer.give(None, SwitchError(FENCED))
            return answer
        self._asked[sent.xid] = answer
        self.wire.send(sent)

        def late() -> None:
            if self._asked.pop(sent.xid, None) is not None:
                answer.give(None, SwitchError("no answer in time"))

        self.process.at(timeout, late)
        return answer

    def receive(self, xid: int, found: Any) -> None:
        if self.closed_because:
            return
        if isinstance(found, bytes):
            if (held := roles.status(found)) is not None:
                self.mastership.notified(held)
            return
        answer = self._asked.pop(xid, None)
        if isinstance(found, ErrorMessage):
            # No fault of the flow, and nothing that was confirmed.
            if not self.mastership.is_refused(found) and answer is not None:
                answer.give(None, RefusedError("role", found))
        elif answer is not None:
            answer.give(found)
