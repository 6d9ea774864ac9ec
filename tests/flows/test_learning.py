"""The learning switch, its flows run through the simulated tables."""

from __future__ import annotations

import random
from itertools import permutations

import pytest

from lark_controller.flows import cookies
from lark_controller.flows.learning import QUIET_TIME, Learning
from lark_controller.flows.model import (
    FLAG_SEND_FLOW_REM,
    PORT_CONTROLLER,
    Flow,
    FlowData,
    FlowKey,
    Output,
    match,
)
from lark_controller.flows.simulation.packet import parse_fast_addresses
from lark_controller.flows.simulation.simulate import PortView, Tables, run
from tests.fixtures import frames

PORTS = (1, 2, 3)
A, B, C = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "02:00:00:00:00:0c"


class Switch:
    """A switch with the frame of the two tables, and the controller's learning beside it."""

    def __init__(self, learning: Learning | None = None) -> None:
        self.learning = Learning(3, 4, 70) if learning is None else learning
        self.tables = Tables()
        self.ports = PortView.of(PORTS)
        self.asked = 0
        self.tables.set(
            Flow(FlowKey(0, 0, ()), FlowData(0, goto=3)),
        )
        self.tables.set(Flow(FlowKey(3, 10, ()), FlowData(0, (Output(PORT_CONTROLLER),), goto=4)))
        self.tables.set(Flow(FlowKey(4, 50, ()), FlowData(0, tuple(Output(port) for port in PORTS))))

    def send(self, port: int, src: str, dst: str, vlan: int | None = None) -> tuple[int, ...]:
        frame = frames.udp(src, dst, "10.0.0.1", "10.0.0.2", vlan=vlan)
        result = run(self.tables, port, frame, self.ports)
        for told in result.to_controller:
            self.asked += 1
            addresses = parse_fast_addresses(told.frame)
            flows, gone = self.learning.learn(port, addresses.vlan, addresses.eth_src)
            for key in gone:
                assert self.tables.remove(key) is not None
            for flow in flows:
                self.tables.set(flow)
        return result.ports

    def age(self, key: FlowKey) -> None:
        """A flow times out; what the controller does about it."""
        assert self.tables.remove(key) is not None
        for other in self.learning.aged(key):
            assert self.tables.remove(other) is not None

    def learned(self) -> list[FlowKey]:
        return [
            entry.key for entry in self.tables if cookies.parse(entry.data.cookie).category == cookies.Category.LEARNED
        ]


def test_three_hosts_find_each_other_and_then_nothing_is_asked_or_flooded() -> None:
    switch = Switch()
    assert switch.send(1, A, B) == (2, 3)
    assert switch.send(2, B, A) == (1,)
    assert switch.send(3, C, A) == (1,)
    assert switch.asked == 3
    hosts = {1: A, 2: B, 3: C}
    for (source, src), (destination, dst) in permutations(hosts.items(), 2):
        assert switch.send(source, src, dst) == (destination,)
    assert switch.asked == 3
    assert len(switch.learned()) == 6


def test_a_station_that_moves_is_found_at_its_new_port() -> None:
    switch = Switch()
    switch.send(1, A, B)
    switch.send(2, B, A)
    assert switch.send(3, A, B) == (2,)
    assert switch.send(2, B, A) == (3,)
    assert len(switch.learned()) == 4
    before = switch.asked
    assert switch.send(1, A, B) == (2,)
    assert switch.asked == before + 1
    assert switch.send(2, B, A) == (1,)


def test_an_aged_flow_takes_the_other_with_it_and_the_station_is_learned_again() -> None:
    for which in (0, 1):
        switch = Switch()
        switch.send(1, A, B)
        switch.age(switch.learned()[which])
        assert switch.learned() == []
        assert len(switch.learning) == 0
        assert switch.send(2, B, A) == (1, 3)
        assert switch.send(1, A, B) == (2,)
        assert switch.send(2, B, A) == (1,)


def test_a_flow_that_a_move_deleted_does_not_forget_the_new_place() -> None:
    learning = Learning(3, 4, 70)
    first, _ = learning.learn(1, 0, 0x02_00_00_00_00_0A)
    _, gone = learning.learn(2, 0, 0x02_00_00_00_00_0A)
    assert gone == (first[1].key,)
    assert learning.aged(gone[0]) == ()
    assert len(learning) == 1


