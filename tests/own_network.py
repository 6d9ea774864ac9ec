"""A network and mount namespace for the test run, so that it meets nobody else's Open vSwitch, devices or namespaces.

The userspace datapath makes a device of a fixed name, so there can be one such Open vSwitch a network namespace; a run
beside another one, or on a machine that has its own, would fail.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWNET = 0x40000000
MS_REC = 0x4000
MS_PRIVATE = 0x40000

# The network that the process came from, while it is in one of its own.
_outside: list[int] = []


def enter() -> None:
    """Move this process, and so all that it starts, into namespaces of its own; to be called before any thread.

    Raises OSError where the kernel does not let it. Without root nothing is done: what needs real packets says so.
    """
    if os.geteuid() != 0:
        return
    _outside.append(os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(CLONE_NEWNET | CLONE_NEWNS))
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    named = Path("/run/netns")
    named.mkdir(exist_ok=True)
    _check(libc.mount(b"tmpfs", bytes(named), b"tmpfs", 0, None))
    # Settings of network devices are seen through a sysfs and procfs of this namespace.
    _check(libc.mount(b"sysfs", b"/sys", b"sysfs", 0, None))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)


def run_outside(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a program in the network that the tests were started in, and return what it printed, both streams as one."""
    entering = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{_outside[0]}"] if _outside else []
    return subprocess.run(
        [*entering, *command], check=False, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def _check(status: int) -> None:
    if status != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
