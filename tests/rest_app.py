"""A REST application on fake controls, for the tests of each subject."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flask import Flask
from flask.testing import FlaskClient

from lark_controller import settings as table
from lark_controller.metrics import Metrics
from lark_controller.rest.app import create_app
from lark_controller.rest.tokens import Tokens
from tests.fake_controls import FakeControls, bearer, post_body, write_tokens


@dataclass
class Api:
    app: Flask
    controls: FakeControls
    client: FlaskClient
    metrics: Metrics
    tokens: Path

    def get(self, path: str, scope: str = "read", **headers: str) -> Any:
        return self.client.get(path, headers={**bearer(scope), **headers})

    def post(self, body: str | bytes, path: str = "/v1/jobs", kind: str = "text/plain", **headers: str) -> Any:
        return self.client.post(path, data=body, content_type=kind, headers={**bearer("hook"), **headers})

    def register(self, cluster: int = 1, owner: str = "alice", address: str = "") -> Any:
        answer = self.post(post_body(cluster, owner, address))
        assert answer.status_code == 201, answer.text
        return answer.json


def make_api(directory: Path, **overrides: str) -> Api:
    controls, metrics = FakeControls(), Metrics()
    tokens = write_tokens(directory / "tokens.yaml")
    app = create_app(controls, table.load({}, overrides), Tokens(tokens), metrics)
    return Api(app, controls, app.test_client(), metrics, tokens)
