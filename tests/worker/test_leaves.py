"""Settings on the controller's queues, in the kernel's own words."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lark_worker.errors import NetworkError
from lark_worker.queues import tc
from lark_worker.queues.fair_queues import (
    DROPPED,
    FRAMES,
    JOINED,
    MARK,
    MOST_TURN,
    SPLIT,
    TARGET,
    TURNS,
    WAITED,
    FairQueues,
    Port,
    attach_leaves,
    codel_target,
    marked_ports,
    quanta,
)
from tests.fixtures.service import wait

RATE = 125_000


@pytest.mark.parametrize(
    ("rates", "ceiling", "turn"),
    [
        # Packets are taken apart: two frames fit into 4 ms from 6.1 Mb/s on.
        ((60, 10), 100, 0.004),
        ((60, 5), 100, 0.008),
        # They are not: 64 KiB take 4 ms at 131 Mb/s, 16 at 33.
        ((600, 200), 1000, 0.004),
        ((600, 100), 1000, 0.008),
        ((600, 40), 1000, 0.016),
    ],
)
def test_what_is_left_is_shared_in_proportion_whatever_the_packets(
    rates: tuple[int, ...], ceiling: int, turn: float
) -> None:
    found = quanta([(rate * RATE, ceiling * RATE) for rate in rates])
    assert found == [round(rate * RATE * turn) for rate in rates]
    assert min(found) >= (FRAMES if ceiling * RATE <= SPLIT else JOINED)


def test_turns_have_bounds() -> None:
    # So little that no turn holds two frames; so much that a turn would be some megabytes.
    assert quanta([(187, SPLIT), (10**12, SPLIT)]) == [FRAMES, MOST_TURN]
    assert quanta([(RATE, 1000 * RATE), (100 * RATE, 1000 * RATE)]) == [FRAMES, round(100 * RATE * TURNS[-1])]
    # A class that gets no more than its guarantee takes no turns.
    assert quanta([(RATE, RATE), (100 * RATE, 150 * RATE)]) == [FRAMES, round(100 * RATE * TURNS[0])]
    assert quanta([]) == []


def test_a_slow_queue_may_hold_two_frames() -> None:
    assert codel_target(12_500_000) == TARGET
    # 1 Mb/s: 12 ms a frame.
    assert codel_target(125_000) == 24_224


def leaf(number: int, ceiling: int, handle: int = 0) -> tc.HtbClass:
    quantum = quanta([(ceiling, ceiling)])[0]
    return tc.HtbClass(7, 0x10000 + number, 0x1FFFE, handle, ceiling, ceiling, quantum, tc.Backlog(0, 0), b"")


def attached(monkeypatch: pytest.MonkeyPatch, *kinds: str) -> dict[int, str]:
    """The leaves in a kernel that has these kinds, by class."""
    found: dict[int, str] = {}

    def cake(one: tc.HtbClass, target: int, interval: int, *, split: bool) -> None:
        if "cake" not in kinds:
            raise NetworkError("no cake")
        found[one.id & 0xFFFF] = "frames" if split else "cake"

    def fq_codel(one: tc.HtbClass, target: int, interval: int) -> None:
        if "fq_codel" not in kinds:
            raise NetworkError("no fq_codel")
        found[one.id & 0xFFFF] = "fq_codel"

    monkeypatch.setattr(tc, "add_cake", cake)
    monkeypatch.setattr(tc, "add_fq_codel", fq_codel)
    return found


def test_slow_queues_take_joined_packets_apart_and_leaves_that_stand_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    found = attached(monkeypatch, "cake", "fq_codel")
    assert attach_leaves([leaf(1, SPLIT), leaf(2, SPLIT + 1), leaf(3, SPLIT, handle=0x80010000)]) == (2, "")
    assert found == {1: "frames", 2: "cake"}


def test_a_kernel_without_cake_has_fq_codel_and_one_without_both_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    found = attached(monkeypatch, "fq_codel")
    assert attach_leaves([leaf(1, SPLIT)]) == (1, "")
    assert found == {1: "fq_codel"}
    attached(monkeypatch)
    assert attach_leaves([leaf(1, SPLIT)]) == (0, "class 1:1: no fq_codel")


def shown(port: str) -> dict[str, str]:
    """tc's own words about each class of HTB, but for its leaf."""
    printed = subprocess.run(
        ["tc", "-d", "class", "show", "dev", port], check=True, capture_output=True, text=True
    ).stdout
    words = [line.split() for line in printed.splitlines() if line.startswith("class htb ")]
    return {each[2]: re.sub(r"leaf \S+ ", "", " ".join(each[3:])) for each in words}


