"""Commands that need no controller, in this process."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from lark_controller.cli import main as cli
from lark_controller.rest.tokens import Tokens
from lark_controller.settings import Settings


def test_token(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tokens.yaml"
    assert cli.main(["token", "pool", "--scope", "hook", "--scope", "read", "--file", str(path)]) == cli.OK
    secret = capsys.readouterr().out.strip()
    found = Tokens(path).find(secret)
    assert found is not None
    assert found.name == "pool"
    assert cli.main(["token", "pool", "--scope", "hook", "--file", str(path)]) == cli.USAGE
    with pytest.raises(SystemExit) as caught:
        cli.main(["token", "pool", "--scope", "fly"])
    assert caught.value.code == cli.USAGE


def test_schema(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["schema"]) == cli.OK
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org/")


def test_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--state-dir", str(tmp_path)]
    assert cli.main(["db", "version", *where]) == cli.NO
    assert capsys.readouterr().out == "none\n"
    assert cli.main(["db", "upgrade", *where]) == cli.OK
    assert cli.main(["db", "version", "--json", *where]) == cli.OK
    assert cli.main(["db", "version", "--database-url", "nonsense"]) == cli.NO


def test_run_hands_the_settings_to_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Settings] = []

    def run(settings: Settings) -> int:
        seen.append(settings)
        return 0

    monkeypatch.setitem(sys.modules, "lark_controller.cli.run", types.SimpleNamespace(run=run))
    monkeypatch.delattr("lark_controller.cli.run", raising=False)
    monkeypatch.setenv("LARK_LEASE_SECONDS", "60")
    assert cli.main(["run", "--rest-threads", "300"]) == cli.OK
    assert (seen[0].lease_seconds, seen[0].rest_threads) == (60, 300)
    assert cli.main(["run", "--rest-threads", "many"]) == cli.USAGE
