"""What an edge switch holds: the frame of its tables, each local job's own flows, each local slice's flows.

Pure: every function is a calculation from frozen values to flows. :mod:`lark_controller.flows.pool` puts them together.
The tables and metadata bits are declared in :mod:`lark_controller.flows.tables`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from lark_controller.flows import tables as t
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.counting import count_flows, dropping, split_flows
from lark_controller.flows.model import (
    CT_EST,
    CT_NEW,
    CT_REL,
    CT_TRK,
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    PORT_CONTROLLER,
    PORT_LOCAL,
    VLAN_PRESENT,
    Action,
    Flow,
    FlowData,
    FlowKey,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    Track,
    match,
)
from lark_controller.flows.placement import LINK_LOCAL_PREFIX, Placed, Switch
from lark_controller.flows.prefixes import Prefix
from lark_controller.flows.queued import queue_flows
from lark_controller.flows.tables import Edge, combine
from lark_controller.flows.wan import wan_flows
from lark_controller.jobs import AddressType, Network
from lark_controller.policies.model import Policy

SWITCH: Final = cookie(Category.SWITCH)
BROADCAST: Final = 0xFFFFFFFFFFFF
MULTICAST_BIT: Final = 0x010000000000
ALL_NODES_MAC: Final = 0x333300000001
ICMPV6: Final = 58
TCP, UDP, ICMP = 6, 17, 1
RS, RA, NS, NA, REDIRECT, MLD2 = 133, 134, 135, 136, 137, 143
LINK_LOCAL: Final = (LINK_LOCAL_PREFIX, 0x3FF << 118)

Fields = dict[str, int | tuple[int, int]]
Admit = Callable[[int, Fields], Flow]


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
    return Flow(
        FlowKey(int(table), priority, match(**fields)),
        FlowData(cookie_, actions, None if goto is None else int(goto), metadata),
    )


def frame(switch: Switch, policy: Policy) -> Iterator[Flow]:
    """The flows that stand on every edge, whatever jobs it has: host traffic open, misses, what no job may ever do."""
    for port in (PORT_LOCAL, *switch.uplinks):
        yield flow(Edge.ADMIT, t.P_DENY, {"in_port": port}, SWITCH, goto=Edge.BLOCK)
    yield from _never()
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
    yield from _slices(policy, drops)
    yield from wan_flows(policy, Edge.WAN, Edge.TRACK, drops)
    if policy.connectivities and switch.tracks:
        yield from _connections(drops)
    elif policy.connectivities:
        yield from _untracked(drops)
    yield from split_flows(policy)
    yield from _groups(policy)
    yield from forwarding(switch)


def forwarding(switch: Switch) -> Iterator[Flow]:
    """The last two tables for traffic that concerns no job, with explicit outputs: nothing is ever flooded to a job.

    OpenFlow 1.3 has no NO_FLOOD bit for ports (Open vSwitch takes it in 1.0 alone), and what NORMAL floods would reach
    job ports. With one uplink, as nearly every worker has, two ends need no learning; with more, stations are learned.
    """
    open_ports = (PORT_LOCAL, *switch.uplinks)
    if len(switch.uplinks) > 1:
        # Where a job is, is known; only what lies beyond the uplinks is learned.
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
    """The frame of a learning switch: unknown sources are told to the controller, unknown destinations flooded.

    What is learned stands above these (:mod:`lark_controller.flows.learning`).
    """
    yield flow(learn, t.P_MISS, {}, SWITCH, goto=forward, actions=(Output(PORT_CONTROLLER),))
    yield flow(forward, t.P_SWITCH, {}, SWITCH, actions=tuple(Output(port) for port in open_ports))


def _never() -> Iterator[Flow]:
    """Router advertisements, redirects and DHCP servers are no business of a job (RFC 6105 names the same guard)."""
    from_job = t.FROM_JOB.put(1)
    for kind in (RA, REDIRECT):
        fields: Fields = {"metadata": from_job, "eth_type": ETH_IPV6, "ip_proto": ICMPV6, "icmpv6_type": kind}
        yield flow(Edge.BLOCK, t.P_EXACT + 100, fields, SWITCH)
    for ethertype, port in ((ETH_IPV4, 67), (ETH_IPV6, 547)):
        fields = {"metadata": from_job, "eth_type": ethertype, "ip_proto": UDP, "udp_src": port}
        yield flow(Edge.BLOCK, t.P_EXACT + 100, fields, SWITCH)


def _slices(policy: Policy, drops: Edge | None) -> Iterator[Flow]:
    """Sliced jobs and the job networks as a whole; what their own slice allows stands above (:func:`slice_flows`)."""
    if not policy.slices:
        return
    mark = cookie(Category.SLICE, 0)
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
                        asks = (Output(PORT_CONTROLLER),)
                        yield flow(table, t.P_ASK, {"metadata": bit, **fields}, mark, actions=asks)


def _both_ways(prefix: Prefix) -> Iterator[tuple[Edge, tuple[int, int], Fields]]:
    """A prefix as destination in slice-from and as source in slice-to, IP and ARP."""
    for table, bit, side in (
        (Edge.SLICE_FROM, t.FROM_SLICED.put(1), "dst"),
        (Edge.SLICE_TO, t.TO_SLICED.put(1), "src"),
    ):
        for fields in address_fields(prefix, side):
            yield table, bit, fields


def address_fields(prefix: Prefix, side: str) -> Iterator[Fields]:
    """The match fields of a prefix as ``src`` or ``dst``: IPv4 and ARP, or IPv6."""
    value = (prefix.value, prefix.mask)
    if prefix.version == 4:
        yield {"eth_type": ETH_IPV4, f"ipv4_{side}": value}
        yield {"eth_type": ETH_ARP, "arp_tpa" if side == "dst" else "arp_spa": value}
    else:
        yield {"eth_type": ETH_IPV6, f"ipv6_{side}": value}


def slice_flows(tag: int, prefixes: Iterable[Prefix]) -> Iterator[Flow]:
    """Which prefixes the jobs of a slice (its tag on this switch) exchange packets with."""
    mark = cookie(Category.SLICE, tag)
    for prefix in prefixes:
        for fields in address_fields(prefix, "dst"):
            terms: Fields = {"metadata": t.FROM_TAG.put(tag), **fields}
            yield flow(Edge.SLICE_FROM, t.P_EXACT, terms, mark, goto=Edge.SLICE_TO)
        for fields in address_fields(prefix, "src"):
            terms = {"metadata": t.TO_TAG.put(tag), **fields}
            yield flow(Edge.SLICE_TO, t.P_EXACT, terms, mark, goto=Edge.WAN)


def _connections(drops: Edge | None) -> Iterator[Flow]:
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
    look_up, look_up_others = ((Track(zone, int(Edge.CONNECT)),) for zone in (t.CT_ZONE, t.CT_ZONE_OTHERS))
    commit, commit_others = ((Track(zone, None, commit=True),) for zone in (t.CT_ZONE, t.CT_ZONE_OTHERS))
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


def _untracked(drops: Edge | None) -> Iterator[Flow]:
    """Where connections cannot be tracked, jobs with one-way connectivity have none."""
    for bit in (t.FROM_TRACKED, t.TO_TRACKED):
        yield flow(Edge.TRACK, t.P_ALLOW, {"metadata": bit.put(1)}, cookie(Category.CONNECTIVITY), goto=drops)


def _by_ports() -> Iterator[Fields]:
    for ethertype in (ETH_IPV4, ETH_IPV6):
        for protocol in (TCP, UDP):
            yield {"eth_type": ethertype, "ip_proto": protocol}


def _icmp_errors() -> Iterator[Fields]:
    """Errors are about connections by ports (RFC 792, RFC 4443); path MTU discovery lives from them."""
    for kind in (3, 11, 12):
        yield {"eth_type": ETH_IPV4, "ip_proto": ICMP, "icmpv4_type": kind}
    for kind in (1, 2, 3, 4):
        yield {"eth_type": ETH_IPV6, "ip_proto": ICMPV6, "icmpv6_type": kind}


def _groups(policy: Policy) -> Iterator[Flow]:
    """Every packet of a job carries its group's DSCP (RFC 2474) and no other: the core trusts it from edges."""
    if not policy.groups:
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


