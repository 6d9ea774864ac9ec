"""The record of each job, on disk before anything is made for the job, so that a crash leaves nothing unrecorded."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Self

from lark_common import log
from lark_common.runs import EndedBy, RunKey
from lark_worker.records.atomic_file import remove, write_atomically


@dataclass(frozen=True, slots=True)
class Record:
    """One job. ``pending`` are the operations that have not reached the controller, in order: ``register``, ``end``.

    ``starter`` and ``started`` (clock ticks since boot) with ``boot`` name the starter's process for all time.
    ``number`` is the order of admission. ``body`` is the post's; ``addresses`` are with prefix length. ``external`` are
    its external addresses by the controller's last answer to its posts, ``opened`` the words of what is open there and
    ``external_name`` their name. ``machine`` is the worker's name at the
    controller. ``bridge`` and ``vlan`` are of a bridge job.
    ``counted`` are the counters that are reported with its end, and ``moved`` is what its transfers have moved.
    ``made``: its network stands; ``over``: the job has ended here; ``accounted``: its network use is reported to
    HTCondor; ``scripted``: the site's program runs or was run at its start, and is to be run at its end.
    """

    id: str
    number: int
    boot: str
    starter: int
    started: int
    global_job_id: str
    run_started: int
    slot: str
    owner: str
    namespace: str
    port: str
    mac: str
    network_type: str
    address_type: str
    body: str
    addresses: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    opened: tuple[str, ...] = ()
    external_name: str = ""
    pending: tuple[str, ...] = ()
    exit_ad: str = ""
    ended_by: str = EndedBy.HOOK.value
    state: str = "registering"
    reason: str = ""
    machine: str = ""
    bridge: str = ""
    vlan: int | None = None
    counted: dict[str, int] = field(default_factory=dict)
    moved: dict[str, int] = field(default_factory=dict)
    made: bool = False
    accounted: bool = True
    scripted: bool = False
    over: bool = False

    @property
    def run(self) -> RunKey:
        """The run's key."""
        return RunKey(self.global_job_id, self.run_started, self.slot)

    def delivered(self, operation: str) -> Self:
        """Without the first pending operation, which is ``operation``."""
        rest = self.pending[1:] if self.pending[:1] == (operation,) else self.pending
        return replace(self, pending=rest)


class Records:
    """The records, one file each in ``directory``; written whole and renamed, so that each is old or new."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        directory.chmod(0o700)

    def write(self, record: Record) -> None:
        """Keep a record. Raises OSError where the disk does not take it."""
        write_atomically(self._directory / f"{record.id}.json", json.dumps(asdict(record)))

    def remove(self, job_id: str) -> None:
        """Forget a record; nothing happens where there is none."""
        with contextlib.suppress(FileNotFoundError):
            (self._directory / f"{job_id}.json").unlink()

    def load(self) -> list[Record]:
        """Every record that can be read, in the order of admission; others are removed."""
        found = []
        for path in self._directory.iterdir():
            record = _read(path) if path.suffix == ".json" else None
            if record is None:
                log.event("record cannot be read; removed", level=log.WARNING, path=path)
                remove(path)
            else:
                found.append(record)
        return sorted(found, key=lambda record: record.number)


def _read(path: Path) -> Record | None:
    try:
        given: dict[str, Any] = json.loads(path.read_text("utf-8"))
        # A record of before external addresses has none.
        listed = ("addresses", "pending", *({"external", "opened"} & given.keys()))
        lists = {name: tuple(given[name]) for name in listed}
        record = Record(**{name: value for name, value in given.items() if name in _FIELDS} | lists)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    whole = all(_FITS[kind](getattr(record, name)) for name, kind in _FIELDS.items())
    return record if whole and record.id == path.stem else None


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_FIELDS: Final = {entry.name: str(entry.type) for entry in fields(Record)}
# The values that a field of each type may have: a file that a disk has damaged may still be JSON.
_FITS: Final[Mapping[str, Callable[[Any], bool]]] = {
    "str": lambda value: isinstance(value, str),
    "int": _is_number,
    "int | None": lambda value: value is None or _is_number(value),
    "bool": lambda value: isinstance(value, bool),
    "tuple[str, ...]": lambda value: all(isinstance(each, str) for each in value),
    "dict[str, int]": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
}
