"""Several controllers at one fake switch: who may write, who is fenced, and what a connection must prove first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from ipaddress import ip_address

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch import switchside
from fake_switch.stored import StoredSwitch
from fake_switch.switch import FakeSwitch
from fake_switch.switchside import FlowMod
from lark_common.errors import SwitchError
from lark_controller.flows.model import Output
from lark_controller.switches.fence import FENCED, Fence
from lark_controller.switches.openflow import mastership
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.mastership import REPLACED
from tests.fixtures.openflow import Recorder, add, connected, flow, scenario, serving

ZONE, OTHERS = 100, 101
ADDRESS = ip_address("10.64.0.1")
OBEYS_2 = "switch 0000000000000001 obeys generation 2, and this instance has 1"


class Instance:
    """One of several controllers: its server, what its switches told it, and what its fence said."""

    def __init__(self, generation: int, shown: Callable[[str], None] | None = None) -> None:
        self.generation = generation
        self.recorder = Recorder()
        self.said: list[str] = []
        self.fence = Fence(self.said.append, shown)
        self.shut = asyncio.Event()
        self.fence.when_shut(self.shut.set)

    async def serve(self, stack: AsyncExitStack) -> Instance:
        # Nothing is sent by itself that would show whether the fence is looked at.
        serves = serving(self.recorder, self.fence, generation=self.generation, echo_interval=600.0)
        self.server = await stack.enter_async_context(serves)
        return self

    async def take(self, fake: FakeSwitch) -> SwitchLink:
        return await connected(self.server, self.recorder, fake)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time by which proofs are counted."""
    now = [1000.0]
    monkeypatch.setattr(mastership, "_now", lambda: now[0])
    return now


@pytest.mark.parametrize("kind", [FakeSwitch, StoredSwitch])
def test_the_later_generation_takes_over_and_the_earlier_one_writes_nothing_more(kind: type[FakeSwitch]) -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one, two = [await Instance(number).serve(stack) for number in (1, 2)]
            fake = kind(1, {})
            link = await one.take(fake)
            assert (await link.apply(add(flow(1)))).complete
            other = fake.another()
            taken = await two.take(other)
            await one.shut.wait()
            assert one.said == [OBEYS_2]
            await one.recorder.until(lambda: one.recorder.gone == [(1, FENCED)])
            assert not (await link.apply(add(flow(2)))).confirmed
            assert (await taken.apply(add(flow(3)))).complete
            assert {key.priority for key in (await taken.dump()).program.flows} == {1, 3}
            # And one that comes back.
            await fake.closed.wait()
            await fake.connect(*one.server.addresses[0])
            await fake.closed.wait()
            assert not two.said

    scenario(play)


def test_an_earlier_generation_that_comes_late_is_fenced_before_it_has_written() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one, two = [await Instance(number).serve(stack) for number in (1, 2)]
            fake = StoredSwitch(1, {})
            await two.take(fake)
            late = fake.another()
            await late.connect(*one.server.addresses[0])
            await one.shut.wait()
            await late.closed.wait()
            assert one.said == [OBEYS_2]
            assert (late.flow_mods, late.refused_as_slave, one.recorder.connected) == (0, 0, [])

    scenario(play)


def test_a_stale_write_that_was_refused_confirms_nothing_and_is_no_fault_of_its_flow() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one, two = [await Instance(number).serve(stack) for number in (1, 2)]
            fake = FakeSwitch(1)
            fake.masters.tells = False
            link = await one.take(fake)
            await two.take(fake.another())
            outcome = await link.apply(add(flow(1)))
            assert (outcome.confirmed, outcome.errors) == (False, ())
            assert fake.refused_as_slave == 1
            assert fake.program.flows == {}
            await one.shut.wait()
            assert one.said == [OBEYS_2]
            assert one.recorder.errors == []

    scenario(play)


def test_a_stale_packet_is_refused_and_fences_as_well() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one, two = [await Instance(number).serve(stack) for number in (1, 2)]
            fake = FakeSwitch(1, {1: "p1"})
            fake.masters.tells = False
            link = await one.take(fake)
            await two.take(fake.another())
            link.packet_out(1, (Output(1),), bytes(60))
            await one.shut.wait()
            assert fake.refused_as_slave == 1
            assert one.recorder.errors == []

    scenario(play)


@pytest.mark.parametrize("generation", [0, 1])
def test_a_probe_that_a_slave_sent_says_nothing_of_the_switch(generation: int) -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one = await Instance(generation).serve(stack)
            fake = FakeSwitch(1)
            fake.fail_on(lambda _mod: True, ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_IS_SLAVE)
            await fake.connect(*one.server.addresses[0])
            await fake.closed.wait()
            assert one.recorder.connected == []
            fake.fail_nothing()
            assert (await one.take(fake)).features.normal
            assert not one.said

    scenario(play)


def test_a_newer_connection_of_the_same_instance_replaces_and_fences_nobody() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one = await Instance(1).serve(stack)
            fake = FakeSwitch(1)
            await one.take(fake)
            await fake.another().connect(*one.server.addresses[0])
            await one.recorder.until(lambda: len(one.recorder.connected) == 2)
            assert one.recorder.gone == [(1, REPLACED)]
            link = one.recorder.connected[-1][0]
            assert (await link.apply(add(flow(1)))).complete
            assert not one.said

    scenario(play)


