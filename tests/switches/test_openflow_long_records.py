"""Records and messages of a switch that are as long as they can be: they cost what they are long, and are not kept."""

from __future__ import annotations

import struct
import tracemalloc

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import Flow, FlowData, FlowKey, Output, SetQueue, match
from lark_controller.switches.openflow import replies
from lark_controller.switches.openflow.actions import LONGEST, decode_actions, decode_instructions, encode_instructions
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.oxm import MOST_FIELDS, WireError
from lark_controller.switches.openflow.requests import RECORD_BYTES
from tests.fixtures.openflow import Recorder, on_a_switch
from tests.fixtures.work import assert_linear

OURS = cookie(Category.SWITCH)


def record(number: int, instructions: bytes, fields: bytes = b"") -> bytes:
    """A flow of a dump."""
    length = 4 + len(fields)
    of_match = b"\x00\x01" + length.to_bytes(2) + fields + bytes(-length % 8)
    head = struct.pack("!HBxIIHHHH4xQQQ", 48 + len(of_match) + len(instructions), 0, 0, 0, number, 0, 0, 0, OURS, 0, 0)
    return head + of_match + instructions


def queues(number: int, count: int) -> bytes:
    """Instructions with so many actions, others for each number."""
    return encode_instructions(FlowData(0, tuple(SetQueue(number << 16 | each) for each in range(count))))


def test_long_lists_of_actions_and_of_instructions_cost_what_they_are_long() -> None:
    assert_linear(decode_actions, lambda size: bytes.fromhex("0015000800000001") * size, 1000)
    assert_linear(decode_instructions, lambda size: bytes.fromhex("0009000800000000") * size, 1000)


def test_instructions_that_are_longer_than_any_of_larks_are_one_unknown_action() -> None:
    short, long = queues(1, LONGEST // 8 - 2), queues(1, 8000)
    assert len(decode_instructions(short).actions) == LONGEST // 8 - 2
    found = decode_instructions(long)
    assert len(found.actions) == 1
    assert found == decode_instructions(long)
    assert found != decode_instructions(queues(2, 8000))


@pytest.mark.parametrize("jobs", [100, 130, 1000, 2000])
def test_announcements_to_all_jobs_of_a_large_worker_are_read_as_they_were_sent(jobs: int) -> None:
    """Were they not, the switch would never hold what it should, and be sent it again and again."""
    data = FlowData(OURS, tuple(Output(port) for port in range(1, jobs + 1)), goto=3)
    assert decode_instructions(encode_instructions(data)) == (data.actions, 3, None, None)


@pytest.mark.parametrize("count", [4000, 8000])
def test_what_a_switch_sends_is_not_kept_once_it_was_read(count: int) -> None:
    messages = [switchside.multipart_reply(1, ofp.OFPMP_FLOW, record(n, queues(n, count))) for n in range(40)]
    replies.flow_stats(messages[0])
    tracemalloc.start()
    try:
        for message in messages:
            assert len(replies.flow_stats(message)) == 1
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_match_of_more_fields_than_there_are_is_garbage() -> None:
    fields = b"".join((0x80000000 | number << 9 | 1).to_bytes(4) + b"\x01" for number in range(MOST_FIELDS + 1))
    kept = replies.flow_stats(switchside.multipart_reply(1, ofp.OFPMP_FLOW, record(1, b"", fields[:-5])))
    assert len(kept[0].key.match) == MOST_FIELDS
    with pytest.raises(WireError, match=f"more than {MOST_FIELDS} fields"):
        replies.flow_stats(switchside.multipart_reply(1, ofp.OFPMP_FLOW, record(1, b"", fields)))


def test_a_packet_in_with_a_long_match_is_garbage() -> None:
    body = struct.pack("!IHBBQHH", 0, 0, 0, 0, 0, 1, 60_000) + bytes(60_100)
    with pytest.raises(WireError, match="a match of 60000 bytes"):
        replies.packet_in(struct.pack("!BBHI", 4, ofp.OFPT_PACKET_IN, 8 + len(body), 0) + body)


def test_long_records_count_as_several_of_a_dump() -> None:
    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        recorder.expected = 0
        for number in range(200):
            actions = tuple(SetQueue(number << 16 | each) for each in range(2 * RECORD_BYTES // 8))
            fake.put(Flow(FlowKey(0, number, match()), FlowData(OURS, actions)))
        dump = await link.dump(5.0, more=100)
        assert not dump.whole
        assert 20 <= len(dump.program.flows) <= 55

    on_a_switch(play)
