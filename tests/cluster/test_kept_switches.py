"""A takeover of real processes: a switch stays connected to the one that stood by, and nothing is changed on it."""

from __future__ import annotations

import os
import re
import signal
import socket
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.fleet import Mastered, edge_ports, port_infos
from fake_switch.switch import FakeNetwork
from lab.openvswitch import OpenVSwitch
from lab.postgres import PostgresServer
from lark_controller.switches.openflow import roles
from tests.cluster.test_processes import Instance, until

pytestmark = pytest.mark.postgres

# Seconds without a message until an instance asks a switch whether it is there, and until it gives one up; on a busy
# machine a connection is not to end by itself.
PATIENT = {"LARK_ECHO_INTERVAL": "600", "LARK_SWITCH_TIMEOUT": "60"}
DATAPATH = 0x1C0E
BRIDGE = f"lkk{os.getpid():x}"


@pytest.fixture
def instances(tmp_path: Path) -> Iterator[tuple[Instance, Instance]]:
    """Two that are not started yet."""
    with tempfile.TemporaryDirectory(prefix="lark-kept-", dir="/tmp") as directory:
        server = PostgresServer(Path(directory))
        server.create()
        server.start()
        url = server.new_database()
        made = Instance("a", tmp_path, url), Instance("b", tmp_path, url)
        for each in made:
            each.environ.update(PATIENT)
        try:
            yield made
        finally:
            for each in made:
                if each.process is not None and each.process.poll() is None:
                    each.process.kill()
                    each.process.wait()
            server.stop()


def begin(a: Instance, b: Instance) -> None:
    """Starts ``a``, which becomes active, and ``b``, which stands by."""
    a.start()
    until(a.is_active)
    b.start()
    until(b.stands_by)


def metrics(instance: Instance) -> dict[str, float]:
    """The metrics without labels; none where it does not answer in time."""
    request = urllib.request.Request(f"{instance.url}/metrics", headers={"Authorization": f"Bearer {instance.token}"})
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            text = answer.read().decode()
    except OSError:
        return {}
    return {name: float(value) for name, value in re.findall(r"^(\w+) (\S+)$", text, re.MULTILINE)}


def listens(port: int) -> bool:
    """True where something takes connections there."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=15).close()
    except OSError:
        return False
    return True


def in_sync(instance: Instance) -> bool:
    """True where the instance itself has the switch in sync."""
    status, body = instance.ask("/v1/switches")
    return status == 200 and any(each["in_sync"] for each in body["switches"]) and instance.is_active()


def connected_to_both(network: FakeNetwork, a: Instance, b: Instance) -> tuple[Mastered, Mastered]:
    """A switch's connections to ``a``, which is its master and has it in sync, and to ``b``, which keeps it."""
    edge = Mastered(1, port_infos(edge_ports(8)))
    more = edge.another()
    until(lambda: listens(a.openflow) and listens(b.openflow))
    network.call(edge.connect("127.0.0.1", a.openflow))
    network.call(more.connect("127.0.0.1", b.openflow))
    until(lambda: in_sync(a) and edge.masters.role(more) == roles.SLAVE)
    return edge, more


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_the_connection_that_stands_is_led_and_nothing_is_changed(
    instances: tuple[Instance, Instance], end: signal.Signals
) -> None:
    a, b = instances
    begin(a, b)
    with FakeNetwork() as network:
        edge, more = connected_to_both(network, a, b)
        until(lambda: (shown := metrics(b)).get("lark_switches_kept") == 1 and "lark_switches_connected" not in shown)
        # What is shown of the pool is the active one's.
        until(lambda: (metrics(a).get("lark_switches_kept"), metrics(a).get("lark_switches_connected")) == (0, 1))
        held = edge.digest()
        before = edge.masters.generation
        for each in (edge, more):
            each.forget_counts()
        assert a.process is not None
        a.process.send_signal(end)
        until(lambda: edge.masters.is_master(more))
        until(lambda: in_sync(b))
        assert (edge.masters.generation or 0) > (before or 0)
        assert (more.closed.is_set(), more.changed, more.refused_as_slave) == (False, 0, 0)
        assert more.digest() == held
        until(lambda: metrics(b).get("lark_switches_kept") == 0)
        if end == signal.SIGSTOP:
            # It goes on as the one that it was, and the switch refuses it.
            a.process.send_signal(signal.SIGCONT)
            a.process.wait(120)
            assert (edge.changed, more.digest()) == (0, held)


@pytest.mark.ovs
def test_a_real_switch_keeps_both_connections_and_its_flows(
    instances: tuple[Instance, Instance], own_ovs: OpenVSwitch
) -> None:
    a, b = instances
    begin(a, b)
    own_ovs.add_bridge(BRIDGE, DATAPATH)
    try:
        own_ovs.set_controller(BRIDGE, [f"tcp:127.0.0.1:{each.openflow}" for each in (a, b)])
        for controller in own_ovs.vsctl("--bare", "--columns=_uuid", "list", "controller").split():
            own_ovs.vsctl("set", "controller", controller, "inactivity_probe=60000")
        until(lambda: in_sync(a))
        until(lambda: standing(own_ovs) == ["true master", "true slave"])
        before, connected = flows(own_ovs, BRIDGE), connections(own_ovs, b)
        a.stop()
        stopped = time.monotonic()
        until(lambda: in_sync(b))
        assert "true master" in standing(own_ovs)
        # By the connection that it had, with nothing added to its flows nor taken from them, nor added again.
        assert connections(own_ovs, b) == connected
        after = flows(own_ovs, BRIDGE)
        assert set(after) == set(before)
        assert min(after.values()) > time.monotonic() - stopped
    finally:
        own_ovs.vsctl("--if-exists", "del-br", BRIDGE)


def flows(ovs: OpenVSwitch, bridge: str) -> dict[str, float]:
    """The flows of the bridge but those of the last table, which no packet comes to, and the seconds of each."""
    found = {}
    for line in ovs.ofctl(bridge, "dump-flows").splitlines():
        flow = re.search(r"(cookie=\S+) duration=([\d.]+)s, (table=(\d+)), .*?(priority=.*)", line)
        if flow is not None and flow[4] != "253":
            found[f"{flow[1]} {flow[3]} {flow[5]}"] = float(flow[2])
    return found


def standing(ovs: OpenVSwitch) -> list[str]:
    """The controllers that are connected, and the role of each, as the switch shows them."""
    shown = ovs.vsctl("--format=csv", "--no-headings", "--columns=is_connected,role", "list", "controller")
    return sorted(line.replace(",", " ") for line in shown.split())


def connections(ovs: OpenVSwitch, instance: Instance) -> int:
    """The number of times that the switch has connected to an instance."""
    return len(re.findall(rf"tcp:127\.0\.0\.1:{instance.openflow}: connected$", ovs.log(), re.MULTILINE))
