"""Wires pass both ways, and can end a connection for one side alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from tests.chaos.wires import Wire

PATIENCE = 60.0
Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Wire, Side, Side]]:
    """A wire, and both ends of a connection through it."""
    taken: asyncio.Queue[Side] = asyncio.Queue()
    server = await asyncio.start_server(lambda *side: taken.put_nowait(side), "127.0.0.1", 0)
    wire = Wire(server.sockets[0].getsockname()[1])
    await wire.open()
    client = await asyncio.open_connection("127.0.0.1", wire.port)
    client[1].write(b"hello")
    controller = await taken.get()
    assert await controller[0].readexactly(5) == b"hello"
    controller[1].write(b"hello too")
    assert await client[0].readexactly(9) == b"hello too"
    try:
        yield wire, client, controller
    finally:
        client[1].close()
        controller[1].close()
        await wire.close()
        server.close()


def run(test: Callable[[Wire, Side, Side], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(PATIENCE), connected() as (wire, client, controller):
            await test(wire, client, controller)

    asyncio.run(bounded())


async def ended(side: Side) -> bool:
    """Wait for the end of what comes: it is reset, or closed."""
    try:
        return await side[0].read() == b""
    except ConnectionResetError:
        return True


def test_what_is_cut_ends_for_both() -> None:
    async def test(wire: Wire, client: Side, controller: Side) -> None:
        wire.cut()
        assert await ended(client)
        assert await ended(controller)

    run(test)


def test_the_end_of_one_is_that_of_the_other() -> None:
    async def test(_wire: Wire, client: Side, controller: Side) -> None:
        client[1].close()
        assert await ended(controller)

    run(test)


@pytest.mark.parametrize("client_ends", [True, False])
def test_a_connection_that_ends_for_one_side_stands_for_the_other_which_is_answered_nothing(client_ends: bool) -> None:
    async def test(wire: Wire, client: Side, controller: Side) -> None:
        assert wire.carries == 1
        wire.halve(client=client_ends)
        gone, kept = (client, controller) if client_ends else (controller, client)
        assert await ended(gone)
        while wire.carries:
            await asyncio.sleep(0.01)
        for _ in range(10):
            kept[1].write(b"are you there?" * 100_000)
            # Taken whole, though nobody reads it any more.
            await kept[1].drain()
        assert not kept[0].at_eof()
        assert not kept[1].is_closing()
        wire.cut()
        assert await ended(kept)

    run(test)
