"""Wires between the controller and its clients, that can be cut and can lose everything for a while."""

from __future__ import annotations

import asyncio
from typing import Final

_PIECE: Final = 65_536


class Wire:
    """Takes connections on a port of its own and passes what comes to ``target`` on the same machine and back."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Take connections from now on."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def lose(self) -> None:
        """Let nothing pass until :meth:`restore`, as where every packet is lost."""
        self._passes.clear()

    def restore(self) -> None:
        """Let pass what has waited."""
        self._passes.set()

    def cut(self) -> None:
        """Reset all connections; what is under way is lost."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        """End the connections, and take no more."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        others: asyncio.StreamWriter | None = None
        try:
            await self._passes.wait()
            theirs, others = await asyncio.open_connection("127.0.0.1", self._target)
            self._writers.add(others)
            await asyncio.gather(self._pass(reader, others), self._pass(theirs, writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in (writer, others):
                if each is not None:
                    self._writers.discard(each)
                    # What was said before the end still arrives.
                    each.close()
            self._tasks.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_PIECE):
            await self._passes.wait()
            writer.write(data)
            await writer.drain()
        # Either side's end is the connection's: neither OpenFlow nor the hooks go on in one direction.
        raise ConnectionResetError
