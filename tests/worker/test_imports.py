"""What the worker service takes from the controller's package: ads, values, the client; no server, store or switch."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHARED = {"errors", "log", "settings", "ad_values", "ads", "classad_text", "jobs", "client", "host_rules"}


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {node.module}
                if node.module != "lark_controller"
                else {f"lark_controller.{alias.name}" for alias in node.names}
            )
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_the_worker_service_shares_low_modules_alone() -> None:
    for path in (ROOT / "lark_worker").rglob("*.py"):
        shared = {name.split(".")[1] for name in imported(path) if name.startswith("lark_controller.")}
        assert shared <= SHARED, path


def test_the_controller_does_not_know_the_worker_service() -> None:
    for path in (ROOT / "lark_controller").rglob("*.py"):
        assert not any(name.startswith("lark_worker") for name in imported(path)), path


def test_what_runs_as_root_for_a_user_is_small_and_needs_nothing() -> None:
    path = ROOT / "scripts" / "lark-enter"
    assert path.read_text().startswith("#!/usr/bin/python3 -IS\n")
    assert imported(path) <= {"ctypes", "os", "resource", "signal", "socket", "stat", "sys", "time"}
    assert len(path.read_text().splitlines()) < 260
