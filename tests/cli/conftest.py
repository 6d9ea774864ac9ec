"""A controller's REST for commands, and a policy file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lark_controller import settings as table
from lark_controller.rest.server.waitress_server import Server
from tests.fixtures.fake_controls import TOKENS
from tests.fixtures.rest_app import Api, make_api


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    api = make_api(tmp_path)
    server = Server(api.app, table.load({}, {"rest_listen": f"unix:{tmp_path}/rest.sock"}))
    server.start()
    for variable in ("LARK_TOKEN_FILE", "LARK_CA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("LARK_URL", f"unix:{tmp_path}/rest.sock")
    monkeypatch.setenv("LARK_TOKEN", TOKENS["operate"])
    yield api
    server.stop()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("version: 1\n")
    return path
