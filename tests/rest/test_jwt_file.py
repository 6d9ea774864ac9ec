"""The file of issuers, read again when it changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lark_common import rereading
from lark_controller.rest.identities import identities as module
from lark_controller.rest.identities.identities import Identities, RefusedTokenError
from lark_controller.rest.tokens import Scope
from tests.fixtures import issuers as made
from tests.fixtures.descriptors import no_descriptors
from tests.fixtures.issuers import key, public, write_issuers, write_keys
from tests.rest.test_jwt import entry_of, make


def replaced(path: Path, *entries: dict[str, Any]) -> None:
    """Write the file as an operator's editor does, with another inode."""
    write_issuers(path.with_suffix(".new"), *entries).replace(path)


# what the file says afterwards, and what the token of an operator then gives
CHANGES: dict[str, tuple[Callable[[Path], list[dict[str, Any]]], set[str] | None]] = {
    "the same": (lambda directory: [entry_of(directory)], {"operate"}),
    "another group": (lambda directory: [entry_of(directory, scopes={"operate": {"groups": "others"}})], set()),
    "less": (lambda directory: [entry_of(directory, scopes={"read": {"groups": "network-operators"}})], {"read"}),
    "another audience": (lambda directory: [entry_of(directory, audience="else")], None),
    "another issuer": (lambda directory: [entry_of(directory, issuer="https://else.example")], None),
    "one more": (
        lambda directory: [entry_of(directory), entry_of(directory, issuer="https://else.example")],
        {"operate"},
    ),
    "a mistake": (lambda directory: [entry_of(directory, scopes={"boss": "everyone"})], {"operate"}),
    "keys that are not there": (lambda directory: [entry_of(directory, keys="/none")], {"operate"}),
    "nobody": (lambda directory: [], {"operate"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_file_is_read_again_when_it_changes(tmp_path: Path, change: str) -> None:
    """Also for a token that was verified before; a file with a mistake changes nothing."""
    identities, _ = make(tmp_path)
    secret = made.token(groups="network-operators")
    assert identities.token(secret).scopes == {Scope.OPERATE}
    entries, scopes = CHANGES[change]
    replaced(tmp_path / "jwt.yaml", *entries(tmp_path))
    if scopes is None:
        with pytest.raises(RefusedTokenError):
            identities.token(secret)
        assert identities.seen(secret) is None
    else:
        assert identities.token(secret).scopes == scopes


def test_a_file_that_is_gone_for_a_moment_changes_nothing(tmp_path: Path) -> None:
    identities, _ = make(tmp_path)
    (tmp_path / "jwt.yaml").rename(tmp_path / "away")
    assert identities.token(made.token()).scopes == {Scope.SELF}
    (tmp_path / "away").rename(tmp_path / "jwt.yaml")
    assert identities.token(made.token()).scopes == {Scope.SELF}


@pytest.mark.parametrize("file", ["jwt.yaml", "keys.json"])
def test_a_change_while_no_descriptor_is_left_is_read_once_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    monkeypatch.setattr(rereading, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(module, "VERIFIED_SECONDS", 0.0)
    identities, _ = make(tmp_path)
    secret = made.token()
    assert identities.token(secret).scopes == {Scope.SELF}
    if file == "jwt.yaml":
        write_issuers(tmp_path / file, entry_of(tmp_path, issuer="https://else.example"))
    else:
        write_keys(tmp_path / file, public(key("ec"), "two"))
    with no_descriptors():
        assert identities.token(secret).scopes == {Scope.SELF}
    with pytest.raises(RefusedTokenError):
        identities.token(secret)


def test_issuers_whose_keys_cannot_be_read_yet_are_read_once_they_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rereading, "AGAIN_SECONDS", 0.0)
    monkeypatch.setattr(module, "VERIFIED_SECONDS", 0.0)
    identities, _ = make(tmp_path)
    secret = made.token()
    write_issuers(tmp_path / "jwt.yaml", entry_of(tmp_path, keys=str(tmp_path / "later.json")))
    assert identities.token(secret).scopes == {Scope.SELF}
    write_keys(tmp_path / "later.json", public(key("ec"), "two"))
    with pytest.raises(RefusedTokenError):
        identities.token(secret)


def test_issuers_that_stay_keep_their_threads_and_others_end(tmp_path: Path) -> None:
    def asked(name: str, **changed: Any) -> dict[str, Any]:
        # Nobody listens there; the threads try again and again.
        entry = entry_of(tmp_path, issuer=f"https://127.0.0.1:1/{name}", **changed)
        del entry["keys"]
        return entry

    write_keys(tmp_path / "keys.json", public(key(), "one"))
    path = write_issuers(tmp_path / "jwt.yaml", asked("stays"), asked("changes"), asked("goes"))
    identities = Identities.of_file(path)
    identities.start()
    stays, changes, goes = identities.threads
    try:
        replaced(path, entry_of(tmp_path), asked("stays"), asked("changes", audience="else"), asked("comes"))
        assert identities.token(made.token()).scopes == {Scope.SELF}
        assert identities.threads[0] is stays
        assert stays.is_alive()
        assert len(identities.threads) == 3
        assert changes not in identities.threads
        assert changes.stopping
        assert goes.stopping
        assert identities.is_alive()
    finally:
        identities.stop()
    assert not identities.is_alive()
    assert identities.name == stays.name
