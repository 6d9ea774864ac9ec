"""The check of the machine's own name, which HTCondor's library asks for when it is loaded."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
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


CLIENT = """
import contextlib, io, sys
from lark_controller.cli.main import main
for command in (
    "advice 1", "audit", "drops", "explain 1 10.0.0.1", "jobs", "jobs 1", "lift 1", "map", "policy history", "switches",
    "top", "--version",
):
    with contextlib.suppress(SystemExit), contextlib.redirect_stderr(io.StringIO()):
        main(command.split())
parts = {"classad2", "htcondor2", "flask", "numpy", "sqlalchemy"}
print("loaded", *{name.partition(".")[0] for name in sys.modules} & parts)
"""


def test_no_command_of_a_client_waits_for_the_own_name() -> None:
    """Of HTCondor's library and the server's parts none is loaded for a question to the controller."""
    environment = {**os.environ, "LARK_URL": "http://127.0.0.1:1"}
    done = subprocess.run([sys.executable, "-c", CLIENT], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "loaded"
