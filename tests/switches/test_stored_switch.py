"""The played switch of large measurements takes and tells what the decoding one does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fake_switch import switchside
from fake_switch.stored import StoredSwitch
from fake_switch.switch import FakeSwitch
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import Flow, FlowData, FlowKey, Output, match
from lark_controller.switches.openflow import replies, wire


class Sent(list[bytes]):
    """Messages that a switch without a connection sends."""


def stored() -> tuple[StoredSwitch, Sent]:
    sent = Sent()
    switch = StoredSwitch(1, {})
    switch.send_raw = sent.append  # type: ignore[assignment,method-assign]
    return switch, sent


def flow(number: int, port: int = 1) -> Flow:
    fields = match(in_port=number % 5 + 1, eth_type=0x0800, ipv4_dst=number)
    return Flow(FlowKey(number % 3, 10, fields), FlowData(cookie(Category.JOB, number=number), (Output(port),), goto=7))


STEPS = st.lists(st.tuples(st.sampled_from(["add", "delete"]), st.integers(1, 12), st.integers(1, 3)), max_size=40)


@given(STEPS)
def test_it_holds_what_the_decoding_switch_holds(steps: list[tuple[str, int, int]]) -> None:
    one, sent = stored()
    other = FakeSwitch(2)
    for what, number, port in steps:
        each = flow(number, port)
        message = wire.flow_add(7, each) if what == "add" else wire.flow_delete(7, each.key)
        for byte in (message[:9], message[9:]):
            one.data_received(byte)
        other.data_received(message)
    assert {each.key: each.data for each in one.decoded()} == dict(other.program.flows)
    assert one.flow_mods == len(steps)
    one.data_received(wire.flow_stats_request(9))
    told = [record for message in sent for record in replies.flow_stats(message)]
    assert {record.key: record.data for record in told} == dict(other.program.flows)


def test_a_dump_of_many_flows_comes_in_parts() -> None:
    switch, sent = stored()
    for number in range(3000):
        switch.data_received(wire.flow_add(1, flow(number)))
    switch.data_received(wire.flow_stats_request(9))
    assert len(sent) > 1
    assert sum(len(replies.flow_stats(message)) for message in sent) == 3000


def test_a_dump_by_cookie_tells_those_alone() -> None:
    switch, sent = stored()
    for number in range(10):
        switch.data_received(wire.flow_add(1, flow(number)))
    wanted = flow(3).data.cookie
    switch.data_received(wire.flow_stats_request(9, wanted, (1 << 64) - 1))
    assert [record.data.cookie for message in sent for record in replies.flow_stats(message)] == [wanted]


GOOD = wire.flow_add(1, flow(1))
BROKEN = (
    GOOD[:48] + b"\x00\x02" + GOOD[50:],
    GOOD[:50] + b"\x7f\xff" + GOOD[52:],
    GOOD[:-8] + b"\x00\x01\x00\x03" + GOOD[-4:],
)


@pytest.mark.parametrize("message", BROKEN)
def test_what_is_no_flow_mod_is_refused(message: bytes) -> None:
    switch, sent = stored()
    switch.data_received(message)
    assert not switch.flows
    assert [each[1] for each in sent] == [switchside.error(0, 1, 1, b"")[1]]


def test_a_digest_does_not_depend_on_the_order() -> None:
    one, other = stored()[0], stored()[0]
    for number in range(20):
        one.data_received(wire.flow_add(1, flow(number)))
        other.data_received(wire.flow_add(1, flow(19 - number)))
    assert one.digest() == other.digest()
    other.data_received(wire.flow_delete(1, flow(3).key))
    assert one.digest() != other.digest()
