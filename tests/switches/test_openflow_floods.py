"""A switch that floods the controller, by every type of message: others are served meanwhile, and little is kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.marker import MARKERS
from lark_controller.flows.model import FLAG_SEND_FLOW_REM, Flow, FlowData, FlowKey, Match, match
from lark_controller.switches.openflow import budgets, oxm, replies
from lark_controller.switches.openflow import link as links
from lark_controller.switches.openflow.budgets import (
    ANSWERS_AT_ONCE,
    COMMON_SHARE,
    NEW_AT_ONCE,
    TIME_AT_ONCE,
    PacketInBudget,
    SwitchTimes,
)
from lark_controller.switches.openflow.connection import Connection
from lark_controller.switches.openflow.link import MORE_FLOWS, SwitchLink
from lark_controller.switches.openflow.places import Peer
from lark_controller.switches.openflow.replies import FlowRecord, FlowRemoved, PacketIn, PortInfo
from lark_controller.switches.openflow.requests import ReplyRoom, Requests
from tests.fixtures.openflow import Recorder, add, connected, flow, on_a_switch, scenario, serving

QUIET = PacketIn(7, 2, 1, 99, 0, bytes(60))


def port(number: int) -> PortInfo:
    return PortInfo(number, f"p{number}", "02:00:00:00:00:01", up=True, no_flood=False)


def test_a_flood_of_packet_ins_is_dropped_unread_but_not_those_of_a_quiet_port() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        flood = switchside.packet_in(0, PacketIn(1, 2, 1, 5, 0, bytes(60)))
        fake.send_raw(flood * 30_000)
        fake.packet_in(QUIET)
        await recorder.until(lambda: recorder.packets[-1:] == [QUIET])
        # The burst, what quiet ports have, and what came anew in the meantime: a fraction of the flood.
        assert 100 <= len(recorder.packets) < 2000
        assert link.packet_ins_dropped == 30_001 - len(recorder.packets)
        assert (await link.apply(add(flow(1)))).complete

    on_a_switch(play, packet_in_rate=10.0, packet_in_burst=100)


def test_a_flooding_port_takes_the_part_of_no_quiet_port() -> None:
    budget = PacketInBudget(100.0, 100.0, 0.0)
    assert sum(budget.admit(b"flood", 0.0) for _ in range(10_000)) <= 120
    assert all(budget.admit(b"quiet%d" % number, 0.0) for number in range(20))
    # Little is kept of made-up ports, and they do not add up to more than the switch's own share.
    assert sum(budget.admit(b"made up %d" % number, 0.0) for number in range(10_000)) <= 50
    assert budget.dropped >= 10_000
    assert len(budget._ports) + len(budget._refused_until) <= 2 * budgets._PORTS


def test_the_packet_ins_of_a_flooding_port_are_dropped_before_they_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked_at = 0
    real = Connection._message

    def counted(self: Connection, kind: int, xid: int, message: bytes) -> bool:
        nonlocal looked_at
        looked_at += kind == ofp.OFPT_PACKET_IN
        return real(self, kind, xid, message)

    monkeypatch.setattr(Connection, "_message", counted)

    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        fake.send_raw(switchside.packet_in(0, PacketIn(1, 2, 1, 5, 0, bytes(60))) * 30_000)
        fake.packet_in(QUIET)
        await recorder.until(lambda: recorder.packets[-1:] == [QUIET])
        assert link.packet_ins_dropped == 30_001 - len(recorder.packets)
        assert looked_at <= 2 * len(recorder.packets) + 10

    on_a_switch(play, packet_in_rate=10.0, packet_in_burst=100)


def test_icmp_errors_take_nothing_from_jobs_first_packets_and_one_jobs_nothing_from_anothers() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        errors = [PacketIn(cookie(Category.EXTERNAL, job), 0, 1, 5, 0, bytes(60)) for job in (1, 2)]
        fake.send_raw(switchside.packet_in(0, errors[0]) * 30_000)
        fake.send_raw(switchside.packet_in(0, errors[1]))
        firsts = [PacketIn(1, 2, 1, 5, 0, bytes([number]) * 60) for number in range(100)]
        for each in firsts:
            fake.packet_in(each)
        await recorder.until(lambda: recorder.packets[-1:] == [firsts[-1]])
        # All first packets, from the very port at which the flood comes in.
        assert [each for each in recorder.packets if each in firsts] == firsts
        assert errors[1] in recorder.packets
        assert 100 <= recorder.packets.count(errors[0]) < 200
        assert link.packet_ins_dropped == 0

    on_a_switch(play, packet_in_rate=10.0, packet_in_burst=1000)


class SlowToReact(Recorder):
    """A handler that takes its time with each PacketIn."""

    def packet_in(self, link: SwitchLink, packet: PacketIn) -> None:
        _take(0.005)
        super().packet_in(link, packet)

    def has_more(self, count: int) -> bool:
        """True once more PacketIns than so many have come."""
        return len(self.packets) > count


def assert_a_part(feed: Callable[[SlowToReact, FakeSwitch, Callable[[], bool]], Awaitable[None]]) -> None:
    """Feed such a handler until it is enough, and hold it to its part of the loop's time."""

    async def play() -> None:
        recorder = SlowToReact()
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            await connected(server, recorder, fake)
            loop = asyncio.get_running_loop()
            began = loop.time()
            await feed(recorder, fake, lambda: loop.time() - began > 1.5 and len(recorder.packets) > 50)
            # Half of the time at most, and by far: so much at once, and a fifth of the time since.
            assert 0.005 * len(recorder.packets) < 0.35 + 0.25 * (loop.time() - began)

    scenario(play)


