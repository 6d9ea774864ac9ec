"""Corners of the simulated switch: NORMAL, reserved ports, tags, tracking, deletions."""

from __future__ import annotations

import tracemalloc

import pytest

from lark_controller.flows.model import (
    CT_NEW,
    CT_TRK,
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    PORT_ALL,
    PORT_CONTROLLER,
    PORT_FLOOD,
    PORT_NORMAL,
    PORT_TABLE,
    VLAN_PRESENT,
    FlowKey,
    Meter,
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
from tests.flows.test_simulate import FRAME, A, B, flow, ports, tables

NORMAL = tables(flow(0, 1, (), Output(PORT_NORMAL)))
MAC_A, MAC_B = 0x02000000000A, 0x02000000000B
IN_FIELDS = {"in_port": 1, "eth_type": ETH_IPV4, "eth_src": MAC_A, "eth_dst": MAC_B}


@pytest.mark.parametrize(
    ("destination", "forwarded"),
    [
        ("01:80:c2:00:00:00", False),
        ("01:80:c2:00:00:0f", False),
        ("01:80:c2:00:00:10", True),
        ("01:80:c1:ff:ff:ff", True),
        ("01:80:c2:00:01:00", True),
    ],
)
def test_sixteen_addresses_are_for_bridges_alone(destination: str, forwarded: bool) -> None:
    """IEEE 802.1Q, table 8-1. Such a frame teaches nothing either."""
    view = ports()
    result = run(NORMAL, 1, frames.ethernet(A, destination, 0x88CC, bytes(46)), view)
    assert result.dropped != forwarded
    assert result.flooded == forwarded
    assert view.fdb == ({(0, MAC_A): 1} if forwarded else {})


def test_normal_needs_a_port_that_is_there() -> None:
    view = PortView.of((2, 3))
    assert run(NORMAL, 1, FRAME, view).dropped
    assert view.fdb == {}


def test_a_station_on_the_port_of_the_frame_gets_no_copy() -> None:
    view = ports()
    view.fdb[0, MAC_B] = 1
    result = run(NORMAL, 1, FRAME, view)
    assert (result.ports, result.flooded) == ((), False)
    view.fdb[0, MAC_B] = 3
    result = run(NORMAL, 1, FRAME, view)
    assert (result.ports, result.flooded) == ((3,), False)
    # The port of a station may be gone: the frame is flooded as for one that is not known.
    view.fdb[0, MAC_B] = 9
    assert run(NORMAL, 1, FRAME, view).flooded


def test_a_group_address_is_flooded_and_never_a_station() -> None:
    view = ports()
    group = 0x01005E000001
    view.fdb[0, group] = 2
    result = run(NORMAL, 1, frames.ethernet(A, "01:00:5e:00:00:01", 0x0800, b""), view)
    assert (result.ports, result.flooded) == ((2, 3, 0xFFFFFFFE), True)
    run(NORMAL, 1, frames.ethernet("01:00:5e:00:00:02", A, 0x0800, b""), view)
    assert (0, group + 1) not in view.fdb


def test_a_tag_that_is_cut_off_is_dropped() -> None:
    cut = frames.udp(A, B, "10.0.0.1", "10.0.0.2", vlan=7)[:17]
    assert run(NORMAL, 1, cut, ports()).dropped
    assert run_fields(NORMAL, {**IN_FIELDS, "eth_type": 0x8100}, ports()).dropped
    tagged = {**IN_FIELDS, "eth_type": 0x8100, "vlan_vid": VLAN_PRESENT | 4}
    assert run_fields(NORMAL, tagged, ports()).flooded


def test_fields_teach_nothing_and_meet_what_was_learned() -> None:
    view = ports()
    assert run_fields(NORMAL, IN_FIELDS, view).flooded
    assert view.fdb == {}
    view.fdb[4, MAC_B] = 3
    assert run_fields(NORMAL, IN_FIELDS, view).flooded
    assert run_fields(NORMAL, {**IN_FIELDS, "vlan_vid": VLAN_PRESENT | 4}, view).ports == (3,)
    view.fdb[0, MAC_B] = 2
    assert run_fields(NORMAL, IN_FIELDS, view).ports == (2,)
    view.fdb[0, 0] = 3
    assert run_fields(NORMAL, {"in_port": 1}, view).ports == (3,)


def test_a_port_that_goes_takes_what_was_learned_there_alone() -> None:
    view = ports(2, 3)
    view.fdb.update({(0, 1): 2, (4, 1): 3, (0, 2): 3})
    view.remove(3)
    assert (view.ports, view.no_flood, view.fdb) == ({1, 2, 0xFFFFFFFE}, {2}, {(0, 1): 2})
    view.remove(7)
    assert view.fdb == {(0, 1): 2}


def test_flood_and_all_leave_the_port_out_that_the_packet_came_from() -> None:
    for port, sent in ((PORT_FLOOD, (3, 0xFFFFFFFE)), (PORT_ALL, (2, 3, 0xFFFFFFFE))):
        result = run(tables(flow(0, 1, (), SetQueue(5), Output(port))), 1, FRAME, ports(2))
        assert result.ports == sent
        assert result.queues == (5,) * len(sent)
        assert [frame for _, frame in result.outputs] == [FRAME] * len(sent)
        assert not result.flooded


@pytest.mark.parametrize(
    ("priority", "fields", "reason"),
    [(0, {}, REASON_NO_MATCH), (1, {}, REASON_ACTION), (0, {"in_port": 1}, REASON_ACTION)],
)
def test_a_miss_is_the_flow_of_priority_0_that_matches_all(priority: int, fields: dict[str, int], reason: int) -> None:
    """OpenFlow 1.3.5, section 5.4; the numbers of reasons are those of section 7.4.1."""
    assert (REASON_NO_MATCH, REASON_ACTION) == (0, 1)
    program = tables(flow(0, priority, match(**fields), Output(PORT_CONTROLLER, 77), cookie=5))
    assert run(program, 1, FRAME, ports()).to_controller == ((reason, 0, FRAME, 5, 77),)
    assert run_fields(program, IN_FIELDS, ports()).to_controller == ((reason, 0, b"", 5, 77),)


def test_what_is_sent_to_the_tables_again_is_as_it_was_then() -> None:
    program = tables(flow(0, 1, match(in_port=1, eth_type=ETH_IPV4, ip_dscp=9), Output(2)), flow(0, 0, (), Output(3)))
    actions = (SetField("ip_dscp", 9), Output(PORT_TABLE), SetField("ip_dscp", 8), Output(2))
    result = run_actions(program, 1, FRAME, actions, ports())
    assert [(port, packet.parse(frame)["ip_dscp"]) for port, frame in result.outputs] == [(2, 8), (2, 9)]


def test_a_dropped_packet_ends_at_its_last_flow() -> None:
    program = tables(flow(0, 4, (), goto=2), flow(2, 6, match(in_port=1)), flow(2, 1, (), Output(2)))
    result = run(program, 1, FRAME, ports())
    assert result.dropped_by == FlowKey(2, 6, match(in_port=1))
    assert result.flows == (FlowKey(0, 4, ()), FlowKey(2, 6, match(in_port=1)))
    assert run(program, 3, FRAME, ports()).dropped_by is None
    to_controller = tables(flow(0, 1, (), Output(PORT_CONTROLLER)))
    assert run(to_controller, 1, FRAME, ports()).dropped_by is None
    assert not run(to_controller, 1, FRAME, ports()).dropped


def test_metadata_is_written_bit_by_bit() -> None:
    program = tables(
        flow(0, 1, (), metadata=(0xFF0F, 0x0FF0), goto=1),
        flow(1, 1, (), metadata=(0x00A5, 0x00FF), goto=2),
        flow(2, 1, (), Output(2)),
    )
    assert run(program, 1, FRAME, ports()).headers[0]["metadata"] == 0x0FA5
    assert run_fields(program, {**IN_FIELDS, "metadata": 0xF000_0000}, ports()).headers[0]["metadata"] == 0xF000_0FA5


def test_a_field_that_a_frame_lacks_is_not_set() -> None:
    program = tables(
        flow(0, 1, (), SetField("tcp_dst", 9), SetField("ipv6_src", 9), SetField("vlan_vid", 9), Output(2))
    )
    result = run(program, 1, FRAME, ports())
    assert result.outputs == ((2, FRAME),)
    assert result.headers[0] == {**packet.parse(FRAME), "in_port": 1}


def test_the_number_of_a_tag_is_twelve_bits() -> None:
    tagged = frames.udp(A, B, "10.0.0.1", "10.0.0.2", vlan=7)
    program = tables(flow(0, 1, (), SetField("vlan_vid", 0xFFFF), Output(2)))
    result = run(program, 1, tagged, ports())
    assert result.headers[0]["vlan_vid"] == VLAN_PRESENT | 0xFFF
    assert packet.parse(result.outputs[0][1])["vlan_vid"] == VLAN_PRESENT | 0xFFF
    of_fields = run_fields(program, {**IN_FIELDS, "vlan_vid": VLAN_PRESENT | 7}, ports())
    assert of_fields.headers[0]["vlan_vid"] == VLAN_PRESENT | 0xFFF


def test_two_tags() -> None:
    twice = tables(flow(0, 1, (), PushVlan(), SetField("vlan_vid", 9), PushVlan(), SetField("vlan_vid", 8), Output(2)))
    ((_, sent),) = run(twice, 1, FRAME, ports()).outputs
    assert sent == FRAME[:12] + b"\x81\0\0\x08\x81\0\0\x09" + FRAME[12:]
    once = run(tables(flow(0, 1, (), PopVlan(), Output(2))), 1, sent, ports())
    assert once.outputs == ((2, FRAME[:12] + b"\x81\0\0\x09" + FRAME[12:]),)
    assert once.headers[0]["vlan_vid"] == 0


def test_marks_and_states_are_matched_after_tracking() -> None:
    program = tables(
        flow(0, 2, match(in_port=1), Track(7, 1, commit=True, mark=6)),
        flow(0, 1, (), Track(7, 1)),
        flow(1, 2, match(ct_state=(CT_TRK, CT_TRK), ct_mark=6), Output(2)),
        flow(1, 1, match(ct_state=(CT_TRK | CT_NEW, CT_TRK | CT_NEW)), Output(3)),
    )
    ct = ConnectionTable()
    assert run(program, 2, FRAME, ports(), ct).ports == (3,)
    first = run(program, 1, FRAME, ports(), ct)
    assert (first.ports, first.headers[0]["ct_mark"]) == ((2,), 6)
    # Without a table of connections each packet is a new one, with no mark.
    assert run(program, 1, FRAME, ports()).ports == (3,)
    assert run_fields(program, IN_FIELDS, ports()).ports == (3,)


def test_actions_behind_tracking_see_the_packet_as_it_was() -> None:
    program = tables(
        flow(0, 1, (), SetQueue(3), Track(7, 1), SetField("ip_dscp", 4), Output(2)),
        flow(1, 1, match(eth_type=ETH_IPV4, ip_dscp=0), Output(3)),
    )
    result = run(program, 1, FRAME, ports(), ConnectionTable())
    assert (result.ports, result.queues) == ((2, 3), (3, 3))
    assert ["ct_state" in header for header in result.headers] == [False, True]


# -- the tables -------------------------------------------------------------------------------------------------------


def test_deletion_chooses_by_table_match_cookie_and_port() -> None:
    """OpenFlow 1.3.5, section 6.4: all that is named must be met, and what is not named chooses nothing."""
    ip = match(eth_type=ETH_IPV4)
    narrow = match(eth_type=ETH_IPV4, ipv4_src=5)
    there = [
        flow(0, 1, ip, Output(2), cookie=0x11),
        flow(1, 1, narrow, SetQueue(1), Output(3), cookie=0x12),
        flow(1, 2, (), Output(2), Output(4), cookie=0x21),
    ]

    def gone(*arguments: object, **named: int) -> set[tuple[int, int]]:
        chosen = tables(*there)
        found = chosen.remove_matching(*arguments, **named)  # type: ignore[arg-type]  # a table of arguments
        assert len(chosen) == len(there) - len(found)
        assert not {entry.key for entry in found} & set(chosen.entries)
        return {(entry.key.table, entry.key.priority) for entry in found}

    first, second, third = (0, 1), (1, 1), (1, 2)
    assert gone(None, ()) == {first, second, third}
    assert gone(1, ()) == {second, third}
    assert gone(None, ip) == {first, second}
    assert gone(1, ip) == {second}
    assert gone(None, (), cookie=0x10, cookie_mask=0xF0) == {first, second}
    assert gone(None, (), cookie=0x02, cookie_mask=0x0F) == {second}
    assert gone(None, (), out_port=2) == {first, third}
    assert gone(None, (), out_port=4) == {third}
    assert gone(0, (), out_port=4) == set()
    assert gone(None, ip, cookie=0x12, cookie_mask=0xFF, out_port=3) == {second}
    assert gone(None, (), cookie_mask=0x0F) == set()
    assert gone(None, (), cookie_mask=0x02) == {first, third}
    assert gone(None, (), cookie=0x12) == {first, second, third}


def test_a_narrower_match_is_covered_term_by_term() -> None:
    wide = match(eth_type=ETH_IPV4, ipv4_src=(0x0A400000, 0xFFFF0000))
    for address, mask, is_covered in (
        (0x0A400005, 0xFFFFFFFF, True),
        (0x0A400000, 0xFFFF0000, True),
        (0x0A400000, 0xFFFF8000, True),
        (0x0A400000, 0xFFFE0000, False),
        (0x0A410000, 0xFFFF0000, False),
    ):
        assert covers(wide, match(eth_type=ETH_IPV4, ipv4_src=(address, mask))) == is_covered
    assert not covers(wide, match(eth_type=ETH_IPV4))


def test_a_meter_and_a_program_come_back() -> None:
    program = Program.of([flow(0, 1, (), Output(2), meter=4)], [Meter(4, 1000, 100)])
    held = Tables(program)
    assert held.program() == program
    assert [entry.key for entry in held] == [FlowKey(0, 1, ())]
    assert (len(held), len(Tables())) == (1, 0)


def test_packets_are_counted_for_each_flow_that_they_met() -> None:
    held = tables(flow(0, 1, (), goto=1), flow(1, 1, (), Output(2)), flow(1, 2, match(in_port=3)))
    for length in (60, 90):
        held.count([FlowKey(0, 1, ()), None, FlowKey(1, 1, ()), FlowKey(9, 9, ())], length)
    counts = {entry.key[:2]: (entry.packets, entry.bytes) for entry in held}
    assert counts == {(0, 1): (2, 150), (1, 1): (2, 150), (1, 2): (0, 0)}


def test_a_missing_prerequisite_is_named_with_all_values_that_it_may_have() -> None:
    assert missing_prerequisite(match(ip_dscp=1)) == "a match on ip_dscp needs eth_type=0x800 or 0x86dd"
    assert missing_prerequisite(match(eth_type=ETH_ARP, ip_proto=1)).endswith("needs eth_type=0x800 or 0x86dd")
    target = match(eth_type=ETH_IPV6, ip_proto=58, ipv6_nd_target=1)
    assert missing_prerequisite(target) == "a match on ipv6_nd_target needs icmpv6_type=135 or 136"


def test_icmp_needs_the_ip_of_its_version() -> None:
    for name, protocol, wrong, right in (
        ("icmpv4_type", 1, ETH_IPV6, 0x800),
        ("icmpv6_type", 58, ETH_IPV4, 0x86DD),
        ("icmpv6_code", 58, ETH_IPV4, 0x86DD),
    ):
        lacks = missing_prerequisite(match(**{name: 1}, eth_type=wrong, ip_proto=protocol))
        assert lacks == f"a match on {name} needs eth_type={right:#x}"


def test_goto_leads_to_a_later_table() -> None:
    for table, goto in ((0, 0), (3, 3), (3, 2)):
        with pytest.raises(ValueError, match=rf"goto table {goto} from table {table} does not lead forward"):
            tables(flow(table, 1, (), goto=goto))
    assert len(tables(flow(3, 1, (), goto=4))) == 1


def test_a_group_whose_highest_flow_went_hides_no_other() -> None:
    """A look-up ends at the first group of flows that has nothing better, so groups are in order of their best."""
    held = tables(
        flow(0, 8, match(in_port=2)),
        flow(0, 2, match(in_port=1)),
        flow(0, 7, match(eth_type=ETH_ARP)),
        flow(0, 1, match(eth_type=ETH_IPV4)),
        flow(0, 6, match(metadata=5)),
    )
    seen = {"in_port": 1, "eth_type": ETH_IPV4, "metadata": 5}
    for gone, best in ((7, 6), (8, 6), (6, 2), (2, 1), (1, None)):
        key = next(entry.key for entry in held if entry.key.priority == gone)
        held.remove(key)
        found = held.lookup(0, seen)
        assert (None if found is None else found.key.priority) == best


def test_flows_that_multiply_a_packet_end() -> None:
    """A broken switch may report flows of thousands of actions, each of which floods or begins anew."""
    floods = tables(flow(0, 1, (), *[Output(PORT_FLOOD)] * 4000))
    result = run_fields(floods, IN_FIELDS, PortView.of(range(1, 1000)))
    assert len(result.outputs) == len(result.headers) == 16_384
    again = tables(flow(0, 1, (), *[each for _ in range(2000) for each in (Track(1, 0), Output(PORT_TABLE))]))
    tracemalloc.start()
    try:
        assert len(run_fields(again, IN_FIELDS, ports()).trace) == 64
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
