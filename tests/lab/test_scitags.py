"""SciTags of files that a real HTCondor moves, by its own protocol and by its plugin: fireflies from start to end, and
marks at the core's WAN port; also while worker service and controller are away."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest

from bench import transfer_limits
from experiments import sandboxes
from experiments.lark_transfers import limited
from lab import controller, submit
from lab.boot import Lab
from lab.inside.topology import METRICS_PORT, WAN_ADDRESSES
from lark_common.scitags import LABEL_MASK, Scitag
from tests.lab.remains import services_are_back
from tests.lab.test_transfer_rules import PORT as SINK
from tests.lab.test_transfer_rules import taker, wait_for
from tests.lab.test_transfers import PORT as SERVER
from tests.lab.test_transfers import SIZE, http_server, use

WORKER, COLLECTOR, DESTINATION = "worker1", "wan2", "wan1"
CEDAR = 9618
# Bytes of what the plugin uploads, and of a file by HTCondor's own protocol.
UPLOAD, SANDBOX = 100_000_000, 40_000_000
# Mb/s of the access point's link, where a sandbox has to be on its way until more has happened: a minute and more.
LINK = 4.0
MARK = Scitag(3, 15)
RULES = """policies:
  - scitags: {experiment: 3, activity: 12, requested: [15], when: 'Owner == "alice"'}
"""
SECTION = """
scitags: {{collectors: ["{collector}"], destinations: true, flows: all, ongoing: 5, labels: true}}
"""
SEEN, CAPTURE = "/tmp/fireflies", "/tmp/wan.pcap"
# Keeps what comes to the port of fireflies, a line each.
_RECEIVER = f"""\
import socket
receiving = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
receiving.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
receiving.bind(("::", 10514))
with open("{SEEN}", "wb", buffering=0) as file:
    while True:
        file.write(receiving.recv(65536).split(b" ", 7)[7] + b"\\n")
"""


class Flow(NamedTuple):
    """A flow by its fireflies: the worker's port and the other end's, its states in the order in which they came, the
    last bytes, and experiment and activity."""

    ports: tuple[int, int]
    states: list[str]
    received: int
    sent: int
    mark: Scitag


@contextmanager
def receiving(lab: Lab, machine: str) -> Iterator[None]:
    """A receiver of fireflies on a machine."""
    start = f'rm -f {SEEN}; setsid python3 -c "$1" >/dev/null 2>&1 & echo $!; until [ -e {SEEN} ]; do sleep 0.1; done'
    pid = lab.on(machine, "sh", "-c", start, "lab", _RECEIVER).stdout.strip()
    try:
        yield
    finally:
        lab.on(machine, "kill", pid, check=False)


def flows(lab: Lab, machine: str, port: int) -> list[Flow]:
    """The flows to a port, as a machine has received fireflies of them."""
    by: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for line in lab.on(machine, "cat", SEEN).stdout.splitlines():
        each = json.loads(line)
        ends = each["flow-id"]
        if ends["dst-port"] == port:
            by.setdefault((ends["src-port"], port), []).append(each)
    return [
        Flow(
            ports,
            [each["flow-lifecycle"]["state"] for each in found],
            found[-1]["usage"]["received"],
            found[-1]["usage"]["sent"],
            Scitag(found[-1]["context"]["experiment-id"], found[-1]["context"]["activity-id"]),
        )
        for ports, found in by.items()
    ]


def whole(found: list[Flow]) -> bool:
    """True if each flow has begun and ended, and there is one."""
    return bool(found) and all(each.states[0] == "start" and each.states[-1] == "end" for each in found)


def wait_until_whole(lab: Lab, machine: str, *ports: int) -> None:
    """Wait until a machine has the fireflies of whole flows to each of these ports."""

    def unfinished() -> dict[int, list[Flow]]:
        found = {port: flows(lab, machine, port) for port in ports}
        return {port: each for port, each in found.items() if not whole(each)}

    wait_for(lambda: not unfinished(), lambda: f"{machine} lacks flows or fireflies of {unfinished()}; {followed(lab)}")


def followed(lab: Lab) -> str:
    """The worker's own counts of what it followed and sent, the connections that it was to follow, and the packets that
    interfaces on the way have dropped."""
    ask = f"curl -s http://127.0.0.1:{METRICS_PORT}/metrics | grep -E '^lark_worker_(firefly|transfer)'; ss -tinHO"
    dropped = "for each in /sys/class/net/*; do echo $each $(cat $each/statistics/*dropped); done"
    scripts = [(WORKER, ask), *((each, dropped) for each in (WORKER, "core", "gateway-wan", COLLECTOR))]
    return "\n".join(lab.on(machine, "sh", "-c", script, check=False).stdout for machine, script in scripts)


@contextmanager
def marked(lab: Lab, collector: str) -> Iterator[None]:
    """Marks in the policy, which the worker has from its next job on."""
    before = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    text = before.replace("policies:\n", RULES) + SECTION.format(collector=collector)
    controller.api(lab, "/v1/policy", "PUT", text)
    restart(lab)
    try:
        yield
    finally:
        controller.api(lab, "/v1/policy", "PUT", before)
        restart(lab)


def restart(lab: Lab) -> None:
    """Kill the worker service, and wait for the next one, which asks about marks with its first job."""
    before = lab.on(WORKER, "unit", "status", "lark-worker").stdout.strip()
    lab.on(WORKER, "unit", "kill", "lark-worker")
    again = 'until s=$(unit status lark-worker) && [ "$s" != "$1" ] && lark-worker jobs; do sleep 0.1; done'
    lab.on(WORKER, "sh", "-c", again, "lab", before, timeout=60)


@contextmanager
def small_window(lab: Lab, machine: str) -> Iterator[None]:
    """A machine's TCP has little room for what it receives: a sender that fills the queues on the way costs datagrams,
    and fireflies are not repeated."""
    place = "/proc/sys/net/ipv4/tcp_rmem"
    before = lab.on(machine, "cat", place).stdout.strip()
    lab.on(machine, "sh", "-c", f"echo 4096 65536 131072 >{place}")
    try:
        yield
    finally:
        lab.on(machine, "sh", "-c", f"echo {before} >{place}")


@contextmanager
def capturing(lab: Lab, address: str) -> Iterator[None]:
    """The IPv6 packets that leave by the core's WAN port for an address are kept meanwhile."""
    start = (
        f"setsid tcpdump -p -nn -s 80 -Q in -i in0 -w {CAPTURE} 'ip6 and tcp and dst host {address}'"
        " >/dev/null 2>/tmp/dump & echo $!; until grep -q listening /tmp/dump; do sleep 0.05; done"
    )
    pid = lab.on("gateway-wan", "sh", "-c", start).stdout.strip()
    try:
        yield
    finally:
        lab.on("gateway-wan", "kill", pid, check=False)


