"""Switches that misbehave, against the fake switch: each loses its own connection and touches no other."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_common.log import LOGGER
from lark_controller.flows.model import (
    Output,
)
from lark_controller.switches.openflow import wire
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import PacketIn
from tests.fixtures.openflow import (
    Recorder,
    add,
    connected,
    flow,
    make_authority,
    make_certificate,
    on_a_switch,
    scenario,
    serving,
)


@pytest.mark.parametrize(
    ("garbage", "reason"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "garbage"),
        (b"\x04\x0a\x00\x04\x00\x00\x00\x00", "length 4"),
        (b"\x01\x0a\x00\x08\x00\x00\x00\x00", "version 0x01"),
        (wire.header(ofp.OFPT_PACKET_IN, 1, b"short"), "PacketIn cut short"),
        (wire.header(ofp.OFPT_PORT_STATUS, 1, b"short"), "PortStatus"),
        (wire.header(ofp.OFPT_ERROR, 1), "error message"),
    ],
)
def test_garbage_closes_that_connection_with_a_reason(garbage: bytes, reason: str) -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake, other = FakeSwitch(1), FakeSwitch(2)
            await connected(server, recorder, fake)
            link = await connected(server, recorder, other)
            fake.send_raw(garbage)
            await recorder.until(lambda: bool(recorder.gone))
            assert recorder.gone[0][0] == 1
            assert reason in recorder.gone[0][1]
            assert (await link.apply(add(flow(1)))).complete

    scenario(play)


def test_closing_in_the_middle_of_a_message_is_said() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, _link: SwitchLink) -> None:
        fake.send_raw(switchside.packet_in(0, PacketIn(1, 0, 1, 1, 0, bytes(60)))[:40])
        fake.disconnect()
        await recorder.until(lambda: bool(recorder.gone))
        assert recorder.gone[0][1] == "closed by the switch in the middle of a message"

    on_a_switch(play)


def test_an_exception_in_the_handler_closes_that_connection_only(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        recorder = Recorder()

        def fail(link: SwitchLink, packet: PacketIn) -> None:
            raise ZeroDivisionError("a mistake")

        async with serving(recorder) as server:
            fake, other = FakeSwitch(1), FakeSwitch(2)
            await connected(server, recorder, fake)
            link = await connected(server, recorder, other)
            recorder.on_packet = fail
            fake.packet_in(PacketIn(0, 0, 1, 1, 0, bytes(60)))
            await recorder.until(lambda: bool(recorder.gone))
            assert "a mistake" in recorder.gone[0][1]
            assert (await link.apply(add(flow(1)))).complete

    with caplog.at_level("ERROR"):
        scenario(play)
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1


def test_a_switch_that_answers_nothing_is_dropped() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, handshake_timeout=0.05) as server:
            mute = await FakeSwitch(1, silent=True).connect(*server.addresses[0])
            await mute.closed.wait()
            assert recorder.connected == []

    scenario(play)


def test_a_switch_that_speaks_another_version_is_told_so_and_the_log_says_it(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            reader, writer = await asyncio.open_connection(*server.addresses[0])
            writer.write(b"\x01\x00\x00\x08\x00\x00\x00\x01")
            answer = await reader.read()
            hello = wire.hello(1)
            assert answer[: len(hello)] == hello
            assert answer[len(hello) + 1] == ofp.OFPT_ERROR
            writer.close()

    with caplog.at_level("INFO", LOGGER):
        scenario(play)
    told = [record for record in caplog.records if record.getMessage() == "no switch"]
    assert [record.levelname for record in told] == ["WARNING"]
    assert all("1.3" in str(record.__dict__["lark_fields"]["reason"]) for record in told)


def test_a_silent_connection_is_asked_and_then_dropped() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, echo_interval=0.05, echo_timeout=600.0) as server:
            dead = FakeSwitch(2)
            alive = (await connected(server, recorder, FakeSwitch(1))).connection
            silent = (await connected(server, recorder, dead)).connection
            dead.stall()
            asked = alive._last_received
            async with asyncio.timeout(60.0):
                while alive._last_received == asked:
                    await asyncio.sleep(0.01)
            # Time that passes for the silent one alone: a busy machine may stand still for both.
            silent._last_received -= 700.0
            await recorder.until(lambda: bool(recorder.gone))
            assert recorder.gone[0][0] == 2
            assert "no answer" in recorder.gone[0][1]
            assert list(server.links) == [1]

    scenario(play)


def test_a_switch_that_stops_reading_is_dropped_and_delays_none_of_fifty_others() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, write_timeout=600.0, echo_interval=600.0) as server:
            stalled = FakeSwitch(1000)
            links = [await connected(server, recorder, FakeSwitch(number)) for number in range(50)]
            held = await connected(server, recorder, stalled)
            stalled.stall()
            many = add(*(flow(number % 60000, in_port=number) for number in range(100000)))
            blocked = held.apply(many, timeout=600)
            outcomes = await asyncio.gather(*(link.apply(add(flow(1), flow(2))) for link in links))
            assert all(outcome.complete for outcome in outcomes)
            assert not blocked.done()
            # The time that it has is over once the others are done, however long they take.
            unread = held.connection
            unread._check_writes(unread._written - unread._transport.get_write_buffer_size())
            outcome = await blocked
            assert not outcome.confirmed
            assert "stopped reading" in outcome.reason
            await recorder.until(lambda: bool(recorder.gone))
            assert [datapath for datapath, _ in recorder.gone] == [1000]

    scenario(play)


def test_over_tls_a_switch_that_stops_reading_is_dropped_as_well(tmp_path: Path) -> None:
    ca = make_authority(tmp_path, "site")
    cert, key = make_certificate(tmp_path, "site", "controller")
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = False
    context.load_cert_chain(*make_certificate(tmp_path, "site", "worker"))

    async def play() -> None:
        recorder = Recorder()
        tls = {"tls_listen": (("127.0.0.1", 0),), "cert": str(cert), "key": str(key), "ca": str(ca)}
        async with serving(recorder, write_timeout=0.3, outbox_bytes=64 << 20, **tls) as server:
            fake = await FakeSwitch(1).connect(*server.tls_addresses[0], context)
            link = await recorder.link(1)
            assert link.connection.tls_name == "worker"
            assert (await link.apply(add(flow(1)))).complete
            fake.stall()
            for _ in range(400):
                link.packet_out(1, (Output(2),), bytes(60000))
            await recorder.until(lambda: bool(recorder.gone))
            assert "stopped reading" in recorder.gone[0][1]

    scenario(play)


def test_a_certificate_of_another_switch_takes_no_datapath_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ca = make_authority(tmp_path, "site")
    cert, key = make_certificate(tmp_path, "site", "controller")

    def shown(name: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(ca))
        context.check_hostname = False
        context.load_cert_chain(*make_certificate(tmp_path, "site", name))
        return context

    core, worker = shown("core1"), shown("worker7")

    async def play() -> None:
        recorder = Recorder()
        tls = {"tls_listen": (("127.0.0.1", 0),), "cert": str(cert), "key": str(key), "ca": str(ca)}
        async with serving(recorder, **tls) as server:
            held = await FakeSwitch(1).connect(*server.tls_addresses[0], core)
            link = await recorder.link(1)
            for address, context in ((server.tls_addresses[0], worker), (server.addresses[0], None)):
                posing = await FakeSwitch(1).connect(*address, context)
                await posing.closed.wait()
                assert server.links[1] is link
            assert (await link.apply(add(flow(1)))).complete
            # Its own certificate takes over, and any once it is gone.
            await FakeSwitch(1).connect(*server.tls_addresses[0], core)
            await held.closed.wait()
            await recorder.until(lambda: len(recorder.connected) == 2)
            server.links[1].close("gone")
            await recorder.until(lambda: len(recorder.gone) == 2)
            await FakeSwitch(1).connect(*server.tls_addresses[0], worker)
            await recorder.until(lambda: len(recorder.connected) == 3)

    with caplog.at_level("WARNING", LOGGER):
        scenario(play)
    reasons = [record.__dict__["lark_fields"].get("reason", "") for record in caplog.records]
    assert sum("with the certificate of core1" in str(reason) for reason in reasons) == 2


def test_the_outbox_is_bounded() -> None:
    async def play(_recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        fake.stall()
        while not link.closed_because:
            link.packet_out(1, (Output(2),), bytes(60000))
        assert "outbox" in link.closed_because

    on_a_switch(play, outbox_bytes=1 << 20)


def test_a_flood_of_connections_that_are_no_switchs_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with serving(Recorder()) as server:
            for _ in range(9):
                reader, writer = await asyncio.open_connection(*server.addresses[0])
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                await reader.read()
                writer.close()

    with caplog.at_level("INFO", LOGGER):
        scenario(play)
    told = [record for record in caplog.records if record.getMessage() == "no switch"]
    assert [record.__dict__["lark_fields"]["times"] for record in told] == [1, 2, 4, 8]


def test_of_two_connections_of_one_datapath_the_newer_stays_and_the_log_says_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            old, new = FakeSwitch(1), FakeSwitch(1)
            first = await connected(server, recorder, old)
            await new.connect(*server.addresses[0])
            await recorder.until(lambda: len(recorder.connected) == 2)
            await old.closed.wait()
            assert "superseded" in recorder.gone[0][1]
            assert first.closed_because
            assert (await server.links[1].apply(add(flow(1)))).complete
            assert list(new.tables.entries) == [flow(1).key]
            assert len(recorder.gone) == 1

    with caplog.at_level("INFO", LOGGER):
        scenario(play)
    assert any("same datapath id" in record.getMessage() for record in caplog.records)


def test_unfinished_handshakes_are_bounded() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, max_handshakes=2) as server:
            mute = [await FakeSwitch(number, silent=True).connect(*server.addresses[0]) for number in range(2)]
            while len(server._handshakes) < 2:
                await asyncio.sleep(0)
            late = await FakeSwitch(9).connect(*server.addresses[0])
            await late.closed.wait()
            mute[0].disconnect()
            while len(server._handshakes) > 1:
                await asyncio.sleep(0)
            await connected(server, recorder, FakeSwitch(3))

    scenario(play)


def test_a_host_with_many_unfinished_handshakes_keeps_no_other_host_out() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, max_handshakes=4) as server:
            silent = [FakeSwitch(number, silent=True) for number in range(100, 104)]
            for each in silent:
                await each.connect(*server.addresses[0], own="127.0.0.2")
            while len(server._handshakes) < 4:
                await asyncio.sleep(0)
            # One more of the same host is refused; another host's takes the oldest one's place.
            another = await FakeSwitch(104, silent=True).connect(*server.addresses[0], own="127.0.0.2")
            await another.closed.wait()
            link = await connected(server, recorder, FakeSwitch(1))
            assert (await link.apply(add(flow(1)))).complete
            await silent[0].closed.wait()
            assert not any(each.closed.is_set() for each in silent[1:])

    scenario(play)


def test_many_connections_at_once_are_taken_in_a_few_at_a_time() -> None:
    async def play() -> None:
        async with serving(Recorder()) as server:
            with contextlib.ExitStack() as opened:
                # The loop stands still meanwhile: they wait in the kernel.
                for _ in range(200):
                    opened.enter_context(socket.create_connection(server.addresses[0], timeout=20))
                most, before = 0, 0
                while len(server._open) < 200:
                    await asyncio.sleep(0)
                    most, before = max(most, len(server._open) - before), len(server._open)
                assert most <= 32

    scenario(play)
