"""Connections against the fake switch: the handshake, and messages however they are cut."""

from __future__ import annotations

import asyncio

from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import (
    PORT_NORMAL,
    Flow,
    FlowData,
    FlowKey,
    Meter,
    Output,
)
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import PacketIn
from tests.fixtures.openflow import (
    Recorder,
    connected,
    flow,
    on_a_switch,
    scenario,
    serving,
)


def test_the_handshake_learns_features_and_a_complete_dump() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(0xC0, {1: "lan", 2: "wan"}, n_tables=8, max_meter=100)
            mine = [flow(number, eth_type=0x800, ipv4_dst=number) for number in range(3000)]
            for one in mine:
                fake.put(one, packets=3, octets=300)
            foreign = Flow(FlowKey(0, 0, ()), FlowData(cookie=0, actions=(Output(PORT_NORMAL),)))
            fake.put(foreign)
            base = Flow(FlowKey(0, 9, ()), FlowData(cookie(Category.LOCAL_BASE)))
            fake.put(base)
            fake.tables.meters[5] = Meter(5, 1000, 100)
            link = await connected(server, recorder, fake)
            features = link.features
            assert (features.n_tables, features.max_meter, features.meter_drop, features.normal) == (8, 100, True, True)
            assert {number: port.name for number, port in features.ports.items()} == {1: "lan", 2: "wan"}
            assert features.description == "fake 00000000000000c0"
            _, dump = recorder.connected[0]
            assert dump.program.flows == {one.key: one.data for one in mine}
            assert dump.program.meters == {5: Meter(5, 1000, 100)}
            assert foreign.key not in dump.foreign
            assert dict((await link.dump()).foreign) == {foreign.key: foreign.data, base.key: base.data}
            assert dump.counters[mine[0].key] == (3, 300)
            assert len(fake.tables.entries) == 3002  # the NORMAL probe left nothing

    scenario(play)


def test_a_switch_without_normal_and_meters_says_so() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            link = await connected(server, recorder, FakeSwitch(1, normal=False, max_meter=0))
            assert (link.features.normal, link.features.max_meter, link.features.meter_drop) == (False, 0, False)
            assert (await link.dump()).program.meters == {}

    scenario(play)


def test_messages_in_pieces_and_many_in_one_are_the_same() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, _link: SwitchLink) -> None:
        packets = [PacketIn(1, 0, 1, number, 0, bytes(60)) for number in range(1, 1001)]
        stream = b"".join(switchside.packet_in(0, packet) for packet in packets)
        fake.send_raw(stream)
        await recorder.until(lambda: len(recorder.packets) == 1000)
        for start in range(0, 2000, 7):
            fake.send_raw(stream[start : min(start + 7, 2000)])
            await asyncio.sleep(0)
        fake.send_raw(stream[2000:])
        await recorder.until(lambda: len(recorder.packets) == 2000)
        assert recorder.packets == packets * 2

    on_a_switch(play)
