"""The generation of the instance in charge, in a switch's database: as ``external_ids`` of its bridge. Pure.

Every transaction begins with :func:`guard`: it fails as a whole where another generation stands there by then, whatever
the replica shows (RFC 7047, section 5.2.6: ``wait`` without a time to wait).
"""

from __future__ import annotations

from typing import Any, Final

from lark_controller.switches.ovsdb.rows import Operation, Text, as_map, where_uuid, whole_number

GENERATION: Final = "lark-generation"


def generation_in(ids: Text) -> int:
    """The generation in the ``external_ids`` of a bridge; 0 where there is none."""
    return whole_number(ids.get(GENERATION, "")) or 0


def guard(uuid: str, ids: Text, generation: int) -> tuple[Operation, ...]:
    """The operations that set a generation in the bridge ``uuid``, whose ``external_ids`` were ``ids`` when last seen;
    if they show it already, those that see to it that it still stands."""
    own = {GENERATION: str(generation)}
    if ids.get(GENERATION) == own[GENERATION]:
        # One row, in place of none: others' keys may change.
        where = [*where_uuid(uuid), ["external_ids", "includes", as_map(own)]]
        return (_wait(where, "!=", ["_uuid"], []),)
    return (
        _wait(where_uuid(uuid), "==", ["external_ids"], [{"external_ids": as_map(ids)}]),
        {
            "op": "mutate",
            "table": "Bridge",
            "where": where_uuid(uuid),
            "mutations": [
                ["external_ids", "delete", ["set", [GENERATION]]],
                ["external_ids", "insert", as_map(own)],
            ],
        },
    )


def _wait(where: list[Any], until: str, columns: list[str], rows: list[dict[str, Any]]) -> Operation:
    return {
        "op": "wait",
        "table": "Bridge",
        "timeout": 0,
        "where": where,
        "columns": columns,
        "until": until,
        "rows": rows,
    }
