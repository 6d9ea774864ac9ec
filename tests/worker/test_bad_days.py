"""An administrator's bad day: a second service, Open vSwitch away, no descriptors, clocks that differ."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import classad2
import pytest

from lark_common.errors import SettingError
from lark_worker import hook_socket
from lark_worker.controller_link import DEFAULT_LEASE, ControllerLink, Renewed
from lark_worker.dhcp.clients import steady_clock
from lark_worker.errors import CallerError, NetworkError
from lark_worker.hook_socket import HookSocket
from lark_worker.identity.process_watch import ProcessWatch
from lark_worker.identity.processes import (
    Process,
    Programs,
    find_starter,
    is_alive,
    read_process,
)
from lark_worker.identity.startd import read_slot
from lark_worker.life import leases
from lark_worker.life.leases import LeaseRenewal
from lark_worker.life.registration import Registrations
from lark_worker.life.shares import Requests
from lark_worker.network.ovs_bridge import Bridge
from lark_worker.records.known_jobs import KnownJobs
from lark_worker.records.state_lock import StateLock
from lark_worker.settings import load
from lark_worker.worker import Worker
from tests.fixtures.descriptors import no_descriptors
from tests.worker.pool import NOBODY, Pool, eventually
from tests.worker.test_jobs import value

# --- on a worker ----------------------------------------------------------------------------------------------------


@pytest.mark.ovs
def test_jobs_read_their_resolv_conf_whatever_the_services_umask(pool: Pool) -> None:
    before = os.umask(0o077)
    try:
        starter = pool.starter(1, "alice")
        pool.hook(starter, "start", "alice", 1)
    finally:
        os.umask(before)
    assert pool.inside(starter, "cat /etc/resolv.conf") == (0, "nameserver 10.64.0.53\n")


@pytest.mark.ovs
def test_a_second_service_does_not_start_and_the_first_goes_on(pool: Pool) -> None:
    running = pool.starter(1, "alice")
    pool.hook(running, "start", "alice", 1)
    ads = pool.folder / "ads.json"
    ads.write_text(json.dumps(pool.startd.ads))
    program = "import sys; from lark_worker.cli import main; sys.exit(main(['run']))"
    same: dict[str, str] = {}
    elsewhere = {"LARK_WORKER_STATE_DIR": str(pool.folder / "elsewhere"), "LARK_WORKER_PREFIX": "zz"}
    address = {"LARK_WORKER_STARTD_ADDRESS_FILE": str(pool.folder / "startd")}
    for changed, said in (
        (same, "another worker service uses it"),
        (elsewhere, "another worker service listens there"),
    ):
        second = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, **pool.environment, **address, **changed},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert (second.returncode, said in second.stderr) == (2, True), second.stderr
        assert "Traceback" not in second.stderr
    assert pool.inside(running, "true")[0] == 0
    assert value(pool.hook(pool.starter(2, "bob"), "start", "bob", 2), "LarkState") == "enforced"


@pytest.mark.ovs
def test_what_a_job_leaves_while_open_vswitch_is_away_goes_when_it_is_back(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = threading.Event()
    away.set()
    delete = Bridge.del_ports

    def del_ports(bridge: Bridge, ports: list[str]) -> None:
        if away.is_set():
            raise NetworkError("ovs-vsctl: no answer")
        delete(bridge, ports)

    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    (port,) = pool.ports()
    monkeypatch.setattr(Bridge, "del_ports", del_ports)
    starter.kill()
    # The job's processes, if any are left, have no network from now on.
    eventually(lambda: pool.leftovers() == [port])
    away.clear()
    eventually(lambda: pool.leftovers() == [])


@pytest.mark.ovs
def test_an_environment_that_has_an_entry_without_a_name_keeps_no_job_from_starting(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    pool.hook(starter, "start", "alice", 1)
    file = starter.scratch / "environment"
    file.write_bytes(b"PATH=/usr/bin:/bin\0=odd\0JOB=yes\0")
    shutil.chown(file, NOBODY, NOBODY)
    status, said = starter.run(f"SUDO_UID={NOBODY} SUDO_GID={NOBODY} {pool.enter} {file} /bin/sh -c 'echo $JOB'")
    assert (status, said.split()) == (0, ["yes"])


@pytest.mark.ovs
def test_an_ad_that_is_too_large_is_refused_with_the_reason(pool: Pool) -> None:
    starter = pool.starter(1, "alice")
    more = "".join(f'A{number} = "{"x" * 90}"\n' for number in range(12000))
    said = pool.hook(starter, "start", "alice", 1, more)
    assert value(said, "HookStatusCode") == "10"
    assert "at most 262144 are accepted" in said


# --- what cannot be used --------------------------------------------------------------------------------------------


def test_a_state_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=f"LARK_WORKER_STATE_DIR={tmp_path}/file/state: cannot be used: Not a dir"):
        StateLock(tmp_path / "file" / "state")
    first = StateLock(tmp_path / "state")
    with pytest.raises(SettingError, match="another worker service uses it"):
        StateLock(tmp_path / "state")
    first.release()
    StateLock(tmp_path / "state").release()


def test_a_socket_on_which_somebody_listens_is_not_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "worker.sock"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        with pytest.raises(SettingError, match="another worker service listens there"):
            HookSocket(path, cast(Worker, None), Programs(frozenset(), frozenset()))
    # Nobody listens any more: what is left is a file.
    service = HookSocket(path, cast(Worker, None), Programs(frozenset(), frozenset()))
    service.server_close()


def test_without_descriptors_the_socket_is_tried_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hook_socket, "EXHAUSTED_SECONDS", 0.1)
    service = HookSocket(tmp_path / "hook.sock", cast(Worker, None), Programs(frozenset(), frozenset()))
    tries = 0
    accept = service.get_request

    def tried() -> tuple[socket.socket, Any]:
        nonlocal tries
        tries += 1
        return accept()

    monkeypatch.setattr(service, "get_request", tried)
    service.start()
    try:
        with caplog.at_level("ERROR"), socket.socket(socket.AF_UNIX) as waiting:
            with no_descriptors():
                waiting.connect(str(tmp_path / "hook.sock"))
                began = time.monotonic()
                eventually(lambda: tries >= 3)
                assert tries <= 3 + (time.monotonic() - began) / 0.1
            waiting.settimeout(20)
            waiting.sendall(b"GET /nowhere HTTP/1.0\r\n\r\n")
            assert waiting.recv(100)
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert errors == ["no connection can be accepted"]
    finally:
        service.stop()


def test_a_token_that_jobs_users_can_read_is_not_used(tmp_path: Path) -> None:
    token = tmp_path / "token"
    settings = load({"LARK_WORKER_TOKEN_FILE": str(token)})
    ControllerLink(settings)
    token.write_text("secret")
    for mode in (0o644, 0o640, 0o602):
        token.chmod(mode)
        with pytest.raises(SettingError, match=f"mode {mode:o}.*chmod 600"):
            ControllerLink(settings)
    token.chmod(0o400)
    ControllerLink(settings)


def test_a_slots_attributes_that_are_no_text_are_passed_over() -> None:
    ad = classad2.ClassAd(
        '[Name = "slot1@w"; Machine = "w"; GlobalJobId = "s#1.0#1"; Owner = "alice"; Place = "M\\374nchen";'
        ' Rooms = {1, "B\\374ro"}]'
    )
    slot = read_slot(ad)
    assert (slot.owner, "Place" in slot.ad, "Rooms" in slot.ad) == ("alice", False, False)


# --- descriptors and processes --------------------------------------------------------------------------------------


def test_a_service_without_descriptors_takes_no_job_for_ended() -> None:
    me = read_process(os.getpid())
    watch = ProcessWatch()
    watch.start()
    with no_descriptors():
        with pytest.raises(OSError, match="Too many open files"):
            is_alive(me.pid, me.started)
        with pytest.raises(OSError, match="Too many open files"):
            watch.add(me.pid, me.started, lambda: None)
    assert is_alive(me.pid, me.started)
    watch.stop()


@pytest.mark.parametrize("started", [100, 300])
def test_a_parent_that_began_after_its_child_is_another_process(monkeypatch: pytest.MonkeyPatch, started: int) -> None:
    """The caller's parent has ended, and a starter has been given its process id."""
    known = {
        1: Process(1, 0, 0, 0, "/sbin/init"),
        10: Process(10, 1, 50, 0, "/startd"),
        20: Process(20, 10, started, 0, "/starter"),
        30: Process(30, 20, 200, 1000, "/bin/sh"),
    }
    monkeypatch.setattr("lark_worker.identity.processes.read_process", known.__getitem__)
    programs = Programs(frozenset({"/starter"}), frozenset({"/startd"}))
    if started < known[30].started:
        assert find_starter(30, programs) == known[20]
    else:
        with pytest.raises(CallerError):
            find_starter(30, programs)