def job_flows(
    placed: Placed, switch: Switch, tag: int, dscp: int | None, local: tuple[Network, ...] = ()
) -> Iterator[Flow]:
    """One job's own flows on the edge where it is attached; ``tag`` is its slice's there (0: not sliced).

    ``local`` are the networks that are not the WAN. ``dscp`` marks its group (0: none), and None is a policy without
    groups, under which DSCP stays as it is.
    """
    if placed.port is None:
        return
    mark = cookie(Category.JOB, placed.job.number)
    yield from count_flows(placed)
    if placed.decision.isolated:
        yield from _isolated(placed, mark)
        return
    yield from _admit(placed, mark, _sender(placed, tag, dscp or 0))
    yield from queue_flows(placed, local, mark, dscp)
    yield from _receiver(placed, mark, tag)
    yield from _deliver(placed, mark)
    yield from _announce(placed, switch, mark)


def _isolated(placed: Placed, mark: int) -> Iterator[Flow]:
    assert placed.port is not None
    yield flow(Edge.ADMIT, t.P_ALLOW, {"in_port": placed.port}, mark, goto=Edge.BLOCK)
    drops = Edge.DROPS if placed.decision.accounted else None
    yield flow(Edge.BLOCK, t.P_EXACT + 200, {"in_port": placed.port}, mark, goto=drops)
    for fields in _to_job(placed):
        yield flow(Edge.BLOCK, t.P_EXACT, fields, mark, goto=drops)
    if placed.mac is not None:
        yield flow(Edge.BLOCK, t.P_EXACT, {"eth_dst": placed.mac}, mark, goto=drops)


