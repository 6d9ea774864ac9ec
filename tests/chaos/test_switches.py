"""The played switches notice, as real ones do, that the other side of their connection is no more."""

from __future__ import annotations

import asyncio

from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.marker import Marker
from tests.chaos.switches import Played, as_texts

# Shorter than a real one, so that the tests need not wait; nothing is measured by it.
PROBE = 0.05
PATIENCE = 60.0
_HEADER = 8
_ECHO_REQUEST = 2


class Silent(asyncio.Protocol):
    """The end of a connection that is no more: whatever comes is remembered, and nothing answered."""

    def __init__(self, made: asyncio.Queue[Silent]) -> None:
        self.taken = bytearray()
        self._made = made

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._made.put_nowait(self)

    def data_received(self, data: bytes) -> None:
        self.taken += data


def types(taken: bytes) -> list[int]:
    """The types of the messages in a stream of them."""
    found, at = [], 0
    while at + _HEADER <= len(taken):
        found.append(taken[at + 1])
        at += int.from_bytes(taken[at + 2 : at + 4])
    return found


def test_a_switch_that_hears_nothing_asks_and_then_connects_anew() -> None:
    async def connections() -> list[int]:
        made: asyncio.Queue[Silent] = asyncio.Queue()
        server = await asyncio.get_running_loop().create_server(lambda: Silent(made), "127.0.0.1", 0)
        staying = asyncio.create_task(Played(1, {}, probe=PROBE).stay(server.sockets[0].getsockname()[1]))
        try:
            async with asyncio.timeout(PATIENCE):
                first = await made.get()
                await made.get()
            return types(bytes(first.taken))
        finally:
            staying.cancel()
            server.close()

    assert _ECHO_REQUEST in asyncio.run(connections())


def test_one_that_is_ended_as_its_connection_ends_is_ended() -> None:
    async def ends() -> bool:
        made: asyncio.Queue[Silent] = asyncio.Queue()
        server = await asyncio.get_running_loop().create_server(lambda: Silent(made), "127.0.0.1", 0)
        switch = Played(1, {})
        staying = asyncio.create_task(switch.stay(server.sockets[0].getsockname()[1]))
        async with asyncio.timeout(PATIENCE):
            await made.get()
            while not switch.connected:
                await asyncio.sleep(0)
        # Let it begin to wait, and then learn of both in one turn.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        switch.closed.set()
        await asyncio.sleep(0)
        staying.cancel()
        await asyncio.wait([staying], timeout=PATIENCE)
        ended = staying.done()
        staying.cancel()
        server.close()
        return ended

    assert asyncio.run(ends())


class Stalled(Played):
    """A switch that does not read from the first moment of each connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.stall()


def test_a_switch_that_does_not_read_asks_nothing_until_it_reads_again() -> None:
    async def connections() -> tuple[int, int]:
        made: asyncio.Queue[Silent] = asyncio.Queue()
        server = await asyncio.get_running_loop().create_server(lambda: Silent(made), "127.0.0.1", 0)
        switch = Stalled(1, {}, probe=PROBE)
        staying = asyncio.create_task(switch.stay(server.sockets[0].getsockname()[1]))
        try:
            async with asyncio.timeout(PATIENCE):
                first = await made.get()
                await asyncio.sleep(20 * PROBE)
                before = types(bytes(first.taken)).count(_ECHO_REQUEST), made.qsize()
                switch.resume()
                await made.get()
            return before
        finally:
            staying.cancel()
            server.close()

    assert asyncio.run(connections()) == (0, 0)


def test_flows_that_change_while_they_are_looked_at_are_those_of_one_moment() -> None:
    flows: dict[tuple[int, int, bytes], tuple[int, int, int, int, bytes]] = {}

    class Changing(bytes):
        """A match at whose sight another flow comes."""

        def hex(self, *_: object) -> str:
            flows[2, 1, b""] = (0, 0, 0, 0, b"")
            return "aa"

    flows[1, 1, Changing(b"a")] = (0, 0, 0, 0, b"")
    assert list(as_texts(flows)) == ["table 1 priority 1 match aa"]


def test_a_marker_is_part_of_no_program() -> None:
    marker = Marker(7, 2, normal=True, tracks=True).flow(253)
    own = cookie(Category.SLICE, 1)
    flows = {(1, 1, b"a"): (own, 0, 0, 0, b""), (253, 0, b"b"): (marker.data.cookie, 0, 0, 0, b"")}
    assert list(as_texts(flows)) == ["table 1 priority 1 match 61"]
