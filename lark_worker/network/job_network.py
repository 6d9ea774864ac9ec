"""Makes and removes the network of a job: namespace, veth pair, port on the bridge, addresses, routes, DNS.

Every name is made from the job's id, so each step can be repeated, and leftovers are found by their names.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import re
import socket
import struct
from collections.abc import Callable, Iterable
from hashlib import sha256
from ipaddress import IPv4Interface, IPv6Interface
from pathlib import Path
from typing import Final

from lark_common import log
from lark_common.runs import Address, link_local
from lark_worker.errors import NetworkError, RefusedError
from lark_worker.network import held_device, linux_bridge
from lark_worker.network.commands import (
    NETNS,
    inside,
    ip_batch,
    run,
)
from lark_worker.network.nat import NatLinks
from lark_worker.network.ovs_bridge import Bridge
from lark_worker.records.records import Record
from lark_worker.settings import SYSCTL, Settings

INNER: Final = "eth0"
RESOLV: Final = Path("/etc/netns")
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_STXCSUM: Final = 0x17

Interface = IPv4Interface | IPv6Interface


def device_names(prefix: str, job_id: str) -> tuple[str, str, str]:
    """A job's namespace, outer device (at most 15 bytes) and MAC address (locally administered)."""
    mac = ":".join(("02", *(job_id[at : at + 2] for at in range(0, 10, 2))))
    return f"{prefix}-{job_id}", f"{prefix}{job_id[:11]}", mac


def slot_mac(slot: str) -> str:
    """The MAC address (locally administered) that every job of a slot has, so that a DHCP server recognises it.

    46 bits of a hash of the slot's name, which has the worker's in it: in a pool of 200,000 slots two are the same with
    a chance of 0.03 %.
    """
    digest = sha256(f"lark slot {slot}".encode()).digest()[:6]
    return bytes((digest[0] & 0xFC | 0x02, *digest[1:])).hex(":")