def test_without_a_generation_no_role_is_asked_for() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            nobody = await Instance(0).serve(stack)
            fake = FakeSwitch(1)
            link = await nobody.take(fake)
            assert (await link.forget_connections(ZONE, OTHERS, [ADDRESS])).complete
            assert (fake.masters.asked, fake.masters.generation, link.features.roles) == (0, None, True)

    scenario(play)


def test_a_switch_without_roles_is_used_without_a_fence() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one = await Instance(1).serve(stack)
            fake = FakeSwitch(1, knows_roles=False)
            link = await one.take(fake)
            assert not link.features.roles
            assert link.features.normal
            assert (await link.apply(add(flow(1)))).complete
            assert (await link.forget_connections(ZONE, OTHERS, [ADDRESS])).complete
            assert fake.flushes == 5

    scenario(play)


def test_a_switch_that_was_started_anew_is_told_the_generation_again() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            two = await Instance(2).serve(stack)
            fake = FakeSwitch(1)
            await two.take(fake)
            fake.disconnect()
            await two.recorder.until(lambda: len(two.recorder.gone) == 1)
            fake.masters.forget()
            await fake.connect(*two.server.addresses[0])
            await two.recorder.until(lambda: len(two.recorder.connected) == 2)
            assert fake.masters.generation == 2

    scenario(play)


def test_a_switch_that_claims_a_later_generation_stops_nobody_where_the_database_is_asked() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            shown: list[str] = []
            one = await Instance(1, shown.append).serve(stack)
            honest = FakeSwitch(2)
            link = await one.take(honest)
            liar = FakeSwitch(1)
            liar.masters.generation = 2
            await liar.connect(*one.server.addresses[0])
            await liar.closed.wait()
            assert shown == [OBEYS_2]
            assert (await link.apply(add(flow(1)))).complete
            one.fence.shut("the database has another instance")
            await honest.closed.wait()
            await one.recorder.until(lambda: one.recorder.gone == [(2, FENCED)])
            assert one.said == ["the database has another instance"]

    scenario(play)


def test_a_thousand_orders_to_forget_connections_are_preceded_by_one_question(clock: list[float]) -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one = await Instance(1).serve(stack)
            fake = FakeSwitch(1)
            link = await one.take(fake)
            asked = fake.masters.asked
            orders = [link.forget_connections(ZONE, OTHERS, [ADDRESS]) for _ in range(1000)]
            assert all(outcome.complete for outcome in await asyncio.gather(*orders))
            assert (fake.masters.asked - asked, fake.flushes) == (1, 5000)
            clock[0] += mastership.PROOF_SECONDS
            assert (await link.forget_connections(ZONE, OTHERS, [ADDRESS])).complete
            assert fake.masters.asked - asked == 2

    scenario(play)


def test_what_follows_an_order_to_forget_connections_waits_for_it(clock: list[float]) -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one = await Instance(1).serve(stack)
            fake = FakeSwitch(1)
            link = await one.take(fake)
            seen: list[int] = []

            def look(_mod: FlowMod) -> bool:
                seen.append(fake.flushes)
                return False

            # A later job may have the address: what its flows let through must not be forgotten, nor inherited.
            fake.fail_on(look, 0, 0)
            before = link.apply(add(flow(1)))
            link.forget_connections(ZONE, OTHERS, [ADDRESS])
            after = link.apply(add(flow(2)))
            assert (await before).complete
            assert (await after).complete
            assert seen == [0, 5]

    scenario(play)


def test_an_instance_that_slept_forgets_no_connection_of_its_successors(clock: list[float]) -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one, two = [await Instance(number).serve(stack) for number in (1, 2)]
            fake = FakeSwitch(1)
            # The notice is on its way still.
            fake.masters.tells = False
            link = await one.take(fake)
            assert (await link.forget_connections(ZONE, OTHERS, [ADDRESS])).complete
            await two.take(fake.another())
            clock[0] += mastership.PROOF_SECONDS
            outcome = await link.forget_connections(ZONE, OTHERS, [ADDRESS])
            assert not outcome.confirmed
            await one.shut.wait()
            assert one.said == [OBEYS_2]
            assert fake.flushes == 5

    scenario(play)


def test_what_waits_to_be_sent_when_the_fence_is_shut_is_not_sent() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one = await Instance(1).serve(stack)
            fake = StoredSwitch(1, {})
            link = await one.take(fake)
            sent = fake.flow_mods
            outcome = link.apply(add(flow(1)))
            one.fence.shut("another thread says so")
            assert not (await outcome).confirmed
            await fake.closed.wait()
            assert fake.flow_mods == sent

    scenario(play)


def test_a_fence_that_was_shut_before_the_start_lets_no_switch_in() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one = Instance(1)
            one.fence.shut("another thread says so")
            await one.serve(stack)
            fake = StoredSwitch(1, {})
            await fake.connect(*one.server.addresses[0])
            await fake.closed.wait()
            assert (fake.received, one.recorder.connected) == (0, [])

    scenario(play)


def test_an_answer_that_is_garbage_ends_the_connection_and_the_question() -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one = await Instance(1).serve(stack)
            fake = FakeSwitch(1)
            link = await one.take(fake)
            asked = link.mastership.ask(1)
            assert asked is not None
            fake.send_raw(switchside.features_reply(link.next_xid() - 1, 1, 2))
            await one.recorder.until(lambda: bool(one.recorder.gone))
            with pytest.raises(SwitchError):
                await asked

    scenario(play)
