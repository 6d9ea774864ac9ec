"""External addresses on a core switch: 1:1 translation by set-field, without any state of connections. Pure.

A packet from the WAN for an external address gets the job's own as its destination, where protocol and port are open,
and goes on through all tables as any packet to the job; everything else for the pools is dropped. What the job sends
from an open port gets the external address as its source, behind all tables that look at the job's own. Nobody inside
or outside sends with an address of the pools. ARP requests from the WAN are answered by the switch itself.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import Final

from lark_common.runs import Network
from lark_controller.flows import tables as t
from lark_controller.flows.build import BROADCAST, ICMP, SWITCH, TCP, UDP, Fields, flow
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.icmp_errors import ERROR_TYPES, MOST_BYTES
from lark_controller.flows.model import ETH_ARP, ETH_IPV4, PORT_CONTROLLER, PORT_IN_PORT, Flow, Output, SetField
from lark_controller.flows.placement import Placed, Switch, WanPort
from lark_controller.flows.tables import Core, combine
from lark_controller.flows.wan import ip_fields, local_networks
from lark_controller.jobs.external import Opening
from lark_controller.policies.external_spec import ExternalSpec, PoolPlace
from lark_controller.policies.model import Policy

_ARP_REQUEST, _ARP_REPLY = 1, 2
_PROTOCOLS: Final = {"tcp": TCP, "udp": UDP, "icmp": ICMP}
_CLOSED: Final = cookie(Category.EXTERNAL)
_ASK: Final = (Output(PORT_CONTROLLER, MOST_BYTES),)


def pool_flows(switch: Switch, policy: Policy) -> Iterator[Flow]:
    """The frame: nothing passes by addresses that are no job's, and nobody has one as a source."""
    yield flow(Core.EXTERNAL, t.P_MISS, {}, SWITCH, goto=Core.LEARN)
    if policy.external is None:
        return
    for networks in policy.external.pools.values():
        for network in networks:
            value = int(network.network_address), int(network.netmask)
            yield flow(Core.CLASSIFY, t.P_EXACT, ip_fields(network, "src"), _CLOSED)
            yield flow(Core.CLASSIFY, t.P_EXACT, {"eth_type": ETH_ARP, "arp_spa": value}, _CLOSED)
            yield flow(Core.CLASSIFY, t.P_REACTIVE, ip_fields(network, "dst"), _CLOSED)
            yield flow(Core.CLASSIFY, t.P_REACTIVE, {"eth_type": ETH_ARP, "arp_tpa": value}, _CLOSED)
    yield from _host_flows(switch, policy, policy.external)
    for network in local_networks(policy):
        yield flow(Core.EXTERNAL, t.P_GUARD, ip_fields(network, "dst"), SWITCH, goto=Core.LEARN)


def from_host(policy: Policy, host: Network) -> tuple[int, int] | None:
    """The metadata of what one of the site's own hosts sends from behind a WAN port, where that matters."""
    pools = policy.external is not None and policy.external.pools
    return t.FROM_HOST.put(1) if pools and host.version == 4 else None


def _host_flows(switch: Switch, policy: Policy, spec: ExternalSpec) -> Iterator[Flow]:
    """The site's own hosts behind a WAN port, as the router there: what they send to the pools is dropped, as from
    anywhere inside, but for their ICMP errors, without which nobody finds the path MTU through that router. The
    controller finds the job by the address.

    Source, destination and kind are matched one after another, each in a table, so that neither hosts nor kinds
    multiply with the networks of the pools, which may be single addresses.
    """
    if not switch.wan or not any(from_host(policy, host) for host in policy.hosts):
        return
    known: dict[tuple[WanPort, ...], list[IPv4Network]] = {}
    for name, networks in spec.pools.items():
        here = pool_ports(switch, spec.places.get(name, PoolPlace()))
        known.setdefault(here, []).extend(each for each in networks if isinstance(each, IPv4Network))
    for ports, mine in known.items():
        # The bit comes from a WAN port alone.
        by: tuple[Fields, ...] = ({},) if ports == switch.wan else tuple({"in_port": wan.number} for wan in ports)
        for network in collapse_addresses(mine):
            fields: Fields = {"metadata": t.FROM_HOST.put(1), **ip_fields(network, "dst")}
            if ports != switch.wan:
                yield flow(Core.WAN, t.P_EXACT + 10, fields, _CLOSED)
            for way in by:
                yield flow(Core.WAN, t.P_EXACT + 11, fields | way, _CLOSED, goto=Core.QOS, metadata=t.TO_POOL.put(1))
    if not any(known):
        return
    called: Fields = {"metadata": t.TO_POOL.put(1), "eth_type": ETH_IPV4}
    yield flow(Core.QOS, t.P_EXACT + 10, called, _CLOSED)
    for kind in ERROR_TYPES:
        error: Fields = {**called, "ip_proto": ICMP, "icmpv4_type": kind}
        yield flow(Core.QOS, t.P_EXACT + 11, error, _CLOSED, actions=_ASK)