def quantum(port: str, name: str) -> int:
    found = re.search(r"quantum (\d+)", shown(port).get(name, ""))
    return int(found[1]) if found else 0


def index(port: str) -> int:
    return int(Path("/sys/class/net", port, "ifindex").read_text())


@pytest.fixture
def port(net: Net) -> str:
    name, _ = net.link("up", "out")
    return name


def command(line: str) -> None:
    subprocess.run(line.split(), check=True, capture_output=True)


def test_queues_are_looked_after_on_a_machine_that_has_just_booted(monkeypatch: pytest.MonkeyPatch) -> None:
    began, clock = time.monotonic(), time.monotonic
    looks: list[str] = []

    def nothing(database: str) -> dict[str, Port]:
        looks.append(database)
        return {}

    monkeypatch.setattr("lark_worker.queues.fair_queues.time.monotonic", lambda: clock() - began)
    monkeypatch.setattr("lark_worker.queues.fair_queues.marked_ports", nothing)
    ours, kernels = socket.socketpair()
    monkeypatch.setattr(tc, "listener", lambda: ours)
    leaves = FairQueues("unix:here")
    with kernels:
        leaves.start()
        try:
            wait(lambda: len(looks) == 1)
            kernels.send(b"a queue is new")
            wait(lambda: len(looks) == 2)
        finally:
            leaves.stop()


@pytest.mark.ovs
def test_a_quantum_is_set_and_nothing_else_changes(port: str) -> None:
    command(f"tc qdisc add dev {port} root handle 1: htb default 1")
    command(f"tc class add dev {port} parent 1: classid 1:fffe htb rate 10gbit")
    command(f"tc class add dev {port} parent 1:fffe classid 1:1 htb rate 6gbit ceil 10gbit burst 375000")
    command(f"tc class add dev {port} parent 1:fffe classid 1:3 htb rate 100mbit ceil 300mbit burst 37500 prio 3")
    before = shown(port)
    speeds = {one.id & 0xFFFF: (one.rate, one.ceiling) for one in tc.classes(index(port))}
    assert speeds == {
        0xFFFE: (1_250_000_000, 1_250_000_000), 1: (750_000_000, 1_250_000_000), 3: (12_500_000, 37_500_000)
    }  # fmt: skip
    attach_leaves(tc.classes(index(port)))
    after = shown(port)
    assert (quantum(port, "1:1"), quantum(port, "1:3")) == (6_000_000, 100_000)
    assert before.keys() == after.keys()
    for name, words in before.items():
        assert re.sub(r"quantum \d+", "", words) == re.sub(r"quantum \d+", "", after[name])


@pytest.mark.ovs
def test_what_a_queue_drops_and_how_long_it_holds_back_is_written_beside_it(
    net: Net, ovs: OpenVSwitch, port: str
) -> None:
    bridge = net.name("br")
    ovs.add_bridge(bridge, 0xE1)
    ovs.add_port(bridge, port)
    ovs.vsctl(
        "set", "port", port, "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb", f"external_ids:{MARK}=1",
        "other_config:max-rate=1000000", "queues:0=@a",
        "--", "--id=@a", "create", "queue", "other_config:max-rate=1000000",
    )  # fmt: skip
    database = f"unix:{ovs.database_socket}"
    queue = marked_ports(database)[port].queues[0]
    leaves = FairQueues(database)
    leaves.start()

    def counted() -> int:
        """The output of tc: of the leaf, or of the class where the kernel has no leaves to give."""
        shown = [
            subprocess.run(f"tc -s {what} show dev {port}".split(), check=True, capture_output=True, text=True).stdout
            for what in ("qdisc", "class")
        ]
        leaf = re.search(r"parent 1:1 .*?dropped (\d+)", shown[0], re.DOTALL)
        held = leaf or re.search(r"class htb 1:1 .*?dropped (\d+)", shown[1], re.DOTALL)
        return int(held[1]) if held else 0

    def told(name: str) -> int:
        leaves.write_now()
        found = re.search(rf'{name}="?(\d+)', ovs.vsctl("get", "queue", queue, "external_ids"))
        return int(found[1]) if found else 0

    try:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sending:
            sending.bind((port, 0))
            # More than the kernel's own FIFO holds, which would hold the sender back instead (SO_SNDBUFFORCE).
            sending.setsockopt(socket.SOL_SOCKET, 32, 16 << 20)
            frame = bytes.fromhex("020000000001020000000002") + b"\x88\xb5" + bytes(1000)

            def held_back() -> bool:
                for _ in range(200):
                    # ENOBUFS: the queue is full and has dropped it.
                    with contextlib.suppress(OSError):
                        sending.send(frame)
                return bool(told(DROPPED) and told(WAITED))

            wait(held_back)
        wait(lambda: told(DROPPED) == counted())
    finally:
        leaves.stop()
        ovs.vsctl("del-br", bridge)
        ovs.vsctl("--all", "destroy", "qos", "--", "--all", "destroy", "queue")


