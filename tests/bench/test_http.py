"""The benchmarks' HTTP client beside a server that closes connections."""

from __future__ import annotations

import asyncio

import pytest

from bench.http import Client

ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}"


async def _asked(partial: bytes) -> list[bytes]:
    """Ask twice; the first connection is reset at its second request, after ``partial`` was sent."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(asked)
        while (line := await reader.readline()) and b"HTTP" in line:
            await reader.readuntil(b"\r\n\r\n")
            asked.append(line.split()[1])
            if number == 0 and len(asked) == 2:
                writer.write(partial)
                writer.close()
                return
            writer.write(ANSWER)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        client = Client(server.sockets[0].getsockname()[1], "")
        for path in ("/one", "/two"):
            assert (await client.request("POST", path)).status == 201
        client.close()
    return asked


def test_a_request_that_meets_the_end_of_an_idle_connection_is_sent_on_another() -> None:
    assert asyncio.run(_asked(b"")) == [b"/one", b"/two", b"/two"]


def test_a_request_of_which_an_answer_began_is_not_sent_again() -> None:
    with pytest.raises(asyncio.IncompleteReadError):
        asyncio.run(_asked(b"HTTP/1.1 2"))
