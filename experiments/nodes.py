"""The nodes of :mod:`experiments.cluster`, inside the lab: switches and cables, a controller, jobs, reservations.

Every node is an Open vSwitch edge bridge of its own, under a real controller, whose uplink is a cable to one plain
switch. The cable carries as much as is asked for, in both directions together (as the QoS framework's paper reckons its
links) or in each. Applications have one job on every node, with a network namespace and an address of its own; the jobs
are registered by REST as a worker does it, and flows between them are reserved by ``POST /v1/reservations``.

Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.cable import MARGIN, MODULES, held, rewired, wire
from experiments.job_sockets import Job
from lab.run import LabError, run

SWITCH = "sw"
STATE = Path("/run/lark-cluster")
TOKEN = STATE / "token"
LARK = "/opt/lark/bin/lark"
URL = "http://127.0.0.1:8080"
OPENFLOW = "127.0.0.1:6653"
START_SECONDS = 60
OVSDB = "unix:/run/openvswitch/db.sock"
# Seconds for which a job lives without a worker service that renews it: longer than any run of the nodes.
LEASE = 86_400


def frozen(value: Any) -> Any:
    """A value of JSON with tuples for its lists."""
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


@dataclass(frozen=True, slots=True)
class Run:
    """Applications that run at the same time. ``rates`` has what each reserves for every flow, Mb/s; None: nothing.

    ``programs`` are theirs with their ``arguments``, exchanges where there are none; each begins ``delays`` seconds
    later. ``floor``: what they reserve is not the most as well. Those that begin later have their ranks on the nodes
    ``late`` alone, where they are given, and reserve flows to the first of these. ``background`` flows send all the
    time from the first node, unreserved. Cables carry ``wider`` times their rate meanwhile, and hold back ``frames``
    for each flow of a link at least. ``apart``: each application has nodes of its own, and so have the background
    flows: they share the processor, and no link. Each flow sends ``pace`` Mb/s of L2 bytes then, which is what one has
    got in the run ``like`` where that was measured. ``queued``: further jobs, which send nothing, reserve as little as
    can be between all nodes, so that links have queues as where something is reserved. ``pinged``: the first two nodes
    ping meanwhile. It is measured ``often`` times as often as is asked for.
    """

    name: str
    rates: tuple[float | None, ...]
    background: int = 0
    programs: tuple[str, ...] = ()
    arguments: tuple[tuple[str, ...], ...] = ()
    delays: tuple[float, ...] = ()
    floor: bool = False
    late: tuple[int, ...] = ()
    wider: float = 1.0
    frames: int = 0
    apart: bool = False
    like: str = ""
    pace: float | None = None
    queued: bool = False
    pinged: bool = False
    often: int = 1

    @property
    def sets(self) -> int:
        """The sets of nodes that it runs on."""
        return len(self.rates) + bool(self.background) if self.apart else 1

    def delay(self, application: int) -> float:
        """The seconds after which an application begins, and reserves."""
        return self.delays[application] if self.delays else 0.0


@dataclass(frozen=True, slots=True)
class Request:
    """The run that is asked for: an application's number of nodes, the cables' Mb/s, and the exchange of each.

    ``size`` is bytes to each other node in each round. No run is repeated that would begin more than ``seconds`` after
    the first one.
    """

    nodes: int
    link: float
    half_duplex: bool
    size: int
    rounds: int
    repetitions: int
    runs: tuple[Run, ...]
    seconds: float

    @classmethod
    def of(cls, found: dict[str, Any]) -> Request:
        """A request as it comes out of JSON. Raises KeyError or TypeError for anything else."""
        runs = tuple(Run(**{name: frozen(value) for name, value in each.items()}) for each in found.pop("runs"))
        return cls(**found, runs=runs)

    @property
    def every_node(self) -> range:
        """The nodes of all sets."""
        return range(self.nodes * max(each.sets for each in self.runs))

    def nodes_of(self, application: int, one: Run) -> range:
        """The nodes of an application in a run; the background flows' are those of the application after the last."""
        first = self.nodes * min(application, len(one.rates)) if one.apart else 0
        return range(first, first + self.nodes)


@dataclass(frozen=True, slots=True)
class Member:
    """One job: of application ``application``, on node ``node``, both counted from 0."""

    application: int
    node: int

    @property
    def name(self) -> str:
        """Its network namespace."""
        return f"a{self.application}n{self.node}"

    @property
    def address(self) -> str:
        """Its IPv4 address."""
        return f"10.64.{self.application}.{self.node + 1}"

    @property
    def mac(self) -> str:
        """Its MAC address."""
        return f"02:64:00:00:{self.application:02x}:{self.node + 1:02x}"

    @property
    def inside(self) -> list[str]:
        """The begin of a command line that runs in its namespace; ``ip netns exec`` would mount anew, too."""
        return ["nsenter", f"--net=/run/netns/{self.name}"]

    @property
    def port(self) -> str:
        """The interface that its node's bridge has of it."""
        return f"p{self.application}n{self.node}"


