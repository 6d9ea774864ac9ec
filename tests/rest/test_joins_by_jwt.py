"""Workers that join by a JWT, as HTCondor's tokens are, in place of a join token."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lark_controller.store import Store
from tests.fixtures import issuers as made
from tests.fixtures.databases import sqlite_with_tables
from tests.fixtures.join_api import HOST, JoinApi
from tests.rest.test_jwt import bearing, make

HOOK = {"hook": {"groups": "workers"}}


def api_of(directory: Path, store: Store, **issuer: Any) -> JoinApi:
    """An API where workers join by the tokens of an issuer."""
    return JoinApi(directory, store, make(directory, **{"scopes": HOOK, "joins": True, **issuer})[0])


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(sqlite_with_tables(tmp_path / "lark.db"))
    yield opened
    opened.close()


def token(**changed: Any) -> str:
    return made.token(**{"machine": HOST, "groups": ["workers"], **changed})


def test_a_worker_joins_and_comes_by_its_own_token_from_then_on(tmp_path: Path, store: Store) -> None:
    api = api_of(tmp_path, store)
    secret = token()
    answer = api.join(secret)
    assert answer.status_code == 200, answer.text
    assert (answer.json or {})["host"] == HOST
    # It is known: refused by what it may do, and not by who it is.
    assert api.client.get("/v1/joins", headers=bearing("lark_own")).status_code == 403
    (worker,) = api.workers()
    assert worker["join_token"] == "jwt-" + hashlib.sha256(secret.encode()).hexdigest()[:12]
    assert api.join(secret).status_code == 200
    again = api.join(secret, "lark_another")
    assert again.status_code == 409
    assert "the token is no newer" in again.text
    assert secret not in again.text
    # Locked out, and back by a token that was made later.
    assert api.client.delete(f"/v1/joined/{HOST}", headers=api.boss).status_code == 200
    assert api.join(secret).status_code == 409
    assert api.client.get("/v1/joins", headers=bearing("lark_own")).status_code == 401
    assert api.join(token(iat=int(time.time()) + 30), "lark_another").status_code == 200


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], int, str]] = {
    "an issuer by whose tokens nobody joins": ({"joins": False}, {}, 401, "of an issuer with `joins: true`"),
    "no scope of workers": ({}, {"groups": ["others"]}, 401, "the claims that give the scope hook"),
    "no host": ({}, {"machine": None}, 401, "Nobody joins by this token"),
    "no time": ({}, {"iat": None}, 401, "Nobody joins by this token"),
    "a time that is none": ({}, {"iat": True}, 401, "Nobody joins by this token"),
    "over": ({}, {"exp": int(time.time()) - 120}, 401, "it has expired"),
    "another issuer": ({}, {"iss": "https://else.example"}, 401, "its issuer is not accepted here"),
    "another worker": ({}, {"machine": "worker2.example"}, 403, "is for worker2.example, not for worker1.example"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_tokens_by_which_nobody_joins(tmp_path: Path, store: Store, case: str) -> None:
    issuer, changed, status, words = REFUSED[case]
    api = api_of(tmp_path, store, **issuer)
    answer = api.join(token(**changed))
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert api.workers() == []


@pytest.mark.parametrize("name", ["lark.example", "LARK.example", "operator", "ctl-b"])
def test_by_such_a_token_nobody_joins_as_the_controller(tmp_path: Path, store: Store, name: str) -> None:
    api = api_of(tmp_path, store)
    answer = api.join(token(machine=name), host=name)
    assert answer.status_code == 409, answer.text
    assert "which no worker may join under" in answer.text


def test_a_worker_keeps_no_token_that_ends_as_its_own(tmp_path: Path, store: Store) -> None:
    """The database would know it beyond its end."""
    api = api_of(tmp_path, store)
    secret = token()
    answer = api.join(secret, secret)
    assert answer.status_code == 409, answer.text
    assert "remove /etc/lark/worker.token" in answer.text
