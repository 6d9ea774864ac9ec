"""Queues as rows of Open vSwitch's database: what is there, what differs, and the operations that set it right. Pure.

``Port.qos`` names a row of QoS, whose ``queues`` name rows of Queue (ovs-vswitchd.conf.db(5)). Rows of Lark's are
marked in ``external_ids``; rows without its mark are never touched, and a port that has one keeps it. Operations are
those of RFC 7047, section 5.2; one list of them is one transaction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from lark_common.shared_texts import shared
from lark_controller.qos.queues import PortQueues, Queue

TYPE: Final = "linux-htb"
# external_ids of Lark's rows: the bridge's datapath id, the port, and the queue's number.
MARK: Final = "lark-datapath"
PORT: Final = "lark-port"
NUMBER: Final = "lark-queue"
# external_ids of a queue in which the worker service writes the seconds in which packets were waiting, and the number
# of those that were dropped.
WAITED: Final = "lark-waited"
DROPPED: Final = "lark-dropped"

Operation = dict[str, Any]
Text = Mapping[str, str]


def _none() -> Text:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class QosRow:
    """A row of QoS; ``queues`` are uuids by number."""

    kind: str
    config: Text = field(default_factory=_none)
    ids: Text = field(default_factory=_none)
    queues: Mapping[int, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class QueueRow:
    """A row of Queue."""

    config: Text = field(default_factory=_none)
    ids: Text = field(default_factory=_none)


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a switch's database: the QoS of every port that has one, and all rows of QoS and Queue, by uuid."""

    ports: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    qos: Mapping[str, QosRow] = field(default_factory=lambda: MappingProxyType({}))
    queues: Mapping[str, QueueRow] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Difference:
    """The operations that make a database hold the desired rows, and by port the reason where that is impossible."""

    operations: tuple[Operation, ...] = ()
    problems: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


def difference(datapath: str, desired: Mapping[str, PortQueues], rows: Rows) -> Difference:
    """The operations after which the ports of ``datapath`` (16 hexadecimal digits) have the desired queues, and no
    others of Lark's are left of that datapath."""
    operations: list[Operation] = []
    problems: dict[str, str] = {}
    kept: set[str] = set()
    # Rows are one port's and one queue's, whatever others have written to them.
    claimed: set[str] = set()
    for number, (port, shape) in enumerate(sorted(desired.items())):
        at = rows.ports.get(port)
        if at is None:
            operations += _new(datapath, port, shape, number, ["set", []])
        elif at not in rows.qos or rows.qos[at].ids.get(MARK) != datapath:
            problems[port] = f"port {port} has a QoS that is not Lark's; it is left as it is"
        elif at in kept:
            operations += _new(datapath, port, shape, number, ["uuid", at])
        else:
            kept.add(at)
            operations += _changed(datapath, port, shape, at, rows, claimed)
    operations += _removed(datapath, kept, claimed, rows)
    return Difference(tuple(operations), MappingProxyType(problems))


def standing(datapath: str, desired: Mapping[str, PortQueues], rows: Rows) -> dict[str, PortQueues]:
    """The ports of ``desired`` whose rows are exactly as desired, or else what they hold of Lark's."""
    found = {}
    for port in desired:
        row = rows.qos.get(rows.ports.get(port, ""))
        if row is None or row.ids.get(MARK) != datapath or row.kind != TYPE:
            continue
        held = {
            number: queue
            for number, uuid in row.queues.items()
            if uuid in rows.queues and (queue := _queue_of(rows.queues[uuid].config)) is not None
        }
        stands = PortQueues(whole_number(row.config.get("max-rate", "")) or 0, MappingProxyType(held))
        # Reports are kept: what stands as desired takes no memory of its own.
        found[port] = desired[port] if stands == desired[port] else stands
    return found


def waited(datapath: str, rows: Rows) -> dict[tuple[str, int], float]:
    """The seconds for which packets were found waiting in the queues of a datapath, by port and number."""
    return {key: float(count) for key, count in _counts(datapath, rows, WAITED)}


def dropped(datapath: str, rows: Rows) -> dict[tuple[str, int], int]:
    """The number of packets that the queues of a datapath have dropped, by port and number."""
    return dict(_counts(datapath, rows, DROPPED))


def _counts(datapath: str, rows: Rows, name: str) -> Iterator[tuple[tuple[str, int], int]]:
    for row in rows.queues.values():
        ids = row.ids
        count, number = whole_number(ids.get(name, "")), whole_number(ids.get(NUMBER, ""))
        if ids.get(MARK) == datapath and count is not None and number is not None:
            yield (shared(ids.get(PORT, "")), number), count


