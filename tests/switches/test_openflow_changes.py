"""A link's messages and their answers, against the fake switch: changes, errors, counters, events."""

from __future__ import annotations

import asyncio
import cProfile
from functools import partial

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_common.errors import SwitchError
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.marker import Marker
from lark_controller.flows.model import (
    FLAG_SEND_FLOW_REM,
    PORT_CONTROLLER,
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
from lark_controller.switches.openflow.applies import SharedSteps
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import PacketIn, PortInfo
from tests.fixtures.openflow import (
    JOB,
    Recorder,
    add,
    connected,
    flow,
    on_a_switch,
    scenario,
    serving,
)


def test_a_change_is_confirmed_in_the_order_meters_flows_meters() -> None:
    async def play(_recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
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

    on_a_switch(play)


def test_errors_are_tied_to_the_flow_or_meter_that_caused_them() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
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

    on_a_switch(play, FakeSwitch(1, max_meter=5))


def test_a_flow_that_cannot_be_encoded_is_an_error_of_that_flow_alone() -> None:
    async def play(_recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        too_large = Flow(FlowKey(0, 70000, ()), FlowData(JOB))
        outcome = await link.apply(add(too_large, flow(1)))
        assert [error.subject for error in outcome.errors] == [too_large.key]
        assert list(fake.tables.entries) == [flow(1).key]

    on_a_switch(play)


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
        # A busy machine takes its time over 20,000 flows, which the fake switch decodes one by one.
        async with serving(recorder, apply_timeout=60.0) as server:
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


def test_switches_that_get_the_same_change_get_the_same_messages() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            fakes = [FakeSwitch(datapath) for datapath in (1, 2, 3, 4)]
            links = [await connected(server, recorder, fake) for fake in fakes]
            gone, too_large = flow(9), Flow(FlowKey(0, 70000, ()), FlowData(JOB))
            metered = Flow(FlowKey(0, 5, ()), FlowData(JOB, meter=3))
            await asyncio.gather(*(link.apply(add(gone)) for link in links))
            changes = Changes((Meter(3, 100, 10),), frozenset({3}), (flow(1), metered, too_large), (gone.key,))
            outcomes = await asyncio.gather(*(link.apply(changes) for link in links))
            assert [[error.subject for error in each.errors] for each in outcomes] == [[too_large.key]] * 4
            held = {each.key: each.data for each in (flow(1), metered)}
            assert [fake.program.flows for fake in fakes] == [held] * 4
            assert [fake.program.meters for fake in fakes] == [{3: Meter(3, 100, 10)}] * 4

    scenario(play)


def _messages(shared: SharedSteps, changes: Changes) -> tuple[list[bytes], int]:
    """A change's messages, and how many calls of functions they take."""
    profile = cProfile.Profile()
    profile.enable()
    found = [build(7) for _, build in shared.of(changes) if build is not None]
    profile.disable()
    return found, sum(each.callcount for each in profile.getstats())


def test_a_change_is_encoded_once_for_all_switches_that_get_it() -> None:
    shared = SharedSteps()
    one, other = (add(*(flow(number, in_port=number) for number in range(first, first + 8))) for first in (1, 9))
    messages, first = _messages(shared, one)
    # Another tag's change may come in between.
    for changes in (other, one, other):
        _messages(shared, changes)
    again, later = _messages(shared, one)
    assert again == messages
    assert later < first / 3


def test_counters_of_one_cookie() -> None:
    async def play(_recorder: Recorder, _fake: FakeSwitch, link: SwitchLink) -> None:
        other = Flow(FlowKey(0, 9, ()), FlowData(cookie(Category.JOB, 8)))
        await link.apply(add(flow(1), flow(2), other))
        assert set(await link.counters(JOB, (1 << 64) - 1)) == {flow(1).key, flow(2).key}

    on_a_switch(play)


def test_a_barrier_that_does_not_come_ends_the_change_with_a_reason() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
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

    on_a_switch(play)


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


def test_port_changes_flow_removals_and_stray_errors_are_told() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
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

    on_a_switch(play, FakeSwitch(1, {1: "lan"}))


def test_a_frame_goes_through_the_tables_of_the_fake_switch() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        frame = bytes.fromhex("020000000002020000000001") + b"\x88\xb5" + bytes(50)
        tag = Flow(FlowKey(0, 1, match(in_port=1)), FlowData(JOB, metadata=(5, 0xF), goto=1))
        tell = Flow(FlowKey(1, 2, match(metadata=(5, 0xF))), FlowData(JOB, (Output(PORT_CONTROLLER, 20), Output(2))))
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

    on_a_switch(play, FakeSwitch(1, {1: "a", 2: "b"}))


def test_a_dump_that_is_not_complete_is_an_error() -> None:
    async def play(_recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:

        def half(xid: int, message: bytes) -> None:
            fake.send_raw(switchside.multipart_reply(xid, ofp.OFPMP_FLOW, more=True))

        fake._answers[ofp.OFPT_MULTIPART_REQUEST] = half
        with pytest.raises(SwitchError, match="no complete answer"):
            await link.counters(timeout=0.05)

    on_a_switch(play)


def test_a_marker_is_gone_before_what_is_sent_even_if_the_change_before_was_dropped() -> None:
    async def play(_recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        assert (await link.mark(Marker(1, 2, normal=True, tracks=True))).complete
        assert len(fake.markers) == 1
        fake.stall()
        while not link.connection.paused:
            link.packet_out(PORT_CONTROLLER, (Output(1),), bytes(60_000))
            await asyncio.sleep(0)
        dropped = await link.apply(add(flow(1)), 0.05)
        assert "nothing could be sent" in dropped.reason
        fake.resume()
        assert (await link.apply(add(flow(2)))).complete
        assert fake.markers == []
        assert fake.program.flows == {flow(2).key: flow(2).data}

    on_a_switch(play)


def test_markers_that_a_switch_has_beside_its_own_are_taken_away() -> None:
    async def play(_recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        for table in (7, 8):
            fake.put(Marker(1, 2, normal=True, tracks=True).flow(table))
        # They are in no dump, which shows the next change that they are there.
        assert (await link.dump()).program.flows == {}
        assert not link.may_be_marked
        assert (await link.apply(add(flow(1)))).complete
        assert fake.markers == []
        assert link.may_be_marked

    on_a_switch(play)
