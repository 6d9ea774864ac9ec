"""A core switch with jobs behind it and the outside before it: a real Open vSwitch with the flows that the controller
calculates.

Jobs are addresses of one host, so that what is compared is one path with and without the translation of external
addresses. Open vSwitch runs its userspace datapath on this machine's cores, together with both ends of connections.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final

from experiments.ends import OPEN, OWN
from lab.namespaces import INNER, Host, Net
from lab.openvswitch import OpenVSwitch
from lab.run import run
from lark_common.runs import RunKey
from lark_controller.flows.desired import Desired
from lark_controller.flows.placement import place_switch
from lark_controller.flows.text import flow_text
from lark_controller.jobs.external import External, listed
from lark_controller.jobs.job import Facts, Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load

ROOT: Final = Path(__file__).parents[1]
CORE: Final = 0xC0
OUTSIDE: Final = "192.0.2.1"
# The outside's router to both networks: nothing but a neighbour with the jobs' MAC. An outside host asks for its router
# and not for hundreds of addresses at once, of which some get no answer while transfers have the processors.
ROUTER: Final = "192.0.2.254"
JOBS, POOL = IPv4Address("10.64.0.0"), IPv4Address("198.18.0.0")
# One that a namespace may choose on any machine. Some machines have BBR, which took the drops of 200 connections that
# begin at once for a slow path, and went on at 50 kb/s each.
CONGESTION: Final = "net.ipv4.tcp_congestion_control=reno"
# So many addresses are called at once at most; more may be mapped.
CALLED: Final = 200
POLICY: Final = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches: {core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2}}}
external: {pools: {public: [198.18.0.0/16]}, rules: [{pool: public, open: [tcp]}]}
"""


class CorePath:
    """A core with the host of all jobs at one port and an outside host at the other."""

    def __init__(self, ovs: OpenVSwitch, net: Net, directory: Path, mtu: int) -> None:
        self.ovs, self.file, self.bridge = ovs, directory / "flows", net.name("core")
        self.jobs = net.host("jobs", addresses=["10.64.0.1/32"], mtu=mtu)
        self.outside = net.host("out", addresses=[f"{OUTSIDE}/24"], mtu=mtu)
        ovs.add_bridge(self.bridge, CORE)
        for number, host in ((1, self.jobs), (2, self.outside)):
            ovs.add_port(self.bridge, host.port, number)
            run(["ip", "netns", "exec", host.namespace, "sysctl", "-qw", CONGESTION])
        lines = "".join(f"address add {JOBS + n}/32 dev {INNER}\n" for n in range(2, CALLED + 1))
        run(["ip", "-n", self.jobs.namespace, "-batch", "-"], stdin=lines)
        run(["ip", "-n", self.jobs.namespace, "route", "add", "default", "dev", INNER])
        neighbour = ["neighbour", "add", ROUTER, "lladdr", self.jobs.mac, "nud", "permanent", "dev", INNER]
        run(["ip", "-n", self.outside.namespace, *neighbour])
        for network in ("10.64.0.0/16", "198.18.0.0/16"):
            run(["ip", "-n", self.outside.namespace, "route", "add", network, "via", ROUTER])

    def map(self, count: int, opened: str = f"tcp/{OPEN}") -> int:
        """Map so many jobs, each with this ``opened``; returns the flows of the core."""
        desired = Desired(load(POLICY))
        desired.set_switch(place_switch(desired.policy, CORE, {"a": 1, "b": 2}, normal=True, tracks=True, max_meter=0))
        decider = Decider(desired.policy)
        for number in range(1, count + 1):
            job = _job(number, self.jobs.mac, opened)
            desired.put(job, decider.of(job))
        flows = desired.build(CORE).flows
        self.file.write_text("".join(f"{flow_text(key, data)}\n" for key, data in flows.items()))
        self.ovs.ofctl(self.bridge, "replace-flows", str(self.file), timeout=300)
        return len(flows)

    @contextmanager
    def serving(self, *ports: int) -> Iterator[None]:
        """Serve at all jobs' addresses, at :data:`OPEN` and :data:`OWN` or at other ports."""
        with self._program(self.jobs, "serve", *map(str, ports or (OPEN, OWN))) as server:
            assert server.stdout is not None
            server.stdout.readline()
            try:
                yield
            finally:
                server.terminate()

    def measured(self, action: str, seconds: float, addresses: Sequence[str]) -> float:
        """The result of a measurement by the outside at some addresses."""
        with self._program(self.outside, action, str(seconds), *addresses) as client:
            told, _ = client.communicate(timeout=seconds + 60)
        return float(json.loads(told))

    def _program(self, host: Host, *words: str) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", host.namespace, sys.executable, "-m", "experiments.ends", *words]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def _job(number: int, mac: str, opened: str) -> Job:
    key, facts = RunKey(f"s#{number}.0#1", 1, f"slot{number}"), Facts((("acctgroup", '"cms"'), ("owner", '"alice"')))
    own, external = JOBS + number, External(POOL + number, listed(opened))
    return Job(
        number, key, key.id, "alice", "alice", "cms", number, 0, "worker1",
        ipv4=own, mac=mac, facts=facts, external=(external,),
    )  # fmt: skip