def _to_job(placed: Placed) -> Iterator[Fields]:
    """Matches of packets for the job's addresses, neighbour solicitations included."""
    job = placed.job
    if job.ipv4 is not None:
        yield {"eth_type": ETH_IPV4, "ipv4_dst": int(job.ipv4)}
        yield {"eth_type": ETH_ARP, "arp_tpa": int(job.ipv4)}
    if job.ipv6 is not None:
        yield {"eth_type": ETH_IPV6, "ipv6_dst": int(job.ipv6)}
        solicited = int(job.ipv6)
        yield {"eth_type": ETH_IPV6, "ip_proto": ICMPV6, "icmpv6_type": NS, "ipv6_nd_target": solicited}


def _sender(placed: Placed, tag: int, dscp: int) -> tuple[int, int]:
    decision = placed.decision
    return combine(
        t.FROM_JOB.put(1),
        t.FROM_TAG.put(tag),
        t.FROM_SLICED.put(int(tag != 0)),
        t.FROM_WAN.put(decision.wan),
        t.FROM_TRACKED.put(int(decision.one_way)),
        t.FROM_MUTE.put(int(not decision.outbound)),
        t.GROUP.put(dscp),
    )


def _admit(placed: Placed, mark: int, metadata: tuple[int, int]) -> Iterator[Flow]:
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
        # Duplicate address detection asks from the unspecified address.
        yield admit(t.P_EXACT, {**nd, "icmpv6_type": NS, "ipv6_src": 0, "ipv6_nd_target": address})
    for source in (0, local):
        yield admit(t.P_EXACT, {**nd, "icmpv6_type": RS, "ipv6_src": source})
        yield admit(t.P_EXACT, {**nd, "icmpv6_type": MLD2, "ipv6_src": source})
    for kind in (NS, NA):
        yield flow(Edge.ADMIT, t.P_GUARD, {**port, **nd, "icmpv6_type": kind}, mark)
    if job.address_type is AddressType.DHCP:
        client: Fields = {"eth_type": ETH_IPV6, "ip_proto": UDP, "udp_src": 546, "udp_dst": 547}
        yield admit(t.P_ALLOW + 1, {**client, "ipv6_src": local})


def _receiver(placed: Placed, mark: int, tag: int) -> Iterator[Flow]:
    """What later tables must know of a packet that goes to the job."""
    decision = placed.decision
    metadata = combine(
        t.TO_JOB.put(1),
        t.TO_TAG.put(tag),
        t.TO_SLICED.put(int(tag != 0)),
        t.TO_WAN.put(decision.wan),
        t.TO_TRACKED.put(int(decision.one_way)),
        t.TO_MUTE.put(int(not decision.inbound)),
    )
    for fields in _to_job(placed):
        yield flow(Edge.BLOCK, t.P_ALLOW, fields, mark, goto=Edge.SLICE_FROM, metadata=metadata)


def _deliver(placed: Placed, mark: int) -> Iterator[Flow]:
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
    if job.ipv6 is not None or job.address_type is AddressType.DHCP:
        nd: Fields = {"eth_type": ETH_IPV6, "ip_proto": ICMPV6}
        for address in (local, None if job.ipv6 is None else int(job.ipv6)):
            if address is not None:
                yield deliver({**nd, "icmpv6_type": NS, "ipv6_nd_target": address})
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


def _announce(placed: Placed, switch: Switch, mark: int) -> Iterator[Flow]:
    """What a job says about its own address (probes and announcements, RFC 5227, 4862) is for everybody else."""
    assert placed.port is not None
    everyone = tuple(Output(port) for port in (PORT_LOCAL, *switch.uplinks))
    for fields in _to_job(placed):
        if "arp_tpa" in fields or "ipv6_nd_target" in fields:
            yield flow(Edge.FORWARD, t.P_EXACT + 10, {"in_port": placed.port, **fields}, mark, actions=everyone)


def deliveries(placed: Placed) -> tuple[Action, ...]:
    """The actions that hand a frame to the job, untagged."""
    assert placed.port is not None
    untag: tuple[Action, ...] = () if placed.job.vlan is None else (PopVlan(),)
    return (*untag, Output(placed.port))


def announced(placed: Placed) -> bool:
    """Whether a job is to hear what routers or DHCP servers announce."""
    if placed.port is None or placed.decision.isolated:
        return False
    return placed.job.ipv6 is not None or placed.job.address_type is AddressType.DHCP


def announcements(local: Iterable[Placed], switch: Switch) -> Iterator[Flow]:
    """What a router or DHCP server says to all: a copy for every local job that it concerns, and on as usual.

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
