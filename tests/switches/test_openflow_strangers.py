"""The controller keeps little of programs that reach the OpenFlow port and are no switches, or do not read."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_common.errors import SwitchError
from lark_common.log import LOGGER
from lark_controller.switches.openflow import link as link_module
from lark_controller.switches.openflow import strangers as strangers_module
from lark_controller.switches.openflow import wire
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.newcomer import Newcomer
from lark_controller.switches.openflow.replies import PacketIn, PortInfo
from lark_controller.switches.openflow.strangers import LOOK_SECONDS, UnexpectedSwitches
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


def test_switches_that_nobody_expects_are_bounded_and_one_host_takes_a_part() -> None:
    """All that is known of a switch is kept while it is away, and whoever reaches the port can be ever others."""

    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, max_unexpected=8) as server:
            host, port = server.addresses[0]

            async def comes(datapath: int, own: str) -> None:
                times = len(recorder.connected)
                fake = await FakeSwitch(datapath).connect(host, port, own=own)
                await recorder.until(lambda: len(recorder.connected) > times)
                fake.disconnect()
                await recorder.until(lambda: datapath not in server.links)

            async def is_refused(datapath: int, own: str) -> None:
                await (await FakeSwitch(datapath).connect(host, port, own=own)).closed.wait()
                assert datapath not in {link.datapath for link, _ in recorder.connected}

            await comes(1, "127.0.0.2")
            await comes(2, "127.0.0.2")
            await is_refused(3, "127.0.0.2")
            # Those that have come may come again, those that have jobs always, and other hosts' as well.
            await comes(1, "127.0.0.2")
            recorder.awaited = {3}
            await comes(3, "127.0.0.2")
            for number in range(10, 16):
                await comes(number, f"127.0.0.{number}")
            await is_refused(16, "127.0.0.16")
            # One that has got jobs leaves its place.
            recorder.awaited = {1}
            await comes(1, "127.0.0.2")
            await comes(16, "127.0.0.16")

    scenario(play)


def test_a_switch_that_comes_and_goes_does_not_fill_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(strangers_module, "LINES_AT_ONCE", 4)
    monkeypatch.setattr(strangers_module, "LINES", 0.0)
    caplog.set_level("INFO", LOGGER)

    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            for times in range(1, 41):
                # Two with one datapath id, each in the other's place.
                await FakeSwitch(1).connect(*server.addresses[0])
                await recorder.until(lambda: len(recorder.connected) == times)  # noqa: B023  # waited for at once

    scenario(play)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("switch connected") == 4
    assert len([line for line in lines if line.startswith("switch ")]) < 16
    assert sum(line.startswith("switches come and go too often") for line in lines) == 6


def test_workers_that_stay_connected_leave_their_places_once_they_have_jobs() -> None:
    unexpected, expected = UnexpectedSwitches(8), set[int]()

    def comes(datapath: int, now: float) -> bool:
        try:
            unexpected.check(datapath, "192.0.2.0/24", expected.__contains__, now)
        except SwitchError:
            return False
        return True

    assert [comes(number, 0.0) for number in (1, 2, 3)] == [True, True, False]
    expected |= {1, 2}
    # Who is refused again and again makes nobody look at all of them each time.
    assert not comes(3, LOOK_SECONDS / 2)
    assert comes(3, LOOK_SECONDS)
    assert [comes(number, 2 * LOOK_SECONDS) for number in (4, 5)] == [True, False]


def ports(first: int, count: int, reason: int = ofp.OFPPR_ADD) -> bytes:
    mac = "02:00:00:00:00:01"
    found = (PortInfo(number, f"p{number}", mac, up=True, no_flood=False) for number in range(first, first + count))
    return b"".join(switchside.port_status(0, each, reason) for each in found)


def test_ports_of_switches_that_nobody_expects_do_not_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has fewer than a switch may have, and they are known while it is away."""
    monkeypatch.setattr(strangers_module, "MOST_PORTS", 4000)

    async def play() -> None:
        recorder = Recorder(awaited={9})
        async with serving(recorder) as server:

            async def comes(datapath: int) -> tuple[FakeSwitch, SwitchLink]:
                fake = FakeSwitch(datapath)
                return fake, await connected(server, recorder, fake)

            def has(link: SwitchLink, number: int) -> bool:
                return number in link.features.ports

            first, link = await comes(1)
            # One that comes and goes is one.
            for _ in range(3):
                first.send_raw(ports(1000, 900) + ports(1000, 900, ofp.OFPPR_DELETE) + ports(1000, 900))
            first.send_raw(ports(5000, 1))
            await recorder.until(partial(has, link, 5000))
            second, _ = await comes(2)
            second.send_raw(ports(1000, 900))
            await recorder.until(lambda: [datapath for datapath, _ in recorder.gone] == [2])
            assert "not declared and have no jobs" in recorder.gone[0][1]
            # Those with few go on, and so do those that are expected.
            for datapath, count in ((3, 50), (9, 2000)):
                fake, known = await comes(datapath)
                fake.send_raw(ports(1000, count))
                await recorder.until(partial(has, known, 999 + count))
            first.disconnect()
            await recorder.until(lambda: len(recorder.gone) == 2)
            fourth, _ = await comes(4)
            fourth.send_raw(ports(1000, 900))
            await recorder.until(lambda: len(recorder.gone) == 3)
            assert [datapath for datapath, _ in recorder.gone] == [2, 1, 4]

    scenario(play)


