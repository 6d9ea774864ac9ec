"""A small pool of the real HTCondor, out of the lab's root file system: an access point in a namespace of its own, and
one worker in the tests' own network, where the worker service looks for starters."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from lab import rootfs
from lab.__main__ import NO_MIRROR
from lab.settings import from_environment
from tests.fixtures import own_network

PORT = 9618
# The shipped names of attributes that a worker may set in a job's ad.
_CHIRP = re.search(
    r"(?m)^CHIRP_DELAYED_UPDATE_PREFIX = (?:.*\\\n)*.*$",
    (Path(__file__).parents[2] / "etc/condor/50-lark.conf").read_text(),
)[0]  # type: ignore[index]
# Every user of the root file system, so that no test needs a token: the pool is in namespaces of its own. A starter
# whose hook has refused the job does not end by itself; its slot is busy until the startd kills it, after
# KILLING_TIMEOUT.
_CONFIG = """\
CONDOR_HOST = {central}
COLLECTOR_HOST = {central}:{port}
NETWORK_INTERFACE = {address}
NETWORK_HOSTNAME = {name}.test
DEFAULT_DOMAIN_NAME = test
UID_DOMAIN = test
TRUST_UID_DOMAIN = True
FILESYSTEM_DOMAIN = {name}.test
NO_DNS = True
ENABLE_IPV6 = False
USE_SHARED_PORT = False
DAEMON_LIST = {daemons}
COLLECTOR = /usr/sbin/condor_collector
NEGOTIATOR = /usr/sbin/condor_negotiator
LIBEXEC = /usr/libexec/condor
SBIN = /usr/sbin
BIN = /usr/bin
LIB = /usr/lib/condor
STARTER = /usr/sbin/condor_starter
STARTER_LIST = STARTER
SHADOW = /usr/sbin/condor_shadow
LOCAL_DIR = /tmp/condor
LOG = /tmp/condor/log
SPOOL = /tmp/condor/spool
LOCK = /tmp/condor/lock
RUN = /tmp/condor/run
EXECUTE = /tmp/condor/execute
CONDOR_IDS = 1.1
PROCD = /usr/sbin/condor_procd
BASE_CGROUP =
DISCARD_SESSION_KEYRING_ON_STARTUP = False
SEC_DEFAULT_AUTHENTICATION = OPTIONAL
SEC_DEFAULT_AUTHENTICATION_METHODS = FS, CLAIMTOBE
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
ALLOW_ADMINISTRATOR = *
ALLOW_ADVERTISE_MASTER = *
ALLOW_ADVERTISE_STARTD = *
ALLOW_ADVERTISE_SCHEDD = *
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
NEGOTIATOR_MIN_INTERVAL = 1
SCHEDD_INTERVAL = 2
UPDATE_INTERVAL = 5
JOB_START_DELAY = 0
START = True
SUSPEND = False
PREEMPT = False
KILL = False
KILLING_TIMEOUT = 2
NUM_CPUS = 8
MEMORY = 8000
SLOT_TYPE_1 = 100%
SLOT_TYPE_1_PARTITIONABLE = True
NUM_SLOTS_TYPE_1 = 1
RunBenchmarks = False
STARTD_CRON_JOBLIST = LARK
STARTD_CRON_LARK_EXECUTABLE = /bin/cat
STARTD_CRON_LARK_ARGS = /pool/slots
STARTD_CRON_LARK_PERIOD = 2s
LOCAL_CONFIG_DIR = /etc/condor/more
STARTD_JOB_ATTRS = Owner User AcctGroup AccountingGroup GlobalJobId JobCurrentStartDate
{chirp}
STARTER_JOB_HOOK_KEYWORD = LARK
LARK_HOOK_PREPARE_JOB_BEFORE_TRANSFER = /pool/lark-start
"""
# Everything that is mounted goes with the mount namespace.
_START = """\
set -e
mount -t tmpfs tmp "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay root -o "lowerdir=$2,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --rbind /proc "$1/root/proc"
mount --rbind /sys "$1/root/sys"
mount --rbind /dev "$1/root/dev"
mount -t tmpfs -o mode=1777 tmp "$1/root/tmp"
mkdir "$1/root/pool"
mount --bind "$3" "$1/root/pool"
mkdir -p "$1/root/etc/lark" "$1/root/etc/condor/more" "$1/root/tmp/condor"
# HTCondor's plugin for URLs aborts where the machine's own name has no address.
hostname "$4"
echo "127.0.0.1 localhost $4" >"$1/root/etc/hosts"
cd "$1/root/tmp/condor"
mkdir log spool lock run execute
chmod 755 . spool execute
# Not root: HTCondor runs no program of the startd's as root.
chown 1:1 . log spool lock run execute
printf '%s\\n' LARK_SOCKET=/pool/worker.sock LARK_TIMEOUT=60 $5 >"$1/root/etc/lark/hook.conf"
cat >"$1/root/etc/condor/pool.conf"
exec env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin CONDOR_CONFIG=/etc/condor/pool.conf chroot "$1/root" condor_master -f
"""

_OF_TESTS = re.compile(r"superuser command|STARTD_CRON job LARK|QUERY_\w+_ADS|PROCAPI_RETRY")


class Machine:
    """One machine of the pool; ``shared`` is seen as ``/pool`` in it. ``namespace`` "" is the tests' own network;
    ``more`` is added to its configuration, and ``hook`` to its hook's."""

    def __init__(
        self,
        folder: Path,
        shared: Path,
        name: str,
        address: str,
        central: str,
        namespace: str,
        more: str = "",
        hook: str = "",
    ) -> None:
        self.name, self.folder = name, folder
        folder.mkdir(mode=0o755)
        daemons = "MASTER, COLLECTOR, NEGOTIATOR, SCHEDD" if address == central else "MASTER, STARTD"
        config = (
            _CONFIG.format(central=central, port=PORT, address=address, name=name, daemons=daemons, chirp=_CHIRP) + more
        )
        enter = ["ip", "netns", "exec", namespace] if namespace else []
        # All of these become the master: it ends its daemons when the tests are killed.
        ending = ["setpriv", "--pdeathsig", "QUIT"]
        command = [
            *ending,
            *enter,
            "unshare",
            "--mount",
            "--uts",
            "sh",
            "-c",
            _START,
            "start",
            folder,
            _system(),
            shared,
            name,
            hook,
        ]
        self._master = subprocess.Popen(
            [str(word) for word in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=(shared / f"{name}.err").open("a"),
            text=True,
        )
        assert self._master.stdin is not None
        self._master.stdin.write(config)
        self._master.stdin.close()

    def program(self, name: str) -> str:
        """A program of HTCondor's, as the machine's processes are seen to run it."""
        return f"{self.folder}/root/usr/sbin/{name}"

    def run(self, command: str, user: str = "root", check: bool = True) -> str:
        """The output of a shell command on this machine."""
        enter = ["nsenter", f"--target={self._master.pid}", "--mount", "--net", "--root", "--wd"]
        who = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"]
        environment = ["env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "CONDOR_CONFIG=/etc/condor/pool.conf"]
        # The scheduler answers nobody while it waits for a startd that has ended.
        bounded = ["timeout", "60"]
        done = subprocess.run(
            [*enter, *who, *environment, *bounded, "sh", "-c", command],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stdout + self.logs()
        return done.stdout.strip()

    def seen(self, path: str) -> Path:
        """A file of this machine's, as it is seen from outside."""
        return Path(f"/proc/{self._master.pid}/root{path}")

    def startd_address(self) -> Path:
        """The file of the startd's address: it is written anew when the master has started the startd again."""
        return self.seen(self.run("condor_config_val STARTD_ADDRESS_FILE"))

    def logs(self) -> str:
        """The ends of HTCondor's own logs, without what these tests' own questions add."""
        ends = []
        for path in sorted(self.seen("/tmp/condor/log").glob("*Log*")):
            lines = [line for line in path.read_text(errors="replace").splitlines() if not _OF_TESTS.search(line)]
            ends.append(f"== {path.name}\n" + "\n".join(lines[-40:]))
        return "\n".join(ends)

    def close(self) -> None:
        """End every process of this machine."""
        self._master.send_signal(signal.SIGQUIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._master.wait(15)
        deadline = time.monotonic() + 20
        while left := self._processes():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._master.poll()
            assert time.monotonic() < deadline, f"processes of {self.name} do not end: {left}"
            time.sleep(0.1)

    def _processes(self) -> list[int]:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str((path / "root").readlink()) == f"{self.folder}/root":
                    found.append(int(path.name))
        return found


def close_all(machines: Iterable[Machine]) -> None:
    """End every process of all of them, whatever of it fails."""
    with contextlib.ExitStack() as stack:
        for machine in machines:
            stack.callback(machine.close)


class Jobs:
    """Submits to an access point, and says what has become of a job."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def submit(self, user: str, program: str, lines: Mapping[str, str]) -> int:
        """Submit a job that runs this shell text, and return its cluster."""
        home = f"/home/{user}"
        text = "\n".join(f"{name} = {value}" for name, value in lines.items())
        made = self._machine.run(
            f"mkdir -p {home} && cd {home} && printf '#!/bin/sh\\n%s\\n' '{program}' >run && chmod 755 run &&"
            f" printf '%s\\nqueue\\n' '{text}' >job.sub && condor_submit -terse job.sub",
            user,
        )
        return int(made.splitlines()[-1].split(".")[0])

    def wait(self, cluster: int, seconds: float = 120) -> None:
        """Wait until a job has left the queue."""
        deadline = time.monotonic() + seconds
        while self._machine.run(f"condor_q {cluster} -af ClusterId", check=False):
            assert time.monotonic() < deadline, self.state(cluster) + self._machine.logs()
            time.sleep(0.5)

    def state(self, cluster: int) -> str:
        """JobStatus and the reason for a hold; an error's text while the scheduler does not answer."""
        return self._machine.run(f"condor_q {cluster} -af JobStatus NumShadowStarts HoldReason", check=False)

    def attribute(self, cluster: int, name: str) -> str:
        """An attribute of a job that has left the queue."""
        return self._machine.run(f"condor_history {cluster} -limit 1 -af {name}")


def _system() -> Path:
    # The root comes from a mirror, and the tests' own network leads nowhere.
    done = own_network.run_outside([sys.executable, "-m", "lab", "build"])
    if done.returncode == NO_MIRROR:
        pytest.skip(f"A REAL POOL DID NOT RUN, the lab's root file system is not built: {done.stdout}")
    assert done.returncode == 0, done.stdout
    return rootfs.build(from_environment()).layers[-1]
