"""The file from which the startd takes the slots' use of the network (startd cron, several ads in one output)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lark_common.classads.text import name_part
from lark_worker.records.atomic_file import write_atomically
from lark_worker.usage.counters import MEGA, JobUse

_SLOT: Final = "SlotName = "
_NOTHING: Final = ("NetworkInputMb", "NetworkOutputMb", "NetworkInputRate", "NetworkOutputRate")

# The subjects of headroom: the WAN of a group, transfers of a group's jobs, and of an access point's.
WAN: Final = "WanHeadroom"
TRANSFERS: Final = "TransferHeadroom"
TRANSFERS_AT: Final = "TransferHeadroomAt"


def attribute(name: str, of: str = WAN) -> str:
    """The attribute of a slot's ad that has the headroom of a group or an access point."""
    return f"{of}_{name_part(name)}"


def left_in(pool: str) -> str:
    """The attribute of a slot's ad that has the free addresses of a pool of external addresses."""
    return f"ExternalHeadroom_{name_part(pool)}"


@dataclass(frozen=True, slots=True)
class Use:
    """The report of a slot: the use of its job, and the outer and inner end of the job's link."""

    meter: JobUse | None = None
    external: str = ""
    internal: str = ""


def text(
    slots: Mapping[str, Use], headroom: Mapping[str, float], at: int, external: Mapping[str, int] | None = None
) -> str:
    """The ads: one for each slot, and one for all with the headroom in Mb/s by attribute, and the free ``external``
    addresses of pools.

    ``at`` is the time in seconds since 1970. The startd keeps each ad by its tag until the next one with that tag, also
    when it is in the output no more. So a slot's tag is its name: under another tag, an old ad would be merged into the
    slot's beside the new one, and after it.
    """
    parts = []
    for name, use in sorted(slots.items()):
        meter = use.meter
        values = dict.fromkeys(_NOTHING, "undefined")
        if meter is not None:
            counted = (meter.counted.bytes_in / MEGA, meter.counted.bytes_out / MEGA, meter.rate_in, meter.rate_out)
            values = {each: f"{value:.6f}" for each, value in zip(_NOTHING, counted, strict=True)}
        for each, device in (("ExternalInterface", use.external), ("InternalInterface", use.internal)):
            values[each] = f'"{device}"' if device else "undefined"
        parts.append([f'{_SLOT}"{name}"', *_lines(values.items()), f"- {name}"])
    shared = {name: f"{value:.3f}" for name, value in headroom.items()} | {"NetworkUsageTime": f"{at}"}
    shared |= {left_in(pool): f"{free}" for pool, free in (external or {}).items()}
    parts.append([*_lines(sorted(shared.items())), "- all"])
    return "".join(f"{line}\n" for part in parts for line in part)


def names(path: Path) -> set[str]:
    """The slots that have an ad in a file; none where there is no such file. Raises OSError where it cannot be read."""
    try:
        lines = path.read_text("utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        return set()
    return {line.removeprefix(_SLOT).strip('"') for line in lines if line.startswith(_SLOT)}


def write(path: Path, ads: str) -> None:
    """Replace the file atomically. Everybody may read it, as the collector has the same. Raises OSError."""
    write_atomically(path, ads, 0o644)


def _lines(values: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{name} = {value}" for name, value in values]
