"""The simulated tables: OpenFlow semantics, rewriting of real bytes, NORMAL, ct."""

from __future__ import annotations

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lark_controller.flows.model import (
    CT_EST,
    CT_INV,
    CT_NEW,
    CT_REL,
    CT_RPL,
    CT_TRK,
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    PORT_ALL,
    PORT_CONTROLLER,
    PORT_FLOOD,
    PORT_IN_PORT,
    PORT_LOCAL,
    PORT_NORMAL,
    PORT_TABLE,
    VLAN_PRESENT,
    Action,
    Flow,
    FlowData,
    FlowKey,
    Match,
    Output,
    PopVlan,
    Program,
    PushVlan,
    SetField,
    SetQueue,
    Track,
    match,
)
from lark_controller.flows.simulation import packet
from lark_controller.flows.simulation.classifier import covers, missing_prerequisite
from lark_controller.flows.simulation.simulate import (
    REASON_ACTION,
    REASON_NO_MATCH,
    ConnectionTable,
    PortView,
    Tables,
    run,
    run_actions,
    run_fields,
)
from tests.fixtures import frames
from tests.flows.test_packet import SAMPLES

A, B = "02:00:00:00:00:0a", "02:00:00:00:00:0b"
FRAME = frames.udp(A, B, "10.64.0.5", "10.64.0.6")
FRAME6 = frames.udp(A, B, "2001:db8::5", "2001:db8::6")


def flow(table: int, priority: int, fields: Match = (), *actions: Action, goto: int | None = None, cookie: int = 0,
         metadata: tuple[int, int] | None = None, meter: int | None = None) -> Flow:  # fmt: skip
    return Flow(FlowKey(table, priority, fields), FlowData(cookie, actions, goto, metadata, meter))


def tables(*flows: Flow) -> Tables:
    return Tables(Program.of(flows))


def ports(*no_flood: int) -> PortView:
    return PortView.of((1, 2, 3, PORT_LOCAL), no_flood)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=120), st.builds(lambda f, n, m: f[:n] + m + f[n + len(m) :],
       st.sampled_from(SAMPLES), st.integers(0, 90), st.binary(max_size=4))), st.integers(0, 90))  # fmt: skip
def test_no_frame_makes_anything_raise(frame: bytes, cut: int) -> None:
    everything = tables(
        flow(0, 1, (), SetField("ip_dscp", 9), SetField("ipv4_src", 1), SetField("ipv6_dst", 1), SetField("udp_dst", 5),
             SetField("arp_spa", 7), PushVlan(), SetField("vlan_vid", VLAN_PRESENT | 4), PopVlan(), PopVlan(),
             Track(1, 1, commit=True), Output(PORT_NORMAL)),
        flow(1, 1, (), Output(2)),
    )  # fmt: skip
    for one in (frame, frame[:cut]):
        fields = packet.parse(one)
        fast = packet.parse_fast_addresses(one)
        assert all(value >= 0 for value in fields.values())
        if "eth_src" in fields and fast.ethertype == fields["eth_type"]:
            assert (fast.eth_src, fast.eth_dst) == (fields["eth_src"], fields["eth_dst"])
            assert fast.vlan == fields["vlan_vid"] & 0xFFF
            if "ipv4_src" in fields:
                assert (fast.source, fast.destination) == (fields["ipv4_src"], fields["ipv4_dst"])
        run(everything, 1, one, ports(), ConnectionTable())


def test_vlan_tags() -> None:
    out = run(tables(flow(0, 1, (), PushVlan(), SetField("vlan_vid", VLAN_PRESENT | 9), Output(2))), 1, FRAME, ports())
    assert out.outputs == ((2, frames.udp(A, B, "10.64.0.5", "10.64.0.6", vlan=9)),)
    back = run(tables(flow(0, 1, (), PopVlan(), Output(2))), 1, out.outputs[0][1], ports())
    assert back.outputs == ((2, FRAME),)
    untouched = run(tables(flow(0, 1, (), SetField("vlan_vid", VLAN_PRESENT | 9), Output(2))), 1, FRAME, ports())
    assert untouched.outputs == ((2, FRAME),)


