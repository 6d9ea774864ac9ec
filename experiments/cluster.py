"""A cluster of nodes on one switch, inside the lab: ``python3 -m experiments.cluster``, a request on standard input.

Every node is an Open vSwitch edge bridge of its own, under a real controller, whose uplink is a cable to one plain
switch. The cable carries as much as is asked for, in both directions together (as the QoS framework's paper reckons its
links) or in each. Applications have one job on every node, with a network namespace and an address of
its own; the jobs are registered by REST as a worker does it, and flows between them are reserved by
``POST /v1/reservations``.

The request is JSON: :class:`Request`'s fields. What was measured is printed as JSON: for every run and repetition the
seconds that each application took on its slowest node, the Mb/s that came of each background flow, what a reference
stream over the first node's cable delivered meanwhile as a part of its rate, the share of the lab's processor that
worked, and from when to when it ran. Runs as root in a namespace with nothing else in it. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import reference
from experiments.beside import TRIES, Meanwhile, Processors, Taken, wants_more
from experiments.cable import MARGIN, MODULES, REFERENCE_PORT, wire
from lab.run import LabError, run

SWITCH = "sw"
STATE = Path("/run/lark-cluster")
TOKEN = STATE / "token"
LARK = "/opt/lark/bin/lark"
URL = "http://127.0.0.1:8080"
OPENFLOW = "127.0.0.1:6653"
START_SECONDS = 60
RUN_SECONDS = 300
REFERENCE = "reference"
REFERENCE_SOURCE, REFERENCE_TARGET = "10.0.77.2", "10.0.77.1"
# Seconds until the reference stream counts.
REFERENCE_SETTLED = 1.0
# Bytes of Ethernet, IPv4 and TCP with timestamps before the payload, as a device counts them.
HEADERS = 66
OVSDB = "unix:/run/openvswitch/db.sock"


@dataclass(frozen=True, slots=True)
class Run:
    """Applications that run at the same time. ``rates`` has what each reserves for every flow, Mb/s; None: nothing.

    ``background`` flows send all the time from the first node, unreserved.
    """

    name: str
    rates: tuple[float | None, ...]
    background: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """The run that is asked for: the number of nodes, the cables' Mb/s, and the exchange of each application.

    ``size`` is bytes to each other node in each round.
    """

    nodes: int
    link: float
    half_duplex: bool
    size: int
    rounds: int
    repetitions: int
    runs: tuple[Run, ...]

    @classmethod
    def of(cls, found: dict[str, Any]) -> Request:
        """A request as it comes out of JSON. Raises KeyError or TypeError for anything else."""
        runs = tuple(Run(each["name"], tuple(each["rates"]), each.get("background", 0)) for each in found.pop("runs"))
        return cls(**found, runs=runs)


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
        for node in range(request.nodes)
    )
    hosts = "".join(f"    {host(node)}: {{switch: {SWITCH}, capacity: {rate}}}\n" for node in range(request.nodes))
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
    for node in range(request.nodes):
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


@contextlib.contextmanager
def controller(request: Request) -> Iterator[None]:
    """A controller with a database of its own; it is there when the block begins."""
    (STATE / "policy.yaml").write_text(policy(request))
    # HTCondor's library waits for minutes until the host's own name can be resolved.
    Path("/etc/hosts").write_text(f"127.0.0.1 localhost {socket.gethostname()}\n")
    environment = {
        **os.environ,
        "LARK_STATE_DIR": str(STATE),
        "LARK_POLICY_FILE": str(STATE / "policy.yaml"),
        "LARK_OPENFLOW_LISTEN": OPENFLOW,
        "LARK_OVSDB": OVSDB,
        "LARK_TOKENS_FILE": str(STATE / "tokens.yaml"),
    }
    scopes = ["--scope", "operate", "--scope", "hook"]
    made = run(
        [LARK, "token", "experiment", *scopes, "--file", environment["LARK_TOKENS_FILE"]], env=environment
    ).stdout
    TOKEN.write_text(made.strip().splitlines()[-1])
    with (STATE / "controller.log").open("w") as log:
        process = subprocess.Popen([LARK, "run"], env=environment, stdout=log, stderr=log)
        try:
            _until(lambda: _are_in_sync(request.nodes), "the controller has every switch in sync")
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


def add_job(member: Member) -> str:
    """A job's namespace, port and registration; answers its id."""
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
    return str(answer["id"])


