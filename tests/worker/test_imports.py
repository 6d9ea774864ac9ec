"""The program that runs as root for a job's user is small, and needs nothing but the standard library."""

from __future__ import annotations

import ast
from pathlib import Path

ENTER = Path(__file__).parents[2] / "scripts" / "lark-enter"


def test_what_runs_as_root_for_a_user_is_small_and_needs_nothing() -> None:
    text = ENTER.read_text()
    imported = {
        name
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert text.startswith("#!/usr/bin/python3 -IS\n")
    assert imported <= {"ctypes", "os", "resource", "signal", "socket", "stat", "sys", "time"}
    assert len(text.splitlines()) < 260
