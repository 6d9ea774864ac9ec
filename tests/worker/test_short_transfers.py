"""Many short transfers on one worker cost the controller as much as one, and the worker one transaction a look at most.

What is done is counted, and not timed.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Collection, Iterator, Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any, cast

import pytest

from lark_common.transfers import Treatment
from lark_worker.controller_link import ControllerLink, Noted
from lark_worker.network.commands import run
from lark_worker.records.known_jobs import Key
from lark_worker.records.records import Record
from lark_worker.transfers import enforcement
from lark_worker.transfers.book import MOST_OF_STARTER, Book
from lark_worker.transfers.fireflies import Fireflies
from lark_worker.transfers.following import Transfers
from lark_worker.transfers.inet_diag import Connection
from lark_worker.transfers.reports import TransferReports
from lark_worker.transfers.sockets import Sockets
from tests.fixtures.service import wait
from tests.worker.test_transfer_book import NEAR, ONE
from tests.worker.test_transfers import Site, serving

RATE = Treatment(rate=100_000_000_000)


class Link:
    """The controller as a worker's reports see it: it takes all, and has a rule for every job."""

    def __init__(self) -> None:
        self.posts: list[dict[str, Any]] = []

    def transfers(self, machine: str, moved: Mapping[str, Mapping[str, Any]]) -> Noted:
        self.posts.append(dict(moved))
        return Noted(frozenset(), (ip_network("10.0.0.0/8"),), dict.fromkeys(moved, RATE))


class Quiet:
    """Fireflies where the policy has none."""

    told, informed = False, True

    def revise(self, revision: str) -> None:
        """Take no revision."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.close()
    subprocess.run(["nft", "delete", "table", "inet", "lark_transfers"], check=False, capture_output=True)


@pytest.mark.parametrize("number", [5, 500])
def test_a_report_has_one_row_however_many_connections_there_were(
    site: Site, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    transactions: list[int] = []

    def counted(command: list[str], given: str = "") -> str:
        transactions.append(len(given))
        return run(command, given)

    monkeypatch.setattr(enforcement, "run", counted)
    starter = site.starter()
    record = Record(
        "a", 1, "boot", *starter.key, "s#1.0#1", 1, "slot1", "alice", "n", "p", "m", "none", "static", "",
        machine="worker1",
    )  # fmt: skip
    link = Link()
    reports = TransferReports(
        cast("ControllerLink", link), site.transfers, lambda: (record,), cast("Fireflies", Quiet())
    )
    with serving(size=1000) as server:
        go = site.folder / "go"
        arguments = f"'127.0.0.1', {server.port}, 1000, 0, True"
        starter.do(
            f"def many():\\n first = move('127.0.0.1', {server.port}, 1000, 0, False)\\n"
            f" while not os.path.exists({str(go)!r}): time.sleep(0.01)\\n"
            f" [move({arguments}).close() for _ in range({number})]\\n first.close()\\n"
        )
        starter.do("copied = os.fork() or (many(), os._exit(0))")
        wait(lambda: site.moved(starter)[0] >= 1000)
        reports.report()
        assert [list(post) for post in link.posts] == [["a"]]
        wait(lambda: site.transfers.in_place(starter.key)[0] == RATE)
        first_look = site.transfers._done
        transactions.clear()
        server.release.set()
        go.touch()
        wait(lambda: site.moved(starter)[0] + site.transfers.missed.unseen_bytes >= 1000 * (number + 1))
        wait(lambda: site.transfers.followed == 0)
        reports.report()
        looks = site.transfers._done - first_look
    # One row of the job's sums, or none where nobody saw who held any of them.
    assert len(link.posts) <= 2
    assert all(list(post) == ["a"] for post in link.posts)
    assert len(transactions) <= looks + 1


def test_connections_that_end_with_their_copy_between_two_looks_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This test looks, and nobody else does.
    monkeypatch.setattr(Transfers, "_run", lambda _: None)
    made = Site(tmp_path)
    starter, go, over = made.starter(), tmp_path / "go", list[Connection]()
    with contextlib.closing(made), serving(size=1000) as server, contextlib.closing(Sockets()) as notices:
        server.release.set()
        starter.do(
            f"def many():\\n while not os.path.exists({str(go)!r}): time.sleep(0.01)\\n"
            f" [move('127.0.0.1', {server.port}, 1000, 0, True).close() for _ in range(20)]\\n"
        )
        starter.do("copied = os.fork() or (many(), os._exit(0))")
        wait(made.transfers._look)
        go.touch()
        starter.do("os.waitpid(copied, 0)")

        def both_ends_are_noticed() -> bool:
            over.extend(each for each in notices.ended() if server.port in each.ports)
            return len(over) == 40

        wait(both_ends_are_noticed)
        assert made.transfers._look()
        # The first look may have come before the notices.
        assert made.transfers._look()
        assert made.transfers.missed.unseen == 40
        # Now nothing is moved.
        assert not made.transfers._look()


def test_holders_are_looked_for_once_a_look_and_no_more_connections_are_followed_than_the_limit() -> None:
    book, asked = Book(), list[int]()
    book.use((ip_network("10.0.0.0/8"),))

    def owners(inodes: Collection[int]) -> dict[int, Key]:
        asked.append(len(inodes))
        return dict.fromkeys(inodes, ONE)

    # All are others each time, and the ends of those before are in the kernel's notices.
    before: list[Connection] = []
    for look in range(5):
        there = [Connection(cookie, cookie, NEAR, 1000, 0) for cookie in range(10_000 * look + 1, 10_000 * look + 2001)]
        book.look(float(look), there, before, owners)
        before = there
        assert len(book) == MOST_OF_STARTER
    assert len(asked) == 5
    assert book.missed.beyond == 5 * (2000 - MOST_OF_STARTER)
    # What was followed is counted whole; the rest is said to be unseen or beyond the limit, and nothing of it is kept.
    book.look(5.0, [], before, owners)
    assert (len(book), len(book._others)) == (0, 0)
    assert book.sums(ONE).bytes_in == 5 * MOST_OF_STARTER * 1000
