"""The load of cores' ports between two readings of their counters."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

from lark_controller.api.switches import PortLoad
from lark_controller.flows.placement import Switch, WanPort
from lark_controller.policies.model import PortSpec, SwitchRole, SwitchSpec
from lark_controller.reconcile.core_ports import CorePorts
from lark_controller.reconcile.switch import SwitchState
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import PortCounters, PortInfo

CORE, EDGE = 0xC0, 0xE1
WAN = (WanPort("wan", 2, None), WanPort("wan-fast", 3, None))
SWITCH = Switch(CORE, "core1", SwitchRole.CORE, lan=(1,), wan=WAN, speeds={3: 10_000.0})


class Played:
    """A core and a worker's switch whose counters a test sets, and whose clock it turns."""

    def __init__(self) -> None:
        self.now = 100.0
        self.asked = 0
        self.counted = {number: PortCounters(number, 0, 0, 0, 0, 0, 0) for number in (1, 2, 3, 9)}
        self.up = dict.fromkeys((1, 2, 3, 9), True)
        self.switch = SWITCH
        self.states = {CORE: SwitchState(CORE), EDGE: SwitchState(EDGE)}
        self.connect()
        names = {"lan1": PortSpec("eth1"), "wan": PortSpec(2), "wan-fast": PortSpec(3)}
        spec = SwitchSpec("core1", CORE, SwitchRole.CORE, names)
        self.ports = CorePorts(self.states, self._switch, lambda: self.now, spec_of=lambda _datapath: spec)

    def _switch(self, datapath: int) -> Switch:
        return self.switch if datapath == CORE else replace(SWITCH, datapath=EDGE, role=SwitchRole.EDGE)

    def connect(self) -> None:
        infos = {number: PortInfo(number, f"eth{number}", "", up, False) for number, up in self.up.items()}
        link = SimpleNamespace(features=SimpleNamespace(ports=infos), port_counters=self._counters)
        for state in self.states.values():
            state.link = cast("SwitchLink", link)

    async def _counters(self) -> list[PortCounters]:
        self.asked += 1
        return list(self.counted.values())

    def count(self, port: int, received: int, sent: int) -> None:
        self.counted[port] = PortCounters(port, 0, 0, received, sent, 0, 0)

    def read(self, later: float = 10.0) -> dict[str, PortLoad]:
        """The ports by name, after they were read once more."""
        self.now += later
        asyncio.run(self.ports.look(CORE))
        return {each.name: each for each in self.ports.loads(CORE)}


def test_the_rate_of_each_port_in_the_direction_of_the_wan_and_of_the_site() -> None:
    played = Played()
    assert played.read() == {
        "wan": PortLoad("wan", True, True, None, None, None, "wan", "eth2"),
        "wan-fast": PortLoad("wan-fast", True, True, None, None, 10_000.0, "wan-fast", "eth3"),
        "eth1": PortLoad("eth1", False, True, None, None, None, "lan1", "eth1"),
    }
    # A port that receives from the site sends towards the WAN, and one of the WAN the other way round.
    played.count(1, received=10_000_000, sent=5_000_000)
    played.count(3, received=2_500_000, sent=7_500_000)
    found = played.read()
    assert (found["eth1"].outward, found["eth1"].inward) == (8.0, 4.0)
    assert (found["wan-fast"].outward, found["wan-fast"].inward) == (6.0, 2.0)
    assert (found["wan"].outward, found["wan"].inward) == (0.0, 0.0)


def test_a_port_or_a_switch_that_begins_anew_has_no_rate_until_it_was_read_twice() -> None:
    played = Played()
    played.count(3, received=1000, sent=1000)
    played.read()
    played.count(3, received=1, sent=2000)
    assert played.read()["wan-fast"].outward is None
    assert played.read()["wan-fast"].outward == 0.0
    played.states[CORE].link = None
    played.ports.gone(CORE)
    assert played.ports.loads(CORE) == ()
    assert played.read() == {}
    played.connect()
    # What passed while it was away is the rate of no moment.
    played.count(3, received=10**12, sent=10**12)
    assert played.read()["wan-fast"].outward is None


def test_a_port_that_is_down_is_shown_so() -> None:
    played = Played()
    played.up[1] = False
    played.switch = replace(SWITCH, wan=(WAN[0]._replace(up=False), WAN[1]))
    played.connect()
    assert {name: each.up for name, each in played.read().items()} == {"wan": False, "wan-fast": True, "eth1": False}


def test_a_workers_switch_is_not_asked() -> None:
    played = Played()
    asyncio.run(played.ports.look(EDGE))
    assert played.ports.loads(EDGE) == ()
    assert played.asked == 0
