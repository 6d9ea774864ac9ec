"""The forwarding tables of an edge: which port a packet leaves by."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from lark_common.runs import AddressType
from lark_controller.flows import tables as t
from lark_controller.flows.build import (
    ALL_NODES_MAC,
    BROADCAST,
    ICMPV6,
    MULTICAST_BIT,
    NA,
    NS,
    RA,
    SWITCH,
    UDP,
    Fields,
    flow,
    solicitation,
)
from lark_controller.flows.model import (
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    PORT_CONTROLLER,
    PORT_LOCAL,
    VLAN_PRESENT,
    Action,
    Flow,
    Output,
    PopVlan,
)
from lark_controller.flows.placement import Placed, Switch
from lark_controller.flows.tables import Edge


def forwarding(switch: Switch) -> Iterator[Flow]:
    """The last two tables for traffic that concerns no job, with explicit outputs: nothing is ever flooded to a job.

    OpenFlow 1.3 has no NO_FLOOD bit for ports (Open vSwitch takes it in 1.0 alone), and what NORMAL floods would reach
    job ports. With one uplink, as nearly every worker has, two ends need no learning; with more, stations are learned.
    """
    open_ports = (PORT_LOCAL, *switch.uplinks)
    if len(switch.uplinks) > 1:
        # Jobs' ports are given; only stations beyond the uplinks are learned.
        yield flow(Edge.LEARN, t.P_SWITCH, {"metadata": t.FROM_JOB.put(1)}, SWITCH, goto=Edge.FORWARD)
        yield from learning_tables(Edge.LEARN, Edge.FORWARD, open_ports)
        return
    yield flow(Edge.LEARN, t.P_MISS, {}, SWITCH, goto=Edge.FORWARD)
    from_job = t.FROM_JOB.put(1)
    everyone = tuple(Output(port) for port in open_ports)
    away = tuple(Output(port) for port in switch.uplinks)
    for port in switch.uplinks:
        yield flow(Edge.FORWARD, t.P_SWITCH, {"in_port": port}, SWITCH, actions=(Output(PORT_LOCAL),))
        yield flow(Edge.FORWARD, t.P_SWITCH, {"in_port": PORT_LOCAL}, SWITCH, actions=(Output(port),))
    if switch.local_mac is not None:
        fields: Fields = {"metadata": from_job, "eth_dst": switch.local_mac}
        yield flow(Edge.FORWARD, t.P_SWITCH + 10, fields, SWITCH, actions=(Output(PORT_LOCAL),))
    fields = {"metadata": from_job, "eth_dst": (MULTICAST_BIT, MULTICAST_BIT)}
    yield flow(Edge.FORWARD, t.P_SWITCH + 5, fields, SWITCH, actions=everyone)
    if away:
        yield flow(Edge.FORWARD, t.P_SWITCH, {"metadata": from_job}, SWITCH, actions=away)


def learning_tables(learn: int, forward: int, open_ports: Iterable[int]) -> Iterator[Flow]:
    """The frame of a learning switch: unknown sources are sent to the controller, unknown destinations flooded.

    What is learned stands above these (:mod:`lark_controller.flows.learning`).
    """
    yield flow(learn, t.P_MISS, {}, SWITCH, goto=forward, actions=(Output(PORT_CONTROLLER),))
    yield flow(forward, t.P_SWITCH, {}, SWITCH, actions=tuple(Output(port) for port in open_ports))


def to_job(placed: Placed) -> Iterator[Fields]:
    """Matches of packets for the job's addresses, solicitations for them included."""
    yield from _global(placed)
    if placed.link_local is not None and _has_ipv6(placed):
        yield {"eth_type": ETH_IPV6, "ipv6_dst": placed.link_local}
        yield solicitation(placed.link_local)


def _global(placed: Placed) -> Iterator[Fields]:
    job = placed.job
    if job.ipv4 is not None:
        yield {"eth_type": ETH_IPV4, "ipv4_dst": int(job.ipv4)}
        yield {"eth_type": ETH_ARP, "arp_tpa": int(job.ipv4)}
    if job.ipv6 is not None:
        yield {"eth_type": ETH_IPV6, "ipv6_dst": int(job.ipv6)}
        yield solicitation(int(job.ipv6))


def _has_ipv6(placed: Placed) -> bool:
    return placed.job.ipv6 is not None or placed.job.address_type is AddressType.DHCP


