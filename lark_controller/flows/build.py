"""The parts that flows are built from: fields of addresses, protocols and types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import (
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    Action,
    Flow,
    flow_of,
)
from lark_controller.flows.placement import LINK_LOCAL_PREFIX
from lark_controller.flows.prefixes import Prefix

SWITCH: Final = cookie(Category.SWITCH)


BROADCAST: Final = 0xFFFFFFFFFFFF


MULTICAST_BIT: Final = 0x010000000000


ALL_NODES_MAC: Final = 0x333300000001


ICMPV6: Final = 58


TCP, UDP, ICMP = 6, 17, 1
# The protocol of an IPv6 packet's later fragments: its own is in the first one alone (RFC 8200, section 4.5).
FRAGMENT: Final = 44


RS, RA, NS, NA, REDIRECT, MLD2 = 133, 134, 135, 136, 137, 143


LINK_LOCAL: Final = (LINK_LOCAL_PREFIX, 0x3FF << 118)


MULTICAST6: Final = (0xFF << 120, 0xFF << 120)


Fields = dict[str, int | tuple[int, int]]


def flow(
    table: int,
    priority: int,
    fields: Fields,
    cookie_: int,
    *,
    goto: int | None = None,
    actions: tuple[Action, ...] = (),
    metadata: tuple[int, int] | None = None,
) -> Flow:
    """A flow without timeouts; neither ``goto`` nor ``actions`` is a drop."""
    onward = None if goto is None else int(goto)
    return flow_of(int(table), priority, fields, cookie_, actions=actions, goto=onward, metadata=metadata)


def address_fields(prefix: Prefix, side: str) -> Iterator[Fields]:
    """The match fields of a prefix as ``src`` or ``dst``: IPv4 and ARP, or IPv6."""
    value = (prefix.value, prefix.mask)
    if prefix.version == 4:
        yield {"eth_type": ETH_IPV4, f"ipv4_{side}": value}
        yield {"eth_type": ETH_ARP, "arp_tpa" if side == "dst" else "arp_spa": value}
    else:
        yield {"eth_type": ETH_IPV6, f"ipv6_{side}": value}


def solicitation(target: int | tuple[int, int]) -> Fields:
    """The match fields of a multicast Neighbor Solicitation for an address or prefix (RFC 4861, section 4.3).

    A unicast one is matched by its destination; its target is ignored.
    """
    return {
        "eth_type": ETH_IPV6,
        "ip_proto": ICMPV6,
        "icmpv6_type": NS,
        "ipv6_dst": MULTICAST6,
        "ipv6_nd_target": target,
    }


def address_or_target_fields(prefix: Prefix, side: str) -> Iterator[Fields]:
    """As :func:`address_fields`; ``dst`` also where a Neighbor Solicitation, sent to a group, asks for the prefix."""
    yield from address_fields(prefix, side)
    if prefix.version == 6 and side == "dst":
        yield solicitation((prefix.value, prefix.mask))
