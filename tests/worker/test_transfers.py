"""Transfers of jobs: real connections of processes in the shape of a starter, its copies and plugins."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

import pytest

from lark_worker.identity.processes import Programs, read_process
from lark_worker.network.commands import run
from lark_worker.records.known_jobs import Key
from lark_worker.settings import load
from lark_worker.transfers.book import NOTHING
from lark_worker.transfers.following import Transfers
from lark_worker.transfers.sockets import MOST_ENDS, Sockets
from lark_worker.transfers.starters import Mover, Starters
from tests.fixtures.service import wait
from tests.worker.pool import Pool

# Connects, receives so many bytes, sends so many, and waits for a word before it ends.
CLIENT = """
import socket, sys
host, port, received, sent = sys.argv[1], *map(int, sys.argv[2:5])
connection = socket.create_connection((host, port))
while received:
    received -= len(connection.recv(min(received, 65536)))
connection.sendall(bytes(sent))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
"""


class Server:
    """Sends and receives what a client of :data:`CLIENT` asks for; ``release`` lets the clients end, and it waits for
    ``second_half`` where a test clears that."""

    def __init__(self, address: str, size: int) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listening = socket.create_server((address, 0), family=family)
        self.address, self.port = address, self._listening.getsockname()[1]
        self._size = size
        self.release, self.second_half = threading.Event(), threading.Event()
        self.second_half.set()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        # Some clients go away with what they were sent unread.
        with connection, contextlib.suppress(OSError):
            connection.sendall(bytes(self._size // 2))
            self.second_half.wait(20)
            connection.sendall(bytes(self._size - self._size // 2))
            while connection.recv(65536):
                pass
            self.release.wait(20)

    def close(self) -> None:
        self.release.set()
        self._listening.close()


@contextmanager
def serving(address: str = "127.0.0.1", size: int = 1_000_000) -> Iterator[Server]:
    server = Server(address, size)
    yield server
    server.close()


def client(pool: Pool, server: Server, sent: int = 0, received: int = 1_000_000) -> str:
    """The command line of a plugin."""
    program = pool.folder / "plugin.py"
    program.write_text(CLIENT)
    return f"{sys.executable} {program} {server.address} {server.port} {received} {sent}"


def moved(pool: Pool, job_id: str) -> tuple[int, int]:
    used = pool.client.job(job_id)["usage"]
    return (0, 0) if used is None else (used["transfer_bytes_in"], used["transfer_bytes_out"])


def about(value: int, wanted: int) -> bool:
    """TCP counts beginning and end of a connection as a byte each."""
    return wanted <= value <= wanted + 4


@pytest.mark.ovs
@pytest.mark.parametrize("network", ["ovs_bridge", "none"])
def test_what_a_plugin_moves_is_in_the_controllers_answer_for_its_job(pool: Pool, network: str) -> None:
    pool.stop_service()
    pool.environment["LARK_WORKER_COUNTER_SECONDS"] = "0.2"
    pool.start_service()
    starter = pool.starter(1, "alice", f'NetworkType = "{network}"\n')
    with serving() as server:
        # Input, as HTCondor does it: before the job's start is registered, by a child of a copy of the starter.
        starter.run(f"( {client(pool, server, 200_000)}; true ) & copy=$!")
        worker = pool.worker
        assert worker is not None
        wait(lambda: worker.transfers.followed == 1)
        pool.hook(starter, "start", "alice", 1)
        (record,) = worker.records()
        wait(lambda: about(moved(pool, record.id)[0], 1_000_000) and about(moved(pool, record.id)[1], 200_000))
        # The controller goes away; what is moved meanwhile is reported with the job's end.
        pool.stop_controller()
        starter.run(f"( {client(pool, server, 0)}; true ) & other=$!")
        wait(lambda: about(worker.transfers.sums((record.starter, record.started)).bytes_in, 2_000_000))
        server.release.set()
        starter.run("wait $copy $other")
    starter.kill()
    wait(lambda: worker.records()[0].over)
    pool.start_controller()
    wait(lambda: not worker.records(), limit=40)
    used = pool.client.job(record.id)["usage"]
    assert about(used["transfer_bytes_in"], 2_000_000)
    assert about(used["transfer_bytes_out"], 200_000)
    assert used["transfer_seconds"] > 0
    # The loopback interface is no part of the WAN.
    assert (used["transfer_wan_bytes_in"], used["final"]) == (0, True)


# A starter that does what it is told, a line at a time; copies of it are forks of the same program.
STARTER = """
import os, socket, subprocess, sys, time
def move(host, port, received, sent, hold):
    connection = socket.create_connection((host, port))
    while received:
        received -= len(connection.recv(min(received, 65536)))
    connection.sendall(bytes(sent))
    connection.shutdown(socket.SHUT_WR)
    if hold:
        connection.recv(1)
    return connection