def delivery_flows(placed: Placed, mark: int) -> Iterator[Flow]:
    """Exact delivery: the port gets what is for the job's addresses, and no flooding."""
    job, mac, local = placed.job, placed.mac, placed.link_local
    assert placed.port is not None
    out = deliveries(placed)
    at_mac: Fields = {} if mac is None else {"eth_dst": mac}
    vlan: Fields = {"vlan_vid": 0 if job.vlan is None else VLAN_PRESENT | job.vlan}

    def deliver(fields: Fields) -> Flow:
        return flow(Edge.FORWARD, t.P_EXACT, {**vlan, **fields}, mark, actions=out)

    if job.ipv4 is not None:
        yield deliver({**at_mac, "eth_type": ETH_IPV4, "ipv4_dst": int(job.ipv4)})
        yield deliver({"eth_type": ETH_ARP, "arp_tpa": int(job.ipv4)})
    if job.ipv6 is not None:
        yield deliver({**at_mac, "eth_type": ETH_IPV6, "ipv6_dst": int(job.ipv6)})
    if _has_ipv6(placed):
        nd: Fields = {"eth_type": ETH_IPV6, "ip_proto": ICMPV6}
        for address in (local, None if job.ipv6 is None else int(job.ipv6)):
            if address is not None:
                yield deliver(solicitation(address))
        if local is not None:
            for kind in (RA, NS, NA):
                yield deliver({**nd, **at_mac, "icmpv6_type": kind, "ipv6_dst": local})
    if job.address_type is AddressType.DHCP and mac is not None:
        yield deliver({**at_mac, "eth_type": ETH_IPV4, "ip_proto": UDP, "udp_src": 67, "udp_dst": 68})
        if local is not None:
            server: Fields = {"eth_type": ETH_IPV6, "ip_proto": UDP, "udp_src": 547, "udp_dst": 546}
            yield deliver({**at_mac, **server, "ipv6_dst": local})
    if mac is not None:
        yield flow(Edge.FORWARD, t.P_GUARD, {"eth_dst": mac}, mark)


def announcement_flows(placed: Placed, switch: Switch, mark: int) -> Iterator[Flow]:
    """Delivers a job's announcements of its own address (probes and announcements, RFC 5227, 4862) to all others."""
    assert placed.port is not None
    everyone = tuple(Output(port) for port in (PORT_LOCAL, *switch.uplinks))
    for fields in _global(placed):
        if "arp_tpa" in fields or "ipv6_nd_target" in fields:
            yield flow(Edge.FORWARD, t.P_EXACT + 10, {"in_port": placed.port, **fields}, mark, actions=everyone)


def deliveries(placed: Placed) -> tuple[Action, ...]:
    """The actions that hand a frame to the job, untagged."""
    assert placed.port is not None
    untag: tuple[Action, ...] = () if placed.job.vlan is None else (PopVlan(),)
    return (*untag, Output(placed.port))


def announced(placed: Placed) -> bool:
    """True if announcements of routers or DHCP servers go to the job."""
    if placed.port is None or placed.decision.isolated:
        return False
    return _has_ipv6(placed)


def announcements(local: Iterable[Placed], switch: Switch) -> Iterator[Flow]:
    """Announcements of routers and DHCP servers to all: a copy for every local job that it concerns, and on as usual.

    Nothing is flooded to job ports, so router advertisements (RFC 4861) and broadcast DHCP answers are handed to
    each of them by name. One flow a VLAN.
    """
    rest = tuple(Output(port) for port in (PORT_LOCAL, *switch.uplinks))
    advertised: dict[int | None, list[int]] = {}
    answered: dict[int | None, list[int]] = {}
    for placed in local:
        if placed.port is None or not announced(placed):
            continue
        advertised.setdefault(placed.job.vlan, []).append(placed.port)
        if placed.job.address_type is AddressType.DHCP:
            answered.setdefault(placed.job.vlan, []).append(placed.port)
    router: Fields = {
        "eth_dst": ALL_NODES_MAC,
        "eth_type": ETH_IPV6,
        "ip_proto": ICMPV6,
        "icmpv6_type": RA,
    }
    server: Fields = {"eth_dst": BROADCAST, "eth_type": ETH_IPV4, "ip_proto": UDP, "udp_src": 67, "udp_dst": 68}
    for fields, audiences in ((router, advertised), (server, answered)):
        for vlan, ports in sorted(audiences.items(), key=lambda item: item[0] or 0):
            tagged: Fields = {"vlan_vid": 0 if vlan is None else VLAN_PRESENT | vlan}
            untag: tuple[Action, ...] = () if vlan is None else (PopVlan(),)
            # The tag is taken off for the jobs alone, so they come last.
            actions = (*rest, *untag, *(Output(port) for port in sorted(ports)))
            yield flow(Edge.FORWARD, t.P_EXACT + 10, {**tagged, **fields}, SWITCH, actions=actions)
