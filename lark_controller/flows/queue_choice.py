"""The queue at a worker's uplinks that a job's packets take: that of a reserved flow, the job's own, or none. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lark_common.runs import Network
from lark_controller.flows import tables as t
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.model import (
    ETH_IPV4,
    ETH_IPV6,
    Action,
    Flow,
    FlowData,
    FlowKey,
    SetField,
    SetQueue,
    flow_of,
)
from lark_controller.flows.placement import Placed
from lark_controller.flows.tables import Edge
from lark_controller.flows.wan import ip_fields

Fields = dict[str, int | tuple[int, int]]

# Above the job's own queue: its reserved flow to the WAN, what is local and therefore not that, and reserved flows to
# addresses. Of two of those, the longer prefix wins.
_WAN = t.P_EXACT + 1
_LOCAL = t.P_EXACT + 2
_ADDRESSES = t.P_EXACT + 10


def queue_flows(placed: Placed, local: tuple[Network, ...], mark: int, dscp: int | None) -> Iterator[Flow]:
    """Flows that send a job's packets through its queues and mark them as its group's.

    ``local`` are the networks that are not the WAN; ``dscp`` None leaves DSCP as it is.
    """
    if placed.port is None:
        return
    own = () if placed.queue is None else (SetQueue(placed.queue),)
    versions: tuple[Fields, ...] = ({"eth_type": ETH_IPV4}, {"eth_type": ETH_IPV6})
    if own:
        for fields in versions:
            yield _flow(placed, t.P_EXACT, fields, mark, dscp, own)
    for target, queue in placed.reserved:
        chosen = (SetQueue(queue),)
        for network in target:
            yield _flow(placed, _ADDRESSES + network.prefixlen, ip_fields(network, "dst"), mark, dscp, chosen)
        if target:
            continue
        for fields in versions:
            yield _flow(placed, _WAN, fields, mark, dscp, chosen)
        for network in local:
            yield _flow(placed, _LOCAL, ip_fields(network, "dst"), mark, dscp, own)


def job_and_queue(data: FlowData) -> tuple[int | None, int]:
    """The number of the job whose own flow this is, and the queue that it chooses."""
    parts = parse(data.cookie)
    for action in data.actions:
        if isinstance(action, SetQueue) and parts.category == Category.JOB:
            return parts.number, action.queue
    return None, 0


def groups_that_choose(flows: Mapping[FlowKey, FlowData]) -> frozenset[int]:
    """The groups, by DSCP, that have a flow that chooses their queue of the controller's."""
    found = set()
    for data in flows.values():
        parts = parse(data.cookie)
        if parts.category == Category.GROUP and SetQueue(parts.number) in data.actions:
            found.add(parts.number)
    return frozenset(found)


def _flow(
    placed: Placed, priority: int, fields: Fields, mark: int, dscp: int | None, queue: tuple[Action, ...]
) -> Flow:
    assert placed.port is not None
    marking: tuple[Action, ...] = () if dscp is None else (SetField("ip_dscp", dscp),)
    at_port = {"in_port": placed.port, **fields}
    return flow_of(int(Edge.QOS), priority, at_port, mark, actions=(*marking, *queue), goto=int(Edge.LEARN))