def copy(*what):
    if os.fork() == 0:
        move(*what)
        os._exit(0)
kept = []
print(os.getpid(), flush=True)
for line in sys.stdin:
    exec(line.replace('\\\\n', chr(10)))
    print("done", flush=True)
"""


class Starter:
    """A starter of a startd, both by program and parent; the last of the startd's children, of which there are so many
    others."""

    def __init__(self, folder: Path, others: int = 0) -> None:
        python = Path(sys.executable).resolve()
        for name in ("condor_startd", "condor_starter"):
            if not (folder / name).exists():
                shutil.copy(python, folder / name)
        (folder / "starter.py").write_text(STARTER)
        start = (
            "import os, signal, subprocess\n"
            "signal.signal(signal.SIGUSR1, lambda *_: os.seteuid(1))\n"
            "signal.signal(signal.SIGUSR2, lambda *_: os.seteuid(0))\n"
            f"hold, end = os.pipe()\nfor _ in range({others}):\n"
            " os.fork() or (os.close(end), os.read(hold, 1), os._exit(0))\n"
            f"subprocess.run(['{folder}/condor_starter', '{folder}/starter.py'])"
        )
        self._process = subprocess.Popen(
            [str(folder / "condor_startd"), "-c", start],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env={"PYTHONHOME": sys.base_prefix, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )  # fmt: skip
        self.pid = int(self._read())
        self.key = (self.pid, read_process(self.pid).started)

    def do(self, line: str) -> None:
        """Have it run a line of Python."""
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        assert self._read() == "done\n"

    def move(self, function: str, server: Server, received: int = 1_000_000, sent: int = 0, hold: bool = True) -> None:
        """Have it, or a copy, connect to a server."""
        self.do(f"{function}({server.address!r}, {server.port}, {received}, {sent}, {hold})")

    def startd_acts_as(self, user: int) -> None:
        """Have its startd be root (0), or user 1."""
        os.kill(self._process.pid, signal.SIGUSR1 if user else signal.SIGUSR2)
        wait(lambda: Path("/proc", str(self._process.pid)).stat().st_uid == user)

    def kill(self) -> None:
        """kill -9."""
        os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


class Site:
    """A worker's starters and its transfers; ``live`` are the starters of jobs that are not over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.live: set[Key] = set()
        self.starters: list[Starter] = []
        (folder / "state").mkdir()
        self.transfers = self._new()

    def _new(self) -> Transfers:
        settings = replace(
            load({}), state_dir=self.folder / "state", starters=(f"{self.folder}/condor_starter",),
            startds=(f"{self.folder}/condor_startd",),
        )  # fmt: skip
        made = Transfers(settings, lambda: self.live)
        made.start()
        made.local((ip_network("10.0.0.0/8"), ip_network("::1")))
        return made

    def again(self) -> None:
        """Another service in place of one that was killed: what it has not written is lost."""
        path = self.folder / "state" / "transfers"
        kept = path.read_text()
        self.transfers.stop()
        path.write_text(kept)
        self.transfers = self._new()

    def starter(self) -> Starter:
        starter = Starter(self.folder)
        self.starters.append(starter)
        self.live.add(starter.key)
        return starter

    def moved(self, starter: Starter) -> tuple[int, int]:
        return self.transfers.sums(starter.key)[:2]

    def close(self) -> None:
        self.transfers.stop()
        for starter in self.starters:
            starter.close()


