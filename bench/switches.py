"""Many fake switches in a process of their own: ``python -m bench.switches PORT FIRST COUNT``.

It follows the lines on its standard input, and answers each by a line of JSON: ``stall N`` lets switch N stop
reading, and again whenever it was disconnected and has come back in sync; ``counts`` has what all switches hold and
how many PacketIns they sent; ``packets N`` lets every switch N get frames for its jobs and from them.
"""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
import time
from types import TracebackType
from typing import Any, Final, Self

from bench.population import CORE, ports
from fake_switch.switch import FakeSwitch
from lark_controller.cli.open_files import raise_open_files
from lark_controller.switches.openflow.replies import PacketIn

AT_ONCE: Final = 64
PATIENCE: Final = 300.0
# Barriers until a switch has been given its first flows: two belong to the probe for NORMAL.
FIRST_FLOWS: Final = 3


class CountingSwitch(FakeSwitch):
    """A fake switch that counts what it sends to the controller as PacketIns."""

    packet_ins = 0

    def packet_in(self, packet: PacketIn) -> None:
        """Count it, and send it."""
        self.packet_ins += 1
        super().packet_in(packet)


class Stall:
    """One switch that does not read: it takes its first flows, and no more until it is disconnected."""

    def __init__(self, switch: FakeSwitch, port: int) -> None:
        self._switch = switch
        self._port = port
        self.times = 0

    async def run(self) -> None:
        """For ever."""
        switch = self._switch
        while True:
            switch.stall()
            self.times += 1
            # A stalled switch sees nothing of its connection's end but a write that fails, so it writes now and then.
            while not switch.closed.is_set():
                switch.send_raw(b"\x04\x03\x00\x08\x00\x00\x00\x00")
                await asyncio.sleep(0.2)
            seen = switch.barriers
            await switch.connect("127.0.0.1", self._port)
            while switch.barriers < seen + FIRST_FLOWS:
                await asyncio.sleep(0.05)


async def serve(port: int, first: int, count: int) -> None:
    """Connect all switches, then carry out the standard input's commands until it ends."""
    raise_open_files()
    named = {number: name for name, number in ports().items()}
    switches: dict[int, CountingSwitch] = {}
    for datapath in range(first, first + count):
        switches[datapath] = CountingSwitch(datapath, named)
    switches[CORE] = CountingSwitch(CORE, {1: "p1", 2: "p2", 3: "p3"})
    everyone = list(switches.values())
    for begin in range(0, len(everyone), AT_ONCE):
        await asyncio.gather(*(switch.connect("127.0.0.1", port) for switch in everyone[begin : begin + AT_ONCE]))
    deadline = time.monotonic() + PATIENCE
    while not all(switch.barriers >= FIRST_FLOWS for switch in everyone):
        if time.monotonic() > deadline:
            raise TimeoutError("not every switch was given its flows")
        await asyncio.sleep(0.05)
    # A collection here would stop every switch for half a second, and be taken for the controller's latency.
    gc.freeze()
    gc.disable()
    say({"connected": len(everyone)})
    tasks = []
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command, *arguments = line.split()
        if command == "stall":
            stall = Stall(switches[int(arguments[0])], port)
            tasks.append(asyncio.create_task(stall.run()))
            say({})
        elif command == "counts":
            say(
                {
                    "flows": sum(len(switch.tables) for switch in everyone),
                    "core": len(switches[CORE].tables),
                    "away": sum(switch.closed.is_set() for switch in everyone),
                    "packet_ins": sum(switch.packet_ins for switch in everyone),
                }
            )
    for task in tasks:
        task.cancel()


def say(found: dict[str, Any]) -> None:
    """Answer with one line."""
    print(json.dumps(found), flush=True)


class Switches:
    """The process, from the side of the measurement. Entered once all switches hold their first flows."""

    def __init__(self, port: int, count: int, first: int = 1) -> None:
        self._command = [sys.executable, "-m", "bench.switches", str(port), str(first), str(count)]
        self.seconds = 0.0

    def __enter__(self) -> Self:
        started = time.perf_counter()
        self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()
        self.seconds = time.perf_counter() - started
        return self

    def tell(self, *words: object) -> dict[str, Any]:
        """Say a line, and take the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, words)) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the fake switches have ended")
        found: dict[str, Any] = json.loads(line)
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()


if __name__ == "__main__":
    asyncio.run(serve(*map(int, sys.argv[1:4])))
