"""Transfers of users, and kernels, that do not behave as transfers usually do."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lark_common.transfers import Treatment
from lark_worker.controller_link import ControllerLink, Noted
from lark_worker.identity.processes import read_process
from lark_worker.network.commands import run
from lark_worker.records.known_jobs import Key
from lark_worker.records.records import Record
from lark_worker.rules.table import change, delete
from lark_worker.transfers import inet_diag, limits
from lark_worker.transfers.book import NOTHING, Missed, Sums
from lark_worker.transfers.fireflies import Fireflies
from lark_worker.transfers.following import Transfers
from lark_worker.transfers.inet_diag import Connection
from lark_worker.transfers.labels import FlowLabels
from lark_worker.transfers.reports import TransferReports
from lark_worker.transfers.sockets import Sockets
from lark_worker.transfers.starters import REST_SECONDS
from tests.fixtures.service import wait
from tests.worker.test_fireflies import Link, fireflies
from tests.worker.test_flow_labels import CMS, FAR6, PREFIX
from tests.worker.test_starters import held
from tests.worker.test_transfer_book import FAR, NEAR, ONE, TWO, Kernel, a_book
from tests.worker.test_transfers import Site, Starter, about, serving, site, starters_in

__all__ = ["site"]

ENVIRONMENT = {"PYTHONHOME": sys.base_prefix, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
# Connects one socket twice (connect(2) with AF_UNSPEC between, once a file is there), and sends so much each time.
AGAIN = """
import ctypes
def again(host, port, first, second, go):
    if os.fork() == 0:
        made = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
        made.connect((host, port))
        made.sendall(bytes(first))
        while not os.path.exists(go):
            time.sleep(0.01)
        if ctypes.CDLL(None).connect(made.fileno(), bytes(16), 16) == 0:
            made.connect((host, port))
            made.sendall(bytes(second))
            made.shutdown(socket.SHUT_WR)
            made.recv(1)
        os._exit(0)
"""
# A copy in which another thread than the first starts a plugin, as some of them do for each file.
THREADED = """
import threading
def threaded(host, port, sent):
    if os.fork() == 0:
        program = (
            "import socket, sys; made = socket.create_connection((sys.argv[1], int(sys.argv[2]))); "
            "made.sendall(bytes(int(sys.argv[3]))); made.shutdown(1); made.recv(1)"
        )
        what = [sys.executable, '-c', program, host, str(port), str(sent)]
        thread = threading.Thread(target=subprocess.run, args=(what,))
        thread.start()
        thread.join()
        os._exit(0)
