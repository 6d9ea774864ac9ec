"""Switches are compared a few at a time, and those that never finish keep nobody waiting."""

from __future__ import annotations

import asyncio

import pytest

from fake_switch.switch import FakeSwitch
from lark_controller.switches.openflow import server as listener
from lark_controller.switches.openflow.dumps import Dump
from lark_controller.switches.openflow.link import SwitchLink
from lark_controller.switches.openflow.turns import LongSteps, Turns
from tests.fixtures.openflow import Recorder, serving


class Mute(FakeSwitch):
    """A switch that introduces itself and then never says what it holds."""

    def _multipart(self, xid: int, message: bytes) -> None:
        if int.from_bytes(message[8:10]) != 1:  # OFPMP_FLOW
            super()._multipart(xid, message)


def test_switches_that_never_say_what_they_hold_do_not_keep_others_waiting() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            host, port = server.addresses[0]
            for number in range(listener._TURNS + 1):
                await Mute(100 + number).connect(host, port)
            for number in range(1, 4):
                await FakeSwitch(number).connect(host, port)
            for number in range(1, 4):
                await recorder.link(number)
            assert set(server.links) == {1, 2, 3}

    asyncio.run(play())


def test_more_switches_than_turns_are_all_taken_in() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server:
            host, port = server.addresses[0]
            count = 3 * listener._TURNS
            await asyncio.gather(*(FakeSwitch(number).connect(host, port) for number in range(1, count + 1)))
            await recorder.until(lambda: len(server.links) == count)

    asyncio.run(play())


def test_switches_that_callers_wait_for_are_taken_in_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "_TURNS_MEANWHILE", listener._TURNS)

    async def play() -> None:
        recorder = Recorder()
        recorder.first = [50, 7, 20]
        async with serving(recorder) as server, asyncio.timeout(20):
            host, port = server.addresses[0]
            mute = [Mute(100 + number) for number in range(listener._TURNS)]
            for each in mute:
                await each.connect(host, port)
            while server._turns._taken < listener._TURNS:
                await asyncio.sleep(0)
            for number in range(1, 31):
                await FakeSwitch(number).connect(host, port)
            while len(server._turns._waiting) < 30:
                await asyncio.sleep(0)
            for each in mute:
                each.disconnect()
            await recorder.until(lambda: len(server.links) == 30)
            # As many begin at once as there are turns; these two are among them.
            order = [link.datapath for link, _ in recorder.connected]
            assert {7, 20} <= set(order[: listener._TURNS])

    asyncio.run(play())


def test_those_that_wait_begin_together_once_there_are_more_turns() -> None:
    async def play() -> None:
        count = 2
        turns = Turns(lambda: count, list)
        first = [await turns.take(number) for number in (1, 2)]
        others = [asyncio.create_task(turns.take(number)) for number in range(3, 9)]
        await asyncio.sleep(0)
        first[0].end()
        await asyncio.sleep(0)
        assert [each.done() for each in others] == [True] + [False] * 5
        count = 5
        first[1].end()
        await asyncio.sleep(0)
        assert [each.done() for each in others] == [True] * 5 + [False]
        count = 1
        for each in others[:4]:
            (await each).end()
        assert not others[5].done()
        (await others[4]).end()
        (await others[5]).end()

    asyncio.run(play())


def test_few_are_taken_in_while_others_are_not_known_yet() -> None:
    async def play() -> None:
        recorder = Recorder()
        async with serving(recorder) as server, asyncio.timeout(20):
            host, port = server.addresses[0]
            silent = await asyncio.open_connection(host, port)
            while not server._arriving:
                await asyncio.sleep(0)
            assert server._turns_now() == listener._TURNS_MEANWHILE
            for number in range(1, 9):
                await FakeSwitch(number).connect(host, port)
            # One that tells nothing keeps the others for no more than a second.
            await recorder.until(lambda: len(server.links) == 8)
            while server._turns_now() < listener._TURNS:
                await asyncio.sleep(0.05)
            assert server._arriving
            silent[1].close()

    asyncio.run(play())


def test_a_turn_ends_once_and_one_who_has_gone_takes_none() -> None:
    async def play() -> None:
        wanted: list[int] = []
        turns = Turns(lambda: 1, lambda: wanted)
        taken: list[int] = []

        async def switch(number: int) -> None:
            turn = await turns.take(number)
            taken.append(number)
            turn.end()
            turn.end()

        first = await turns.take(1)
        waiting = {number: asyncio.create_task(switch(number)) for number in (2, 3, 4, 5, 6)}
        await asyncio.sleep(0)
        waiting[3].cancel()
        wanted += [6, 5]
        first.end()
        # The one whose turn it is goes at the same moment.
        waiting[6].cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        assert taken == [5, 2, 4]
        (await turns.take(7)).end()

    asyncio.run(play())


class Turning(Recorder):
    """A recorder that notes the turn of the loop in which each switch was reported."""

    def __init__(self) -> None:
        super().__init__()
        self.turn = 0
        self.reported: list[int] = []
        asyncio.get_running_loop().call_soon(self._turned)

    def _turned(self) -> None:
        self.turn += 1
        asyncio.get_running_loop().call_soon(self._turned)

    def switch_connected(self, link: SwitchLink, dump: Dump | None) -> None:
        """Note a switch, and the turn."""
        self.reported.append(self.turn)
        super().switch_connected(link, dump)


def test_a_turn_of_the_loop_reports_one_switch_however_many_answer_at_once() -> None:
    async def play() -> None:
        recorder = Turning()
        async with serving(recorder) as server, asyncio.timeout(20):
            host, port = server.addresses[0]
            count = 3 * listener._TURNS
            await asyncio.gather(*(FakeSwitch(number).connect(host, port) for number in range(1, count + 1)))
            await recorder.until(lambda: len(server.links) == count)
        assert len(set(recorder.reported)) == len(recorder.reported) == count

    asyncio.run(play())


def test_long_steps_have_a_turn_of_the_loop_each_in_the_order_in_which_they_were_asked_for() -> None:
    async def play() -> None:
        steps, turn = LongSteps(), 0
        taken: list[tuple[str, int]] = []

        async def switch(name: str) -> None:
            await steps.begin()
            taken.append((name, turn))

        async def turns(count: int) -> None:
            nonlocal turn
            for _ in range(count):
                await asyncio.sleep(0)
                turn += 1

        tasks = {name: asyncio.create_task(switch(name)) for name in "abcde"}
        await turns(1)
        # Its connection was lost.
        tasks["c"].cancel()
        await turns(8)
        assert [name for name, _ in taken] == ["a", "b", "d", "e"]
        assert len({turn for _, turn in taken}) == 4
        # After a pause the next one waits for nothing.
        began = turn
        last = asyncio.create_task(switch("f"))
        await turns(1)
        assert taken[-1] == ("f", began)
        await asyncio.gather(last, *tasks.values(), return_exceptions=True)

    asyncio.run(play())
