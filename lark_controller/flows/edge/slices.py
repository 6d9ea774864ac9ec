"""The slice tables of an edge: which source tags may reach which addresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Final

from lark_controller.flows import tables as t
from lark_controller.flows.build import ICMPV6, LINK_LOCAL, NA, NS, Fields, address_or_target_fields, flow, solicitation
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.diff import diff
from lark_controller.flows.model import (
    ETH_IPV6,
    PORT_CONTROLLER,
    Changes,
    Flow,
    Output,
    Program,
)
from lark_controller.flows.prefixes import Prefix
from lark_controller.flows.tables import Edge
from lark_controller.policies.model import Policy

# 2000::/3 and fc00::/7: global and unique local addresses (RFC 4291, RFC 4193).
GLOBAL: Final = ((0x2000 << 112, 0xE000 << 112), (0xFC00 << 112, 0xFE00 << 112))


def denial_flows(policy: Policy, drops: Edge | None) -> Iterator[Flow]:
    """Sliced jobs and the job networks as a whole; what their own slice allows stands above (:func:`slice_flows`)."""
    if not policy.slices:
        return
    mark = cookie(Category.SLICE, 0)
    yield from _link_local(mark, drops)
    yield from _without_slice(mark, drops)
    networks = policy.job_networks
    for network in networks:
        prefix = Prefix(network.version, int(network.network_address), network.prefixlen)
        for table, bit, fields in _both_ways(prefix):
            yield flow(table, t.P_DENY, {"metadata": bit, **fields}, mark, goto=drops)
    for host in policy.hosts:
        prefix = Prefix(host.version, int(host.network_address), host.prefixlen)
        for table, bit, fields in _both_ways(prefix):
            following = Edge.SLICE_TO if table is Edge.SLICE_FROM else Edge.WAN
            yield flow(table, t.P_ALLOW, {"metadata": bit, **fields}, mark, goto=following)
    if not networks:
        # Jobs live among other hosts: whose an address is, is asked once a pair, and remembered while it is used.
        for table, bit in ((Edge.SLICE_FROM, t.FROM_SLICED.put(1)), (Edge.SLICE_TO, t.TO_SLICED.put(1))):
            for network in policy.local_networks:
                prefix = Prefix(network.version, int(network.network_address), network.prefixlen)
                for where, _, fields in _both_ways(prefix):
                    if where == table:
                        to_controller = (Output(PORT_CONTROLLER),)
                        yield flow(table, t.P_ASK, {"metadata": bit, **fields}, mark, actions=to_controller)


def _link_local(mark: int, drops: Edge | None) -> Iterator[Flow]:
    """Drops solicitations between link-local addresses of sliced jobs, since no prefix shows whose they are.

    A job resolves its router's from an address of its own that can be looked at (RFC 6724); so a sliced job answers no
    solicitation from a link-local address for one, except a multicast one from beyond an edge, as routers and DHCP
    servers send.
    """
    yield flow(
        Edge.SLICE_FROM,
        t.P_EXACT,
        {"metadata": t.FROM_SLICED.put(1), **solicitation(LINK_LOCAL), "ipv6_src": LINK_LOCAL},
        mark,
        goto=drops,
    )
    # A router with the job in its cache solicits directly before it does so by multicast: no drop by policy is counted.
    # A sliced job does not solicit link-local addresses, so no advertisement answers it there.
    for kind in (NS, NA):
        fields: Fields = {"eth_type": ETH_IPV6, "ip_proto": ICMPV6, "icmpv6_type": kind}
        yield flow(
            Edge.SLICE_TO,
            t.P_EXACT,
            {"metadata": t.TO_SLICED.put(1), **fields, "ipv6_src": LINK_LOCAL, "ipv6_dst": LINK_LOCAL},
            mark,
        )
    # Nor does a job answer global addresses from its link-local one.
    for prefix in GLOBAL:
        fields = {
            "eth_type": ETH_IPV6,
            "ip_proto": ICMPV6,
            "icmpv6_type": NA,
            "ipv6_src": LINK_LOCAL,
            "ipv6_dst": prefix,
        }
        yield flow(Edge.SLICE_FROM, t.P_EXACT + 1, {"metadata": t.FROM_JOB.put(1), **fields}, mark)


def _without_slice(mark: int, drops: Edge | None) -> Iterator[Flow]:
    """Drops what a job without a slice sends to a sliced one on the same worker, whatever its source is."""
    nobody = t.combine(t.FROM_JOB.put(1), t.FROM_SLICED.put(0), t.TO_SLICED.put(1))
    yield flow(Edge.SLICE_TO, t.P_EXACT + 1, {"metadata": nobody}, mark, goto=drops)


def _both_ways(prefix: Prefix) -> Iterator[tuple[Edge, tuple[int, int], Fields]]:
    """A prefix as destination in slice-from and as source in slice-to: IP, ARP and neighbour discovery."""
    for table, bit, side in (
        (Edge.SLICE_FROM, t.FROM_SLICED.put(1), "dst"),
        (Edge.SLICE_TO, t.TO_SLICED.put(1), "src"),
    ):
        for fields in address_or_target_fields(prefix, side):
            yield table, bit, fields


def slice_flows(tag: int, prefixes: Iterable[Prefix]) -> Iterator[Flow]:
    """Flows for the prefixes with which the jobs of a slice (its tag on this switch) exchange packets."""
    for prefix in prefixes:
        yield from _prefix_flows(tag, prefix)


def slice_change(tag: int, added: Iterable[Prefix], removed: Iterable[Prefix]) -> tuple[Changes, int]:
    """The change of a switch where nothing but a slice's prefixes changes, and how many flows more that are."""
    desired, there = Program.of(slice_flows(tag, added)), Program.of(slice_flows(tag, removed))
    return diff(desired, there), len(desired.flows) - len(there.flows)


@lru_cache(maxsize=16_384)
def _prefix_flows(tag: int, prefix: Prefix) -> tuple[Flow, ...]:
    """The flows of one prefix: a slice has the same tag on nearly every switch, so its flows are the same there."""
    mark = cookie(Category.SLICE, tag)
    found = []
    for fields in address_or_target_fields(prefix, "dst"):
        terms: Fields = {"metadata": t.FROM_TAG.put(tag), **fields}
        found.append(flow(Edge.SLICE_FROM, t.P_EXACT, terms, mark, goto=Edge.SLICE_TO))
    for fields in address_or_target_fields(prefix, "src"):
        terms = {"metadata": t.TO_TAG.put(tag), **fields}
        found.append(flow(Edge.SLICE_TO, t.P_EXACT, terms, mark, goto=Edge.WAN))
    return tuple(found)
