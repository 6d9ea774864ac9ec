"""The load generator: many switches on real TCP that send PacketIns and take the time until each is answered.

A process of its own: ``python -m bench.load SUBJECT PORT SWITCHES WINDOW SECONDS`` prints one JSON object. SUBJECT is
``lark`` (a sliced job sends to an address not seen before) or ``learning`` (a known station sends to a known one). An
answer is a flow-mod and the packet-out behind it. WINDOW is how many PacketIns each switch has without an answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import Final

from os_ken.ofproto import ofproto_v1_3 as ofp

from bench.percentiles import percentile
from bench.switches import FIRST_FLOWS
from fake_switch import switchside
from fake_switch.switch import FakeSwitch
from lark_controller.flows.tables import Edge
from lark_controller.switches.openflow.replies import PacketIn

JOB_PORT: Final = 10
STATIONS: Final = 64
# The destinations of one switch's job are the addresses from here on, a range for each switch.
FIRST: Final = 0x0A800000
READY_SECONDS: Final = 60.0
# A controller remembers so many decisions for a switch until they age; a measurement ends before that.
MOST_ASKED: Final = 19_000


@dataclass(frozen=True, slots=True)
class Result:
    """Answers a second, and latency in milliseconds."""

    switches: int
    window: int
    answers: int
    flows: int
    per_second: float
    p50: float
    p99: float


def job_address(switch: int) -> int:
    """The address of the one job on a switch, as an integer."""
    return 0x0A000000 | switch << 8 | 5


def job_mac(switch: int) -> bytes:
    """The MAC address of the one job on a switch."""
    return bytes((2, 0, 0, 1, 0, switch))


def frame(source: bytes, destination: bytes, sender: int, receiver: int) -> bytes:
    """A TCP segment with SYN, padded to the least size of a frame."""
    ip = bytes.fromhex("4500002800004000400600000000000000000000")[:12] + sender.to_bytes(4) + receiver.to_bytes(4)
    tcp = bytes.fromhex("c0000050000000010000000050020400000000000000")[:20]
    return (destination + source + b"\x08\x00" + ip + tcp).ljust(60, b"\0")


class LoadSwitch(FakeSwitch):
    """A switch that asks and takes the time of the answers; everything else it does as any fake switch."""

    def __init__(self, number: int, subject: str) -> None:
        super().__init__(number, {1: "eth0", JOB_PORT: "job0", 11: "job1"})
        self.asking = False
        self.window = 0
        self.flows = 0
        self.latencies: list[float] = []
        self._due: deque[float] = deque()
        self.asked = 0
        self._rest = b""
        self._subject = subject
        mac = job_mac(number)
        if subject == "lark":
            data = frame(mac, b"\x02\0\0\2\0\1", job_address(number), 0)
            sample = switchside.packet_in(0, PacketIn(0, int(Edge.SLICE_FROM), 1, JOB_PORT, 0, data))
            at = sample.index(data) + 30
            self._parts = sample[:at], sample[at + 4 :]
            self._base = FIRST + (number << 16)
        else:
            pairs = [
                frame(_station(one), _station(other), job_address(number), FIRST + other)
                for one in range(STATIONS)
                for other in range(STATIONS)
                if one != other
            ]
            self._messages = [switchside.packet_in(0, PacketIn(0, 0, 0, JOB_PORT, 0, data)) for data in pairs]

    def introduce(self) -> None:
        """Let a learning switch hear of every station, by frames to nobody."""
        for number in range(STATIONS):
            data = frame(_station(number), b"\x02\0\0\xff\xff\xff", job_address(self.datapath), FIRST)
            self.send_raw(switchside.packet_in(0, PacketIn(0, 0, 0, JOB_PORT, 0, data)))

    def ask(self, count: int) -> None:
        """Send the next questions."""
        now = time.perf_counter()
        if self._subject == "lark":
            head, tail = self._parts
            first = self._base + self.asked
            data = b"".join([head + (first + each).to_bytes(4) + tail for each in range(count)])
        else:
            messages, size = self._messages, len(self._messages)
            data = b"".join([messages[(self.asked + each) % size] for each in range(count)])
        self.asked += count
        self._due.extend([now] * count)
        self.send_raw(data)

    def begin(self, window: int) -> None:
        """Have that many questions without an answer from now on."""
        self.window = window
        self._due.clear()
        self.latencies.clear()
        self.flows = 0
        self.ask(window)

    def data_received(self, data: bytes) -> None:
        """Called by the loop."""
        if not self.asking:
            super().data_received(data)
            return
        now = time.perf_counter()
        data = self._rest + data
        at, size, answered = 0, len(data), 0
        while size - at >= 8:
            length = data[at + 2] << 8 | data[at + 3]
            if size - at < length:
                break
            kind = data[at + 1]
            if kind == ofp.OFPT_PACKET_OUT:
                if self._due:
                    self.latencies.append(now - self._due.popleft())
                    answered += 1
            elif kind == ofp.OFPT_FLOW_MOD:
                self.flows += 1
            else:
                super().data_received(data[at : at + length])
            at += length
        self._rest = data[at:]
        if answered and self.window:
            self.ask(answered)


def _station(number: int) -> bytes:
    return bytes((2, 0, 0, 3, 0, number))


async def run(subject: str, port: int, count: int, window: int, seconds: float) -> Result:
    """Connect, wait until the controller answers, then ask for ``seconds``."""
    switches = [LoadSwitch(number, subject) for number in range(1, count + 1)]
    for switch in switches:
        await switch.connect("127.0.0.1", port)
    await _ready(switches, subject)
    for switch in switches:
        switch.begin(window)
    await asyncio.sleep(min(0.5, seconds / 4))
    for switch in switches:
        switch.latencies.clear()
        switch.flows = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds and all(switch.asked < MOST_ASKED for switch in switches):
        await asyncio.sleep(0.05)
    took = time.perf_counter() - started
    latencies = sorted(each for switch in switches for each in switch.latencies)
    flows = sum(switch.flows for switch in switches)
    for switch in switches:
        switch.window = 0
        switch.disconnect()
    return Result(
        count, window, len(latencies), flows, len(latencies) / took,
        percentile(latencies, 50) * 1000, percentile(latencies, 99) * 1000,
    )  # fmt: skip


async def _ready(switches: list[LoadSwitch], subject: str) -> None:
    """Wait until every switch has its first flows and the controller answers it."""
    deadline = time.perf_counter() + READY_SECONDS
    while not all(
        switch.tables.entries and switch.barriers >= (FIRST_FLOWS if subject == "lark" else 0) for switch in switches
    ):
        if time.perf_counter() > deadline:
            raise TimeoutError("not every switch was given its flows")
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)
    for switch in switches:
        if subject == "learning":
            switch.introduce()
    await asyncio.sleep(0.3)
    for switch in switches:
        switch.asking = True
        switch.ask(1)
    while not all(switch.latencies for switch in switches):
        if time.perf_counter() > deadline:
            raise TimeoutError("not every switch was answered")
        await asyncio.sleep(0.02)


def main(arguments: list[str]) -> None:
    """Runs by the command line; prints the result."""
    subject, port, count, window, seconds = arguments
    print(json.dumps(asdict(asyncio.run(run(subject, int(port), int(count), int(window), float(seconds))))))


if __name__ == "__main__":
    main(sys.argv[1:])
