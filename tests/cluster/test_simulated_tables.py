"""The played tables do what the store does: random posts, ends, reservations and external addresses at both."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import ip_network
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lark_common.errors import LarkError
from lark_controller.jobs.external import listed
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import needed_attributes
from lark_controller.qos.booking import End, flow_booking, job_booking
from lark_controller.qos.topology import Topology
from lark_controller.services.described_job import described
from lark_controller.store import LEASE_EXPIRED, Finish, Post, Store, StoredRun
from lark_controller.store.external_addresses import Claim
from tests.cluster.simulation.schedule import POLICY
from tests.cluster.simulation.tables import REST, Tables
from tests.cluster.simulation.workers import _ads
from tests.fixtures.databases import sqlite_with_tables

assert POLICY.topology is not None
_TOPOLOGY = Topology(POLICY.topology, {"worker1": 1000.0, "worker2": 1000.0})
_POOL = (ip_network("198.51.100.64/30"),)


def words(found: Any) -> Any:
    """An outcome, without the numbers that each gives by itself."""
    if isinstance(found, StoredRun):
        return words(found.job), found.created, [each.id for each in found.superseded]
    if isinstance(found, Job):
        return found.id, found.state, found.reason, found.addresses, found.port
    return type(found).__name__


def tried(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except LarkError as error:
        return error


def a_post(random: Random, now: float) -> Post:
    host, slot = random.randint(1, 2), random.randint(1, 2)
    ads = _ads(host, slot, random.randint(1, 4), random.choice(("bandwidth", "static")), f"p{slot}")
    job = described(*ads, needed_attributes(POLICY), now, now + random.choice((1.0, 50.0)))
    return Post(job, "", "", "hook", now, "", job_booking(job, POLICY, _TOPOLOGY), random.random() < 0.5)


def a_claim(job: Job) -> Claim:
    return Claim(job, "public", _POOL, listed("tcp"), 99, None, None, REST)


@pytest.mark.parametrize("seed", range(4))
def test_both_do_the_same(tmp_path: Path, seed: int) -> None:
    random, store, tables = Random(seed), Store.open(sqlite_with_tables(tmp_path / "lark.db")), Tables()
    asked: set[str] = set()
    now = 1_800_000_000.0
    for _ in range(60):
        now += random.uniform(0.1, 2.0)
        live = sorted(each.id for each in tables.live())
        job_id = random.choice(live) if live else ""
        match random.randrange(6):
            case 0 | 1:
                post = a_post(random, now)
                both = store.runs.carry_out([post]), tables.carry_out([post])
                assert [words(each) for each in both[0]] == [words(each) for each in both[1]]
            case 2 if live:
                finish = Finish(job_id, now, random.choice(("over", LEASE_EXPIRED)), "", "hook")
                ended = store.runs.carry_out([finish]), tables.carry_out([finish])
                assert [words(each) for each in ended[0]] == [words(each) for each in ended[1]]
            case 3 if live:
                job = tables.find(job_id)
                assert job is not None
                until = random.choice((None, now + 3.0))
                booking = flow_booking(End(job.host, job), End("wan", follows=True), 40.0, until, _TOPOLOGY)
                made = (
                    tried(lambda: store.reservations.admit(booking, now, "hook")),  # noqa: B023
                    tried(lambda: tables.admit(booking, now, "hook")),  # noqa: B023
                )
                assert words(made[0]) == words(made[1])
            case 4 if live and job_id not in asked:
                asked.add(job_id)
                job = tables.find(job_id)
                assert job is not None
                given = (
                    tried(lambda: store.external_addresses.associate(a_claim(job), now, "hook")),  # noqa: B023
                    tried(lambda: tables.associate(a_claim(job), now, "hook")),  # noqa: B023
                )
                assert getattr(given[0], "address", words(given[0])) == getattr(given[1], "address", words(given[1]))
            case _:
                assert store.reservations.sweep(now) == tables.sweep(now)
                assert store.external_addresses.expire(now) == tables.expire_external(now)
        assert {words(each) for each in store.runs.live()} == {words(each) for each in tables.live()}
        assert store.reservations.use() == tables.reserved
        held = {(each.address, each.job, each.released is None) for each in store.external_addresses.held()}
        assert held == {(each.address, each.job, each.released is None) for each in tables.held()}
        assert [each.id for each in store.runs.expired(now)] == [each.id for each in tables.expired(now)]
    store.close()
