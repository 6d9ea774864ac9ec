"""Traffic to look at: datagrams from a host, at a rate that swings, and whoever answers some of them.

``traffic.py send ADDRESS MBIT PERIOD`` and ``traffic.py answer ADDRESS…`` run in a host's network namespace, on the
standard library alone. :func:`start` starts what the demo shows.
"""

from __future__ import annotations

import math
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from demo.topology import Topology

PORT: Final = 5009
SIZE: Final = 1200
# One answer for so many datagrams.
ANSWERED: Final = 3
TICK: Final = 0.02


def start(topology: Topology, senders: Mapping[str, tuple[tuple[str, float], ...]]) -> list[subprocess.Popen[str]]:
    """Start the senders, by host: each sends to some addresses at so many Mb/s on average; returns the processes."""
    program = [sys.executable, str(Path(__file__).resolve())]
    hosts = topology.net.hosts
    answering = sorted({address for targets in senders.values() for address, _ in targets})
    started = []
    for host in hosts.values():
        own = {str(address.ip) for address in host.addresses}
        if here := [address for address in answering if address in own]:
            started.append(topology.net.start(host, [*program, "answer", *here]))
    for number, (name, targets) in enumerate(senders.items()):
        for address, rate in targets:
            command = [*program, "send", address, f"{rate:g}", f"{40 + 9 * number}"]
            started.append(topology.net.start(hosts[name], command))
    return started


def send(address: str, mbit: float, period: float) -> None:
    """Send for ever, on average ``mbit`` Mb/s, in waves of ``period`` seconds."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    data = bytes(SIZE)
    began = last = time.monotonic()
    owed = 0.0
    with socket.socket(family, socket.SOCK_DGRAM) as out:
        while True:
            now = time.monotonic()
            wave = 1 + 0.6 * math.sin(2 * math.pi * (now - began) / period)
            # A sender that was held up does not catch up in one burst.
            owed += min(now - last, 0.2) * mbit * 1e6 / 8 * wave
            last = now
            while owed >= SIZE:
                owed -= SIZE
                try:
                    out.sendto(data, (address, PORT))
                except OSError:
                    # No route while a job is blocked; it tries again, as a job would.
                    owed = 0.0
            time.sleep(TICK)


def answer(addresses: list[str]) -> None:
    """Answer every third datagram that comes to these addresses, for ever."""
    chosen = selectors.DefaultSelector()
    for address in addresses:
        here = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM)
        here.bind((address, PORT))
        chosen.register(here, selectors.EVENT_READ)
    seen = 0
    while True:
        for key, _ in chosen.select():
            assert isinstance(key.fileobj, socket.socket)
            try:
                data, sender = key.fileobj.recvfrom(2048)
                seen += 1
                if seen % ANSWERED == 0:
                    key.fileobj.sendto(data, sender)
            except OSError:
                continue


if __name__ == "__main__":
    if sys.argv[1] == "send":
        send(sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
    else:
        answer(sys.argv[2:])
