"""The WAN link that carried each request: tcpdump on both links, at the outside."""

from __future__ import annotations

import re
import subprocess
import threading
from dataclasses import dataclass, field

from demo.topology import INTERNET, Router, Topology
from lab.run import LabError

_REQUEST = re.compile(r"([0-9a-f.:]+) > ([0-9a-f.:]+): ICMP6?,? echo request")
_LIMIT = 10.0


@dataclass
class _Link:
    router: Router
    process: subprocess.Popen[str]
    seen: set[tuple[str, str]] = field(default_factory=set)
    last: threading.Event = field(default_factory=threading.Event)

    def read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := _REQUEST.search(line):
                if found[1] == self.router.near_outside[0]:
                    self.last.set()
                self.seen.add((found[1], found[2]))


class Watch:
    """Notes the echo requests on both WAN links, from its making until :meth:`finish`."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._links = [_Link(router, self._start(router.link)) for router in topology.routers]
        self._threads = [threading.Thread(target=link.read, daemon=True) for link in self._links]
        for thread in self._threads:
            thread.start()

    def finish(self) -> dict[tuple[str, str], frozenset[str]]:
        """The links that carried requests, by source and destination."""
        carried: dict[tuple[str, str], frozenset[str]] = {}
        for link in self._links:
            # Packets are shown in order: when the router's own request has come, all before it have.
            self._topology.ping(link.router.host, link.router.near_outside[0], INTERNET[0], 2, 1.0)
            if not link.last.wait(_LIMIT):
                raise LabError(f"tcpdump on link {link.router.link} did not show a packet that passed there")
            for pair in link.seen:
                carried[pair] = carried.get(pair, frozenset()) | {link.router.link}
        for link, thread in zip(self._links, self._threads, strict=True):
            link.process.terminate()
            link.process.wait(10)
            thread.join(10)
        return carried

    def _start(self, device: str) -> subprocess.Popen[str]:
        command = ["tcpdump", "--immediate-mode", "-l", "-n", "-t", "-Q", "in", "-i", device, "icmp or icmp6"]
        process = self._topology.net.start(self._topology.internet, command)
        assert process.stderr is not None
        while "listening on" not in (line := process.stderr.readline()):
            if not line:
                raise LabError(f"tcpdump on link {device} did not start")
        return process
