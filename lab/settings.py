"""The settings of the lab, all from the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.run import LabError

KINDS = ("auto", "native", "uml", "userspace")
SOURCE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class LabSettings:
    """Settings of the lab.

    ``cache`` holds the root file systems, ``runs`` one directory a run, with its logs and results. ``mirror`` and
    ``keyring`` replace what the machine's own apt sources say. ``memory_mb`` is what the lab's own kernel may use at
    most.
    """

    cache: Path
    runs: Path
    mirror: str = ""
    keyring: str = ""
    suite: str = "forky"
    kind: str = "auto"
    memory_mb: int = 3072
    source: Path = SOURCE


def from_environment(environment: Mapping[str, str] = os.environ) -> LabSettings:
    """Read ``LAB_CACHE``, ``LAB_RUNS``, ``LAB_MIRROR``, ``LAB_KEYRING``, ``LAB_SUITE``, ``LAB_KIND`` and
    ``LAB_MEMORY``.

    Raises LabError for a value that is not accepted.
    """
    home = Path(environment["HOME"]) if environment.get("HOME") else Path.home()
    cache = Path(environment.get("XDG_CACHE_HOME") or home / ".cache")
    kind = environment.get("LAB_KIND") or "auto"
    if kind not in KINDS:
        raise LabError(f"LAB_KIND={kind}: not known; accepted are {', '.join(KINDS)}")
    memory = environment.get("LAB_MEMORY") or "3072"
    if not memory.isdigit() or int(memory) < 1024:
        raise LabError(f"LAB_MEMORY={memory}: give MiB as a whole number, at least 1024")
    return LabSettings(
        cache=Path(environment.get("LAB_CACHE") or cache / "lark-lab"),
        runs=Path(environment.get("LAB_RUNS") or environment.get("TMPDIR") or "/tmp"),
        mirror=environment.get("LAB_MIRROR") or "",
        keyring=environment.get("LAB_KEYRING") or "",
        suite=environment.get("LAB_SUITE") or "forky",
        kind=kind,
        memory_mb=int(memory),
    )