def test_tags_of_fields_without_a_frame() -> None:
    """The number that is there already stays: a second tag is an ethertype, not a number."""
    program = tables(
        flow(0, 1, (), PushVlan(), goto=1),
        flow(1, 1, match(vlan_vid=VLAN_PRESENT), SetField("vlan_vid", VLAN_PRESENT | 9), goto=2),
        flow(1, 1, match(vlan_vid=VLAN_PRESENT | 7), goto=2),
        flow(2, 1, match(vlan_vid=VLAN_PRESENT | 9), Output(2)),
        flow(2, 1, match(vlan_vid=VLAN_PRESENT | 7), PopVlan(), goto=3),
        flow(3, 1, match(vlan_vid=0), SetField("vlan_vid", VLAN_PRESENT | 5), Output(3)),
    )
    fields = {"in_port": 1, "eth_type": ETH_IPV4}
    assert run_fields(program, fields, ports()).ports == (2,)
    tagged = run_fields(program, {**fields, "vlan_vid": VLAN_PRESENT | 7}, ports())
    assert (tagged.ports, tagged.headers[0]["vlan_vid"]) == ((3,), 0)


# -- tables -----------------------------------------------------------------------------------------------------------


def test_priority_metadata_goto_meters_and_queue() -> None:
    program = tables(
        flow(0, 5, match(in_port=1), goto=1, metadata=(0x55, 0xFF), meter=3),
        flow(0, 1, ()),
        flow(1, 10, match(metadata=(0x05, 0x0F)), SetQueue(4), Output(2), Output(3)),
        flow(1, 20, match(metadata=(0x06, 0x0F))),
    )
    result = run(program, 1, FRAME, ports())
    assert result.ports == (2, 3)
    assert result.queues == (4, 4)
    assert result.meters == (3,)
    assert [(hit.table, hit.key.priority) for hit in result.trace if hit.key is not None] == [(0, 5), (1, 10)]
    assert result.headers[0]["metadata"] == 0x55
    assert not result.dropped
    other = run(program, 2, FRAME, ports())
    assert other.dropped
    assert other.dropped_by == FlowKey(0, 1, ())


def test_a_table_miss_drops() -> None:
    result = run(tables(flow(0, 1, match(in_port=9))), 1, FRAME, ports())
    assert result.dropped
    assert result.trace == ((0, None, None),)
    assert result.dropped_by is None
    assert result.flows == ()


def test_actions_apply_in_order_so_an_output_sends_what_was_there_then() -> None:
    result = run(tables(flow(0, 1, (), Output(2), SetField("ip_dscp", 46), Output(3))), 1, FRAME, ports())
    assert [packet.parse(frame)["ip_dscp"] for _, frame in result.outputs] == [0, 46]
    goto = tables(
        flow(0, 1, (), SetField("ip_dscp", 46), goto=1), flow(1, 1, match(eth_type=ETH_IPV4, ip_dscp=46), Output(2))
    )
    assert run(goto, 1, FRAME, ports()).ports == (2,)


def test_reserved_ports() -> None:
    def sent(*actions: Action, view: PortView | None = None) -> tuple[int, ...]:
        return run(tables(flow(0, 1, (), *actions)), 1, FRAME, view or ports()).ports

    assert sent(Output(1)) == ()
    assert sent(Output(PORT_IN_PORT)) == (1,)
    assert sent(Output(99)) == ()
    assert sent(Output(PORT_ALL), view=ports(2)) == (2, 3, PORT_LOCAL)
    assert sent(Output(PORT_FLOOD), view=ports(2)) == (3, PORT_LOCAL)
    assert sent(Output(PORT_LOCAL)) == (PORT_LOCAL,)


def test_to_the_controller() -> None:
    miss = run(tables(flow(0, 0, (), Output(PORT_CONTROLLER, 64), cookie=9)), 1, FRAME, ports())
    assert miss.to_controller == ((REASON_NO_MATCH, 0, FRAME, 9, 64),)
    assert not miss.dropped
    chosen = run(tables(flow(0, 0, (), goto=1), flow(1, 3, (), Output(PORT_CONTROLLER))), 1, FRAME, ports())
    assert [(told.reason, told.table) for told in chosen.to_controller] == [(REASON_ACTION, 1)]


def test_packet_out() -> None:
    program = tables(flow(0, 1, match(in_port=1), Output(2)), flow(0, 1, match(in_port=PORT_CONTROLLER), Output(3)))
    assert run_actions(program, 1, FRAME, (Output(PORT_TABLE),), ports()).ports == (2,)
    assert run_actions(program, PORT_CONTROLLER, FRAME, (Output(PORT_TABLE),), ports()).ports == (3,)
    assert run_actions(program, PORT_CONTROLLER, FRAME, (Output(1), Output(3)), ports()).ports == (1, 3)
    back = run_actions(program, 1, FRAME, (Output(PORT_CONTROLLER, 99),), ports())
    assert back.to_controller == ((REASON_ACTION, 0, FRAME, (1 << 64) - 1, 99),)


