"""Counters that are decoded by columns are those that are decoded one by one."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_common.errors import SwitchError
from lark_controller.accounting.numeric import np
from lark_controller.switches.openflow import columns, replies, wire
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.oxm import WireError
from tests.fixtures.openflow import Recorder, on_a_switch
from tests.switches.test_kept import until

ALL_ONES = (1 << 64) - 1
COUNTERS = st.sampled_from([0, 1, 1 << 40, (1 << 63) + 1, ALL_ONES - 1, ALL_ONES])
# The lengths of records as they come: many of one length after each other, and all of different ones.
LENGTHS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([56, 64, 72, 88, 200]), st.integers(1, 150)),
        st.tuples(st.sampled_from([56, 64, 72, 80]), st.just(1)),
        st.tuples(st.sampled_from([0, 8, 48, 55, 57, 60]), st.just(1)),
    ),
    max_size=20,
)


def flows(lengths: list[int]) -> bytes:
    """A reply of records of these lengths, each with counters of its own; its header has nothing."""
    records = (
        struct.pack("!H22xQQQ", length, number << 40 | 7, number, ALL_ONES - number) + bytes(max(0, length - 48))
        for number, length in enumerate(lengths)
    )
    return bytes(16) + b"".join(records)


def found(decode: Callable[[bytes], Any], message: bytes) -> list[tuple[int, ...]] | str:
    """The records that a decoder reads in a message, or its words where it refuses that."""
    try:
        return [tuple(map(int, record)) for record in decode(message)]
    except WireError as refused:
        return str(refused)


@given(LENGTHS, st.integers(0, 60))
def test_flows_are_those_that_are_decoded_one_by_one(lengths: list[tuple[int, int]], cut: int) -> None:
    whole = flows([length for length, count in lengths for _ in range(count)])
    for message in (whole, whole[: max(16, len(whole) - cut)], whole + bytes(cut)):
        assert found(columns.flow_columns, message) == found(replies.flow_counts, message)


@given(st.binary(max_size=300))
def test_rubbish_is_refused_as_it_is_one_by_one(rubbish: bytes) -> None:
    message = b"\x04\x13" + (16 + len(rubbish)).to_bytes(2) + bytes(12) + rubbish
    assert found(columns.flow_columns, message) == found(replies.flow_counts, message)
    if isinstance(found(replies.port_records, message), str):
        with pytest.raises(WireError):
            columns.port_columns(message)


@given(st.lists(st.tuples(*[COUNTERS] * 6, st.sampled_from([0, 9, (1 << 32) - 1]), st.sampled_from([5, 1 << 31]))))
def test_ports_are_those_that_are_decoded_one_by_one(ports: list[tuple[int, ...]]) -> None:
    records = b"".join(struct.pack("!I4x6Q48xII", number, *each) for number, each in enumerate(ports, 7))
    message = switchside.multipart_reply(1, ofp.OFPMP_PORT_STATS, records)
    one_by_one, part = replies.port_stats(message), columns.port_columns(message)
    assert columns.port_numbers(part).tolist() == [each.number for each in one_by_one]
    assert [columns.port_age(part, place) for place in range(len(part))] == [each.age for each in one_by_one]
    assert columns.port_counters(part, np.arange(len(part))).T.tolist() == [
        [each.rx_packets, each.rx_bytes, each.tx_packets, each.tx_bytes, each.rx_dropped, each.tx_dropped]
        for each in one_by_one
    ]


@pytest.mark.parametrize("count", [3, 5000])
def test_parts_of_an_answer_are_kept_apart_and_their_records_are_bounded(count: int) -> None:
    """As those that are decoded one by one: more flows than any switch has are garbage."""

    async def play(recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        recorder.expected = 100
        asked: list[int] = []
        fake._multipart = lambda xid, message: asked.append(xid)  # type: ignore[method-assign]
        fake._answers = fake._all_answers()
        answer = link.flow_columns(0, 0)
        await until(lambda: asked)
        for more in (True, False):
            records = flows([56] * (count if more else 1))[16:]
            for first in range(0, len(records), 56 * 1000):
                last = not more and first + 56 * 1000 >= len(records)
                part = struct.pack("!HH4x", ofp.OFPMP_FLOW, 0 if last else ofp.OFPMPF_REPLY_MORE)
                fake.send_raw(wire.header(ofp.OFPT_MULTIPART_REPLY, asked[0], part + records[first : first + 56000]))
        await until(answer.done)
        if count == 3:
            assert [len(part) for part in answer.result()] == [3, 1]
        else:
            with pytest.raises(SwitchError, match="answered by more than"):
                answer.result()

    on_a_switch(play)


@pytest.mark.parametrize("what", ["flows", "ports"])
def test_parts_without_records_are_not_kept(what: str) -> None:
    """A switch may send any number of them, which no bound on records counts."""

    async def play(_recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        asked: list[int] = []
        fake._multipart = lambda xid, message: asked.append(xid)  # type: ignore[method-assign]
        fake._answers = fake._all_answers()
        answer = link.flow_columns(0, 0) if what == "flows" else link.port_columns()
        kind = ofp.OFPMP_FLOW if what == "flows" else ofp.OFPMP_PORT_STATS
        await until(lambda: asked)
        record = flows([56])[16:] if what == "flows" else bytes(112)
        for records in (*[b""] * 50, record, *[b""] * 50):
            part = struct.pack("!HH4x", kind, ofp.OFPMPF_REPLY_MORE)
            fake.send_raw(wire.header(ofp.OFPT_MULTIPART_REPLY, asked[0], part + records))
        fake.send_raw(wire.header(ofp.OFPT_MULTIPART_REPLY, asked[0], struct.pack("!HH4x", kind, 0)))
        await until(answer.done)
        assert [len(part) for part in answer.result()] == [1]

    on_a_switch(play)


def test_a_switch_without_ports_and_counting_flows_has_no_parts() -> None:
    async def play(_recorder: Recorder, _fake: FakeSwitch, link: SwitchLink) -> None:
        flows, ports = await asyncio.gather(link.flow_columns(0, (1 << 64) - 1), link.port_columns())
        assert (flows, ports) == ([], [])

    on_a_switch(play)
