"""A small HTTP/1.1 client with keep-alive connections, so that hundreds of requests may be under way at a time."""

from __future__ import annotations

import asyncio
import json
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """Status and body of an answer."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


class Client:
    """Requests to one server; an idle connection is used again, else one is opened."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._token = token
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def open(self, count: int) -> None:
        """Open connections beforehand."""
        self._idle += [await asyncio.open_connection("127.0.0.1", self._port) for _ in range(count)]

    async def request(self, method: str, path: str, body: bytes = b"", kind: str = "text/plain") -> Answer:
        """Send a request and read the answer."""
        message = (
            f"{method} {path} HTTP/1.1\r\nHost: lark\r\nAuthorization: Bearer {self._token}\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        while self._idle:
            connection = self._idle.pop()
            try:
                # The server closes a connection on which nothing was asked for a while.
                if not connection[0].at_eof():
                    return await self._answer(connection, message)
            except (ConnectionError, asyncio.IncompleteReadError) as error:
                # It may do so while a request is on its way. One of which something came back is not repeated.
                if isinstance(error, asyncio.IncompleteReadError) and error.partial:
                    raise
            connection[1].close()
        return await self._answer(await asyncio.open_connection("127.0.0.1", self._port), message)

    async def _answer(self, connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], message: bytes) -> Answer:
        reader, writer = connection
        writer.write(message)
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(head.split("content-length:", 1)[1].split("\r\n", 1)[0])
        answer = Answer(int(head.split(" ", 2)[1]), await reader.readexactly(length))
        if "connection: close" in head:
            writer.close()
        else:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        """Close all connections."""
        for _, writer in self._idle:
            writer.close()
        self._idle.clear()
