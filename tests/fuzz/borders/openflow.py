"""Bytes of a switch: handled, or the connection is closed with a reason; never an error of the controller's own."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any, Final, cast

from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_common.errors import SwitchError
from lark_controller.flows.placement import place_switch
from lark_controller.policies.file import load
from lark_controller.reconcile.packet_ins import Reactions
from lark_controller.reconcile.state import LoopState
from lark_controller.switches.openflow import columns, replies, wire
from lark_controller.switches.openflow.connection import Connection, OpenFlowOptions
from lark_controller.switches.openflow.features import SwitchFeatures
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.newcomer import Newcomer, identify
from lark_controller.switches.openflow.ports import Ports
from lark_controller.switches.openflow.requests import Bound, ReplyRoom
from tests.flows.test_pipeline import a_job

MAX_BYTES: Final = 4096
DATAPATH: Final = 1
POLICY: Final = """
version: 1
networks: {local: [10.0.0.0/8, "2001:db8::/32"]}
policies: [{slice: {by: Owner}}]
"""
# The requests that are under way, whose transaction ids follow each other from 2 on.
REQUESTS: Final = (
    (ofp.OFPMP_FLOW, replies.flow_stats), (ofp.OFPMP_FLOW, replies.flow_counts), (ofp.OFPMP_PORT_DESC, replies.ports),
    (ofp.OFPMP_PORT_STATS, replies.port_stats), (ofp.OFPMP_METER_CONFIG, replies.meter_config),
    (ofp.OFPMP_METER, replies.meter_stats), (ofp.OFPMP_QUEUE, replies.queue_stats),
    (ofp.OFPMP_DESC, replies.description), (ofp.OFPMP_METER_FEATURES, replies.meter_features),
)  # fmt: skip
IN_PARTS: Final = ((ofp.OFPMP_PORT_STATS, columns.port_columns), (ofp.OFPMP_FLOW, columns.flow_columns))
DICTIONARY: Final = (
    *(bytes((4, kind)) for kind in range(30)), *(kind.to_bytes(2) for kind, _ in REQUESTS),
    *(xid.to_bytes(4) for xid in range(2, 14)), b"\x00\x01\x00\x04\x00\x00\x00\x00", b"\x00\x04\x00\x18",
    b"\x80\x00\x00\x04\x00\x00\x00\x0b", b"\x80\x00\x0a\x02\x08\x00", b"\x80\x00\x0a\x02\x86\xdd", b"\x00\x00\x00\x10",
    b"ONF\x00\x00\x00\x07\x77", b"\x00\x00\x00\x03", b"\x00\x01\x00\x0a", b"\x00\x0b\x00\x00",
)  # fmt: skip
logging.disable(logging.CRITICAL)
_LOOP: Final = asyncio.new_event_loop()


class _Transport:
    """A transport to nowhere."""

    def get_extra_info(self, _name: str) -> Any:
        return None

    def get_write_buffer_size(self) -> int:
        return 0

    def __getattr__(self, _name: str) -> Any:
        return lambda *_, **__: None


def _state() -> LoopState:
    """An edge with two users' jobs."""
    policy = load(POLICY)
    state = LoopState(policy, lambda: None, lambda _: None)
    ports = {"uplink": 1, "p1": 11, "p2": 12}
    state.desired.set_switch(place_switch(policy, DATAPATH, ports, normal=True, tracks=False, max_meter=0))
    for number in (1, 2):
        job = a_job(number, f"user{number}")
        state.directory.put(job)
        state.desired.put(job, state.decider.decide(job.facts))
    assert all(placed.port is not None for placed in state.desired.jobs_at(DATAPATH))
    assert len(state.desired.jobs_at(DATAPATH)) == 2
    return state


class _Handler:
    def __init__(self) -> None:
        self._reactions = Reactions(_STATE)

    def packet_in(self, link: SwitchLink, packet: replies.PacketIn) -> None:
        self._reactions.packet_in(link, packet)

    def flow_removed(self, link: SwitchLink, removed: replies.FlowRemoved) -> None:
        self._reactions.flow_removed(link, removed)

    def ports_changed(self, link: SwitchLink) -> None:
        self._reactions.ports_changed(link)

    def switch_error(self, _link: SwitchLink, error: object) -> None:
        assert str(error)


_STATE: Final = _state()


def run(data: bytes) -> None:
    """Let a switch say HELLO and then ``data``, in two pieces."""
    _LOOP.run_until_complete(_play(data))


async def _play(data: bytes) -> None:
    await _play_newcomer(data)
    await _play_link(data)


async def _play_newcomer(data: bytes) -> None:
    """Bytes of who is no switch yet, and of one that an instance which stands by keeps."""
    connection = Connection(OpenFlowOptions(), lambda _: None, lambda _connection, _reason: None)
    connection.connection_made(cast(asyncio.BaseTransport, _Transport()))
    newcomer = Newcomer(connection, ReplyRoom())
    identified = asyncio.ensure_future(identify(newcomer, 7, slave=True))
    connection.data_received(wire.hello(0))
    half = len(data) // 2
    for piece in (data[:half], data[half:]):
        await asyncio.sleep(0)
        connection.data_received(piece)
    await asyncio.sleep(0)
    assert not connection.closed_because.startswith("internal error"), connection.closed_because
    connection.close("the end")
    connection.connection_lost(None)
    newcomer.lost("the end")
    with suppress(SwitchError):
        await identified


async def _play_link(data: bytes) -> None:
    connection = Connection(OpenFlowOptions(), lambda _: None, lambda _connection, _reason: None)
    connection.connection_made(cast(asyncio.BaseTransport, _Transport()))
    newcomer = Newcomer(connection, ReplyRoom())
    newcomer.features, newcomer.datapath = replies.Features(DATAPATH, 254, 0, 0), DATAPATH
    link = SwitchLink(newcomer, cast(Any, _Handler()))
    link.ready = True
    link.features = SwitchFeatures(254, 0, 0, False, True, False, Ports(), "", "", "", "")
    waiting = [
        link.requests.collect("fuzz", kind, wire.flow_stats_request, cast(Any, read), 60.0) for kind, read in REQUESTS
    ]
    waiting += [
        link.requests.collect_parts("fuzz", kind, wire.flow_stats_request, cast(Any, read), 60.0, Bound())
        for kind, read in IN_PARTS
    ]
    role = link.mastership.ask(7)
    assert role is not None
    taken = asyncio.ensure_future(link.mastership.take(role))
    connection.data_received(wire.hello(0))
    half = len(data) // 2
    for piece in (data[:half], data[half:]):
        connection.data_received(piece)
        await asyncio.sleep(0)
    if link._ports_timer is not None:
        link._report_ports()
    assert not connection.closed_because.startswith("internal error"), connection.closed_because
    connection.close("the end")
    connection.connection_lost(None)
    link.lost("the end")
    for each in waiting:
        each.exception()
    with suppress(SwitchError):
        await taken
