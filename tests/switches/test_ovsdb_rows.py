"""Rows of Open vSwitch's database: whatever is there, one transaction makes it right and touches nothing of others."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lark_controller.qos.queues import PortQueues, Queue
from lark_controller.switches.ovsdb.rows import (
    MARK,
    TYPE,
    Operation,
    QosRow,
    QueueRow,
    Rows,
    difference,
    queue_config,
    standing,
)

OURS, THEIRS = "00000000000000e1", "00000000000000e2"
NAMES = ("eth0", "job1", "job2")


class Database:
    """Understands the operations that are used, as RFC 7047 has them; a reference to a row that is gone is an error."""

    def __init__(self, rows: Rows) -> None:
        self.ports = {name: rows.ports.get(name, "") for name in NAMES}
        self.qos, self.queues = dict(rows.qos), dict(rows.queues)
        self._numbers = itertools.count()

    @property
    def rows(self) -> Rows:
        return Rows({name: uuid for name, uuid in self.ports.items() if uuid}, dict(self.qos), dict(self.queues))

    def transact(self, operations: tuple[Operation, ...]) -> None:
        named = {
            each["uuid-name"]: f"new-{next(self._numbers)}-{len(self.qos)}"
            for each in operations
            if each["op"] == "insert"
        }
        for each in operations:
            getattr(self, f"_{each['op']}")(each, named)
        for row in self.qos.values():
            assert set(row.queues.values()) <= self.queues.keys(), "a queue that is used is gone"
        assert {uuid for uuid in self.ports.values() if uuid} <= self.qos.keys(), "a QoS that is used is gone"

    def _insert(self, each: Operation, named: dict[str, str]) -> None:
        uuid, row = named[each["uuid-name"]], each["row"]
        config, ids = dict(row["other_config"][1]), dict(row["external_ids"][1])
        if each["table"] == "Queue":
            self.queues[uuid] = QueueRow(config, ids)
        else:
            queues = {number: named[queue[1]] for number, queue in row["queues"][1]}
            self.qos[uuid] = QosRow(row["type"], config, ids, queues)

    def _update(self, each: Operation, named: dict[str, str]) -> None:
        row = each["row"]
        if each["table"] == "Port":
            value = "" if row["qos"][0] == "set" else named[row["qos"][1]]
            for name, uuid in self.ports.items():
                if all(_holds(condition, name, uuid) for condition in each["where"]):
                    self.ports[name] = value
        elif each["table"] == "QoS":
            held = self.qos[each["where"][0][2][1]]
            config = dict(row["other_config"][1]) if "other_config" in row else held.config
            self.qos[each["where"][0][2][1]] = replace(held, kind=row.get("type", held.kind), config=config)
        else:
            uuid = each["where"][0][2][1]
            self.queues[uuid] = replace(self.queues[uuid], config=dict(row["other_config"][1]))

    def _mutate(self, each: Operation, named: dict[str, str]) -> None:
        uuid = each["where"][0][2][1]
        queues = dict(self.qos[uuid].queues)
        for _, mutator, (_, values) in each["mutations"]:
            if mutator == "delete":
                for number in values:
                    del queues[number]
            else:
                queues |= {number: named[queue[1]] for number, queue in values}
        self.qos[uuid] = replace(self.qos[uuid], queues=queues)

    def _delete(self, each: Operation, named: dict[str, str]) -> None:
        table: dict[str, Any] = self.qos if each["table"] == "QoS" else self.queues
        del table[each["where"][0][2][1]]


def _holds(condition: list[Any], name: str, uuid: str) -> bool:
    column, _, value = condition
    if column == "name":
        return bool(name == value)
    return uuid == (value[1] if value[0] == "uuid" else "")


queues = st.builds(Queue, st.integers(0, 10**9), st.integers(1, 10**9), st.integers(0, 7))
wanted = st.dictionaries(
    st.sampled_from(NAMES),
    st.builds(PortQueues, st.integers(1, 10**10), st.dictionaries(st.integers(0, 3), queues, max_size=3)),
)
configs: st.SearchStrategy[dict[str, str]] = st.one_of(
    queues.map(queue_config), st.just({}), st.just({"max-rate": "x"})
)
marks = st.sampled_from([{MARK: OURS}, {MARK: OURS}, {MARK: THEIRS}, {}, {"lark-port": "eth0"}])


@st.composite
def databases(draw: st.DrawFn) -> Rows:
    made = {f"queue{n}": QueueRow(draw(configs), draw(marks)) for n in range(draw(st.integers(0, 5)))}
    qos = {}
    for number in range(draw(st.integers(0, 4))):
        used = draw(st.dictionaries(st.integers(0, 3), st.sampled_from(sorted(made)), max_size=3)) if made else {}
        kind = draw(st.sampled_from([TYPE, TYPE, "linux-hfsc"]))
        qos[f"qos{number}"] = QosRow(kind, draw(st.sampled_from([{}, {"max-rate": "5"}])), draw(marks), used)
    ports = draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(qos)))) if qos else {}
    return Rows(ports, qos, made)


@given(wanted, databases())
def test_one_transaction_makes_it_right_and_leaves_others_alone(desired: dict[str, PortQueues], rows: Rows) -> None:
    database = Database(rows)
    found = difference(OURS, desired, rows)
    database.transact(found.operations)
    after = database.rows
    assert difference(OURS, desired, after).operations == ()
    possible = {port: queues for port, queues in desired.items() if port not in found.problems}
    assert standing(OURS, desired, after) == possible
    for uuid, row in rows.qos.items():
        if row.ids.get(MARK) != OURS:
            assert after.qos[uuid] == row
    for uuid, queue in rows.queues.items():
        if queue.ids.get(MARK) != OURS:
            assert after.queues[uuid] == queue
    for port, uuid in rows.ports.items():
        if rows.qos[uuid].ids.get(MARK) != OURS:
            assert after.ports[port] == uuid
            assert port not in possible
    ours = {uuid for uuid, row in after.qos.items() if row.ids.get(MARK) == OURS}
    assert ours == {after.ports[port] for port in possible}


@given(wanted, wanted)
def test_what_stays_the_same_keeps_its_rows(before: dict[str, PortQueues], after: dict[str, PortQueues]) -> None:
    database = Database(Rows())
    database.transact(difference(OURS, before, database.rows).operations)
    held = database.rows
    database.transact(difference(OURS, after, held).operations)
    for port in before.keys() & after.keys():
        assert database.ports[port] == held.ports[port]
        for number in before[port].queues.keys() & after[port].queues.keys():
            assert database.rows.qos[held.ports[port]].queues[number] == held.qos[held.ports[port]].queues[number]
    database.transact(difference(OURS, {}, database.rows).operations)
    assert database.rows == Rows()
