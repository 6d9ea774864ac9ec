"""The simulated tables against ``ofproto/trace`` of a real Open vSwitch: random programs, random packets."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

import pytest

from lab.openvswitch import OpenVSwitch
from lark_controller.flows.model import (
    CT_EST,
    CT_NEW,
    CT_TRK,
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    PORT_ALL,
    PORT_FLOOD,
    PORT_IN_PORT,
    PORT_LOCAL,
    PORT_NORMAL,
    VLAN_PRESENT,
    Action,
    Flow,
    FlowData,
    FlowKey,
    Match,
    Output,
    PopVlan,
    PushVlan,
    SetField,
    SetQueue,
    Term,
    Track,
    match,
)
from lark_controller.flows.placement import mac_number
from lark_controller.flows.simulation import packet
from lark_controller.flows.simulation.simulate import (
    PortView,
    Tables,
    run,
    run_fields,
)
from lark_controller.flows.text import flow_text
from tests.fixtures import frames

pytestmark = pytest.mark.ovs

BRIDGE = "simbr"
PORTS = {1: "simp1", 2: "simp2", 3: "simp3", PORT_LOCAL: BRIDGE}
A, B, M = "02:00:00:00:00:0a", "02:00:00:00:00:0b", "01:00:5e:00:00:01"
_FRAGMENT = frames.udp_payload("10.64.0.5", "10.64.0.6", 67, 68)
_EXTENDED = bytes((17, 0, 1, 4, 0, 0, 0, 0)) + frames.udp_payload("2001:db8::5", "2001:db8::6", 67, 68)
FRAMES = [
    frames.udp(A, B, "10.64.0.5", "10.64.0.6", 67, 68),
    frames.udp(A, B, "10.64.0.5", "10.64.0.6", 67, 68, vlan=7, dscp=12),
    frames.udp(B, M, "10.64.1.5", "224.0.0.1", 67, 2000),
    frames.tcp(A, B, "10.64.0.5", "192.0.2.1", 1000, 80),
    frames.udp(A, B, "2001:db8::5", "2001:db8::6", 67, 68, dscp=12),
    frames.tcp(B, A, "2001:db8::6", "2001:db8::5", 67, 68),
    frames.arp(A, A, "10.64.0.5", "00:00:00:00:00:00", "10.64.0.6"),
    frames.arp(A, B, "10.64.0.6", A, "10.64.0.5", 2),
    frames.nd(A, "33:33:ff:00:00:06", "fe80::a", "ff02::1:ff00:6", "2001:db8::6", sll=A),
    frames.nd(A, "33:33:ff:00:00:06", "::", "ff02::1:ff00:6", "2001:db8::6"),
    frames.nd(A, B, "fe80::a", "fe80::b", "fe80::a", tll=A),
    frames.icmp(A, B, "10.64.0.5", "10.64.0.6", 8),
    frames.icmp(A, B, "fe80::a", "fe80::b", 134, rest=bytes(12)),
    frames.ethernet(A, B, *frames.ip("10.64.0.5", "10.64.0.6", 17, _FRAGMENT, fragment=0x2000)),
    frames.ethernet(A, B, *frames.ip("10.64.0.5", "10.64.0.6", 17, _FRAGMENT, fragment=0x0004)),
    frames.ethernet(A, B, *frames.ip("2001:db8::5", "2001:db8::6", 44, bytes((17, 0, 0, 1, 0, 0, 0, 1)) + _FRAGMENT)),
    frames.ethernet(A, B, *frames.ip("2001:db8::5", "2001:db8::6", 44, bytes((17, 0, 0, 8, 0, 0, 0, 1)) + _FRAGMENT)),
    frames.ethernet(A, B, *frames.ip("2001:db8::5", "2001:db8::6", 0, _EXTENDED)),
    frames.ethernet(A, B, 0x88CC, bytes(40)),
    frames.ethernet(A, B, 0x0026, b"\x42\x42\x03" + bytes(35)),
    frames.ethernet(A, "01:80:c2:00:00:00", 0x88CC, bytes(40)),
    frames.ethernet(A, B, 0x8100, b"\x00\x09\x08\x00" + bytes(40), vlan=7),
    frames.udp(A, B, "10.64.0.5", "10.64.0.6")[:30],
    frames.ethernet(A, B, ETH_IPV4, bytes(40)),
]


@pytest.fixture(scope="module")
def bridge(ovs: OpenVSwitch) -> Iterator[OpenVSwitch]:
    ovs.add_bridge(BRIDGE, 0x51)
    for number, name in PORTS.items():
        if number != PORT_LOCAL:
            command = ("set", "interface", name, "type=internal", f"ofport_request={number}")
            ovs.vsctl("add-port", BRIDGE, name, "--", *command)
    yield ovs
    ovs.vsctl("del-br", BRIDGE)


FIELDS: list[tuple[Term, ...]] = [
    (),
    match(in_port=1),
    match(eth_src=mac_number(A)),
    match(eth_dst=(1 << 40, 1 << 40)),
    match(vlan_vid=0),
    match(vlan_vid=(VLAN_PRESENT, VLAN_PRESENT)),
    match(vlan_vid=VLAN_PRESENT | 7),
    match(metadata=(1, 3)),
    match(eth_type=ETH_IPV4),
    match(eth_type=ETH_IPV4, ipv4_src=(0x0A400000, 0xFFFFFF00)),
    match(eth_type=ETH_IPV4, ipv4_dst=(0, 0x80000000)),
    match(eth_type=ETH_IPV4, ip_dscp=12),
    match(eth_type=ETH_IPV4, ip_proto=17),
    match(eth_type=ETH_IPV4, ip_proto=17, udp_src=67),
    match(eth_type=ETH_IPV4, ip_proto=17, udp_src=0),
    match(eth_type=ETH_IPV4, ip_proto=6, tcp_dst=80),
    match(eth_type=ETH_ARP, arp_op=1),
    match(eth_type=ETH_ARP, arp_spa=0x0A400005, arp_sha=mac_number(A)),
    match(eth_type=ETH_IPV6),
    match(eth_type=ETH_IPV6, ipv6_src=(0x20010DB8 << 96, 0xFFFFFFFF << 96)),
    match(eth_type=ETH_IPV6, ip_proto=17, udp_dst=68),
    match(eth_type=ETH_IPV6, ip_proto=44),
    match(eth_type=ETH_IPV6, ip_proto=58, icmpv6_type=134),
    match(eth_type=ETH_IPV6, ip_proto=58, icmpv6_type=135, ipv6_nd_target=(0x20010DB8 << 96) + 6),
    match(eth_type=ETH_IPV6, ip_proto=58, icmpv6_type=135, ipv6_nd_sll=mac_number(A)),
    match(eth_type=ETH_IPV6, ip_proto=58, icmpv6_type=135, ipv6_nd_sll=0),
    match(eth_type=ETH_IPV6, ip_proto=58, icmpv6_type=136, ipv6_nd_tll=mac_number(A)),
    match(eth_type=0x05FF),
    match(eth_type=0x8100),
]
OUTPUTS = [1, 2, 3, 9, PORT_IN_PORT, PORT_ALL, PORT_FLOOD, PORT_NORMAL, PORT_LOCAL]


def random_actions(source: random.Random, fields: Match) -> tuple[Action, ...]:
    """Actions that Open vSwitch takes beside this match: prerequisites of what is set are matched on."""
    terms = {term.name: term.value for term in fields}
    kind, tagged = terms.get("eth_type"), bool(terms.get("vlan_vid"))
    actions: list[Action] = []
    for _ in range(source.choice([0, 1, 1, 2, 3])):
        choice = source.randrange(7)
        if choice == 0:
            actions.append(
                SetField(source.choice(["eth_src", "eth_dst"]), source.choice([mac_number(A), mac_number(M), 5]))
            )
        elif choice == 1 and kind in (ETH_IPV4, ETH_IPV6):
            actions.append(SetField("ip_dscp", source.choice([0, 12, 46])))
        elif choice == 2 and kind == ETH_IPV4:
            actions.append(SetField(source.choice(["ipv4_src", "ipv4_dst"]), 0xC0000201))
        elif choice == 3 and not any(isinstance(action, PushVlan) for action in actions) and not tagged:
            # A second tag hides what is behind it, which the terms of this test cannot show.
            if terms.get("vlan_vid") == 0:
                actions += [PushVlan(), SetField("vlan_vid", VLAN_PRESENT | 9)]
        elif choice == 4 and tagged:
            actions.append(PopVlan())
            tagged = False
        elif choice == 5 and tagged:
            actions.append(SetField("vlan_vid", VLAN_PRESENT | source.choice([7, 11])))
        elif choice == 6:
            actions.append(SetQueue(source.randrange(3)))
        if source.random() < 0.5:
            actions.append(Output(source.choice(OUTPUTS)))
    return tuple(actions)


def random_program(source: random.Random) -> list[Flow]:
    flows = []
    for priority in range(1, 25):
        table = source.choice([0, 0, 1, 1, 2])
        fields = source.choice(FIELDS)
        goto = source.choice([None, table + 1, 2]) if table < 2 else None
        metadata = (source.randrange(4), source.choice([1, 3])) if source.random() < 0.4 and goto else None
        if metadata is not None:
            metadata = (metadata[0] & metadata[1], metadata[1])
        actions = random_actions(source, fields)
        flows.append(Flow(FlowKey(table, priority, fields), FlowData(1, actions, goto, metadata)))
    flows.append(Flow(FlowKey(2, 0, ()), FlowData(2, (Output(source.choice(OUTPUTS)),))))
    return flows


Sent = tuple[int, int, int, int | None, int | None, int | None, int | None]


def seen(port: int, frame: bytes) -> Sent:
    fields = packet.parse(frame)
    vlan = fields["vlan_vid"]
    tagged = vlan & 0xFFF if vlan else None
    addresses = fields.get("ipv4_src"), fields.get("ipv4_dst")
    return port, fields["eth_src"], fields["eth_dst"], tagged, fields.get("ip_dscp"), *addresses


def traced(ovs: OpenVSwitch, in_port: int, frame: bytes, *options: str) -> tuple[list[Sent], str]:
    """The frames that Open vSwitch would send, from its datapath actions, and the whole trace."""
    shown = ovs.appctl("ofproto/trace", "--names", *options, BRIDGE, f"in_port={in_port}", frame.hex())
    sent: list[Sent] = []
    for line in re.findall(r"^Datapath actions: (.*)$", shown, re.MULTILINE):
        now = frame
        for word in top_level(line):
            now = applied(now, word)
            if word in PORTS.values():
                sent.append(seen(next(number for number, name in PORTS.items() if name == word), now))
    return sorted(sent, key=repr), shown


def top_level(text: str) -> list[str]:
    words, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            words.append("")
        else:
            words[-1] += character
    return words


def applied(frame: bytes, word: str) -> bytes:
    """One datapath action of the kinds that these programs can ask for (odp-actions)."""
    if word == "pop_vlan":
        return packet.pop_vlan(frame)
    if word.startswith("push_vlan("):
        found = re.search(r"vid=(\d+)", word)
        assert found
        return packet.rewrite(packet.push_vlan(frame, 0x8100), "vlan_vid", VLAN_PRESENT | int(found[1]))
    if word.startswith("set(eth("):
        for side, mac in re.findall(r"(src|dst)=([0-9a-f:]{17})", word):
            frame = packet.rewrite(frame, f"eth_{side}", mac_number(mac))
    elif word.startswith("set(ipv"):
        for side, address in re.findall(r"(src|dst)=([0-9.]+)", word):
            frame = packet.rewrite(frame, f"ipv4_{side}", packet_address(address))
        for value in re.findall(r"(?:tos|tclass)=(0x[0-9a-f]+|\d+)", word):
            frame = packet.rewrite(frame, "ip_dscp", int(value, 0) >> 2)
    else:
        known = (*PORTS.values(), "drop")
        assert word in known or word.startswith(("set(skb_priority", "ct(", "ct_clear", "recirc("))
    return frame


def packet_address(text: str) -> int:
    return int.from_bytes(bytes(int(part) for part in text.split(".")))


@pytest.mark.parametrize("seed", range(12))
def test_same_outputs_as_open_vswitch(bridge: OpenVSwitch, seed: int) -> None:
    source = random.Random(seed)
    flows = random_program(source)
    words = "\n".join(flow_text(flow.key, flow.data) for flow in flows)
    file = bridge.directory / "program.txt"
    file.write_text(words)
    bridge.ofctl(BRIDGE, "del-flows")
    bridge.ofctl(BRIDGE, "add-flows", str(file))
    bridge.appctl("fdb/flush", BRIDGE)
    # A trace of a whole packet learns, as the packet would have done.
    view = PortView.of(PORTS)
    ours = Tables()
    for flow in flows:
        ours.set(flow)
    for frame in source.sample(FRAMES, 12):
        in_port = source.choice([1, 2, PORT_LOCAL])
        result = run(ours, in_port, frame, view)
        want, shown = traced(bridge, in_port, frame)
        assert sorted((seen(port, sent) for port, sent in result.outputs), key=repr) == want, f"{words}\n{shown}"


def test_same_path_through_connection_tracking(bridge: OpenVSwitch) -> None:
    flows = [
        Flow(FlowKey(0, 1, match(eth_type=ETH_IPV4)), FlowData(1, (Track(5, 1), Output(3)), metadata=(2, 3))),
        Flow(FlowKey(1, 1, match(ct_state=(CT_TRK | CT_EST, CT_TRK | CT_EST))), FlowData(1, (Output(2),))),
        Flow(
            FlowKey(1, 2, match(eth_type=ETH_IPV4, ct_state=(CT_TRK | CT_NEW, CT_TRK | CT_NEW))),
            FlowData(1, (Track(5, None, commit=True), SetField("ip_dscp", 7)), goto=2),
        ),
        Flow(FlowKey(2, 1, match(metadata=(2, 3))), FlowData(1, (Output(1),))),
        Flow(FlowKey(2, 1, match(metadata=(0, 3))), FlowData(1, (Output(PORT_LOCAL),))),
    ]
    bridge.ofctl(BRIDGE, "del-flows")
    ours = Tables()
    for flow in flows:
        bridge.ofctl(BRIDGE, "add-flow", flow_text(flow.key, flow.data))
        ours.set(flow)
    for new, state in ((True, "trk,new"), (False, "trk,est")):
        result = run_fields(ours, packet.parse(FRAMES[0]) | {"in_port": 2}, PortView.of(PORTS), ct_new=new)
        want, shown = traced(bridge, 2, FRAMES[0], "--ct-next", state)
        assert sorted(result.ports) == [sent[0] for sent in want], shown
        assert sorted((port, one["ip_dscp"]) for port, one in zip(result.ports, result.headers, strict=True)) == [
            (sent[0], sent[4]) for sent in want
        ], shown
