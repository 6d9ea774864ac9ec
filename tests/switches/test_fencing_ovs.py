"""Two controllers of generations 1 and 2 at one real Open vSwitch: what the older one writes changes nothing."""

from __future__ import annotations

import asyncio
import os
import queue
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Self, TypeVar

import pytest

from lab.openvswitch import OpenVSwitch
from lark_common.worker_rules import CT_ZONE, CT_ZONE_OTHERS
from lark_controller.flows.model import PORT_CONTROLLER, PORT_LOCAL, Changes, Meter, Output, Track
from lark_controller.switches.fence import FENCED, Fence
from lark_controller.switches.openflow import mastership
from lark_controller.switches.openflow.applies import Outcome
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.loop_thread import OpenFlow
from lark_controller.switches.openflow.server import Server
from tests.fixtures.controllers import until
from tests.fixtures.frames import udp
from tests.fixtures.openflow import OPTIONS, Recorder, add, flow, serving

T = TypeVar("T")
pytestmark = pytest.mark.ovs

BRIDGE = f"lkf{os.getpid():x}"
DATAPATH = 0x1F0E
ADDRESS = ip_address("10.64.0.1")
REFUSED = Counter({"OFPT_FLOW_MOD": 2, "OFPT_METER_MOD": 1, "OFPT_PACKET_OUT": 1})
OBEYS_2 = f"switch {DATAPATH:016x} obeys generation 2, and this instance has 1"


@pytest.fixture
def bridge(own_ovs: OpenVSwitch) -> Iterator[OpenVSwitch]:
    own_ovs.add_bridge(BRIDGE, DATAPATH)
    yield own_ovs
    own_ovs.vsctl("--if-exists", "del-br", BRIDGE)