def test_vlans_are_learned_apart() -> None:
    switch = Switch()
    switch.send(1, A, B, vlan=10)
    switch.send(2, A, B, vlan=20)
    switch.send(3, A, B)
    assert switch.send(3, C, A, vlan=10) == (1,)
    assert switch.send(3, C, A, vlan=20) == (2,)
    assert switch.send(1, C, A) == (3,)
    assert switch.send(3, C, A, vlan=30) == (1, 2)
    numbers = {cookies.parse(entry.data.cookie).number for entry in switch.tables if entry.data.cookie}
    assert numbers == {0, 10, 20, 30}


def test_learned_flows_age_on_the_switch_and_say_so() -> None:
    flows, _ = Learning(3, 4, 70, idle_timeout=42).learn(1, 0, 0x0A)
    assert {(flow.data.idle_timeout, flow.data.flags) for flow in flows} == {(42, FLAG_SEND_FLOW_REM)}


def test_what_is_no_stations_address_is_not_learned() -> None:
    learning = Learning(3, 4, 70)
    assert learning.learn(1, 0, 0x01_00_5E_00_00_01) == ((), ())
    assert learning.learn(1, 0, 0) == ((), ())
    assert len(learning) == 0


def test_random_sources_fill_neither_the_port_nor_the_switch_nor_the_controller() -> None:
    switch = Switch(Learning(3, 4, 70, per_port=20, total=50))
    source = random.Random(5)
    switch.send(2, B, A)
    for _ in range(500):
        mac = (0x02 << 40 | source.getrandbits(40)).to_bytes(6).hex(":")
        switch.send(1, mac, B)
    assert len(switch.learning) == 21
    assert switch.asked == 22
    quiet = [entry for entry in switch.tables if entry.data.hard_timeout]
    assert [entry.data.hard_timeout for entry in quiet] == [QUIET_TIME]
    assert switch.send(3, C, B) == (2,)
    assert switch.send(2, B, C) == (3,)
    learning = Learning(3, 4, 70, per_port=20, total=3)
    for number in range(1, 6):
        learning.learn(number, 0, number)
    assert len(learning) == 3
    assert learning.learn(9, 0, 1).flows[1].data.goto == 4
    assert len(learning) == 3


def test_a_port_that_goes_takes_its_stations_with_it() -> None:
    switch = Switch()
    switch.send(1, A, B)
    switch.send(2, B, A)
    for key in switch.learning.forget_port(1):
        assert switch.tables.remove(key) is not None
    assert len(switch.learned()) == 2
    assert switch.send(2, B, A) == (1, 3)


def test_stations_that_went_make_room_at_their_port() -> None:
    learning = Learning(3, 4, 70, per_port=2)
    learned = [learning.learn(1, 0, 1).flows]
    for number in range(2, 9):
        learned.append(learning.learn(1, 0, number).flows)
        assert len(learned[-1]) == 2, "learned, and the port is not made quiet"
        assert len(learning.learn(1, 0, 99).flows) == 1, "the port is full"
        assert learning.aged(learned[-2][0].key) == (learned[-2][1].key,)
        assert len(learning) == 1
    moved, gone = learning.learn(2, 0, 8)
    assert len(moved) == 2
    assert len(gone) == 1
    assert [len(learning.learn(1, 0, number).flows) for number in (20, 21, 22)] == [2, 2, 1]


def test_a_port_takes_so_many_stations_as_its_documentation_says() -> None:
    learning = Learning(3, 4, 70)
    for station in range(1, 2000):
        learning.learn(1, 0, 0x0200_0000_0000 + station)
    assert len(learning) == 1024


@pytest.mark.parametrize("vlan", [0, 10, 4095])
@pytest.mark.parametrize("which", [0, 1])
def test_each_flow_of_a_station_takes_the_other_with_it(vlan: int, which: int) -> None:
    learning = Learning(3, 4, 70)
    flows = learning.learn(1, vlan, 0x0A).flows
    learning.learn(1, vlan ^ 1, 0x0A)
    learning.learn(1, vlan, 0x0B)
    assert learning.aged(flows[which].key) == (flows[1 - which].key,)
    assert len(learning) == 2
    assert learning.aged(flows[which].key) == ()


def test_a_port_at_its_limit_is_quiet_below_its_stations() -> None:
    learning = Learning(3, 4, 70, per_port=1)
    known = learning.learn(1, 0, 0x0A).flows
    (quiet,) = learning.learn(1, 0, 0x0B).flows
    assert {flow.key.priority for flow in known} == {70}
    assert (quiet.key, quiet.data.goto, quiet.data.idle_timeout) == (FlowKey(3, 69, match(in_port=1)), 4, 0)
    # No answer of the switch concerns a flow that is no station's.
    assert learning.aged(quiet.key) == ()
