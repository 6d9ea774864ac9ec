"""The outer end of a nat job: a point-to-point link between worker and job, with addresses of the worker's own.

Each end has a static entry of the other's MAC address, so there is no ARP and no neighbour discovery on the link that
could be forged; the packet filter (:mod:`lark_worker.rules.routed`) admits and masquerades.
"""

from __future__ import annotations

from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_interface
from pathlib import Path
from typing import Final

from lark_common.runs import Address, Network
from lark_worker.errors import NetworkError
from lark_worker.network.commands import ip_batch
from lark_worker.records.records import Record
from lark_worker.settings import Settings

_SYSCTL: Final = Path("/proc/sys/net")


def gateway_of(network: Network) -> Address:
    """The worker's own address in one of its networks behind NAT."""
    if isinstance(network, IPv4Network):
        return IPv4Address(int(network.network_address) + 1)
    return IPv6Address(int(network.network_address) + 1)


def outer_mac(mac: str) -> str:
    """The MAC address of the outer end of a job's link (locally administered, another than the job's)."""
    return f"06{mac[2:]}"


class NatLinks:
    """The links of this worker's nat jobs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._next: dict[Network, int] = {}

    def assign(self, taken: Iterable[str]) -> tuple[str, ...]:
        """Addresses for a new job, one in each network, with prefix length; ``taken`` are those of other jobs.

        An address that was given back is given again as late as possible. Raises NetworkError where none is left.
        """
        held = {ip_interface(text).ip for text in taken}
        found = []
        for network in self._settings.nat_networks:
            # Neither the network's own address, nor the worker's, nor (IPv4) that for broadcasts.
            size = network.num_addresses - 2 - (network.version == 4)
            start = self._next.get(network, 0)
            for step in range(min(size, len(held) + 1)):
                place = (start + step) % size
                address = network[2 + place]
                if address not in held:
                    break
            else:
                raise NetworkError(f"no address is left for nat jobs in {network}")
            self._next[network] = place + 1
            found.append(f"{address}/{address.max_prefixlen}")
        return tuple(found)

    def check(self) -> None:
        """Check that this worker can forward jobs' packets. Raises NetworkError."""
        external = self._settings.external_interface
        if not Path("/sys/class/net", external).exists():
            raise NetworkError(f"EXTERNAL_INTERFACE {external}: there is no such interface")
        for network in self._settings.nat_networks:
            # The kernel forwards IPv6 for all interfaces or none, and its choice changes how the worker itself listens
            # to routers: that is the site's to decide.
            if isinstance(network, IPv6Network) and (_SYSCTL / "ipv6/conf/all/forwarding").read_text().strip() == "0":
                raise NetworkError(f"NAT_NETWORKS {network}: net.ipv6.conf.all.forwarding is 0 on this worker")

    def attach(self, record: Record) -> None:
        """Set addresses, routes and neighbours at the outer end; the device is there and down. Raises NetworkError."""
        self.check()
        port, lines = record.port, [f"link set {record.port} address {outer_mac(record.mac)} arp off"]
        versions = {network.version for network in self._settings.nat_networks}
        if 6 not in versions:
            _write(f"ipv6/conf/{port}/disable_ipv6", "1")
        else:
            _write(f"ipv6/conf/{port}/accept_ra", "0")
        _write(f"ipv4/conf/{port}/rp_filter", "1")
        _write(f"ipv4/conf/{port}/forwarding", "1")
        lines.append(f"link set {port} up")
        for network in self._settings.nat_networks:
            gateway = gateway_of(network)
            nodad = " nodad" if network.version == 6 else ""
            lines.append(f"address replace {gateway}/{gateway.max_prefixlen} dev {port}{nodad}")
        for text in record.addresses:
            address = text.partition("/")[0]
            lines.append(f"neigh replace {address} lladdr {record.mac} dev {port} nud permanent")
            lines.append(f"route replace {text} dev {port}")
        ip_batch(lines)

    def inside(self, record: Record, device: str) -> list[str]:
        """The commands for the job's end: neighbour and routes, once it has its addresses."""
        lines = []
        versions = {ip_interface(text).version for text in record.addresses}
        for network in self._settings.nat_networks:
            if network.version in versions:
                gateway, option = gateway_of(network), f"-{network.version}"
                lines.append(
                    f"{option} neigh replace {gateway} lladdr {outer_mac(record.mac)} dev {device} nud permanent"
                )
                lines.append(f"{option} route replace {gateway} dev {device}")
                lines.append(f"{option} route replace default via {gateway} dev {device}")
        return lines


def _write(name: str, value: str) -> None:
    path = _SYSCTL / name
    if path.exists():  # a kernel without IPv6 has no such switch
        path.write_text(value)