# --- clocks ---------------------------------------------------------------------------------------------------------


class Ahead(BaseHTTPRequestHandler):
    """A controller whose clock is a day ahead, and whose leases last a minute."""

    now = datetime.now(UTC) + timedelta(days=1)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        until = (self.now + timedelta(seconds=60)).isoformat()
        said = {"state": "enforced", "reason": "", "addresses": [], "lease_until": until, "missing": ["1" * 16]}
        body = json.dumps(said).encode()
        self.send_response_only(200)
        self.send_header("Date", format_datetime(self.now, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the base class calls it so
        """Nothing is to be said."""


def test_a_lease_is_as_long_as_it_is_whatever_the_clocks_of_worker_and_controller_say() -> None:
    with HTTPServer(("127.0.0.1", 0), Ahead) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        link = ControllerLink(load({"LARK_WORKER_URL": f"http://127.0.0.1:{server.server_port}"}))
        assert link.lease == DEFAULT_LEASE
        link.register('Owner = "alice"\n------\n')
        assert 55 < link.lease < 65
        link.lease = DEFAULT_LEASE
        assert link.renew("w", ["0" * 16, "1" * 16]) == Renewed(frozenset({"1" * 16}), None)
        assert 55 < link.lease < 65
        server.shutdown()


class FakeLink:
    """Renews, and counts how often."""

    def __init__(self, unsettled: dict[str, tuple[str, str]] | None = None) -> None:
        self.lease = DEFAULT_LEASE
        self.renewed = 0
        self.unsettled = unsettled

    def renew(self, host: str, job_ids: Sequence[str]) -> Renewed:
        self.renewed += 1
        return Renewed(frozenset(), self.unsettled)


@dataclass(frozen=True)
class RunningJob:
    """The fields of a record that a renewal looks at."""

    state: str = "enforced"
    reason: str = ""
    over: bool = False
    pending: tuple[str, ...] = ()
    id: str = "0" * 16
    machine: str = "w"
    starter: int = 1
    started: int = 1


NO_SHARES = cast(Requests, SimpleNamespace(give_back=lambda: None))


class OneJob:
    """The record of one job that runs."""

    def __init__(self, state: str = "enforced", reason: str = "") -> None:
        self.record = RunningJob(state, reason)

    def all(self) -> list[RunningJob]:
        return [self.record]

    def locked(self, key: object) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def of(self, key: object) -> RunningJob:
        return self.record

    def change(self, key: object, *, state: str, reason: str) -> None:
        self.record = replace(self.record, state=state, reason=reason)


def test_leases_are_renewed_soon_after_the_start_and_as_often_as_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "TICK", 0.01)
    link = FakeLink()
    renewals = LeaseRenewal(cast(KnownJobs, OneJob()), cast(ControllerLink, link), cast(Registrations, None), NO_SHARES)
    renewals.start()
    eventually(lambda: link.renewed == 1)
    # A job's registration says that leases are short here; that is heard before the long pause is over.
    link.lease = 0.03
    eventually(lambda: link.renewed > 5)
    renewals.stop()


def test_a_job_that_was_pending_at_its_start_is_asked_about_soon_and_less_often_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "TICK", 0.01)
    monkeypatch.setattr(leases, "SOON", 0.02)
    job, link = OneJob("pending", "its rules are not confirmed"), FakeLink({"0" * 16: ("pending", "no queue yet")})
    renewals = LeaseRenewal(cast(KnownJobs, job), cast(ControllerLink, link), cast(Registrations, None), NO_SHARES)
    renewals.start()
    eventually(lambda: link.renewed >= 4)
    assert (job.record.state, job.record.reason) == ("pending", "no queue yet")
    link.unsettled = {}
    eventually(lambda: job.record.state == "enforced")
    assert job.record.reason == ""
    renewals.stop()


