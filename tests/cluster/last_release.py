"""The programs of the last release, from the archive that ``scripts/last_release.sh`` makes of its tag.

They run from a directory of the test's own, with the libraries of this checkout.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
ARCHIVE: Final = Path(__file__).with_name("last_release.tar.xz")
PROGRAMS: Final = ("lark_common", "lark_controller", "lark_worker", "migrations")
_LATER: Final = '''"""Tables of a later release."""

import sqlalchemy as sa
from alembic import op

revision = "9999_later"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("instances", sa.Column("later", sa.Integer()))
'''


def unpacked(folder: Path) -> Path:
    """A directory with the programs of the last release."""
    tree = folder / "last"
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tree, filter="data")
    return tree


def tables(tree: Path) -> str:
    """The newest version of the tables that the programs in a directory know."""
    newest = max((tree / "migrations" / "versions").glob("[0-9]*.py"))
    found = re.search(r'^revision = "(\w+)"$', newest.read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def next_to(last: Path, folder: Path) -> Path:
    """A directory with this checkout's programs, whose tables are later than those of the last release: as long as no
    migration was added since, there is one more in a copy."""
    if tables(ROOT) != tables(last):
        return ROOT
    tree = folder / "next"
    for each in PROGRAMS:
        shutil.copytree(ROOT / each, tree / each, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "migrations" / "versions" / "9999_later.py").write_text(_LATER.format(before=tables(ROOT)))
    return tree


def run(tree: Path, *command: str, token: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with the programs of a directory."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("LARK_")}
    environ |= {"PYTHONPATH": str(tree), "LARK_TOKEN": token}
    return subprocess.run(
        [sys.executable, *command], cwd=tree, env=environ, capture_output=True, text=True, check=False, timeout=600
    )