def test_normal_learns_by_vlan_and_floods_only_where_it_may() -> None:
    program, view = tables(flow(0, 1, (), Output(PORT_NORMAL))), ports(3)
    first = run(program, 1, frames.udp(A, B, "10.0.0.1", "10.0.0.2"), view)
    assert (first.ports, first.flooded) == ((2, PORT_LOCAL), True)
    assert run(program, 3, frames.udp(B, A, "10.0.0.2", "10.0.0.1"), view).ports == (1,)
    assert run(program, 1, frames.udp(A, B, "10.0.0.1", "10.0.0.2"), view).ports == (3,)
    assert run(program, 1, frames.udp(A, B, "10.0.0.1", "10.0.0.2", vlan=4), view).flooded
    assert run(program, 3, frames.udp(A, B, "10.0.0.1", "10.0.0.2"), view).ports == ()
    assert run(program, 3, frames.udp(B, A, "10.0.0.2", "10.0.0.1", vlan=5), view).flooded
    assert run(program, 3, frames.udp(B, A, "10.0.0.2", "10.0.0.1", vlan=4), view).ports == (1,)
    known = dict(view.fdb)
    run(program, 2, frames.udp("02:00:00:00:00:0c", B, "10.0.0.1", "10.0.0.2"), view, learn=False)
    run(program, 2, frames.udp("03:00:00:00:00:0c", B, "10.0.0.1", "10.0.0.2"), view)
    assert view.fdb == known
    assert run(program, 1, frames.ethernet(A, "01:80:c2:00:00:00", 0x88CC, b""), view).dropped
    view.remove(3)
    assert 3 not in view.fdb.values()


def test_fields_without_bytes() -> None:
    program = tables(
        flow(0, 1, match(eth_type=ETH_IPV4, ipv4_dst=(0x0A400000, 0xFFFF0000)), SetField("ip_dscp", 7), goto=1),
        flow(1, 2, match(ct_state=(0, CT_TRK)), Track(1, 1)),
        flow(1, 5, match(ct_state=(CT_TRK | CT_NEW, CT_TRK | CT_NEW)), Output(2)),
        flow(1, 5, match(ct_state=(CT_TRK | CT_EST, CT_TRK | CT_EST)), Output(3)),
    )
    fields = {"in_port": 1, "eth_type": ETH_IPV4, "ipv4_src": 1, "ipv4_dst": 0x0A400005}
    result = run_fields(program, fields, ports())
    assert (result.ports, result.headers[0]["ip_dscp"]) == ((2,), 7)
    assert run_fields(program, fields, ports(), ct_new=False).ports == (3,)
    assert fields == {"in_port": 1, "eth_type": ETH_IPV4, "ipv4_src": 1, "ipv4_dst": 0x0A400005}


def test_incremental_changes_counters_and_cookies() -> None:
    program = tables(flow(0, 5, (), Output(2), cookie=0x11), flow(0, 1, (), Output(3), cookie=0x21))
    program.count(run(program, 1, FRAME, ports()).flows, len(FRAME))
    entry = program.entries[FlowKey(0, 5, ())]
    assert (entry.packets, entry.bytes) == (1, len(FRAME))
    assert program.set(flow(0, 5, (), Output(1), cookie=0x12)) is entry
    assert program.entries[FlowKey(0, 5, ())].packets == 0
    assert [gone.data.cookie for gone in program.remove_matching(None, (), cookie=0x10, cookie_mask=0xF0)] == [0x12]
    assert run(program, 1, FRAME, ports()).ports == (3,)
    assert program.remove(FlowKey(0, 9, ())) is None
    assert program.program() == Program.of([flow(0, 1, (), Output(3), cookie=0x21)])
    assert len(program.remove_matching(None, (), out_port=2)) == 0
    assert len(program.remove_matching(0, (), out_port=3)) == 1
    assert len(program) == 0


def test_what_a_switch_refuses() -> None:
    with pytest.raises(ValueError, match=r"a match on ipv4_src needs eth_type=0x800"):
        tables(flow(0, 1, match(ipv4_src=5)))
    with pytest.raises(ValueError, match=r"does not lead forward"):
        tables(flow(3, 1, (), goto=3))
    assert missing_prerequisite(match(eth_type=ETH_ARP, arp_spa=1)) == ""
    assert "icmpv6_type=135" in missing_prerequisite(match(eth_type=ETH_IPV6, ip_proto=58, ipv6_nd_sll=1))