@pytest.mark.parametrize(
    ("told", "kept"),
    [
        ({}, ("enforced", "")),
        ({"0" * 16: ("quarantined", "another owner")}, ("quarantined", "another owner")),
        # An earlier controller does not say; a start takes its own answers.
        (None, ("pending", "as of the start")),
        ({"0" * 16: ("registering", "")}, ("pending", "as of the start")),
    ],
)
def test_a_renewal_tells_a_jobs_state(
    monkeypatch: pytest.MonkeyPatch, told: dict[str, tuple[str, str]] | None, kept: tuple[str, str]
) -> None:
    monkeypatch.setattr(leases, "TICK", 0.01)
    monkeypatch.setattr(leases, "SOON", 0.02)
    job, link = OneJob("pending", "as of the start"), FakeLink(told)
    renewals = LeaseRenewal(cast(KnownJobs, job), cast(ControllerLink, link), cast(Registrations, None), NO_SHARES)
    renewals.start()
    eventually(lambda: link.renewed >= 1)
    renewals.stop()
    assert (job.record.state, job.record.reason) == kept


def test_a_clock_that_is_set_changes_no_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = steady_clock()
    before = time.time()
    assert abs(clock() - before) < 1
    monkeypatch.setattr(time, "time", lambda: before + 86400)
    assert abs(clock() - before) < 60
