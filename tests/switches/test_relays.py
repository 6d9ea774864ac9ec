"""Switches that are handed on: what the active instance does to them through one that stands by, and who may do so."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.stored import StoredSwitch
from fake_switch.switch import FakeSwitch
from lark_common.log import LOGGER
from lark_controller.switches.openflow import relays, roles, strangers, wire
from lark_controller.switches.openflow.places import Peer
from lark_controller.switches.openflow.relays import OWN_XIDS, Seal, Vouched, Way, voucher
from lark_controller.switches.openflow.replies import PacketIn
from lark_controller.switches.openflow.server import Server
from tests.fixtures.openflow import (
    KEYS,
    OPTIONS,
    Recorder,
    add,
    flow,
    make_authority,
    make_certificate,
    openssl,
    scenario,
)
from tests.switches.test_kept import until

SEAL = Seal("5e" * 32, 7, "b")
VOUCHED = Vouched(1, "192.0.2.7:40000", "192.0.2.7", "worker7", "b")
PACKET = PacketIn(9, 2, 1, 1, 0, bytes(60))


class Two:
    """An active instance, and one that stands by and reaches it by ``ways``."""

    def __init__(self, **options: object) -> None:
        made = replace(OPTIONS, **options)  # type: ignore[arg-type]  # keyword by keyword, as given
        self.seal = SEAL
        self.recorder = Recorder()
        self.active = Server(replace(made, generation=SEAL.generation), self.recorder, seal=lambda: SEAL)
        self.standby = Server(made, None, known=lambda: SEAL.generation, seal=lambda: self.seal)

    @property
    def ways(self) -> tuple[Way, ...]:
        tcp = [Way(*each) for each in self.active.addresses]
        return *tcp, *(Way(*each, "localhost") for each in self.active.tls_addresses)

    async def hand_on(self, *datapaths: int) -> None:
        await self.standby.hand_on(datapaths, self.ways)


@asynccontextmanager
async def two(**options: object) -> AsyncIterator[Two]:
    made = Two(**options)
    await made.active.start()
    await made.standby.start()
    try:
        yield made
    finally:
        await made.standby.stop()
        await made.active.stop()


async def kept(instances: Two, fake: FakeSwitch) -> None:
    await fake.connect(*instances.standby.addresses[0])
    await until(lambda: fake.datapath in instances.standby.kept)


@pytest.mark.parametrize("kind", [FakeSwitch, StoredSwitch])
def test_the_active_one_leads_it_by_the_connection_that_it_had(kind: type[FakeSwitch]) -> None:
    async def play() -> None:
        async with two() as both:
            fake = kind(1, {})
            await kept(both, fake)
            assert fake.masters.role(fake) == roles.SLAVE
            await both.hand_on(1)
            link = await both.recorder.link(1)
            assert fake.masters.is_master(fake)
            assert both.standby.kept == {}
            assert (both.standby.relays.count, both.active.present()) == (1, frozenset({1}))
            # It is known by its own address, not that of the instance between.
            assert fake._transport is not None
            peer = fake._transport.get_extra_info("sockname")
            assert link.features.address == f"{peer[0]}:{peer[1]}"
            assert link.connection.through == "b"
            assert (await link.apply(add(*(flow(number) for number in range(1, 3000))))).complete
            assert len((await link.dump()).program.flows) == 2999
            fake.packet_in(PACKET)
            await both.recorder.until(lambda: len(both.recorder.packets) == 1)
            fake.disconnect()
            await both.recorder.until(lambda: len(both.recorder.gone) == 1)
            await until(lambda: both.standby.relays.count == 0)

    scenario(play)


def test_a_late_answer_to_the_one_that_stood_by_is_not_the_active_ones() -> None:
    async def play() -> None:
        async with two() as both:
            fake = FakeSwitch(1, {})
            await kept(both, fake)
            connection = both.standby.kept[1].connection
            assert connection.last_xid >= OWN_XIDS
            late = connection.next_xid()
            await both.hand_on(1)
            link = await both.recorder.link(1)
            seen: list[int] = []
            before = link.connection.receive

            def receive(kind: int, xid: int, message: bytes) -> bool:
                seen.append(xid)
                return before(kind, xid, message)

            link.connection.receive = receive
            fake.send_raw(wire.header(19, late, bytes(8)))
            fake.packet_in(PACKET)
            await both.recorder.until(lambda: len(both.recorder.packets) == 1)
            assert late not in seen

    scenario(play)


def test_echoes_are_each_connections_own() -> None:
    async def play() -> None:
        async with two(echo_interval=0.05, echo_timeout=30.0) as both:
            fake = FakeSwitch(1, {})
            await kept(both, fake)
            await both.hand_on(1)
            link = await both.recorder.link(1)
            received, heard = fake.received, link.connection._last_received
            # Asked by the one between, which answers the active one's questions by itself.
            await until(lambda: fake.received > received + 64 and link.connection._last_received > heard)
            assert link.ready

    scenario(play)


def test_a_switch_that_reads_slowly_holds_the_active_one_and_loses_nothing() -> None:
    async def play() -> None:
        async with two(outbox_bytes=64 << 20, apply_timeout=60.0, write_timeout=60.0) as both:
            fake = StoredSwitch(1, {})
            await kept(both, fake)
            await both.hand_on(1)
            link = await both.recorder.link(1)
            fake.stall()
            applied = asyncio.ensure_future(link.apply(add(*(flow(number) for number in range(1, 60_000)))))
            relay = both.standby.relays.find(1)
            assert relay is not None
            # The active one's own connection is not read any more: what waits between is bounded.
            await until(lambda: relay.connection.paused and relay.up._on_hold)
            # It has sent all, or can send no more.
            await until(lambda: link.connection.paused or not link._applies._queue)
            assert relay.connection._waiting() < 1 << 20
            fake.resume()
            assert (await applied).complete
            assert not relay.up._on_hold
            assert fake.flow_mods >= 59_999

    scenario(play)


def test_one_that_is_not_read_is_asked_for_no_more_echoes_the_longer_that_lasts() -> None:
    async def play() -> None:
        async with two(echo_interval=1000.0) as both:
            fake = FakeSwitch(1, {})
            await kept(both, fake)
            connection = both.standby.kept[1].connection
            connection.hold()
            connection._last_received -= 10_000.0
            connection._keep_alive()
            assert connection._keepalive is not None
            assert connection._keepalive.when() > asyncio.get_running_loop().time() + 500.0
            assert not connection.closed_because

    scenario(play)


def test_one_that_cannot_be_written_to_is_held_from_the_beginning() -> None:
    async def play() -> None:
        async with two() as both:
            fake = FakeSwitch(1, {})
            await kept(both, fake)
            both.standby.kept[1].connection.paused = True
            await both.hand_on(1)
            relay = both.standby.relays.find(1)
            assert relay is not None
            assert relay.up._on_hold
            relay.connection.resume_writing()
            assert (await both.recorder.link(1)).connection.through == "b"

    scenario(play)


@pytest.mark.parametrize("ended", [True, False])
def test_what_is_under_way_when_the_term_ends_is_not_handed_on(ended: bool) -> None:
    async def play() -> None:
        async with two() as both:
            fake = FakeSwitch(1, {})
            await kept(both, fake)
            under_way = asyncio.ensure_future(both.hand_on(1))
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            if ended:
                both.standby.relays.end(relays.OTHER_TERM)
            else:
                both.seal = SEAL._replace(generation=8)
            await under_way
            assert (both.standby.relays.count, set(both.standby.kept), fake.closed.is_set()) == (0, {1}, False)

    scenario(play)


def test_no_more_are_handed_on_than_are_kept_at_most() -> None:
    async def play() -> None:
        async with two(max_kept=1) as both:
            for datapath in (1, 2):
                await kept(both, FakeSwitch(datapath, {}))
                await both.hand_on(datapath)
            assert (both.standby.relays.count, set(both.standby.kept)) == (1, {2})

    scenario(play)


def test_each_reason_and_each_end_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def logged(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    async def play() -> None:
        async with two() as both:
            fakes = {each: FakeSwitch(each, {}) for each in (1, 2, 3)}
            for fake in fakes.values():
                await kept(both, fake)
            # One of them has a name, which is not sent over TCP: two reasons, in turn.
            both.standby.kept[2].connection.tls_name = "worker2"
            for _ in range(3):
                await both.standby.hand_on((1, 2, 3), (Way("127.0.0.1", 1),))
            assert logged("cannot be handed on") == 2
            await both.hand_on(1)
            (await both.recorder.link(1)).close("enough")
            await until(fakes[1].closed.is_set)
            await until(lambda: both.standby.relays.count == 0)
            assert logged("handed on no longer") == 1
            (reason,) = (
                record.__dict__["lark_fields"]["reason"]
                for record in caplog.records
                if record.getMessage() == "switch is handed on no longer"
            )
            assert reason.startswith(relays.ENDED)
            assert "by the switch" not in reason

    with caplog.at_level("INFO", LOGGER):
        scenario(play)


def test_one_that_comes_and_goes_at_one_that_stands_by_does_not_fill_its_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(strangers, "LINES_AT_ONCE", 4)
    monkeypatch.setattr(strangers, "LINES", 0.0)

    async def play() -> None:
        async with two() as both:
            for _ in range(20):
                # Two with one datapath id, each in the other's place; the last of them is handed on.
                before = both.standby.kept.get(1)
                await FakeSwitch(1).connect(*both.standby.addresses[0])
                await until(lambda: both.standby.kept.get(1) not in (None, before))  # noqa: B023  # waited for at once
            await both.hand_on(1)
            await both.recorder.link(1)
            both.standby.relays.end("enough")
            await until(lambda: not both.standby._open)

    with caplog.at_level("INFO", LOGGER):
        scenario(play)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count("switch is kept") == 4
    assert sum(line.startswith(("switch is kept no", "switch is handed")) for line in lines) < 5


def test_a_connection_is_counted_as_one_of_the_switchs_host() -> None:
    async def play() -> None:
        async with two() as both:
            _, writer = await asyncio.open_connection(*both.active.addresses[0])
            writer.write(voucher(SEAL, VOUCHED._replace(tls_name="")) + switchside.hello(1))
            await until(lambda: Peer.at(VOUCHED.host) in both.active._arrivals._of)
            writer.close()

    scenario(play)


def test_its_own_way_takes_the_place_and_what_did_not_last_is_not_tried_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def play() -> None:
        async with two() as both:
            fake = FakeSwitch(1, {})
            await kept(both, fake)
            await both.hand_on(1)
            await both.recorder.link(1)
            direct = fake.another()
            await direct.connect(*both.active.addresses[0])
            await until(fake.closed.is_set)
            await until(lambda: len(both.recorder.connected) == 2)
            again = fake.another()
            await kept(both, again)
            await both.hand_on(1)
            assert (both.standby.relays.count, set(both.standby.kept)) == (0, {1})
            monkeypatch.setattr(relays, "AGAIN_SECONDS", 0.0)
            both.standby.relays.end("another term")
            direct.disconnect()
            await until(lambda: not both.active.present())
            await both.hand_on(1)
            await until(lambda: len(both.recorder.connected) == 3)
            assert both.standby.relays.count == 1

    scenario(play)


def test_one_that_has_come_by_itself_meanwhile_keeps_its_connection() -> None:
    async def play() -> None:
        async with two() as both:
            fake = FakeSwitch(1, {})
            await kept(both, fake)
            direct = await fake.another().connect(*both.active.addresses[0])
            link = await both.recorder.link(1)
            # It was missed when the one that stands by has asked.
            await both.hand_on(1)
            await until(lambda: both.standby.relays.count == 0)
            assert direct.masters.is_master(direct)
            assert (await link.apply(add(flow(1)))).complete
            assert (both.recorder.gone, direct.closed.is_set()) == ([], False)

    scenario(play)


def test_what_lasted_is_tried_again_at_once() -> None:
    async def play() -> None:
        async with two() as both:
            fake = FakeSwitch(1, {})
            await kept(both, fake)
            await both.hand_on(1)
            relay = both.standby.relays.find(1)
            assert relay is not None
            relay.began -= relays.AGAIN_SECONDS
            (await both.recorder.link(1)).close("enough")
            await until(lambda: both.standby.relays.count == 0)
            await kept(both, fake.another())
            await both.hand_on(1)
            assert both.standby.relays.count == 1

    scenario(play)


def test_a_takeover_and_another_term_end_it_and_the_switch_comes_again() -> None:
    async def play() -> None:
        async with two() as both:
            first, second = FakeSwitch(1, {}), FakeSwitch(2, {})
            await kept(both, first)
            await both.hand_on(1)
            await both.recorder.link(1)
            both.standby.relays.end(relays.OTHER_TERM)
            await until(first.closed.is_set)
            await kept(both, second)
            await both.hand_on(2)
            await both.recorder.link(2)
            both.standby.lead(SEAL.generation + 1)
            await until(second.closed.is_set)
            # It is nobody's slave any more, and hands nothing on.
            again = second.another()
            await again.connect(*both.standby.addresses[0])
            await until(lambda: again.masters.is_master(again))
            await both.hand_on(2)
            assert both.standby.relays.count == 0

    scenario(play)


def test_a_switch_whose_counters_are_being_read_is_handed_on_afterwards() -> None:
    async def play() -> None:
        async with two() as both:
            fake = StoredSwitch(1, {})
            await kept(both, fake)
            fake.stall()
            until_then = asyncio.get_running_loop().time() + 60.0
            reading = asyncio.ensure_future(both.standby.read_counters((1,), 0, 0, 30.0, until_then))
            await until(lambda: both.standby.kept[1].connection.known)
            await both.hand_on(1)
            assert both.standby.relays.count == 0
            fake.resume()
            assert set(await reading) == {1}
            await both.hand_on(1)
            await both.recorder.link(1)

    scenario(play)


def test_nothing_is_handed_on_without_the_terms_key_and_the_switch_stays_kept() -> None:
    async def play() -> None:
        async with two() as both:
            fake = FakeSwitch(1, {})
            await kept(both, fake)
            both.seal = Seal("", 0, "b")
            await both.hand_on(1)
            assert (both.standby.relays.count, fake.closed.is_set()) == (0, False)
            # Nobody listens there.
            both.seal = SEAL
            await both.standby.hand_on((1,), (Way("127.0.0.1", 1),))
            assert (both.standby.relays.count, fake.closed.is_set()) == (0, False)
            # With another key the active one takes it for a stranger.
            both.seal = Seal("aa" * 32, 7, "b")
            await both.hand_on(1)
            await until(fake.closed.is_set)
            assert both.recorder.connected == []

    scenario(play)


async def kinds_that_come(address: tuple[str, int], sent: bytes) -> set[int]:
    """The types of the messages that a listener answers until it closes the connection."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(sent)
    answer, kinds = await reader.read(-1), set[int]()
    writer.close()
    while answer:
        _, kind, length, _ = wire.HEADER.unpack_from(answer)
        kinds.add(kind)
        answer = answer[length:]
    return kinds


