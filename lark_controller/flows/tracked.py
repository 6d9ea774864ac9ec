"""The addresses whose connections an edge tracks, read from its flows. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from lark_common.runs import Address
from lark_controller.flows import tables as t
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.model import Program
from lark_controller.flows.tables import Edge


def tracked(program: Program) -> frozenset[tuple[int, Address]]:
    """The number and address of each job with one-way connectivity, in the program of an edge."""
    found: set[tuple[int, Address]] = set()
    for key, data in program.flows.items():
        if key.table != Edge.ADMIT or key.priority != t.P_ALLOW or data.metadata is None:
            continue
        whose = parse(data.cookie)
        if whose.category != Category.JOB or not data.metadata[0] & t.FROM_TRACKED.mask:
            continue
        for term in key.match:
            if term.name == "ipv4_src":
                found.add((whose.number, IPv4Address(term.value)))
            elif term.name == "ipv6_src":
                found.add((whose.number, IPv6Address(term.value)))
    return frozenset(found)