def test_ports_that_are_gone_count_until_that_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ports that were reported of a switch are kept while it is away, whatever it has sent before it went."""
    monkeypatch.setattr(strangers_module, "MOST_PORTS", 4000)
    # The second change of ports is reported in years.
    monkeypatch.setattr(link_module, "_PORTS_SHARE", 1e-15)

    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            first = FakeSwitch(1, ports={number: f"p{number}" for number in range(1000, 1900)})
            link = await connected(server, recorder, first)
            first.send_raw(ports(5000, 1))
            await recorder.until(lambda: 5000 in link.features.ports)
            first.send_raw(ports(1000, 900, ofp.OFPPR_DELETE))
            while len(link._ports) < 900:
                await asyncio.sleep(0)
            first.disconnect()
            await recorder.until(lambda: len(recorder.gone) == 1)
            assert len(link.features.ports) == 901
            second = FakeSwitch(2)
            await connected(server, recorder, second)
            second.send_raw(ports(1000, 900))
            await recorder.until(lambda: len(recorder.gone) == 2)
            assert "not declared and have no jobs" in recorder.gone[1][1]
            # It has come again without them.
            await connected(server, recorder, FakeSwitch(1))
            await recorder.until(lambda: len(recorder.connected) == 3)
            second = FakeSwitch(2, ports={number: f"p{number}" for number in range(1000, 1900)})
            await second.connect(*server.addresses[0])
            await recorder.until(lambda: len(recorder.connected) == 4)

    scenario(play)


def test_a_switch_that_has_jobs_by_now_has_room_for_its_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strangers_module, "MOST_PORTS", 4000)
    expected = set[int]()
    switches = UnexpectedSwitches(100)
    for datapath in (1, 2):
        switches.check(datapath, "10.0.0.1", expected.__contains__, 0.0)
    switches.check_ports(1, expected.__contains__, 1000, False)
    with pytest.raises(SwitchError, match="1000 ports"):
        switches.check_ports(2, expected.__contains__, 1000, False)
    expected.add(1)
    switches.check_ports(1, expected.__contains__, 60_000, False)
    # What it had is others' room once it has come again.
    switches.check(1, "10.0.0.1", expected.__contains__, 0.0)
    switches.check_ports(2, expected.__contains__, 1000, False)
    switches.check_ports(2, expected.__contains__, 10, True)
    switches.check(3, "10.0.0.1", expected.__contains__, 0.0)
    switches.check_ports(3, expected.__contains__, 1000, False)