class JobNetworks:
    """The networks of this worker's jobs."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._bridge = Bridge(settings.bridge, settings.ovs_database)
        self._nat = NatLinks(settings)
        self._userspace: bool | None = None
        self._datapath = ""
        self._ping = Path("/proc/sys/net/ipv4/ping_group_range").read_text("ascii")

    def datapath_id(self) -> str:
        """The bridge's OpenFlow datapath id, read once and compared at every new port. Raises NetworkError."""
        if not self._datapath:
            self._datapath = self._bridge.datapath_id()
        return self._datapath

    def _attach(self, record: Record) -> None:
        datapath = self._bridge.add_port(record.port, record.id)
        if datapath != self._datapath:
            before, self._datapath = self._datapath, ""
            # The service may have started after the job's network was begun: then nothing was registered yet.
            if before:
                raise NetworkError(
                    f"the bridge's datapath id was {before} and is {datapath}; the job has to start again"
                )

    def check(self, kind: str, bridge: str, vlan: int | None) -> None:
        """Check that this worker can make a job's network. Raises RefusedError."""
        try:
            if kind in ("nat", "bridge"):
                self._check_prefix()
            if kind == "nat":
                self._nat.check()
            elif kind == "bridge":
                linux_bridge.check(bridge, vlan)
        except NetworkError as error:
            raise RefusedError(f"NetworkType {kind}: {error}") from None

    def _check_prefix(self) -> None:
        """Check that no other device has the prefix: the packet filter drops what devices with it send."""
        prefix = self._settings.prefix
        found = sorted(path.name for path in Path("/sys/class/net").iterdir() if path.name.startswith(prefix))
        others = [name for name in found if not re.fullmatch(f"{prefix}[0-9a-f]{{11}}", name)]
        if others:
            raise NetworkError(f"LARK_WORKER_PREFIX={prefix}: {others[0]}, which is no job's, begins with it too")

    def assign(self, taken: Iterable[str]) -> tuple[str, ...]:
        """Addresses behind NAT for a new job; ``taken`` are those of others. Raises NetworkError."""
        return self._nat.assign(taken)

    def interfaces(self, addresses: Iterable[Address]) -> tuple[str, ...]:
        """Addresses with the prefix length of the network that each is in; of full length where that is none."""
        found = []
        for address in addresses:
            network = next((each for each in self._settings.networks if address in each), None)
            length = address.max_prefixlen if network is None else network.prefixlen
            found.append(f"{address}/{length}")
        return tuple(found)

    def make(self, record: Record) -> None:
        """Make the namespace with loopback; unless NetworkType is none, also the veth pair and the port on the bridge.

        A job at a switch sends nothing before :meth:`release`. A network that a crash left half made is removed first.
        Raises NetworkError.
        """
        if (NETNS / record.namespace).exists() or Path("/sys/class/net", record.port).exists():
            self.remove(record)
        self._write_resolv(record.namespace)
        steps = [f"netns add {record.namespace}"]
        if record.network_type != "none":
            mtu = self._settings.mtu
            steps += [
                # The outer end has no IPv6 address, and so no neighbour discovery of its own.
                f"link add {record.port} mtu {mtu} type veth"
                f" peer name {INNER} address {record.mac} mtu {mtu} netns {record.namespace}",
                f"link set {record.port} addrgenmode none",
            ]
        if record.network_type == "ovs_bridge":
            steps.append(f"link set {record.port} up")
        ip_batch(steps)
        if record.network_type == "none":
            inside(record.namespace, lambda: ip_batch(["link set lo up"]))
            return
        userspace = record.network_type == "ovs_bridge" and self._is_userspace()
        if userspace:
            _checksums_here(record.port)
        inside(record.namespace, lambda: self._prepare(record, userspace))
        if record.network_type == "nat":
            self._nat.attach(record)
        elif record.network_type == "bridge":
            linux_bridge.attach(record)
        else:
            self._attach(record)

    def _is_userspace(self) -> bool:
        if self._userspace is None:
            self._userspace = self._bridge.is_userspace()
        return self._userspace

    def configure(self, record: Record, before: Iterable[str] = ()) -> None:
        """Give the job's interface its addresses and routes. Idempotent. Raises NetworkError.

        ``before`` are the addresses that it has had.
        """
        lines = [f"address del {text} dev {INNER}" for text in before if text not in record.addresses]
        for interface in map(_interface, record.addresses):
            extra = " nodad" if interface.version == 6 else ""
            lines.append(f"address replace {interface} dev {INNER}{extra}")
        if record.network_type == "nat":
            lines += self._nat.inside(record, INNER)
        for gateway in () if record.network_type == "nat" else self._settings.gateways:
            if any(gateway.version == _interface(text).version for text in record.addresses):
                lines.append(f"-{gateway.version} route replace {gateway} dev {INNER}")
                lines.append(f"-{gateway.version} route replace default via {gateway} dev {INNER}")
        if lines:
            inside(record.namespace, lambda: _batches(lines))

    def release(self, record: Record) -> None:
        """Let a job at a switch send, now that its flows are confirmed. Idempotent. Raises NetworkError."""
        if record.network_type == "ovs_bridge":
            inside(record.namespace, lambda: held_device.release(INNER))

    def remove(self, record: Record) -> None:
        """Remove a job's network, whole or in part. Idempotent.

        Raises NetworkError once the other steps are done, where one fails.
        """
        steps: list[Callable[[], None]] = []
        if record.network_type == "ovs_bridge":
            steps.append(lambda: self._bridge.del_ports([record.port]))
        if record.network_type != "none":
            steps.append(lambda: _delete_link(record.port))
        steps.append(lambda: _delete_namespace(record.namespace))
        failed = []
        for step in steps:
            try:
                step()
            except NetworkError as error:
                failed.append(str(error))
        if failed:
            raise NetworkError("; ".join(failed))

    def sweep(self, live: Iterable[Record]) -> int:
        """Remove ports, devices and namespaces with Lark's names that belong to no live job; returns how many."""
        prefix = self._settings.prefix
        namespaces = {record.namespace for record in live}
        ports = {record.port for record in live}
        stale = [name for name in self._bridge.job_ports(prefix) if name not in ports]
        self._bridge.del_ports(stale)
        device = re.compile(rf"{prefix}[0-9a-f]{{11}}")
        links = [path.name for path in Path("/sys/class/net").iterdir() if device.fullmatch(path.name)]
        links = [name for name in links if name not in ports]
        for name in links:
            _delete_link(name)
        namespace = re.compile(rf"{prefix}-[0-9a-f]{{16}}")
        found = {path.name for folder in (NETNS, RESOLV) if folder.exists() for path in folder.iterdir()}
        gone = sorted(name for name in found if namespace.fullmatch(name) and name not in namespaces)
        for name in gone:
            _delete_namespace(name)
        count = len({*stale, *links, *gone})
        if count:
            log.event("swept", ports=",".join(sorted({*stale, *links})) or None, namespaces=",".join(gone) or None)
        return count

    def _prepare(self, record: Record, userspace: bool) -> None:
        """Prepare the job's interface inside: no addresses but those given, no duplicate address detection."""
        settings = Path("/proc/sys/net/ipv6/conf", INNER)
        routed = {4, 6} if record.network_type == "nat" else {gateway.version for gateway in self._settings.gateways}
        for name, value in {
            "accept_dad": 0,
            "dad_transmits": 0,
            "autoconf": 0,
            # A router's advertisement names the default route where the settings name none.
            "accept_ra": 0 if 6 in routed else 1,
        }.items():
            with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
                (settings / name).write_text(str(value))
        # The worker's setting for ping without privilege, instead of a new namespace's default (nobody).
        Path("/proc/sys/net/ipv4/ping_group_range").write_text(self._ping)
        for word in self._settings.job_sysctls:
            if (found := SYSCTL.fullmatch(word)) is not None:
                _set(Path("/proc/sys/net", found[1], found[2]), found[3])
        if userspace:
            _checksums_here(INNER)
        if record.network_type == "ovs_bridge":
            held_device.hold(INNER)
        lines = ["link set lo up", f"link set {INNER} addrgenmode none", f"link set {INNER} up"]
        if settings.exists():
            lines.append(f"address add {link_local(record.mac)}/64 dev {INNER} scope link nodad")
        ip_batch(lines)

    def _write_resolv(self, namespace: str) -> None:
        """Write ``/etc/netns/NAME/resolv.conf``, which ip-netns(8) uses too."""
        if not self._settings.nameservers:
            return
        folder = RESOLV / namespace
        folder.mkdir(parents=True, exist_ok=True)
        lines = "".join(f"nameserver {address}\n" for address in self._settings.nameservers)
        (folder / "resolv.conf").write_text(lines)
        # The umask may be any: the job's user reads it.
        (folder / "resolv.conf").chmod(0o644)


