"""The interfaces by which what bridge and nat jobs send leaves the worker, and how fast they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lark_worker.records.records import Record

DEVICES: Final = Path("/sys/class/net")


def uplinks(records: Iterable[Record], external: str, prefix: str) -> dict[str, float | None]:
    """The uplinks of these jobs by name, with their speeds in Mb/s (None: the driver does not say).

    They are the ports of the jobs' Linux bridges that are no job's. Behind NAT it is the interface ``external``, or its
    ports where it is a Linux bridge itself. ``prefix`` begins the names of job devices.
    """
    job_device = re.compile(rf"{re.escape(prefix)}[0-9a-f]{{11}}")
    names: set[str] = set()
    for record in records:
        device = {"bridge": record.bridge, "nat": external}.get(record.network_type, "")
        ports = DEVICES / device / "brif"
        if device and ports.is_dir():
            names |= {port.name for port in ports.iterdir() if not job_device.fullmatch(port.name)}
        elif device and (DEVICES / device).exists():
            names.add(device)
    return {name: _speed(name) for name in sorted(names)}


def _speed(name: str) -> float | None:
    try:
        speed = int((DEVICES / name / "speed").read_text("ascii"))
    except (OSError, ValueError):
        return None
    # Without a carrier, and of a device without any speed, it is -1.
    return float(speed) if speed > 0 else None


def index(name: str) -> int | None:
    """A device's index; None where there is none of that name."""
    try:
        return int((DEVICES / name / "ifindex").read_text("ascii"))
    except (OSError, ValueError):
        return None
