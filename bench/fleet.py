"""Thousands of played switches in a process of their own: ``python -m bench.fleet PORTS WORKERS JOB_PORTS``.

They keep and check every flow (:mod:`fake_switch.stored`), connect again when they lose the controller, and do what
lines on the standard input have, each answered by a line of JSON: ``connect`` begins to connect them; ``counts`` has
how many are connected, what they hold and what they were sent since ``forget``; ``digests N ...`` has digests of what
these hold; ``port P`` is where the controller listens from now on; ``busy`` lets flows' counters grow; ``masters``
has when (``time.monotonic``) each has got a master since ``forget``; ``unmarked`` how many workers'
switches have no marker. PORTS are those of several controllers, with commas between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Final, Self

from bench.population import CORE, FIRST_PORT
from bench.switches import Switches
from fake_switch.stored import StoredSwitch
from lark_controller.cli.open_files import raise_open_files
from lark_controller.flows.marker import MARKERS
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.switches.openflow.replies import PortInfo

CORES: Final = (CORE, CORE + 1)
# How many connect at the same moment, and how long a switch waits before it tries again, in seconds.
AT_ONCE: Final = 64
PAUSE: Final = 0.2
# The same where it has several controllers: as docs/how-to/open-vswitch.md sets it (max_backoff).
BACKOFF: Final = 1.0
# Where a flow-mod has its cookie and its table (OpenFlow 1.3.5, section 7.3.4.1).
_COOKIE: Final = 8
_TABLE: Final = 24


def edge_ports(count: int) -> dict[int, str]:
    """The ports of every worker's bridge, by number."""
    return {1: "eth0", PORT_LOCAL: "local", **{FIRST_PORT + number: f"job{number}" for number in range(count)}}


def own_address(datapath: int) -> str:
    """The address of a switch, on the loopback interface: no two workers have the same."""
    return f"127.{1 + (datapath >> 16 & 127)}.{datapath >> 8 & 255}.{datapath & 255}"


CORE_PORTS: Final = {1: "p1", 2: "p2", 3: "p3"}


def port_infos(named: dict[int, str]) -> dict[int, PortInfo]:
    """The ports of a switch."""
    return {
        number: PortInfo(number, name, f"02:00:00:00:{number >> 8 & 255:02x}:{number & 255:02x}", True, False)
        for number, name in named.items()
    }


class Mastered(StoredSwitch):
    """A switch that notes, since its counts were forgotten, when it got a master and how many flow-mods changed what it
    does with packets: tries of what it can, and markers, change nothing."""

    mastered = 0.0
    changed = 0

    def forget_counts(self) -> None:
        """Count from now on, and forget when it got a master."""
        super().forget_counts()
        self.mastered, self.changed = 0.0, 0

    def _flow_mod(self, xid: int, message: bytes) -> None:
        super()._flow_mod(xid, message)
        # Of both, the table is the last one, which no packet comes to; markers are removed from all tables at a time.
        value, mask = MARKERS
        is_marker = int.from_bytes(message[_COOKIE : _COOKIE + 8]) & mask == value
        self.changed += message[_TABLE] != self._n_tables - 1 and not is_marker

    def _role_request(self, xid: int, message: bytes) -> None:
        super()._role_request(xid, message)
        if not self.mastered and self.masters.is_master(self):
            self.mastered = time.monotonic()