def scenario(play: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(60):
            await play()

    asyncio.run(main())


class Instance:
    """One of several controllers: its server, what its switches told it, and what its fence said."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.recorder = Recorder()
        self.said: list[str] = []
        self.fence = Fence(self.said.append)
        self.server: Server

    async def serve(self, stack: AsyncExitStack) -> Instance:
        serves = serving(self.recorder, self.fence, generation=self.generation)
        self.server = await stack.enter_async_context(serves)
        return self

    @property
    def target(self) -> str:
        host, port = self.server.addresses[0]
        return f"tcp:{host}:{port}"


async def point(ovs: OpenVSwitch, *instances: Instance) -> None:
    await asyncio.to_thread(ovs.set_controller, BRIDGE, [each.target for each in instances])


def test_a_later_generation_takes_over_and_the_earlier_one_is_fenced(bridge: OpenVSwitch) -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            one = await Instance(1).serve(stack)
            await point(bridge, one)
            link = await one.recorder.link(DATAPATH)
            assert link.features.roles
            assert link.features.normal
            assert (await link.apply(add(flow(1)))).complete
            two = await Instance(2).serve(stack)
            await point(bridge, one, two)
            taken = await two.recorder.link(DATAPATH)
            await one.recorder.until(lambda: bool(one.recorder.gone))
            assert one.recorder.gone == [(DATAPATH, FENCED)]
            assert one.said == [OBEYS_2]
            assert not (await link.apply(add(flow(2)))).confirmed
            assert (await taken.apply(add(flow(3)))).complete
            assert {key.priority for key in (await taken.dump()).program.flows} == {1, 3}
            assert not two.said

    scenario(play)


def test_an_instance_that_comes_late_with_an_earlier_generation_writes_nothing(bridge: OpenVSwitch) -> None:
    async def play() -> None:
        async with AsyncExitStack() as stack:
            two = await Instance(2).serve(stack)
            await point(bridge, two)
            taken = await two.recorder.link(DATAPATH)
            one = await Instance(1).serve(stack)
            shut = asyncio.Event()
            one.fence.when_shut(shut.set)
            await point(bridge, two, one)
            await shut.wait()
            assert not one.recorder.connected
            assert one.said == [OBEYS_2]
            assert (await taken.apply(add(flow(3)))).complete
            assert not two.recorder.gone

    scenario(play)


class Running:
    """An instance on a thread of its own, which can stand still."""

    def __init__(self, generation: int) -> None:
        self.recorder = Recorder()
        self.said: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.fence = Fence(self.said.put)
        self.openflow = OpenFlow(replace(OPTIONS, generation=generation), self.recorder, self.fence)

    def __enter__(self) -> Self:
        self.openflow.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.openflow.stop()

    @property
    def target(self) -> str:
        host, port = self.openflow.addresses[0]
        return f"tcp:{host}:{port}"

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of a coroutine on the instance's thread."""
        return self.openflow.call(work).result(30)

    def link(self, count: int = 1) -> SwitchLink:
        """The switch, once it was connected so many times."""
        self.call(self.recorder.until(lambda: len(self.recorder.connected) >= count))
        return self.recorder.connected[-1][0]

    @contextmanager
    def stopped(self, then: Callable[[], None]) -> Iterator[None]:
        """Let the thread stand still, and do ``then`` before it reads what has come meanwhile."""
        stands, goes_on = threading.Event(), threading.Event()

        def stand() -> None:
            stands.set()
            goes_on.wait()
            then()

        self.openflow.loop.call_soon_threadsafe(stand)
        stands.wait()
        try:
            yield
        finally:
            goes_on.set()


def tracked(ovs: OpenVSwitch) -> list[str]:
    return [line for line in ovs.appctl("dpctl/dump-conntrack").splitlines() if "10.64.0.1" in line]


def refused(ovs: OpenVSwitch) -> list[str]:
    """The messages that the switch has refused because they were a slave's."""
    # Open vSwitch has another name for it than OpenFlow, and than Open vSwitch before 2.15.
    return re.findall(r"OFPBRC_IS_(?:SECONDARY|SLAVE) error reply to (\w+)", ovs.log())


def track(link: SwitchLink) -> Callable[[], None]:
    """Sends a datagram of a job through connection tracking."""
    frame = udp("02:00:00:00:00:01", "02:00:00:00:00:02", str(ADDRESS), "10.64.0.2", 1000, 2000)
    return lambda: link.packet_out(PORT_LOCAL, (Track(CT_ZONE, None, commit=True),), frame)


def test_what_an_instance_sends_that_stood_still_changes_nothing(
    bridge: OpenVSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = [0.0]
    now = mastership._now
    monkeypatch.setattr(mastership, "_now", lambda: now() + asleep[0])
    with Running(1) as one, Running(2) as two:
        bridge.set_controller(BRIDGE, one.target)
        link = one.link()
        assert one.call(sent(link, add(flow(1)))).complete
        # It has shown that it is the master, and may send such an order at once.
        one.call(forgotten(link))
        one.openflow.call(track(link)).result(30)
        until(lambda: tracked(bridge))
        outcomes: list[asyncio.Future[Outcome]] = []

        def write() -> None:
            asleep[0] = mastership.PROOF_SECONDS
            outcomes.append(link.apply(add(flow(2))))
            outcomes.append(link.apply(Changes(flows_gone=(flow(1).key,))))
            outcomes.append(link.apply(Changes((Meter(9, 1000, 100),), frozenset({9}))))
            outcomes.append(link.forget_connections(CT_ZONE, CT_ZONE_OTHERS, [ADDRESS]))
            link.packet_out(PORT_LOCAL, (Output(PORT_CONTROLLER),), bytes(60))
            link.connection._flush()
            # What the switch has said of its new master is not read before.
            until(lambda: Counter(refused(bridge)) == REFUSED)

        with one.stopped(write):
            bridge.set_controller(BRIDGE, [one.target, two.target])
            taken = two.link()
            packets = len(two.recorder.packets)
        assert one.said.get(timeout=30) == OBEYS_2
        one.call(one.recorder.until(lambda: one.recorder.gone == [(DATAPATH, FENCED)]))
        assert [one.call(settled(each)).confirmed for each in outcomes] == [False] * 4
        held = two.call(taken.dump()).program
        assert ({key.priority for key in held.flows}, held.meters) == ({1}, {})
        assert tracked(bridge)
        assert len(two.recorder.packets) == packets
        # The one in charge forgets them when it is told to.
        assert two.call(forgotten(taken)).complete
        until(lambda: not tracked(bridge))
        assert two.said.empty()


def test_a_switch_that_was_started_anew_obeys_the_generation_again(bridge: OpenVSwitch) -> None:
    with Running(1) as one, Running(2) as two:
        bridge.set_controller(BRIDGE, two.target)
        two.link()
        bridge.restart()
        link = two.link(2)
        bridge.set_controller(BRIDGE, [two.target, one.target])
        assert one.said.get(timeout=30) == OBEYS_2
        assert one.recorder.connected == []
        assert two.call(sent(link, add(flow(1)))).complete
        assert two.said.empty()


async def sent(link: SwitchLink, changes: Changes) -> Outcome:
    return await link.apply(changes)


async def forgotten(link: SwitchLink) -> Outcome:
    return await link.forget_connections(CT_ZONE, CT_ZONE_OTHERS, [ADDRESS])


async def settled(outcome: asyncio.Future[Outcome]) -> Outcome:
    return await outcome
