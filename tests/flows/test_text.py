"""Flows as words, checked by eye and by the real ovs-ofctl."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Network

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lab.openvswitch import OpenVSwitch
from lark_controller.flows import build, tables, text
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
    FIELD_BITS,
    FLAG_SEND_FLOW_REM,
    PORT_ALL,
    PORT_ANY,
    PORT_CONTROLLER,
    PORT_FLOOD,
    PORT_IN_PORT,
    PORT_LOCAL,
    PORT_MAX,
    PORT_NORMAL,
    PORT_TABLE,
    VLAN_PRESENT,
    FlowData,
    FlowKey,
    Match,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    SetQueue,
    Track,
    match,
)
from lark_controller.flows.placement import mac_number
from lark_controller.policies.model import MAX_GROUPS, MAX_WAN_RULES

MATCHES: list[tuple[Match, str]] = [
    ((), ""),
    (
        match(eth_type=ETH_IPV4, in_port=3, ipv4_src=0x0A400005, eth_dst=0x020000000005),
        "ip,in_port=3,dl_dst=02:00:00:00:00:05,nw_src=10.64.0.5",
    ),
    (match(eth_type=ETH_IPV4, ipv4_dst=(0x0A400000, 0xFFFF0000)), "ip,nw_dst=10.64.0.0/16"),
    (match(eth_type=ETH_IPV4, ipv4_dst=(0x0A000005, 0xFF0000FF)), "ip,nw_dst=10.0.0.5/255.0.0.255"),
    (match(eth_type=ETH_IPV4, ip_proto=17, udp_src=67, ip_dscp=46), "udp,ip_dscp=46,tp_src=67"),
    (match(eth_type=ETH_IPV4, ip_proto=6, tcp_dst=80), "tcp,tp_dst=80"),
    (match(eth_type=ETH_ARP, arp_op=1, arp_spa=0x0A400005), "arp,arp_spa=10.64.0.5,arp_op=1"),
    (match(eth_type=ETH_IPV6, ipv6_src=(0x20010DB8 << 96, 0xFFFFFFFF << 96)), "ipv6,ipv6_src=2001:db8::/32"),
    (
        match(eth_type=ETH_IPV6, ip_proto=58, icmpv6_type=135, ipv6_nd_target=1, ipv6_nd_sll=0),
        "icmp6,icmp_type=135,nd_target=::1,nd_sll=00:00:00:00:00:00",
    ),
    (match(vlan_vid=VLAN_PRESENT | 7), "dl_vlan=7"),
    (match(vlan_vid=0), "vlan_tci=0x0000/0x1fff"),
    (match(vlan_vid=(VLAN_PRESENT, VLAN_PRESENT)), "vlan_tci=0x1000/0x1000"),
    (match(eth_type=0x88CC), "dl_type=0x88cc"),
    (match(metadata=(5 << 36, 0x7F << 36)), "metadata=0x5000000000/0x7f000000000"),
    (match(ct_state=(CT_TRK | CT_NEW, CT_TRK | CT_NEW | CT_EST), eth_type=ETH_IPV4), "ct_state=+new-est+trk,ip"),
    (match(eth_dst=(1 << 40, 1 << 40)), "dl_dst=01:00:00:00:00:00/01:00:00:00:00:00"),
    (match(in_port=PORT_LOCAL), "in_port=LOCAL"),
    (match(eth_type=ETH_IPV4, ip_proto=1, icmpv4_type=8), "icmp,icmp_type=8"),
    (match(eth_type=ETH_IPV4, ip_proto=47), "ip,nw_proto=47"),
    (match(eth_type=ETH_IPV6, ip_proto=6, tcp_src=22, tcp_dst=23), "tcp6,tp_src=22,tp_dst=23"),
    (match(eth_type=ETH_IPV6, ip_proto=17, udp_src=546, udp_dst=547), "udp6,tp_src=546,tp_dst=547"),
    (match(eth_type=ETH_IPV6, ip_proto=58, icmpv6_type=136, icmpv6_code=0, ipv6_nd_tll=5),
     "icmp6,icmp_type=136,icmp_code=0,nd_tll=00:00:00:00:00:05"),
    (match(eth_type=ETH_IPV6, ipv6_dst=1, ipv6_flabel=5), "ipv6,ipv6_dst=::1,ipv6_label=0x5"),
    (match(eth_type=ETH_ARP, arp_tpa=0x0A400005, arp_sha=1, arp_tha=2),
     "arp,arp_tpa=10.64.0.5,arp_sha=00:00:00:00:00:01,arp_tha=00:00:00:00:00:02"),
    (match(eth_src=1, eth_type=0x0806), "arp,dl_src=00:00:00:00:00:01"),
    (match(eth_type=ETH_IPV4, ip_proto=17, udp_dst=(1024, 0xFC00)), "udp,tp_dst=0x400/0xfc00"),
    (match(ct_state=(CT_TRK, CT_TRK | CT_RPL | CT_REL | CT_INV)), "ct_state=-rel-rpl-inv+trk"),
]  # fmt: skip

ACTIONS: list[tuple[FlowData, str]] = [
    (FlowData(0), "drop"),
    (FlowData(0, goto=3), "goto_table:3"),
    (FlowData(0, (SetQueue(2), Output(4))), "set_queue:2,output:4"),
    (FlowData(0, (Output(PORT_NORMAL), Output(PORT_FLOOD), Output(PORT_ALL))), "NORMAL,FLOOD,ALL"),
    (FlowData(0, (Output(PORT_IN_PORT), Output(PORT_LOCAL))), "IN_PORT,LOCAL"),
    (FlowData(0, (Output(PORT_CONTROLLER, 128),)), "CONTROLLER:128"),
    (
        FlowData(0, (SetField("ip_dscp", 12), SetField("eth_dst", 5)), goto=2),
        "set_field:12->ip_dscp,set_field:00:00:00:00:00:05->eth_dst,goto_table:2",
    ),
    (
        FlowData(0, (PushVlan(), SetField("vlan_vid", VLAN_PRESENT | 9), Output(1))),
        "push_vlan:0x8100,set_field:4105->vlan_vid,output:1",
    ),
    (FlowData(0, metadata=(7, 0xFF), goto=1), "write_metadata:0x7/0xff,goto_table:1"),
    (FlowData(0, metadata=(7, (1 << 64) - 1), goto=1), "write_metadata:0x7,goto_table:1"),
    (FlowData(0, meter=4, goto=1), "meter:4,goto_table:1"),
    (FlowData(0, (Track(9, 5),)), "ct(table=5,zone=9)"),
    (FlowData(0, (Track(9, None, commit=True),), goto=7), "ct(commit,zone=9),goto_table:7"),
    (
        FlowData(0, (SetField("ipv4_src", 1), SetField("ipv4_dst", 2))),
        "set_field:0.0.0.1->ip_src,set_field:0.0.0.2->ip_dst",
    ),
]


# OpenFlow 1.3.5, table 12; ovs-fields(7) for ct_state.
WIDTHS = {
    "in_port": 32, "metadata": 64, "eth_dst": 48, "eth_src": 48, "eth_type": 16, "vlan_vid": 13, "ip_dscp": 6,
    "ip_proto": 8, "ipv4_src": 32, "ipv4_dst": 32, "tcp_src": 16, "tcp_dst": 16, "udp_src": 16, "udp_dst": 16,
    "arp_op": 16, "arp_spa": 32, "arp_tpa": 32, "arp_sha": 48, "arp_tha": 48, "ipv6_src": 128, "ipv6_dst": 128,
    "ipv6_flabel": 20, "icmpv4_type": 8, "icmpv6_type": 8, "icmpv6_code": 8, "ipv6_nd_target": 128, "ipv6_nd_sll": 48,
    "ipv6_nd_tll": 48, "ct_state": 32,
}  # fmt: skip


def test_fields_are_as_wide_as_the_standard_says() -> None:
    for name, bits in WIDTHS.items():
        (term,) = match(**{name: 0})
        assert term.mask == (1 << bits) - 1, name


def test_numbers_are_those_of_the_standards() -> None:
    assert (ETH_IPV4, ETH_ARP, ETH_IPV6, VLAN_PRESENT) == (0x0800, 0x0806, 0x86DD, 0x1000)
    reserved = (PORT_MAX, PORT_IN_PORT, PORT_TABLE, PORT_NORMAL, PORT_FLOOD, PORT_ALL, PORT_CONTROLLER, PORT_LOCAL)
    assert reserved == (0xFFFFFF00, *range(0xFFFFFFF8, 0xFFFFFFFF))
    assert PORT_ANY == 0xFFFFFFFF
    assert (CT_NEW, CT_EST, CT_REL, CT_RPL, CT_INV, CT_TRK) == (1, 2, 4, 8, 16, 32)
    assert FLAG_SEND_FLOW_REM == 1
    assert (build.TCP, build.UDP, build.ICMP, build.ICMPV6) == (6, 17, 1, 58)
    assert (build.RS, build.RA, build.NS, build.NA, build.REDIRECT, build.MLD2) == (133, 134, 135, 136, 137, 143)
    for prefix, (value, mask) in (("fe80::/10", build.LINK_LOCAL), ("ff00::/8", build.MULTICAST6)):
        network = IPv6Network(prefix)
        assert (value, mask) == (int(network.network_address), int(network.netmask))


def test_what_is_known_of_a_packet_has_bits_of_its_own() -> None:
    """All of it stands in the 64 bits of metadata (OpenFlow 1.3.5, section 5.1)."""
    bits = {one for one in vars(tables).values() if isinstance(one, tables.Bits)}
    assert sum(one.mask for one in bits) == (1 << 64) - 1
    assert sum(one.width for one in bits) == 64
    assert (tables.GROUP.width, tables.FROM_WAN.width) == (MAX_GROUPS.bit_length(), MAX_WAN_RULES.bit_length())
    for name in ("TAG", "WAN", "TRACKED", "MUTE", "JOB", "SLICED"):
        assert getattr(tables, f"FROM_{name}").width == getattr(tables, f"TO_{name}").width


@pytest.mark.parametrize(("given_match", "words"), MATCHES)
def test_match_text(given_match: Match, words: str) -> None:
    assert text.match_text(given_match) == words


@pytest.mark.parametrize(("data", "words"), ACTIONS)
def test_actions_text(data: FlowData, words: str) -> None:
    assert text.actions_text(data) == words


def test_bits_of_a_connections_state_without_a_name_are_numbers() -> None:
    assert text.match_text(match(ct_state=(0x100, 0x101))) == "ct_state=0x100/0x101"


def test_a_packet_out_may_enter_the_tables() -> None:
    assert text.action_text(Output(PORT_TABLE)) == text.port_text(PORT_TABLE) == "TABLE"
    assert (text.port_text(PORT_ANY), text.port_text(7)) == ("ANY", "7")


def test_a_flow_label_has_another_name_as_in_a_match() -> None:
    assert text.action_text(SetField("ipv6_flabel", 3)) == "set_field:0x3->ipv6_label"


def test_flow_key_and_meter_text() -> None:
    key = FlowKey(3, 100, match(eth_type=ETH_IPV4, ipv4_src=0x0A400005))
    data = FlowData(0x1A4B030000000007, idle_timeout=60, hard_timeout=5, flags=FLAG_SEND_FLOW_REM)
    assert text.key_text(key) == "table=3,priority=100,ip,nw_src=10.64.0.5"
    assert text.key_text(FlowKey(0, 0, ())) == "table=0,priority=0"
    assert text.flow_text(key, data) == (
        "cookie=0x1a4b030000000007,table=3,idle_timeout=60,hard_timeout=5,send_flow_rem,priority=100,"
        "ip,nw_src=10.64.0.5,actions=drop"
    )


def test_a_mac_as_text() -> None:
    assert text.mac_text(0x02_00_00_00_00_05) == "02:00:00:00:00:05"


@given(st.integers(0, (1 << 48) - 1))
def test_macs_come_back(value: int) -> None:
    assert mac_number(text.mac_text(value)) == value


def integers(name: str) -> st.SearchStrategy[int]:
    return st.integers(0, (1 << FIELD_BITS[name]) - 1)


def prefix_masks(name: str) -> st.SearchStrategy[int]:
    bits = FIELD_BITS[name]
    return st.integers(1, bits).map(lambda length: ((1 << length) - 1) << (bits - length))


FAMILIES: list[dict[str, int]] = [
    {},
    {"eth_type": ETH_ARP},
    {"eth_type": ETH_IPV4},
    {"eth_type": ETH_IPV6},
    {"eth_type": ETH_IPV4, "ip_proto": 17},
    {"eth_type": ETH_IPV6, "ip_proto": 6},
    {"eth_type": ETH_IPV6, "ip_proto": 58, "icmpv6_type": 135},
]
MASKED = (
    "metadata",
    "eth_src",
    "eth_dst",
    "ipv4_src",
    "ipv4_dst",
    "arp_spa",
    "ipv6_src",
    "ipv6_dst",
    "udp_dst",
    "tcp_src",
)
EXACT = ("in_port", "ip_dscp", "arp_op", "arp_sha", "ipv6_flabel", "icmpv6_code", "ipv6_nd_target", "ipv6_nd_sll")

CT_STATES: list[tuple[int, int]] = [(0, CT_TRK), (CT_TRK | CT_NEW, CT_TRK | CT_NEW | CT_EST)]
VLANS: list[int | tuple[int, int]] = [0, VLAN_PRESENT | 5, (VLAN_PRESENT, VLAN_PRESENT), (5, 0xFFF)]


def allowed(name: str, family: dict[str, int]) -> bool:
    kind, protocol = family.get("eth_type"), family.get("ip_proto")
    if name.startswith("arp_"):
        return kind == ETH_ARP
    if name.startswith("ipv4_"):
        return kind == ETH_IPV4
    if name.startswith("ipv6_nd") or name == "icmpv6_code":
        return "icmpv6_type" in family
    if name.startswith("ipv6_"):
        return kind == ETH_IPV6
    if name == "ip_dscp":
        return kind in (ETH_IPV4, ETH_IPV6)
    if name.startswith(("udp_", "tcp_")):
        return protocol == {"udp": 17, "tcp": 6}[name[:3]]
    return True


@st.composite
def keys(draw: st.DrawFn) -> FlowKey:
    family = draw(st.sampled_from(FAMILIES))
    fields: dict[str, int | tuple[int, int]] = {**family}
    names = [name for name in (*MASKED, *EXACT, "vlan_vid", "ct_state") if allowed(name, family)]
    for name in draw(st.lists(st.sampled_from(names), max_size=4, unique=True)):
        if name == "in_port":
            fields[name] = draw(st.sampled_from([1, 7, 65000, PORT_LOCAL]))
        elif name == "vlan_vid":
            fields[name] = draw(st.sampled_from(VLANS))
        elif name == "ct_state":
            fields[name] = draw(st.sampled_from(CT_STATES))
        elif name == "icmpv6_code":
            # Neighbor Discovery has code 0; with another, Open vSwitch leaves the fields of its body out.
            fields[name] = 0
        elif name == "arp_op":
            fields[name] = draw(st.integers(0, 255))
        elif name in MASKED and draw(st.booleans()):
            # ovs-ofctl takes an IPv6 mask that begins with a decimal digit for a prefix length.
            digit = 0xF << 124 if name.startswith("ipv6_") else 0
            fields[name] = (draw(integers(name)), draw(st.one_of(integers(name), prefix_masks(name))) | digit)
        else:
            fields[name] = draw(integers(name))
    return FlowKey(draw(st.integers(0, 250)), draw(st.integers(0, 65535)), match(**fields))


@pytest.fixture
def bridge(ovs: OpenVSwitch) -> Iterator[str]:
    """A bridge for one test. One that stays would keep the datapath, which a test's own Open vSwitch needs."""
    ovs.add_bridge("textbr", 0x7E)
    yield "textbr"
    ovs.vsctl("del-br", "textbr")