def bridge(node: int) -> str:
    """The edge bridge of a node."""
    return f"node{node}"


def host(node: int) -> str:
    """A node's name in the topology."""
    return f"node{node}.cluster.test"


def datapath(node: int) -> str:
    """The datapath id of a node's bridge."""
    return f"{0xE0 + node:016x}"


def policy(request: Request) -> str:
    """The cluster's policy file."""
    rate = f"{request.link:g}Mbit"
    switches = "".join(
        f'  {bridge(node)}: {{datapath: "{datapath(node)}", role: edge, host: {host(node)},'
        f" ports: {{uplink: up{node}}}}}\n"
        for node in request.every_node
    )
    hosts = "".join(f"    {host(node)}: {{switch: {SWITCH}, capacity: {rate}}}\n" for node in request.every_node)
    return (
        "version: 1\nnetworks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}\n"
        f"switches:\n{switches}"
        f"topology:\n  duplex: {'half' if request.half_duplex else 'full'}\n  hosts:\n{hosts}"
    )


def ads(member: Member) -> str:
    """A worker's post of a job: both ads."""
    number = 1 + member.application * 100 + member.node
    return (
        f'GlobalJobId = "submit.cluster.test#{number}.0#1"\nJobCurrentStartDate = 1\nClusterId = {number}\nProcId = 0\n'
        f'Owner = "user{member.application}"\nUser = "user{member.application}@cluster.test"\n------\n'
        f'Machine = "{host(member.node)}"\nName = "slot{member.application + 1}@{host(member.node)}"\n'
        f'LarkNetworkType = "ovs_bridge"\nLarkAddressType = "static"\nLarkDatapathId = "{datapath(member.node)}"\n'
        f'LarkExternalInterface = "{member.port}"\nLarkInnerMacAddress = "{member.mac}"\n'
        f'LarkInnerAddressIPv4 = "{member.address}"\n'
    )


def make_switches(request: Request) -> None:
    """Open vSwitch with the nodes' bridges, and the cables between them and the switch."""
    run(["/usr/share/openvswitch/scripts/ovs-ctl", "start", "--system-id=cluster", "--no-mlockall"], timeout=60)
    run(["ovs-vsctl", "add-br", SWITCH])
    for module in (*MODULES, "sch_htb", "sch_cake"):
        # Where it is built in there is no module of that name.
        run(["modprobe", module, *(["numifbs=0"] if module == "ifb" else [])], check=False)
    for node in request.every_node:
        up, end, half = f"up{node}", f"sw{node}", f"half{node}"
        run(["ip", "link", "add", up, "type", "veth", "peer", "name", end])
        for name in (up, end):
            run(["ip", "link", "set", name, "up"])
        # On the cable go frames, not what TCP joins for speed.
        run(["ip", "link", "set", "dev", up, "gso_max_segs", "1"])
        run(
            [
                "ovs-vsctl", "add-br", bridge(node), "--", "set", "bridge", bridge(node), "fail_mode=secure",
                "protocols=OpenFlow13", f"other_config:datapath-id={datapath(node)}",
                "other_config:disable-in-band=true", "--", "set-controller", bridge(node), f"tcp:{OPENFLOW}",
                "--", "set", "controller", bridge(node), "max_backoff=1000",
                "--", "add-port", bridge(node), up, "--", "add-port", SWITCH, end,
            ]
        )  # fmt: skip
        _cable(end, half, request)


def _cable(end: str, half: str, request: Request) -> None:
    """Let a cable carry no more than its capacity: what leaves the switch, and what comes in there.

    Half duplex sends both through one scheduler.
    """
    run(["tc", "qdisc", "add", "dev", end, "clsact"])
    names = {"egress": half, "ingress": half if request.half_duplex else f"in{half}"}
    for name in dict.fromkeys(names.values()):
        run(["ip", "link", "add", name, "type", "ifb"])
        run(["ip", "link", "set", name, "up"])
        for command in wire(name, request.link * MARGIN):
            run(command.split())
    for direction, name in names.items():
        run(["tc", "filter", "add", "dev", end, direction, "matchall", "action", "mirred", "egress", "redirect",
             "dev", name])  # fmt: skip


def schedulers(request: Request) -> list[str]:
    """The devices whose schedulers are the cables."""
    return [f"{way}half{node}" for node in request.every_node for way in ([""] if request.half_duplex else ["", "in"])]


def rewire(request: Request, one: Run) -> None:
    """Make the cables those of a run."""
    rate = request.link * MARGIN * one.wider
    # At a link every node has a flow to and from each other, of every application.
    flows = 2 * (request.nodes - 1) * (1 if one.apart else len(one.rates))
    for name in schedulers(request):
        run(rewired(name, rate, max(held(rate), one.frames * flows)).split())


def applications(request: Request) -> int:
    """The number of applications that have jobs: those that run at the same time, and the background's."""
    most = max(len(each.rates) for each in request.runs)
    return most + sum(any(of(each) for each in request.runs) for of in (_has_background, _is_queued))


def _has_background(one: Run) -> bool:
    return bool(one.background)


