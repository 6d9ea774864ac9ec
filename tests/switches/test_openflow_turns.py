"""Switches are compared a few at a time, and those that never finish keep nobody waiting."""

from __future__ import annotations

import asyncio

from fake_switch.switch import FakeSwitch
from lark_controller.switches.openflow import server as listener
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
