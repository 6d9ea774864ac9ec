"""Flows that count what each job sends and receives: its WAN traffic, and what the policy drops of it. Pure.

How much a job sends and receives in all, its port counts. Behind everything that may drop a packet, ``split`` sends
what goes to or comes from the WAN by way of ``count``, where each job has a flow for either direction; what a rule
drops goes to ``drops`` to be counted there. A packet that both ends could count is the sender's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lark_controller.accounting.readings import CountKind
from lark_controller.flows import tables as t
from lark_controller.flows.cookies import Category, cookie, count_cookie
from lark_controller.flows.model import ETH_IPV4, ETH_IPV6, FLAG_SEND_FLOW_REM, Flow, flow_of
from lark_controller.flows.placement import Placed
from lark_controller.flows.tables import Edge
from lark_controller.flows.wan import ip_fields, local_networks
from lark_controller.policies.model import Accounting, Policy

Fields = dict[str, int | tuple[int, int]]

_FRAME: Final = cookie(Category.SWITCH)
_BOTH_WAYS: Final = ((t.FROM_JOB, "dst"), (t.TO_JOB, "src"))


def dropping(policy: Policy) -> Edge | None:
    """The table for packets that a rule drops; None, a drop at once, where drops are not counted."""
    return None if policy.accounting is Accounting.NONE else Edge.DROPS


def split_flows(policy: Policy) -> Iterator[Flow]:
    """Flows that send local traffic on, and WAN traffic through the table that counts it."""
    for table in (Edge.SPLIT, Edge.COUNT):
        yield _flow(table, t.P_MISS, {}, Edge.QOS)
    if policy.accounting is Accounting.NONE:
        return
    for bit, side in _BOTH_WAYS:
        for network in local_networks(policy):
            fields = {"metadata": bit.put(1), **ip_fields(network, side)}
            yield _flow(Edge.SPLIT, t.P_ALLOW, fields, Edge.QOS)
        for ethertype in (ETH_IPV4, ETH_IPV6):
            yield _flow(Edge.SPLIT, t.P_DENY, {"metadata": bit.put(1), "eth_type": ethertype}, Edge.COUNT)


def count_flows(placed: Placed) -> Iterator[Flow]:
    """A job's counting flows. Nothing in them changes while the job stays at its port, so they count on."""
    if placed.port is None or not placed.decision.accounted:
        return
    number = placed.job.number
    sides: list[tuple[CountKind, Edge, int, Fields]] = [
        (CountKind.DROP_OUT, Edge.DROPS, t.P_EXACT, {"in_port": placed.port})
    ]
    sides += [(CountKind.DROP_IN, Edge.DROPS, t.P_ALLOW, fields) for fields in _to_job(placed)]
    if not placed.decision.isolated:
        sides.append((CountKind.WAN_OUT, Edge.COUNT, t.P_EXACT, {"in_port": placed.port}))
        sides += [(CountKind.WAN_IN, Edge.COUNT, t.P_ALLOW, fields) for fields in _to_job(placed)]
    for kind, table, priority, fields in sides:
        inward = CountKind.WAN_IN_IPV6 if kind is CountKind.WAN_IN else CountKind.DROP_IN_IPV6
        counted = inward if "ipv6_dst" in fields else kind
        goto = int(Edge.QOS) if table is Edge.COUNT else None
        whose = count_cookie(number, counted)
        yield flow_of(int(table), priority, fields, whose, goto=goto, flags=FLAG_SEND_FLOW_REM)


def _to_job(placed: Placed) -> Iterator[Fields]:
    if (mac := placed.mac) is not None:
        yield {"eth_dst": mac}
        return
    if placed.job.ipv4 is not None:
        yield {"eth_type": ETH_IPV4, "ipv4_dst": int(placed.job.ipv4)}
    if placed.job.ipv6 is not None:
        yield {"eth_type": ETH_IPV6, "ipv6_dst": int(placed.job.ipv6)}


def _flow(table: Edge, priority: int, fields: Fields, goto: Edge) -> Flow:
    return flow_of(int(table), priority, fields, _FRAME, goto=int(goto))
