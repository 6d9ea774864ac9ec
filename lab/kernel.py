"""The features of the machine's kernel, and so the way into the lab: natively, or inside User Mode Linux."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from lab.run import LabError

# The trial of each thing that the lab needs, in a network namespace of its own; modprobe reports built-in ones, too.
PROBES = {
    "openvswitch": "test -d /sys/module/openvswitch || modprobe --quiet openvswitch",
    "overlay": "grep -qw overlay /proc/filesystems || modprobe --quiet overlay",
    "veth": "ip link add lark0 type veth peer name lark1",
    "sch_htb": "tc qdisc add dev lo root htb",
    "sch_netem": "tc qdisc add dev lo root netem delay 1ms",
}
PROBE_TIMEOUT = 20
# The lowest of the real-time priorities, by turns among equals (sched(7)).
REAL_TIME = ("chrt", "--rr", "1")


@dataclass(frozen=True, slots=True)
class Choice:
    """``kind`` is native, uml or userspace; ``reason`` is a clause that an operator reads."""

    kind: str
    reason: str


def has(feature: str) -> bool:
    """True if the running kernel has ``feature`` (a key of PROBES), which is loaded if it can be."""
    try:
        result = subprocess.run(
            ["unshare", "--net", "sh", "-c", PROBES[feature]], capture_output=True, check=False, timeout=PROBE_TIMEOUT
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.returncode == 0


def choose(wanted: str, has: Callable[[str], bool] = has) -> Choice:
    """Choose for the setting ``wanted`` (auto, native, uml, userspace).

    ``userspace`` is native too, with Open vSwitch's own datapath: queues have no effect, the WAN has no delay and one
    way back. It is never chosen by itself.

    Raises LabError if ``native`` is demanded of a kernel that lacks something.
    """
    if wanted in ("uml", "userspace"):
        return Choice(wanted, f"LAB_KIND={wanted} asks for it")
    missing = [feature for feature in PROBES if not has(feature)]
    if not missing:
        return Choice("native", "this kernel has " + ", ".join(PROBES))
    if wanted == "native":
        raise LabError(f"LAB_KIND=native: this kernel lacks {', '.join(missing)}; LAB_KIND=auto uses User Mode Linux")
    return Choice("uml", "this kernel lacks " + ", ".join(missing))


def real_time(kind: str, processors: int | None = None) -> tuple[str, ...]:
    """The words before User Mode Linux's command that let other programs of the machine delay it less; none where it
    may use one processor alone, which whatever measures it needs, too, or where the machine permits no real-time
    priority.

    A kernel that is woken late sends each frame late, and beside other programs a tenth of its rate is lost so.
    """
    allowed = len(os.sched_getaffinity(0)) if processors is None else processors
    if kind != "uml" or allowed < 2:
        return ()
    try:
        tried = subprocess.run([*REAL_TIME, "true"], capture_output=True, check=False, timeout=PROBE_TIMEOUT)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return () if tried.returncode else REAL_TIME
