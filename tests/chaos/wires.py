"""Wires between the controller and its clients, that can be cut, on one side alone too, and can lose everything for a
while."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

_PIECE: Final = 65_536
_Side = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class _Connection:
    """A client's side and the controller's; ``kept`` is the one that is not to notice the end of the other."""

    client: _Side
    controller: _Side
    kept: _Side | None = None


class Wire:
    """Takes connections on a port of its own and passes what comes to ``target`` on the same machine and back."""

    def __init__(self, target: int) -> None:
        self.port = 0
        self._target = target
        self._passes = asyncio.Event()
        self._passes.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._connections: list[_Connection] = []
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

    @property
    def carries(self) -> int:
        """The number of connections that reach the other side."""
        return len(self._connections)

    def halve(self, *, client: bool) -> None:
        """End all connections for the controller alone, or for the ``client`` alone. The other side's stands, and
        whatever comes there is lost: as where the last packet of a connection is lost, and who sent it is no more."""
        for each in self._connections:
            ended, each.kept = (each.client, each.controller) if client else (each.controller, each.client)
            ended[1].transport.abort()

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
            await self._carry(_Connection((reader, writer), (theirs, others)))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for each in (writer, others):
                if each is not None:
                    self._writers.discard(each)
                    # What was said before the end still arrives.
                    each.close()
            self._tasks.discard(task)

    async def _carry(self, connection: _Connection) -> None:
        """Pass both ways until one side ends, and then take what comes from the side that is kept, if one is."""
        (reader, writer), (theirs, others) = connection.client, connection.controller
        ways = [asyncio.create_task(self._pass(reader, others)), asyncio.create_task(self._pass(theirs, writer))]
        self._connections.append(connection)
        try:
            # Either side's end is the connection's: neither OpenFlow nor the hooks go on in one direction.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._connections.remove(connection)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
        while connection.kept is not None and await connection.kept[0].read(_PIECE):
            pass

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(_PIECE):
            await self._passes.wait()
            writer.write(data)
            await writer.drain()
