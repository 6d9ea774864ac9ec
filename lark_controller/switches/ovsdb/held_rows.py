"""The rows of a database as they are kept: each as JSON, a fifth of the memory that objects would take.

A pool has two queues and a QoS for each job with a rate of its own, and looks at those of a switch when something
changes there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from lark_controller.switches.ovsdb.columns import COLUMNS, Value, number_of, uuid, uuid_of
from lark_controller.switches.ovsdb.rows import QosRow, QueueRow, Rows, Text

_ENCODE: Final = json.JSONEncoder(separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Bridge:
    """A row of Bridge."""

    uuid: str
    datapath_type: str
    ids: Text


@dataclass(frozen=True, slots=True)
class Root:
    """The row of Open_vSwitch: the configuration that was asked for last, and the one in force."""

    uuid: str
    next_cfg: int
    cur_cfg: int


class HeldRows:
    """The rows that a server has told of. For one thread."""

    def __init__(self) -> None:
        # By the number of their UUID, which takes half of the memory of its text.
        self._tables: dict[str, dict[int, str]] = {table: {} for table in COLUMNS}
        # All characters, and those of the longest row so far.
        self.characters = 0
        self.longest = 0

    def __len__(self) -> int:
        return sum(map(len, self._tables.values()))

    def take(self, updates: Any) -> None:
        """Take a server's word on rows (``<table-updates2>``, ovsdb-server(7)). Raises ValueError."""
        for table, rows in _object(updates).items():
            if table not in COLUMNS:
                raise ValueError("a table that was not asked for")
            for row, update in _object(rows).items():
                for kind, value in _object(update).items():
                    self._take(table, number_of(uuid(row)), kind, value)

    def root(self) -> Root | None:
        """The row of Open_vSwitch."""
        for number, (current, wanted) in self._all("Open_vSwitch"):
            return Root(uuid_of(number), wanted, current)
        return None

    def bridge(self, datapath: str) -> Bridge | None:
        """The bridge with a datapath id of 16 hexadecimal digits."""
        for number, (kind, at, ids) in self._all("Bridge"):
            if at == datapath:
                return Bridge(uuid_of(number), kind, ids)
        return None

    def ports(self) -> dict[str, str]:
        """The QoS of every port that has one, by the port's name."""
        return {name: qos for _, (name, qos) in self._all("Port") if qos}

    def rows(self) -> Rows:
        """The rows that concern queues."""
        return Rows(
            ports=self.ports(),
            qos={
                uuid_of(number): QosRow(kind, config, ids, {int(each): queue for each, queue in queues.items()})
                for number, (kind, config, ids, queues) in self._all("QoS")
            },
            queues={uuid_of(number): QueueRow(config, ids) for number, (config, ids) in self._all("Queue")},
        )

    def _all(self, table: str) -> Iterator[tuple[int, list[Any]]]:
        held = self._tables[table]
        return zip(held, json.loads(f"[{','.join(held.values())}]"), strict=True)

    def _take(self, table: str, number: int, kind: str, value: Any) -> None:
        columns = COLUMNS[table]
        values: list[Value]
        if kind == "delete":
            self._put(table, number, None)
            return
        came = _object(value)
        if kind in ("initial", "insert"):
            values = [column.read(came[column.name]) if column.name in came else column.default for column in columns]
        elif kind == "modify":
            held = self._tables[table].get(number)
            if held is None:
                raise ValueError("a change of a row that is not there")
            values = [
                column.changed(before, came[column.name]) if column.name in came else before
                for column, before in zip(columns, json.loads(held), strict=True)
            ]
        else:
            raise ValueError("an unknown change of a row")
        self._put(table, number, _ENCODE(values))

    def _put(self, table: str, number: int, text: str | None) -> None:
        rows = self._tables[table]
        self.characters -= len(rows.pop(number, ""))
        if text is not None:
            rows[number] = text
            self.characters += len(text)
            self.longest = max(self.longest, len(text))


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("no object")
    return value
