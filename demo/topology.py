"""The demo's network: two workers' switches, a core switch, two WAN routers, and a host on the other side of both.

::

    worker1 (e1) --- lan1 +-----------+ wan -------- router1 --+
                          | core (c0) |                        +-- internet 192.0.2.1, cache 192.0.2.80
    worker2 (e2) --- lan2 +-----------+ wan-fast --- router2 --+

The three switches are real Open vSwitch bridges. Everything else is a network namespace: a job, a router, the outside.
Jobs and the routers' near sides share one LAN. Jobs have router 1 as their gateway; router 2 gets only what the core
switch sends to it. The outside answers by way of router 1.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from lab.namespaces import Host, Net
from lab.openvswitch import OpenVSwitch
from lab.run import run
from lark_controller.flows.cookies import Category, cookie

ROOT = Path(__file__).parents[1]
# The cookies of markers begin so, whatever number follows.
MARKER = f"cookie={cookie(Category.MARKER):#x}"[: len("cookie=0x1a4b0c")]
GATEWAY = ("10.0.0.1", "2001:db8:64:ffff::1")
INTERNET = ("192.0.2.1", "2001:db8:ffff::1")
CACHE = ("192.0.2.80", "2001:db8:ffff::80")
OUTSIDE = ("192.0.2.0/24", "2001:db8:ffff::/48")
SITE = ("10.0.0.0/8", "2001:db8:64::/48")
# External addresses of jobs: router 1 takes them for local on its near side.
POOL = "203.0.113.64/30"


@dataclass(frozen=True, slots=True)
class Switch:
    """A switch: its name in the policy, its bridge's device, its datapath id."""

    name: str
    device: str
    datapath: int


@dataclass(frozen=True, slots=True)
class Router:
    """A WAN router: its namespace, and the name of the core's port (and the outside's device) that leads to it."""

    link: str
    host: Host
    near_outside: tuple[str, str]


class Topology:
    """The running network; a context manager that removes all of it."""

    def __init__(self, directory: Path, controller: str) -> None:
        self._stack = ExitStack()
        self._directory = directory
        self._controller = controller
        self._next_port: dict[str, int] = {}

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _build(self) -> None:
        self.net = self._stack.enter_context(Net())
        self.ovs = self._stack.enter_context(OpenVSwitch(self._directory))
        self.switches = {
            name: Switch(name, self.net.name(short), datapath)
            for name, short, datapath in (("core1", "core", 0xC0), ("worker1", "w1", 0xE1), ("worker2", "w2", 0xE2))
        }
        for switch in self.switches.values():
            self.ovs.add_bridge(switch.device, switch.datapath, self._controller)
        for number, worker in enumerate(("worker1", "worker2"), 1):
            core_end, worker_end = self.net.link(f"l{number}", f"u{number}")
            self.ovs.add_port(self.switches["core1"].device, core_end, number)
            self.ovs.add_port(self.switches[worker].device, worker_end, 1)
        self._build_outside()

    def _build_outside(self) -> None:
        addresses = [*_hosts(INTERNET), *_hosts(CACHE)]
        self.internet = self.net.host("internet", addresses=addresses)
        self.routers = tuple(self._router(number, link) for number, link in enumerate(("wan", "wan-fast"), 1))
        for version, network in zip((4, 6), SITE, strict=True):
            via = self.routers[0].near_outside[version == 6]
            run(["ip", "-n", self.internet.namespace, f"-{version}", "route", "add", network, "via", via])
        first = self.routers[0]
        run(["ip", "-n", self.internet.namespace, "route", "add", POOL, "via", first.near_outside[0]])
        run(["ip", "-n", first.host.namespace, "route", "add", POOL, "dev", first.host.device])
        for host in (self.internet, *(router.host for router in self.routers)):
            # Answers to packets of one router may come by way of the other.
            self.net.exec(host, ["sh", "-c", 'for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >"$f"; done'])

    def _router(self, number: int, link: str) -> Router:
        host = self.net.host(
            f"router{number}",
            addresses=[f"10.0.0.{number}/8", f"2001:db8:64:ffff::{number}/48"],
            mac=f"02:00:00:00:00:0{number}",
        )
        self.ovs.add_port(self.switches["core1"].device, host.port, 2 + number)
        inside, outside = host.namespace, self.internet.namespace
        run(["ip", "-n", inside, "link", "add", "outside", "type", "veth", "peer", "name", link, "netns", outside])
        near = (f"198.51.100.{4 * number + 1}", f"2001:db8:fffe:{number}::1")
        far = (f"198.51.100.{4 * number + 2}", f"2001:db8:fffe:{number}::2")
        for namespace, device, ends in ((inside, "outside", near), (outside, link, far)):
            run(["ip", "-n", namespace, "address", "add", f"{ends[0]}/30", "dev", device])
            run(["ip", "-n", namespace, "address", "add", f"{ends[1]}/64", "dev", device, "nodad"])
            run(["ip", "-n", namespace, "link", "set", device, "up"])
        self.net.exec(host, ["sh", "-c", "cd /proc/sys/net; echo 1 >ipv4/ip_forward; echo 1 >ipv6/conf/all/forwarding"])
        for version, network, via in zip((4, 6), OUTSIDE, far, strict=True):
            run(["ip", "-n", inside, f"-{version}", "route", "add", network, "via", via])
        return Router(link, host, near)

    def attach(self, name: str, worker: str, ipv4: str, ipv6: str) -> Host:
        """A new namespace at a new port of a worker's switch, as the worker makes one for a job."""
        host = self.net.host(name, addresses=[f"{ipv4}/8", f"{ipv6}/48"], gateway=GATEWAY)
        self._next_port[worker] = self._next_port.get(worker, 1) + 1
        self.ovs.add_port(self.switches[worker].device, host.port, self._next_port[worker])
        return host

    def load_base_flows(self) -> None:
        """Load the flows that a worker loads when its Open vSwitch starts: they pass the worker's own traffic alone."""
        for number, worker in enumerate(("worker1", "worker2"), 1):
            command = ["sh", str(ROOT / "scripts" / "lark-base-flows"), self.switches[worker].device]
            run([*command, self.net.name(f"u{number}")], env=self.ovs.environment)

    def flows(self) -> dict[str, list[str]]:
        """The flows that every switch reports, without counters and markers.

        A marker matches no packet, and is written once nothing has changed for a while: on a busy machine later.
        """
        return {
            name: [line for line in self.ovs.flows(switch.device) if MARKER not in line]
            for name, switch in self.switches.items()
        }

    def ping(self, host: Host, source: str, target: str, tries: int, wait: float) -> bool:
        """True if ``target`` answers an echo request from ``source``."""
        command = ["ip", "netns", "exec", host.namespace, "ping", "-n", "-q", "-i", "0.2", "-c", str(tries)]
        command += ["-W", str(wait), "-I", source, target]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, env=_PLAIN)
        return result.returncode == 0


_PLAIN = {**os.environ, "LC_ALL": "C"}


def _hosts(pair: tuple[str, str]) -> tuple[str, str]:
    return f"{pair[0]}/32", f"{pair[1]}/128"
