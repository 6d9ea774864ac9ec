"""The flows of an edge switch: the frame of its tables, each local job's own flows, each local slice's flows.

Pure: every function is a calculation from frozen values to flows. :mod:`lark_controller.flows.desired` puts them
together. The tables and metadata bits are declared in :mod:`lark_controller.flows.tables`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from lark_common.runs import Network
from lark_controller.flows import tables as t
from lark_controller.flows.build import ICMPV6, RA, REDIRECT, SWITCH, UDP, Fields, flow
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.counting import count_flows, dropping, split_flows
from lark_controller.flows.edge.admit import admit_flows
from lark_controller.flows.edge.connections import connection_flows, untracked_flows
from lark_controller.flows.edge.delivery import announcement_flows, delivery_flows, forwarding, to_job
from lark_controller.flows.edge.opened import opened_flows, opened_frame
from lark_controller.flows.edge.slices import denial_flows
from lark_controller.flows.model import (
    ETH_IPV4,
    ETH_IPV6,
    PORT_LOCAL,
    Flow,
    SetField,
)
from lark_controller.flows.placement import Placed, Switch, same_for_switches
from lark_controller.flows.queue_choice import queue_flows
from lark_controller.flows.tables import Edge, combine
from lark_controller.flows.wan import wan_flows
from lark_controller.policies.model import Policy


def frame(switch: Switch) -> Iterator[Flow]:
    """The flows that stand on an edge whatever jobs and policy there are: host traffic open, and plain forwarding."""
    for port in (PORT_LOCAL, *switch.uplinks):
        yield flow(Edge.ADMIT, t.P_DENY, {"in_port": port}, SWITCH, goto=Edge.BLOCK)
    yield from forwarding(switch)


def rules(policy: Policy, *, tracks: bool) -> Iterator[Flow]:
    """The flows of a policy that stand on every edge, whatever jobs it has: misses, what no job may ever do.

    ``tracks``: the edge has connection tracking.
    """
    yield from _never()
    # A miss in the table admit is a drop: a packet by another address or MAC than the job's matches nothing there.
    for table, following in (
        (Edge.BLOCK, Edge.SLICE_FROM),
        (Edge.SLICE_FROM, Edge.SLICE_TO),
        (Edge.SLICE_TO, Edge.WAN),
        (Edge.WAN, Edge.TRACK),
        (Edge.TRACK, Edge.SPLIT),
        (Edge.QOS, Edge.LEARN),
    ):
        yield flow(table, t.P_MISS, {}, SWITCH, goto=following)
    drops = dropping(policy)
    yield from denial_flows(policy, drops)
    yield from wan_flows(policy, Edge.WAN, Edge.TRACK, drops)
    opens = policy.external is not None and policy.external.opens
    if tracks and (policy.connectivities or opens):
        yield from connection_flows(drops)
    elif policy.connectivities:
        yield from untracked_flows(drops)
    if tracks and opens:
        yield from opened_frame(policy, drops)
    yield from split_flows(policy)
    yield from _groups(policy)


def _never() -> Iterator[Flow]:
    """Router advertisements, redirects and DHCP servers are no business of a job (RFC 6105 names the same guard)."""
    from_job = t.FROM_JOB.put(1)
    for kind in (RA, REDIRECT):
        fields: Fields = {"metadata": from_job, "eth_type": ETH_IPV6, "ip_proto": ICMPV6, "icmpv6_type": kind}
        yield flow(Edge.BLOCK, t.P_EXACT + 100, fields, SWITCH)
    for ethertype, port in ((ETH_IPV4, 67), (ETH_IPV6, 547)):
        fields = {"metadata": from_job, "eth_type": ethertype, "ip_proto": UDP, "udp_src": port}
        yield flow(Edge.BLOCK, t.P_EXACT + 100, fields, SWITCH)


def _groups(policy: Policy) -> Iterator[Flow]:
    """Every packet of a job carries its group's DSCP (RFC 2474) and no other: the core trusts it from edges."""
    if not policy.marks_packets:
        return
    for dscp in (0, *(group.dscp for group in policy.groups)):
        for ethertype in (ETH_IPV4, ETH_IPV6):
            yield flow(
                Edge.QOS,
                t.P_ALLOW,
                {"metadata": combine(t.FROM_JOB.put(1), t.GROUP.put(dscp)), "eth_type": ethertype},
                cookie(Category.GROUP, dscp),
                goto=Edge.LEARN,
                actions=(SetField("ip_dscp", dscp),),
            )