@pytest.mark.ovs
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(keys(), min_size=15, max_size=25))
def test_ovs_ofctl_takes_our_words_and_finds_the_flow_by_them(
    ovs: OpenVSwitch, bridge: str, flows: list[FlowKey]
) -> None:
    ovs.ofctl(bridge, "del-flows")
    distinct = dict.fromkeys(flows)
    file = ovs.directory / "flows.txt"
    file.write_text("\n".join(text.flow_text(key, FlowData(number)) for number, key in enumerate(distinct)))
    ovs.ofctl(bridge, "add-flows", str(file))
    dumped = ovs.ofctl(bridge, "dump-flows", "--no-stats").splitlines()
    assert len([line for line in dumped if "actions=drop" in line]) == len(distinct)
    # The whole of what ovs-ofctl makes of both: nothing to change between the switch and our words.
    assert ovs.ofctl(bridge, "diff-flows", str(file)) == ""


@pytest.mark.ovs
def test_ovs_ofctl_prints_the_words_that_we_write(ovs: OpenVSwitch) -> None:
    bridge = "wordsbr"
    ovs.add_bridge(bridge, 0x7F)
    for number, (given_match, words) in enumerate(MATCHES):
        ovs.ofctl(bridge, "add-flow", text.flow_text(FlowKey(1, 100 + number, given_match), FlowData(1)))
        (line,) = [
            line
            for line in ovs.ofctl(bridge, "dump-flows", "--no-stats").splitlines()
            if f"priority={100 + number}" in line
        ]
        printed = line.split(f"priority={100 + number}")[1].split(" actions=")[0].lstrip(",").strip('"')
        ours = {word.lower() for word in words.replace("nw_tos", "ip_dscp").split(",") if word}
        theirs = set(printed.replace('"', "").lower().split(",")) - {""}
        assert normal(theirs) == normal(ours)
    ovs.ofctl(bridge, "add-meter", "meter=4,kbps,burst,bands=type=drop,rate=1000,burst_size=100")
    for number, (data, words) in enumerate(ACTIONS):
        key = FlowKey(0, 1000 + number, match(eth_type=ETH_IPV4, in_port=9))
        ovs.ofctl(bridge, "add-flow", text.flow_text(key, data))
        (line,) = [
            line
            for line in ovs.ofctl(bridge, "dump-flows", "--no-stats").splitlines()
            if f"priority={1000 + number}," in line
        ]
        assert line.split("actions=")[1] == words
    ovs.vsctl("del-br", bridge)


def normal(words: set[str]) -> set[str]:
    """ovs-ofctl has two words for some fields: nw_tos is ip_dscp shifted, an exact VLAN is dl_vlan, a mask of 32 bits
    may be dotted."""
    changed = set()
    for word in words:
        name, _, value = word.partition("=")
        if name == "nw_tos":
            changed.add(f"ip_dscp={int(value) >> 2}")
        elif name == "ipv6_label":
            changed.add(f"{name}={int(value, 16):#x}")
        else:
            changed.add(word)
    return changed


def test_pop_vlan_text() -> None:
    assert text.action_text(PopVlan()) == "pop_vlan"