def resolv_path(namespace: str) -> Path:
    """The path of a namespace's own resolv.conf, if it has one."""
    return RESOLV / namespace / "resolv.conf"


def resolv_conf(namespace: str) -> Path | None:
    """The resolv.conf that a namespace has for itself, if it has one."""
    path = resolv_path(namespace)
    return path if path.exists() else None


def _interface(text: str) -> Interface:
    return IPv6Interface(text) if ":" in text else IPv4Interface(text)


def _batches(lines: list[str]) -> None:
    # In a batch ``ip`` takes no option of a single command, so the families go apart.
    for family in ("-4", "-6"):
        chosen = [line.removeprefix(f"{family} ") for line in lines if _family(line) == family]
        if chosen:
            run(["ip", family, "-batch", "-"], "".join(f"{line}\n" for line in chosen))


def _family(line: str) -> str:
    if line.startswith("-"):
        return line[:2]
    return "-6" if ":" in line.split()[2] else "-4"


def _delete_link(name: str) -> None:
    """Delete a veth pair at once, from outside; with its namespace alone it would go some time later."""
    if Path("/sys/class/net", name).exists():
        run(["ip", "link", "del", name], check=False)
        if Path("/sys/class/net", name).exists():
            raise NetworkError(f"interface {name} cannot be removed")


def _set(parameter: Path, value: str) -> None:
    """Set a parameter of the namespace; a job without it runs as well."""
    try:
        parameter.write_text(value)
    except OSError as error:
        log.failure(f"JOB_SYSCTLS: {parameter} cannot be set in a job's namespace", error)


def _delete_namespace(name: str) -> None:
    if (NETNS / name).exists():
        # Another thread may be removing it as well: a job that ends while leftovers are removed.
        run(["ip", "netns", "del", name], check=False)
        if (NETNS / name).exists():
            raise NetworkError(f"namespace {name} cannot be removed")
    folder = RESOLV / name
    with contextlib.suppress(FileNotFoundError):
        (folder / "resolv.conf").unlink()
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()


def _checksums_here(device: str) -> None:
    """Let the kernel complete a device's checksums in software (ethtool -K DEVICE tx off)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        value = (ctypes.c_uint32 * 2)(_ETHTOOL_STXCSUM, 0)
        request = struct.pack("16sP16x", device.encode(), ctypes.addressof(value))
        fcntl.ioctl(control, _SIOCETHTOOL, request)
