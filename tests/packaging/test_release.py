"""``make release`` refuses what is no release, and says what is missing."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.install.released import last_tag

ROOT = Path(__file__).parents[2]
FILES = (
    "scripts/release.sh",
    "lark_controller/__init__.py",
    "pyproject.toml",
    "lark_common/pyproject.toml",
    "lark_mpi/pyproject.toml",
    "lark_worker/pyproject.toml",
    "requirements-own.in",
)


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@example", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Everything that a release looks at first, in a repository of its own; what it builds with is not there."""
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        shutil.copy(ROOT / name, tmp_path / name)
    version = re.findall(r'__version__ = "(.+)"', (ROOT / FILES[1]).read_text())[0]
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {version} (2026-01-31)\n\n- All.\n")
    (tmp_path / "scripts" / "wheels.sh").write_text("#!/bin/sh\necho builds >&2\nexit 3\n")
    (tmp_path / "scripts" / "wheels.sh").chmod(0o755)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message=a")
    return tmp_path


def said(folder: Path) -> str:
    done = subprocess.run(
        ["scripts/release.sh"], cwd=folder, capture_output=True, text=True, env={"TESTS": "no", "PATH": "/usr/bin:/bin"}
    )
    assert done.returncode != 0
    return done.stderr


def change(folder: Path, name: str, old: str, new: str) -> None:
    text = (folder / name).read_text()
    assert re.search(old, text), old
    (folder / name).write_text(re.sub(old, new, text, count=1))
    git(folder, "commit", "--quiet", "--all", "--message=b")


def test_the_changelog_says_which_version_this_is_and_of_when() -> None:
    version = re.findall(r'__version__ = "(.+)"', (ROOT / FILES[1]).read_text())[0]
    headings = re.findall(r"(?m)^## (.+)$", (ROOT / "CHANGELOG.md").read_text())
    assert re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)|\S+ \(not released\)", headings[0])
    assert f"image: lark-controller:{version}\n" in (ROOT / "docker-compose.yml").read_text()


def test_a_checkout_that_is_ready_is_built(checkout: Path) -> None:
    assert said(checkout) == "builds\n"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "new.py").write_text(""), "has changes that are not committed"),
        (
            lambda folder: change(folder, "CHANGELOG.md", r"\(2026-01-31\)", "(not released)"),
            '(not released)"; a release needs "## ',
        ),
        (
            lambda folder: change(folder, "CHANGELOG.md", r"(?s)\n(## .*)", r"\n\1\n\1"),
            "has several sections of",
        ),
        (
            lambda folder: change(folder, "lark_worker/pyproject.toml", r'(?m)^version = ".*"', 'version = "9"'),
            "lark_worker/pyproject.toml has another version than",
        ),
        (
            lambda folder: change(folder, "requirements-own.in", r"lark-common==.*", "lark-common==9"),
            "requirements-own.in does not name lark-common==",
        ),
        (
            lambda folder: git(folder, "tag", "v" + re.findall(r'"(.+)"', (ROOT / FILES[1]).read_text())[-1]),
            "exists already",
        ),
    ],
    ids=["changes", "changelog", "sections", "version", "own", "tag"],
)
def test_what_is_missing_is_said(checkout: Path, spoil: Callable[[Path], object], words: str) -> None:
    spoil(checkout)
    assert words in said(checkout)


def test_upgrades_are_tested_from_the_last_tag(checkout: Path) -> None:
    shutil.copy(ROOT / "scripts" / "last_release.sh", checkout / "scripts")
    (checkout / "migrations").mkdir()
    (checkout / "migrations" / "env.py").write_text("")
    (checkout / "tests" / "cluster").mkdir(parents=True)
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message=b")
    git(checkout, "tag", "v0.0.9")
    assert "is not of v0.0.9 (make last-release REF=v0.0.9)" in said(checkout)
    subprocess.run(["scripts/last_release.sh", "v0.0.9"], cwd=checkout, check=True, capture_output=True)
    git(checkout, "add", ".")
    git(checkout, "commit", "--quiet", "--message=c")
    assert said(checkout) == "builds\n"


def test_an_upgrade_is_tried_from_the_last_release_before_a_commit(checkout: Path) -> None:
    assert last_tag(checkout) is None
    for tag in ("v0.0.9", "nightly", "v0.1.0"):
        git(checkout, "tag", tag)
        git(checkout, "commit", "--allow-empty", "--quiet", "-m", f"after {tag}")
    assert last_tag(checkout) == "v0.1.0"
    git(checkout, "tag", "v0.2.0")
    assert last_tag(checkout) == "v0.1.0"
