"""The interfaces by which what bridge and nat jobs send leaves the worker, and how fast they are."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from lark_common.runs import NetworkType
from lark_common.worker_rules import WayOut, WaysOut
from lark_worker.records.records import Record

DEVICES: Final = Path("/sys/class/net")


def way_out(record: Record, external: str, prefix: str) -> frozenset[str]:
    """The uplinks of a job, by name.

    They are the ports of its Linux bridge that are no job's. Behind NAT it is the interface ``external``, or its ports
    where it is a Linux bridge itself. ``prefix`` begins the names of job devices.
    """
    device = {"bridge": record.bridge, "nat": external}.get(record.network_type, "")
    return _leading(device, prefix) if device else frozenset()


def ways_out(records: Iterable[Record], external: str, prefix: str) -> WaysOut:
    """The uplinks of these jobs with their speeds in Mb/s (None: the driver does not say), and which of them jobs of
    each network type leave by (:func:`way_out`)."""
    ways = {
        WayOut(NetworkType(record.network_type), names)
        for record in records
        if (names := way_out(record, external, prefix))
    }
    every = frozenset().union(*(way.uplinks for way in ways))
    ordered = sorted(ways, key=lambda way: (way.network_type, sorted(way.uplinks)))
    return WaysOut({name: _speed(name) for name in sorted(every)}, tuple(ordered))


def _leading(device: str, prefix: str) -> frozenset[str]:
    job_device = re.compile(rf"{re.escape(prefix)}[0-9a-f]{{11}}")
    ports = DEVICES / device / "brif"
    if ports.is_dir():
        return frozenset(port.name for port in ports.iterdir() if not job_device.fullmatch(port.name))
    return frozenset([device] if (DEVICES / device).exists() else [])


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
