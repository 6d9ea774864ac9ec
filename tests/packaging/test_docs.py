"""The documentation is whole: every page is in the navigation, every link leads somewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# Screenshots; everything else in the tree is text.
PICTURES = DOCS / "images"
# What fuzzers begin with: packets and messages as they are on the wire.
CORPUS = ROOT / "tests/fuzz/corpus"
# The programs of the last release, which tests run beside these; in its own tree they were text.
RELEASE = ROOT / "tests/cluster/last_release.tar.xz"


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def pages(entry: Any) -> list[str]:
    if isinstance(entry, str):
        return [entry]
    children = entry.values() if isinstance(entry, dict) else entry
    return [page for child in children for page in pages(child)]


def test_every_page_is_in_the_navigation_once() -> None:
    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert sorted(listed) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def test_the_pages_build_and_every_link_leads_somewhere(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "site" / "index.html").exists()


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_of_the_pages_outside_docs(name: str) -> None:
    for target in re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text()):
        assert "://" in target or (ROOT / target).exists(), target


def test_the_readme_is_one_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 60


def test_what_the_readme_tells_to_make_can_be_made() -> None:
    targets = set(re.findall(r"(?m)^([a-z-]+):", (ROOT / "Makefile").read_text()))
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        told = set(re.findall(r"(?:`|^    )make ([a-z][a-z-]*)", page.read_text(), re.MULTILINE))
        assert told <= targets, page


NAMED = ("scripts", "etc", "lab", "tests", "lark_common", "lark_controller", "lark_mpi", "lark_worker", "fake_switch")


def test_files_that_the_pages_name_are_there() -> None:
    """Paths of the project in the text of any page."""
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        text = re.sub(r"/etc/\S*|/usr/\S*", "", page.read_text())
        for named in re.findall(rf"\b((?:{'|'.join(NAMED)})/[\w./-]*\w)", text):
            assert (ROOT / named).exists(), f"{page}: {named}"


def defined(path: Path) -> set[str]:
    """Functions, classes and methods (``Class.method``) of a module."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{each.name}"
                for each in node.body
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return found


def module(named: str) -> Path:
    return ROOT / named if named.split("/", maxsplit=1)[0] in NAMED else ROOT / "lark_controller" / named


def test_functions_that_the_pages_name_are_there() -> None:
    """`path:function`; a path that names no package is the controller's."""
    for page in [ROOT / "CONTRIBUTING.md", *DOCS.rglob("*.md")]:
        for path, function in re.findall(r"`([\w/]+\.py):([\w.]+)`", page.read_text()):
            assert function in defined(module(path)), f"{page}: {path}:{function}"


def test_the_rooms_are_drawn() -> None:
    page = (DOCS / "design" / "architecture.md").read_text()
    drawn = set(re.findall(r"│ ([a-z]+) ", page.split("```")[1]))
    rooms = {path.stem for path in (ROOT / "lark_controller").iterdir() if path.suffix in ("", ".py")}
    assert drawn >= rooms - {"__init__", "__pycache__"}
    shared = {path.name for path in (ROOT / "lark_common").glob("[a-z]*.py")}
    assert not shared - set(re.findall(r"`([a-z_]+\.py)`", page.split("## The files of both")[1].split("##")[0]))
    folders = {path.relative_to(ROOT).parts[0] for path in tracked() if path.parent != ROOT}
    folders = {each for each in folders if each[0] != "." and not each.startswith("lark_")} - {"docs"}
    assert folders == {each for each in folders if f"`{each}/`" in page.split("## The other folders")[1]}


def test_the_hooks_settings_are_documented_and_no_others() -> None:
    script = (ROOT / "scripts" / "starter_hook.sh").read_text()
    accepted = script.partition("case $name in")[2].partition(") eval")[0]
    in_script = set(re.findall(r"LARK_[A-Z_]+", accepted))
    page = (DOCS / "reference" / "hook.md").read_text()
    in_page = set(re.findall(r"^\| `(LARK_[A-Z_]+)`", page, re.MULTILINE))
    in_head = set(re.findall(r"^#   (LARK_(?!HOOK_)[A-Z_]+) {2,}[a-zA-Z]", script, re.MULTILINE))
    assert in_page == in_script == in_head
    for line in (ROOT / "etc" / "hook.conf").read_text().splitlines():
        assert line.startswith("#") or line.split("=")[0] in in_script


