"""The tables of one-way connectivity on an edge: connection tracking."""

from __future__ import annotations

from collections.abc import Iterator

from lark_common.worker_rules import CT_ZONE, CT_ZONE_OTHERS
from lark_controller.flows import tables as t
from lark_controller.flows.build import FRAGMENT, ICMP, ICMPV6, NA, NS, RA, RS, TCP, UDP, Fields, flow
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import (
    CT_EST,
    CT_NEW,
    CT_REL,
    CT_TRK,
    ETH_IPV4,
    ETH_IPV6,
    Flow,
    Track,
)
from lark_controller.flows.tables import Edge


def connection_flows(drops: Edge | None) -> Iterator[Flow]:
    """One-way connectivity: established connections pass, new ones in the open direction only (ovs-actions(7), ct)."""
    mark = cookie(Category.CONNECTIVITY)
    # Neighbour discovery and DHCP have no connection to belong to.
    for kind in (RS, RA, NS, NA):
        fields: Fields = {"eth_type": ETH_IPV6, "ip_proto": ICMPV6, "icmpv6_type": kind}
        yield flow(Edge.TRACK, t.P_EXACT, fields, mark, goto=Edge.SPLIT)
    for ethertype, client, server in ((ETH_IPV4, 68, 67), (ETH_IPV6, 546, 547)):
        for source, destination in ((client, server), (server, client)):
            fields = {"eth_type": ethertype, "ip_proto": UDP, "udp_src": source, "udp_dst": destination}
            yield flow(Edge.TRACK, t.P_EXACT, fields, mark, goto=Edge.SPLIT)
    look_up, look_up_others = ((Track(zone, int(Edge.CONNECT)),) for zone in (CT_ZONE, CT_ZONE_OTHERS))
    commit, commit_others = ((Track(zone, None, commit=True),) for zone in (CT_ZONE, CT_ZONE_OTHERS))
    for bit in (t.FROM_TRACKED, t.TO_TRACKED):
        for fields in (*_by_ports(), *_icmp_errors()):
            yield flow(Edge.TRACK, t.P_ALLOW + 1, {"metadata": bit.put(1), **fields}, mark, actions=look_up)
    for fields in _by_ports():
        terms: Fields = {**fields, "ct_state": (CT_NEW | CT_TRK, CT_NEW | CT_TRK)}
        yield flow(Edge.CONNECT, t.P_DENY + 1, terms, mark, goto=Edge.SPLIT, actions=commit)
    for ethertype in (ETH_IPV4, ETH_IPV6):
        for bit in (t.FROM_TRACKED, t.TO_TRACKED):
            fields = {"metadata": bit.put(1), "eth_type": ethertype}
            yield flow(Edge.TRACK, t.P_ALLOW, fields, mark, actions=look_up_others)
        for state in (CT_EST, CT_REL):
            fields = {"eth_type": ethertype, "ct_state": (state | CT_TRK, state | CT_TRK)}
            yield flow(Edge.CONNECT, t.P_EXACT, fields, mark, goto=Edge.SPLIT)
        new = (CT_NEW | CT_TRK, CT_NEW | CT_TRK)
        for bit in (t.FROM_MUTE, t.TO_MUTE):
            fields = {"metadata": bit.put(1), "eth_type": ethertype, "ct_state": new}
            yield flow(Edge.CONNECT, t.P_ALLOW, fields, mark, goto=drops)
        fields = {"eth_type": ethertype, "ct_state": new}
        yield flow(Edge.CONNECT, t.P_DENY, fields, mark, goto=Edge.SPLIT, actions=commit_others)


def untracked_flows(drops: Edge | None) -> Iterator[Flow]:
    """Drops the traffic of jobs with one-way connectivity where connections cannot be tracked."""
    for bit in (t.FROM_TRACKED, t.TO_TRACKED):
        yield flow(Edge.TRACK, t.P_ALLOW, {"metadata": bit.put(1)}, cookie(Category.CONNECTIVITY), goto=drops)


def _by_ports() -> Iterator[Fields]:
    for ethertype in (ETH_IPV4, ETH_IPV6):
        for protocol in (TCP, UDP):
            yield {"eth_type": ethertype, "ip_proto": protocol}
    # The later fragments of an IPv6 packet have no other protocol than this, and are put together with the first one in
    # its zone alone: those of TCP and UDP are, at the cost of all others.
    yield {"eth_type": ETH_IPV6, "ip_proto": FRAGMENT}


def _icmp_errors() -> Iterator[Fields]:
    """Flows for ICMP errors about connections by ports (RFC 792, RFC 4443); path MTU discovery depends on them."""
    for kind in (3, 11, 12):
        yield {"eth_type": ETH_IPV4, "ip_proto": ICMP, "icmpv4_type": kind}
    for kind in (1, 2, 3, 4):
        yield {"eth_type": ETH_IPV6, "ip_proto": ICMPV6, "icmpv6_type": kind}
