"""Jobs' own IPv6 addresses, opened to the WAN: new connections to open ports pass, others from there do not.

They stand in the table that judges tracked connections, above the job's connectivity: what the site closes,
an opening opens to the WAN alone. What comes from the site itself is judged by connectivity before. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lark_common.worker_rules import CT_ZONE, CT_ZONE_OTHERS
from lark_controller.flows import tables as t
from lark_controller.flows.build import FRAGMENT, ICMPV6, TCP, UDP, Fields, flow
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import CT_NEW, CT_TRK, ETH_IPV6, Action, Flow, Track
from lark_controller.flows.placement import Placed
from lark_controller.flows.tables import Edge
from lark_controller.flows.wan import ip_fields, local_networks
from lark_controller.jobs.external import Opening
from lark_controller.policies.model import Policy

_NEW: Final = (CT_NEW | CT_TRK, CT_NEW | CT_TRK)
_PORTS: Final = {"tcp": TCP, "udp": UDP}


def opened_frame(policy: Policy, drops: Edge | None) -> Iterator[Flow]:
    """The policy's own flows: what connectivity closes, and what comes from the site, is judged before openings."""
    mark = cookie(Category.CONNECTIVITY)
    fields: Fields = {"metadata": t.FROM_MUTE.put(1), "eth_type": ETH_IPV6, "ct_state": _NEW}
    yield flow(Edge.CONNECT, t.P_GUARD + 5, fields, mark, goto=drops)
    for network in local_networks(policy):
        if network.version != 6:
            continue
        source: Fields = {**ip_fields(network, "src"), "ct_state": _NEW}
        closed: Fields = {**source, "metadata": t.TO_MUTE.put(1)}
        yield flow(Edge.CONNECT, t.P_GUARD + 5, closed, mark, goto=drops)
        for protocol in (*_PORTS.values(), FRAGMENT):
            yield _passes(t.P_GUARD + 1, {**source, "ip_proto": protocol}, mark, CT_ZONE)
        yield _passes(t.P_GUARD, source, mark, CT_ZONE_OTHERS)


def opened_flows(placed: Placed, mark: int) -> Iterator[Flow]:
    """A job's own flows: its openings, and the end of what comes to none of them."""
    opened = placed.opened
    if opened is None:
        return
    to_job: Fields = {"eth_type": ETH_IPV6, "ipv6_dst": int(opened.address), "ct_state": _NEW}
    for each in opened.openings:
        yield from _opening(each, to_job, mark)
    drops = Edge.DROPS if placed.decision.accounted else None
    yield flow(Edge.CONNECT, t.P_REACTIVE - 10, to_job, mark, goto=drops)


def _opening(opening: Opening, to_job: Fields, mark: int) -> Iterator[Flow]:
    for name, protocol in _PORTS.items():
        if opening.protocol not in (name, "any"):
            continue
        ports: list[Fields] = [{f"{name}_dst": value} for value in opening.matches()]
        for port in ports or [{}]:
            yield _passes(t.P_REACTIVE + 1, {**to_job, "ip_proto": protocol, **port}, mark, CT_ZONE)
    if opening.protocol == "any":
        yield _passes(t.P_REACTIVE + 1, {**to_job, "ip_proto": FRAGMENT}, mark, CT_ZONE)
        yield _passes(t.P_REACTIVE, to_job, mark, CT_ZONE_OTHERS)
    elif opening.protocol == "icmp":
        yield _passes(t.P_REACTIVE, {**to_job, "ip_proto": ICMPV6}, mark, CT_ZONE_OTHERS)


def _passes(priority: int, fields: Fields, mark: int, zone: int) -> Flow:
    commit: tuple[Action, ...] = (Track(zone, None, commit=True),)
    return flow(Edge.CONNECT, priority, fields, mark, goto=Edge.SPLIT, actions=commit)
