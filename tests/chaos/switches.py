"""The played switches: they keep every flow, come back by themselves, and their ports count."""

from __future__ import annotations

import asyncio
import time
from typing import Final

from bench.fleet import port_infos
from fake_switch.stored import StoredSwitch
from lark_controller.switches.openflow.replies import PortCounters, PortInfo
from tests.chaos.checker import Place
from tests.chaos.pool import CORE, CORE_PORTS, FIRST_PORT, edge_ports

PAUSE: Final = 0.3
TICK: Final = 0.5
# Ports are older than any job, so that what a port had counted before a job came is not the job's.
AGE: Final = 100_000.0
_PACKET: Final = 1000


class Played(StoredSwitch):
    """One switch. ``there`` is cleared while it is away."""

    def __init__(self, datapath: int, ports: dict[int, PortInfo]) -> None:
        super().__init__(datapath, ports)
        self.there = asyncio.Event()
        self.there.set()

    async def stay(self, port: int) -> None:
        """Connect, and again whenever the connection ends, while it is there."""
        while True:
            await self.there.wait()
            try:
                await self.connect("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(PAUSE)
                continue
            await self.closed.wait()
            await asyncio.sleep(PAUSE)

    def leave(self) -> None:
        """Be away until ``there`` is set."""
        self.there.clear()
        self.disconnect()

    def forget(self) -> None:
        """Hold nothing any more, as a switch that was switched off."""
        self.flows.clear()


class Fleet:
    """All switches: ``workers`` edges, each with a port for each slot, and a core."""

    def __init__(self, workers: int, slots: int) -> None:
        self.slots = slots
        edge = port_infos(edge_ports(slots))
        self.switches = {number: Played(number, edge) for number in range(1, workers + 1)}
        self.edges = tuple(self.switches.values())
        self.switches[CORE] = Played(CORE, port_infos(CORE_PORTS))
        self._tasks: list[asyncio.Task[None]] = []
        self._began = time.monotonic()

    def start(self, port: int) -> None:
        """Connect all, and let traffic pass."""
        self._tasks = [asyncio.create_task(switch.stay(port)) for switch in self.switches.values()]
        self._tasks.append(asyncio.create_task(self._traffic()))

    async def stop(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for switch in self.switches.values():
            switch.disconnect()

    def counted(self) -> dict[Place, tuple[int, int]]:
        """Bytes from and to each port of a job."""
        return {
            (edge.datapath, f"job{number - FIRST_PORT}"): (counters.rx_bytes, counters.tx_bytes)
            for edge in self.edges
            for number, counters in edge.counted.items()
        }

    async def _traffic(self) -> None:
        turn = 0
        while True:
            await asyncio.sleep(TICK)
            turn += 1
            age = AGE + time.monotonic() - self._began
            for edge in self.edges:
                for number in range(FIRST_PORT, FIRST_PORT + self.slots):
                    edge.counted[number] = _more(edge.counted.get(number), number, 1 + (turn + number) % 7, age)


def _more(before: PortCounters | None, number: int, packets: int, age: float) -> PortCounters:
    old = before or PortCounters(number, 0, 0, 0, 0, 0, 0, age)
    return PortCounters(
        number, old.rx_packets + packets, old.tx_packets + 2 * packets, old.rx_bytes + packets * _PACKET,
        old.tx_bytes + 2 * packets * _PACKET, 0, 0, age,
    )  # fmt: skip


def as_texts(flows: dict[tuple[int, int, bytes], tuple[int, int, int, int, bytes]]) -> dict[str, str]:
    """A switch's flows as the checker compares them."""
    return {
        f"table {table} priority {priority} match {match.hex()}": f"cookie {value[0]:x} {value[1:4]} {value[4].hex()}"
        for (table, priority, match), value in flows.items()
    }
