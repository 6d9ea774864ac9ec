"""Starts, wires, uses and powers off the machines of the lab: each a set of namespaces with its own disk.

Runs as root inside the lab. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from lab.inside.topology import OPERATOR, SEGMENTS, Machine, Nic, cable
from lab.run import LabError, run

DIRECTORY = Path("/lark/machines")
SCRIPT = "/lark/run/code/lab/inside/machine.sh"
NAMESPACES = ("--mount", "--net", "--pid", "--uts", "--ipc")
POLL = 0.02
START_TIMEOUT = 30


def wait_for(what: str, ready: Path, seconds: float = START_TIMEOUT) -> None:
    """Wait until ``ready`` exists. Raises LabError, naming ``what``, after ``seconds``."""
    deadline = time.monotonic() + seconds
    while not ready.exists():
        if time.monotonic() > deadline:
            raise LabError(f"{what}: not there within {seconds:g} s ({ready})")
        time.sleep(POLL)


def on(
    machine: str, *command: str, user: str = "root", timeout: float = 60, check: bool = True, stdin: str = ""
) -> str:
    """Run ``command`` on ``machine`` and return what it printed. Raises LabError as lab.run.run does."""
    return run(["on", machine, "-u", user, *command], timeout=timeout, check=check, stdin=stdin).stdout


def start(machine: str, *command: str, log: str = "/dev/null") -> None:
    """Start ``command``, which stays, as root on ``machine``; what it prints goes to ``log`` there."""
    script = 'log=$1; shift; exec setsid "$@" </dev/null >>"$log" 2>&1'
    subprocess.Popen(
        ["on", machine, "sh", "-c", script, "lab", log, *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def write(machine: str, path: str, text: str, mode: int = 0o644) -> None:
    """Write a file on ``machine``, owned by root; directories are made."""
    command = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
    on(machine, "sh", "-c", command, "lab", path, f"{mode:o}", stdin=text)


def script(machine: str, lines: Sequence[str], timeout: float = 60) -> str:
    """Run shell ``lines`` on ``machine``, ending at the first that fails. Raises LabError then."""
    return on(machine, "sh", "-ec", "\n".join(lines), timeout=timeout)


def whole_text(path: Path) -> str:
    """A file of one line that another machine is just writing, once it is complete. Raises LabError after 10 s."""
    deadline = time.monotonic() + 10
    while not (text := path.read_text()).endswith("\n"):
        if time.monotonic() > deadline:
            raise LabError(f"{path}: not complete")
        time.sleep(POLL)
    return text


def power_on(machine: Machine) -> None:
    """Make the namespaces of ``machine`` and plug its interfaces in; its disk is as it was left.

    Raises LabError if it is on already, or does not come up.
    """
    directory = DIRECTORY / machine.name
    directory.mkdir(exist_ok=True)
    pid_file = directory / "pid"
    if pid_file.exists():
        raise LabError(f"{machine.name} is on already")
    with (directory / "console.log").open("ab") as console:
        holder = subprocess.Popen(
            ["unshare", *NAMESPACES, "--fork", "--kill-child", "sh", SCRIPT, machine.name],
            stdin=subprocess.DEVNULL,
            stdout=console,
            stderr=console,
            start_new_session=True,
        )
    children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
    deadline = time.monotonic() + START_TIMEOUT
    pid = ""
    while not pid or not Path(f"/proc/{pid}/root/run/machine-is-up").exists():
        if holder.poll() is not None or time.monotonic() > deadline:
            raise LabError(f"{machine.name} did not start: {(directory / 'console.log').read_text().strip()}")
        pid = children.read_text().strip() if children.exists() else ""
        time.sleep(POLL)
    pid_file.write_text(pid)
    for nic in machine.nics:
        _plug(machine, pid, nic)


def power_off(machine: Machine) -> None:
    """Kill everything on the machine at once, as a loss of power does; its disk stays.

    Raises LabError if it is not on.
    """
    pid_file = DIRECTORY / machine.name / "pid"
    try:
        pid = int(pid_file.read_text())
    except FileNotFoundError as error:
        raise LabError(f"{machine.name} is not on") from error
    pid_file.unlink()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + START_TIMEOUT
    while Path(f"/proc/{pid}").exists():
        if time.monotonic() > deadline:
            raise LabError(f"{machine.name}: first process {pid} does not end")
        time.sleep(POLL)
    # Its end of each cable goes with the namespace, and the other end with that, but the kernel takes its time.
    for nic in machine.nics:
        if nic.segment:
            run(["ip", "link", "delete", cable(machine, nic)], check=False)


def make_segments() -> None:
    """The cables and plain switches, as Linux bridges beside the machines, and the operator's address on the LAN."""
    lines = []
    for segment in SEGMENTS:
        lines += [f"link add {segment} type bridge mcast_snooping 0", f"link set {segment} up"]
    lines += [f"address add {address} dev lan{no_detection(address)}" for address in OPERATOR]
    lines.append("route add default via 10.0.0.1")
    run(["ip", "-batch", "-"], stdin="\n".join(lines))


def no_detection(address: str) -> str:
    """The words for ``ip address add`` with which an IPv6 address can be used at once."""
    return " nodad" if ":" in address else ""


def _plug(machine: Machine, pid: str, nic: Nic) -> None:
    if nic.segment:
        end = cable(machine, nic)
        address = f" address {nic.mac}" if nic.mac else ""
        outside = [
            f"link add {end} type veth peer name {nic.name}{address} netns {pid}",
            f"link set {end} master {nic.segment} up",
        ]
        run(["ip", "-batch", "-"], stdin="\n".join(outside))
    inside = [f"address add {address} dev {nic.name}{no_detection(address)}" for address in nic.addresses]
    inside.append(f"link set {nic.name} up")
    run(["nsenter", "--target", pid, "--net", "ip", "-batch", "-"], stdin="\n".join(inside))
