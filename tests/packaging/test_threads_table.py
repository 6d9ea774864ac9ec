"""The table of threads and locks in ``docs/design/reconcile.md`` has all that the controller starts and makes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = (ROOT / "docs/design/reconcile.md").read_text("utf-8")
SECTION: Final = PAGE.partition("## Threads and locks")[2].partition("\n## ")[0]
# Modules of lark_common that the controller uses, and the rooms whose locks share a row.
COMMON: Final = ("log.py", "systemd.py", "limits.py", "turns.py", "exhausted.py")
LOCKS: Final = {"Lock", "RLock", "Condition"}
STARTS: Final = {"Thread", "StoppableThread", "TurnThread", "ThreadPoolExecutor"}
ROWS: Final = {
    "lark_controller/rest/": "(in `rest/`)",
    "lark_controller/store/sqlite.py": "SQLite's writer",
    "lark_controller/services/scitags.py": "`RegistryFile`",
    "lark_controller/services/gathering.py": "`Gathering`",
    "lark_common/limits.py": "limits",
    "lark_common/turns.py": "turns",
    "lark_common/exhausted.py": "lines about descriptors",
}


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in (*sorted((ROOT / "lark_controller").rglob("*.py")), *(ROOT / "lark_common" / name for name in COMMON)):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text("utf-8"))


def _called(node: ast.AST) -> str:
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def test_every_thread_is_in_the_table() -> None:
    names = set()
    for _, module in _modules():
        for node in ast.walk(module):
            if isinstance(node, ast.Call) and _called(node) in STARTS:
                texts = [each.value for each in ast.walk(node) if isinstance(each, ast.Constant)]
                names |= {text.strip() for text in texts if isinstance(text, str) and re.fullmatch(r"[a-z -]+", text)}
    assert {"openflow", "rest", "lark-names", "begin-leases"} <= names
    assert {name for name in names if not re.search(rf"`{re.escape(name)}\b", SECTION)} == set()


def test_every_lock_is_in_the_table() -> None:
    makers = {
        (path, owner.name)
        for path, module in _modules()
        for owner in ast.walk(module)
        if isinstance(owner, ast.ClassDef) and any(_called(node) in LOCKS for node in ast.walk(owner))
    }
    assert ("lark_controller/services/feed.py", "Feed") in makers
    missing = set()
    for path, name in makers:
        row = next((row for place, row in ROWS.items() if path.startswith(place)), f"`{name}`")
        if row not in SECTION and f"`{name}`" not in SECTION:
            missing.add(f"{path}: {name}")
    assert missing == set()
