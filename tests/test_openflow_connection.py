"""Connections against the fake switch: handshake, misbehaviour, isolation of one switch from the others."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from os_ken.base import app_manager
from os_ken.ofproto import ofproto_v1_3 as ofp

from lark_controller.errors import SettingError, SwitchError
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import (
    FLAG_SEND_FLOW_REM,
    PORT_CONTROLLER,
    PORT_NORMAL,
    PORT_TABLE,
    Changes,
    Flow,
    FlowData,
    FlowKey,
    Meter,
    Output,
    SetField,
    match,
)
from lark_controller.openflow import switchside, wire
from lark_controller.openflow.app import LarkSwitches, OpenFlow
from lark_controller.openflow.fake import FakeNetwork, FakeSwitch
from lark_controller.openflow.link import SwitchLink
from lark_controller.openflow.replies import PacketIn, PortInfo
from lark_controller.openflow.server import Server
from tests.openflow import OPTIONS, Recorder, make_authority, make_certificate, serving

JOB = cookie(Category.JOB, 7)


def flow(number: int, **fields: int | tuple[int, int]) -> Flow:
    return Flow(FlowKey(0, number, match(**fields)), FlowData(JOB, (Output(number),)))


def add(*flows: Flow) -> Changes:
    return Changes(flows_set=flows)


async def connected(server: Server, recorder: Recorder, fake: FakeSwitch) -> SwitchLink:
    await fake.connect(*server.addresses[0])
    return await recorder.link(fake.datapath)


def scenario(play: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(main())


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
            assert dict(dump.foreign) == {foreign.key: foreign.data, base.key: base.data}
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


def test_a_change_is_confirmed_in_the_order_meters_flows_meters() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            link = await connected(server, recorder, fake)
            metered = Flow(FlowKey(0, 5, ()), FlowData(JOB, meter=3))
            changes = Changes((Meter(3, 100, 10),), frozenset({3}), (metered,))
            assert (await link.apply(changes)).complete
            other = Flow(FlowKey(0, 5, ()), FlowData(JOB, meter=4))
            # Meter 3 goes after the flow that named it was replaced: were it first, the switch would drop the flow.
            swap = Changes((Meter(4, 100, 10),), frozenset({4}), (other,), (), (3,))
            assert (await link.apply(swap)).complete
            assert fake.program.flows == {other.key: other.data}
            assert fake.program.meters == {4: Meter(4, 100, 10)}
            changed = Changes((Meter(4, 200, 20),))
            assert (await link.apply(changed)).complete
            assert (await link.apply(Changes(flows_gone=(other.key,), meters_gone=(4,)))).complete
            assert fake.program.flows == {}
            assert (await link.apply(Changes())).complete

    scenario(play)


def test_errors_are_tied_to_the_flow_or_meter_that_caused_them() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1, max_meter=5)
            link = await connected(server, recorder, fake)
            good, bad = flow(1), flow(2)
            fake.fail_on(lambda mod: mod.key == bad.key, ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_EPERM)
            outcome = await link.apply(Changes((Meter(9, 1, 1),), frozenset({9}), (good, bad)))
            assert outcome.confirmed
            assert not outcome.complete
            assert [(error.subject, error.text) for error in outcome.errors] == [
                (9, "METER_MOD_FAILED: INVALID_METER"),
                (bad.key, "FLOW_MOD_FAILED: EPERM"),
            ]
            assert fake.program.flows == {good.key: good.data}
            assert recorder.errors == []

    scenario(play)


def test_a_flow_that_cannot_be_encoded_is_an_error_of_that_flow_alone() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            link = await connected(server, recorder, fake)
            too_large = Flow(FlowKey(0, 70000, ()), FlowData(JOB))
            outcome = await link.apply(add(too_large, flow(1)))
            assert [error.subject for error in outcome.errors] == [too_large.key]
            assert list(fake.tables.entries) == [flow(1).key]

    scenario(play)


def test_a_full_table_refuses_what_is_beyond() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            link = await connected(server, recorder, FakeSwitch(1, max_flows=2))
            outcome = await link.apply(add(*(flow(number) for number in range(4))))
            assert [error.subject for error in outcome.errors] == [flow(2).key, flow(3).key]
            assert "TABLE_FULL" in outcome.reason

    scenario(play)


def test_overlapping_changes_are_sent_in_order_and_a_large_one_lets_others_in_between() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            large, small = FakeSwitch(1), FakeSwitch(2)
            first = await connected(server, recorder, large)
            second = await connected(server, recorder, small)
            done: list[str] = []
            big = first.apply(add(*(flow(number % 60000, in_port=number) for number in range(20000))))
            last = first.apply(Changes(flows_gone=(flow(1, in_port=1).key,)))
            one = second.apply(add(flow(1)))
            for name, future in (("big", big), ("last", last), ("one", one)):
                future.add_done_callback(partial(lambda name, _future: done.append(name), name))
            outcomes = await asyncio.gather(big, last, one)
            assert all(outcome.complete for outcome in outcomes)
            assert done == ["one", "big", "last"]
            assert len(large.tables.entries) == 19999

    scenario(play)


def test_deleting_by_cookie_leaves_the_others() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            link = await connected(server, recorder, fake)
            other = Flow(FlowKey(0, 9, ()), FlowData(cookie(Category.JOB, 8)))
            await link.apply(add(flow(1), flow(2), other))
            assert set(await link.counters(JOB, (1 << 64) - 1)) == {flow(1).key, flow(2).key}
            assert (await link.delete_by_cookie(JOB, (1 << 64) - 1)).complete
            assert list(fake.tables.entries) == [other.key]

    scenario(play)


def test_a_barrier_that_does_not_come_ends_the_change_with_a_reason() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            link = await connected(server, recorder, fake)
            fake.hold_barriers()
            outcome = await link.apply(add(flow(1)), timeout=0.05)
            assert (outcome.confirmed, outcome.reason) == (False, "no barrier reply within 0.05 s")
            fake.release_barriers()
            assert (await link.apply(add(flow(2)))).complete
            # An error that comes after that time is told with the flow all the same.
            fake.hold_barriers()
            fake.stall()
            fake.fail_on(lambda mod: mod.key == flow(3).key, ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_EPERM)
            assert not (await link.apply(add(flow(3)), timeout=0.01)).confirmed
            fake.resume()
            await recorder.until(lambda: bool(recorder.errors))
            assert recorder.errors[0].subject == flow(3).key

    scenario(play)


def test_a_switch_that_goes_ends_what_is_under_way() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            link = await connected(server, recorder, fake)
            fake.hold_barriers()
            change = link.apply(add(flow(1)))
            fake.disconnect()
            outcome = await change
            assert not outcome.confirmed
            assert "switch is gone" in outcome.reason
            await recorder.until(lambda: bool(recorder.gone))
            assert [datapath for datapath, _ in recorder.gone] == [1]
            assert server.links == {}
            assert not (await link.apply(add(flow(1)))).confirmed
            with pytest.raises(SwitchError, match="gone"):
                await link.dump()

    scenario(play)


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


def test_messages_in_pieces_and_many_in_one_are_the_same() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            await connected(server, recorder, fake)
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

    scenario(play)


def test_closing_in_the_middle_of_a_message_is_said() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            await connected(server, recorder, fake)
            fake.send_raw(switchside.packet_in(0, PacketIn(1, 0, 1, 1, 0, bytes(60)))[:40])
            fake.disconnect()
            await recorder.until(lambda: bool(recorder.gone))
            assert recorder.gone[0][1] == "closed by the switch in the middle of a message"

    scenario(play)


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

    with caplog.at_level("INFO", "lark"):
        scenario(play)
    told = [record for record in caplog.records if record.getMessage() == "no switch"]
    assert [record.levelname for record in told] == ["WARNING"]
    assert all("1.3" in str(record.__dict__["lark_fields"]["reason"]) for record in told)


def test_a_silent_connection_is_asked_and_then_dropped() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, echo_interval=0.05, echo_timeout=0.1) as server:
            alive, dead = FakeSwitch(1), FakeSwitch(2)
            await connected(server, recorder, alive)
            await connected(server, recorder, dead)
            dead.stall()
            await recorder.until(lambda: bool(recorder.gone))
            assert recorder.gone[0][0] == 2
            assert "no answer" in recorder.gone[0][1]
            assert list(server.links) == [1]

    scenario(play)


def test_a_switch_that_stops_reading_is_dropped_and_delays_none_of_fifty_others() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, write_timeout=0.5, echo_interval=60.0) as server:
            stalled = FakeSwitch(1000)
            links = [await connected(server, recorder, FakeSwitch(number)) for number in range(50)]
            held = await connected(server, recorder, stalled)
            stalled.stall()
            many = add(*(flow(number % 60000, in_port=number) for number in range(100000)))
            blocked = held.apply(many, timeout=30)
            outcomes = await asyncio.gather(*(link.apply(add(flow(1), flow(2))) for link in links))
            assert all(outcome.complete for outcome in outcomes)
            assert not blocked.done()
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
            assert link.features.tls_name == "worker"
            assert (await link.apply(add(flow(1)))).complete
            fake.stall()
            for _ in range(400):
                link.packet_out(1, (Output(2),), bytes(60000))
            await recorder.until(lambda: bool(recorder.gone))
            assert "stopped reading" in recorder.gone[0][1]

    scenario(play)


def test_the_outbox_is_bounded() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, outbox_bytes=1 << 20) as server:
            fake = FakeSwitch(1)
            link = await connected(server, recorder, fake)
            fake.stall()
            while not link.closed_because:
                link.packet_out(1, (Output(2),), bytes(60000))
            assert "outbox" in link.closed_because

    scenario(play)


def test_a_flood_of_connections_that_are_no_switchs_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async def play() -> None:
        async with serving(Recorder()) as server:
            for _ in range(9):
                reader, writer = await asyncio.open_connection(*server.addresses[0])
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                await reader.read()
                writer.close()

    with caplog.at_level("INFO", "lark"):
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

    with caplog.at_level("INFO", "lark"):
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


def test_port_changes_flow_removals_and_stray_errors_are_told() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1, {1: "lan"})
            link = await connected(server, recorder, fake)
            new = PortInfo(2, "job2", "02:00:00:00:00:02", up=True, no_flood=False)
            fake.change_port(new, ofp.OFPPR_ADD)
            await recorder.until(lambda: len(recorder.ports) == 1)
            assert link.features.ports[2] == new
            fake.change_port(new, ofp.OFPPR_DELETE)
            await recorder.until(lambda: len(recorder.ports) == 2)
            assert list(link.features.ports) == [1]
            timed = Flow(FlowKey(0, 3, match(in_port=1)), FlowData(JOB, flags=FLAG_SEND_FLOW_REM, idle_timeout=3))
            await link.apply(add(timed))
            fake.expire(timed.key)
            await recorder.until(lambda: bool(recorder.removed))
            assert (recorder.removed[0].key, recorder.removed[0].cookie) == (timed.key, JOB)
            fake.send_raw(switchside.error(0xDEAD, ofp.OFPET_BAD_ACTION, ofp.OFPBAC_BAD_OUT_PORT, b""))
            await recorder.until(lambda: bool(recorder.errors))
            assert recorder.errors[0].text == "BAD_ACTION: BAD_OUT_PORT"

    scenario(play)


def test_a_frame_goes_through_the_tables_of_the_fake_switch() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1, {1: "a", 2: "b"})
            link = await connected(server, recorder, fake)
            frame = bytes.fromhex("020000000002020000000001") + b"\x88\xb5" + bytes(50)
            tag = Flow(FlowKey(0, 1, match(in_port=1)), FlowData(JOB, metadata=(5, 0xF), goto=1))
            tell = Flow(
                FlowKey(1, 2, match(metadata=(5, 0xF))), FlowData(JOB, (Output(PORT_CONTROLLER, 20), Output(2)))
            )
            assert (await link.apply(add(tell, tag))).complete
            assert fake.inject(1, frame) == ((2, frame),)
            await recorder.until(lambda: bool(recorder.packets))
            assert recorder.packets == [PacketIn(JOB, 1, ofp.OFPR_ACTION, 1, 5, frame[:20])]
            assert (await link.counters())[tell.key] == (1, len(frame))
            sent: list[tuple[int, bytes]] = []
            fake.sent = lambda port, out: sent.append((port, out))
            link.packet_out(1, (Output(PORT_TABLE),), frame)
            link.packet_out(1, (SetField("eth_dst", 7), Output(2)), frame)
            assert (await link.apply(Changes())).complete
            assert sent == [(2, frame), (2, bytes.fromhex("000000000007") + frame[6:])]

    scenario(play)


def test_a_dump_that_is_not_complete_is_an_error() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            link = await connected(server, recorder, fake)

            def half(xid: int, message: bytes) -> None:
                fake.send_raw(switchside.multipart_reply(xid, ofp.OFPMP_FLOW, more=True))

            fake._answers[ofp.OFPT_MULTIPART_REQUEST] = half
            with pytest.raises(SwitchError, match="no complete answer"):
                await link.counters(timeout=0.05)

    scenario(play)


def test_the_thread_serves_switches_and_stops_cleanly() -> None:
    recorder = Recorder()
    openflow = OpenFlow(OPTIONS, recorder)
    openflow.start()
    try:
        with FakeNetwork() as network:
            fakes = [FakeSwitch(number) for number in range(5)]
            for fake in fakes:
                network.call(fake.connect(*openflow.addresses[0]))
                openflow.call(recorder.link(fake.datapath)).result(20)
            assert sorted(openflow.call(lambda: list(openflow.links)).result(20)) == [0, 1, 2, 3, 4]
            outcome = openflow.call(lambda: openflow.links[2].apply(add(flow(1)))).result(20)
            assert outcome.complete
            assert list(fakes[2].tables.entries) == [flow(1).key]
            openflow.stop()
            for fake in fakes:
                network.call(fake.closed.wait())
    finally:
        openflow.stop()
    assert not openflow.running
    assert sorted(recorder.gone) == [(number, "the controller stops") for number in range(5)]


def test_os_ken_starts_no_thread_and_no_listener_of_its_own() -> None:
    before = set(threading.enumerate())
    openflow = OpenFlow(OPTIONS, Recorder())
    openflow.start()
    try:
        assert [thread.name for thread in set(threading.enumerate()) - before] == ["openflow"]
        applications = app_manager.AppManager.get_instance().applications
        assert [type(app) for app in applications.values()] == [LarkSwitches]
    finally:
        openflow.stop()
    assert set(threading.enumerate()) <= before
    assert app_manager.AppManager.get_instance().applications == {}
    openflow.start()  # and it can be started again
    openflow.stop()


def test_an_address_in_use_is_a_setting_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        openflow = OpenFlow(type(OPTIONS)(listen=(("127.0.0.1", port),)), Recorder())
        with pytest.raises(SettingError, match=str(port)):
            openflow.start()
        assert not openflow.running
