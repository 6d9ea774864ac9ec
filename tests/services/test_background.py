"""Background work goes on: with the database away, with its file deleted, after a mistake."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.classads.ads import parse_post
from lark_controller.api.metrics import Metrics
from lark_controller.jobs.job import Directory, JobState
from lark_controller.policies.decide import needed_attributes
from lark_controller.policies.file import load
from lark_controller.services import background
from lark_controller.services.background import GATHER, LOOK, Upkeep
from lark_controller.services.external import ExternalAddresses
from lark_controller.services.feed import Feed
from lark_controller.services.lease_clock import LeaseClock
from lark_controller.services.registration import Registration
from lark_controller.services.reservations import Reservations
from lark_controller.store import Store
from tests.fixtures.controllers import (
    POLICY,
    an_edge,
    connect,
    post,
    running,
    until,
)
from tests.fixtures.databases import a_run, sqlite_with_tables
from tests.store.test_reservations import flow
from tests.store.test_runs import put


@contextmanager
def kept_up(
    path: Path,
    check: Callable[[int], object] = lambda _: None,
    clock: Callable[[], float] = time.time,
    lease: float = 0.4,
    datapaths: Callable[[], dict[int, float | None]] = lambda: {1: -math.inf, 2: -math.inf},
    check_seconds: float = 0.2,
    steady: Callable[[], float] = time.monotonic,
) -> Iterator[tuple[Store, Upkeep]]:
    """Upkeep of a store with two switches, each checked ten times a second."""
    store = Store.open(sqlite_with_tables(path / "lark.db"))
    feed = Feed(Directory(), lambda job: None, lambda number: None, LeaseClock(clock, steady))
    none = Reservations(store, feed)
    registration = Registration(store, 900, feed, none)
    registration.use(load(POLICY), needed_attributes(load(POLICY)))
    upkeep = Upkeep(
        store, registration, none, ExternalAddresses(store, feed), Metrics(), lease_seconds=lease,
        check_seconds=check_seconds, retention=0, datapaths=datapaths, check=check, note_late=lambda: None,
        look_again=registration.look_again, clock=feed.clock,
    )  # fmt: skip
    upkeep.start()
    try:
        yield store, upkeep
    finally:
        upkeep.stop()
        store.close()


def errors(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [
        (record.getMessage(), str(record.__dict__["lark_fields"].get("at")))
        for record in caplog.records
        if record.levelname == "ERROR"
    ]


def test_a_switch_that_was_compared_as_it_connected_is_not_checked_beside_it(tmp_path: Path) -> None:
    checked: list[int] = []
    connects = [True]
    compared: dict[int, float | None] = dict.fromkeys(range(1, 4001), -math.inf)
    coming = iter(range(1, 3001))

    def datapaths() -> dict[int, float | None]:
        # One more has connected whenever a check might be due.
        if (datapath := next(coming, None)) is not None and connects[0]:
            compared[datapath] = time.monotonic()
        return dict(compared)

    def check(datapath: int) -> None:
        checked.append(datapath)
        compared[datapath] = time.monotonic()

    with kept_up(tmp_path, check, datapaths=datapaths, check_seconds=600.0):
        until(lambda: compared[5] != -math.inf)
        assert checked == []
        connects[0] = False
        until(lambda: len(checked) >= 2)
    assert min(checked) > 5


def test_one_that_connects_again_and_again_does_not_keep_others_from_being_checked(tmp_path: Path) -> None:
    checked: list[int] = []

    def datapaths() -> dict[int, float | None]:
        return {1: time.monotonic(), 2: -math.inf}

    with kept_up(tmp_path, checked.append, datapaths=datapaths):
        until(lambda: checked.count(2) >= 3)


def test_a_check_that_fails_does_not_end_the_checks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[int] = []

    def check(datapath: int) -> None:
        seen.append(datapath)
        if datapath == 1:
            raise KeyError("a port that has gone meanwhile")

    with kept_up(tmp_path, check):
        until(lambda: seen.count(2) >= 2)
    assert any(record.getMessage() == "a switch could not be checked" for record in caplog.records)


def test_each_check_takes_one_look_at_all_switches(tmp_path: Path) -> None:
    looks, checked = [0], list[int]()

    def datapaths() -> dict[int, float | None]:
        looks[0] += 1
        return {1: -math.inf, 2: -math.inf}

    with kept_up(tmp_path, checked.append, datapaths=datapaths, check_seconds=0.04):
        until(lambda: len(checked) >= 30)
    assert looks[0] < 1.5 * len(checked)


def test_states_are_written_after_a_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with kept_up(tmp_path) as (store, upkeep):
        job = put(store, a_run(1, lease_until=time.time() + 900)).job
        real, calls = store.runs.set_states, []

        def fail_once(states: list[tuple[str, JobState, str]]) -> int:
            calls.append(states)
            if len(calls) == 1:
                raise ZeroDivisionError("a mistake")
            return real(states)

        monkeypatch.setattr(store.runs, "set_states", fail_once)
        upkeep.state_changed(replace(job, state=JobState.PENDING))
        until(lambda: next(iter(store.runs.live())).state is JobState.PENDING)
        # Written first, then no longer kept to be written.
        until(lambda: upkeep.unwritten == {})
    assert ("upkeep failed", "states") in errors(caplog)


def test_a_clock_that_jumps_or_a_machine_that_stood_still_ends_no_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = [0.0]
    with kept_up(tmp_path, clock=lambda: time.time() + ahead[0], lease=8.0) as (store, upkeep):
        job = put(store, a_run(1, lease_until=time.time() + 20)).job
        registration = upkeep._registration
        registration.use(load(POLICY), needed_attributes(load(POLICY)), store.runs.loaded(0.0))
        # A renewal by the clock of before, which is not in the store yet.
        registration.renew(job.id)
        ahead[0] = 10_000.0
        until(lambda: any("leases begin anew" in record.getMessage() for record in caplog.records))
        until(lambda: (found := store.runs.find(job.id)) is not None and found.lease_until > time.time() + 10_000)
        found = store.runs.find(job.id)
        assert found is not None
        assert found.live


def test_a_process_that_stands_still_in_the_midst_of_a_turn_ends_no_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers could not renew meanwhile, and the turn has looked already at what went by unseen."""
    stood = [0.0]

    def steady() -> float:
        return time.monotonic() + stood[0]

    def wall() -> float:
        return time.time() + stood[0]

    monkeypatch.setattr(background, "time", SimpleNamespace(monotonic=steady, time=wall))
    with kept_up(tmp_path, clock=wall, steady=steady, lease=8.0) as (store, upkeep):
        job = put(store, a_run(1, lease_until=time.time() + 20)).job
        registration = upkeep._registration
        registration.use(load(POLICY), needed_attributes(load(POLICY)), store.runs.loaded(0.0))
        ping = store.ping

        def stand_still() -> None:
            stood[0] = 10_000.0
            ping()

        monkeypatch.setattr(store, "ping", stand_still)
        until(lambda: any("leases begin anew" in record.getMessage() for record in caplog.records))
        until(lambda: (found := store.runs.find(job.id)) is not None and found.lease_until > time.time() + 10_000)
        found = store.runs.find(job.id)
        assert found is not None
        assert found.live


