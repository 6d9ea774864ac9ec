"""Whoever reaches the OpenFlow port and is no switch, or one that does not read, makes the controller keep little."""

from __future__ import annotations

import asyncio

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_controller.switches.openflow import wire
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.newcomer import Newcomer
from lark_controller.switches.openflow.replies import PacketIn
from tests.fixtures.openflow import Recorder, add, connected, flow, on_a_switch, scenario, serving

LONG = wire.header(ofp.OFPT_ECHO_REQUEST, 1, bytes(60_000))


def test_whoever_asks_for_long_echoes_gets_few_of_them() -> None:
    async def play(_: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        loop = asyncio.get_running_loop()
        before, started = fake.received, loop.time()
        fake.send_raw(LONG * 100)
        assert (await link.apply(add(flow(1)))).complete
        echoed = fake.received - before
        assert 60_000 < echoed < 140_000 + 20_000 * (loop.time() - started)

    on_a_switch(play)


def test_long_messages_of_who_is_no_switch_are_not_kept() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            strangers = [FakeSwitch(number, silent=True) for number in range(20)]
            for each in strangers:
                await each.connect(*server.addresses[0])
                each.send_raw(switchside.hello(0) + LONG[:-1])
            await connected(server, recorder, FakeSwitch(99))
            for connection, held in server._open.items():
                while isinstance(held, Newcomer) and connection._skipped != 1:
                    await asyncio.sleep(0)
                assert len(connection._pending) + len(connection._held) <= 8192

    scenario(play)


class Eager(FakeSwitch):
    """A switch that sends long packets before it is asked which switch it is, as one does that had other flows."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        packet = switchside.packet_in(0, PacketIn(7, 2, 1, 99, 0, bytes(9000)))
        for size in (1, 7, 9, 4000, len(packet) - 1):
            self.send_raw(packet + packet[:size])
            self.send_raw(packet[size:])


def test_long_messages_before_the_handshake_are_no_mistake() -> None:
    async def play(_: Recorder, _fake: FakeSwitch, link: SwitchLink) -> None:
        assert (await link.apply(add(flow(1)))).complete

    on_a_switch(play, Eager(1))


def test_a_connection_that_failed_is_written_no_more(caplog: pytest.LogCaptureFixture) -> None:
    async def play(_: Recorder, _fake: FakeSwitch, link: SwitchLink) -> None:
        link.connection._transport.abort()
        for _number in range(20):
            link.write(wire.echo_request(1))

    on_a_switch(play)
    assert not [record for record in caplog.records if record.name == "asyncio"]
