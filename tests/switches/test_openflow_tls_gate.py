"""TLS handshakes that are begun and not ended take little memory, and keep no other host's switches out."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from pathlib import Path

from fake_switch.switch import FakeSwitch
from lark_controller.switches.openflow import tls_gate
from lark_controller.switches.openflow.places import Peer
from tests.fixtures.openflow import Recorder, add, flow, make_authority, make_certificate, scenario, serving

# The beginning of a ClientHello of 512 bytes (RFC 8446, section 5.1).
BEGUN = b"\x16\x03\x01\x02\x00" + bytes(20)


def test_unfinished_tls_handshakes_are_bounded_and_keep_no_other_host_out(tmp_path: Path) -> None:
    ca = make_authority(tmp_path, "site")
    cert, key = make_certificate(tmp_path, "site", "controller")
    context = ssl.create_default_context(cafile=str(ca))
    context.check_hostname = False
    context.load_cert_chain(*make_certificate(tmp_path, "site", "worker"))
    tls = {"tls_listen": (("127.0.0.1", 0),), "cert": str(cert), "key": str(key), "ca": str(ca)}

    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder, handshake_timeout=600.0, **tls) as server:
            with contextlib.ExitStack() as opened:
                for _ in range(3 * tls_gate.PLACES):
                    stranger = opened.enter_context(socket.socket())
                    stranger.bind(("127.0.0.2", 0))
                    stranger.connect(server.tls_addresses[0])
                    stranger.send(BEGUN)
                gate = server._gate
                assert gate is not None
                while len(gate._waiting) < 2 * tls_gate.PLACES:
                    await asyncio.sleep(0)
                assert len(gate._under_way) == tls_gate.PLACES
                for number in (1, 2):
                    await FakeSwitch(number).connect(*server.tls_addresses[0], context)
                    link = await recorder.link(number)
                    assert (await link.apply(add(flow(1)))).complete
                assert len(gate._under_way) <= tls_gate.PLACES
            # Who goes leaves the place to those that wait; these are gone as well.
            while gate._waiting or gate._under_way:
                await asyncio.sleep(0.01)
            await FakeSwitch(3).connect(*server.tls_addresses[0], context)
            await recorder.link(3)

    scenario(play)


def test_a_handshake_that_fails_unexpectedly_leaves_its_place() -> None:
    refused: list[Peer] = []

    async def play() -> None:
        def fails() -> asyncio.BaseProtocol:
            raise RuntimeError("out of order")

        gate = tls_gate.TlsGate(ssl.create_default_context(), fails, lambda peer, _: refused.append(peer), 60.0, 1)
        pairs = [socket.socketpair() for _ in range(3)]
        with contextlib.ExitStack() as opened:
            for ours, theirs in pairs:
                opened.enter_context(theirs)
                ours.setblocking(False)
                gate._arrived(ours, Peer.at("worker1"))
            while gate._waiting or gate._under_way:
                await asyncio.sleep(0)
            assert all(ours.fileno() == -1 for ours, _ in pairs)

    scenario(play)
    assert refused == []


def test_one_machine_with_many_addresses_keeps_no_other_out() -> None:
    refused: list[Peer] = []

    async def play() -> None:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        gate = tls_gate.TlsGate(made, asyncio.Protocol, lambda peer, _: refused.append(peer), 600.0, 8)
        with contextlib.ExitStack() as opened:

            def arrives(address: str) -> None:
                ours, theirs = socket.socketpair()
                opened.enter_context(theirs)
                ours.setblocking(False)
                gate._arrived(ours, Peer.at(address))

            for number in range(24):
                arrives(f"2001:db8:0:1::{number + 1:x}")
            for number in range(4):
                arrives(f"2001:db8:0:2::{number + 1:x}")
            placed = [peer.host for peer in gate._under_way.values()]
            assert [host for host in placed if host.startswith("2001:db8:0:2:")] == [
                f"2001:db8:0:2::{number + 1}" for number in range(4)
            ]
            assert len(placed) == 8
            await gate.stop()

    scenario(play)
    assert {peer.network for peer in refused} == {"2001:db8:0:1::/64"}
