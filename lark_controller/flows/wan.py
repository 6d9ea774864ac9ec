"""WAN drop with its exceptions, both directions; the same flows on edges and cores. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from itertools import chain
from typing import Final

from lark_common.runs import Address, Network
from lark_controller.flows import tables as t
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import ETH_IPV4, ETH_IPV6, Flow, FlowData, FlowKey, match
from lark_controller.policies.model import Policy, WanAction

# Link-local, multicast and broadcast never leave the site's links (RFC 3927, 1112, 919, 4291), so they are not the WAN.
NOT_WAN: Final[tuple[Network, ...]] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "224.0.0.0/4",
        "255.255.255.255/32",
        "fe80::/10",
        "ff00::/8",
        "::/127",
    )
)

# The dummy address of RFC 7600 and the discard prefix of RFC 6666.
NOBODY: Final[dict[int, Address]] = {4: ip_address("192.0.0.8"), 6: ip_address("100::1")}


def local_networks(policy: Policy) -> tuple[Network, ...]:
    """The networks that are not the WAN, job networks included, without redundant overlaps."""
    networks = {*policy.local_networks, *policy.job_networks, *NOT_WAN}
    kept: list[Network] = []
    # In this order a network follows the one that it lies in, with nothing between them that lies elsewhere.
    for network in sorted(networks, key=lambda n: (n.version, int(n.network_address), n.prefixlen)):
        if not kept or not _inside(network, kept[-1]):
            kept.append(network)
    return tuple(kept)


def _inside(inner: Network, outer: Network) -> bool:
    return (
        inner.version == outer.version
        and inner.prefixlen >= outer.prefixlen
        and int(outer.network_address) == int(inner.network_address) & int(outer.netmask)
    )


def worker_address(policy: Policy, version: int) -> Address:
    """An address of the site that is no job's, as a worker has one: of the local networks or of the hosts among jobs,
    and where the policy has neither, one that nobody has."""
    local = [network for network in policy.local_networks if network.version == version]
    ends = (address for network in local for address in (network[1 % network.num_addresses], network[-1]))
    others = (address for address in ends if not any(address in network for network in policy.job_networks))
    hosts = (network[0] for network in policy.hosts if network.version == version)
    return next(chain(others, hosts), NOBODY[version])


def ip_fields(network: Network, side: str) -> dict[str, int | tuple[int, int]]:
    """The match fields of a network as ``src`` or ``dst``."""
    value = (int(network.network_address), int(network.netmask))
    if network.version == 4:
        return {"eth_type": ETH_IPV4, f"ipv4_{side}": value}
    return {"eth_type": ETH_IPV6, f"ipv6_{side}": value}


def wan_flows(policy: Policy, table: int, following: int, dropped: int | None = None) -> Iterator[Flow]:
    """The WAN table of a switch: local traffic passes, dropped classes keep their exceptions, both directions.

    A packet from a job is judged by its destination and the sender's class, one to a job by its source and the
    receiver's class. Rules that steer or allow need nothing here. ``dropped`` is the table where what is dropped is
    counted, None for none.
    """
    dropping = [rule for rule in policy.wans if rule.action is WanAction.DROP]
    if not dropping:
        return
    directions = ((t.FROM_JOB, t.FROM_WAN, "dst"), (t.TO_JOB, t.TO_WAN, "src"))
    for job_bit, class_bits, side in directions:
        for network in local_networks(policy):
            fields = {"metadata": job_bit.put(1), **ip_fields(network, side)}
            yield _flow(table, t.P_ALLOW, fields, cookie(Category.WAN), following)
        for rule in dropping:
            mark = cookie(Category.WAN, rule.position)
            for network in rule.exceptions:
                fields = {"metadata": class_bits.put(rule.position), **ip_fields(network, side)}
                yield _flow(table, t.P_EXACT, fields, mark, following)
            for ethertype in (ETH_IPV4, ETH_IPV6):
                fields = {"metadata": class_bits.put(rule.position), "eth_type": ethertype}
                yield _flow(table, t.P_DENY, fields, mark, dropped)


def _flow(table: int, priority: int, fields: dict[str, int | tuple[int, int]], mark: int, goto: int | None) -> Flow:
    following = None if goto is None else int(goto)
    return Flow(FlowKey(int(table), priority, match(**fields)), FlowData(mark, goto=following))