def captured(lab: Lab) -> list[tuple[int, int, int]]:
    """The packets that were kept: how many, the sender's port, the flow label."""
    # "IP6 (flowlabel 0x12345, … ) 2001:db8::b.40000 > …": the sender's last part is its port.
    show = (
        f"tcpdump -nn -v -t -r {CAPTURE} 2>/dev/null"
        r" | sed -nE 's/^IP6 \((.*flowlabel (0x[0-9a-f]+))?.*\) [0-9a-f:]+\.([0-9]+) > .*/\3 \2/p' | sort | uniq -c"
    )
    found = []
    for line in lab.on("gateway-wan", "sh", "-c", show, timeout=120).stdout.splitlines():
        count, port, *label = line.split()
        found.append((int(count), int(port), int(label[0], 16) if label else 0))
    return found


@pytest.mark.parametrize("family", [4, 6])
def test_what_htcondor_moves_is_reported_and_marked_by_both_ways_in_both_directions(lab: Lab, family: int) -> None:
    ours, collector = (WAN_ADDRESSES[number][family == 6] for number in (1, 2))
    host = f"[{ours}]" if family == 6 else ours
    attributes = {
        "requirements": f'Machine == "{WORKER}.lab.test"',
        "request_disk": str((UPLOAD + 2 * SIZE) // 512),
        "transfer_output_files": "result, data",
        "transfer_output_remaps": f'"result = http://{host}:{SINK}/result"',
        "+ScitagActivity": "15",
    }
    make = f"head -c {UPLOAD} /dev/zero >result; sleep 3"
    with (
        small_window(lab, DESTINATION), http_server(lab), taker(lab),
        receiving(lab, COLLECTOR), receiving(lab, DESTINATION),
        marked(lab, f"[{collector}]" if family == 6 else collector), capturing(lab, WAN_ADDRESSES[1][1]),
    ):  # fmt: skip
        fetch = {"transfer_input_files": f"http://{host}:{SERVER}/data"}
        jobs = submit.submit(lab, "alice", make, attributes | fetch)
        other = submit.submit(lab, "bob", f"{make}; touch data", attributes)
        submit.wait(lab, jobs)
        submit.wait(lab, other)
        wait_until_whole(lab, COLLECTOR, SERVER, SINK, CEDAR)
        wait_until_whole(lab, DESTINATION, SERVER, SINK)
        (fetched,), (uploaded,), own = (flows(lab, COLLECTOR, port) for port in (SERVER, SINK, CEDAR))
        assert flows(lab, DESTINATION, SINK) == [uploaded]
        assert flows(lab, DESTINATION, CEDAR) == []
    assert submit.attribute(lab, jobs, "ExitCode") == "0"
    # Bob's are nobody's.
    assert {each.mark for each in (fetched, uploaded, *own)} == {MARK}
    assert 0 <= fetched.received - SIZE < 10_000, fetched
    assert 0 <= uploaded.sent - UPLOAD < 10_000, uploaded
    assert any(0 <= each.sent - SIZE < SIZE // 50 for each in own), own
    if family == 6:
        packets = captured(lab)
        port = uploaded.ports[0]
        found = {label: count for count, source, label in packets if source == port}
        with_mark = sum(count for label, count in found.items() if label & LABEL_MASK == MARK.label)
        # The first moment has the kernel's own label; the five bits are the sender's throughout.
        assert with_mark > sum(found.values()) // 2, packets
        assert len({label & ~LABEL_MASK for label in found}) == 1, packets
        ours_alone = {source for _, source, label in packets if label & LABEL_MASK == MARK.label}
        assert ours_alone <= {fetched.ports[0], port}, packets


def test_account_and_reports_of_a_sandbox_go_on_while_service_and_controller_are_away(lab: Lab) -> None:
    access_point, folder = sandboxes.ACCESS_POINT, "/home/alice/marked"
    fill = f"mkdir -p {folder}; head -c {SANDBOX} /dev/urandom >{folder}/in; chmod -R a+rX {folder}"
    lab.on(access_point, "sh", "-c", fill)
    attributes = {
        "requirements": f'Machine == "{WORKER}.lab.test"',
        "request_disk": str(SANDBOX // 512),
        "transfer_input_files": f"{folder}/in",
    }
    try:
        with (
            receiving(lab, COLLECTOR), marked(lab, WAN_ADDRESSES[2][0]), transfer_limits.before_the_input(lab),
        ):  # fmt: skip
            with limited(lab, LINK):
                jobs = submit.submit(lab, "alice", "wc -c <in", attributes)
                wait_for(lambda: any(each.states[:2] == ["start", "ongoing"] for each in flows(lab, COLLECTOR, CEDAR)))
                lab.on("controller", "unit", "stop", "lark-controller")
                try:
                    restart(lab)
                    reported = len(moved(lab).states)
                finally:
                    services_are_back(lab, WORKER)
                # Only what has not ended meanwhile goes on.
                wait_for(lambda: len(moved(lab).states) > reported, lambda: (moved(lab), followed(lab)))
                resumed = time.monotonic()
                wait_for(lambda: len(moved(lab).states) > reported + 1, lambda: (moved(lab), followed(lab)))
                seconds = time.monotonic() - resumed
            submit.wait(lab, jobs)
            wait_for(lambda: "end" in moved(lab).states, lambda: (moved(lab), followed(lab)))
            sandbox = moved(lab)
    finally:
        lab.on(access_point, "rm", "-rf", folder)
    assert submit.output(lab, jobs).strip() == str(SANDBOX)
    assert submit.attribute(lab, jobs, "NumJobStarts") == "1"
    used = use(lab, jobs)
    assert 0 <= used["transfer_bytes_in"] - SANDBOX < SANDBOX // 50, used
    assert used["transfer_seconds"] > seconds, used
    # It has begun once, and ended once.
    assert (sandbox.states.count("start"), sandbox.states.count("end"), sandbox.states[-1]) == (1, 1, "end"), sandbox
    assert 0 <= sandbox.received - SANDBOX < SANDBOX // 50, sandbox
    assert sandbox.mark == Scitag(3, 12)


def moved(lab: Lab) -> Flow:
    """The flow of the sandbox: the one that has moved the most."""
    return max(flows(lab, COLLECTOR, CEDAR), key=lambda each: each.received)
