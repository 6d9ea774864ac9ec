"""The check of the machine's own name, which HTCondor's library asks for when it is loaded."""

from __future__ import annotations

import logging
import socket
import threading

import pytest

from lark_controller.cli import own_name


def test_a_name_that_resolves_is_no_problem(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    own_name.warn()
    assert caplog.messages == []


def test_a_name_that_nobody_knows_is_said_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-host.invalid")
    own_name.warn()
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "own name does not resolve" in record.message
    assert vars(record)["lark_fields"]["name"].startswith("no-such-host.invalid: ")


def test_a_name_service_that_does_not_answer_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(socket, "gethostname", lambda: "slow")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: answered.wait())
    try:
        assert own_name.problem(0.01) == "slow: no answer within 0.01 s"
    finally:
        answered.set()
