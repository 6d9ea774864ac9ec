"""Many threads, several processes: one wins, and everybody else is told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from ipaddress import IPv4Address
from threading import Barrier
from typing import TypeVar

from lark_common.errors import AddressError
from lark_controller.jobs.job import Job, JobState
from lark_controller.store import Store, StoredRun
from tests.fixtures.databases import NOW, a_run, at_once

T = TypeVar("T")
THREADS = 16
ROUNDS = 4


def together(calls: list[Callable[[], T]]) -> list[T | AddressError]:
    """Make all calls at the same moment, each in a thread of its own."""
    barrier = Barrier(len(calls))

    def call(one: Callable[[], T]) -> T | AddressError:
        barrier.wait()
        try:
            return one()
        except AddressError as error:
            return error

    with ThreadPoolExecutor(len(calls)) as executor:
        return list(executor.map(call, calls))


def put(store: Store, job: Job) -> Callable[[], StoredRun]:
    return lambda: store.runs.register(job, "job ad", "machine ad", "hook", NOW)


def test_of_many_that_want_an_address_one_gets_it(store: Store) -> None:
    for turn in range(ROUNDS):
        address = IPv4Address("10.64.1.0") + turn
        jobs = [a_run(turn * THREADS + number, ipv4=address, ipv6=None) for number in range(THREADS)]
        results = together([put(store, job) for job in jobs])
        won = [result for result in results if isinstance(result, StoredRun)]
        lost = [result for result in results if isinstance(result, AddressError)]
        assert len(won) == 1
        assert len(lost) == THREADS - 1
        assert {error.holder for error in lost} == {won[0].job.id}
    assert len(list(store.runs.live())) == ROUNDS
    assert len(store.trail.page(None, None, 100).entries) == ROUNDS


def test_two_addresses_taken_crosswise_never_block_for_good(store: Store) -> None:
    for turn in range(ROUNDS):
        ones, others = a_run(turn * 100), a_run(turn * 100 + 1)
        jobs = [
            a_run(
                turn * 100 + 10 + number,
                ipv4=(ones, others)[number % 2].ipv4,
                ipv6=(others, ones)[number // 2 % 2].ipv6,
            )
            for number in range(THREADS)
        ]
        results = together([put(store, job) for job in jobs])
        won = [result.job for result in results if isinstance(result, StoredRun)]
        assert 1 <= len(won) <= 2
        held = [address for job in won for address in job.addresses]
        assert len(held) == len(set(held))


def test_the_same_run_posted_by_many_is_one_row(store: Store) -> None:
    for turn in range(ROUNDS):
        results = together([put(store, a_run(turn))] * THREADS)
        registered = [result for result in results if isinstance(result, StoredRun)]
        assert len(registered) == THREADS
        assert sum(result.created for result in registered) == 1
        assert len({result.job for result in registered}) == 1
    assert len(list(store.runs.live())) == ROUNDS


def test_of_many_runs_on_one_slot_the_latest_lives(store: Store) -> None:
    runs = [a_run(number, started=1000 + number, slot="slot1@worker0", host="worker0") for number in range(THREADS)]
    results = together([put(store, run) for run in runs])
    assert all(isinstance(result, StoredRun) for result in results)
    assert [job.id for job in store.runs.live()] == [runs[-1].id]
    assert all((found := store.runs.find(run.id)) is not None and found.state is JobState.ENDED for run in runs[:-1])


def test_ends_renewals_and_registrations_at_once(store: Store) -> None:
    jobs = [store.runs.register(a_run(number), "", "", "hook", NOW).job for number in range(THREADS)]
    calls: list[Callable[[], object]] = []
    for job in jobs:
        calls.append(partial(store.runs.end, job.id, NOW, "exited", "", "hook"))
        calls.append(partial(store.runs.renew, job.id, NOW + 1000))
    calls.append(lambda: store.runs.set_states([(job.id, JobState.ENFORCED, "") for job in reversed(jobs)]))
    calls.append(lambda: store.runs.set_states([(job.id, JobState.PENDING, "x") for job in jobs]))
    calls.append(lambda: list(store.runs.live()))
    together(calls)
    assert list(store.runs.live()) == []
    assert len(store.trail.page(None, None, 100).entries) == 2 * THREADS


def test_controllers_that_start_at_once_migrate_once(empty_url: str) -> None:
    program = (
        "import sys\n"
        "from lark_common.errors import StoreError\n"
        "from lark_controller.store import Store\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "store = Store.open(sys.argv[1])\n"
        # On a busy machine the first one holds a file for longer than the others wait: they are started again.
        "for last in [False] * 9 + [True]:\n"
        "    try:\n"
        "        store.migrate()\n"
        "        break\n"
        "    except StoreError as error:\n"
        "        if last or 'database is locked' not in str(error):\n"
        "            raise\n"
        "store.close()\n"
    )
    at_once(program, empty_url, 6)
    store = Store.open(empty_url)
    together([store.migrate] * 4)
    assert store.schema_version() == Store.newest_schema()
    store.close()


def test_two_processes_share_a_database(store: Store, store_url: str) -> None:
    other = Store.open(store_url)
    calls = [put(one, a_run(number)) for number in range(THREADS // 2) for one in (store, other)]
    results = [result for result in together(calls) if isinstance(result, StoredRun)]
    assert sum(result.created for result in results) == THREADS // 2
    assert list(other.runs.live()) == list(store.runs.live())
    other.close()