def test_a_stranger_gets_nowhere_by_a_voucher() -> None:
    plain = voucher(SEAL, VOUCHED._replace(tls_name=""))

    async def play() -> None:
        async with two() as both:
            active, standby = both.active.addresses[0], both.standby.addresses[0]
            # Whoever is let in is asked for its features.
            for first in (
                voucher(Seal("aa" * 32, 7, "b"), VOUCHED._replace(tls_name="")),
                # A name that a certificate must have proven counts over TLS alone.
                voucher(SEAL, VOUCHED),
                # One is enough.
                plain * 2,
            ):
                assert ofp.OFPT_FEATURES_REQUEST not in await kinds_that_come(active, first + switchside.hello(1))
            # One that stands by takes no voucher at all.
            assert ofp.OFPT_FEATURES_REQUEST not in await kinds_that_come(standby, plain + switchside.hello(1))

    scenario(play)


def test_over_tls_the_name_in_the_switchs_certificate_goes_with_it(tmp_path: Path) -> None:
    ca = make_authority(tmp_path, "site")
    key, cert = tmp_path / "lark.key", tmp_path / "lark.pem"
    openssl("req", "-x509", "-newkey", *KEYS, "-nodes", "-days", "2", "-subj", "/CN=lark", "-CA", str(ca),
            "-CAkey", str(tmp_path / "site.key"), "-addext", "subjectAltName=DNS:localhost", "-keyout", str(key),
            "-out", str(cert))  # fmt: skip
    tls: dict[str, object] = {"tls_listen": (("127.0.0.1", 0),), "cert": str(cert), "key": str(key), "ca": str(ca)}
    context = ssl.create_default_context(cafile=str(ca))
    context.load_cert_chain(*make_certificate(tmp_path, "site", "worker1"))

    async def play() -> None:
        async with two(**tls) as both:
            fake = FakeSwitch(1, {})
            context.check_hostname = False
            await fake.connect(*both.standby.tls_addresses[0], context)
            await until(lambda: 1 in both.standby.kept)
            # Never over TCP, where anybody could read along and come as that switch later.
            await both.standby.hand_on((1,), tuple(way for way in both.ways if not way.name))
            assert both.standby.relays.count == 0
            # Nor to a listener with another name.
            await both.standby.hand_on((1,), (Way(*both.active.tls_addresses[0], "lark9.example"),))
            assert both.standby.relays.count == 0
            await both.hand_on(1)
            link = await both.recorder.link(1)
            assert (link.connection.tls_name, link.connection.through) == ("worker1", "b")
            assert (await link.apply(add(*(flow(number) for number in range(1, 2000))))).complete

    scenario(play)
