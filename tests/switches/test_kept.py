"""Switches of an instance that stands by: kept as a slave's, asked for nothing, and led at once when it takes over."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.stored import StoredSwitch
from fake_switch.switch import FakeSwitch
from lark_controller.flows.model import Output
from lark_controller.switches.fence import FENCED, Fence
from lark_controller.switches.openflow import roles, server, wire
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.replies import PacketIn, PortInfo
from lark_controller.switches.openflow.roles import Role
from lark_controller.switches.openflow.server import Server
from tests.fixtures.openflow import (
    OPTIONS,
    Recorder,
    add,
    connected,
    flow,
    make_authority,
    make_certificate,
    scenario,
    serving,
)

# Bytes that a switch gets: HELLO, a request for its features, one for a role.
HELLO_FEATURES_ROLE = 8 + 8 + 24
PACKET = PacketIn(7, 2, 1, 1, 0, bytes(60))


class Standby:
    """An instance that stands by, beside one of generation ``known``."""

    def __init__(self, known: int, **options: object) -> None:
        self.known = known
        self.recorder = Recorder()
        self.said: list[str] = []
        self.fence = Fence(self.said.append)
        made = replace(OPTIONS, **options)  # type: ignore[arg-type]  # keyword by keyword, as given
        self.server = Server(made, None, self.fence, lambda: self.known)

    async def keeps(self, *fakes: FakeSwitch) -> None:
        """Has these switches connect, and waits until it keeps them."""
        for fake in fakes:
            await fake.connect(*self.server.addresses[0])
        await until(lambda: all(fake.datapath in self.server.kept for fake in fakes))

    def leads(self, generation: int) -> None:
        self.known = generation
        self.server.lead(generation)

    def serves(self) -> None:
        self.server.serve(self.recorder)

    async def link(self, datapath: int) -> SwitchLink:
        return await self.recorder.link(datapath)


@asynccontextmanager
async def standing_by(known: int = 1, **options: object) -> AsyncIterator[Standby]:
    made = Standby(known, **options)
    await made.server.start()
    try:
        yield made
    finally:
        await made.server.stop()


async def until(condition: Callable[[], object], limit: float = 60.0) -> None:
    """The limit only ends a test that has failed already."""
    async with asyncio.timeout(limit):
        while not condition():
            await asyncio.sleep(0.001)


def test_a_switch_that_is_kept_is_asked_for_its_role_and_nothing_else() -> None:
    async def play() -> None:
        async with serving(Recorder(), generation=1) as active, standing_by() as standby:
            fake = StoredSwitch(1, {})
            await fake.connect(*active.addresses[0])
            await until(lambda: fake.masters.is_master(fake))
            more = fake.another()
            await standby.keeps(more)
            assert fake.masters.role(more) == roles.SLAVE
            assert fake.masters.is_master(fake)
            assert more.received == HELLO_FEATURES_ROLE
            assert (more.flow_mods, more.refused_as_slave, more.barriers) == (0, 0, 0)
            assert standby.server.links == {}

    scenario(play)


@pytest.mark.parametrize("kind", [FakeSwitch, StoredSwitch])
def test_a_takeover_leads_the_connection_that_stands_and_fences_the_one_before(kind: type[FakeSwitch]) -> None:
    async def play() -> None:
        said: list[str] = []
        recorder = Recorder()
        async with serving(recorder, Fence(said.append), generation=1) as active, standing_by() as standby:
            fake = kind(1, {})
            link = await connected(active, recorder, fake)
            assert (await link.apply(add(flow(1)))).complete
            more = fake.another()
            await standby.keeps(more)
            standby.leads(2)
            # Before this instance serves: the one before writes nothing any more.
            await until(lambda: fake.masters.is_master(more))
            await until(lambda: recorder.gone == [(1, FENCED)])
            assert not (await link.apply(add(flow(2)))).confirmed
            assert standby.recorder.connected == []
            assert set(standby.server.kept) == {1}
            standby.serves()
            taken = await standby.link(1)
            assert (await taken.apply(add(flow(3)))).complete
            assert {key.priority for key in (await taken.dump()).program.flows} == {1, 3}
            # It found what the switch can do as its master, by the connection that it had.
            assert taken.features.normal
            assert not more.closed.is_set()
            assert standby.server.kept == {}
            assert (more.refused_as_slave, standby.said) == (0, [])

    scenario(play)


def test_nothing_that_comes_is_kept_and_ports_are_those_of_the_takeover() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            fake = FakeSwitch(1, {1: "p1", 2: "p2"})
            await standby.keeps(fake)
            connection = next(iter(standby.server._open))
            for number in range(3, 400):
                fake.change_port(PortInfo(number, f"p{number}", "02:00:00:00:00:09", True, False), ofp.OFPPR_ADD)
            fake.change_port(fake.ports[2], ofp.OFPPR_DELETE)
            # As a switch does that takes no notice of the role.
            fake.send_raw(switchside.packet_in(0, PACKET) * 200)
            fake.send_raw(switchside.error(77, ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_IS_SLAVE, bytes(64)))
            fake.send_raw(switchside.role_status(0, Role(roles.SLAVE, 9)))
            fake.send_raw(wire.echo_request(5))
            await until(lambda: fake.received == HELLO_FEATURES_ROLE + 8)
            standby.leads(2)
            standby.serves()
            link = await standby.link(1)
            assert set(link.features.ports) == {1, *range(3, 400)}
            assert (standby.recorder.packets, standby.recorder.errors, standby.said) == ([], [], [])
            assert not connection.closed_because

    scenario(play)


def test_a_switch_that_connects_between_the_takeover_and_the_first_service_is_led_as_well() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            standby.leads(2)
            fake = FakeSwitch(1)
            await standby.keeps(fake)
            assert fake.masters.is_master(fake)
            standby.serves()
            assert (await (await standby.link(1)).apply(add(flow(1)))).complete
            late = FakeSwitch(2)
            await late.connect(*standby.server.addresses[0])
            assert (await (await standby.link(2)).apply(add(flow(1)))).complete

    scenario(play)


def test_a_takeover_while_a_switch_is_identified_leads_it() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            fake = Slow(1)
            await fake.connect(*standby.server.addresses[0])
            # Asked to be its slave, and not answered yet.
            await until(lambda: fake.asked)
            standby.leads(2)
            standby.serves()
            fake.answers()
            link = await standby.link(1)
            assert fake.masters.is_master(fake)
            assert (await link.apply(add(flow(1)))).complete

    scenario(play)


def test_nothing_is_written_before_the_switch_has_made_it_its_master() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            fake = Slow(1, late=False)
            await standby.keeps(fake)
            fake.late = True
            standby.leads(2)
            standby.serves()
            await until(lambda: fake.asked)
            # All that was sent has come by now.
            fake.send_raw(wire.echo_request(5))
            received = HELLO_FEATURES_ROLE + 24 + 8
            await until(lambda: fake.received >= received)
            assert fake.received == received
            fake.answers()
            await standby.link(1)
            assert len(standby.recorder.connected) == 1
            assert fake.refused_as_slave == 0

    scenario(play)


class Slow(FakeSwitch):
    """A switch that answers role requests late, until it ``answers``."""

    def __init__(self, datapath: int, *, late: bool = True) -> None:
        super().__init__(datapath)
        self.asked: list[tuple[int, bytes]] = []
        self.late = late

    def answers(self) -> None:
        self.late = False
        for xid, message in self.asked:
            self._role_request(xid, message)

    def _role_request(self, xid: int, message: bytes) -> None:
        if self.late:
            self.asked.append((xid, message))
        else:
            super()._role_request(xid, message)


def test_a_switch_without_roles_is_not_kept_and_is_taken_in_once_this_instance_serves() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            fake = FakeSwitch(1, knows_roles=False)
            await fake.connect(*standby.server.addresses[0])
            await fake.closed.wait()
            assert standby.server.kept == {}
            assert fake.received == HELLO_FEATURES_ROLE
            standby.leads(2)
            standby.serves()
            link = await connected(standby.server, standby.recorder, fake)
            assert not link.features.roles

    scenario(play)


def test_a_switch_that_obeys_a_later_term_than_was_read_is_not_kept_and_fences_nobody() -> None:
    async def play() -> None:
        async with standing_by(1) as standby:
            fake = FakeSwitch(1)
            fake.masters.generation = 2
            await fake.connect(*standby.server.addresses[0])
            await fake.closed.wait()
            assert (standby.server.kept, standby.said) == ({}, [])
            # Once the term is read.
            standby.known = 2
            await standby.keeps(fake)

    scenario(play)


class Equal(FakeSwitch):
    """A switch that lets each connection be what it was."""

    def _role_request(self, xid: int, message: bytes) -> None:
        self.send_raw(switchside.role_reply(xid, Role(roles.EQUAL, 1)))


def test_a_switch_that_makes_nobody_a_slave_is_not_kept() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            fake = Equal(1)
            await fake.connect(*standby.server.addresses[0])
            await fake.closed.wait()
            assert (standby.server.kept, standby.said) == ({}, [])

    scenario(play)


def test_one_that_has_read_of_no_term_keeps_nothing() -> None:
    async def play() -> None:
        async with standing_by(0) as standby:
            fake = FakeSwitch(1)
            await fake.connect(*standby.server.addresses[0])
            await fake.closed.wait()
            assert (fake.masters.asked, standby.server.kept) == (0, {})

    scenario(play)


def test_of_two_that_take_over_one_after_the_other_the_first_is_fenced() -> None:
    async def play() -> None:
        async with standing_by() as one, standing_by() as two:
            fake = FakeSwitch(1)
            await one.keeps(fake)
            more = fake.another()
            await two.keeps(more)
            two.leads(3)
            await until(lambda: fake.masters.is_master(more))
            one.leads(2)
            await until(lambda: one.said)
            assert one.said == ["switch 0000000000000001 obeys generation 3, and this instance has 2"]
            await fake.closed.wait()
            assert one.server.kept == {}
            assert fake.masters.is_master(more)

    scenario(play)


def test_a_switch_that_goes_is_kept_no_longer_and_a_newer_connection_takes_its_place() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            fake = FakeSwitch(1)
            await standby.keeps(fake)
            newer = fake.another()
            await newer.connect(*standby.server.addresses[0])
            await fake.closed.wait()
            assert set(standby.server.kept) == {1}
            assert not newer.closed.is_set()
            newer.disconnect()
            await until(lambda: not standby.server.kept)
            standby.leads(2)
            standby.serves()
            await connected(standby.server, standby.recorder, fake)

    scenario(play)


def test_those_that_are_kept_are_bounded_and_a_host_with_many_keeps_no_other_out() -> None:
    async def play() -> None:
        async with standing_by(max_kept=3) as standby:
            host, port = standby.server.addresses[0]
            many = [FakeSwitch(number) for number in range(1, 4)]
            for each in many:
                await each.connect(host, port, own="127.0.0.2")
            await until(lambda: len(standby.server.kept) == 3)
            # One more of the same host gets no place.
            fourth = FakeSwitch(4)
            await fourth.connect(host, port, own="127.0.0.2")
            await fourth.closed.wait()
            assert set(standby.server.kept) == {1, 2, 3}
            other = FakeSwitch(5)
            await other.connect(host, port, own="127.0.0.3")
            await many[0].closed.wait()
            await until(lambda: set(standby.server.kept) == {2, 3, 5})

    scenario(play)


def test_those_that_are_expected_are_taken_in_before_strangers_that_were_kept_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "_TURNS", 1)
    monkeypatch.setattr(server, "_TURNS_MEANWHILE", 1)

    async def play() -> None:
        async with standing_by() as standby:
            fakes = [FakeSwitch(number) for number in range(1, 7)]
            for fake in fakes:
                await standby.keeps(fake)
            standby.leads(2)
            await until(lambda: all(fake.masters.is_master(fake) for fake in fakes) and not standby.server._handshakes)
            standby.recorder.awaited = {3, 6}
            standby.serves()
            await standby.recorder.until(lambda: len(standby.recorder.connected) == len(fakes))
            assert [link.datapath for link, _ in standby.recorder.connected] == [3, 6, 1, 2, 4, 5]

    scenario(play)


def test_over_tls_little_is_kept_and_another_switchs_certificate_takes_no_place(tmp_path: Path) -> None:
    ca = make_authority(tmp_path, "site")
    cert, key = make_certificate(tmp_path, "site", "controller")
    tls: dict[str, object] = {"tls_listen": (("127.0.0.1", 0),), "cert": str(cert), "key": str(key), "ca": str(ca)}
    contexts = []
    for name in ("worker1", "worker2"):
        contexts.append(ssl.create_default_context(cafile=str(ca)))
        contexts[-1].check_hostname = False
        contexts[-1].load_cert_chain(*make_certificate(tmp_path, "site", name))

    async def play() -> None:
        async with standing_by(1, **tls) as standby:
            address = standby.server.tls_addresses[0]
            fake = FakeSwitch(1)
            await fake.connect(*address, contexts[0])
            await until(lambda: standby.server.kept)
            kept = standby.server.kept[1]
            thief = FakeSwitch(1)
            await thief.connect(*address, contexts[1])
            await thief.closed.wait()
            assert standby.server.kept == {1: kept}
            buffer = kept.connection._transport._ssl_protocol._ssl_buffer  # type: ignore[attr-defined]  # asyncio's
            assert len(buffer) < 20_000
            standby.leads(2)
            standby.serves()
            assert (await (await standby.link(1)).apply(add(*(flow(number) for number in range(1, 2000))))).complete

    scenario(play)


def test_an_instance_that_stands_by_and_stops_lets_all_go() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            fakes = [FakeSwitch(number) for number in (1, 2)]
            await standby.keeps(*fakes)
            await standby.server.stop()
            for fake in fakes:
                await fake.closed.wait()
            assert standby.server.kept == {}

    scenario(play)


def test_a_fence_that_is_shut_while_switches_are_kept_closes_them() -> None:
    async def play() -> None:
        # Nothing is to be sent by which it would be noticed.
        async with standing_by(echo_interval=1000.0) as standby:
            fake = FakeSwitch(1)
            await standby.keeps(fake)
            standby.fence.shut("the database has another instance")
            await fake.closed.wait()
            assert fake.received == HELLO_FEATURES_ROLE

    scenario(play)


def test_a_packet_is_answered_once_this_instance_serves() -> None:
    async def play() -> None:
        async with standing_by() as standby:
            fake = FakeSwitch(1, {1: "p1"})
            await standby.keeps(fake)
            fake.packet_in(PACKET)
            standby.leads(2)
            await until(lambda: fake.masters.is_master(fake))
            fake.packet_in(PACKET)
            standby.serves()
            link = await standby.link(1)
            link.packet_out(1, (Output(1),), bytes(60))
            fake.packet_in(PACKET)
            await standby.recorder.until(lambda: len(standby.recorder.packets) == 1)

    scenario(play)