def give_queues(ovs: OpenVSwitch, port: str, ids: str) -> None:
    """Two queues, with guarantees of 600 and 100 Mb/s."""
    ovs.vsctl(
        "set", "port", port, "qos=@q", "--", "--id=@q", "create", "qos", "type=linux-htb", ids,
        "other_config:max-rate=1000000000", "queues:0=@a", "queues:5=@b",
        "--", "--id=@a", "create", "queue", "other_config:min-rate=600000000",
        "--", "--id=@b", "create", "queue", "other_config:min-rate=100000000",
    )  # fmt: skip


@pytest.mark.ovs
def test_the_units_command_does_it_with_the_units_capabilities_and_ends_when_it_is_told(
    net: Net, ovs: OpenVSwitch, port: str
) -> None:
    bridge = net.name("br")
    ovs.add_bridge(bridge, 0xE1)
    ovs.add_port(bridge, port)
    give_queues(ovs, port, f"external_ids:{MARK}=1")
    unit = (Path(__file__).parents[2] / "etc" / "systemd" / "lark-leaves.service").read_text()
    (program, action), capabilities = (
        re.findall(rf"(?m)^{name}=(.*)", unit)[0].split() for name in ("ExecStart", "CapabilityBoundingSet")
    )
    assert program.endswith("/lark-worker")
    bounds = ",".join(["-all", *(each.lower().replace("cap_", "+") for each in capabilities)])
    running = subprocess.Popen(
        ["setpriv", "--bounding-set", bounds, "--no-new-privs", sys.executable, "-m", "lark_worker.cli", action],
        env={**os.environ, "LARK_WORKER_OVS_DATABASE": f"unix:{ovs.database_socket}", "PYTHONFAULTHANDLER": "1"},
    )
    try:
        wait(lambda: quantum(port, "1:6") == 100_000)
        running.terminate()
        assert running.wait(20) == 0
    finally:
        # Where it has not ended it shows where each of its threads is.
        running.send_signal(signal.SIGABRT)
        running.wait()
        ovs.vsctl("del-br", bridge)
        ovs.vsctl("--all", "destroy", "qos", "--", "--all", "destroy", "queue")


@pytest.mark.ovs
def test_ports_with_queues_of_the_controllers_are_looked_after_and_no_others(
    net: Net, ovs: OpenVSwitch, port: str
) -> None:
    bridge = net.name("br")
    ovs.add_bridge(bridge, 0xE1)
    ovs.add_port(bridge, port)
    other, _ = net.link("up2", "out2")
    ovs.add_port(bridge, other)
    give_queues(ovs, port, f"external_ids:{MARK}=1")
    give_queues(ovs, other, "external_ids:site=1")
    database = f"unix:{ovs.database_socket}"
    found = marked_ports(database)
    assert set(found) == {port}
    assert (found[port].device, set(found[port].queues)) == (index(port), {0, 5})
    leaves = FairQueues(database)
    leaves.start()
    try:
        wait(lambda: (quantum(port, "1:1"), quantum(port, "1:6")) == (600_000, 100_000))
        queue = ovs.vsctl("get", "qos", ovs.vsctl("get", "port", port, "qos").strip(), "queues:5").strip()
        ovs.vsctl("set", "queue", queue, "other_config:min-rate=200000000")
        wait(lambda: (quantum(port, "1:1"), quantum(port, "1:6")) == (300_000, 100_000))
    finally:
        leaves.stop()
        untouched = quantum(other, "1:6")
        ovs.vsctl("del-br", bridge)
        ovs.vsctl("--all", "destroy", "qos", "--", "--all", "destroy", "queue")
    assert untouched == 200_000


def test_one_that_has_ended_already_is_stopped(tmp_path: Path) -> None:
    looked_after = FairQueues(f"unix:{tmp_path}/none")
    looked_after.start()
    # The thread sees that it is to end before anybody wakes it.
    looked_after._thread._stop.set()
    looked_after._wake_thread()
    wait(lambda: not looked_after.is_alive())
    looked_after.stop()