def external_flows(
    placed: Placed | None, switch: Switch, dropping: Collection[int], spec: ExternalSpec | None
) -> Iterator[Flow]:
    """The flows of a job's external addresses on a core; ``dropping`` are the WAN rules that drop, ``spec`` the
    policy's pools."""
    if placed is None or not placed.job.external or placed.decision.isolated:
        return
    own, mac = placed.job.ipv4, placed.mac
    if own is None or mac is None:
        return
    mark = cookie(Category.EXTERNAL, placed.job.number)
    metadata = None
    if (rule := placed.decision.wan) in dropping:
        # As the flow of its prefix has it, which the packet does not meet any more.
        metadata = combine(t.TO_JOB.put(1), t.TO_WAN.put(rule))
    for each in placed.job.external:
        if not isinstance(each.address, IPv4Address):
            continue
        ports = pool_ports(switch, PoolPlace() if spec is None else spec.place(each.address))
        if not ports:
            continue
        address = int(each.address)
        inward = SetField("ipv4_dst", int(own)), SetField("eth_dst", mac)
        yield from _error_flows(address, placed, ports, mark)
        for wan in ports:
            yield _arp_answer(address, mac, wan.number, wan.next_hop, mark)
            for fields in _opened(each.openings, "dst"):
                fields |= {"in_port": wan.number, "ipv4_dst": address}
                yield flow(Core.CLASSIFY, t.P_GUARD, fields, mark, goto=Core.WAN, actions=inward, metadata=metadata)
        outward = (SetField("ipv4_src", address),)
        for fields in _opened(each.openings, "src"):
            fields |= {"ipv4_src": int(own)}
            yield flow(Core.EXTERNAL, t.P_ALLOW, fields, mark, goto=Core.LEARN, actions=outward)


def pool_ports(switch: Switch, place: PoolPlace) -> tuple[WanPort, ...]:
    """The WAN ports of a switch where a pool's addresses are known: its own, or while that is down the one that takes
    its place as well, since what leaves there is answered there."""
    if place.switch not in (None, switch.name):
        return ()
    if place.port is None:
        return switch.wan
    now = switch.wan_or_backup(place.port)
    return tuple(port for port in switch.wan if port.name == place.port or port == now)


def _error_flows(address: int, placed: Placed, ports: Collection[WanPort], mark: int) -> Iterator[Flow]:
    """ICMP errors quote a packet with an address that no set-field reaches: the controller translates them, some at a
    time (:mod:`.icmp_errors`). What it gives back for the outside has been through the tables before *external*."""
    own, rule = int(placed.job.ipv4 or 0), placed.decision.wan
    for kind in ERROR_TYPES:
        error: Fields = {"eth_type": ETH_IPV4, "ip_proto": ICMP, "icmpv4_type": kind}
        for wan in ports:
            fields = {**error, "in_port": wan.number, "ipv4_dst": address}
            yield flow(Core.CLASSIFY, t.P_GUARD + 1, fields, mark, actions=_ASK)
        yield flow(Core.EXTERNAL, t.P_ALLOW + 1, {**error, "ipv4_src": own}, mark, actions=_ASK)
    back: Fields = {"in_port": PORT_CONTROLLER, "eth_type": ETH_IPV4, "ip_proto": ICMP}
    metadata = combine(t.FROM_JOB.put(1), t.FROM_WAN.put(rule), t.STEERED.put(1)) if rule else None
    for source in (address, own):
        yield flow(
            Core.CLASSIFY, t.P_EXACT + 20, {**back, "ipv4_src": source}, mark, goto=Core.FORWARD, metadata=metadata
        )


def _opened(openings: Collection[Opening], side: str) -> Iterator[Fields]:
    """The match fields of openings, by the ports on the job's side."""
    for each in openings:
        fields: Fields = {"eth_type": ETH_IPV4}
        if each.protocol in _PROTOCOLS:
            fields["ip_proto"] = _PROTOCOLS[each.protocol]
        ports = list(each.matches())
        for value in ports:
            yield {**fields, f"{each.protocol}_{side}": value}
        if not ports:
            yield fields


def _arp_answer(address: int, mac: int, port: int, next_hop: int | None, mark: int) -> Flow:
    """The answer to whoever asks from the WAN for the address.

    OpenFlow 1.3 copies no field, so the asker's address cannot be written into it: sender and target are both the
    external address, as in an announcement (RFC 5227, section 3), which completes an entry that is being asked for.
    """
    fields: Fields = {"in_port": port, "eth_type": ETH_ARP, "arp_op": _ARP_REQUEST, "arp_tpa": address}
    answer = (
        SetField("eth_dst", BROADCAST if next_hop is None else next_hop),
        SetField("eth_src", mac),
        SetField("arp_op", _ARP_REPLY),
        SetField("arp_sha", mac),
        SetField("arp_spa", address),
        SetField("arp_tha", mac if next_hop is None else next_hop),
        Output(PORT_IN_PORT),
    )
    return flow(Core.CLASSIFY, t.P_GUARD, fields, mark, actions=answer)
