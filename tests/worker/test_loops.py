"""An unexpected error does not stop the work that the worker service does all the time."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from lab.run import run
from lark_common.log import LOGGER
from lark_common.worker_rules import UNTOLD
from lark_worker.controller_link import Headroom, Renewed
from lark_worker.dhcp import clients
from lark_worker.dhcp.lease import Cache
from lark_worker.identity.process_watch import ProcessWatch
from lark_worker.identity.processes import read_process
from lark_worker.life import leases
from lark_worker.life.leases import LeaseRenewal
from lark_worker.life.removal_retry import RemovalRetry
from lark_worker.life.spool import Spool
from lark_worker.queues import fair_queues as leaves
from lark_worker.queues import tc
from lark_worker.queues.fair_queues import FairQueues
from lark_worker.queues.shaping import Seen, Shaping
from lark_worker.records.records import Record
from lark_worker.rules import feed
from lark_worker.rules.events import TableWatch
from lark_worker.rules.feed import RulesFeed
from lark_worker.settings import load
from lark_worker.transfers.book import NOTHING
from lark_worker.usage import metering
from lark_worker.usage.counters import Counted
from lark_worker.usage.reports import UsageReports
from tests.fixtures.service import wait


class Fails:
    """Fails at the call of that number, counted from 1, and answers at every other."""

    def __init__(self, answer: Callable[..., Any], at: int = 1) -> None:
        self._answer = answer
        self._at = at
        self._lock = threading.Lock()
        self._calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._lock:
            self._calls += 1
            number = self._calls
        if number == self._at:
            raise KeyError("nobody has thought of this")
        return self._answer(*args, **kwargs)


class Loop(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


@contextmanager
def started(loop: Loop) -> Iterator[None]:
    loop.start()
    try:
        yield
    finally:
        loop.stop()


def some(**methods: Any) -> Any:
    """A part of the service of which no more than this is asked."""
    return SimpleNamespace(**methods)


def a_job(number: int, network_type: str = "nat") -> Record:
    return Record(
        f"{number:016}", number, "boot", 7, 0, f"s#{number}.0#1", 1, f"slot{number}@w", "alice", "ns", "veth", "",
        network_type, "", "", machine="w", made=True,
    )  # fmt: skip


JOBS = (a_job(1), a_job(2))
IDS = [job.id for job in JOBS]


def test_leases_are_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "TICK", 0.01)
    monkeypatch.setattr(leases, "AWAY_PAUSE", 0.05)
    renewed: list[tuple[str, list[str]]] = []
    again: list[str] = []
    given_back: list[int] = []

    def renew(machine: str, job_ids: list[str]) -> Renewed:
        renewed.append((machine, job_ids))
        return Renewed(frozenset(job_ids), None)

    def post_again(job_id: str) -> None:
        again.append(job_id)

    reservations = some(give_back=Fails(lambda: given_back.append(1)))
    renewals = LeaseRenewal(some(all=Fails(lambda: JOBS)), some(renew=Fails(renew), lease=0.03), some(), reservations)
    monkeypatch.setattr(renewals, "_post_again", Fails(lambda record: post_again(record.id)))
    with started(renewals):
        wait(lambda: set(again) == set(IDS) and len(given_back) >= 2)
    assert set(map(str, renewed)) == {str(("w", IDS))}, "one request renews all"
    assert len(again) >= 2, "one job's trouble does not cost the other"


def test_counters_are_told() -> None:
    told: list[str] = []
    firewall = some(all_counters=Fails(lambda live: {job.id: some(report=lambda: {"bytes": 1}) for job in live}))
    link = some(counters=Fails(lambda job_id, _said: told.append(job_id)))
    shaping = some(of_jobs=dict, promises=dict)
    with started(
        UsageReports(
            link, firewall, shaping, some(), Fails(lambda: JOBS), 0.01, lambda: None, some(report=Fails(lambda: None))
        )
    ):
        wait(lambda: set(told) == set(IDS))
    assert told[0] == IDS[1], "one job's trouble does not cost the other its account"


def test_reports_of_queues_do_not_pass_each_other() -> None:
    """A job's last report waits for a round that is under way, and has newer counters."""
    taken, posted = iter(range(10)), list[int]()
    under_way, go_on = threading.Event(), threading.Event()

    def promises() -> dict[tuple[str, str], Seen]:
        return {(IDS[0], "eth0/7"): Seen(sent=next(taken))}

    def delivered(_host: str, _at: float, queues: dict[tuple[str, str], Seen]) -> None:
        if not posted and not under_way.is_set():
            under_way.set()
            assert go_on.wait(60)
        posted.extend(seen.sent for seen in queues.values())

    shaping = some(promises=promises, reported=lambda _queues: None)
    reports = UsageReports(
        some(delivered=delivered), some(), shaping, some(), lambda: JOBS, 0, lambda: None, some()
    )  # fmt: skip
    of_round = threading.Thread(target=lambda: reports._report_delivered([JOBS[0]]))
    at_end = threading.Thread(target=lambda: reports.last_flows(JOBS[0]))
    of_round.start()
    assert under_way.wait(60)
    at_end.start()
    at_end.join(0.2)
    assert posted == []
    go_on.set()
    for thread in (of_round, at_end):
        thread.join(60)
    assert posted == [0, 1]


def test_counters_of_a_queue_that_goes_while_a_report_is_under_way_wait_for_the_next() -> None:
    shaping = Shaping("lark-none", "lx")
    name = (IDS[0], "eth0/7")
    shaping._gone[name] = Seen(sent=5)
    assert shaping.promises() == {name: Seen(sent=5)}
    shaping.reported({name: Seen(100, sent=4)})
    assert shaping.promises() == {name: Seen(sent=5)}
    shaping.reported(shaping.promises())
    assert shaping.promises() == {}


