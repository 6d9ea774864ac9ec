"""Reactive decisions: Lark beside os-ken's learning switch, the same load by turns."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from bench.http import Client
from bench.load import job_address, job_mac
from bench.percentiles import median
from bench.process import Lark

POLICY: Final = """\
version: 1
networks: {local: [10.0.0.0/8]}
policies:
  - slice: {by: Owner}
"""
# Switches and PacketIns under way for each of them: one alone, each one at a time, many at a time.
LOADS: Final = ((1, 1), (4, 1), (16, 8))


def measure(rounds: int, seconds: float, loads: tuple[tuple[int, int], ...] = LOADS) -> dict[str, Any]:
    """All loads, ``rounds`` times by turns; medians of the rounds, and Lark's rate over the reference's."""
    found: dict[tuple[str, int, int], list[dict[str, float]]] = {}
    for turn in range(rounds):
        for count, window in loads:
            for subject in ("lark", "learning") if turn % 2 == 0 else ("learning", "lark"):
                with lark(count) if subject == "lark" else learning_switch() as port:
                    found.setdefault((subject, count, window), []).append(load(subject, port, count, window, seconds))
    rows = []
    for count, window in loads:
        row: dict[str, Any] = {"switches": count, "window": window}
        for subject in ("lark", "learning"):
            runs = found[subject, count, window]
            row[subject] = {name: median([run[name] for run in runs]) for name in ("per_second", "p50", "p99")}
        pairs = zip(found["lark", count, window], found["learning", count, window], strict=True)
        row["ratios"] = [one["per_second"] / other["per_second"] for one, other in pairs]
        row["ratio"] = median(row["ratios"])
        rows.append(row)
    return {"rounds": rounds, "seconds": seconds, "rows": rows}


def load(subject: str, port: int, count: int, window: int, seconds: float) -> dict[str, float]:
    """Run the load generator in a process of its own."""
    command = [sys.executable, "-m", "bench.load", subject, *map(str, (port, count, window, seconds))]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 90)
    found: dict[str, float] = json.loads(done.stdout)
    return found


@contextmanager
def lark(count: int) -> Iterator[int]:
    """A controller with one sliced job on each switch; its OpenFlow port."""
    with tempfile.TemporaryDirectory() as directory, Lark(Path(directory), POLICY) as controller:
        asyncio.run(_register(controller, count))
        yield controller.openflow


async def _register(controller: Lark, count: int) -> None:
    client = Client(controller.rest, controller.token)
    for number in range(1, count + 1):
        answer = await client.request("POST", "/v1/jobs", _ads(number).encode())
        if answer.status != 201:
            raise RuntimeError(f"a job was not taken in: {answer.status} {answer.body!r}")
    client.close()


def _ads(number: int) -> str:
    address = ".".join(map(str, job_address(number).to_bytes(4)))
    return (
        f'GlobalJobId = "submit.example#{number}.0#1"\nJobCurrentStartDate = 1\nOwner = "user{number}"\n------\n'
        f'Machine = "worker{number}"\nName = "slot1@worker{number}"\nLarkNetworkType = "ovs_bridge"\n'
        f'LarkAddressType = "static"\nLarkInnerAddressIPv4 = "{address}"\nLarkExternalInterface = "job0"\n'
        f'LarkInnerMacAddress = "{job_mac(number).hex(":")}"\nLarkDatapathId = "{number:016x}"\n'
    )


@contextmanager
def learning_switch() -> Iterator[int]:
    """The reference in a process of its own; its OpenFlow port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.learning_switch", str(port)], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    )
    try:
        _wait_for(port, process)
        yield port
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.05)
        else:
            return
    raise RuntimeError("the learning switch does not listen")
