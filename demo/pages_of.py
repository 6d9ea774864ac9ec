"""Web pages that jobs serve, and who opens them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Final

from demo.matrix import End
from demo.topology import POOL, Topology
from lab.namespaces import Host
from lark_common.client import Client, ProblemError

PORT: Final = 8080
OPEN: Final = f"tcp/{PORT}"


def serve(topology: Topology, end: End, directory: Path) -> subprocess.Popen[str]:
    """Let a job serve a page with its own name, at its own IPv4 address."""
    folder = directory / f"page-{end.name}"
    folder.mkdir()
    (folder / "index.html").write_text(end.name)
    serving = [sys.executable, "-m", "http.server", str(PORT), "--bind", end.ipv4, "--directory", str(folder)]
    return topology.net.start(end.host, serving)


def fetch(topology: Topology, host: Host, address: str) -> str:
    """The page as a host sees it; empty where nobody answers within a second."""
    command = ["curl", "--silent", "--max-time", "1", f"http://{address}:{PORT}/"]
    return topology.net.exec(host, command, check=False).stdout


def refusal(client: Client, job: str) -> str:
    """The reason why a job has no external address; empty where it has one."""
    try:
        client.associate_external_address(job, [OPEN])
    except ProblemError as error:
        return str(error)
    return ""


def others(address: str) -> Iterator[str]:
    """The other addresses of the pool."""
    return (str(each) for each in ip_network(POOL) if str(each) != address)
