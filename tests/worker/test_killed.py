"""kill -9 of the service before each step of making and of removing a network: the next service does the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tests.worker.pool import Pool, Starter, eventually
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs

# More programs than are run for a job.
STEPS = 20


@contextmanager
def service(pool: Pool, step: int = 0, below: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """The service, once it listens; with ``step`` it kills itself before that many programs.

    ``below`` is a command that starts it.
    """
    ads = pool.folder / "ads.json"
    ads.write_text(json.dumps(pool.startd.ads))
    pool.socket.unlink(missing_ok=True)
    process = subprocess.Popen(
        [*below, sys.executable, "-m", "tests.worker.service_process", str(ads), *([str(step)] if step else [])],
        env={**os.environ, **pool.environment},
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(pool.socket.exists, 30)
        yield process
    finally:
        process.terminate()
        process.wait(30)


def works(pool: Pool, starter: Starter, number: int) -> None:
    """The job starts, is whole, and ends without a trace."""
    assert value(pool.hook(starter, "start", "alice", number), "LarkState") == "enforced"
    assert "inet 10.64." in pool.inside(starter, "ip address show eth0")[1]
    starter.kill()
    eventually(lambda: pool.leftovers() == [])
    eventually(lambda: list(pool.client.jobs()) == [])


def test_a_network_that_was_begun_is_made_when_it_is_asked_for_again(pool: Pool) -> None:
    pool.stop_service()
    for step in range(1, STEPS):
        starter = pool.starter(step, "alice")
        with service(pool, step) as killed:
            made = 'LarkState = "enforced"' in pool.hook(starter, "start", "alice", step)
            if not made:
                killed.wait(30)
        with service(pool):
            works(pool, starter, step)
        if made:
            break
    assert 4 < step < STEPS - 1


def test_a_network_that_was_half_removed_is_removed(pool: Pool) -> None:
    pool.stop_service()
    for step in range(1, STEPS):
        starter = pool.starter(step, "alice")
        with service(pool):
            assert value(pool.hook(starter, "start", "alice", step), "LarkState") == "enforced"
        with service(pool, step) as killed:
            starter.kill()
            eventually(lambda ended=killed.poll: ended() is not None or pool.leftovers() == [])
            if killed.poll() is None:
                break
        with service(pool):
            eventually(lambda: pool.leftovers() == [])
            eventually(lambda: list(pool.client.jobs()) == [])
    assert 2 < step < STEPS - 1
