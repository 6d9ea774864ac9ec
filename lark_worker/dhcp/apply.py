"""Put a lease on a job's interface, or take it away: address, routes, name servers, MTU."""

from __future__ import annotations

import contextlib
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from lark_worker.dhcp.lease import Lease
from lark_worker.dhcp.message import NOWHERE
from lark_worker.network.commands import inside, run

# The least that an IPv6 interface may have (RFC 8200, section 5); less would take IPv6 away from the job.
_LEAST_MTU: Final = 1280


def steps(lease: Lease | None, before: str, interface: str, mtu: int) -> list[str]:
    """The commands of an ``ip -4 -batch`` that put ``lease`` on the interface (None: no address).

    ``before`` is the address with prefix length that is there ("" for none), ``mtu`` the site's.
    """
    # Routes of a lease of before; those through an address that goes would go with it, others would stay.
    lines = [f"route flush dev {interface} proto boot"] if before else []
    if before and (lease is None or lease.interface != before):
        lines.append(f"address flush dev {interface} to {before.partition('/')[0]}/32")
    if lease is None:
        return lines
    given = lease.mtu if _LEAST_MTU <= lease.mtu < mtu else mtu
    lines.append(f"link set {interface} mtu {given}")
    lines.append(f"address replace {lease.interface} dev {interface}")
    for route in lease.routes:
        way = f"via {route.gateway} onlink" if route.gateway != NOWHERE else "scope link"
        lines.append(f"route replace {route.network} {way} dev {interface} src {lease.address}")
    return lines


def configure(namespace: str, lease: Lease | None, before: str, interface: str, mtu: int) -> None:
    """Carry :func:`steps` out in a job's namespace; may be repeated. Raises NetworkError."""
    lines = steps(lease, before, interface, mtu)
    if lines:
        text = "".join(f"{line}\n" for line in lines)
        inside(namespace, lambda: _batch(text))


def _batch(text: str) -> None:
    run(["ip", "-4", "-batch", "-"], text)


def resolv_text(lease: Lease, otherwise: tuple[IPv4Address, ...]) -> str:
    """The resolv.conf for a lease, with the servers ``otherwise`` where it names none; "" for none at all."""
    servers = lease.nameservers or otherwise
    search = f"search {lease.domain}\n" if lease.domain and servers else ""
    return search + "".join(f"nameserver {server}\n" for server in servers)


def write_resolv(path: Path, text: str) -> None:
    """Write a namespace's resolv.conf in place: a running job has this very file mounted. Nothing for no text."""
    if text:
        with contextlib.suppress(FileNotFoundError):
            if path.read_text("ascii") == text:
                return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "ascii")
        # The umask may be any: the job's user reads it.
        path.chmod(0o644)