def test_packet_ins_that_are_answered_take_a_part_of_the_loop_alone() -> None:
    async def feed(recorder: SlowToReact, fake: FakeSwitch, is_enough: Callable[[], bool]) -> None:
        fake.send_raw(switchside.packet_in(0, QUIET) * 1000)
        await recorder.until(is_enough)

    assert_a_part(feed)


def test_single_packet_ins_that_take_long_are_paid_for_too() -> None:
    async def feed(recorder: SlowToReact, fake: FakeSwitch, is_enough: Callable[[], bool]) -> None:
        while not is_enough():
            count = len(recorder.packets)
            fake.send_raw(switchside.packet_in(0, PacketIn(7, 2, 1, count, 0, bytes(60))))
            await recorder.until(partial(recorder.has_more, count))

    assert_a_part(feed)


def test_switches_beyond_their_time_share_what_is_left() -> None:
    times = SwitchTimes()
    switches = [times.of(number, 0.0) for number in range(10)]
    # Each has its own first.
    assert [each.take(TIME_AT_ONCE, ANSWERS_AT_ONCE, 0.0) for each in switches] == [0.0] * 10
    pauses = [each.take(0.01, 0.0, 0.0) for each in switches]
    # All together have no more than a share: each waits for those before it.
    assert pauses[9] >= (10 * 0.01 - NEW_AT_ONCE) / COMMON_SHARE
    # Who comes again finds no new budget; nor does a connection before it is a switch's.
    assert times.of(3, 0.0).take(0.01, 0.0, 0.0) > 0
    assert times.new(0.0).take(2 * NEW_AT_ONCE, 0.0, 0.0) > 0


def test_many_changes_of_ports_are_told_together() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        messages = [switchside.port_status(0, port(number), ofp.OFPPR_ADD) for number in range(1000, 6_000)]
        messages += [switchside.port_status(0, port(number), ofp.OFPPR_DELETE) for number in range(1000, 5_990)]
        fake.send_raw(b"".join(messages))
        left = {*range(5_990, 6_000)}
        await recorder.until(lambda: {n for n in link.features.ports if n >= 1000} == left)
        assert len(recorder.ports) < 500
        fake.send_raw(switchside.port_status(0, port(7), ofp.OFPPR_ADD))
        await recorder.until(lambda: 7 in link.features.ports)

    on_a_switch(play)


def test_ports_without_end_are_garbage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "_MOST_PORTS", 3000)

    async def play(recorder: Recorder, fake: FakeSwitch, _link: SwitchLink) -> None:
        numbers = range(1000, 1000 + 2 * links._MOST_PORTS)
        fake.send_raw(b"".join(switchside.port_status(0, port(number), ofp.OFPPR_ADD) for number in numbers))
        await recorder.until(lambda: bool(recorder.gone))
        assert "more than 3000 ports" in recorder.gone[0][1]

    on_a_switch(play)


