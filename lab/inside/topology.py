"""The machines of the lab, their addresses, and what they are plugged into. Data only.

Four segments stand for cables and plain switches: ``lan`` is the site's network, ``wan`` and ``fast`` are the two ways
out of it, and each ``…-port`` is the cable from a port of the core switch to the gateway behind it. Addresses are from
the blocks set aside for documentation (RFC 5737, RFC 3849, RFC 9637), the site's own from 10.0.0.0/8.
"""

from __future__ import annotations

from dataclasses import dataclass

DOMAIN = "lab.test"
JOBS = ("10.64.0.0/16", "2001:db8:64::/48")
LOCAL = ("10.0.0.0/8", "2001:db8::/32")
LEASES = ("10.64.250.1", "10.64.250.250")
OPENFLOW_PORT = 6653
OVSDB_PORT = 6640
REST_PORT = 8080
# Of a worker's own metrics, on its loopback interface.
METRICS_PORT = 9464
# On the machine controller.
OPERATOR_TOKEN = "/etc/lark/operator.token"
UPLINK = "eth0"
DATABASE_URL = "postgresql+psycopg://lark@/lark?host=/run/postgresql"
# Addresses inside the jobs' networks that are no job's: the routers that jobs have by default, and their name server.
GATEWAYS = ("10.64.0.1", "2001:db8:64::1")
NAMESERVER = "10.64.0.4"
# A worker's Linux bridge, whose port eth1 leads to the site's network too, and its private networks behind NAT.
LINUX_BRIDGE = "jobs0"
NAT_NETWORKS = ("10.255.64.0/20", "fd00:255:64::/64")
EDGE_BRIDGE = "br0"
CORE_BRIDGE = "core"


@dataclass(frozen=True, slots=True)
class Nic:
    """An interface of a machine, plugged into ``segment`` (the loopback into none).

    ``delay_ms`` is how long what the machine sends there is held up (netem); ``mac`` is its address, any one if empty.
    """

    name: str
    segment: str
    addresses: tuple[str, ...] = ()
    delay_ms: int = 0
    mac: str = ""


@dataclass(frozen=True, slots=True)
class Bridge:
    """An Open vSwitch bridge of a machine: its datapath ID, and its ports in order, the first with OpenFlow number 1.

    ``addresses`` are those of its LOCAL port, through which an edge's own traffic passes.
    """

    name: str
    datapath_id: str
    ports: tuple[str, ...]
    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine. ``routes`` are arguments of ``ip route add``; ``roles`` are the programs that are started on it."""

    name: str
    nics: tuple[Nic, ...]
    routes: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    bridge: Bridge | None = None

    @property
    def address(self) -> str:
        """The machine's own IPv4 address, for the others."""
        groups = [self.bridge.addresses if self.bridge else (), *(nic.addresses for nic in self.nics)]
        return next(group for group in groups if group)[0].split("/")[0]


_TO_JOBS = ("10.64.0.0/16 dev {0}", "2001:db8:64::/48 dev {0}")
_OUT = ("default via 10.0.0.1", "default via 2001:db8::1")
WAN_DELAY_MS = 20
FAST_DELAY_MS = 5


def _host(number: int) -> tuple[str, str]:
    return f"10.0.0.{number}/16", f"2001:db8::{number:x}/64"


def _site(name: str, number: int, *roles: str) -> Machine:
    routes = (*_OUT, *(route.format(UPLINK) for route in _TO_JOBS))
    return Machine(name, (Nic(UPLINK, "lan", _host(number)),), routes, roles)


def _worker(name: str, number: int, datapath_id: str) -> Machine:
    bridge = Bridge(EDGE_BRIDGE, datapath_id, (UPLINK,), _host(number))
    routes = (*_OUT, *(route.format(EDGE_BRIDGE) for route in _TO_JOBS))
    return Machine(name, (Nic(UPLINK, "lan"), Nic("eth1", "lan")), routes, ("openvswitch", "execute"), bridge)


