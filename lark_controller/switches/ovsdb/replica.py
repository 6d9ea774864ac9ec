"""The replica of the few rows of a switch's database that concern queues: the ``ovs`` library's IDL."""

from __future__ import annotations

from typing import Any, Final

from lark_controller.switches.ovsdb.json_stream import Parser
from lark_controller.switches.ovsdb.library import Idl, SchemaHelper, json
from lark_controller.switches.ovsdb.rows import QosRow, QueueRow, Rows

# The library takes a parser from its module for each message, and has no other place to name one.
json.Parser = Parser

_MAP: Final = {"key": "string", "value": "string", "min": 0, "max": "unlimited"}


def _reference(table: str) -> dict[str, Any]:
    return {"type": "uuid", "refTable": table}


# The replicated columns of the schema Open_vSwitch; they have stood unchanged since its first versions.
_SCHEMA: Final[dict[str, dict[str, Any]]] = {
    "Open_vSwitch": {"cur_cfg": {"type": "integer"}, "next_cfg": {"type": "integer"}},
    "Bridge": {
        "name": {"type": "string"},
        "datapath_type": {"type": "string"},
        "datapath_id": {"type": {"key": "string", "min": 0, "max": 1}},
        "external_ids": {"type": _MAP},
    },
    "Port": {"name": {"type": "string"}, "qos": {"type": {"key": _reference("QoS"), "min": 0, "max": 1}}},
    "QoS": {
        "type": {"type": "string"},
        "other_config": {"type": _MAP},
        "external_ids": {"type": _MAP},
        "queues": {
            "type": {"key": {"type": "integer"}, "value": _reference("Queue"), "min": 0, "max": "unlimited"},
        },
    },
    "Queue": {"other_config": {"type": _MAP}, "external_ids": {"type": _MAP}},
}


def replica(address: str, probe: int) -> Idl:
    """The replica of the database at an address; a server that is silent for ``probe`` milliseconds is asked whether it
    is there."""
    tables = {name: {"columns": columns, "isRoot": True} for name, columns in _SCHEMA.items()}
    helper = SchemaHelper(schema_json={"name": "Open_vSwitch", "version": "1.0.0", "tables": tables})
    for name, columns in _SCHEMA.items():
        helper.register_columns(name, list(columns))
    idl = Idl(address, helper, probe_interval=probe)
    # A worker has hundreds of ports, and those without a QoS are not needed.
    idl.cond_change("Port", [["qos", "!=", ["set", []]]])
    return idl


def rows_of(idl: Idl) -> Rows:
    """The rows of a replica that concern queues."""
    tables = idl.tables
    return Rows(
        ports={row.name: str(row.qos[0].uuid) for row in tables["Port"].rows.values() if row.qos},
        qos={
            str(uuid): QosRow(
                row.type,
                dict(row.other_config),
                dict(row.external_ids),
                {number: str(each.uuid) for number, each in row.queues.items()},
            )
            for uuid, row in tables["QoS"].rows.items()
        },
        queues={
            str(uuid): QueueRow(dict(row.other_config), dict(row.external_ids))
            for uuid, row in tables["Queue"].rows.items()
        },
    )
