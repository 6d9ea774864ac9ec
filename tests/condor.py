"""A real HTCondor collector, out of the lab's root file system, on a port of this test's loopback interface."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab import rootfs
from lab.__main__ import NO_MIRROR
from lab.settings import from_environment
from tests import own_network

_CONFIG = """\
CONDOR_HOST = 127.0.0.1
COLLECTOR_HOST = 127.0.0.1:{port}
NETWORK_INTERFACE = 127.0.0.1
NETWORK_HOSTNAME = collector.test
DEFAULT_DOMAIN_NAME = test
NO_DNS = True
ENABLE_IPV6 = False
USE_SHARED_PORT = False
LOG = /tmp
SPOOL = /tmp
LOCK = /tmp
RUN = /tmp
EXECUTE = /tmp
SEC_DEFAULT_AUTHENTICATION = OPTIONAL
ALLOW_READ = *
ALLOW_ADVERTISE_STARTD = *
DISCARD_SESSION_KEYRING_ON_STARTUP = False
CONDOR_IDS = 0.0
"""
# Everything that is mounted goes with the mount namespace, every process with the collector's own pid namespace.
_START = """\
set -e
mount -t tmpfs tmp "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay root -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount -t proc proc "$1/root/proc"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs tmp "$1/root/tmp"
cat >"$1/root/etc/condor/collector.conf"
exec env -i PATH=/usr/sbin:/usr/bin CONDOR_CONFIG=/etc/condor/collector.conf \
    chroot "$1/root" condor_collector -f -t -p "$3"
"""

_ADVERTISE = """\
import json, sys, classad2, htcondor2
ad = classad2.ClassAd(json.loads(sys.argv[2]))
htcondor2.Collector(sys.argv[1]).advertise([ad], "UPDATE_STARTD_AD", True)
"""


class Collector:
    """A collector that takes ads from anybody; ``start`` after ``kill`` is one that has forgotten them all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # The root comes from a mirror, and the tests' own network leads nowhere.
        done = own_network.run_outside([sys.executable, "-m", "lab", "build"])
        if done.returncode == NO_MIRROR:
            # Without a mirror there is no HTCondor to be had; nothing of Lark has failed, and what did not run is said.
            pytest.skip(f"A REAL COLLECTOR WAS NOT ASKED, the lab's root file system is not built: {done.stdout}")
        assert done.returncode == 0, done.stdout
        self._system = rootfs.build(from_environment()).layers[-1]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        """What LARK_COLLECTOR takes."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(
            [
                "unshare", "--mount", "--pid", "--fork", "--kill-child",
                "sh", "-c", _START, "collector", str(self._folder), str(self._system), str(self.port),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=(self._folder.parent / "collector.log").open("a"),
            text=True,
        )  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(_CONFIG.format(port=self.port))
        self._process.stdin.close()
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                return
            except OSError:
                assert self._process.poll() is None, "the collector has ended"
                assert time.monotonic() < deadline, "the collector does not listen"
                time.sleep(0.05)

    def kill(self) -> None:
        """kill -9."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        """Let it hang: it takes connections and answers nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        os.kill(int(children.split()[0]), number)

    def advertise(self, name: str, values: Mapping[str, object] | None = None) -> None:
        """Take a slot's ad, as of now."""
        machine = name.partition("@")[2]
        ad = {
            "MyType": "Machine",
            "Name": name,
            "Machine": machine,
            "MyAddress": "<127.0.0.1:1>",
            "StartdIpAddr": "<127.0.0.1:1>",
            "State": "Claimed" if values else "Unclaimed",
            "MyCurrentTime": int(time.time()),
            **(values or {}),
        }
        # In a process of its own: the bindings keep a session with a collector that has been killed since.
        command = [sys.executable, "-c", _ADVERTISE, self.address, json.dumps(ad)]
        subprocess.run(command, check=True, timeout=20)


@contextmanager
def a_collector(folder: Path) -> Iterator[Collector]:
    """A collector for one test; ``folder`` is empty."""
    collector = Collector(folder)
    collector.start()
    try:
        yield collector
    finally:
        collector.kill()
