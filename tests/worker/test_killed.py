"""kill -9 of the service before each step of making and of removing a network: the next service does the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.worker.pool import Pool, Starter, eventually
from tests.worker.test_jobs import value

pytestmark = pytest.mark.ovs

# More programs than are run for a job.
STEPS = 20


@contextmanager
def service(pool: Pool, below: Sequence[str] = ()) -> Iterator[subprocess.Popen[bytes]]:
    """The service, once it listens; ``below`` is a command that starts it."""
    tell(pool)
    pool.socket.unlink(missing_ok=True)
    process = subprocess.Popen(
        [*below, sys.executable, "-m", "tests.worker.service_process", str(pool.folder / "ads.json"), count(pool)],
        env={**os.environ, **pool.environment},
        stderr=subprocess.DEVNULL,
    )
    try:
        eventually(pool.socket.exists, 30)
        yield process
    finally:
        process.terminate()
        process.wait(30)


def tell(pool: Pool) -> None:
    """Tell the service of the starters that there are by now."""
    new = pool.folder / "ads.new"
    new.write_text(json.dumps(pool.startd.ads))
    new.replace(pool.folder / "ads.json")


def count(pool: Pool) -> Path:
    return pool.folder / "programs_left"


@contextmanager
def killed(pool: Pool, step: int) -> Iterator[None]:
    """The service that runs kills itself, as by kill -9, before the ``step``th program from here on."""
    count(pool).write_text(str(step))
    try:
        yield
    finally:
        count(pool).unlink()


def works(pool: Pool, starter: Starter, number: int) -> None:
    """The job starts, is whole, and ends without a trace."""
    assert value(pool.hook(starter, "start", "alice", number), "LarkState") == "enforced"
    assert "inet 10.64." in pool.inside(starter, "ip address show eth0")[1]
    starter.kill()
    eventually(lambda: pool.leftovers() == [])
    eventually(lambda: list(pool.client.jobs()) == [])


def test_a_network_that_was_begun_is_made_when_it_is_asked_for_again(pool: Pool) -> None:
    pool.stop_service()
    step, made = 0, False
    begun: Starter | None = None
    while not made and step < STEPS:
        # Each service makes what the one before it has begun, and is then killed itself, a step later.
        with service(pool) as running:
            if begun is not None:
                works(pool, begun, step)
            step += 1
            begun = pool.starter(step, "alice")
            tell(pool)
            with killed(pool, step):
                made = 'LarkState = "enforced"' in pool.hook(begun, "start", "alice", step)
                if not made:
                    running.wait(30)
    assert begun is not None
    with service(pool):
        works(pool, begun, step)
    assert 4 < step < STEPS - 1


def test_a_network_that_was_half_removed_is_removed(pool: Pool) -> None:
    pool.stop_service()
    step, removed = 0, False
    while not removed and step < STEPS:
        # Each service removes what the one before it has left, and is then killed itself, a step later.
        with service(pool) as running:
            eventually(lambda: pool.leftovers() == [])
            eventually(lambda: list(pool.client.jobs()) == [])
            step += 1
            starter = pool.starter(step, "alice")
            tell(pool)
            assert value(pool.hook(starter, "start", "alice", step), "LarkState") == "enforced"
            with killed(pool, step):
                starter.kill()
                eventually(lambda ended=running.poll: ended() is not None or pool.leftovers() == [])
            removed = running.poll() is None
    assert 2 < step < STEPS - 1
