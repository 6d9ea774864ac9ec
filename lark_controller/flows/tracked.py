"""The addresses whose connections an edge tracks, read from its flows. Pure."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from typing import NamedTuple

from lark_common.runs import Address
from lark_controller.flows import tables as t
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.model import Match, Program
from lark_controller.flows.tables import Edge


class Tracked(NamedTuple):
    """An address of which connections are tracked, with the number of its job, and what is open there."""

    number: int
    address: Address
    opened: frozenset[Match] = frozenset()


def tracked(program: Program) -> frozenset[Tracked]:
    """The addresses of jobs whose connections are tracked, in the program of an edge."""
    found: set[tuple[int, Address]] = set()
    opened: dict[int, set[Match]] = {}
    for key, data in program.flows.items():
        if key.table == Edge.CONNECT:
            if (whose := parse(data.cookie)).category == Category.JOB:
                opened.setdefault(whose.number, set()).add(key.match)
            continue
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
    return frozenset(
        Tracked(number, address, frozenset(opened.get(number, ()) if address.version == 6 else ()))
        for number, address in found
    )