def test_the_example_settings_are_settings_with_their_defaults() -> None:
    from lark_controller import settings

    rows = {row.variable: row for row in settings.table()}
    for name, value in re.findall(r"(?m)^#(LARK_\w+)=(.*)$", (ROOT / "etc" / "lark.env").read_text()):
        assert name in rows
        if name != "LARK_DATABASE_URL":
            assert value == rows[name].default, name


def test_nothing_of_the_machine_it_was_written_on_is_in_the_tree() -> None:
    """No path of this checkout or of a home directory."""
    # As root the home directory has a name that stands for itself in any system.
    folders = [folder for folder in (ROOT, Path.home()) if folder != Path("/root")]
    here = re.compile("|".join(r"(?<![\w}])" + re.escape(f"{folder}") + r"(?![\w.-])" for folder in folders))
    found = []
    for path in tracked():
        if path.parent == PICTURES or CORPUS in path.parents or path == RELEASE:
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if here.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line[:120]}")
    assert found == []


def test_no_large_or_binary_file_is_in_the_tree() -> None:
    for path in tracked():
        data = path.read_bytes()
        assert len(data) < 1_000_000, path
        if path.parent == PICTURES:
            assert data.startswith(b"\x89PNG"), path
            assert len(data) < 150_000, path
        elif path == RELEASE:
            assert data.startswith(b"\xfd7zXZ"), path
        elif CORPUS in path.parents:
            assert len(data) < 20_000, path
        else:
            assert b"\0" not in data, path


def test_docstrings_begin_with_a_verb_or_a_name() -> None:
    """No clause stands for the thing: "What a switch holds" is "The flows of a switch"."""
    clause = re.compile(r"(?:What|Whatever|Who|Whoever|Whose|Whom|Whether|Which|When|Where|Why|How)\b")
    # To parse the whole tree takes seconds; a file in which no text begins so has no such docstring.
    text = re.compile(rf"[\"'](?:\s|\\\n)*{clause.pattern}")
    for package in (
        "lark_common",
        "lark_controller",
        "lark_mpi",
        "lark_worker",
        "fake_switch",
        "lab",
        "demo",
        "bench",
        "experiments",
        "tests",
    ):
        for path in (ROOT / package).rglob("*.py"):
            source = path.read_text()
            for node in ast.walk(ast.parse(source)) if text.search(source) else ():
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                    words = ast.get_docstring(node) or ""
                    assert not clause.match(words), f"{path}:{getattr(node, 'lineno', 1)}: {words}"


def test_no_comment_begins_with_a_clause_for_its_subject() -> None:
    clause = re.compile(r"# (?:What|Who|Whoever|Whatever)\b")
    for path in tracked():
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] != "tests":
            before = ""
            for number, line in enumerate(path.read_text().splitlines(), 1):
                words = line.strip()
                begins = clause.match(words) and not before.startswith("#")
                assert not begins, f"{path}:{number}: {words}"
                before = words


def test_nothing_is_left_to_do() -> None:
    word = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")
    for path in tracked():
        if path.suffix in {".py", ".sh", ".md", ".yml", ".yaml", ".toml"} and path != Path(__file__):
            assert not word.search(path.read_text()), path


def test_the_table_of_threads_has_every_thread_of_the_controller() -> None:
    page = (DOCS / "design/reconcile.md").read_text()
    names = {name for path in (ROOT / "lark_controller").rglob("*.py") for name in _threads(path)}
    assert len(names) > 10
    assert {name for name in names if f"`{name}" not in page} == set()


def _threads(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Name(id="StoppableThread" | "TurnThread"), args=[name, *_]):
                yield _begin(name)
            case ast.Call(func=ast.Attribute(attr="Thread"), keywords=keywords):
                yield from (_begin(each.value) for each in keywords if each.arg == "name")


def _begin(name: ast.expr) -> str:
    """The name, or what is constant at its beginning."""
    first = name.values[0] if isinstance(name, ast.JoinedStr) else name
    assert isinstance(first, ast.Constant)
    return str(first.value).strip()
