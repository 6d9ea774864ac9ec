"""A start waits for what it imports; what most starts have no use for is imported when it is used."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

# Alembic, by which tables are changed, and eventlet, which os-ken brings along and the ovs library looks for.
UNUSED: Final = {"alembic", "mako", "eventlet"}


def test_a_controller_starts_without_what_most_starts_do_not_use() -> None:
    program = "import sys, lark_controller.cli.run; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "ovs" in loaded
    assert not UNUSED & loaded