def _is_queued(one: Run) -> bool:
    return one.queued


@contextlib.contextmanager
def leaves() -> Iterator[None]:
    """Fair queueing inside the queues that the controller makes, as a worker's service has it."""
    with (STATE / "leaves.log").open("w") as log:
        process = subprocess.Popen(["/opt/lark/bin/lark-worker", "leaves"], stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def settings() -> dict[str, str]:
    """The controller's settings."""
    return {
        "LARK_STATE_DIR": str(STATE),
        "LARK_POLICY_FILE": str(STATE / "policy.yaml"),
        "LARK_OPENFLOW_LISTEN": OPENFLOW,
        "LARK_OVSDB": OVSDB,
        "LARK_TOKENS_FILE": str(STATE / "tokens.yaml"),
        "LARK_LEASE_SECONDS": str(LEASE),
    }


@contextlib.contextmanager
def controller(request: Request) -> Iterator[None]:
    """A controller with a database of its own; it is there when the block begins."""
    (STATE / "policy.yaml").write_text(policy(request))
    # HTCondor's library waits for minutes until the host's own name can be resolved.
    names = [f"127.0.0.1 localhost {socket.gethostname()}"]
    every = [Member(application, node) for application in range(applications(request)) for node in request.every_node]
    names += [f"{each.address} {each.name}" for each in every]
    Path("/etc/hosts").write_text("\n".join(names) + "\n")
    environment = {**os.environ, **settings()}
    scopes = ["--scope", "operate", "--scope", "hook"]
    made = run(
        [LARK, "token", "experiment", *scopes, "--file", environment["LARK_TOKENS_FILE"]], env=environment
    ).stdout
    TOKEN.write_text(made.strip().splitlines()[-1])
    with (STATE / "controller.log").open("w") as log:
        process = subprocess.Popen([LARK, "run"], env=environment, stdout=log, stderr=log)
        try:
            _until(lambda: _are_in_sync(len(request.every_node)), "the controller has every switch in sync")
            yield
        finally:
            process.terminate()
            process.wait(30)


def _are_in_sync(nodes: int) -> bool:
    try:
        found = ask("GET", "/v1/switches")["switches"]
    except (OSError, LabError):
        return False
    return nodes == sum(bool(each["in_sync"]) for each in found)


def _until(ready: Any, what: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not ready():
        if time.monotonic() > deadline:
            log = (STATE / "controller.log").read_text()[-3000:]
            raise LabError(f"{START_SECONDS} s passed before {what}\n{log}")
        time.sleep(0.2)


def ask(method: str, path: str, body: str | dict[str, Any] | None = None) -> Any:
    """Ask the controller. Raises LabError with its answer where it refuses."""
    data, kind = None, "application/json"
    if isinstance(body, str):
        data, kind = body.encode(), "text/plain"
    elif body is not None:
        data = json.dumps(body).encode()
    asked = urllib.request.Request(
        URL + path, data, {"Content-Type": kind, "Authorization": f"Bearer {TOKEN.read_text()}"}, method=method
    )
    try:
        with urllib.request.urlopen(asked, timeout=30) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        raise LabError(f"{method} {path}: {error.code}: {error.read().decode(errors='replace')}") from None
    return json.loads(text) if text else None


def add_job(member: Member) -> Job:
    """A job's namespace, port and registration."""
    run(["ip", "netns", "add", member.name])
    run(["ip", "link", "add", member.port, "type", "veth", "peer", "name", "eth0", "address", member.mac, "netns",
         member.name])  # fmt: skip
    run(["ip", "link", "set", member.port, "up"])
    for command in (
        ["link", "set", "lo", "up"],
        ["link", "set", "eth0", "up"],
        ["address", "add", f"{member.address}/16", "dev", "eth0"],
    ):
        run(["ip", "-n", member.name, *command])
    run(["ovs-vsctl", "add-port", bridge(member.node), member.port])
    answer = ask("POST", "/v1/jobs?wait=20", ads(member))
    if answer["state"] != "enforced":
        raise LabError(f"job {answer['id']} is {answer['state']}: {answer['reason']}")
    return Job(str(answer["id"]), host(member.node), member.address)


def reserve(application: int, nodes: Sequence[int], rate: float, *, floor: bool, to_first: bool = False) -> list[str]:
    """Reserve every flow of an application, or those to its first node; answers the reservations' ids. Raises LabError
    where one is refused."""
    made = []
    for source in nodes:
        for target in nodes[: 1 if to_first else None]:
            if source != target:
                ends = {"source": Member(application, source), "destination": Member(application, target)}
                # Steady is as in the paper: time against what is allocated, and not against what is free besides.
                wish = {name: end.address for name, end in ends.items()} | {"rate": rate, "steady": not floor}
                try:
                    made.append(str(ask("POST", "/v1/reservations?wait=20", wish)["id"]))
                except LabError:
                    release(made)
                    raise
    return made


def release(made: Sequence[str]) -> None:
    """Give reservations back."""
    for each in made:
        ask("DELETE", f"/v1/reservations/{each}")
