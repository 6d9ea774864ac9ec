"""The whole controller in the test's process, on real Open vSwitch with hosts in network namespaces.

``Lark`` is one controller (REST and OpenFlow on free loopback ports) with a client; ``Site`` puts two workers, a core
switch and two WAN routers around it.
"""

from __future__ import annotations

import itertools
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lab.namespaces import Host, Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_controller.app import Service
from lark_controller.flows.cookies import Category, cookie
from lark_controller.rest.tokens import Scope, add
from lark_controller.settings import Settings, load

Json = dict[str, Any]

WORKER1, WORKER2, CORE = 0xE1, 0xE2, 0xC0
_numbers = itertools.count(1)


@dataclass(frozen=True)
class Answer:
    """What the API answered."""

    status: int
    body: Any


class Lark:
    """One controller with a state directory that outlives it: ``start`` after ``stop`` is a restart."""

    def __init__(
        self, directory: Path, policy: str, *, changed: Mapping[str, Any] | None = None, **environ: str
    ) -> None:
        self.directory = directory
        self.policy_file = directory / "policy.yaml"
        self.policy_file.write_text(policy)
        self.token = add(directory / "tokens.yaml", "test", [Scope.HOOK, Scope.OPERATE])
        self.environ = {
            "LARK_STATE_DIR": str(directory),
            "LARK_POLICY_FILE": str(self.policy_file),
            "LARK_TOKENS_FILE": str(directory / "tokens.yaml"),
            "LARK_OPENFLOW_LISTEN": "127.0.0.1:0",
            "LARK_REST_LISTEN": "127.0.0.1:0",
            **environ,
        }
        self._changed = dict(changed or {})
        self._service: Service | None = None
        self._openflow_port = 0

    @property
    def settings(self) -> Settings:
        """The settings; once a port is known it is kept, so that switches find the next start."""
        environ = self.environ
        if self._openflow_port:
            environ = {**environ, "LARK_OPENFLOW_LISTEN": f"127.0.0.1:{self._openflow_port}"}
        return replace(load(environ), **self._changed)

    @property
    def service(self) -> Service:
        """The running service."""
        assert self._service is not None
        return self._service

    def start(self) -> None:
        """Start it in this process."""
        service = Service(self.settings)
        service.start()
        self._service = service
        if service.controller.openflow_addresses:
            self._openflow_port = service.controller.openflow_addresses[0][1]

    def stop(self) -> None:
        """Stop it; may be repeated."""
        service, self._service = self._service, None
        if service is not None:
            service.stop()

    @property
    def target(self) -> str:
        """Where bridges find it."""
        return f"tcp:127.0.0.1:{self._openflow_port}"

    def request(
        self, method: str, path: str, body: str | None = None, content: str = "text/plain", accept: str = "*/*"
    ) -> Answer:
        """Ask the API."""
        request = urllib.request.Request(
            f"http://{self.service.server.addresses[0]}{path}",
            method=method,
            data=None if body is None else body.encode(),
            headers={"Authorization": f"Bearer {self.token}", "Content-Type": content, "Accept": accept},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return Answer(answer.status, _decoded(answer.read(), answer.headers["Content-Type"] or ""))
        except urllib.error.HTTPError as error:
            return Answer(error.code, _decoded(error.read(), error.headers["Content-Type"] or ""))

    def get(self, path: str) -> Any:
        """What a route shows; it must answer 200."""
        answer = self.request("GET", path)
        assert answer.status == 200, answer
        return answer.body

    def put_policy(self, text: str) -> Json:
        """Put a policy in force; it must be accepted."""
        answer = self.request("PUT", "/v1/policy", text, "application/yaml")
        assert answer.status == 200, answer
        assert isinstance(answer.body, dict)
        return answer.body

    def switch(self, datapath: int) -> Json:
        """What the API shows of a switch."""
        answer = self.request("GET", f"/v1/switches/{datapath:016x}")
        return answer.body if answer.status == 200 else {}

    def wait_in_sync(self, *datapaths: int, limit: float = 20.0) -> None:
        """Wait until switches are in sync."""
        wait(lambda: all(self.switch(datapath).get("in_sync") for datapath in datapaths), limit)

    def post(self, ads: str, seconds: float = 5.0) -> Answer:
        """Post a run."""
        return self.request("POST", f"/v1/jobs?wait={seconds:g}", ads)

    def end(self, job: Json | str) -> Json:
        """End a job; it must answer 200."""
        answer = self.request("DELETE", f"/v1/jobs/{job if isinstance(job, str) else job['id']}")
        assert answer.status == 200, answer
        assert isinstance(answer.body, dict)
        return answer.body

    def live(self) -> list[Json]:
        """The live jobs."""
        return list(self.get("/v1/jobs?limit=1000")["jobs"])

    def end_all(self) -> None:
        """End every live job."""
        for job in self.live():
            self.end(job)


class Site:
    """Two workers' bridges with hosts, a core with a LAN port to each, and routers behind its ports wan and wan-fast.

    Jobs' hosts have 10.64.0.N/16 and 2001:db8:64::N/48, N counted from 1, and router ``gw`` as their gateway. Both
    routers have the addresses of :data:`WAN`.
    """

    def __init__(
        self, ovs: OpenVSwitch, net: Net, workers: Mapping[str, int], *, core: bool = True, normal: str = "auto"
    ) -> None:
        self.ovs = ovs
        self.net = net
        self.bridges: dict[int, str] = {}
        self.hosts: dict[str, Host] = {}
        self.home: dict[str, int] = {}
        self.ports: dict[str, int] = {}
        self._gateways: dict[str, Host] = {}
        self._normal = normal
        datapaths = sorted(set(workers.values()))
        for datapath in datapaths:
            self.bridges[datapath] = net.name(f"b{datapath:x}")
            ovs.add_bridge(self.bridges[datapath], datapath)
        if core:
            self.bridges[CORE] = net.name("bc0")
            ovs.add_bridge(self.bridges[CORE], CORE)
            for number, datapath in enumerate(datapaths, 1):
                up, down = net.link(f"u{datapath:x}", f"l{number}")
                ovs.add_port(self.bridges[datapath], up)
                ovs.add_port(self.bridges[CORE], down, number)
            for number, name in ((3, "gw"), (4, "gwfast")):
                addresses = [f"10.64.255.{number}/16", f"2001:db8:64:ffff::{number}/48"]
                host = net.host(name, addresses=[*addresses, *(f"{a}/{128 if ':' in a else 32}" for a in WAN)])
                self._gateways[name] = host
                ovs.add_port(self.bridges[CORE], host.port, number)
        elif len(datapaths) == 2:
            up, down = net.link(f"u{datapaths[0]:x}", f"u{datapaths[1]:x}")
            ovs.add_port(self.bridges[datapaths[0]], up)
            ovs.add_port(self.bridges[datapaths[1]], down)
        gateway = ["10.64.255.3", "2001:db8:64:ffff::3"] if core else []
        for number, (name, datapath) in enumerate(workers.items(), 1):
            host = net.host(name, addresses=[f"10.64.0.{number}/16", f"2001:db8:64::{number}/48"], gateway=gateway)
            self.hosts[name] = host
            self.home[name] = datapath
            self.ports[name] = ovs.add_port(self.bridges[datapath], host.port)

    def __getitem__(self, name: str) -> Host:
        return self._gateways.get(name) or self.hosts[name]

    def policy(self, *rules: str, groups: Iterable[str] = (), networks: bool = True, max_rules: int = 0) -> str:
        """A policy file for this site."""
        lines = ["version: 1", "networks:"]
        if networks:
            lines.append('  jobs: [10.64.0.0/17, "2001:db8:64::/64"]')
        lines.append('  local: [10.0.0.0/8, "2001:db8:64::/48"]')
        lines.append(f'edge: {{uplinks: ["{self.net.prefix}u*"]}}')
        lines.append("switches:")
        if CORE in self.bridges:
            hops = [f'{{port: {n}, next_hop: "{self[name].mac}"}}' for n, name in ((3, "gw"), (4, "gwfast"))]
            lines.append(
                f'  core1: {{datapath: "{CORE:016x}", role: core, normal: {self._normal},'
                f" ports: {{lan1: 1, lan2: 2, wan: {hops[0]}, wan-fast: {hops[1]}}}}}"
            )
        if max_rules:
            lines.append(f'  worker1: {{datapath: "{WORKER1:016x}", role: edge, max_rules: {max_rules}}}')
        if lines[-1] == "switches:":
            lines.pop()
        if rules:
            lines += ["policies:", *(f"  - {rule}" for rule in rules)]
        groups = list(groups)
        if groups:
            lines += ["groups:", *(f"  {group}" for group in groups)]
        return "\n".join(lines) + "\n"

    def connect(self, lark: Lark, target: str | None = None) -> None:
        """Point every bridge to the controller, and wait until all are in sync."""
        for bridge in self.bridges.values():
            self.ovs.set_controller(bridge, target or lark.target)
        lark.wait_in_sync(*self.bridges)

    def ads(
        self,
        name: str,
        owner: str,
        *,
        job: str = "",
        machine: str = "",
        number: int | None = None,
        started: int = 1,
        slot: str | None = None,
        address: bool = True,
    ) -> str:
        """The ads of a run on a host; ``job`` and ``machine`` are more lines, which win over those made here."""
        host, cluster = self.hosts[name], next(_numbers) if number is None else number
        worker = f"worker{self.home[name]:x}.example"
        addresses = f'LarkInnerAddressIPv4="{host.ipv4}"\nLarkInnerAddressIPv6="{host.ipv6}"\n' if address else ""
        return (
            f'Owner="{owner}"\nGlobalJobId="submit.example#{cluster}.0#1"\nJobCurrentStartDate={started}\n'
            f"ClusterId={cluster}\nProcId=0\n{job}\n------\n"
            f'Machine="{worker}"\nName="{slot or f"slot_{name}"}@{worker}"\n{addresses}'
            f'LarkInnerMacAddress="{host.mac}"\nLarkExternalInterface="{host.port}"\n'
            f'LarkDatapathId="{self.home[name]:016x}"\n{machine}\n'
        )

    def run(self, lark: Lark, name: str, owner: str, **more: Any) -> Json:
        """Register a run on a host; it must be enforced when the answer comes.

        What a host said before (IPv6 looks for routers by itself) was dropped, and Open vSwitch does the same with
        what follows until its caches have seen that the tables are others now; so that is waited for.
        """
        answer = lark.post(self.ads(name, owner, **more))
        assert answer.status == 201, answer
        assert answer.body["state"] == "enforced", answer
        self.settle()
        assert isinstance(answer.body, dict)
        return answer.body

    def runs(self, lark: Lark, owners: Mapping[str, str]) -> dict[str, Json]:
        """Register a run of each owner on the host that is named."""
        return {name: self.run(lark, name, owner) for name, owner in owners.items()}

    def end(self, lark: Lark, name: str, job: Json) -> None:
        """End a host's run, and wait until its switch has forgotten it."""
        lark.end(job)
        wait(lambda: not self.port_flows(name))

    def port_flows(self, name: str) -> list[str]:
        """The flows that admit what a host's port sends."""
        return [flow for flow in self.flows(self.home[name], Category.JOB) if f"in_port={self.ports[name]}," in flow]

    def settle(self) -> None:
        """Wait until the datapath's caches follow the flow tables: Open vSwitch does it a little after a barrier."""
        self.ovs.appctl("revalidator/wait")

    def fresh(self, names: Iterable[str]) -> None:
        """Let hosts look up their neighbours anew, since a lookup that failed is not tried again within a second."""
        self.settle()
        for name in names:
            if name not in OUTSIDE:
                self.net.forget_neighbours(self[name])

    def reached(self, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], tuple[bool, bool]]:
        """Who reaches whom by ping, (IPv4, IPv6); a target is a host's name, or a key of :data:`OUTSIDE`."""
        asked = list(pairs)
        self.fresh({name for pair in asked for name in pair})
        tries = []
        for source, target in asked:
            v4, v6 = OUTSIDE[target] if target in OUTSIDE else (self[target].ipv4, self[target].ipv6)
            tries += [(self[source], v4), (self[source], v6)]
        found = self.net.ping_all(tries, tries=3)
        return {pair: (found[2 * i], found[2 * i + 1]) for i, pair in enumerate(asked)}

    def matrix(self, *names: str) -> set[str]:
        """``a>b`` for every two hosts that reach each other by ping in both address families.

        Fails where the two families differ.
        """
        found = self.reached((a, b) for a in names for b in names if a != b)
        mixed = {pair: both for pair, both in found.items() if both[0] != both[1]}
        assert not mixed, f"IPv4 and IPv6 differ: {mixed}"
        return {f"{a}>{b}" for (a, b), both in found.items() if both[0]}

    def calls(self, names: Iterable[tuple[str, str, str]]) -> dict[tuple[str, str, str], tuple[bool, bool]]:
        """Who gets an answer from whom by (``source``, ``target``, ``tcp`` or ``udp``), (IPv4, IPv6)."""
        asked = list(names)
        self.fresh({name for source, target, _ in asked for name in (source, target)})
        ports = itertools.count(5001)

        def ask(source: str, target: str, protocol: str, address: str, port: int) -> bool:
            probe = self.net.tcp if protocol == "tcp" else self.net.udp
            return probe(self[source], self[target], address, port, wait=1.0)

        tries = [
            (source, target, protocol, address, next(ports))
            for source, target, protocol in asked
            for address in (self[target].ipv4, self[target].ipv6)
        ]
        with ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda one: ask(*one), tries))
        return {one: (found[2 * i], found[2 * i + 1]) for i, one in enumerate(asked)}

    def flows(self, datapath: int, category: Category | None = None) -> list[str]:
        """The flows on a switch, without counters; of one category if given."""
        if category is None:
            return self.ovs.flows(self.bridges[datapath])
        return self.ovs.flows(self.bridges[datapath], f"cookie=0x{cookie(category):x}/0xffffff0000000000")

    def counters(self, datapath: int) -> dict[str, int]:
        """Packets by flow, in the words of ovs-ofctl."""
        shown = self.ovs.ofctl(self.bridges[datapath], "dump-flows")
        found = {}
        for line in shown.splitlines():
            if (packets := re.search(r"n_packets=(\d+)", line)) is not None:
                key = re.sub(r"(duration|n_packets|n_bytes|idle_age|hard_age)=[^,]+, ", "", line).strip()
                found[key] = int(packets[1])
        return found


