"""The reconcile loop waits for nobody: it takes no lock that another thread holds while it reads or writes."""

from __future__ import annotations

import io
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_network
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest
from sqlalchemy import event as sql_event
from sqlalchemy.engine import Engine

from fake_switch.switch import FakeNetwork
from lark_common import log
from lark_common.log import LOGGER
from lark_controller.accounting.readings import PortReading, TransferCounts, WorkerCounts
from lark_controller.api.external import ExternalWish, GatewayWord
from lark_controller.api.jobs import JobFilter
from lark_controller.api.reservations import Change, Wish
from lark_controller.api.switches import FlowFilter
from lark_controller.api.usage import TransferReport
from lark_controller.api.workers import Delivered
from lark_controller.controller import Controller
from lark_controller.qos.delivery import Counters
from tests.fixtures.controllers import POLICY, an_edge, connect, flows_of, post, running, until

LOOP: Final = "openflow"
RESERVING: Final = (
    POLICY
    + """
topology:
  links: {internet: {between: [core1, wan], capacity: 100}}
  hosts: {default: {switch: core1, capacity: 1000}}
external:
  pools: {public: [198.51.100.64/28]}
  quarantine: 0
  rules: [{pool: public, open: [any], per_user: 14}]
"""
)


@pytest.fixture
def network() -> Iterator[FakeNetwork]:
    with FakeNetwork() as network:
        yield network


# -- every lock of the process, watched ------------------------------------------------------------------------------


class Watch:
    """The locks that the loop's thread has taken, and those that a thread held while it read or wrote."""

    def __init__(self) -> None:
        self.held: dict[int, list[Watched]] = {}
        self.of_loop: dict[Watched, str] = {}
        self.across: dict[Watched, str] = {}

    def io(self, *_args: object, **_more: object) -> None:
        """Something is read or written now on this thread."""
        for lock in self.held.get(threading.get_ident(), ()):
            self.across.setdefault(lock, threading.current_thread().name)

    def both(self) -> set[str]:
        return {f"{lock.made_at}, taken at {self.of_loop[lock]}" for lock in self.of_loop.keys() & self.across.keys()}


