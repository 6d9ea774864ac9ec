"""External addresses: the cost of a core's translation, on a real Open vSwitch with real flows, connections and hosts.

An outside host calls jobs by their own addresses and by their external ones, by turns in the same minutes. Jobs are
addresses of one host behind a core, so that what is compared is one path with and without the translation. Open vSwitch
runs its userspace datapath on this machine's cores, together with both ends: bare rates say nothing of a core's.
"""

from __future__ import annotations

import os
import statistics
from pathlib import Path
from typing import Any

from experiments.core_path import CALLED, JOBS, POOL, CorePath
from experiments.ends import OPEN, OWN
from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch


def measure(rounds: int = 5, seconds: float = 2.0, many: int = 4_000) -> dict[str, Any]:
    """Rates by own and by external addresses, by turns: median, and the range of the rounds' ratios."""
    rows: list[dict[str, Any]] = []
    for mtu in (1500, 9000):
        with temporary_directory() as folder, OpenVSwitch(Path(folder)) as ovs, Net() as net:
            path = CorePath(ovs, net, Path(folder), mtu)
            sizes = [(1, 1), (8, 8), (CALLED, CALLED), (1, many)] if mtu == 1500 else [(1, 1)]
            with path.serving():
                for called, mapped in sizes:
                    flows = path.map(mapped)
                    actions = ["in", "out", *(["web"] if mtu == 1500 else []), *(["rtt"] if called == 1 else [])]
                    for action in actions:
                        row = _by_turns(path, action, called, rounds, seconds)
                        rows.append({"mtu": mtu, "addresses": mapped, "flows": flows, **row})
                        print(rows[-1], flush=True)
    return {"rounds": rounds, "seconds": seconds, "load": os.getloadavg()[0], "rows": rows}


def _by_turns(path: CorePath, action: str, called: int, rounds: int, seconds: float) -> dict[str, Any]:
    ways = {"direct": (JOBS, OWN), "mapped": (POOL, OPEN)}
    targets = {way: [f"{base + n}:{port}" for n in range(1, called + 1)] for way, (base, port) in ways.items()}
    for way in ways:
        # Neighbours are found, and the switch's caches are filled.
        path.measured(action, 0.3, targets[way])
    found: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(rounds):
        for way in sorted(ways, reverse=bool(number % 2)):
            found[way].append(path.measured(action, seconds, targets[way]))
    ratios = [mapped / direct for direct, mapped in zip(found["direct"], found["mapped"], strict=True)]
    return {
        "action": action,
        "called": called,
        **{way: statistics.median(values) for way, values in found.items()},
        "ratio": statistics.median(ratios),
        "ratios": [min(ratios), max(ratios)],
    }
