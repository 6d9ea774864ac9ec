"""Mastership at one switch: asked for in the handshake, proven before what the switch would not refuse, and lost.

An instance that stands by asks to be a slave, with the generation of the term that another has. Once it has a term of
its own, it asks again on the same connection.

A switch with roles refuses flows, meters and packets of a controller that another has followed: it obeys the highest
generation. So most writes need nothing here. Open vSwitch looks at no role where connections are to be forgotten, so
it is asked before (:meth:`Mastership.is_proven`).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from lark_common.errors import SwitchError
from lark_controller.switches.fence import FENCED, is_later
from lark_controller.switches.openflow import roles
from lark_controller.switches.openflow.connection import Connection
from lark_controller.switches.openflow.replies import ErrorMessage
from lark_controller.switches.openflow.requests import RefusedError, Requests
from lark_controller.switches.openflow.roles import Role

# Seconds after a question that was answered with "master" in which that counts. Time in which the process or the
# machine stood still counts too, and another instance waits for longer before it takes this one for dead.
PROOF_SECONDS: Final = 1.0
# Reason where the switch obeys no higher generation, but has another master: an own connection that is newer, or a
# controller that asks without a generation.
REPLACED: Final = "the switch has another connection as its master"
# Reason where an instance that stands by does not keep the connection.
NO_ROLES: Final = "the switch has no roles, and this instance stands by"


class Mastership:
    """The role of one connection. Until one is asked for, and with generation 0, there are no roles.

    ``name`` is the switch in sentences. ``known`` is False for a switch that has no roles: a master uses it without a
    fence. ``is_slave`` is True from the request to be one until that to be master. ``resume`` is called when a proof
    has come that was missing.
    """

    def __init__(self, connection: Connection, requests: Requests) -> None:
        self.name = f"the switch at {connection.address}"
        self.known = True
        self.resume: Callable[[], None] = lambda: None
        self.is_slave = False
        self._generation = 0
        self._connection = connection
        self._requests = requests
        self._proven_until = 0.0
        self._asking = self._refused = False

    def ask(self, generation: int, *, slave: bool = False) -> asyncio.Future[Role] | None:
        """Ask to be master of this instance's generation, or a ``slave`` while another instance's is in charge; None
        where no generation is known."""
        self._generation, self.is_slave = generation, slave
        return self._ask(roles.SLAVE if slave else roles.MASTER) if generation else None

    async def take(self, answer: asyncio.Future[Role]) -> None:
        """Take in the answer of :meth:`ask`. Raises SwitchError where this connection may not write to the switch, or,
        of a slave, where the switch would not obey a master that comes later."""
        slave = self.is_slave
        try:
            held = await answer
        except RefusedError as refusal:
            if roles.has_none(refusal.error):
                self.known = False
                if slave:
                    raise SwitchError(NO_ROLES) from None
                return
            if not roles.is_stale(refusal.error):
                raise
            if slave:
                raise SwitchError(f"{self.name} obeys a later generation than {self._generation}") from None
            self._overtaken(await self._obeyed())
            raise SwitchError(self._connection.closed_because) from None
        if held.role != (roles.SLAVE if slave else roles.MASTER):
            wanted = "slave" if slave else "master"
            raise SwitchError(f"asked for the role of {wanted}, the switch gives role {held.role}")

    def notified(self, held: Role) -> None:
        """Take in a notice of the switch that this connection's role has changed."""
        if self._generation and not self.is_slave and held.role != roles.MASTER:
            self._demoted(held)

    def is_refused(self, error: ErrorMessage) -> bool:
        """True where the switch has refused a write because another connection is its master; this one ends, once the
        switch has been asked what it obeys."""
        if not roles.is_slave(error):
            return False
        if not (self._generation and self.known):
            self._connection.close(REPLACED)
        elif not self._refused:
            self._refused = True
            self._look()
        return True

    def is_proven(self) -> bool:
        """True where the switch has shown lately that this connection is its master; otherwise it is asked, once for
        all that wait, and ``resume`` follows."""
        if not (self._generation and self.known) or _now() < self._proven_until:
            return True
        self._look()
        return False

    def _look(self) -> None:
        if not self._asking:
            self._asking = True
            self._ask(roles.NOCHANGE).add_done_callback(partial(self._seen, _now()))

    def _seen(self, sent_at: float, done: asyncio.Future[Role]) -> None:
        self._asking = False
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            self._connection.close(f"it does not say whether this instance is its master: {error}")
            return
        held = done.result()
        if self._refused or held != Role(roles.MASTER, self._generation):
            self._demoted(held)
            return
        self._proven_until = sent_at + PROOF_SECONDS
        self.resume()

    def _demoted(self, held: Role) -> None:
        if is_later(held.generation, self._generation):
            self._overtaken(held.generation)
        else:
            self._connection.close(REPLACED)

    def _overtaken(self, generation: int | None) -> None:
        """Show the fence that the switch obeys a generation after this instance's (None: it does not say which)."""
        obeyed = "a later generation" if generation is None else f"generation {generation}"
        sentence = f"{self.name} obeys {obeyed}, and this instance has {self._generation}"
        fence = self._connection.fence
        fence.show(sentence)
        self._connection.close(FENCED if fence.is_shut else sentence)

    async def _obeyed(self) -> int | None:
        try:
            return (await self._ask(roles.NOCHANGE)).generation
        except SwitchError:
            return None

    def _ask(self, role: int) -> asyncio.Future[Role]:
        build = partial(roles.request, role=role, generation=self._generation)
        return self._requests.ask("role", build, roles.reply, self._connection.options.handshake_timeout)


def _now() -> float:
    """Seconds of a clock that goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