class Watched:
    """A lock that is watched; in every other way as the one of the standard library that it wraps."""

    def __init__(self, watch: Watch, lock: Any) -> None:
        self._watch = watch
        self._lock = lock
        self.made_at = _caller()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if not self._lock.acquire(blocking, timeout):
            return False
        self._watch.held.setdefault(threading.get_ident(), []).append(self)
        thread = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]  # current_thread takes locks
        if thread is not None and thread.name == LOOP:
            self._watch.of_loop.setdefault(self, _caller())
        return True

    def release(self) -> None:
        held = self._watch.held.get(threading.get_ident(), [])
        if self in held:
            held.remove(self)
        else:
            # Another thread has taken it, which a lock allows.
            for other in self._watch.held.values():
                if self in other:
                    other.remove(self)
                    break
        self._lock.release()

    def locked(self) -> bool:
        return bool(self._lock.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self.release()

    # What conditions ask of a reentrant lock.
    def _release_save(self) -> object:
        count = self._watch.held.get(threading.get_ident(), []).count(self)
        for _ in range(count):
            self._watch.held[threading.get_ident()].remove(self)
        if hasattr(self._lock, "_release_save"):
            return count, self._lock._release_save()
        self._lock.release()
        return count, None

    def _acquire_restore(self, saved: tuple[int, object]) -> None:
        if saved[1] is not None:
            self._lock._acquire_restore(saved[1])
        else:
            self._lock.acquire()
        self._watch.held.setdefault(threading.get_ident(), []).extend([self] * saved[0])

    def _is_owned(self) -> bool:
        return self in self._watch.held.get(threading.get_ident(), [])

    def _at_fork_reinit(self) -> None:
        self._lock._at_fork_reinit()


def _caller() -> str:
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.endswith((__file__, "/threading.py")):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Every lock that is made from now on is watched, and what SQLAlchemy sends and what the log writes is I/O."""
    watch = Watch()
    real = {"Lock": threading.Lock, "RLock": threading.RLock}
    for module in list(sys.modules.values()):
        for name, make in real.items():
            if (module is threading or getattr(module, "__name__", "").startswith("lark")) and vars(module).get(
                name
            ) is make:
                monkeypatch.setattr(module, name, lambda make=make: Watched(watch, make()))
    for moment in ("before_cursor_execute", "commit"):
        sql_event.listen(Engine, moment, watch.io)

    class Stream(io.StringIO):
        def write(self, text: str, /) -> int:
            watch.io()
            return super().write(text)

    root = logging.getLogger()
    before = (root.handlers[:], root.level, logging.getLogger(LOGGER).level)
    log.configure("info", "text", Stream())
    try:
        yield watch
    finally:
        for moment in ("before_cursor_execute", "commit"):
            sql_event.remove(Engine, moment, watch.io)
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        logging.getLogger(LOGGER).setLevel(before[2])


def test_the_loop_takes_no_lock_that_is_held_across_input_and_output(
    tmp_path: Path, network: FakeNetwork, watch: Watch
) -> None:
    with log.in_background(), running(tmp_path, RESERVING, counter_seconds=0.05, check_seconds=0.1) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        everything(controller)
        network.run(edge.disconnect)
        until(lambda: not controller.switches.find("0000000000000001").connected)
    # The watch saw both sides.
    assert any("feed.py" in lock.made_at for lock in watch.across)
    assert any("ledger.py" in lock.made_at for lock in watch.of_loop)
    assert watch.both() == set()


def everything(controller: Controller) -> None:
    """Ask a controller for whatever REST asks for, in several threads at a time."""

    def life(number: int) -> None:
        # Every third job asks for bandwidth, and is resized.
        job = post(controller, number, attributes="RequestBandwidth = 2" if number % 3 == 0 else "",
                   more="AvailBandwidth = 1000").job  # fmt: skip
        controller.jobs.confirm(job.id, 5)
        post(controller, number, attributes="RequestBandwidth = 2" if number % 3 == 0 else "")
        made = controller.reservations.reserve(Wish(job.id, f"192.0.2.{number}", 1, 60), "test", of_job=True)
        controller.reservations.change(made.id, Change(rate=2), "test", of_job=True)
        for each in controller.reservations.page(job.id, None, 10).reservations:
            controller.reservations.change(each.id, Change(rate=3), "test", of_job=False)
        controller.jobs.renew(job.id)
        controller._registration.quarantine(job.id, "the pool says so", "test")
        controller.jobs.lift(job.id, "test")
        controller.usage.counted(job.id, WorkerCounts(PortReading(1, 1, 1, 1)), final=False)
        controller.usage.transferred("worker1", {job.id: TransferReport(TransferCounts(1, 1, 1, 1, 1))})
        controller.usage.advice(job.id)
        controller.workers.marks("worker1", [job.id])
        given = controller.external.associate(ExternalWish(job.id), "test")
        controller.external.page(job=job.id)
        controller.external.translated(GatewayWord("gw", (ip_network("198.51.100.64/28"),), "", 60.0))
        controller.external.translations("", 0.01)
        controller.switches.explain(job.id, "192.0.2.1", 5)
        controller.drops.now(10)
        controller.external.release(given.association.id, "test")
        controller.jobs.page(JobFilter(), None, 10)
        controller.jobs.detail(job.id)
        controller.workers.rules("worker1", "", 0)
        controller.usage.delivered([made])
        counters = Counters(at=1.0, sent=1, dropped=0)
        controller.workers.delivered("worker1", {(job.id, f"eth0/{made.number}"): Delivered(1, counters)})
        flows_of(controller, job.id)
        controller.reservations.release(made.id, "test", of_job=True)
        controller.jobs.end(job.id, "hook")

    def policies() -> None:
        for drop in ("carol", "dave"):
            controller.policy.plan(RESERVING.replace('"bob"', f'"{drop}"'))
            controller.policy.put(RESERVING.replace('"bob"', f'"{drop}"'), "test")

    def questions() -> None:
        for _ in range(5):
            controller.usage.groups()
            controller.switches.all()
            controller.switches.flows("0000000000000001", FlowFilter(), None, 10, 5)
            controller.reservations.links()
            controller.reservations.links("another version", 0.01)
            controller.reservations.paths("worker1")
            controller.external.pools()
            controller.external.expire(0.0)
            controller.reservations.expire(0.0)
            controller._account_writer.write()
            controller.jobs.counts()

    works: list[Callable[[], None]] = [policies, questions]
    works += [lambda number=number: life(number) for number in range(1, 10)]  # type: ignore[misc]  # mypy has no defaults here
    with ThreadPoolExecutor(4) as executor:
        for done in [executor.submit(work) for work in works]:
            done.result()


# -- a slow database -------------------------------------------------------------------------------------------------


class SlowDatabase:
    """Statements that wait, from :meth:`hold` on, until :meth:`let_go`."""

    def __init__(self) -> None:
        self._holds = False
        self._go = threading.Event()
        self.waiting = threading.Event()

    def hold(self) -> None:
        self._holds = True

    def let_go(self) -> None:
        self._go.set()

    def statement(self, _c: object, _cursor: object, text: str, *_more: object) -> None:
        if self._holds and text.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE")):
            self.waiting.set()
            assert self._go.wait(60)


@pytest.fixture
def slow() -> Iterator[SlowDatabase]:
    slow = SlowDatabase()
    sql_event.listen(Engine, "before_cursor_execute", slow.statement)
    try:
        yield slow
    finally:
        slow.let_go()
        sql_event.remove(Engine, "before_cursor_execute", slow.statement)


def test_the_loop_goes_on_while_a_reservation_waits_for_the_database(tmp_path: Path, slow: SlowDatabase) -> None:
    with running(tmp_path, RESERVING) as controller, ThreadPoolExecutor(2) as executor:
        job = post(controller, 1, more="AvailBandwidth = 1000").job
        loop = controller._openflow.loop
        gate = threading.Event()
        # What the first reservation hands to the loop stays undone until the second one holds its lock.
        loop.call_soon_threadsafe(gate.wait)
        controller.reservations.reserve(Wish(job.id, "192.0.2.7", 1, 60), "test", of_job=True)
        slow.hold()
        second = executor.submit(controller.reservations.reserve, Wish(job.id, "192.0.2.8", 1, 60), "test", of_job=True)
        assert slow.waiting.wait(30)
        gate.set()
        assert [each.kbps for each in flows_in_loop(controller, job.id)] == [1000]
        assert not second.done()
        slow.let_go()
        second.result(30)
        until(lambda: len(flows_in_loop(controller, job.id)) == 2)


def test_the_loop_goes_on_while_a_post_waits_for_the_database(tmp_path: Path, slow: SlowDatabase) -> None:
    with running(tmp_path, RESERVING) as controller, ThreadPoolExecutor(2) as executor:
        job = post(controller, 1).job
        until(lambda: controller.jobs.confirm(job.id, 0.01).job.state == "pending")
        slow.hold()
        posted = executor.submit(post, controller, 2)
        assert slow.waiting.wait(30)
        assert controller.switches.all()
        assert controller.jobs.confirm(job.id, 0.01).waiting
        assert not posted.done()
        slow.let_go()
        assert posted.result(30).job.live


def flows_in_loop(controller: Controller, job_id: str) -> tuple[Any, ...]:
    number = controller._reconciler.directory.by_id[job_id].number
    found = controller._loop.call(lambda: controller._reconciler.desired.placed[number].job)
    return found.reserved
