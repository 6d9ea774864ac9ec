"""Notices to systemd, received as systemd does: datagrams on a Unix socket."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from lark_common.systemd import Notices

WATCHED = {"WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}


@pytest.fixture(params=["path", "abstract"])
def systemd(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[socket.socket, dict[str, str]]]:
    name = str(tmp_path / "notify") if request.param == "path" else f"@lark-{os.getpid()}-{tmp_path.name}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(name.replace("@", "\0", 1))
        listening.settimeout(60)
        yield listening, {"NOTIFY_SOCKET": name}


def test_a_service_is_ready_alive_and_stops(systemd: tuple[socket.socket, dict[str, str]]) -> None:
    listening, environment = systemd
    notices = Notices(lambda: True, environment | WATCHED)
    notices.status("stands by; köln is active")
    assert listening.recv(100).decode() == "STATUS=stands by; köln is active"
    notices.ready()
    # It stood by, and now it serves.
    notices.ready()
    assert [listening.recv(100) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    notices.stopping()
    while (state := listening.recv(100)) == b"WATCHDOG=1":
        pass
    assert state == b"STOPPING=1"


def test_a_service_that_is_not_alive_is_silent(systemd: tuple[socket.socket, dict[str, str]]) -> None:
    listening, environment = systemd
    asked = []

    def alive() -> bool:
        asked.append(True)
        return len(asked) > 3

    notices = Notices(alive, environment | WATCHED)
    notices.ready()
    assert listening.recv(100) == b"READY=1"
    assert listening.recv(100) == b"WATCHDOG=1"
    assert len(asked) > 3
    notices.stopping()


def test_a_fault_of_the_check_itself_ends_no_service(systemd: tuple[socket.socket, dict[str, str]]) -> None:
    listening, environment = systemd
    notices = Notices(lambda: bool(1 // 0), environment | WATCHED)
    notices.ready()
    assert [listening.recv(100) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
    notices.stopping()


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"NOTIFY_SOCKET": "/nowhere/at/all"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "soon"},
        {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "1000", "WATCHDOG_PID": "1"},
    ],
)
def test_without_systemd_nothing_happens(environment: dict[str, str]) -> None:
    def alive() -> bool:
        raise AssertionError("nobody asks")

    notices = Notices(alive, environment)
    notices.ready()
    notices.stopping()
