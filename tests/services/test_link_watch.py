"""Those who wait for changes of links and paths are told once there are any, and not more often than they may be."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from lark_common.errors import StoreError
from lark_controller.api.reservations import LinkStatus
from lark_controller.qos.reservation import Reservation, ReservationKind
from lark_controller.services.link_watch import LinkWatch
from tests.worker.pool import eventually

LONG = 60.0
KEY = "access:one one>s"


class Links:
    """One link, and a reserved flow over it; counts how often it is read."""

    def __init__(self) -> None:
        self.reserved, self.reads = 0.0, 0
        self.fault, self.pending = "", ""

    def links(self) -> tuple[LinkStatus, ...]:
        self.reads += 1
        if self.fault:
            raise StoreError(self.fault)
        return (LinkStatus("access:one", "one", "s", "full", 100.0, self.reserved, ("one", "s")),)

    def flows(self) -> dict[str, list[Reservation]]:
        holds = {KEY: round(self.reserved * 1000)}
        made = Reservation(7, f"{7:016x}", ReservationKind.FLOW, holds[KEY], "one", "two", holds, "job", "peer")
        return {"one": [made]} if self.reserved else {}

    def unenforced(self, flow: Reservation) -> str:
        return self.pending if flow.job == "job" else ""


def waiting(watch: LinkWatch, count: int) -> Callable[[], bool]:
    return lambda: len(watch._changed._waiters) == count  # type: ignore[attr-defined]


def test_a_change_is_told_to_all_who_wait_and_read_once() -> None:
    links = Links()
    watch = LinkWatch(links.links, links.flows, links.unenforced)
    first = watch.links("", 0)
    assert watch.paths("One", "", 0).items == ()
    with ThreadPoolExecutor(20) as pool:
        found = [pool.submit(watch.links, first.version, LONG) for _ in range(20)]
        eventually(waiting(watch, 20))
        reads = links.reads
        links.reserved = 30.0
        watch.bump()
        told = {each.result(30) for each in found}
    (seen,) = told
    assert seen.items[0].best_effort == 70.0
    assert seen.version != first.version
    assert links.reads == reads + 1
    (path,) = watch.paths("One", "", 0).items
    assert (path.reservation, path.rate, path.free) == (f"{7:016x}", 30.0, 70.0)


def test_where_nothing_changes_nothing_is_read_and_the_wait_ends() -> None:
    links = Links()
    watch = LinkWatch(links.links, links.flows, links.unenforced)
    first = watch.links("", 0)
    watch.links(first.version, 0.01)
    reads = links.reads
    began = time.monotonic()
    assert watch.links(first.version, 0.3) == first
    assert time.monotonic() - began >= 0.29
    assert links.reads == reads


def test_a_change_that_changes_nothing_wakes_nobody() -> None:
    links = Links()
    watch = LinkWatch(links.links, links.flows, links.unenforced, settle=0.0)
    first = watch.links("", 0)
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(watch.links, first.version, LONG)
        eventually(waiting(watch, 1))
        reads = links.reads
        watch.bump()
        eventually(lambda: links.reads > reads and waiting(watch, 1)())
        assert not found.done()
        watch.close()
        assert found.result(30) == first


def test_a_hundred_changes_are_few_readings_and_the_last_one_is_told() -> None:
    links = Links()
    watch = LinkWatch(links.links, links.flows, links.unenforced, settle=0.2)
    version = watch.links("", 0).version
    stop = threading.Event()

    def follow() -> float:
        seen = version
        while not stop.is_set():
            found = watch.links(seen, 0.5)
            seen, left = found.version, found.items[0].best_effort
            if left == 1.0:
                return left
        return -1.0

    with ThreadPoolExecutor(4) as pool:
        found = [pool.submit(follow) for _ in range(4)]
        for reserved in range(100):
            links.reserved = float(reserved)
            watch.bump()
            time.sleep(0.001)
        assert [each.result(30) for each in found] == [1.0] * 4
    assert links.reads < 50


def test_what_was_told_before_is_never_told_again_as_news() -> None:
    links = Links()
    watch = LinkWatch(links.links, links.flows, links.unenforced, settle=LONG)
    old = watch.links("", 0)
    links.reserved = 10.0
    watch.bump()
    new = watch.links("", 0)
    assert new.version != old.version
    # The reading that is shared is not older than what this one has seen.
    assert watch.links(new.version, 0.2) == new


def test_a_database_that_is_away_ends_the_wait() -> None:
    links = Links()
    watch = LinkWatch(links.links, links.flows, links.unenforced)
    version = watch.links("", 0).version
    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(watch.links, version, LONG)
        eventually(waiting(watch, 1))
        links.fault = "away"
        watch.bump()
        with pytest.raises(StoreError, match="away"):
            found.result(30)
    links.fault = ""
    assert watch.links("", 0).version == version


def test_a_path_that_is_not_enforced_any_more_and_then_again_is_told_each_time() -> None:
    links = Links()
    links.reserved = 30.0
    watch = LinkWatch(links.links, links.flows, links.unenforced, settle=0.0)
    seen = watch.paths("one", "", 0)
    assert [path.pending for path in seen.items] == [""]
    with ThreadPoolExecutor(1) as pool:
        for pending in ("the worker has no uplink as the policy describes them", ""):
            found = pool.submit(watch.paths, "one", seen.version, LONG)
            eventually(waiting(watch, 1))
            links.pending = pending
            watch.bump()
            seen = found.result(30)
            assert [path.pending for path in seen.items] == [pending]


def test_a_version_is_that_of_what_is_shown() -> None:
    one, other = Links(), Links()
    other.reserved = 5.0
    first = LinkWatch(one.links, one.flows, one.unenforced).links("", 0).version
    assert LinkWatch(one.links, one.flows, one.unenforced).links("", 0).version == first
    assert LinkWatch(other.links, other.flows, other.unenforced).links("", 0).version != first
