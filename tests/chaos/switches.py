"""The played switches: they keep every flow, come back by themselves, and their ports count."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Final, Self

from bench.fleet import port_infos
from fake_switch.stored import StoredSwitch
from lark_controller.flows.marker import MARKERS
from lark_controller.switches.openflow import wire
from lark_controller.switches.openflow.replies import PortCounters, PortInfo
from tests.chaos.checker import Place
from tests.chaos.pool import CORE, CORE_PORTS, FIRST_PORT, edge_ports

PAUSE: Final = 0.3
TICK: Final = 0.5
# Seconds without a message after which a switch asks whether the controller is there, and as many more until it
# connects anew: inactivity_probe of Open vSwitch (ovs-vswitchd.conf.db(5)), as docs/how-to/open-vswitch.md sets it.
PROBE: Final = 5.0
# Ports are older than any job, so that what a port had counted before a job came is not the job's.
AGE: Final = 100_000.0
_PACKET: Final = 1000


class Played(StoredSwitch):
    """One switch. ``there`` is cleared while it is away; ``probe`` is as :data:`PROBE`."""

    def __init__(self, datapath: int, ports: dict[int, PortInfo], *, probe: float = PROBE) -> None:
        super().__init__(datapath, ports)
        self.there = asyncio.Event()
        self.there.set()
        self._probe = probe
        # Flow-mods that were carried out, while the switch had a generation, of a connection that was no master's.
        self.unfenced = 0

    def _flow_mod(self, xid: int, message: bytes) -> None:
        if self.masters.generation is not None and not self.masters.is_master(self):
            self.unfenced += 1
        super()._flow_mod(xid, message)

    def another(self) -> Self:
        """The same switch, for a connection to one more controller."""
        more = super().another()
        more.unfenced = 0
        return more

    @property
    def connected(self) -> bool:
        """True while it has a connection, as far as it has noticed."""
        return self._transport is not None

    async def stay(self, port: int) -> None:
        """Connect, and again whenever the connection ends or nothing comes any more, while it is there."""
        while True:
            await self.there.wait()
            try:
                await self.connect("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(PAUSE)
                continue
            await self._connected()
            await asyncio.sleep(PAUSE)

    async def _connected(self) -> None:
        """Wait for the connection's end, and end it where the other side is no more: its last packet may be lost."""
        asked = False
        while not self.closed.is_set():
            before = self.received
            with contextlib.suppress(TimeoutError):
                # Not wait_for, which in Python 3.11 forgets that the task is to end where both come in one turn.
                async with asyncio.timeout(self._probe):
                    await self.closed.wait()
            # One that does not read does nothing else either.
            if self._transport is None or not self._transport.is_reading() or self.received != before:
                asked = False
            elif asked:
                self._transport.abort()
                await self.closed.wait()
            else:
                self.send_raw(wire.echo_request(1))
                asked = True

    def leave(self) -> None:
        """Be away until ``there`` is set."""
        self.there.clear()
        self.disconnect()

    def forget(self) -> None:
        """Hold nothing any more, as a switch that was switched off."""
        self.flows.clear()
        self.masters.forget()


class Fleet:
    """All switches: ``workers`` edges, each with a port for each slot, and a core."""

    def __init__(self, workers: int, slots: int) -> None:
        self.slots = slots
        edge = port_infos(edge_ports(slots))
        self.switches = {number: Played(number, edge) for number in range(1, workers + 1)}
        self.edges = tuple(self.switches.values())
        self.switches[CORE] = Played(CORE, port_infos(CORE_PORTS))
        # The connections of each switch, one for each controller.
        self.connections: dict[int, tuple[Played, ...]] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._began = time.monotonic()

    def start(self, *ports: int) -> None:
        """Connect each switch to the controllers at these ports, and let traffic pass."""
        self.connections = {
            number: (switch, *(switch.another() for _ in ports[1:])) for number, switch in self.switches.items()
        }
        self._tasks = [
            asyncio.create_task(connection.stay(port))
            for connections in self.connections.values()
            for connection, port in zip(connections, ports, strict=True)
        ]
        self._tasks.append(asyncio.create_task(self._traffic()))

    async def stop(self) -> None:
        """End all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for connections in self.connections.values():
            for connection in connections:
                connection.disconnect()

    def counted(self) -> dict[Place, tuple[int, int]]:
        """Bytes from and to each port of a job; they may grow meanwhile."""
        return {
            (edge.datapath, f"job{number - FIRST_PORT}"): (counters.rx_bytes, counters.tx_bytes)
            for edge in self.edges
            for number, counters in list(edge.counted.items())
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
    """A switch's flows as the checker compares them; they may change meanwhile. A marker is part of no program."""
    marker, mask = MARKERS
    # Copied in one step: the switches' loop goes on beside the thread that looks.
    held = flows.copy()
    return {
        f"table {table} priority {priority} match {match.hex()}": f"cookie {value[0]:x} {value[1:4]} {value[4].hex()}"
        for (table, priority, match), value in held.items()
        if value[0] & mask != marker
    }
