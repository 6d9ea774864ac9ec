"""Against a real Open vSwitch: what is sent comes back from a dump, errors are tied, TLS, meters, NORMAL."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from lab.openvswitch import OpenVSwitch
from lark_common.errors import SettingError
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.diff import diff
from lark_controller.flows.model import (
    CT_EST,
    CT_NEW,
    CT_TRK,
    ETH_ARP,
    ETH_IPV4,
    ETH_IPV6,
    FLAG_SEND_FLOW_REM,
    PORT_CONTROLLER,
    PORT_LOCAL,
    PORT_NORMAL,
    VLAN_PRESENT,
    Changes,
    Flow,
    FlowData,
    FlowKey,
    Match,
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
from lark_controller.switches.openflow.server import Server
from tests.fixtures.openflow import (
    Recorder,
    make_authority,
    make_certificate,
    serving,
)

pytestmark = pytest.mark.ovs

JOB = cookie(Category.JOB, 42)
# Devices of the userspace datapath are the machine's: two runs at a time need two names.
BRIDGE = f"lko{os.getpid():x}"
PORT = f"{BRIDGE}p"
DATAPATH = 0x1F0F


@pytest.fixture
def bridge(ovs: OpenVSwitch) -> Iterator[OpenVSwitch]:
    ovs.add_bridge(BRIDGE, DATAPATH)
    yield ovs
    ovs.vsctl("--if-exists", "del-br", BRIDGE)


def scenario(play: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(main())


async def point(ovs: OpenVSwitch, server: Server) -> None:
    host, port = server.addresses[0]
    await asyncio.to_thread(ovs.set_controller, BRIDGE, f"tcp:{host}:{port}")


MATCHES: list[Match] = [
    match(),
    match(in_port=PORT_LOCAL),
    match(metadata=(0x1230, 0xFFF0)),
    match(ct_mark=18),
    match(metadata=0x1234567890ABCDEF),
    match(eth_src=0x020000000001, eth_dst=(0x010000000000, 0x010000000000)),
    match(vlan_vid=0),
    match(vlan_vid=(VLAN_PRESENT, VLAN_PRESENT)),
    match(vlan_vid=VLAN_PRESENT | 7, eth_type=ETH_IPV4),
    match(eth_type=ETH_IPV4, ipv4_src=(0x0A400000, 0xFFFF0000), ipv4_dst=0xC0000201, ip_dscp=46),
    match(eth_type=ETH_IPV4, ip_proto=17, udp_src=68, udp_dst=67),
    match(eth_type=ETH_ARP, arp_op=1, arp_spa=0x0A400001, arp_tpa=(0x0A400000, 0xFFFFFF00), arp_sha=1, arp_tha=2),
    match(eth_type=ETH_IPV6, ipv6_src=(0x20010DB8 << 96, ((1 << 32) - 1) << 96), ipv6_dst=1),
    match(eth_type=ETH_IPV6, ip_proto=17, udp_src=546, udp_dst=547),
    match(eth_type=ETH_IPV6, ip_proto=58, icmpv6_type=135, icmpv6_code=0, ipv6_nd_target=5, ipv6_nd_sll=0x020000000001),
    match(eth_type=ETH_IPV6, ip_proto=58, icmpv6_type=136, icmpv6_code=0, ipv6_nd_tll=2,
          ipv6_nd_target=(5 << 64, ((1 << 64) - 1) << 64)),
    match(eth_type=ETH_IPV4, ct_state=(CT_TRK | CT_NEW, CT_TRK | CT_NEW | CT_EST)),
]  # fmt: skip

IPV4 = match(eth_type=ETH_IPV4)
DATA: list[tuple[Match, FlowData]] = [
    ((), FlowData(JOB)),
    ((), FlowData(JOB, goto=5)),
    ((), FlowData(JOB, metadata=(0x30, 0xF0), goto=4)),
    ((), FlowData(JOB, (Output(PORT_NORMAL),))),
    ((), FlowData(JOB, (Output(PORT_CONTROLLER, 128), Output(PORT_LOCAL)))),
    ((), FlowData(JOB, (PushVlan(), SetField("vlan_vid", VLAN_PRESENT | 9), Output(1)))),
    (match(vlan_vid=(VLAN_PRESENT, VLAN_PRESENT)), FlowData(JOB, (PopVlan(), Output(2)))),
    ((), FlowData(JOB, (SetField("eth_dst", 0x020000000009), SetQueue(3), Output(PORT_NORMAL)))),
    (IPV4, FlowData(JOB, (SetField("ip_dscp", 12),), goto=6)),
    (IPV4, FlowData(JOB, (Track(100, 6),))),
    (IPV4, FlowData(JOB, (Track(100, None, commit=True),), goto=7)),
    (IPV4, FlowData(JOB, (Track(0, 9, commit=True),))),
    (IPV4, FlowData(JOB, (SetQueue(3), Track(100, None, commit=True, mark=18)), goto=7)),
    ((), FlowData(JOB, (Output(1),), meter=7)),
    ((), FlowData(JOB, idle_timeout=300, hard_timeout=600, flags=FLAG_SEND_FLOW_REM)),
]


def desired() -> Program:
    flows = [Flow(FlowKey(1, 100 + number, one), FlowData(JOB)) for number, one in enumerate(MATCHES)]
    flows += [Flow(FlowKey(2, 100 + number, one), data) for number, (one, data) in enumerate(DATA)]
    return Program.of(flows, [Meter(7, 5000, 500), Meter(8, 100000, 10000)])


def test_every_match_and_action_comes_back_equal_from_a_real_dump(bridge: OpenVSwitch) -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            await point(bridge, server)
            link = await recorder.link(DATAPATH)
            assert link.features.normal
            assert link.features.max_meter > 0
            assert link.features.meter_drop
            assert link.features.n_tables == 254
            assert "Open vSwitch" in link.features.hardware
            assert recorder.connected[0][1].program == Program()
            foreign = "table=0,priority=5,tcp,tcp_dst=22,actions=learn(table=1),flood"
            await asyncio.to_thread(bridge.ofctl, BRIDGE, "add-flow", foreign)
            before = await link.dump()
            assert before.program == Program()
            assert len(before.foreign) == 1
            wanted = desired()
            outcome = await link.apply(diff(wanted, before.program))
            assert outcome.complete, outcome.errors
            after = await link.dump()
            assert diff(wanted, after.program) == Changes()
            assert after.program == wanted
            assert set(after.counters) == {*wanted.flows, *after.foreign}
            # Half of it goes, and then all.
            half = Program.of([Flow(key, data) for key, data in wanted.flows.items() if key.table == 1])
            assert (await link.apply(diff(half, after.program))).complete
            assert (await link.dump()).program == half
            assert (await link.apply(diff(Program(), half))).complete
            last = await link.dump()
            assert last.program == Program()
            assert last.foreign == before.foreign

    scenario(play)


def test_a_flow_of_ours_that_the_model_cannot_say_is_seen_and_deleted(bridge: OpenVSwitch) -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            await point(bridge, server)
            link = await recorder.link(DATAPATH)
            for text in (
                f"cookie={JOB:#x},table=3,priority=7,reg0=5,tcp,tcp_flags=+syn,actions=dec_ttl,output:1",
                f"cookie={JOB:#x},table=3,priority=8,ip,actions=write_actions(output:1),goto_table:4",
                f"cookie={JOB:#x},table=3,priority=9,ip,actions=ct(nat,table=4),output:2",
            ):
                await asyncio.to_thread(bridge.ofctl, BRIDGE, "add-flow", text)
            found = (await link.dump()).program
            assert len(found.flows) == 3
            plain = Program.of([Flow(FlowKey(3, 8, IPV4), FlowData(JOB, goto=4))])
            changes = diff(plain, found)
            assert len(changes.flows_set) == 1
            assert len(changes.flows_gone) == 2
            assert (await link.apply(changes)).complete
            assert (await link.dump()).program == plain

    scenario(play)


def test_a_dump_of_many_parts_is_complete(bridge: OpenVSwitch) -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            await point(bridge, server)
            link = await recorder.link(DATAPATH)
            wanted = Program.of(
                Flow(FlowKey(0, 1, match(eth_type=ETH_IPV4, ipv4_dst=number)), FlowData(JOB, goto=1))
                for number in range(4096)
            )
            assert (await link.apply(diff(wanted, Program()))).complete
            assert (await link.dump()).program == wanted

    scenario(play)


def test_a_meter_changes_in_place_and_errors_are_tied_to_their_flow(bridge: OpenVSwitch) -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            await point(bridge, server)
            link = await recorder.link(DATAPATH)
            meter = Meter(3, 1000, 100)
            assert (await link.apply(Changes((meter,), frozenset({3})))).complete
            assert (await link.apply(Changes((Meter(3, 2000, 200),)))).complete
            assert (await link.dump()).program.meters == {3: Meter(3, 2000, 200)}
            assert set(await link.meter_stats()) == {3}
            assert [each.number for each in await link.port_counters(PORT_LOCAL)] == [PORT_LOCAL]
            assert PORT_LOCAL in {each.number for each in await link.port_counters()}
            good = Flow(FlowKey(0, 1, ()), FlowData(JOB, meter=3))
            no_meter = Flow(FlowKey(0, 2, ()), FlowData(JOB, meter=9))
            no_table = Flow(FlowKey(254, 3, ()), FlowData(JOB, goto=253))
            no_type = Flow(FlowKey(0, 4, match(ipv4_dst=1)), FlowData(JOB))
            outcome = await link.apply(Changes(flows_set=(good, no_meter, no_table, no_type)))
            assert outcome.confirmed
            assert [error.subject for error in outcome.errors] == [no_meter.key, no_table.key, no_type.key]
            assert [error.type for error in outcome.errors[::2]] == [ofp.OFPET_METER_MOD_FAILED, ofp.OFPET_BAD_MATCH]
            assert (await link.dump()).program.flows == {good.key: good.data}
            assert (await link.apply(Changes(flows_gone=(good.key,), meters_gone=(3,)))).complete
            assert (await link.dump()).program == Program()

    scenario(play)


def test_a_packet_out_through_the_tables_comes_back_as_packet_in(bridge: OpenVSwitch) -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            await point(bridge, server)
            link = await recorder.link(DATAPATH)
            write = Flow(FlowKey(0, 1, ()), FlowData(JOB, metadata=(0x55, 0xFF), goto=1))
            tell = Flow(FlowKey(1, 1, ()), FlowData(JOB, (Output(PORT_CONTROLLER),)))
            assert (await link.apply(Changes(flows_set=(tell, write)))).complete
            frame = bytes.fromhex("020000000002020000000001") + b"\x88\xb5" + bytes(50)
            link.packet_out(PORT_LOCAL, (Output(ofp.OFPP_TABLE),), frame)
            await recorder.until(lambda: bool(recorder.packets))
            packet = recorder.packets[0]
            assert (packet.table, packet.cookie, packet.in_port, packet.metadata) == (1, JOB, PORT_LOCAL, 0x55)
            assert packet.data == frame
            assert (await link.counters(JOB, (1 << 64) - 1))[write.key][0] == 1

    scenario(play)


def test_a_change_of_ports_is_told(bridge: OpenVSwitch) -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            await point(bridge, server)
            link = await recorder.link(DATAPATH)
            add = ("add-port", BRIDGE, PORT, "--", "set", "interface", PORT, "type=internal", "ofport_request=11")
            await asyncio.to_thread(bridge.vsctl, *add)
            await recorder.until(lambda: 11 in link.features.ports)
            assert link.features.ports[11].name == PORT
            await asyncio.to_thread(bridge.del_port, BRIDGE, PORT)
            await recorder.until(lambda: 11 not in link.features.ports)

    scenario(play)


def test_tls_takes_a_switch_with_a_certificate_and_no_other(bridge: OpenVSwitch, tmp_path: Path) -> None:
    ca = make_authority(tmp_path, "site")
    cert, key = make_certificate(tmp_path, "site", "controller")
    switch_cert, switch_key = make_certificate(tmp_path, "site", "worker7")
    make_authority(tmp_path, "stranger")
    strange_cert, strange_key = make_certificate(tmp_path, "stranger", "mallory")

    async def play() -> None:
        recorder = Recorder()
        tls = {"tls_listen": (("127.0.0.1", 0),), "cert": str(cert), "key": str(key), "ca": str(ca)}
        async with serving(recorder, listen=(), **tls) as server:
            host, port = server.tls_addresses[0]
            for files in ((strange_cert, strange_key), None):
                assert await is_refused(host, port, ca, files)
            await asyncio.to_thread(bridge.set_tls, switch_key, switch_cert, ca)
            await asyncio.to_thread(bridge.set_controller, BRIDGE, f"ssl:{host}:{port}")
            link = await recorder.link(DATAPATH)
            assert link.connection.tls_name == "worker7"
            flow = Flow(FlowKey(0, 1, ()), FlowData(JOB))
            assert (await link.apply(Changes(flows_set=(flow,)))).complete

    scenario(play)


async def is_refused(host: str, port: int, ca: Path, files: tuple[Path, Path] | None) -> bool:
    """True where the server ends a TLS connection that shows this certificate (or none) without a word of OpenFlow."""
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = False
    if files is not None:
        context.load_cert_chain(*files)
    try:
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        answer = await reader.read()
        writer.close()
    except OSError:  # ssl.SSLError among them
        return True
    return answer == b""


def test_tls_without_usable_files_is_a_setting_error(tmp_path: Path) -> None:
    async def play() -> None:
        for files in ({}, {"cert": str(tmp_path / "none.pem"), "key": str(tmp_path / "none.key")}):
            with pytest.raises(SettingError, match="certificate"):
                async with serving(Recorder(), tls_listen=(("127.0.0.1", 0),), **files):
                    pass

    scenario(play)