"""


def learn(starter: Starter, folder: Path, program: str) -> None:
    """Have a starter read the definition of a function."""
    (folder / "more.py").write_text(program)
    starter.do(f"exec(open('{folder}/more.py').read())")


def reconnect(kernel: Kernel, cookie: int, remote: str) -> None:
    """Connect a socket anew: its name stays, its counts begin at 0."""
    old = kernel.there[cookie]
    kernel.there[cookie] = Connection(cookie, old.inode, ip_address(remote), 0, 0, ports=(40001, 80))


def test_a_socket_that_is_connected_again_is_another_connection() -> None:
    book, kernel = a_book()
    kernel.open(1, ONE, NEAR)
    kernel.move(1, 1000, 10)
    kernel.look(book, 1.0)
    reconnect(kernel, 1, str(FAR))
    kernel.move(1, 600, 6)
    kernel.look(book, 2.0)
    # The counts are those of both, and the WAN's part is the second's.
    assert book.sums(ONE)[:4] == (1600, 16, 600, 6)
    turns = book.turns()
    assert [each.connection.remote for each in turns.found] == [NEAR, FAR]
    assert [each.connection.remote for each in turns.over] == [NEAR]
    # Once more, to the same end, seen at its end alone.
    reconnect(kernel, 1, str(FAR))
    kernel.move(1, 50, 5)
    kernel.end(1)
    kernel.look(book, 3.0)
    assert book.sums(ONE)[:4] == (1650, 21, 650, 11)
    assert [each.connection.remote for each in book.turns().over] == [FAR]
    assert (len(book), book.missed) == (0, Missed())


@pytest.mark.parametrize("looks", [0, 3])
def test_a_connection_that_is_broken_off_without_lingering_is_no_other_one(looks: int) -> None:
    """The kernel disconnects its socket first: of that the counts are 0, and the other end has no port."""
    book, kernel = a_book()
    kernel.open(1, ONE, FAR)
    kernel.move(1, 1000, 10)
    kernel.look(book, 1.0)
    last = kernel.there.pop(1)
    for at in range(looks):
        kernel.look(book, 2.0 + at)
    kernel.gone.append(replace(last, received=0, sent=0, inode=0, ports=(last.ports[0], 0)))
    kernel.look(book, 5.0)
    turns = book.turns()
    assert [[each.connection for each in flows] for flows in turns] == [[last], [last]]
    assert book.sums(ONE)[:4] == (1000, 10, 1000, 10)
    assert (len(book), book.missed) == (0, Missed())


def test_what_a_list_has_lacked_for_some_looks_is_not_counted_again() -> None:
    book, kernel = a_book()
    kernel.open(1, ONE)
    kernel.move(1, 1000, 10)
    kernel.look(book, 1.0)
    lacking = kernel.there.pop(1)
    for at in range(2, 7):
        kernel.look(book, float(at))
    assert len(book) == 0
    kernel.there[1] = lacking
    kernel.move(1, 5, 0)
    kernel.look(book, 7.0)
    assert book.sums(ONE)[:2] == (1005, 10)
    assert [each.again for each in book.turns().found] == [False, True]
    # Over for good by the kernel's word, after another gap.
    lacking = kernel.there.pop(1)
    for at in range(8, 13):
        kernel.look(book, float(at))
    kernel.there[1] = lacking
    kernel.move(1, 7, 0)
    kernel.end(1)
    kernel.look(book, 13.0)
    assert book.sums(ONE)[:2] == (1012, 10)
    assert book.missed == Missed()
    assert len(book.turns().over) == 1
    # Nothing is remembered of starters that are gone.
    book.keep(())
    assert book.sums(ONE) == NOTHING


def test_a_restored_connection_whose_list_lacks_it_has_its_last_bytes_and_no_beginning() -> None:
    book, kernel = a_book()
    kernel.open(1, ONE)
    kernel.move(1, 1000, 10)
    kernel.look(book, 1.0)
    again, _ = a_book()
    again.restore(json.loads(json.dumps(book.stored())), True)
    last = kernel.there.pop(1)
    for at in range(2, 7):
        kernel.look(again, float(at))
    kernel.there[1] = last
    kernel.move(1, 5, 0)
    kernel.end(1)
    kernel.look(again, 7.0)
    assert again.sums(ONE)[:2] == (1005, 10)
    assert again.turns() == ([], [])


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_plugin_that_connects_its_socket_again_hides_nothing(site: Site, address: str) -> None:
    with serving(address, size=0) as server:
        starter = site.starter()
        learn(starter, site.folder, AGAIN)
        go = site.folder / "go"
        starter.do(f"again({server.address!r}, {server.port}, 1_000_000, 400_000, {str(go)!r})")
        wait(lambda: about(site.moved(starter)[1], 1_000_000))
        go.touch()
        wait(lambda: about(site.moved(starter)[1], 1_400_000))


def test_a_plugin_that_any_thread_has_started_is_found(site: Site) -> None:
    with serving(size=0) as server:
        starter = site.starter()
        learn(starter, site.folder, THREADED)
        starter.do(f"threaded({server.address!r}, {server.port}, 300_000)")
        wait(lambda: about(site.moved(starter)[1], 300_000))


def test_what_a_starter_holds_is_no_transfer_where_that_cannot_be_read(tmp_path: Path) -> None:
    starter, starters = Starter(tmp_path), starters_in(tmp_path)
    with serving() as server:
        starter.do(f"shadow = socket.create_connection(({server.address!r}, {server.port}))")
        starter.move("copy", server)
        wait(lambda: starters.look(0.0)[1])
        (mover,) = starters.look(0.1)[1]
        (copy,) = mover.processes
        # The one that it has inherited, and its own.
        wait(lambda: len(held(starters, copy)) == 2)
        every = held(starters, copy)
        assert len(starters.owners([mover], every)) == 1
        starter.kill()
        wait(lambda: not held(starters, starter.pid))
        assert starters.owners([mover], every) == {}
    starters.close()
    starter.close()


def test_a_program_of_the_jobs_that_is_a_starter_hides_no_checkpoint(tmp_path: Path) -> None:
    starter, starters = Starter(tmp_path), starters_in(tmp_path)
    program = f"{tmp_path}/condor_starter"
    # In a network namespace of its own (CLONE_NEWNET), as all that a job starts is.
    starter.do(
        "import ctypes; session = subprocess.Popen("
        f"[{program!r}, '-c', 'input()'], stdin=subprocess.PIPE, preexec_fn=lambda: ctypes.CDLL(None).unshare(1 << 30))"
    )
    with serving() as server:
        # Between fork and exec it would be the same; it is nobody's copy.
        for at in (0.0, 0.25, 0.5):
            assert starters.look(at)[1] == []
        before = held(starters, starter.pid)
        starter.do(f"checkpoint = socket.create_connection(({server.address!r}, {server.port}))")
        starter.do("os.seteuid(1)")
        starters.look(0.75)
        (mover,) = starters.look(1.0)[1]
        every = held(starters, starter.pid)
        assert starters.owners([mover], every) == dict.fromkeys(every - before, starter.key)
        starter.do("os.seteuid(0); session.kill(); session.wait()")
    starters.close()
    starter.close()


def test_a_child_whose_id_is_used_again_by_a_copy_is_found(tmp_path: Path) -> None:
    starter, starters = Starter(tmp_path), starters_in(tmp_path)
    # Another program under the same id: what was looked at is not so for good.
    become = f"input(); import os; os.execv('{tmp_path}/condor_starter', ['s', '-c', 'print(flush=True); input()'])"
    starter.do(
        f"child = subprocess.Popen(['{Path(sys.executable).resolve()}', '-c', {become!r}], "
        "stdin=subprocess.PIPE, stdout=subprocess.PIPE)"
    )
    for at in (0.0, 0.25, 0.5):
        assert starters.look(at)[1] == []
    starter.do("child.stdin.write(b'x' + bytes([10])); child.stdin.flush(); child.stdout.readline()")
    assert starters.look(0.75)[1] == []
    (mover,) = starters.look(REST_SECONDS)[1]
    assert mover.key == starter.key
    starter.do("child.kill(); child.wait()")
    starters.close()
    starter.close()


# A startd that starts a second starter under the id of the first (clone3(2), set_tid).
STARTD = """
import ctypes, os, struct, sys, time
def run():
    os.execv(sys.argv[1], ['s', '-c', 'print(flush=True); input()'])