def _take(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


class Slow(Recorder):
    """A handler that takes its time with what nobody asked for."""

    def flow_removed(self, link: SwitchLink, removed: FlowRemoved) -> None:
        _take(0.005)
        super().flow_removed(link, removed)


def test_messages_that_nobody_asked_for_do_not_keep_others_waiting() -> None:
    async def play() -> None:
        recorder = Slow()
        async with serving(recorder) as server:
            fake, other = FakeSwitch(1), FakeSwitch(2)
            await connected(server, recorder, fake)
            gone = Flow(FlowKey(0, 5, match(in_port=1)), FlowData(cookie(Category.JOB, 1), flags=FLAG_SEND_FLOW_REM))
            told = FlowRemoved(gone.key, gone.data.cookie, 0, 1, 1, 1.0)
            total = 1000
            fake.send_raw(switchside.flow_removed(0, told, gone) * total)
            await recorder.until(lambda: bool(recorder.removed))
            # All that another switch needs, from its first message to a confirmed change, comes between.
            link = await connected(server, recorder, other)
            assert (await link.apply(add(flow(1)))).complete
            assert len(recorder.removed) < total / 2

    scenario(play)


def test_a_flood_is_put_off_while_callers_wait_for_other_switches_and_not_for_ever() -> None:
    async def play() -> None:
        recorder = Slow()
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            link = await connected(server, recorder, fake)
            assert not link.connection.goes_last()
            recorder.first = [2]
            assert link.connection.goes_last()
            # A caller of this very switch waits for messages behind its flood.
            recorder.first = [*range(2, 200), 1]
            assert not link.connection.goes_last()
            asked: list[bool] = []

            def goes_last() -> bool:
                asked.append(True)
                return True

            link.connection.goes_last = goes_last
            gone = Flow(FlowKey(0, 5, match(in_port=1)), FlowData(cookie(Category.JOB, 1), flags=FLAG_SEND_FLOW_REM))
            told = FlowRemoved(gone.key, gone.data.cookie, 0, 1, 1, 1.0)
            fake.send_raw(switchside.flow_removed(0, told, gone) * 1000)
            await recorder.until(lambda: bool(asked))
            before = len(recorder.removed)
            await recorder.until(lambda: len(recorder.removed) > before + 3)

    scenario(play)


def test_stray_errors_are_looked_at_now_and_then() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        fake.send_raw(switchside.error(1 << 30, ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_TYPE, b"") * 10_000)
        fake.packet_in(QUIET)
        await recorder.until(lambda: bool(recorder.packets))
        assert 20 <= len(recorder.errors) < 100
        assert (await link.apply(add(flow(1)))).complete

    on_a_switch(play)


class Endless(FakeSwitch):
    """A switch whose dump of flows goes on and on."""

    asked = 0

    def _multipart(self, xid: int, message: bytes) -> None:
        if int.from_bytes(message[8:10]) == ofp.OFPMP_FLOW and int.from_bytes(message[40:48]) != MARKERS[1]:
            self.asked = xid
        else:
            super()._multipart(xid, message)

    def of_others(self) -> bytes:
        """A part of the dump, of 500 flows that were not asked for."""
        theirs = flow(1)._replace(data=FlowData(7))
        record = switchside.flow_record(FlowRecord(theirs.key, theirs.data, 1, 1, 1.0))
        return switchside.multipart_reply(self.asked, ofp.OFPMP_FLOW, record * 500, more=True)

    def part(self, number: int) -> bytes:
        """A part of the dump, of 400 flows that no other part has."""
        flows = (flow(1, eth_type=0x800, ipv4_dst=400 * number + each) for each in range(400))
        records = b"".join(switchside.flow_record(FlowRecord(each.key, each.data, 1, 1, 1.0)) for each in flows)
        return switchside.multipart_reply(self.asked, ofp.OFPMP_FLOW, records, more=True)


def test_dumps_without_end_do_not_add_up() -> None:
    async def play() -> None:
        recorder = Recorder(expected=100)
        async with serving(recorder) as server:
            server.room = ReplyRoom(4000)
            endless = [Endless(number) for number in (11, 12, 13)]
            for each in endless:
                await each.connect(*server.addresses[0])
            while not all(each.asked for each in endless):
                await asyncio.sleep(0)
            # What is beyond a switch's own bound is not kept, and keeps nobody out.
            for number in range(20):
                endless[0].send_raw(endless[0].part(number))
            link = await connected(server, recorder, FakeSwitch(2))
            assert (await link.apply(add(flow(1)))).complete
            async with asyncio.timeout(60):  # Parts are read in portions.
                while server.room._total < MORE_FLOWS:
                    await asyncio.sleep(0)
            assert server.room._total == MORE_FLOWS
            # Two are within the bound on all, three are not: one that has sent most goes.
            for number in range(10):
                for each in endless[1:]:
                    each.send_raw(each.part(number))
            await asyncio.wait([asyncio.create_task(each.closed.wait()) for each in endless],
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            assert server.room._total <= 4000
            assert (await link.apply(add(flow(2)))).complete

    scenario(play)


@pytest.mark.parametrize("same", [False, True])
def test_a_dump_beyond_its_bound_is_not_even_read(monkeypatch: pytest.MonkeyPatch, same: bool) -> None:
    decoded = 0
    real = oxm.decode_fields

    def counted(buffer: bytes, start: int, end: int) -> Match:
        nonlocal decoded
        decoded += 1
        return real(buffer, start, end)

    monkeypatch.setattr(replies, "decode_fields", counted)

    async def play() -> None:
        recorder = Recorder(expected=0)
        async with serving(recorder) as server:
            fake = Endless(1)
            await fake.connect(*server.addresses[0])
            while not fake.asked:
                await asyncio.sleep(0)
            # Flows of others, which were not asked for, then Lark's own.
            fake.send_raw(fake.of_others() * 20)
            for number in range(30):
                fake.send_raw(fake.part(0 if same else number))
            fake.send_raw(switchside.multipart_reply(fake.asked, ofp.OFPMP_FLOW, b"", more=False))
            await recorder.until(lambda: bool(recorder.left))
            assert len(recorder.left[0].program.flows) == (400 if same else MORE_FLOWS)
            assert decoded <= MORE_FLOWS + 400

    scenario(play)


def test_parts_of_a_dump_that_are_of_no_use_are_paid_as_unsolicited(monkeypatch: pytest.MonkeyPatch) -> None:
    useful: list[bool] = []
    real = Requests.reply

    def noted(self: Requests, kind: int, xid: int, message: bytes) -> bool:
        useful.append(real(self, kind, xid, message))
        return useful[-1]

    async def play() -> None:
        recorder = Recorder(expected=0)
        async with serving(recorder) as server:
            fake = Endless(1)
            await fake.connect(*server.addresses[0])
            while not fake.asked:
                await asyncio.sleep(0)
            monkeypatch.setattr(Requests, "reply", noted)
            fake.send_raw(fake.of_others() * 4)
            for number in range(10):
                fake.send_raw(fake.part(number))
            fake.send_raw(switchside.multipart_reply(fake.asked, ofp.OFPMP_FLOW, b"", more=False))
            await recorder.until(lambda: bool(recorder.left))
            # Flows that were not asked for, then the controller's own, up to the bound.
            first = useful.index(True)
            assert first >= 4
            assert useful[first : first + 10] == [True] * 6 + [False] * 4

    scenario(play)


def test_connections_of_one_host_are_greeted_at_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "ARRIVALS_AT_ONCE", 2.0)
    monkeypatch.setattr(budgets, "ARRIVALS", 0.01)

    async def play() -> None:
        async with serving(Recorder()) as server:
            host, number = server.addresses[0]
            opened = []
            for local in ["127.0.0.1"] * 8 + ["127.0.0.2"]:
                opened.append(await asyncio.open_connection(host, number, local_addr=(local, 0)))
            reads = [asyncio.create_task(reader.read(8)) for reader, _ in opened]
            # Another host is greeted at once, and of the first no more than it may.
            assert (await reads[-1])[1] == ofp.OFPT_HELLO
            assert [read.done() for read in reads] == [True] * 2 + [False] * 6 + [True]
            for (_, writer), read in zip(opened, reads, strict=True):
                read.cancel()
                writer.close()

    scenario(play)


def test_a_connection_beyond_its_hosts_rate_waits_and_not_for_ever() -> None:
    arrivals = budgets.Arrivals()
    one, other = Peer.at("192.0.2.1"), Peer.at("192.0.2.2")
    waits = [arrivals.wait(one, 0.0) for _ in range(20_000)]
    assert waits[:1024] == [0.0] * 1024
    assert waits[1024] == 1 / budgets.ARRIVALS
    assert max(waits) == budgets.LONGEST_WAIT
    assert arrivals.wait(other, 0.0) == 0.0
    for number in range(10_000):
        arrivals.wait(Peer.at(f"10.0.{number >> 8}.{number & 255}"), 0.0)
    assert len(arrivals._of) <= 4096


def test_connections_from_ever_other_addresses_of_one_network_wait_as_well() -> None:
    arrivals = budgets.Arrivals()
    flood = [Peer.at(f"2001:db8:0:1::{number:x}") for number in range(1, 20_001)]
    waits = [arrivals.wait(peer, 0.0) for peer in flood]
    most = budgets.ARRIVALS_OF_NETWORK * int(budgets.ARRIVALS_AT_ONCE)
    assert waits[:most] == [0.0] * most
    assert max(waits) == budgets.LONGEST_WAIT
    assert arrivals.wait(Peer.at("2001:db8:0:2::1"), 0.0) == 0.0
    # One of its addresses alone leaves the others of its network theirs.
    arrivals = budgets.Arrivals()
    for _ in range(2 * int(budgets.ARRIVALS_AT_ONCE)):
        arrivals.wait(flood[0], 0.0)
    assert arrivals.wait(flood[0], 0.0) > 0.0
    assert arrivals.wait(flood[1], 0.0) == 0.0
    arrivals.paid(flood[1], 0.0)
    assert arrivals.wait(flood[1], 0.0) == 0.0


def test_switches_with_jobs_may_all_come_from_one_address_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "ARRIVALS_AT_ONCE", 2.0)
    monkeypatch.setattr(budgets, "ARRIVALS", 0.01)

    async def play() -> None:
        recorder = Recorder(awaited=set(range(1, 9)))
        async with serving(recorder) as server:
            for number in range(1, 9):
                await connected(server, recorder, FakeSwitch(number))
            # Coming again, or with a datapath that nobody has heard of, each costs its host one of what it may.
            for number in (1, 10):
                await connected(server, recorder, FakeSwitch(number))
            reader, writer = await asyncio.open_connection(*server.addresses[0])
            read = asyncio.create_task(reader.read(8))
            await connected(server, recorder, fake := FakeSwitch(11), own="127.0.0.2")
            assert not read.done()
            read.cancel()
            writer.close()
            fake.disconnect()

    scenario(play)


