"""The remains of a run in which something was broken: files and connections, to find out why."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.checker import Violation
from tests.chaos.log import Log
from tests.chaos.schedule import Fault
from tests.chaos.switches import Fleet


def both_sides(fleet: Fleet, told: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each switch, with its own side and the controller's (a list of ``GET /v1/switches``)."""
    by_number = {int(each["datapath"], 16): each for each in told}
    found = []
    for number, switch in fleet.switches.items():
        own = "open" if switch.connected else "closed"
        known = by_number.get(number, {})
        found.append(
            f"switch {number:x}: its own connection is {own}, {len(switch.flows)} flows; at the controller "
            f"connected={known.get('connected')} in_sync={known.get('in_sync')} desired={known.get('desired')} "
            f"installed={known.get('installed')} reason={known.get('reason')!r}"
        )
    return found


def in_words(looks: Mapping[Violation, int]) -> list[str]:
    """Each violation, with the number of looks in a row that have found it."""
    return [f"{each} (found {count} times in a row)" for each, count in looks.items()]


def keep(
    directory: Path, url: str, log: Log, undergone: Sequence[Fault], broken: Iterable[str], switches: Iterable[str],
    found: Path,
) -> None:  # fmt: skip
    """Copy the controller's files from its directory, and write down the rest, to ``found``."""
    shutil.rmtree(found, ignore_errors=True)
    found.mkdir(parents=True)
    for path in directory.glob("lark.*"):
        shutil.copy(path, found)
    if url.startswith("postgresql"):
        with (found / "lark.sql").open("wb") as file:
            subprocess.run(["pg_dump", "--inserts", url], stdout=file, check=False)
    entries = sorted(log.entries(), key=lambda each: each.sent)
    for name, lines in (("asked", entries), ("faults", undergone), ("broken", broken), ("switches", switches)):
        (found / name).write_text("".join(f"{each}\n" for each in lines))