class Fleet:
    """All switches, on one event loop; each is connected to all controllers that listen."""

    def __init__(self, ports: list[int], workers: int, job_ports: int) -> None:
        self.ports = ports
        edge, core = port_infos(edge_ports(job_ports)), port_infos(CORE_PORTS)
        self.switches = {number: Mastered(number, edge) for number in range(1, workers + 1)}
        self.switches |= {number: Mastered(number, core) for number in CORES}
        # The connections of each switch, one for each controller.
        self.connections = {
            number: (switch, *(switch.another() for _ in ports[1:])) for number, switch in self.switches.items()
        }
        self._tasks: list[asyncio.Task[None]] = []
        self._places = asyncio.Semaphore(AT_ONCE)

    def connect(self) -> None:
        """Connect all, and again whenever a connection ends."""
        self._tasks = [
            asyncio.create_task(self._stay(connection, place))
            for connections in self.connections.values()
            for place, connection in enumerate(connections)
        ]

    async def _stay(self, connection: StoredSwitch, place: int) -> None:
        while True:
            with contextlib.suppress(OSError):
                async with self._places:
                    await connection.connect("127.0.0.1", self.ports[place], own=own_address(connection.datapath))
                await connection.closed.wait()
            await asyncio.sleep(PAUSE if len(self.ports) == 1 else BACKOFF)

    def counts(self) -> dict[str, int]:
        """The contents of all of them, and what they were sent."""
        every = [each for connections in self.connections.values() for each in connections]
        return {
            "connected": sum(
                any(not each.closed.is_set() and each.barriers > 0 for each in connections)
                for connections in self.connections.values()
            ),
            "flows": sum(len(switch.flows) for switch in self.switches.values()),
            "largest": max(len(switch.flows) for number, switch in self.switches.items() if number not in CORES),
            "core": len(self.switches[CORE].flows),
            "flow_mods": sum(switch.flow_mods for switch in every),
            "rounds": sum(switch.rounds for switch in every),
            "changed": sum(switch.changed for switch in every),
            "untouched": sum(
                not any(each.flow_mods for each in connections) for connections in self.connections.values()
            ),
            "refused": sum(switch.refused for switch in every),
        }

    def masters(self) -> dict[str, list[float]]:
        """The time at which each of them got a master, since the counts were forgotten; 0 where it has none yet."""
        return {"at": [max(each.mastered for each in connections) for connections in self.connections.values()]}

    def unmarked(self) -> dict[str, int]:
        """The number of workers' switches that have no marker."""
        cookie, mask = MARKERS
        return {
            "edges": sum(
                # A marker is the last flow that a switch was given.
                not any((value[0] ^ cookie) & mask == 0 for value in reversed(switch.flows.values()))
                for number, switch in self.switches.items()
                if number not in CORES
            )
        }

    def forget(self) -> None:
        """Count from now on."""
        for connections in self.connections.values():
            for each in connections:
                each.forget_counts()


async def serve(ports: list[int], workers: int, job_ports: int) -> None:
    """Carry out the standard input's commands until it ends."""
    raise_open_files()
    fleet = Fleet(ports, workers, job_ports)
    # A collection here would stop every switch for a moment, and be taken for the controller's latency.
    gc.freeze()
    gc.disable()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, *arguments = line.split()
        found: dict[str, Any] = {}
        if command == "connect":
            fleet.connect()
        elif command == "counts":
            found = fleet.counts()
        elif command == "forget":
            fleet.forget()
        elif command == "busy":
            for each in (each for connections in fleet.connections.values() for each in connections):
                each.busy = True
        elif command == "port":
            fleet.ports = [int(arguments[0])]
        elif command == "masters":
            found = fleet.masters()
        elif command == "unmarked":
            found = fleet.unmarked()
        elif command == "digests":
            found = {number: fleet.switches[int(number)].digest() for number in arguments}
        print(json.dumps(found), flush=True)


class PlayedSwitches(Switches):
    """The process, from the side of the measurement; its switches connect on command."""

    def __init__(self, ports: int | Sequence[int], workers: int, job_ports: int) -> None:
        listed = str(ports) if isinstance(ports, int) else ",".join(map(str, ports))
        self._command = [sys.executable, "-m", "bench.fleet", listed, str(workers), str(job_ports)]

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        return self


if __name__ == "__main__":
    asyncio.run(serve([int(port) for port in sys.argv[1].split(",")], int(sys.argv[2]), int(sys.argv[3])))
