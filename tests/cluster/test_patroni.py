"""Two controllers on a PostgreSQL that Patroni looks after: its servers die, come back, and change places in order.

What a post was answered stands, since Patroni replicates synchronously here; whether it was asked at the active
controller or at the one that stands by.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.test_processes import Instance, took_over, until
from tests.fixtures.patroni import Patroni

pytestmark = pytest.mark.postgres


@pytest.fixture
def patroni() -> Iterator[Patroni]:
    with tempfile.TemporaryDirectory(prefix="lark-patroni-", dir="/tmp", ignore_cleanup_errors=True) as directory:
        made = Patroni(Path(directory))
        try:
            made.start_all()
            yield made
        finally:
            made.stop()


def test_servers_that_die_and_change_places_lose_nothing_and_no_controller(patroni: Patroni, tmp_path: Path) -> None:
    a, b = (Instance(name, tmp_path, patroni.url) for name in "ab")
    try:
        a.start()
        until(a.is_active)
        b.start()
        until(b.stands_by)
        posted = {a.post(1), b.post(11)}

        def goes_on(number: int) -> None:
            # Requests get 503 until the promotion, asked at either; then both go on by themselves.
            until(a.is_active)
            posted.add(a.post(number))
            until(lambda: b.ask("/v1/overview")[0] == 200)
            posted.update((b.post(number), b.post(10 + number)))
            assert a.live() == b.live() == posted

        lost = patroni.leader()
        patroni.kill(lost)
        patroni.until(lambda: patroni.leader() not in ("", lost))
        goes_on(2)
        # The server of before comes back as the one that follows, and nothing of it counts.
        patroni.start(lost)
        patroni.until(lambda: patroni.follower() == lost)
        goes_on(3)
        patroni.switch_over()
        assert patroni.leader() == lost
        goes_on(4)
        # The database's own trouble is no reason for a takeover.
        assert len(took_over(a)) == len(took_over(b)) == 1
        assert b.stands_by()
        # And one that follows such a database takes over from one that dies: all that was answered stands.
        a.stop()
        until(b.is_active)
        assert b.live() == posted
        assert len(took_over(b)) == 2
    finally:
        for each in (a, b):
            if each.process is not None and each.process.poll() is None:
                each.process.kill()
                each.process.wait()
