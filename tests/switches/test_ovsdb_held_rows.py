"""The rows of a database as they are kept: those that the server has, whatever the order of its changes."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.switches.ovsdb.columns import number_of, requests, uuid, uuid_of
from lark_controller.switches.ovsdb.held_rows import Bridge, HeldRows, Root
from lark_controller.switches.ovsdb.rows import QosRow, QueueRow
from lark_controller.switches.ovsdb.transactions import LOST, Outcome, outcome, requested

ROWS = tuple(str(UUID(int=number)) for number in (1, 2, 1 << 127))
TEXTS = st.dictionaries(st.sampled_from(["a", "b", "lark-port", "é\0"]), st.text(max_size=3), max_size=3)
QUEUES = st.dictionaries(st.integers(0, 3), st.sampled_from(ROWS), max_size=3)
QOS = st.tuples(st.sampled_from(["", "linux-htb"]), TEXTS, TEXTS, QUEUES)


def as_map(values: Mapping[Any, Any]) -> list[Any]:
    return ["map", [[key, value] for key, value in values.items()]]


def of_queues(values: Mapping[int, str]) -> list[Any]:
    return as_map({number: ["uuid", row] for number, row in values.items()})


def difference(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> dict[Any, Any]:
    """The difference of two maps as a server sends it (ovsdb-server(7), ``modify``)."""
    gone = {key: value for key, value in before.items() if key not in after}
    return gone | {key: value for key, value in after.items() if before.get(key) != value}


def row_of(value: tuple[str, dict[str, str], dict[str, str], dict[int, str]]) -> dict[str, Any]:
    """A new row: columns that have their default are left out."""
    kind, config, ids, queues = value
    row = {"type": kind, "other_config": as_map(config), "external_ids": as_map(ids), "queues": of_queues(queues)}
    return {name: each for (name, each), filled in zip(row.items(), value, strict=True) if filled}


@given(st.lists(st.tuples(st.sampled_from(ROWS), st.none() | QOS), max_size=12))
def test_rows_are_those_of_the_server_after_any_changes(changes: list[tuple[str, Any]]) -> None:
    held, there = HeldRows(), dict[str, Any]()
    for row, after in changes:
        before = there.pop(row, None)
        if after is None:
            update: dict[str, Any] = {"delete": None}
        elif before is None:
            update = {"insert": row_of(after)}
        else:
            maps = [difference(one, other) for one, other in zip(before[1:], after[1:], strict=True)]
            changed = {"other_config": as_map(maps[0]), "external_ids": as_map(maps[1]), "queues": of_queues(maps[2])}
            update = {"modify": {"type": after[0]} | {name: each for name, each in changed.items() if each[1]}}
        if after is not None:
            there[row] = after
        held.take({"QoS": {row: update}})
    assert held.rows().qos == {row: QosRow(*each) for row, each in there.items()}
    assert len(held) == len(there)
    assert held.characters == sum(len(each) for each in held._tables["QoS"].values())


def test_what_a_switch_has_to_say_of_itself() -> None:
    held = HeldRows()
    assert held.root() is None
    held.take(
        {
            "Open_vSwitch": {ROWS[0]: {"initial": {"next_cfg": 7, "cur_cfg": 6}}},
            "Bridge": {
                ROWS[0]: {"initial": {}},
                ROWS[1]: {"initial": {"datapath_id": "d1", "external_ids": as_map({"site": "cern"})}},
                ROWS[2]: {"initial": {"datapath_id": ["set", ["d2"]], "datapath_type": "netdev"}},
            },
            "Port": {
                ROWS[0]: {"initial": {"name": "eth0", "qos": ["uuid", ROWS[2]]}},
                ROWS[1]: {"initial": {"name": "eth1", "qos": ["set", []]}},
            },
            "Queue": {ROWS[0]: {"initial": {"other_config": as_map({"max-rate": "7"})}}},
        }
    )
    assert held.root() == Root(ROWS[0], 7, 6)
    assert held.bridge("d1") == Bridge(ROWS[1], "", {"site": "cern"})
    assert held.bridge("d2") == Bridge(ROWS[2], "netdev", {})
    assert held.bridge("d3") is None
    assert held.rows().ports == {"eth0": ROWS[2]}
    assert held.rows().queues == {ROWS[0]: QueueRow({"max-rate": "7"})}


def test_a_job_with_a_rate_of_its_own_takes_little_memory() -> None:
    """Two queues, a QoS and its port: 200,000 of them are to fit beside all else in 1.6 GB."""
    jobs = 512

    def update(number: int) -> dict[str, Any]:
        port, (qos, away, here) = f"job{number}", (str(UUID(int=4 * number + each)) for each in (1, 2, 3))
        marks = {"lark-datapath": "00000000000000d1", "lark-port": port}
        queue = {"burst": "3000000", "max-rate": f"{100_000_000 + number}", "min-rate": f"{10_000_000 + number}"}
        config = {"other_config": as_map(queue), "external_ids": as_map({**marks, "lark-queue": f"{number}"})}
        return {
            "Port": {qos: {"insert": {"name": port, "qos": ["uuid", qos]}}},
            "QoS": {qos: {"insert": row_of(("linux-htb", {"max-rate": "100000000"}, marks, {0: here}))}},
            "Queue": {away: {"insert": config}, here: {"insert": config}},
        }

    held, updates = HeldRows(), [update(number) for number in range(jobs)]
    tracemalloc.start()
    try:
        for each in updates:
            held.take(each)
        took, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(held) == 4 * jobs
    assert took / jobs < 1_600


@given(st.uuids())
def test_a_number_stands_for_a_uuid(value: UUID) -> None:
    assert uuid_of(number_of(uuid(str(value)))) == str(value)


@pytest.mark.parametrize(
    "update",
    [
        [],
        {"Interface": {}},
        {"Queue": []},
        {"Queue": {"no uuid": {"delete": None}}},
        {"Queue": {ROWS[0]: None}},
        {"Queue": {ROWS[0]: {"insert": []}}},
        {"Queue": {ROWS[0]: {"rename": {}}}},
        {"Queue": {ROWS[0]: {"modify": {}}}},
        {"Queue": {ROWS[0]: {"insert": {"other_config": "text"}}}},
        {"Queue": {ROWS[0]: {"insert": {"other_config": ["map", [["a"]]]}}}},
        {"Queue": {ROWS[0]: {"insert": {"other_config": ["map", [["a", 1]]]}}}},
        {"Queue": {ROWS[0]: {"insert": {"other_config": ["map", [[["a"], "b"]]]}}}},
        {"QoS": {ROWS[0]: {"insert": {"queues": ["map", [[True, ["uuid", ROWS[0]]]]]}}}},
        {"QoS": {ROWS[0]: {"insert": {"queues": ["map", [[1, ["uuid", "7"]]]]}}}},
        {"QoS": {ROWS[0]: {"insert": {"queues": ["map", [[1 << 63, ["uuid", ROWS[0]]]]]}}}},
        {"Port": {ROWS[0]: {"insert": {"qos": ["set", [["uuid", ROWS[0]], ["uuid", ROWS[1]]]]}}}},
        {"Open_vSwitch": {ROWS[0]: {"insert": {"next_cfg": "7"}}}},
    ],
)
def test_what_no_server_says_is_refused(update: Any) -> None:
    with pytest.raises(ValueError, match=r"^(no|a|an) "):
        HeldRows().take(update)


def test_what_is_asked_for_is_what_is_kept() -> None:
    asked = requests()
    assert asked["Port"] == [{"columns": ["name", "qos"], "where": [["qos", "!=", ["set", []]]]}]
    assert asked["Queue"] == [{"columns": ["other_config", "external_ids"]}]


@pytest.mark.parametrize(
    ("results", "error", "expected"),
    [
        ([{}, {"count": 1}, {}], None, Outcome()),
        ([{}], None, Outcome()),
        ([{"error": "timed out"}, None, None], None, LOST),
        ([{"error": "timed out", "details": "wait"}, {"error": "aborted"}], None, LOST),
        ([{}, None], None, LOST),
        ([{"error": "constraint violation"}, None], None, Outcome(error='{"error": "constraint violation"}')),
        ([{"error": "timed out"}, {"error": "x" * 1_000}], None, Outcome(error='{"error": "' + "x" * 489)),
        (None, "unknown database", Outcome(error="unknown database")),
        ("text", None, Outcome(error="an answer without results")),
    ],
)
def test_how_a_transaction_ended(results: Any, error: Any, expected: Outcome) -> None:
    assert outcome(results, error) == expected


def test_a_transaction_asks_for_what_it_changes_to_be_put_into_force() -> None:
    first, *rest = requested([{"op": "wait"}], ROWS[0])
    assert first == {"op": "wait"}
    assert [each["op"] for each in rest] == ["mutate", "comment"]
