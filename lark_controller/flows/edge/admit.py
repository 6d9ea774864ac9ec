"""The table ``admit`` of an edge: a job's port sends with that job's addresses alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from lark_common.runs import AddressType
from lark_controller.flows import tables as t
from lark_controller.flows.build import ICMPV6, LINK_LOCAL, MLD2, NA, NS, RS, UDP, Fields, flow
from lark_controller.flows.model import (
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    VLAN_PRESENT,
    Action,
    Flow,
    PushVlan,
    SetField,
)
from lark_controller.flows.placement import Placed
from lark_controller.flows.tables import Edge

# ff02::2 (RFC 4291), ff02::16 (RFC 3810) and ff02::1:2 (RFC 8415).
ALL_ROUTERS: Final = 0xFF02 << 112 | 2
ALL_MLD2_ROUTERS: Final = 0xFF02 << 112 | 0x16
ALL_DHCP_SERVERS: Final = 0xFF02 << 112 | 1 << 16 | 2

Admit = Callable[[int, Fields], Flow]


def admit_flows(placed: Placed, mark: int, metadata: tuple[int, int]) -> Iterator[Flow]:
    """Anti-spoofing: the port sends with the job's own MAC and addresses, untagged, and nothing else."""
    job, mac = placed.job, placed.mac
    assert placed.port is not None
    port: Fields = {"in_port": placed.port, "vlan_vid": 0}
    if mac is not None:
        port["eth_src"] = mac
    tagging: tuple[Action, ...] = ()
    if job.vlan is not None:
        tagging = (PushVlan(), SetField("vlan_vid", VLAN_PRESENT | job.vlan))

    def admit(priority: int, fields: Fields) -> Flow:
        return flow(Edge.ADMIT, priority, {**port, **fields}, mark, goto=Edge.BLOCK, actions=tagging, metadata=metadata)

    if job.ipv4 is not None:
        yield admit(t.P_ALLOW, {"eth_type": ETH_IPV4, "ipv4_src": int(job.ipv4)})
        sender: Fields = {"eth_type": ETH_ARP} if mac is None else {"eth_type": ETH_ARP, "arp_sha": mac}
        yield admit(t.P_ALLOW, {**sender, "arp_spa": int(job.ipv4)})
        # An address probe (RFC 5227, section 1.1) has no sender address.
        yield admit(t.P_ALLOW, {**sender, "arp_spa": 0, "arp_tpa": int(job.ipv4)})
    if job.address_type is AddressType.DHCP:
        client: Fields = {"eth_type": ETH_IPV4, "ip_proto": UDP, "udp_src": 68, "udp_dst": 67}
        yield admit(t.P_ALLOW + 1, {**client, "ipv4_src": 0, "ipv4_dst": 0xFFFFFFFF})
    if job.ipv6 is not None or job.address_type is AddressType.DHCP:
        yield from _admit_ipv6(placed, mark, port, admit)


def _admit_ipv6(placed: Placed, mark: int, port: Fields, admit: Admit) -> Iterator[Flow]:
    """IPv6 with the job's own source; neighbour discovery only about the job's own addresses (RFC 4861, 4862)."""
    job, mac = placed.job, placed.mac
    local: int | tuple[int, int] = LINK_LOCAL if placed.link_local is None else placed.link_local
    own = [local] if job.ipv6 is None else [int(job.ipv6), local]
    nd: Fields = {"eth_type": ETH_IPV6, "ip_proto": ICMPV6}
    # A link-layer option that names another MAC would poison the receiver's cache; no option is nothing to believe.
    options: tuple[int, ...] = (0,) if mac is None else (0, mac)
    if job.ipv6 is not None:
        yield admit(t.P_ALLOW, {"eth_type": ETH_IPV6, "ipv6_src": int(job.ipv6)})
    for address in own:
        for option in options:
            lladdr: Fields = {} if mac is None else {"ipv6_nd_sll": option}
            yield admit(t.P_EXACT, {**nd, "icmpv6_type": NS, "ipv6_src": address, **lladdr})
            lladdr = {} if mac is None else {"ipv6_nd_tll": option}
            yield admit(t.P_EXACT, {**nd, "icmpv6_type": NA, "ipv6_src": address, "ipv6_nd_target": address, **lladdr})
        # Duplicate address detection uses the unspecified address as its source.
        yield admit(t.P_EXACT, {**nd, "icmpv6_type": NS, "ipv6_src": 0, "ipv6_nd_target": address})
    if placed.decision.slice is not None and job.address_type is not AddressType.DHCP:
        # Only a DHCP server is answered by an advertisement from a job's link-local address to another one: any other
        # such advertisement could go to a job of another slice.
        to_local: Fields = {"icmpv6_type": NA, "ipv6_src": local, "ipv6_dst": LINK_LOCAL}
        yield flow(Edge.ADMIT, t.P_EXACT + 1, {**port, **nd, **to_local}, mark)
    # To all routers alone: sent to a job, nothing would tell from whom it is.
    for source in (0, local):
        yield admit(t.P_EXACT, {**nd, "icmpv6_type": RS, "ipv6_src": source, "ipv6_dst": ALL_ROUTERS})
        yield admit(t.P_EXACT, {**nd, "icmpv6_type": MLD2, "ipv6_src": source, "ipv6_dst": ALL_MLD2_ROUTERS})
    for kind in (NS, NA):
        yield flow(Edge.ADMIT, t.P_GUARD, {**port, **nd, "icmpv6_type": kind}, mark)
    if job.address_type is AddressType.DHCP:
        client: Fields = {"eth_type": ETH_IPV6, "ip_proto": UDP, "udp_src": 546, "udp_dst": 547}
        yield admit(t.P_ALLOW + 1, {**client, "ipv6_src": local, "ipv6_dst": ALL_DHCP_SERVERS})