def starters_in(folder: Path) -> Starters:
    return Starters(Programs(frozenset({f"{folder}/condor_starter"}), frozenset({f"{folder}/condor_startd"})))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()


def test_a_job_whose_plugins_have_many_descriptors_takes_no_more_time_than_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lark_worker.transfers.starters.MOST_DESCRIPTORS", 20)
    starters, (moving, other) = starters_in(tmp_path), socket.socketpair()
    inode = os.fstat(moving.fileno()).st_ino
    many = "import os, sys; kept = [os.dup(0) for _ in range(40)]; print(flush=True); sys.stdin.read()"
    with contextlib.ExitStack() as ends:
        started = [
            subprocess.Popen(
                [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=held
            )
            for program, held in ((many, ()), ("input()", (moving.fileno(),)), ("input()", ()))
        ]
        for each in started:
            ends.enter_context(each)
        copy, plugin, starter = (each.pid for each in started)
        assert started[0].stdout is not None
        started[0].stdout.readline()
        key = (starter, 0)
        assert starters.owners([Mover(key, (plugin, copy))], {inode}) == {inode: key}
        assert starters.owners([Mover(key, (copy, plugin))], {inode}) == {}
        for each in started:
            each.kill()
    moving.close()
    other.close()
    starters.close()


def test_ends_that_come_faster_than_they_are_read_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless:
        """Ends of connections, more than anybody reads."""

        given = 0

        def recv(self, size: int) -> bytes:
            self.given += 1
            assert self.given <= MOST_ENDS, "the reader never comes to an end"
            return b""

        def close(self) -> None:
            """Nothing is open."""

    sockets = Sockets()
    sockets._ends.close()
    endless = Endless()
    monkeypatch.setattr(sockets, "_ends", endless)
    assert sockets.ended(7) == []
    assert endless.given == 7
    endless.given = 0
    assert sockets.ended() == []
    sockets.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_copys_connection_is_a_transfer_and_no_other_is(site: Site, address: str) -> None:
    one, two = site.starter(), site.starter()
    with serving(address) as server:
        # A starter's own connection, which its copies inherit; a hook's; a job's in a network of its own; a stranger's.
        one.do(f"kept.append(move({address!r}, {server.port}, 1_000_000, 5, False))")
        program = site.folder / "client.py"
        program.write_text(CLIENT)
        arguments = [sys.executable, str(program), address, str(server.port), "1000000", "7"]
        one.do(f"hook = subprocess.Popen({arguments!r})")
        own = ["unshare", "--net", "sh", "-c", "ip link set lo up; exec sleep 60"]
        two.do(f"job = subprocess.Popen({own!r})")
        stranger = socket.create_connection((address, server.port))
        two.move("copy", server, sent=300)
        one.move("copy", server, sent=20)
        wait(lambda: site.transfers.followed == 2)
        wait(lambda: about(site.moved(one)[0], 1_000_000) and about(site.moved(two)[0], 1_000_000))
        wait(lambda: about(site.moved(one)[1], 20) and about(site.moved(two)[1], 300))
        sums = site.transfers.sums(one.key)
        # Not local: all of IPv4's loopback here.
        assert sums.wan_bytes_in == (0 if address == "::1" else sums.bytes_in)
        server.release.set()
        wait(lambda: site.transfers.followed == 0)
        stranger.close()
        two.do("job.kill(); job.wait()")
        one.do("hook.wait()")
    assert about(site.transfers.last(one.key).bytes_in, 1_000_000)
    assert site.transfers.missed.late_bytes == 0


def test_a_transfer_is_accounted_to_its_last_byte(site: Site) -> None:
    starter = site.starter()
    with serving(size=30_000_000) as server:
        server.release.set()
        for _ in range(3):
            server.second_half.clear()
            starter.move("copy", server, received=30_000_000, sent=5)
            wait(lambda: site.transfers.followed == 1)
            # The rest is there in some milliseconds, and the end comes right behind it.
            server.second_half.set()
            wait(lambda: site.transfers.followed == 0)
    found = site.transfers.last(starter.key)
    assert 90_000_000 <= found.bytes_in <= 90_000_006
    assert 15 <= found.bytes_out <= 21


def test_a_service_that_is_killed_finds_running_transfers_again_and_counts_nothing_twice(site: Site) -> None:
    starter = site.starter()
    with serving() as server:
        starter.move("copy", server, sent=10)
        wait(lambda: about(site.moved(starter)[0], 1_000_000))
        site.transfers.written({starter.key})
        site.again()
        wait(lambda: site.transfers.followed == 1)
        starter.move("copy", server, sent=10)
        wait(lambda: 2_000_000 <= site.moved(starter)[0] <= 2_000_004)
        # Never written: found by their connections, which are still there.
        site.again()
        wait(lambda: site.transfers.followed == 2)
        wait(lambda: 2_000_000 <= site.moved(starter)[0] <= 2_000_004)
        server.release.set()
        wait(lambda: site.transfers.followed == 0)
    assert 2_000_000 <= site.transfers.last(starter.key).bytes_in <= 2_000_004


def test_a_starter_that_is_killed_has_its_account_and_what_lives_on_has_none(site: Site) -> None:
    starter = site.starter()
    with serving() as server:
        server.second_half.clear()
        starter.move("copy", server)
        wait(lambda: site.transfers.followed == 1)
        starter.kill()
        # The copy lives on, whoever its parent is now, until the job's end is noted.
        wait(lambda: about(site.moved(starter)[0], 500_000))
        assert about(site.transfers.last(starter.key).bytes_in, 500_000)
        site.live.clear()
        server.second_half.set()
        wait(lambda: about(site.transfers.missed.late_bytes, 500_000))
        assert site.transfers.followed == 1
        server.release.set()
        wait(lambda: site.transfers.followed == 0)
    assert site.transfers.sums(starter.key) == NOTHING


def test_five_hundred_short_connections_are_counted_or_said(site: Site) -> None:
    starter = site.starter()
    with serving(size=1000) as server:
        go = site.folder / "go"
        arguments = f"'127.0.0.1', {server.port}, 1000, 0, True"
        wait_for = f"while not os.path.exists({str(go)!r}): time.sleep(0.01)"
        starter.do(
            f"def many():\\n first = move('127.0.0.1', {server.port}, 1000, 0, False)\\n"
            f" {wait_for}\\n [move({arguments}).close() for _ in range(500)]\\n"
        )
        starter.do("copied = os.fork() or (many(), os._exit(0))")
        wait(lambda: site.transfers.followed == 1)
        server.release.set()
        go.touch()
        # The first may be over while others are still opened. The ends of the server are in the same network here, and
        # count among the unseen, too.
        wait(lambda: site.moved(starter)[0] + site.transfers.missed.unseen_bytes >= 501_000)
        wait(lambda: site.transfers.followed == 0)
        assert site.transfers.missed.unseen > 0
        assert site.transfers.lost == 0


def test_a_look_that_waits_for_a_processor_does_not_put_off_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def late(_: Transfers) -> bool:
        looks.append(time.monotonic())
        time.sleep(1.0)
        return True

    monkeypatch.setattr(Transfers, "_look", late)
    made = Site(tmp_path)
    try:
        # By the time that passed, each would be followed by nine seconds of rest.
        wait(lambda: len(looks) >= 4, limit=20)
    finally:
        made.close()


def test_programs_that_wait_for_a_processor_do_not_put_off_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[float] = []

    def late(_: Transfers) -> None:
        looks.append(time.monotonic())
        run(["sleep", "1"])

    monkeypatch.setattr(Transfers, "_enforce", late)
    made = Site(tmp_path)
    try:
        # By the time that passed, each would be followed by nine seconds of rest.
        wait(lambda: len(looks) >= 4, limit=20)
    finally:
        made.close()
