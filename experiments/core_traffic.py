"""Transfers between an outside host and jobs through a core: iperf3, a web server (nginx) and a bulk copy (rsync).

On the path of :mod:`experiments.core_path`. Each transfer is started for all jobs at once, and counts from the first
start to the last end: programs' starts are in it, in both ways that are compared.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from experiments.core_path import CorePath
from lab.namespaces import Host
from lab.run import LabError, run

# The ports that are open at external addresses, and what takes their place at jobs' own: what leaves from an open port
# is translated. One match of the switch has all four.
OPENED: Final = "tcp/5000-5003"
IPERF3, WEB, COPY, ECHO = 5000, 5001, 5002, 5003
OWN: Final = 100
# The bytes of all files of a transfer together.
BYTES: Final = 192 << 20
PATIENCE: Final = 600.0
# Seconds before each try of iperf3, whose servers are busy after a transfer, and end now and then where many begin.
TRIES: Final = (0.0, 0.5, 2.0, 5.0)

NGINX: Final = """
user root;
worker_processes 2;
pid {folder}/nginx.pid;
error_log {folder}/nginx.log;
events {{ worker_connections 2048; }}
http {{
  access_log off;
  sendfile on;
  client_max_body_size 0;
  client_body_temp_path {folder}/bodies;
  server {{
    listen {open} backlog=1024;
    listen {own} backlog=1024;
    root {folder}/files;
    location /in/ {{ dav_methods PUT; }}
  }}
}}
"""
RSYNC: Final = """
use chroot = no
uid = root
gid = root
max connections = 0
reverse lookup = no
[files]
path = {folder}/files
read only = no
"""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to the jobs: their addresses, by its name, and what is added to a service's port there."""

    name: str
    addresses: tuple[str, ...]
    more: int

    def ends(self, port: int) -> list[str]:
        """Address and port of each job."""
        return [f"{address}:{port + self.more}" for address in self.addresses]


