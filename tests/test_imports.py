"""Imports go one way, from what knows most to what knows least; os-ken is known in one place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lark_controller"

# Low to high: a module may import from its own layer's package and from lower layers. Names on one line are neighbours
# that do not know each other, unless NEIGHBOURS says so.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "settings", "log", "metrics", "limits"),
    ("ad_values", "classad_text", "ads", "own_name"),
    ("jobs", "addresses", "host_rules"),
    ("policies",),
    ("qos",),
    ("flows", "accounting"),
    ("status",),
    ("store", "openflow", "htcondor"),
    (
        "confirmations",
        "host_states",
        "job_states",
        "loop_calls",
        "origins",
        "policy_source",
        "pools",
        "reservations",
        "switch_state",
    ),
    ("polling", "loop_state", "queue_sums"),
    ("queues", "reactive", "workers", "registration", "explain", "planning"),
    ("progress",),
    ("sending",),
    ("switch_events", "switchover"),
    ("reconcile", "upkeep", "accountant"),
    ("views", "flow_lists", "checks", "fact_store", "guarantees", "shared_drops"),
    ("policy_in_force", "inspection"),
    ("job_lookup",),
    ("controller",),
    ("rest",),
    ("app", "cli", "client", "printing", "health"),
)
# (importer, imported) of one layer.
NEIGHBOURS = {
    ("flows", "accounting"),
    ("settings", "errors"),
    ("limits", "log"),
    ("ad_values", "classad_text"),
    ("ads", "ad_values"),
    ("ads", "classad_text"),
    ("addresses", "jobs"),
    ("host_rules", "jobs"),
    ("cli", "app"),
    ("cli", "client"),
    ("cli", "printing"),
}
OS_KEN = "os_ken"

MODULES = sorted(path for path in PACKAGE.rglob("*.py"))


def level(name: str) -> int:
    for number, names in enumerate(LAYERS):
        if name in names:
            return number
    raise AssertionError(f"lark_controller.{name} has no place in the order of layers; give it one in {__file__}")


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a module imports, wherever in it."""
    package = ("lark_controller", *path.relative_to(PACKAGE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                base = ".".join((*package[: len(package) - node.level + 1], *filter(None, [base])))
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_one_way(path: Path) -> None:
    own = part_of(path)
    if own == "__init__":
        assert not [name for _, name in imports(path) if name.startswith("lark_controller")]
        return
    for line, name in imports(path):
        where = f"{path}:{line}"
        parts = name.split(".")
        if parts[0] == OS_KEN:
            assert own == "openflow", f"{where}: only openflow/ may import os-ken"
        if parts[0] != "lark_controller" or len(parts) < 2 or parts[1] == own or parts[1].startswith("__"):
            continue
        allowed = level(parts[1]) < level(own) or (own, parts[1]) in NEIGHBOURS
        assert allowed, f"{where}: {own} must not import {parts[1]}"


def test_openflow_alone_needs_os_ken() -> None:
    assert [path for path in MODULES if any(name.startswith(OS_KEN) for _, name in imports(path))] != []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_modules_are_small(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 500


def test_what_calculates_does_no_input_or_output() -> None:
    """policies, qos (but for OVSDB) and flows are functions of values: no sockets, no clock, no threads."""
    forbidden = {"socket", "time", "threading", "asyncio", "subprocess", "logging", "sqlalchemy", "flask"}
    for path in MODULES:
        if part_of(path) in {"jobs", "policies", "flows", "qos"} and path.name != "ovsdb.py":
            for line, name in imports(path):
                assert name.split(".")[0] not in forbidden, f"{path}:{line}"
