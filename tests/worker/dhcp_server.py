"""A real DHCP server (dnsmasq) on the worker's uplink, in a namespace of its own."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch

ADDRESS = "10.64.0.4"
POLICY = """
version: 1
edge:
  uplinks: ["{uplink}"]
networks:
  jobs: [10.64.0.0/16]
  local: [10.0.0.0/8]
  hosts: [10.64.0.4]
policies:
  - slice: {{by: Owner}}
"""


class DhcpServer:
    """Serves leases of two minutes (dnsmasq's least) from ``first`` to ``last``."""

    def __init__(self, folder: Path, net: Net, ovs: OpenVSwitch, bridge: str) -> None:
        self.host = net.host("dhcp", addresses=[f"{ADDRESS}/16"])
        ovs.add_port(bridge, self.host.port)
        self._folder = folder
        self._net = net
        self._process: subprocess.Popen[str] | None = None
        self.log = folder / "dnsmasq.log"
        self.leases = folder / "dnsmasq.leases"

    def start(self, first: str = "10.64.1.1", last: str = "10.64.1.250", *options: str) -> None:
        """Start to serve."""
        self._process = self._net.start(
            self.host,
            [
                "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--interface=eth0",
                f"--dhcp-range={first},{last},255.255.0.0,2m", "--dhcp-authoritative", "--no-ping", "--log-dhcp",
                f"--log-facility={self.log}", f"--dhcp-leasefile={self.leases}", "--pid-file=", "--user=root",
                "--dhcp-option=option:router,10.64.0.1", "--dhcp-option=option:dns-server,10.64.0.53",
                "--domain=jobs.example", *options,
            ],
        )  # fmt: skip

    def stop(self) -> None:
        """Serve no more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(60)
            self._process = None

    def forget(self) -> None:
        """Lose every lease; to be called while the server is stopped."""
        self.leases.unlink(missing_ok=True)

    def heard(self) -> list[str]:
        """The messages that the server has logged, in order: DHCPDISCOVER, DHCPACK, …"""
        return re.findall(r" (DHCP[A-Z]+)\(", self.log.read_text()) if self.log.exists() else []

    @contextmanager
    def sniffs(self, which: str) -> Iterator[Callable[[], list[str]]]:
        """The frames that reach the server of those that tcpdump calls ``which``; to be asked for afterwards."""
        found: list[str] = []
        command = [
            "tcpdump",
            "-i",
            "eth0",
            "-n",
            "-U",
            "--immediate-mode",
            "-w",
            str(self._folder / "seen.pcap"),
            which,
        ]
        process = self._net.start(self.host, command)
        assert process.stderr is not None
        while "listening on" not in process.stderr.readline():
            assert process.poll() is None
        yield lambda: found
        process.terminate()
        process.wait(60)
        shown = subprocess.run(
            ["tcpdump", "-n", "-r", str(self._folder / "seen.pcap")], capture_output=True, text=True, check=True
        )
        found += shown.stdout.splitlines()