class Jobs:
    """The servers of all jobs, and the outside's transfers with them."""

    def __init__(self, path: CorePath, folder: Path) -> None:
        self._path, self._folder = path, folder
        (folder / "files/in").mkdir(parents=True)
        (folder / "got").mkdir()
        self._sizes: set[int] = set()

    @contextmanager
    def serving(self, addresses: Sequence[str]) -> Iterator[None]:
        """Serve at these jobs' own addresses. Raises LabError where a server does not come up."""
        folder, ports = self._folder, (IPERF3, IPERF3 + OWN)
        (folder / "nginx.conf").write_text(NGINX.format(folder=folder, open=WEB, own=WEB + OWN))
        (folder / "rsyncd.conf").write_text(RSYNC.format(folder=folder))
        server = "while :; do iperf3 -s -B {} -p {} >/dev/null 2>&1; sleep 0.2; done &"
        lines = [server.format(address, port) for address in addresses for port in ports]
        lines += [f"nginx -p {folder} -c {folder}/nginx.conf -g 'daemon off;' 2>/dev/null &"]
        daemon = f"rsync --daemon --no-detach --config={folder}/rsyncd.conf"
        lines += [f"{daemon} --port={port} &" for port in (COPY, COPY + OWN)]
        # Two of each address for iperf3; nginx and rsync are at all of them.
        with self._program(self._path.jobs, "\n".join([*lines, "wait"])) as running:
            self._await(len(addresses) * 2 + 4, running)
            yield

    def iperf3(self, way: Way, inwards: bool, seconds: float) -> float:
        """Mb/s of a stream of each job that last so long; ``inwards`` to the jobs."""
        (found := self._folder / "iperf3").mkdir(exist_ok=True)
        # It takes whole seconds, and 0 for ever.
        more, whole = "" if inwards else "-R", max(1, round(seconds))
        lines = [
            f"iperf3 -J -t {whole} {more} -c {end.partition(':')[0]} -p {end.partition(':')[2]} >{found}/{number} &"
            for number, end in enumerate(way.ends(IPERF3))
        ]
        took, answers, failed = 0.0, list[dict[str, Any]](), list[str]()
        for pause in TRIES:
            time.sleep(pause)
            took = self._timed(lines)
            answers = [json.loads((found / str(number)).read_text()) for number in range(len(lines))]
            failed = [each["error"] for each in answers if "error" in each]
            if not failed:
                break
        else:
            raise LabError(f"iperf3: {failed[0]} ({len(failed)} of {len(answers)})")
        return float(sum(each["end"]["sum_received"]["bytes"] for each in answers)) * 8 / took / 1e6

    def web(self, way: Way, inwards: bool, seconds: float) -> float:
        """MB/s of a file that is loaded from each job's web server, or written there; ``seconds`` are a part of the
        whole size."""
        size = self._file(way, seconds)
        urls = [f"http://{end}" for end in way.ends(WEB)]
        lines = ["parallel", "parallel-immediate", "parallel-max = 300", "silent", "show-error", "fail"]
        for number, url in enumerate(urls):
            word = f"{url}/in/{number}" if inwards else f"{url}/{size}"
            other = f'upload-file = "{self._folder}/files/{size}"' if inwards else 'output = "/dev/null"'
            lines += [f'url = "{word}"', other]
        (self._folder / "curl").write_text("\n".join(lines))
        took = self._timed([f"curl --config {self._folder}/curl >/dev/null"])
        return size * len(urls) / took / 1e6

    def copy(self, way: Way, inwards: bool, seconds: float) -> float:
        """MB/s of a file that is copied from each job, or to it, by rsync."""
        size = self._file(way, seconds)
        lines = []
        for number, end in enumerate(way.ends(COPY)):
            there = f"rsync://{end}/files"
            source, target = f"{self._folder}/files/{size}", f"{there}/in/{number}"
            if not inwards:
                source, target = f"{there}/{size}", f"{self._folder}/got/{number}"
            lines.append(f"rsync -WI --inplace --contimeout=60 {source} {target} || touch {self._failed} &")
        took = self._timed(lines)
        return size * len(lines) / took / 1e6

    @property
    def _failed(self) -> Path:
        return self._folder / "failed"

    def _file(self, way: Way, part: float) -> int:
        """The size of each job's part, of which a file is made."""
        size = max(1 << 16, int(BYTES * part / len(way.addresses)))
        if size not in self._sizes:
            # Random, so that nothing makes it smaller on its way.
            (self._folder / f"files/{size}").write_bytes(os.urandom(size))
            self._sizes.add(size)
        return size

    def _timed(self, lines: Sequence[str]) -> float:
        """Run these lines of a shell outside, all at once; returns the seconds until the last has ended. Raises
        LabError."""
        script = "\n".join([*lines, "wait"])
        began = time.monotonic()
        made = run(["ip", "netns", "exec", self._path.outside.namespace, "sh", "-e", "-c", script], timeout=PATIENCE)
        took = time.monotonic() - began
        if self._failed.exists():
            self._failed.unlink()
            raise LabError(f"a transfer failed: {made.stderr[-300:]}")
        return took

    @contextmanager
    def _program(self, host: Host, script: str) -> Iterator[subprocess.Popen[bytes]]:
        command = ["ip", "netns", "exec", host.namespace, "sh", "-c", script]
        running = subprocess.Popen(command, start_new_session=True)
        try:
            yield running
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.wait()

    def _await(self, count: int, running: subprocess.Popen[bytes]) -> None:
        """Wait until so many sockets listen. Raises LabError."""
        listed = ["ip", "netns", "exec", self._path.jobs.namespace, "ss", "-Hltn4"]
        end = time.monotonic() + PATIENCE
        while (found := len(run(listed).stdout.splitlines())) < count:
            if running.poll() is not None or time.monotonic() > end:
                raise LabError(f"{found} of {count} servers listen")
            time.sleep(0.1)


Transfer = Callable[[Way, bool, float], float]