def reserve(application: int, nodes: int, rate: float) -> list[str]:
    """Reserve every flow of an application; answers the reservations' ids. Raises LabError where one is refused."""
    made = []
    for source in range(nodes):
        for target in range(nodes):
            if source != target:
                ends = {"source": Member(application, source), "destination": Member(application, target)}
                # As in the paper: time against what is allocated, and not against what is free besides.
                wish = {name: end.address for name, end in ends.items()} | {"rate": rate, "steady": True}
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


def exchange(application: int, request: Request) -> list[subprocess.Popen[str]]:
    """Start an application on all nodes."""
    addresses = ",".join(Member(application, node).address for node in range(request.nodes))
    return [
        subprocess.Popen(
            [*Member(application, node).inside, sys.executable, "-m", "experiments.exchange",
             str(node), "--hosts", addresses, "--bytes", str(request.size), "--rounds", str(request.rounds)],
            stdout=subprocess.PIPE, text=True,
        )
        for node in range(request.nodes)
    ]  # fmt: skip


def seconds(started: Sequence[subprocess.Popen[str]]) -> float:
    """The time of an application on its slowest node. Raises LabError where a node failed."""
    took = []
    for process in started:
        printed, _ = process.communicate(timeout=RUN_SECONDS)
        if process.returncode != 0:
            raise LabError(f"a node of the application ended with status {process.returncode}")
        took.append(float(json.loads(printed)["seconds"]))
    return max(took)