def whole_number(text: str) -> int | None:
    """A number that a database may hold (RFC 7047, section 3.1), None for what is none."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 18 else None


def queue_config(queue: Queue) -> dict[str, str]:
    """A queue as ``Queue.other_config``; Open vSwitch's defaults are left out."""
    config = {"max-rate": str(queue.most), "burst": str(queue.burst)}
    if queue.least:
        config["min-rate"] = str(queue.least)
    if queue.priority:
        config["priority"] = str(queue.priority)
    return config


def _queue_of(config: Text) -> Queue | None:
    names = ("min-rate", "max-rate", "priority")
    least, most, priority = (whole_number(config.get(name, "0")) for name in names)
    if least is None or most is None or priority is None:
        return None
    queue = Queue(least, most, priority)
    # A queue that others have changed is no queue of Lark's.
    return queue if config == queue_config(queue) else None


def _new(datapath: str, port: str, shape: PortQueues, place: int, instead: list[Any]) -> Iterator[Operation]:
    names = {}
    for number, queue in sorted(shape.queues.items()):
        names[number] = f"queue_{place}_{number}"
        yield _insert_queue(datapath, port, number, queue, names[number])
    yield {
        "op": "insert",
        "table": "QoS",
        "uuid-name": f"qos_{place}",
        "row": {
            "type": TYPE,
            "other_config": as_map({"max-rate": str(shape.rate)}),
            "external_ids": as_map({MARK: datapath, PORT: port}),
            "queues": ["map", [[number, ["named-uuid", name]] for number, name in names.items()]],
        },
    }
    yield {
        "op": "update",
        "table": "Port",
        # Another QoS that the port was given in the meantime stays.
        "where": [["name", "==", port], ["qos", "==", instead]],
        "row": {"qos": ["named-uuid", f"qos_{place}"]},
    }


def _insert_queue(datapath: str, port: str, number: int, queue: Queue, name: str) -> Operation:
    return {
        "op": "insert",
        "table": "Queue",
        "uuid-name": name,
        "row": {
            "other_config": as_map(queue_config(queue)),
            "external_ids": as_map({MARK: datapath, PORT: port, NUMBER: str(number)}),
        },
    }


def _changed(
    datapath: str, port: str, shape: PortQueues, uuid: str, rows: Rows, claimed: set[str]
) -> Iterator[Operation]:
    row = rows.qos[uuid]
    config = {"max-rate": str(shape.rate)}
    changed: dict[str, Any] = {}
    if row.kind != TYPE:
        changed["type"] = TYPE
    if row.config != config:
        changed["other_config"] = as_map(config)
    if changed:
        yield {"op": "update", "table": "QoS", "where": where_uuid(uuid), "row": changed}
    gone = [number for number in row.queues if number not in shape.queues]
    fresh: list[list[Any]] = []
    for number, queue in sorted(shape.queues.items()):
        at = row.queues.get(number, "")
        held = rows.queues.get(at)
        if held is None or held.ids.get(MARK) != datapath or at in claimed:
            if number in row.queues:
                gone.append(number)
            name = f"queue_{uuid.replace('-', '_')}_{number}"
            yield _insert_queue(datapath, port, number, queue, name)
            fresh.append([number, ["named-uuid", name]])
            continue
        claimed.add(at)
        if held.config != queue_config(queue):
            yield {
                "op": "update",
                "table": "Queue",
                "where": where_uuid(at),
                "row": {"other_config": as_map(queue_config(queue))},
            }
    if gone or fresh:
        mutations: list[list[Any]] = []
        if gone:
            mutations.append(["queues", "delete", ["set", sorted(gone)]])
        if fresh:
            mutations.append(["queues", "insert", ["map", fresh]])
        yield {"op": "mutate", "table": "QoS", "where": where_uuid(uuid), "mutations": mutations}


def _removed(datapath: str, kept: set[str], claimed: set[str], rows: Rows) -> Iterator[Operation]:
    """Lark's rows of this datapath that nothing needs any more."""
    ours = {uuid for uuid, row in rows.qos.items() if row.ids.get(MARK) == datapath}
    for uuid in sorted(ours - kept):
        yield {
            "op": "update",
            "table": "Port",
            "where": [["qos", "==", ["uuid", uuid]]],
            "row": {"qos": ["set", []]},
        }
        yield _delete("QoS", uuid)
    used = {queue for uuid, row in rows.qos.items() if uuid not in ours for queue in row.queues.values()}
    for uuid in sorted(rows.queues.keys() - claimed - used):
        if rows.queues[uuid].ids.get(MARK) == datapath:
            yield _delete("Queue", uuid)


def as_map(values: Text) -> list[Any]:
    """A map as the database has it (RFC 7047, section 5.1)."""
    return ["map", [[key, value] for key, value in sorted(values.items())]]


def where_uuid(uuid: str) -> list[Any]:
    """The condition that chooses the row ``uuid``."""
    return [["_uuid", "==", ["uuid", uuid]]]


def _delete(table: str, uuid: str) -> Operation:
    return {"op": "delete", "table": table, "where": where_uuid(uuid)}