def test_rules_are_asked_for_and_put_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feed, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(feed, "LONGEST_PAUSE", 0.02)
    confirmed: list[str] = []
    firewall = some(
        name="lark-test",
        remove=lambda: None,
        apply=Fails(lambda _rules, _live, _shaped: some(refused={}, late=(), out=UNTOLD)),
    )
    link = some(
        rules=Fails(lambda _host, known, _hold: ("r1", None if known else some(jobs=()))),
        rules_confirmed=Fails(lambda _host, revision, _applied: confirmed.append(revision)),
    )
    # The first to ask for the jobs is who starts it.
    with started(RulesFeed(link, firewall, some(apply=lambda _rules, _live: None), Fails(lambda: JOBS, at=2))):
        wait(lambda: confirmed == ["r1"])


def test_rules_that_are_others_all_the_time_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    revisions = (str(number) for number in range(1, 2_000))
    applied = some(late=(), out=UNTOLD, refused={})
    firewall = some(name="lark", apply=lambda *_: applied, prepare=None)
    shaping = some(apply=lambda _rules, _live: None)
    following = RulesFeed(some(rules_confirmed=lambda *_: None), firewall, shaping, lambda: JOBS)
    with caplog.at_level("INFO", LOGGER):
        for revision in revisions:
            following._apply(feed._Revision("worker1", revision, some(rules=some(jobs=()), jobs=())))
    assert 0 < len(caplog.records) <= feed.LINES_AT_ONCE + 2


def test_use_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metering, "read", Fails(lambda _: Counted(100, 200, 1, 2)))
    told: list[tuple[int, float]] = []
    settings = replace(load({}), usage_interval=0.01, socket=tmp_path / "socket")
    jobs = some(all=Fails(lambda: (a_job(1, "ovs_bridge"),)))
    link = some(headroom=Fails(Headroom), external_headroom=dict, wan=lambda _host, _jobs: {})
    tell = Fails(lambda pid, values: told.append((pid, values["NetworkOutputMb"])))
    asks = (lambda _: None, lambda _record, _quiet: None, lambda _: NOTHING)
    with started(metering.Metering(settings, jobs, link, *asks, tell)):
        wait(lambda: (7, 0.0002) in told)


def test_leases_are_asked_for_by_dhcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_AFTER_FAILURE", 0.01)
    fails, late, sent = list[int](), [0.0], list[bytes]()

    def clock() -> float:
        if fails and threading.current_thread().name == "dhcp":
            fails.clear()
            raise KeyError("nobody has thought of this")
        return time.time() + late[0]

    near, far = socket.socketpair()
    with near, far:
        channel = some(
            fileno=near.fileno, receive=list, close=lambda: None, send=lambda message, *_: sent.append(message)
        )
        asking = clients.Clients(
            Cache(tmp_path), "eth0", lambda _: None, opens=lambda namespace, interface: channel, clock=clock
        )
        with started(asking):
            asking.begin("1" * 16, "02:00:00:00:00:01", "ns")
            wait(lambda: len(sent) == 1)
            fails.append(1)
            late[0] = 60.0
            # Whatever happens wakes it.
            asking.end("2" * 16)
            wait(lambda: len(sent) >= 2)
            assert not fails


def test_the_controller_is_told_of_a_slots_next_job() -> None:
    told: list[str] = []
    spool = Spool(Fails(told.append))
    try:
        for job_id in IDS:
            spool.add("slot1", job_id)
        wait(lambda: told == IDS[1:])
    finally:
        spool.stop()


def test_a_process_that_ends_is_noticed_even_where_no_thread_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = ProcessWatch()
    ended: list[int] = []
    call = Fails(ended.append)
    with started(watch):
        processes = [subprocess.Popen(["sleep", "600"]) for _ in range(2)]

        def none(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        try:
            for number, process in enumerate(processes):
                known = read_process(process.pid)
                assert watch.add(known.pid, known.started, partial(call, number))
            monkeypatch.setattr(threading.Thread, "start", none)
            for process in processes:
                process.kill()
                # It is noticed before anybody has waited for it.
                process.wait()
            wait(lambda: len(ended) == 1)
        finally:
            monkeypatch.undo()
            for process in processes:
                process.kill()
                process.wait()


@pytest.mark.ovs
def test_a_table_that_somebody_deletes_is_noticed() -> None:
    seen: list[str] = []
    with started(TableWatch("lark_loops", Fails(seen.append))):
        for family in ("inet", "bridge"):
            for what in ("add", "delete"):
                run(["nft", what, "table", family, "lark_loops"])
        wait(lambda: seen == ["bridge"])


def test_queues_are_looked_after(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []

    def ports(database: str) -> dict[str, leaves.Port]:
        looks.append(database)
        return {}

    monkeypatch.setattr(leaves, "LOOK", 0.02)
    monkeypatch.setattr(leaves, "marked_ports", Fails(ports))
    ours, kernels = socket.socketpair()
    monkeypatch.setattr(tc, "listener", lambda: ours)
    with kernels, started(FairQueues("unix:here")):
        wait(lambda: len(looks) >= 2)


def test_what_a_later_starter_of_the_same_run_left_is_removed_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lark_worker.life.removal_retry.FIRST_PAUSE", 0.01)
    first = a_job(1)
    later = replace(first, starter=first.starter + 1)
    removed: list[Record] = []

    def remove(one: Record) -> None:
        removed.append(one)
        if one == first:
            left.add(later)

    left = RemovalRetry(remove, lambda job_id: False)
    left.add(first)
    wait(lambda: removed == [first, later])
    left.stop()
