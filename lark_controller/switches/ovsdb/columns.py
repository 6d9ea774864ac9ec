"""Columns of Open vSwitch's database that concern queues: values as a server sends them, and as they are kept. Pure.

Values are those of RFC 7047, section 5.1; a row that is new comes without the columns that have their default, and one
that has changed with the differences of maps (ovsdb-server(7), ``<row-update2>``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

# A map has texts as keys: JSON's objects have no others, and as such rows are kept.
Value = int | str | dict[str, str]

_UUID: Final = re.compile("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
# Integers have 64 bits (RFC 7047, section 3.1).
_MOST: Final = 1 << 63


class Column(NamedTuple):
    """A column: ``read`` takes a value as the server sends it, and raises ValueError for what is none."""

    name: str
    read: Callable[[Any], Value]
    default: Value

    def changed(self, before: Value, difference: Any) -> Value:
        """The value after a difference. Of a map an entry that was there as it comes is gone; of all else the value
        comes itself. Raises ValueError."""
        came = self.read(difference)
        if not isinstance(before, dict) or not isinstance(came, dict):
            return came
        after = dict(before)
        for key, value in came.items():
            if after.get(key) == value:
                del after[key]
            else:
                after[key] = value
        return after


def uuid(value: Any) -> str:
    """The UUID of a row. Raises ValueError."""
    if not isinstance(value, str) or _UUID.fullmatch(value) is None:
        raise ValueError("no UUID")
    return value


def number_of(row: str) -> int:
    """The number of 128 bits that a UUID is."""
    return int(row.replace("-", ""), 16)


def uuid_of(number: int) -> str:
    """The UUID with a number."""
    text = f"{number:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def _integer(value: Any) -> int:
    if type(value) is not int or not -_MOST <= value < _MOST:
        raise ValueError("no integer")
    return value


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("no string")
    return value


def _reference(value: Any) -> str:
    match value:
        case ["uuid", text]:
            return uuid(text)
    raise ValueError("no reference")


def _optional(read: Callable[[Any], str]) -> Callable[[Any], str]:
    """A set of one value at most; ``""`` is none."""

    def one(value: Any) -> str:
        match value:
            case ["set", []]:
                return ""
            case ["set", [only]]:
                return read(only)
        return read(value)

    return one


def _map(key: Callable[[Any], object], read: Callable[[Any], str]) -> Callable[[Any], dict[str, str]]:
    def pairs(value: Any) -> dict[str, str]:
        match value:
            case ["map", [*entries]]:
                return dict(map(pair, entries))
        raise ValueError("no map")

    def pair(entry: Any) -> tuple[str, str]:
        match entry:
            case [name, value]:
                return str(key(name)), read(value)
        raise ValueError("no entry of a map")

    return pairs


_TEXTS: Final = _map(_string, _string)

# They have stood unchanged since the first versions of the schema Open_vSwitch.
COLUMNS: Final[Mapping[str, tuple[Column, ...]]] = {
    "Open_vSwitch": (Column("cur_cfg", _integer, 0), Column("next_cfg", _integer, 0)),
    "Bridge": (
        Column("datapath_type", _string, ""),
        Column("datapath_id", _optional(_string), ""),
        Column("external_ids", _TEXTS, {}),
    ),
    "Port": (Column("name", _string, ""), Column("qos", _optional(_reference), "")),
    "QoS": (
        Column("type", _string, ""),
        Column("other_config", _TEXTS, {}),
        Column("external_ids", _TEXTS, {}),
        Column("queues", _map(_integer, _reference), {}),
    ),
    "Queue": (Column("other_config", _TEXTS, {}), Column("external_ids", _TEXTS, {})),
}
# A worker has hundreds of ports, and those without a QoS are not needed.
CONDITIONS: Final[Mapping[str, list[Any]]] = {"Port": [["qos", "!=", ["set", []]]]}


def requests() -> dict[str, Any]:
    """The request to be told of these columns (``<monitor-cond-requests>``)."""
    asked = {}
    for table, columns in COLUMNS.items():
        asked[table] = {"columns": [column.name for column in columns]}
        if table in CONDITIONS:
            asked[table]["where"] = CONDITIONS[table]
    return {table: [request] for table, request in asked.items()}
