"""The controllers of a fake switch: the role of each connection, and the generation that the switch obeys.

As Open vSwitch has them (ofproto/connmgr.c): the generation outlives connections, and not the switch; EQUAL neither
compares nor sets it; a new master turns the one before into a SLAVE and notifies it.
"""

from __future__ import annotations

from typing import Final, Protocol

from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from lark_controller.switches.fence import is_later
from lark_controller.switches.openflow import roles
from lark_controller.switches.openflow.roles import NO_GENERATION, Role

# The messages that a slave may not send, of those that a fake switch has.
_WRITES: Final = frozenset({ofp.OFPT_FLOW_MOD, ofp.OFPT_METER_MOD, ofp.OFPT_PACKET_OUT})


class Connected(Protocol):
    """A connection of the switch to a controller."""

    def send_raw(self, data: bytes) -> None:
        """Send any bytes."""


class Masters:
    """The roles of a switch's connections. ``asked`` counts role requests; without ``tells`` a slave gets no
    message that it is one, as OpenFlow 1.3 has it."""

    def __init__(self) -> None:
        self.generation: int | None = None
        self.asked = 0
        self.tells = True
        self._roles: dict[Connected, int] = {}

    def opened(self, connection: Connected) -> None:
        """Take in a new connection; its role is EQUAL."""
        self._roles[connection] = roles.EQUAL

    def closed(self, connection: Connected) -> None:
        """Forget a connection."""
        self._roles.pop(connection, None)

    def forget(self) -> None:
        """Forget the generation, as a switch does that is started anew."""
        self.generation = None

    def connected(self) -> list[Connected]:
        """All connections, each of which is sent changes of ports."""
        return list(self._roles)

    def listening(self) -> list[Connected]:
        """The connections that get packets and of flows that are gone."""
        return [connection for connection, role in self._roles.items() if role != roles.SLAVE]

    def ask(self, connection: Connected, request: Role) -> Role | None:
        """Answer a role request; None refuses its generation."""
        self.asked += 1
        if request.role in (roles.MASTER, roles.SLAVE):
            if self.generation is not None and is_later(self.generation, request.generation):
                return None
            self.generation = request.generation
        if request.role == roles.MASTER:
            for other, role in self._roles.items():
                if other is not connection and role == roles.MASTER:
                    self._roles[other] = roles.SLAVE
                    if self.tells:
                        other.send_raw(switchside.role_status(0, Role(roles.SLAVE, request.generation)))
        if request.role != roles.NOCHANGE:
            self._roles[connection] = request.role
        return Role(self._roles[connection], NO_GENERATION if self.generation is None else self.generation)

    def role(self, connection: Connected) -> int | None:
        """The role of a connection; None where it is none of this switch's."""
        return self._roles.get(connection)

    def is_master(self, connection: Connected) -> bool:
        """True for the connection of the switch's master."""
        return bool(self._roles.get(connection) == roles.MASTER)

    def refuses(self, connection: Connected, kind: int) -> bool:
        """True for a message that may not come by this connection. Open vSwitch lets a slave forget connections."""
        return kind in _WRITES and self._roles.get(connection) == roles.SLAVE