def _gateway(name: str, number: int, segment: str, wan: int, delay: int) -> Machine:
    """Half of the way's delay on what goes out, half on what comes in."""
    inside = (*_host(number), f"10.64.0.{number}/16", f"2001:db8:64::{number:x}/48")
    # The policy names it as the next hop of its port.
    inner = Nic("in0", f"{segment}-port", inside, delay // 2, f"02:00:00:00:00:{number:02x}")
    outer = Nic("out0", segment, (f"203.0.113.{wan * 16 + 1}/28", f"3fff:0:f{wan}::1/64"), delay - delay // 2)
    routes = tuple(
        route
        for host in (1, 2)
        for route in (
            f"{WAN_ADDRESSES[host][0]} via 203.0.113.{wan * 16 + 10 + host}",
            f"{WAN_ADDRESSES[host][1]} via 3fff:0:f{wan}::{10 + host}",
        )
    )
    return Machine(name, (inner, outer), routes, ("router",))


WAN_ADDRESSES = {1: ("192.0.2.1", "3fff:0:1::1"), 2: ("198.51.100.1", "3fff:0:2::1")}


def _wan(name: str, host: int) -> Machine:
    """A host that both ways lead to; it answers on the way by which it was asked (table 100 is for the fast one)."""
    nics = (
        Nic("lo", "", (f"{WAN_ADDRESSES[host][0]}/32", f"{WAN_ADDRESSES[host][1]}/128")),
        Nic("wan0", "wan", (f"203.0.113.{10 + host}/28", f"3fff:0:f0::{10 + host}/64")),
        Nic("fast0", "fast", (f"203.0.113.{26 + host}/28", f"3fff:0:f1::{10 + host}/64")),
    )
    ipv4, ipv6 = WAN_ADDRESSES[host]
    # Its own connections go the ordinary way, from its own address.
    routes = (
        f"10.0.0.0/8 via 203.0.113.1 src {ipv4}", f"2001:db8::/32 via 3fff:0:f0::1 src {ipv6}",
        "10.0.0.0/8 via 203.0.113.17 table 100", "2001:db8::/32 via 3fff:0:f1::1 table 100",
    )  # fmt: skip
    return Machine(name, nics, routes, ("wan",))


CORE = Machine(
    "core",
    (Nic("mgmt0", "lan", _host(3)), Nic("lan", "lan"), Nic("wan", "wan-port"), Nic("wan-fast", "fast-port")),
    roles=("openvswitch",),
    bridge=Bridge(CORE_BRIDGE, "00000000000000c0", ("lan", "wan", "wan-fast")),
)
MACHINES = (
    CORE,
    _gateway("gateway-wan", 1, "wan", 0, WAN_DELAY_MS),
    _gateway("gateway-fast", 2, "fast", 1, FAST_DELAY_MS),
    _wan("wan1", 1),
    _wan("wan2", 2),
    _site("dhcp", 4, "dhcp"),
    _site("central", 5, "central"),
    _site("controller", 6, "database", "controller"),
    _worker("worker1", 11, "00000000000000e1"),
    _worker("worker2", 12, "00000000000000e2"),
)
BY_NAME = {machine.name: machine for machine in MACHINES}
SEGMENTS = ("lan", "wan", "fast", "wan-port", "fast-port")
# The operator's place: in the lab, beside the machines.
OPERATOR = ("10.0.0.254/16", "2001:db8::fe/64")


def hosts_file() -> str:
    """``/etc/hosts`` of every machine."""
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{machine.address} {machine.name}.{DOMAIN} {machine.name}" for machine in MACHINES]
    return "\n".join(lines) + "\n"


def cable(machine: Machine, nic: Nic) -> str:
    """The name of the other end of an interface, beside the machines; at most 15 characters (IFNAMSIZ)."""
    return f"{machine.name}-{nic.name}".replace("gateway", "gw").replace("controller", "ctl")[:15]
