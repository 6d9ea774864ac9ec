"""Every command has ``--json``, but for those that run until they are stopped, or print a file's text."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator

import pytest

from lark_controller.cli.parser import parser
from lark_worker import cli as worker


def commands(made: argparse.ArgumentParser, *before: str) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """The commands of a parser that have none below, by all their words."""
    below = [action for action in made._actions if isinstance(action, argparse._SubParsersAction)]
    for action in below:
        for name, each in action.choices.items():
            yield from commands(each, *before, name)
    if not below:
        yield " ".join(before), made


def test_every_command_has_json() -> None:
    for made, without in (
        (parser(), {"run", "schema", "completion"}),
        (worker.parser(), {"run", "leaves", "gateway", "completion"}),
    ):
        found = dict(commands(made))
        assert len(found) > 8
        has = {name for name, each in found.items() if "--json" in each.format_help()}
        assert set(found) - has == without


def test_a_workers_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert worker.main(["settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert worker.main(["settings", "--json"]) == 0
    assert [f"{each['setting']}={each['default']}" for each in json.loads(capsys.readouterr().out)] == lines