def test_a_clock_that_jumps_ends_nothing_that_was_promised_until_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = [0.0]
    with kept_up(tmp_path, clock=lambda: time.time() + ahead[0]) as (store, _):
        made = store.reservations.admit(flow(1, until=time.time() + 3600), time.time(), "ops")
        ahead[0] = 10_000.0
        until(lambda: any("leases begin anew" in record.getMessage() for record in caplog.records))
        over = store.reservations.admit(flow(1, until=time.time() - 1), time.time(), "ops")
        until(lambda: over.id not in {each.id for each in store.reservations.flows(0.0)})
        assert [each.id for each in store.reservations.flows(0.0)] == [made.id]


def test_a_lease_that_was_given_by_a_clock_that_was_ahead_ends_in_time(tmp_path: Path) -> None:
    ahead = [10_000.0]
    with kept_up(tmp_path, clock=lambda: time.time() + ahead[0], lease=0.4) as (store, upkeep):
        registration = upkeep._registration
        machine = 'Machine = "w"\nName = "s@w"\nLarkInnerAddressIPv4 = "10.64.0.1"\n'
        ads = f'Owner = "a"\nGlobalJobId = "s#1.0#1"\n------\n{machine}'
        job = registration.register(*parse_post(ads.encode(), "text/plain"), "hook").job
        ahead[0] = 0.0
        until(lambda: (found := store.runs.find(job.id)) is not None and not found.live)


def test_a_database_file_that_somebody_deletes_is_said_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with kept_up(tmp_path):
        for path in tmp_path.glob("lark.db*"):
            path.unlink()
        until(lambda: ("upkeep failed", "the database itself") in errors(caplog))
    assert errors(caplog).count(("upkeep failed", "the database itself")) == 1


def test_a_stop_in_the_midst_of_work_leaves_no_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: died.append(f"{args.thread}: {args.exc_value}"))
    with FakeNetwork() as network, running(tmp_path, lease=0.3, check_seconds=0.05) as controller:
        edges = [an_edge(datapath) for datapath in (1, 2, 3)]
        for edge in edges:
            connect(network, controller, edge)
        for number in (1, 2, 3):
            post(controller, number, datapath=number)
    assert died == []
    assert errors(caplog) == []


@pytest.mark.parametrize(("switches", "pause"), [(0, GATHER), (2, LOOK)])
def test_where_no_check_is_due_it_rests(tmp_path: Path, switches: int, pause: float) -> None:
    asked: list[float] = []

    def datapaths() -> dict[int, float | None]:
        asked.append(time.monotonic())
        return dict.fromkeys(range(switches), asked[0])

    with kept_up(tmp_path, datapaths=datapaths, check_seconds=600.0):
        began = time.monotonic()
        threading.Event().wait(1.5)
        until(lambda: len(asked) >= 2)
        took = time.monotonic() - began
    # Without a pause they were many thousands.
    assert len(asked) <= took / pause + 3