PORTS_OF = {"tcp": 6, "udp": 17}
WHOLE: dict[str, dict[str, int]] = {
    "ip_dscp": {"eth_type": ETH_IPV6}, "ip_proto": {"eth_type": ETH_IPV4},
    **{f"ipv4_{side}": {"eth_type": ETH_IPV4} for side in ("src", "dst")},
    **{f"ipv6_{part}": {"eth_type": ETH_IPV6} for part in ("src", "dst", "flabel")},
    **{f"arp_{part}": {"eth_type": ETH_ARP} for part in ("op", "spa", "tpa", "sha", "tha")},
    **{f"{name}_{side}": {"eth_type": ETH_IPV6, "ip_proto": number}
       for name, number in PORTS_OF.items() for side in ("src", "dst")},
    "icmpv4_type": {"eth_type": ETH_IPV4, "ip_proto": 1},
    "icmpv6_type": {"eth_type": ETH_IPV6, "ip_proto": 58},
    "icmpv6_code": {"eth_type": ETH_IPV6, "ip_proto": 58},
    "ipv6_nd_target": {"eth_type": ETH_IPV6, "ip_proto": 58, "icmpv6_type": 136},
    "ipv6_nd_sll": {"eth_type": ETH_IPV6, "ip_proto": 58, "icmpv6_type": 135},
    "ipv6_nd_tll": {"eth_type": ETH_IPV6, "ip_proto": 58, "icmpv6_type": 136},
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_a_match_needs_all_of_its_prerequisites(name: str) -> None:
    """OpenFlow 1.3.5, table 13."""
    whole = WHOLE[name]
    assert missing_prerequisite(match(**{name: 1}, **whole)) == ""
    for needed, value in whole.items():
        others = {key: whole[key] for key in whole if key != needed}
        changed: tuple[dict[str, int], ...] = (others, {**others, needed: value + 7})
        for fields in changed:
            assert f"needs {needed}=" in missing_prerequisite(match(**{name: 1}, **fields))
    masked: dict[str, int | tuple[int, int]] = {**whole, "eth_type": (whole["eth_type"], 0xFF00)}
    assert missing_prerequisite(match(**{name: 1}, **masked))


def test_covers() -> None:
    wide = match(eth_type=ETH_IPV4, ipv4_src=(0x0A000000, 0xFF000000))
    narrow = match(eth_type=ETH_IPV4, ipv4_src=0x0A000001, in_port=2)
    assert covers(wide, narrow)
    assert covers((), narrow)
    assert not covers(narrow, wide)


POOL = [
    match(), match(in_port=1), match(in_port=2), match(metadata=(1, 1)), match(eth_type=ETH_IPV4),
    match(eth_type=ETH_IPV4, ipv4_src=(0x0A400000, 0xFFFF0000)), match(eth_type=ETH_IPV4, ipv4_src=0x0A400005),
    match(eth_dst=(0, 1 << 40)), match(eth_type=ETH_IPV4, ip_proto=17, udp_dst=2000), match(vlan_vid=0),
]  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from(POOL), st.integers(0, 4)), max_size=40))
# The highest of three flows with the same terms goes; one with other terms is between the two that stay.
@example([(True, POOL[1], 4), (True, POOL[1], 3), (True, POOL[1], 1), (True, POOL[0], 2), (False, POOL[1], 4)])
def test_look_up_is_the_linear_search(history: list[tuple[bool, Match, int]]) -> None:
    one = Tables()
    for add, fields, priority in history:
        if add:
            one.set(flow(0, priority, fields))
        else:
            one.remove(FlowKey(0, priority, fields))
        for port in (1, 3):
            seen = packet.parse(FRAME) | {"in_port": port, "metadata": port}
            hits = [
                key for key in one.entries if all(seen.get(name, 0) & mask == value for name, value, mask in key.match)
            ]
            best = min(hits, key=lambda key: (-key.priority, key), default=None)
            found = one.lookup(0, seen)
            assert (None if found is None else found.key) == best
            if best is not None:
                same = {key for key in hits if key.priority == best.priority}
                assert {each.key for each in one.overlapping(0, best.priority, seen)} == same


# -- connections ------------------------------------------------------------------------------------------------------