@contextlib.contextmanager
def background(application: int, flows: int) -> Iterator[None]:
    """``flows`` TCP streams from the first node's job of an application to those of the next nodes."""
    processes = []
    try:
        for node in range(1, flows + 1):
            target = Member(application, node)
            server = [*target.inside, "iperf3", "--server", "--one-off"]
            processes.append(subprocess.Popen(server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        time.sleep(0.5)
        for node in range(1, flows + 1):
            client = [*Member(application, 0).inside, "iperf3", "--client",
                      Member(application, node).address, "--time", str(RUN_SECONDS)]  # fmt: skip
            processes.append(subprocess.Popen(client, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        # What is measured begins when the streams have their share.
        time.sleep(2 if flows else 0)
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Played:
    """One run: the ``seconds`` of each application, and the Mb/s of L2 bytes that came of each background flow."""

    seconds: tuple[float, ...]
    background: tuple[float, ...] = ()


def play(request: Request, one: Run, noise: int) -> Played:
    """One run. ``noise`` is the application whose jobs make the background."""
    made = []
    for application, rate in enumerate(one.rates):
        if rate is not None:
            made += reserve(application, request.nodes, rate)
    try:
        with background(noise, one.background):
            began, before = time.monotonic(), _background_bytes(noise, one.background)
            started = [exchange(application, request) for application in range(len(one.rates))]
            took = tuple(seconds(each) for each in started)
            ended, after = time.monotonic(), _background_bytes(noise, one.background)
    finally:
        release(made)
    came = ((last - first) * 8 / 1e6 / (ended - began) for first, last in zip(before, after, strict=True))
    return Played(took, tuple(came))


def _background_bytes(application: int, flows: int) -> list[int]:
    """The bytes that the target of each background flow has been given: its job has no other traffic."""
    targets = (Member(application, node).port for node in range(1, flows + 1))
    return [int(Path(f"/sys/class/net/{port}/statistics/tx_bytes").read_text()) for port in targets]


def make_reference() -> None:
    """A host on the switch, and a server behind the first node's cable: on the bridge itself, which has no queue."""
    run(["ip", "netns", "add", REFERENCE])
    run(["ip", "link", "add", REFERENCE, "type", "veth", "peer", "name", "eth0", "netns", REFERENCE])
    run(["ip", "link", "set", REFERENCE, "up"])
    run(["ovs-vsctl", "add-port", SWITCH, REFERENCE])
    for command in (
        ["link", "set", "eth0", "gso_max_segs", "1", "up"],
        ["address", "add", f"{REFERENCE_SOURCE}/24", "dev", "eth0"],
    ):
        run(["ip", "-n", REFERENCE, *command])
    run(["ip", "link", "set", bridge(0), "up"])
    run(["ip", "address", "add", f"{REFERENCE_TARGET}/24", "dev", bridge(0)])
    run(["sh", "-c", reference.server(REFERENCE_PORT)])


@contextlib.contextmanager
def referred(request: Request) -> Iterator[Callable[[], float]]:
    """Let the reference stream run during the block; gives a function that returns, after it, the part of its rate."""
    way = reference.Way((), "", REFERENCE_TARGET, reference.rate(request.link))
    command = way.client(REFERENCE_PORT, RUN_SECONDS, 0.5)
    with tempfile.TemporaryFile("w+") as printed:
        process = subprocess.Popen(["nsenter", f"--net=/run/netns/{REFERENCE}", *command.split()], stdout=printed)
        try:
            time.sleep(REFERENCE_SETTLED)
            began = _received()
            at = time.monotonic()
            yield lambda: (ended - began) * 8 / 1e6 / (until - at) / way.rate
            ended, until = _received(), time.monotonic()
        finally:
            process.kill()
            process.wait()


def _received() -> int:
    """Bytes of payload that have come to the reference's server, however many frames the kernel has joined."""
    counted = Path(f"/sys/class/net/{bridge(0)}/statistics")
    return int((counted / "rx_bytes").read_text()) - HEADERS * int((counted / "rx_packets").read_text())


def taken(request: Request, one: Run, noise: int) -> dict[str, Any]:
    """One run with the reference stream beside it."""
    before, began = Processors.of(Path("/proc/stat").read_text()), time.time()
    with referred(request) as part:
        found = play(request, one, noise)
    busy, _ = before.shares(Processors.of(Path("/proc/stat").read_text()))
    return {
        "seconds": found.seconds,
        "background": found.background,
        "reference": part(),
        "inside": busy,
        "began": began,
        "ended": time.time(),
    }


def measure(request: Request) -> dict[str, list[dict[str, Any]]]:
    """The results of a request: by run's name, what was taken in each repetition."""
    applications = max(len(each.rates) for each in request.runs)
    noise = applications
    STATE.mkdir(parents=True, exist_ok=True)
    make_switches(request)
    make_reference()
    with leaves(), controller(request):
        for application in range(applications + (1 if any(each.background for each in request.runs) else 0)):
            for node in range(request.nodes):
                add_job(Member(application, node))
        found: dict[str, list[dict[str, Any]]] = {each.name: [] for each in request.runs}
        # By turns, so that what else the machine does falls on all alike; again what was not sound.
        for _ in range(request.repetitions * TRIES):
            for each in request.runs:
                if wants_more(list(map(of_json, found[each.name])), request.repetitions):
                    found[each.name].append(taken(request, each, noise))
    return found


def of_json(found: dict[str, Any], steal: float = 0.0, outside: float = 0.0) -> Taken[Played]:
    """Read what :func:`taken` answers, with what is known of the machine's processors outside."""
    played = Played(tuple(found["seconds"]), tuple(found["background"]))
    return Taken(played, Meanwhile(found["reference"], steal, outside, found["inside"]))


def main() -> int:
    """Run as a program."""
    try:
        print(json.dumps(measure(Request.of(json.load(sys.stdin)))))
    except (LabError, OSError, subprocess.SubprocessError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
