"""The commands and settings of the pages are those of the programs: their parsers take each one as it stands there."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from lark_controller import settings
from lark_controller.cli.parser import parser
from lark_worker import cli as worker
from lark_worker import settings as worker_settings
from tests.install.pages import blocks

ROOT: Final = Path(__file__).parents[2]
# The log of changes names commands that are gone.
PAGES: Final = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Each makes its parser once: hundreds of commands are taken by one that changes nothing of itself.
PROGRAMS: Final[dict[str, Callable[[], argparse.ArgumentParser]]] = {
    "lark": cache(parser),
    "lark-worker": cache(worker.parser),
}

# Words that stand for a number, a rate or a choice; every other one is accepted as it is.
SAMPLES: Final = {"RATE": "250Mbit", "SECONDS": "5", "VERSION": "2", "OLD": "1", "NEW": "2", "SHELL": "bash"}
# Beside the settings of a page: those of `lark setup`.
OF_SETUP: Final = {f"LARK_OPENFLOW_TLS_{name}": f"/etc/lark/{name.lower()}.pem" for name in ("CERT", "KEY", "CA")}
# In front of a command: a prompt, variables, and programs that run another one.
_BEFORE: Final = re.compile(r"[A-Z_]+=\S*|\$|on|sudo|exec|timeout|time|unit|source|[0-9.]+|worker[0-9]|controller|-u")


def commands(text: str) -> Iterator[list[str]]:
    """The words of each call of one of the programs in a block of shell."""
    joined = text.replace("\\\n", " ")
    for line in joined.splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:
            # An apostrophe of an answer: no command.
            continue
        call: list[str] = []
        calls = [call]
        for word in words:
            if set(word) <= set("();|&"):
                call = []
                calls.append(call)
            else:
                call.append(word)
        for each in calls:
            while each and _BEFORE.fullmatch(each[0]):
                each.pop(0)
            # `lark = Client(…)` is Python.
            if len(each) > 1 and each[0] in PROGRAMS and each[1] != "=":
                end = next((number for number, word in enumerate(each) if set(word) <= set("<>")), len(each))
                yield [SAMPLES.get(word, word) for word in each[:end]]


def shown(page: Path) -> list[list[str]]:
    """The commands of a page's blocks, indented or fenced."""
    text = page.read_text()
    fenced = re.findall(r"(?ms)^```sh\n(.*?)^```$", text)
    return [words for block in (*blocks(text), *fenced) for words in commands(block)]


def named(page: Path) -> list[list[str]]:
    """The commands that a page's sentences name, which may lack arguments."""
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    spans = re.findall(r"(?s)`((?:lark|lark-worker) [^`]*)`", re.sub(r"(?m)^ {4}.*$", "", text))
    return [words for span in spans for words in commands(span.replace("\n", " "))]


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The answer of the parser; empty where it takes the command."""
    try:
        PROGRAMS[words[0]]().parse_args(words[1:])
    except SystemExit as ended:
        return capsys.readouterr().err.splitlines()[-1] if ended.code else ""
    return ""


def unknown(words: list[str]) -> list[str]:
    """The commands and options of these words that the program has not."""
    top = PROGRAMS[words[0]]()
    rest = words[1:]
    while rest:
        nested = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
        # `lark COMMAND --help`, `lark --json`: the options of all commands.
        if not nested or rest[0].startswith("-") or rest[0].isupper():
            break
        if rest[0] not in nested[0].choices:
            return [rest[0]]
        top = nested[0].choices[rest.pop(0)]
    options = {option for each in _commands(top) for option in each._option_string_actions}
    return [word for word in rest if word.startswith("--") and word.partition("=")[0] not in options]


def _commands(top: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    """The parser, and those of its commands."""
    yield top
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from _commands(each)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_programs_take_every_command_of_a_page(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused = {shlex.join(words): said for words in shown(page) if (said := refusal(words, capsys))}
    assert refused == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_programs_have_every_command_and_option_that_a_page_names(page: Path) -> None:
    lacking = {shlex.join(words): found for words in named(page) if (found := unknown(words))}
    assert lacking == {}


def test_commands_are_found_where_pages_have_them() -> None:
    found = [words for page in PAGES for words in shown(page)]
    assert len(found) > 60, found
    assert {words[0] for words in found} == set(PROGRAMS)
    assert len([words for page in PAGES for words in named(page)]) > 100


def test_a_command_that_is_none_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    (words,) = commands("LARK_URL=x timeout 5 lark jobs \\\n  --everybody | head")
    assert words == ["lark", "jobs", "--everybody"]
    assert "--everybody" in refusal(words, capsys)
    assert unknown(words) == ["--everybody"]
    assert unknown(["lark", "external", "give", "103.0"]) == ["give"]
    (words,) = commands("on worker1 lark-worker gateway --pools 1")
    assert refusal(words, capsys)


def settings_of(page: Path) -> list[dict[str, str]]:
    """The settings of each block of a page that has nothing else, as a service reads them from its file."""
    found = []
    for block in blocks(page.read_text()):
        lines = [line for line in block.splitlines() if line and not line.startswith("#")]
        given = [re.fullmatch(r"(LARK_\w+)=(.*)", line) for line in lines]
        if lines and all(given):
            found.append({each[1]: each[2] for each in given if each})
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_services_take_the_settings_of_a_page(page: Path) -> None:
    accepted = {row.variable for row in settings.table()}
    for given in settings_of(page):
        if all(name.startswith("LARK_WORKER_") for name in given):
            worker_settings.load(given)
        elif given.keys() <= accepted:
            settings.load({**OF_SETUP, **given})
        else:
            # The starter hook's, and those of commands.
            assert not any(name.startswith("LARK_WORKER_") for name in given), given


def test_every_setting_that_a_page_names_is_in_a_program() -> None:
    programs = [
        path
        for folder in ("lark_common", "lark_controller", "lark_mpi", "lark_worker", "scripts", "etc", "packaging")
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    # A C library that was built here has objects beside its source.
    text = "".join(path.read_text(errors="replace") for path in programs)
    known = set(re.findall(r"LARK_[A-Z0-9_]+", text))
    known |= {row.variable for row in (*settings.table(), *worker_settings.table())}
    for page in PAGES:
        names = set(re.findall(r"\bLARK_[A-Z0-9_]*[A-Z0-9]\b", page.read_text()))
        assert names <= known, (page, names - known)


def test_tables_of_htcondor_are_shown_in_their_whole_width() -> None:
    views = [*PAGES, *sorted((ROOT / "etc/condor").glob("*.cpf"))]
    lines = [
        line for page in views for line in page.read_text().splitlines() if re.search(r"-print-format \S*lark-", line)
    ]
    assert len(lines) >= 5
    assert [line for line in lines if " -wide " not in line] == []