def ct_states(ct: ConnectionTable, *sent: bytes) -> list[int]:
    return [ct.track(7, frame, commit=True) & ~CT_TRK for frame in sent]


@pytest.mark.parametrize(("one", "other"), [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")])
def test_connections_by_five_tuple(one: str, other: str) -> None:
    ct = ConnectionTable()
    syn, reply = frames.tcp(A, B, one, other, 5, 80), frames.tcp(B, A, other, one, 80, 5, frames.SYN | frames.ACK)
    assert ct_states(ct, reply, syn, syn, reply, syn) == [CT_INV, CT_NEW, CT_NEW, CT_EST | CT_RPL, CT_EST]
    assert ct.track(8, syn) == CT_TRK | CT_NEW
    assert ct.track(7, frames.tcp(A, B, one, other, 6, 80), commit=False) == CT_TRK | CT_NEW
    assert len(ct) == 1
    udp, back = frames.udp(A, B, one, other, 9, 53), frames.udp(B, A, other, one, 53, 9)
    assert ct_states(ct, udp, back, udp) == [CT_NEW, CT_EST | CT_RPL, CT_EST]
    copy = ct.copy()
    ct.flush(7)
    assert (len(ct), len(copy)) == (0, 2)


@pytest.mark.parametrize(("one", "other"), [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")])
def test_a_segment_without_its_flags_opens_as_one_without_any(one: str, other: str) -> None:
    for size in (8, 12, 13, 14):
        cut = frames.ethernet(A, B, *frames.ip(one, other, 6, bytes((0, 5, 0, 80)) + bytes(size - 4)))
        assert ct_states(ConnectionTable(), cut) == [CT_NEW]


@pytest.mark.parametrize(("one", "other"), [("10.0.0.1", "10.0.0.2"), ("2001:db8::1", "2001:db8::2")])
def test_headers_that_end_with_the_frame_count(one: str, other: str) -> None:
    """Four bytes are both ports, fourteen end with TCP's flags (RFC 9293, section 3.1); one less is neither."""
    ports_alone, flags = bytes((0, 5, 0, 80)), bytes((0, 5, 0, 80, *bytes(9), frames.SYN | frames.ACK))
    for protocol, header, state in (
        (17, ports_alone, CT_NEW),
        (17, ports_alone[:3], CT_INV),
        (6, ports_alone, CT_NEW),
        (6, flags, CT_INV),
        (6, flags[:13], CT_NEW),
    ):
        cut = frames.ethernet(A, B, *frames.ip(one, other, protocol, header))
        assert ct_states(ConnectionTable(), cut) == [state]


def test_connections_of_one_end_are_forgotten() -> None:
    ct = ConnectionTable()
    for mine, theirs in (("10.0.0.1", "10.0.0.2"), ("10.0.0.2", "10.0.0.1")):
        ct.track(7, frames.udp(A, B, mine, theirs, 1, 2), commit=True)
        ct.track(7, frames.tcp(A, B, mine, theirs, 1, 2), commit=True)
        ct.track(8, frames.udp(A, B, mine, theirs, 1, 2), commit=True)
    left = ct.copy()
    ct.forget(7, 17, 0x0A000001, source=True)
    assert {key for key in left.replied if key not in ct.replied} == {
        (zone, one) for zone, one in left.replied if (zone, one.protocol, one.src) == (7, 17, 0x0A000001)
    }
    assert len(ct) == len(left) - 1
    ct.forget(7, 17, 0x0A000001, source=False)
    assert len(ct) == len(left) - 2
    ct.forget(9, 17, 0x0A000001, source=False)
    assert len(ct) == len(left) - 2


@pytest.mark.parametrize(("one", "other", "ask", "answer", "error"),
                         [("10.0.0.1", "10.0.0.2", 8, 0, 3), ("2001:db8::1", "2001:db8::2", 128, 129, 1)])  # fmt: skip
def test_echo_and_errors(one: str, other: str, ask: int, answer: int, error: int) -> None:
    ct = ConnectionTable()
    ping, pong = frames.icmp(A, B, one, other, ask), frames.icmp(B, A, other, one, answer)
    about = b"\0\0\0\0" + ping[14:]
    broken = frames.icmp(B, A, other, one, error, rest=about)
    assert ct_states(ct, pong, broken, ping, pong, ping) == [CT_INV, CT_INV, CT_NEW, CT_EST | CT_RPL, CT_EST]
    assert ct_states(ct, broken) == [CT_REL | CT_RPL]
    elsewhere = frames.icmp(A, B, one, other, ask, rest=b"\0\x09\0\1")
    assert ct_states(ct, elsewhere) == [CT_NEW]


def test_what_is_no_connection_is_invalid() -> None:
    arp = frames.arp(A, A, "10.0.0.1", B, "10.0.0.2")
    assert ct_states(ConnectionTable(), arp, b"", FRAME[:30]) == [CT_INV] * 3


def test_track_recirculates_with_state_and_keeps_metadata() -> None:
    program = tables(
        flow(0, 1, (), Track(7, 1), metadata=(3, 3)),
        flow(0, 9, match(in_port=2), Track(7, 1)),
        flow(1, 1, match(in_port=1), Track(7, None, commit=True), Output(2)),
        flow(1, 5, match(in_port=2, ct_state=(CT_TRK | CT_EST, CT_TRK | CT_EST)), Output(1)),
    )
    ct = ConnectionTable()
    out, back = frames.udp(A, B, "10.0.0.1", "10.0.0.2", 1, 2), frames.udp(B, A, "10.0.0.2", "10.0.0.1", 2, 1)
    assert run(program, 2, back, ports(), ct).ports == ()
    assert run(program, 1, out, ports(), ct).ports == (2,)
    assert run(program, 2, back, ports(), ct).ports == (1,)
    assert run(program, 2, frames.udp(B, A, "10.0.0.2", "10.0.0.1", 2, 9), ports(), ct).dropped
    looping = tables(flow(0, 1, (), Track(7, 0)))
    endless = run(looping, 1, out, ports(), ct)
    assert endless.dropped
    assert len(endless.trace) == 64


def test_a_packet_that_opens_no_connection_marks_none() -> None:
    ct = ConnectionTable()
    syn = frames.tcp(A, B, "10.0.0.1", "10.0.0.2", 5, 80)
    reply = frames.tcp(B, A, "10.0.0.2", "10.0.0.1", 80, 5, frames.SYN | frames.ACK)
    assert ct.track(7, reply, commit=True, mark=3) & CT_INV
    assert (ct.mark(7, syn), ct.mark(7, reply)) == (0, 0)
    ct.track(7, syn, commit=True, mark=4)
    assert (ct.mark(7, syn), ct.mark(7, reply)) == (4, 4)


def test_fields_of_the_pipeline_outlive_a_tag() -> None:
    program = tables(
        flow(0, 1, (), Track(7, 1)),
        flow(1, 1, match(ct_state=(CT_TRK | CT_NEW, CT_TRK | CT_NEW)), PushVlan(), goto=2, metadata=(5, 7)),
        flow(2, 1, match(in_port=1, metadata=(5, 7), ct_state=(CT_TRK | CT_NEW, CT_TRK | CT_NEW)), PopVlan(), goto=3),
        flow(3, 1, match(in_port=1, metadata=5, ct_state=(CT_TRK, CT_TRK), vlan_vid=0), PushVlan(), goto=4),
        flow(4, 1, match(in_port=1, metadata=5, ct_state=(CT_TRK, CT_TRK), vlan_vid=VLAN_PRESENT), Output(2)),
    )
    assert run(program, 1, FRAME, ports(), ConnectionTable()).ports == (2,)


def test_two_thousand_flows_are_not_looked_at_one_by_one() -> None:
    source = random.Random(3)
    program = Tables()
    for number in range(2000):
        program.set(flow(0, 100, match(eth_type=ETH_IPV4, ipv4_dst=source.getrandbits(32), in_port=number % 50)))
    program.set(flow(0, 1, (), Output(2)))
    looked: list[str] = []

    class Counting(dict[str, int]):
        def get(self, name: str, default: int = 0) -> int:  # type: ignore[override]  # one signature of get is used
            looked.append(name)
            return super().get(name, default)

    seen = Counting(packet.parse(FRAME) | {"in_port": 1})
    assert program.lookup(0, seen) is not None
    assert len(looked) == 3
    # Terms that no flow has any more are not looked at.
    for bits in range(1, 30):
        program.set(flow(0, 200, match(metadata=(1, (1 << bits) - 1))))
        program.set(flow(0, 50, match(metadata=(1, (1 << bits) - 1))))
    for bits in range(1, 30):
        program.remove(FlowKey(0, 200, match(metadata=(1, (1 << bits) - 1))))
        program.remove(FlowKey(0, 50, match(metadata=(1, (1 << bits) - 1))))
    looked.clear()
    assert program.lookup(0, seen) is not None
    assert len(looked) == 3