def test_many_flows_that_should_not_be_there_are_removed_a_part_at_a_time() -> None:
    async def play() -> None:
        flows = [flow(1, eth_type=0x800, ipv4_dst=number) for number in range(7000)]
        wanted = {each.key for each in flows[::100]}
        recorder = Recorder(expected=100, wanted=wanted)
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            for each in flows:
                fake.put(each)
            others = Flow(FlowKey(0, 0, ()), FlowData(cookie=0))
            fake.put(others)
            await connected(server, recorder, fake)
            # The last dump is whole: the rest goes by the difference to it.
            last = recorder.connected[0][1]
            assert all(len(dump.program.flows) <= 100 + MORE_FLOWS for dump in (*recorder.left, last))
            assert len(recorder.left) >= 2
            assert last.program.flows.keys() >= wanted
            assert set(fake.tables.entries) == {*last.program.flows, others.key}

    scenario(play)


def test_a_switch_that_holds_more_than_expected_by_right_is_taken_in() -> None:
    async def play() -> None:
        flows = [flow(1, eth_type=0x800, ipv4_dst=number) for number in range(3 * MORE_FLOWS)]
        recorder = Recorder(expected=0, wanted={each.key for each in flows})
        async with serving(recorder) as server:
            fake = FakeSwitch(1)
            for each in flows:
                fake.put(each)
            await connected(server, recorder, fake)
            assert len(recorder.connected[0][1].program.flows) == len(flows)

    scenario(play)


def test_a_reply_that_ends_gives_its_room_back() -> None:
    async def play(_recorder: Recorder, _fake: FakeSwitch, link: SwitchLink) -> None:
        assert (await link.apply(add(*(flow(number) for number in range(1, 2000))))).complete
        for _ in range(3):
            assert len((await link.dump()).program.flows) == 1999
        assert link.requests._room._held == {}
        assert link.requests._room._total == 0

    on_a_switch(play)
