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

DATAPATH = 0x1C0F
BRIDGE = f"lkh{os.getpid():x}"


def test_a_switch_that_reaches_the_one_that_stands_by_alone_is_led_by_the_active_one(
    instances: tuple[Instance, Instance],
) -> None:
    a, b = instances
    begin(a, b)
    with FakeNetwork() as network:
        edge = Mastered(1, port_infos(edge_ports(8)))
        network.call(edge.connect("127.0.0.1", b.openflow))
        until(lambda: in_sync(a))
        assert edge.masters.is_master(edge)
        assert metrics(b).get("lark_switches_handed_on") == 1
        assert metrics(b).get("lark_switches_kept") == 0
        (switch,) = a.ask("/v1/switches")[1]["switches"]
        assert switch["through"] == "b"
        # A job's flows are there once its post is answered, asked at either.
        status, body = b.ask("/v1/jobs?wait=30", "POST", ADS)
        assert (status, body["state"]) == (201, "enforced"), body
        held = edge.digest()
        assert held != Mastered(2, port_infos(edge_ports(8))).digest()
        edge.forget_counts()
        # The active one is lost: the other leads the switch, which comes to it again, with nothing changed.
        a.stop(signal.SIGKILL)
        until(b.is_active)
        until(edge.closed.is_set)
        again = edge.another()
        network.call(again.connect("127.0.0.1", b.openflow))
        until(lambda: in_sync(b))
        assert again.masters.is_master(again)
        assert (again.changed, again.digest()) == (0, held)
        assert b.ask("/v1/switches")[1]["switches"][0]["through"] == ""


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
        assert a.ask("/v1/switches")[1]["switches"][0]["through"] == ""
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