# Addresses that both routers have, which are on no site's network.
WAN = ("192.0.2.1", "192.0.2.2", "2001:db8:ffff::1", "2001:db8:ffff::2")
OUTSIDE = {"wan1": ("192.0.2.1", "2001:db8:ffff::1"), "wan2": ("192.0.2.2", "2001:db8:ffff::2")}


@contextmanager
def enforcing(
    ovs: OpenVSwitch,
    workers: Mapping[str, int],
    policy: Callable[[Site], str] = Site.policy,
    *,
    core: bool = True,
    uplink: bool = False,
    queues: bool = False,
    check_seconds: float = 60.0,
) -> Iterator[tuple[Site, Lark]]:
    """A site whose switches a controller holds in sync; nothing of either is left at the end.

    ``uplink`` gives the first worker a way out that leads nowhere; with ``queues`` the controller makes queues too.
    """
    with temporary_directory() as directory, Net() as net:
        site = Site(ovs, net, workers, core=core)
        if uplink:
            up, _ = net.link("ue1", "out")
            ovs.add_port(site.bridges[WORKER1], up)
        settings = {"LARK_OVSDB": f"unix:{ovs.database_socket}"} if queues else {}
        settings["LARK_CHECK_SECONDS"] = f"{check_seconds:g}"
        lark = Lark(Path(directory), policy(site), changed=None, **settings)
        lark.start()
        try:
            site.connect(lark)
            yield site, lark
        finally:
            lark.stop()
            for bridge in site.bridges.values():
                ovs.vsctl("--if-exists", "del-br", bridge)
            if queues:
                ovs.vsctl("--all", "destroy", "qos", "--", "--all", "destroy", "queue")


def wait(question: Callable[[], object], limit: float = 15.0) -> None:
    """Wait until the question's answer is true; fails when it is not in time."""
    deadline = time.monotonic() + limit
    while not question():
        assert time.monotonic() < deadline, f"not within {limit:g} s"
        time.sleep(0.02)


def _decoded(body: bytes, content: str) -> Any:
    return json.loads(body) if "json" in content and body else body.decode()
