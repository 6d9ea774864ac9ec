"""Hosts in network namespaces, and what they can reach.

    with Net() as net:
        alice = net.host("alice", addresses=["10.64.0.1/16", "2001:db8:64::1/48"])
        ovs.add_port("br0", alice.port)
        net.ping(alice, "10.64.0.2")

Names of namespaces and devices begin with a prefix that no other process uses, so that several labs can run at once.
Each host has one veth pair: ``eth0`` inside, ``port`` outside, to be attached to a bridge.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_address, ip_interface
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.run import LabError, run

INNER = "eth0"
PREFIX = "lk"
_NETNS = Path("/run/netns")
# Programs that wait for an answer at the same time; they do nothing else.
_TOGETHER = 48
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Host:
    """A host: its namespace, the device outside that belongs on a bridge, its MAC and addresses."""

    name: str
    namespace: str
    port: str
    mac: str
    addresses: tuple[IPv4Interface | IPv6Interface, ...] = ()
    device: str = field(default=INNER)

    @property
    def ipv4(self) -> str:
        """Its first IPv4 address, without prefix length; raises LabError if it has none."""
        return self._first(4)

    @property
    def ipv6(self) -> str:
        """Its first IPv6 address, without prefix length; raises LabError if it has none."""
        return self._first(6)

    def _first(self, version: int) -> str:
        for address in self.addresses:
            if address.version == version:
                return str(address.ip)
        raise LabError(f"host {self.name} has no IPv{version} address")


class Net:
    """Network namespaces and veth pairs with a prefix of their own; a context manager that removes them all."""

    def __init__(self) -> None:
        # 15 bytes is all that a device's name may have: prefix, process (base 36), number, end.
        self.prefix = f"{PREFIX}{_base36(os.getpid()):0>5}{_base36(next(_numbers))}"
        self.hosts: dict[str, Host] = {}
        self._count = itertools.count(1)
        self._devices: list[str] = []
        self._processes: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        remove_abandoned()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that were started in hosts, and remove every namespace and device; may be repeated."""
        while self._processes:
            process = self._processes.pop()
            process.kill()
            process.communicate()
        for host in self.hosts.values():
            run(["ip", "netns", "del", host.namespace], check=False)
            # Removing a namespace removes its devices some time later; the pair is removed now, from outside.
            run(["ip", "link", "del", host.port], check=False)
        self.hosts.clear()
        while self._devices:
            run(["ip", "link", "del", self._devices.pop()], check=False)

    def name(self, suffix: str) -> str:
        """A device or bridge name with this lab's prefix; raises LabError when it is longer than 15 bytes."""
        name = f"{self.prefix}{suffix}"
        if len(name) > 15:
            raise LabError(f"device name {name!r} is longer than 15 bytes")
        return name

    def host(
        self,
        name: str,
        *,
        addresses: Sequence[str] = (),
        mac: str | None = None,
        gateway: Iterable[str] = (),
        mtu: int = 1500,
    ) -> Host:
        """Make a host with ``addresses`` (with prefix length), static ``mac`` and default routes over ``gateway``.

        IPv6 addresses can be used at once (no duplicate address detection), router advertisements are ignored.
        """
        number = next(self._count)
        namespace = f"{self.prefix}-{name}"
        port = self.name(f"p{number}")
        host = Host(
            name=name,
            namespace=namespace,
            port=port,
            mac=mac or f"02:64:00:00:{number >> 8:02x}:{number & 0xFF:02x}",
            addresses=tuple(ip_interface(address) for address in addresses),
        )
        self.hosts[name] = host
        pair = f"link add {port} mtu {mtu} type veth peer name {INNER} netns {namespace}"
        run(["ip", "-batch", "-"], stdin=f"netns add {namespace}\n{pair}\n")
        settings = Path("/proc/sys/net/ipv6/conf") / port / "disable_ipv6"
        with contextlib.suppress(OSError):
            settings.write_text("1")  # the outer end is a bridge's port and must not speak for itself
        lines = [f"link set {INNER} address {host.mac} mtu {mtu}"]
        lines += (f"address add {each} dev {INNER}{' nodad' * (each.version == 6)}" for each in host.addresses)
        lines += ["link set lo up", f"link set {INNER} up"]
        for router in gateway:
            everywhere = "0.0.0.0/0" if ip_address(router).version == 4 else "::/0"
            lines.append(f"route add {everywhere} via {router} dev {INNER}")
        run(["ip", "netns", "exec", namespace, "sh", "-c", _INSIDE], stdin="\n".join([*lines, ""]))
        run(["ethtool", "-K", port, "tx", "off"])
        run(["ip", "link", "set", port, "up"])
        return host

    def link(self, left: str, right: str) -> tuple[str, str]:
        """A veth pair between two bridges; returns the names of its ends."""
        ends = self.name(left), self.name(right)
        run(["ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1]])
        self._devices.append(ends[0])
        for end in ends:
            with contextlib.suppress(OSError):
                (Path("/proc/sys/net/ipv6/conf") / end / "disable_ipv6").write_text("1")
            run(["ethtool", "-K", end, "tx", "off"])
            run(["ip", "link", "set", end, "up"])
        return ends

    def bridge(self, suffix: str) -> str:
        """A Linux bridge that is up; returns its name."""
        name = self.name(suffix)
        run(["ip", "link", "add", name, "type", "bridge"])
        self._devices.append(name)
        run(["ip", "link", "set", name, "up"])
        return name

    def exec(
        self, host: Host, command: Sequence[str], *, timeout: float = 20, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in a host, to its end."""
        return run(["ip", "netns", "exec", host.namespace, *command], timeout=timeout, check=check)

    def start(self, host: Host, command: Sequence[str]) -> subprocess.Popen[str]:
        """Start a program in a host; it is killed when the lab closes."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", host.namespace, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._processes.append(process)
        return process

    def ping(self, host: Host, address: str, *, tries: int = 2, wait: float = 0.5) -> bool:
        """True as soon as ``address`` answers: ``tries`` echo requests 0.2 s apart, the last waits ``wait`` seconds."""
        version = f"-{ip_address(address).version}"
        command = ["ping", version, "-n", "-i", "0.2", "-c", str(tries), "-W", str(wait), address]
        process = self.start(host, command)
        try:
            # Each answer is a line, printed as it comes: who has answered is not asked again.
            return process.stdout is not None and any("bytes from" in line for line in process.stdout)
        finally:
            process.kill()
            process.communicate()
            self._processes.remove(process)

    def ping_all(self, pairs: Sequence[tuple[Host, str]], *, tries: int = 2, wait: float = 0.5) -> list[bool]:
        """:meth:`ping` for many pairs at once, in their order."""
        if not pairs:
            return []
        with ThreadPoolExecutor(max_workers=min(_TOGETHER, len(pairs))) as pool:
            return list(pool.map(lambda pair: self.ping(*pair, tries=tries, wait=wait), pairs))

    def tcp(self, source: Host, target: Host, address: str, port: int = 5001, *, wait: float = 1.0) -> bool:
        """True if a TCP connection from ``source`` to ``address`` of ``target`` carries bytes both ways."""
        return self._probe("tcp", source, target, address, port, wait)

    def udp(self, source: Host, target: Host, address: str, port: int = 5001, *, wait: float = 1.0) -> bool:
        """True if a datagram from ``source`` is answered by ``target`` at ``address`` within ``wait`` seconds."""
        return self._probe("udp", source, target, address, port, wait)

    def _probe(self, protocol: str, source: Host, target: Host, address: str, port: int, wait: float) -> bool:
        with self._echo_server(protocol, target, address, port):
            result = self.exec(
                source,
                [sys.executable, "-I", str(_PROBE), protocol, "ask", address, str(port), str(wait)],
                timeout=wait + 20,
            )
        return result.stdout.strip() == "answered"

    @contextlib.contextmanager
    def _echo_server(self, protocol: str, target: Host, address: str, port: int) -> Iterator[None]:
        process = self.start(target, [sys.executable, "-I", str(_PROBE), protocol, "answer", address, str(port), "60"])
        try:
            if process.stdout is None or process.stdout.readline().strip() != "ready":
                raise LabError(f"no {protocol} server at {address} port {port} in {target.name}")
            yield
        finally:
            process.kill()
            process.communicate()
            self._processes.remove(process)

    def capture(self, host: Host, expression: str = "") -> Callable[[], list[str]]:
        """Start ``tcpdump`` in a host; the function returned ends it and gives the packets, a line each."""
        process = self.start(host, ["tcpdump", "-U", "-l", "-n", "-e", "-t", "-i", host.device, *expression.split()])
        if process.stderr is None:
            raise LabError("tcpdump was started without a pipe")
        while "listening on" not in (line := process.stderr.readline()):
            if not line:
                raise LabError(f"tcpdump in {host.name} did not start")

        def finish() -> list[str]:
            process.terminate()
            output, _ = process.communicate(timeout=10)
            self._processes.remove(process)
            return [line for line in output.splitlines() if line.strip()]

        return finish

    def neighbours(self, host: Host) -> list[dict[str, object]]:
        """The host's neighbour table, as ``ip -json neighbour`` gives it."""
        shown = run(["ip", "-json", "-n", host.namespace, "neighbour"]).stdout
        entries: list[dict[str, object]] = json.loads(shown or "[]")
        return entries

    def forget_neighbours(self, host: Host) -> None:
        """Empty the host's neighbour table, so that ARP and ND take place again."""
        run(["ip", "-n", host.namespace, "neighbour", "flush", "dev", host.device])


_PROBE = Path(__file__).with_name("probe.py")

# No router solicitations and no generated link-local addresses' detection: a host sends nothing unasked. The userspace
# datapath does not complete checksums that the kernel left for the device to do.
_INSIDE = f"""
if cd /proc/sys/net/ipv6/conf/{INNER} 2>/dev/null; then
    echo 0 > accept_ra; echo 0 > router_solicitations; echo 0 > accept_dad; echo 0 > dad_transmits
fi
ethtool -K {INNER} tx off || exit
exec ip -batch -
"""


def remove_abandoned() -> None:
    """Remove what labs of processes that no longer exist have left behind (a run killed with -9)."""
    pattern = re.compile(rf"{PREFIX}([0-9a-z]{{5}})[0-9a-z]+")
    namespaces = [("netns", entry.name) for entry in _NETNS.glob(f"{PREFIX}*")] if _NETNS.exists() else []
    devices = [("link", entry.name) for entry in Path("/sys/class/net").glob(f"{PREFIX}*")]
    for kind, name in namespaces + devices:
        match = pattern.match(name)
        if match and not Path(f"/proc/{int(match[1], 36)}").exists():
            run(["ip", kind, "del", name], check=False)


def temporary_directory() -> tempfile.TemporaryDirectory[str]:
    """A directory whose path is short enough for Unix sockets, wherever TMPDIR points."""
    return tempfile.TemporaryDirectory(prefix="lark-", dir="/tmp", ignore_cleanup_errors=True)


def _base36(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyz"
    text = ""
    while number:
        number, digit = divmod(number, 36)
        text = digits[digit] + text
    return text or "0"
