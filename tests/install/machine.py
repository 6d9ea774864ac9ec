"""A machine of the site: a container of systemd-nspawn with a systemd of its own and a disk that outlives its restarts.

All is in the namespaces that the tests run in: a bridge for the site's network, and a veth to each machine.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.run import run

# Where /sys may be written, systemd-networkd waits for udev, and a container has none.
_ENVIRONMENT: Final = {"SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1", "SYSTEMD_NSPAWN_API_VFS_WRITABLE": "network"}
LAN: Final = "lan"
BOOT_TIMEOUT: Final = 60
# What systemd-nspawn ends with when the machine has asked for a restart.
_RESTART: Final = 133
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The hierarchy of cgroups 2 is in reach wherever the machine has it; a cgroup of its own for each container.
_START: Final = """set -e
folder=$1 unit=$2 image=$3 host=$4
shift 4
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mkdir -p "/sys/fs/cgroup/$unit"
echo $$ > "/sys/fs/cgroup/$unit/cgroup.procs"
mount -t overlay "$unit" -o "lowerdir=$image,upperdir=$folder/upper,workdir=$folder/work" "$folder/root"
exec systemd-nspawn --quiet --boot --directory="$folder/root" --machine="$unit" --hostname="$host" --private-network \\
    --register=no --keep-unit --console=pipe --resolv-conf=off --timezone=off --link-journal=no "$@"
"""
# What a container leaves is empty cgroups.
_TIDY: Final = """mount -t cgroup2 cgroup2 /sys/fs/cgroup
find "/sys/fs/cgroup/$1" -depth -type d -exec rmdir {} +
"""


def wait_until(question: Callable[[], object], seconds: float, what: str, after: float = 0.3) -> None:
    """Ask again until the answer is true; fails with ``what``."""
    deadline = time.monotonic() + seconds
    while not question():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(after)


def _children(pid: int) -> list[int]:
    with contextlib.suppress(OSError):
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return []


def make_lan(*addresses: str) -> None:
    """Make the site's network; ``addresses`` are those of its router, which this side of the tests plays."""
    run(["ip", "link", "add", LAN, "type", "bridge", "stp_state", "0", "mcast_snooping", "0"])
    for address in addresses:
        run(["ip", "address", "add", address, "dev", LAN])
    run(["ip", "link", "set", LAN, "up"])
    run(["ethtool", "-K", LAN, "tx", "off"])


@dataclass
class Machine:
    """One container; ``image`` is its root file system, ``folder`` the place of its disk.

    ``options`` are further ones of systemd-nspawn. A machine without ``cable`` is not in the site's network.
    """

    name: str
    host: str
    image: Path
    folder: Path
    options: tuple[str, ...] = ("--capability=all",)
    cable: bool = True
    process: subprocess.Popen[bytes] | None = None
    leader: int = 0

    @property
    def unit(self) -> str:
        """The name of its cgroup; everybody sees those, and this one says whose it is."""
        return f"lark-install-{os.getpid()}-{self.name}"

    def boot(self) -> None:
        """Start the container, plug it in, and wait until its systemd has started everything."""
        for each in ("upper", "work", "root"):
            (self.folder / each).mkdir(parents=True, exist_ok=True)
        with (self.folder / "console.log").open("ab") as console:
            self.process = subprocess.Popen(
                # A run that is killed takes its containers with it.
                [
                    "setpriv", "--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child",
                    "--mount-proc", "sh", "-c", _START, "start", self.folder, self.unit, self.image, self.host,
                    *self.options,
                ],
                stdin=subprocess.DEVNULL, stdout=console, stderr=console, start_new_session=True,
                env={**os.environ, **_ENVIRONMENT},
            )  # fmt: skip
        wait_until(self._found, BOOT_TIMEOUT, f"{self.name} starts: {self.folder}/console.log", 0.05)
        if self.cable:
            self._plug()
        wait_until(self._is_up, BOOT_TIMEOUT, f"{self.name} is up: {self.folder}/console.log")

    def _found(self) -> bool:
        """True once the container's first process is there."""
        assert self.process
        assert self.process.poll() is None, (self.folder / "console.log").read_text()
        # unshare has systemd-nspawn as its child, and that the container's first process.
        for child in _children(self.process.pid):
            for grandchild in _children(child):
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{grandchild}/comm").read_text().strip() == "systemd":
                        self.leader = grandchild
                        return True
        return False

    def _is_up(self) -> bool:
        state = self.run("systemctl is-system-running", check=False).stdout.strip()
        return state in ("running", "degraded")

    def _plug(self) -> None:
        """Lay the cable. A network card completes checksums; a veth does not, which user-space switches notice."""
        cable = f"lan-{self.name}"
        # The kernel takes its time with the cable of a machine that has just ended.
        run(["ip", "link", "del", cable], check=False)
        run(["ip", "link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", str(self.leader)])
        run(["ethtool", "-K", cable, "tx", "off"])
        run(["nsenter", f"--net=/proc/{self.leader}/ns/net", "ethtool", "-K", "eth0", "tx", "off"])
        run(["ip", "link", "set", cable, "master", LAN, "up"])

    def run(
        self, script: str, *, user: str = "root", timeout: float = 300, check: bool = True, stdin: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell script on the machine, as after a login, ending at the first command that fails."""
        home = "/root" if user == "root" else f"/home/{user}"
        done = subprocess.run(
            [
                "nsenter", f"--target={self.leader}", "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup",
                "--root", f"--wdns={home}", "setpriv", "--reuid", user, "--regid", user, "--init-groups",
                "env", "-i", f"PATH={_PATH}", "LANG=C.UTF-8", f"HOME={home}", f"USER={user}", f"LOGNAME={user}",
                "bash", "-e", "-o", "pipefail", "-c", script,
            ],
            input=stdin, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, (
            f"{self.name}: status {done.returncode} of:\n{script}\n{done.stdout}{done.stderr}"
        )
        return done

    def write(self, path: str, text: str, mode: int = 0o644, *, append: bool = False) -> None:
        """Write a file, or add to it; its directory is made."""
        to = ">>" if append else ">"
        self.run(f'mkdir -p "$(dirname {path})"; cat {to} {path}; chmod {mode:o} {path}', stdin=text)

    def restart(self) -> None:
        """Restart the machine as its administrator does, and wait until it is up again."""
        assert self.process
        self.run("systemctl reboot", check=False)
        assert self.process.wait(BOOT_TIMEOUT) == _RESTART
        self.boot()

    def stop(self) -> None:
        """End the container at once, and everything in it with it."""
        if self.process and self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.leader or self.process.pid, signal.SIGKILL)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        run(["unshare", "--mount", "sh", "-c", _TIDY, "tidy", self.unit], check=False)

    def journal(self) -> str:
        """The last of what its services have written, for a test that failed."""
        return self.run("journalctl --no-pager --boot=all | tail -n 300", check=False).stdout
