"""The handshake with a switch whose master this connection is: ports, meters, marker, NORMAL, ``ct``."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final, TypeVar

from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_common.errors import SwitchError
from lark_common.log import event
from lark_common.worker_rules import CT_ZONE
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.marker import NO_SOURCE
from lark_controller.flows.model import ETH_IPV4, PORT_NORMAL, Action, Flow, FlowData, FlowKey, Output, Track, match
from lark_controller.switches.openflow import replies, wire
from lark_controller.switches.openflow.applies import Step
from lark_controller.switches.openflow.features import SwitchFeatures
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import Description, MeterFeatures
from lark_controller.switches.openflow.requests import RefusedError

T = TypeVar("T")

# The match of probes: no frame has the broadcast address as its source (IEEE 802.3, 3.2.3: the first bit of a source
# address is 0) and the null address as its destination. ``ct`` is taken for IP alone (ovs-actions(7)).
_PROBE_MATCH: Final = match(eth_src=NO_SOURCE, eth_dst=0, eth_type=ETH_IPV4)
# The only hardware that is asked for ``ct``: others may accept an unknown action, and pass packets that it should stop.
_TRACKING: Final = "Open vSwitch"
# The errors of a switch that lacks an action. Open vSwitch has one of its own for a datapath without zones.
_NO_ACTION: Final = (ofp.OFPET_BAD_ACTION, ofp.OFPET_BAD_INSTRUCTION, ofp.OFPET_EXPERIMENTER)


async def handshake(link: SwitchLink) -> None:
    """Set ``link.features``. Raises SwitchError where the switch cannot be used."""
    connection, requests, known = link.connection, link.requests, link.known
    limit = connection.options.handshake_timeout
    connection.write(wire.set_config(connection.next_xid()))
    descriptions = requests.collect("description", ofp.OFPMP_DESC, wire.description_request, replies.description, limit)
    ports = requests.collect("ports", ofp.OFPMP_PORT_DESC, wire.ports_request, replies.ports, limit)
    meters = requests.collect(
        "meter features", ofp.OFPMP_METER_FEATURES, wire.meter_features_request, replies.meter_features, limit
    )
    await asyncio.gather(descriptions, ports, meters, link.find_markers(limit), return_exceptions=True)
    description = (_unless_refused(descriptions) or [Description("", "", "", "", "")])[0]
    meter = (_unless_refused(meters) or [MeterFeatures(0, drop=False)])[0]
    table: int | None
    if link.marker is not None:
        # A switch that has been started anew has no marker: it can do what it could.
        marker, table = link.marker
        normal, tracks = marker.normal, marker.tracks
    else:
        table = await _table_that_takes(link, known.n_tables, Output(PORT_NORMAL, 0))
        normal, tracks = table is not None, False
        if description.hardware == _TRACKING:
            tracks = await _table_that_takes(link, known.n_tables, Track(CT_ZONE, None, commit=True)) is not None
    link.features = SwitchFeatures(
        n_tables=known.n_tables,
        capabilities=known.capabilities,
        max_meter=meter.max_meter,
        meter_drop=meter.drop,
        normal=normal,
        tracks=tracks,
        ports=link.set_ports(ports.result()),
        description=description.datapath,
        hardware=description.hardware,
        software=description.software,
        address=connection.address,
        spare_table=table,
        roles=link.mastership.known,
    )


def _unless_refused(future: asyncio.Future[list[T]]) -> list[T]:
    try:
        return future.result()
    except RefusedError:
        return []


async def _table_that_takes(link: SwitchLink, n_tables: int, action: Action) -> int | None:
    """The table in which the switch accepts an action: a flow is added that no frame can match, and removed again.

    It stands in the last table, where none of Lark's flows lead, or in the first if the last takes no such match; its
    cookie is Lark's own, so that a dump finds it should the connection end in between.
    """
    limit = link.connection.options.handshake_timeout
    for table in dict.fromkeys((max(n_tables - 1, 0), 0)):
        key = FlowKey(table, 0, _PROBE_MATCH)
        flow = Flow(key, FlowData(cookie(Category.SWITCH), (action,)))
        steps: list[Step] = [
            (key, partial(wire.flow_add, flow=flow)),
            (None, None),
            (key, partial(wire.flow_delete, key=key)),
        ]
        outcome = await link.send(steps, limit)
        if not outcome.confirmed:
            raise SwitchError(f"asking for {type(action).__name__}: {outcome.reason}")
        if not outcome.errors:
            return table
        if outcome.errors[0].type in _NO_ACTION:
            return None
        event("probe refused", datapath=f"{link.datapath:016x}", table=table, action=action, reason=outcome.reason)
    return None
