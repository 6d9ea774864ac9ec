"""Requests whose callers have given up: their ends are errors that nobody would read."""

from __future__ import annotations

import asyncio
import gc
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch.switch import FakeSwitch
from lark_controller.switches.openflow import wire
from lark_controller.switches.openflow.link import SwitchLink
from tests.fixtures.openflow import Recorder, on_a_switch
from tests.switches.test_kept import until


@contextmanager
def nothing_unread(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """The loop has nothing to complain of."""
    unread: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _loop, context: unread.append(context))
    yield
    gc.collect()
    assert unread == []


@pytest.mark.parametrize("end", ["answer", "refusal", "loss", "timeout"])
def test_a_request_ends_in_silence_once_its_caller_has_given_up(end: str) -> None:
    async def play(_recorder: Recorder, fake: FakeSwitch, link: SwitchLink) -> None:
        asked: list[int] = []
        fake._multipart = lambda xid, message: asked.append(xid)  # type: ignore[method-assign]
        fake._answers = fake._all_answers()
        with nothing_unread(asyncio.get_running_loop()):
            link.port_counters(timeout=0.01 if end == "timeout" else 60.0).cancel()
            assert link.requests._waiting
            await until(lambda: asked)
            if end == "answer":
                fake.send_raw(
                    wire.header(ofp.OFPT_MULTIPART_REPLY, asked[0], struct.pack("!HH4x", ofp.OFPMP_PORT_STATS, 0))
                )
            elif end == "refusal":
                fake.send_raw(wire.header(ofp.OFPT_ERROR, asked[0], struct.pack("!HH", ofp.OFPET_BAD_REQUEST, 0)))
            elif end == "loss":
                fake.disconnect()
            await until(lambda: not link.requests._waiting)

    on_a_switch(play)