class Marks(NamedTuple):
    """The numbers by which an edge's tables tell a job: its slice's tag there (0: not sliced), the WAN rule that drops
    what it sends (0: none), and its group's DSCP (0: none; None: a policy by which no switch looks at DSCP, and it
    stays as it is)."""

    tag: int
    wan: int
    dscp: int | None


def job_flows(placed: Placed, switch: Switch, marks: Marks, local: tuple[Network, ...] = ()) -> Iterator[Flow]:
    """One job's own flows on the edge where it is attached; ``local`` are the networks that are not the WAN."""
    if placed.port is None:
        return
    mark = cookie(Category.JOB, placed.job.number)
    yield from count_flows(placed)
    if placed.decision.isolated:
        yield from _isolated(placed, mark)
        return
    yield from admit_flows(placed, mark, _sender(placed, marks))
    yield from queue_flows(placed, local, mark, marks.dscp)
    yield from _receiver(placed, mark, marks)
    yield from opened_flows(placed, mark)
    yield from delivery_flows(placed, mark)
    yield from announcement_flows(placed, switch, mark)


def alike(one: Placed, other: Placed) -> bool:
    """True where a job's own flows on an edge are the same, as far as the marks and the switch are the same."""
    if one is other:
        return True
    was, now = one.decision, other.decision
    return (
        (one.datapath, one.port, one.queue, one.reserved, one.opened)
        == (other.datapath, other.port, other.queue, other.reserved, other.opened)
        and (was.isolated, was.accounted, was.inbound, was.outbound, was.slice is None)
        == (now.isolated, now.accounted, now.inbound, now.outbound, now.slice is None)
        and (one.job is other.job or same_for_switches(one.job, other.job))
    )


def marked_flows(placed: Placed, was: Marks, now: Marks, local: tuple[Network, ...] = ()) -> Iterator[Flow]:
    """Those of a job's own flows that other marks change, as they are then; which flows there are stays the same."""
    if placed.port is None or placed.decision.isolated:
        return
    mark = cookie(Category.JOB, placed.job.number)
    if (sender := _sender(placed, now)) != _sender(placed, was):
        yield from (each for each in admit_flows(placed, mark, sender) if each.data.metadata is not None)
    if now.dscp != was.dscp:
        yield from queue_flows(placed, local, mark, now.dscp)
    if (now.tag, now.wan) != (was.tag, was.wan):
        yield from _receiver(placed, mark, now)


def _isolated(placed: Placed, mark: int) -> Iterator[Flow]:
    assert placed.port is not None
    yield flow(Edge.ADMIT, t.P_ALLOW, {"in_port": placed.port}, mark, goto=Edge.BLOCK)
    drops = Edge.DROPS if placed.decision.accounted else None
    yield flow(Edge.BLOCK, t.P_EXACT + 200, {"in_port": placed.port}, mark, goto=drops)
    for fields in to_job(placed):
        yield flow(Edge.BLOCK, t.P_EXACT, fields, mark, goto=drops)
    if placed.mac is not None:
        yield flow(Edge.BLOCK, t.P_EXACT, {"eth_dst": placed.mac}, mark, goto=drops)


def _sender(placed: Placed, marks: Marks) -> tuple[int, int]:
    decision = placed.decision
    return combine(
        t.FROM_JOB.put(1),
        t.FROM_TAG.put(marks.tag),
        t.FROM_SLICED.put(int(marks.tag != 0)),
        t.FROM_WAN.put(marks.wan),
        t.FROM_TRACKED.put(int(placed.tracked)),
        t.FROM_MUTE.put(int(not decision.outbound)),
        t.GROUP.put(marks.dscp or 0),
    )


def _receiver(placed: Placed, mark: int, marks: Marks) -> Iterator[Flow]:
    """The instructions that write the destination job of a packet for later tables."""
    decision = placed.decision
    metadata = combine(
        t.TO_JOB.put(1),
        t.TO_TAG.put(marks.tag),
        t.TO_SLICED.put(int(marks.tag != 0)),
        t.TO_WAN.put(marks.wan),
        t.TO_TRACKED.put(int(placed.tracked)),
        t.TO_MUTE.put(int(not decision.inbound)),
    )
    for fields in to_job(placed):
        yield flow(Edge.BLOCK, t.P_ALLOW, fields, mark, goto=Edge.SLICE_FROM, metadata=metadata)
