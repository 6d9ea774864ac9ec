"""A connection until it is a connected switch: version, datapath id, and the role of this instance.

An instance that stands by goes no further. It keeps the connection as a slave's, asks for counters alone, as far as the
active instance has it read them, and keeps nothing else that comes. It goes on from here once it has a term of its own.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, NamedTuple

from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_common.errors import SwitchError
from lark_controller.switches.openflow import replies, roles, wire
from lark_controller.switches.openflow.connection import Connection
from lark_controller.switches.openflow.mastership import Mastership
from lark_controller.switches.openflow.replies import Features, PortCounters
from lark_controller.switches.openflow.requests import ReplyRoom, Requests

_REPLIES: Final = frozenset({ofp.OFPT_FEATURES_REPLY, ofp.OFPT_ROLE_REPLY, ofp.OFPT_MULTIPART_REPLY})


class ReadCounters(NamedTuple):
    """The counters of a switch's ports, and of its counting flows: cookie, packets, bytes, seconds that the flow has
    been there. The answers had come at ``at``, of the monotonic clock, ``took`` seconds after the questions."""

    ports: list[PortCounters]
    flows: list[tuple[int, int, int, float]]
    at: float
    took: float


class Newcomer:
    """A connection that is being identified, or kept. ``features`` and ``datapath`` are set by :func:`identify`."""

    features: Features

    def __init__(self, connection: Connection, room: ReplyRoom) -> None:
        self.connection = connection
        self.requests = Requests(connection, room)
        self.mastership = Mastership(connection, self.requests)
        self.datapath = -1
        self.hello: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        connection.receive = self._receive

    async def read_counters(self, cookie: int, mask: int, timeout: float) -> ReadCounters:
        """Read the counters of all ports, and of the flows whose cookie agrees with ``cookie`` in the bits of ``mask``,
        as a slave may (OpenFlow 1.3.5, section 6.3.6). Raises SwitchError."""
        loop = asyncio.get_running_loop()
        asked = loop.time()
        # Answers are longer than what is read of a connection that is kept.
        self.connection.known = True
        try:
            # Flows first, as at the active instance.
            build = partial(wire.flow_stats_request, cookie=cookie, mask=mask)
            flows = self.requests.collect("flow counters", ofp.OFPMP_FLOW, build, replies.flow_ages, timeout)
            ports = self.requests.collect(
                "port counters", ofp.OFPMP_PORT_STATS, wire.port_stats_request, replies.port_stats, timeout
            )
            await asyncio.gather(flows, ports, return_exceptions=True)
            now = loop.time()
            return ReadCounters(ports.result(), flows.result(), now, now - asked)
        finally:
            # One that this instance leads meanwhile is a switch's.
            self.connection.known = not self.mastership.is_slave

    def lost(self, reason: str) -> None:
        """Ends everything under way, since the connection is gone."""
        if not self.hello.done():
            self.hello.cancel()
        self.requests.fail(reason)

    def _receive(self, kind: int, xid: int, message: bytes) -> bool:
        if kind in _REPLIES:
            return self.requests.reply(kind, xid, message)
        if kind == ofp.OFPT_ERROR:
            return self.requests.error(xid, replies.error(message))
        if kind == ofp.OFPT_EXPERIMENTER:
            if (role := roles.status(message)) is not None:
                self.mastership.notified(role)
        elif kind == ofp.OFPT_HELLO and not self.hello.done():
            self.hello.set_result(message)
        return False


async def identify(newcomer: Newcomer, generation: int, *, slave: bool = False) -> None:
    """Agree on the version, set ``features``, and become the switch's master of ``generation`` (0: no role is asked
    for), before anything is asked or written that needs it; or its ``slave``. Raises SwitchError where the switch
    cannot be used."""
    connection, requests = newcomer.connection, newcomer.requests
    limit = connection.options.handshake_timeout
    try:
        async with asyncio.timeout(limit):
            hello = await newcomer.hello
    except TimeoutError:
        raise SwitchError(f"no HELLO within {limit:g} s") from None
    if not replies.speaks_1_3(hello):
        connection.close("the switch does not speak OpenFlow 1.3", wire.hello_failed(connection.next_xid()))
        raise SwitchError("the switch does not speak OpenFlow 1.3")
    features = requests.ask("features", wire.features_request, replies.features, limit)
    role = newcomer.mastership.ask(generation, slave=slave)
    await asyncio.gather(features, *([] if role is None else [role]), return_exceptions=True)
    known = features.result()
    if known.auxiliary:
        raise SwitchError(f"auxiliary connection {known.auxiliary} is not used")
    newcomer.features, newcomer.datapath = known, known.datapath
    if role is not None:
        newcomer.mastership.name = f"switch {known.datapath:016x}"
        await newcomer.mastership.take(role)
