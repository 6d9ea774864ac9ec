"""Starters below a startd: found, told from what rests, and what they move as their jobs' users."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lark_worker.identity.processes import read_process
from lark_worker.transfers.starters import REST_SECONDS, STARTD_SECONDS, Starters
from tests.fixtures.service import wait
from tests.worker.test_transfers import Starter, serving, starters_in


def test_a_startd_may_have_a_thousand_starters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starter, starters = Starter(tmp_path, others=1000), starters_in(tmp_path)
    assert starters.look(0.0)[0] == {starter.key}
    # The kernel's list may lack a child for once; what was moved for it must not be forgotten by that.
    monkeypatch.setattr(starters, "_children", lambda *_: ())
    assert starters.look(0.1)[0] == {starter.key}
    starter.kill()
    wait(lambda: not starters.look(0.2)[0])
    starters.close()
    starter.close()


def test_a_starter_that_was_seen_before_it_ran_its_program_is_a_starter(tmp_path: Path) -> None:
    python = Path(sys.executable).resolve()
    for name in ("condor_startd", "condor_starter"):
        shutil.copy(python, tmp_path / name)
    fork = (
        "import os, sys\nif child := os.fork():\n os.waitpid(child, 0)\nelse:\n print(os.getpid(), flush=True)\n"
        f" sys.stdin.readline()\n os.execv('{tmp_path}/condor_starter', ['s', '-c', 'print(flush=True); input()'])"
    )
    with subprocess.Popen(
        [str(tmp_path / "condor_startd"), "-c", fork], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        bufsize=1, env={"PYTHONHOME": sys.base_prefix, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    ) as startd:  # fmt: skip
        assert startd.stdin is not None
        assert startd.stdout is not None
        starters, pid = starters_in(tmp_path), int(startd.stdout.readline())
        assert starters.look(0.0)[0] == frozenset()
        startd.stdin.write("\n")
        startd.stdout.readline()
        assert starters.look(0.1)[0] == {(pid, read_process(pid).started)}
        startd.stdin.write("\n")
        starters.close()


def held(starters: Starters, pid: int) -> set[int]:
    """The sockets that a process holds."""
    return starters._sockets(pid, 4096)[0]


def test_what_a_starter_moves_itself_as_its_jobs_user_is_a_transfer(tmp_path: Path) -> None:
    starter, starters = Starter(tmp_path), starters_in(tmp_path)

    def connect(name: str) -> int:
        before = held(starters, starter.pid)
        starter.do(f"{name} = socket.create_connection(({server.address!r}, {server.port}))")
        (inode,) = held(starters, starter.pid) - before
        return inode

    with serving() as server:
        # To its shadow, since its beginning; to its startd, for some time.
        connect("shadow")
        assert starters.look(0.0)[1] == []
        connect("startd")
        assert starters.look(REST_SECONDS)[1] == []
        assert starters.look(2 * REST_SECONDS)[1] == []
        # A connection may be made before it acts as its job's user, and then.
        early = connect("early")
        assert starters.look(3 * REST_SECONDS)[1] == []
        starter.do("os.seteuid(1)")
        checkpoint = connect("checkpoint")
        job = connect("job")
        at, every = 3 * REST_SECONDS + 1, held(starters, starter.pid)
        # As at a job's start: once is no transfer.
        assert starters.owners(starters.look(at)[1], every) == {}
        for _ in range(2):
            movers = starters.look(at)[1]
            assert starters.owners(movers, every, near={job}) == {early: starter.key, checkpoint: starter.key}
        starter.do("os.seteuid(0)")
        assert starters.look(at)[1] == []
        # What it keeps is its own after a while, and is so for good.
        for looks in (4, 5):
            starters.look(looks * REST_SECONDS)
        starter.do("os.seteuid(1)")
        starters.look(6 * REST_SECONDS)
        assert starters.owners(starters.look(6 * REST_SECONDS)[1], every) == {}
    starters.close()
    starter.close()


def test_a_checkpoint_is_a_transfer_while_a_session_goes_on(tmp_path: Path) -> None:
    """A starter connects first and changes its user later, and a look between sees its usual children alone."""
    starter, starters = Starter(tmp_path), starters_in(tmp_path)
    starter.do("session = subprocess.Popen(['/bin/sleep', '60'], env={})")
    with serving() as server:
        for at in (0.0, 0.25):
            assert starters.look(at)[1] == []
        before = held(starters, starter.pid)
        starter.do(f"checkpoint = socket.create_connection(({server.address!r}, {server.port}))")
        assert starters.look(0.5)[1] == []
        for at in (0.75, REST_SECONDS + 1):
            starter.do("os.seteuid(1)")
            starters.look(at)
            (mover,) = starters.look(at)[1]
            every = held(starters, starter.pid)
            assert starters.owners([mover], every) == dict.fromkeys(every - before, starter.key)
            # As itself it is at rest again, at once.
            starter.do("os.seteuid(0)")
            assert starters.look(at)[1] == []
        starter.do("session.kill(); session.wait()")
    starters.close()
    starter.close()


def test_a_startd_that_is_root_for_moments_leaves_htcondors_account_its_rest(tmp_path: Path) -> None:
    starter, starters = Starter(tmp_path), starters_in(tmp_path)
    starter.startd_acts_as(1)
    starter.do("os.seteuid(1)")
    looks = [STARTD_SECONDS * each for each in range(20)]
    assert [starters.look(at)[1] for at in looks[:10]] == [[]] * 10
    starter.startd_acts_as(0)
    assert [starters.look(at)[1] for at in looks[10:]] == [[]] * 10
    starters.close()
    starter.close()


def test_a_startd_that_acts_as_a_jobs_user_for_a_moment_hides_no_checkpoint(tmp_path: Path) -> None:
    starter, starters = Starter(tmp_path), starters_in(tmp_path)
    looks = [STARTD_SECONDS * each for each in range(20)]
    assert [starters.look(at)[1] for at in looks] == [[]] * 20
    starter.startd_acts_as(1)
    starters.look(looks[-1] + STARTD_SECONDS)
    starter.startd_acts_as(0)
    starter.do("os.seteuid(1)")
    starters.look(looks[-1] + STARTD_SECONDS + 0.25)
    assert len(starters.look(looks[-1] + STARTD_SECONDS + 0.5)[1]) == 1
    starters.close()
    starter.close()


def test_a_plugin_of_a_starter_that_moves_files_itself_is_its_jobs_and_an_older_child_is_not(tmp_path: Path) -> None:
    starter, starters = Starter(tmp_path), starters_in(tmp_path)
    program = "import socket, sys; made = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); sys.stdin.read()"
    with serving() as server:
        child = f"subprocess.Popen(['/usr/bin/python3', '-c', {program!r}, '{server.port}'], stdin=-1, env={{}})"
        starter.do(f"session = {child}")
        (session,) = starters._children(starter.pid)
        wait(lambda: len(held(starters, session)) == 1)
        assert starters.look(0.0)[1] == []
        starter.do(f"os.seteuid(1); plugin = {child}")
        (plugin,) = set(starters._children(starter.pid)) - {session}
        wait(lambda: len(held(starters, plugin)) == 1)
        starters.look(1.0)
        movers = starters.look(1.0)[1]
        every = held(starters, session) | held(starters, plugin)
        assert starters.owners(movers, every) == dict.fromkeys(held(starters, plugin), starter.key)
        starter.do("plugin.stdin.close(); session.stdin.close(); plugin.wait(); session.wait()")
    starters.close()
    starter.close()
