"""Matches: widths of fields, values under masks, and one form for equal matches."""

from __future__ import annotations

import pytest

from lark_controller.flows.model import (
    FIELD_BITS,
    Changes,
    Flow,
    FlowData,
    FlowKey,
    Meter,
    Output,
    Program,
    Term,
    match,
)

# OpenFlow 1.3.5, table 11; ct_state and ct_mark: ovs-fields(7).
WIDTHS = {
    6: "ip_dscp",
    8: "ip_proto icmpv4_type icmpv6_type icmpv6_code",
    13: "vlan_vid",
    16: "eth_type tcp_src tcp_dst udp_src udp_dst arp_op",
    20: "ipv6_flabel",
    32: "in_port ipv4_src ipv4_dst arp_spa arp_tpa ct_state ct_mark",
    48: "eth_dst eth_src arp_sha arp_tha ipv6_nd_sll ipv6_nd_tll",
    64: "metadata",
    128: "ipv6_src ipv6_dst ipv6_nd_target",
}


def test_each_field_has_its_width() -> None:
    assert {name: bits for bits, names in WIDTHS.items() for name in names.split()} == FIELD_BITS
    for name, bits in FIELD_BITS.items():
        full = (1 << bits) - 1
        assert match(**{name: -1}) == match(**{name: (-1, -1)}) == (Term(name, full, full),)


def test_a_match_has_one_form() -> None:
    assert match(udp_dst=5, eth_type=0x800, ip_proto=17) == match(ip_proto=17, udp_dst=5, eth_type=0x800)
    # Bits outside of the mask do not count, and a mask of zeros matches everything.
    assert match(metadata=(0xFF, 0x0F)) == (Term("metadata", 0x0F, 0x0F),)
    assert match(metadata=(0xFF, 0), in_port=3) == (Term("in_port", 3, 0xFFFFFFFF),)
    assert match() == ()
    with pytest.raises(KeyError, match="nowhere"):
        match(nowhere=1)


def test_changes_are_true_where_there_are_any() -> None:
    key = FlowKey(0, 1, ())
    flow = Flow(key, FlowData(0))
    assert (bool(Changes()), len(Changes())) == (False, 0)
    for changes in (
        Changes(meters_set=(Meter(1, 2, 3),)),
        Changes(flows_set=(flow,)),
        Changes(flows_gone=(key,)),
        Changes(meters_gone=(1,)),
    ):
        assert (bool(changes), len(changes)) == (True, 1)
    assert len(Changes((Meter(1, 2, 3),), frozenset({1}), (flow, flow), (key,), (1, 2))) == 6


def test_defaults_of_flows_and_of_what_they_do() -> None:
    assert FlowData(7) == FlowData(7, (), None, None, None, 0, 0, 0)
    assert Output(5).max_len == 0xFFFF
    assert Program() == Program({}, {})
    flow, later = Flow(FlowKey(0, 1, ()), FlowData(1)), Flow(FlowKey(0, 1, ()), FlowData(2))
    assert Program.of([flow, later], [Meter(4, 5, 6)]) == Program({flow.key: later.data}, {4: Meter(4, 5, 6)})
