"""Switches that reach the controller which stands by alone: real processes, and switches that hold flows."""

from __future__ import annotations

import os
import signal
import time

import pytest

from bench.fleet import Mastered, edge_ports, port_infos
from fake_switch.switch import FakeNetwork
from lab.openvswitch import OpenVSwitch
from lark_controller.switches.openflow import roles
from tests.cluster.test_counters_of_standby import ADS
from tests.cluster.test_kept_switches import begin, flows, in_sync, instances, metrics, standing
from tests.cluster.test_processes import Instance, until

__all__ = ["instances"]
pytestmark = pytest.mark.postgres

# A job at another worker's switch.
ELSEWHERE = (
    ADS.replace("#1.0#", "#2.0#").replace("worker1", "worker2").replace("0000000001", "0000000002")
    .replace(":00:01", ":00:02").replace("10.64.0.1", "10.64.1.2")
)  # fmt: skip
DATAPATH = 0x1C0F
BRIDGE = f"lkh{os.getpid():x}"


def all_in_sync(instance: Instance, count: int) -> bool:
    status, body = instance.ask("/v1/switches")
    found = body["switches"] if status == 200 else []
    return len(found) == count and all(each["in_sync"] for each in found) and instance.is_active()


def through(instance: Instance) -> list[str]:
    """The instances through which the switches are connected."""
    return [each["through"] for each in instance.ask("/v1/switches")[1]["switches"]]


def test_a_switch_that_reaches_the_one_that_stands_by_alone_is_led_by_the_active_one(
    instances: tuple[Instance, Instance],
) -> None:
    a, b = instances
    begin(a, b)
    with FakeNetwork() as network:
        edge, other = Mastered(1, port_infos(edge_ports(8))), Mastered(2, port_infos(edge_ports(8)))
        # Where most switches had lost the active one, it would hand over.
        network.call(other.connect("127.0.0.1", a.openflow))
        status, body = a.ask("/v1/jobs?wait=30", "POST", ELSEWHERE)
        assert (status, body["state"]) == (201, "enforced"), body
        network.call(edge.connect("127.0.0.1", b.openflow))
        until(lambda: all_in_sync(a, 2))
        assert edge.masters.is_master(edge)
        assert metrics(b).get("lark_switches_handed_on") == 1
        assert metrics(b).get("lark_switches_kept") == 0
        assert through(a) == ["b", ""]
        # A job's flows are there once its post is answered, asked at either.
        status, body = b.ask("/v1/jobs?wait=30", "POST", ADS)
        assert (status, body["state"]) == (201, "enforced"), body
        held = edge.digest()
        edge.forget_counts()
        # The active one is lost: the other leads the switch, which comes to it again, with nothing changed.
        a.stop(signal.SIGKILL)
        until(b.is_active)
        until(edge.closed.is_set)
        again = edge.another()
        network.call(again.connect("127.0.0.1", b.openflow))
        network.call(other.another().connect("127.0.0.1", b.openflow))
        until(lambda: all_in_sync(b, 2))
        assert again.masters.is_master(again)
        assert (again.changed, again.digest()) == (0, held)
        assert through(b) == ["", ""]


def test_the_way_of_its_own_takes_the_place_of_the_one_through_another(instances: tuple[Instance, Instance]) -> None:
    a, b = instances
    begin(a, b)
    with FakeNetwork() as network:
        edge = Mastered(1, port_infos(edge_ports(8)))
        network.call(edge.connect("127.0.0.1", b.openflow))
        until(lambda: in_sync(a))
        held = edge.digest()
        direct = edge.another()
        network.call(direct.connect("127.0.0.1", a.openflow))
        until(edge.closed.is_set)
        until(lambda: in_sync(a))
        assert direct.masters.is_master(direct)
        assert through(a) == [""]
        again = edge.another()
        network.call(again.connect("127.0.0.1", b.openflow))
        until(lambda: edge.masters.role(again) == roles.SLAVE)
        assert (direct.changed, direct.digest()) == (0, held)


@pytest.mark.ovs
def test_a_real_switch_of_one_that_stands_by(instances: tuple[Instance, Instance], own_ovs: OpenVSwitch) -> None:
    a, b = instances
    begin(a, b)
    own_ovs.add_bridge(BRIDGE, DATAPATH)
    try:
        own_ovs.set_controller(BRIDGE, [f"tcp:127.0.0.1:{b.openflow}"])
        controller = own_ovs.vsctl("--bare", "--columns=_uuid", "list", "controller").strip()
        own_ovs.vsctl("set", "controller", controller, "inactivity_probe=60000")
        until(lambda: in_sync(a))
        until(lambda: standing(own_ovs) == ["true master"])
        before = flows(own_ovs, BRIDGE)
        assert before
        a.stop()
        stopped = time.monotonic()
        until(lambda: in_sync(b))
        until(lambda: standing(own_ovs) == ["true master"])
        after = flows(own_ovs, BRIDGE)
        assert set(after) == set(before)
        assert min(after.values()) > time.monotonic() - stopped
    finally:
        own_ovs.vsctl("--if-exists", "del-br", BRIDGE)