first = os.fork() or run()
print(first, flush=True)
sys.stdin.readline()
os.kill(first, 9)
os.waitpid(first, 0)
time.sleep(0.05)
chosen = ctypes.c_int(first)
given = struct.pack('=8QQQQ', 0, 0, 0, 0, 17, 0, 0, 0, ctypes.addressof(chosen), 1, 0)
made = ctypes.CDLL(None, use_errno=True).syscall(435, given, len(given))
made or run()
print(made, flush=True)
sys.stdin.readline()
os.kill(made, 9)
"""


def test_a_starters_id_that_is_used_again_at_once_is_another_starters(tmp_path: Path) -> None:
    for name in ("condor_startd", "condor_starter"):
        shutil.copy(Path(sys.executable).resolve(), tmp_path / name)
    with subprocess.Popen(
        [str(tmp_path / "condor_startd"), "-c", STARTD, str(tmp_path / "condor_starter")],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=ENVIRONMENT,
    ) as startd:  # fmt: skip
        assert startd.stdin is not None
        assert startd.stdout is not None

        said = (line.strip() for line in startd.stdout if line.strip())
        starters = starters_in(tmp_path)
        pid = int(next(said))
        wait(lambda: starters.look(0.0)[0])
        (first,) = starters.look(0.1)[0]
        startd.stdin.write("\n")
        assert int(next(said)) == pid
        wait(lambda: (pid, read_process(pid).started) in starters.look(0.2)[0])
        assert starters.look(0.3)[0] == {(pid, read_process(pid).started)} != {first}
        startd.stdin.write("\n")
        starters.close()


def test_a_kernel_that_lists_no_connections_is_an_error_and_not_a_worker_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = inet_diag.dump_request

    def without_tcp(family: socket.AddressFamily, sequence: int) -> bytes:
        # As a kernel without tcp_diag answers, does this one about a protocol that it has no such module for.
        asked = bytearray(whole(family, sequence))
        asked[17] = 200
        return bytes(asked)

    monkeypatch.setattr(inet_diag, "dump_request", without_tcp)
    sockets = Sockets()
    with pytest.raises(FileNotFoundError):
        sockets.open()
    sockets.close()


def test_looks_that_jobs_ends_ask_for_take_no_more_than_their_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[tuple[float, float]] = []

    def look(transfers: Transfers) -> bool:
        began, own = time.monotonic(), time.thread_time()
        while time.thread_time() - own < 0.02:
            pass
        looks.append((began, time.monotonic()))
        # Jobs end all the time.
        transfers._wake.set()
        return True

    monkeypatch.setattr(Transfers, "_look", look)
    made = Site(tmp_path)
    try:
        wait(lambda: len(looks) >= 4)
    finally:
        made.close()
    # A tenth is 0.02 of 0.2 s.
    assert min(after[0] - before[1] for before, after in pairwise(looks)) > 0.17


def test_ends_that_a_newer_connection_has_are_that_connections_alone() -> None:
    treated = {ONE: Treatment(rate=1_000_000), TWO: Treatment(block=True)}
    here, there = ip_address("127.0.0.1"), ip_address("192.0.2.9")
    old, new = (Connection(cookie, 9, there, 0, 0, here, (40000, 9618)) for cookie in (1, 2))
    # The end of the old one was never reported, so for some looks both are followed.
    first = limits.table("lark_hostile", treated, [(ONE, old)])
    both = limits.table("lark_hostile", treated, [(ONE, old), (TWO, new)])
    (element,) = both.sets["o4"].elements
    assert element.endswith("goto o_200_2")
    try:
        run(["nft", "-f", "-"], change(first, None))
        run(["nft", "-f", "-"], change(both, first))
        assert "goto o_200_2" in run(["nft", "list", "map", "inet", "lark_hostile", "o4"])
        # No rule is about the job of the newer one.
        none = limits.table("lark_hostile", {ONE: treated[ONE]}, [(ONE, old), (TWO, new)])
        assert none.sets["o4"].elements == ()
    finally:
        run(["nft", "-f", "-"], delete(limits.FAMILY, "lark_hostile"))


def test_labels_that_a_killed_service_has_left_go_before_anybody_is_asked() -> None:
    FlowLabels(PREFIX).put({(ip_address("3fff::1"), 1, FAR6, 2): CMS})
    name = f"{PREFIX}_scitags"
    assert name in run(["nft", "list", "tables"])
    # Ports are used again, by others' connections; the controller is away, or there is no job to ask for.
    with fireflies(Link(None), {}):
        wait(lambda: name not in run(["nft", "list", "tables"]))


def ignored(*_: object) -> None:
    """Take no notice."""


RECORDS = tuple(
    SimpleNamespace(starter=pid, started=at, id=job, machine="w", over=False)
    for (pid, at), job in ((ONE, "a"), (TWO, "b"))
)


@pytest.mark.parametrize("answer", [Noted(frozenset(), ()), None])
def test_limits_of_an_earlier_service_go_where_the_controller_has_no_rules_any_more(answer: Noted | None) -> None:
    treated: list[Mapping[Key, Treatment | None]] = []
    transfers = SimpleNamespace(treat=treated.append, local=ignored, knows_local=True)
    reports = TransferReports(
        cast("ControllerLink", SimpleNamespace(transfers=lambda *_: answer)), cast("Transfers", transfers),
        lambda: cast("tuple[Record, ...]", RECORDS),
        cast("Fireflies", SimpleNamespace(revise=ignored, informed=True, told=False)),
    )  # fmt: skip
    for _ in range(2):
        reports._ask()
    assert treated == [{ONE: None, TWO: None}]


def test_what_is_moved_after_an_hour_of_rest_is_no_mean_over_that_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    posts: list[Mapping[str, Mapping[str, Any]]] = []
    clock, sums = SimpleNamespace(now=1000.0), {ONE: Sums(5, 0, 0, 0, 1)}
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)

    def post(_: str, moved: Mapping[str, Mapping[str, Any]]) -> Noted:
        posts.append(moved)
        return Noted(frozenset(), ())

    def written(keys: set[Key]) -> dict[Key, Sums]:
        return {key: each for key, each in sums.items() if key in keys}

    transfers = SimpleNamespace(written=written, treat=ignored, local=ignored)
    reports = TransferReports(
        cast("ControllerLink", SimpleNamespace(transfers=post)), cast("Transfers", transfers),
        lambda: cast("tuple[Record, ...]", RECORDS), cast("Fireflies", SimpleNamespace(revise=ignored)),
    )  # fmt: skip
    for _ in range(360):
        reports.report()
        clock.now += 10
    # The whole, and that nothing more came.
    assert [each["a"].get("within") for each in posts] == [None, 10_000]
    sums |= {ONE: Sums(9, 0, 0, 0, 2), TWO: Sums(7, 0, 0, 0, 1)}
    reports.report()
    assert {job: row["within"] for job, row in posts[-1].items()} == {"a": 10_000, "b": 10_000}
