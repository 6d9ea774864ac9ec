"""The directory that an instance which stands by holds beforehand: it is the one that a start would load."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from lab.postgres import PostgresServer
from lark_common.runs import NetworkType
from lark_controller.api.instances import Identity
from lark_controller.api.metrics import Metrics
from lark_controller.flows.desired import Desired
from lark_controller.flows.model import PORT_LOCAL
from lark_controller.flows.placement import Switch, place_switch
from lark_controller.jobs.job import Directory, Facts, Job, JobState
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.reconcile.prepared import PreparedDirectory, bring_to
from lark_controller.services.directory_copy import DirectoryCopy, TakenDirectory, until_the_next
from lark_controller.services.holdings import Holdings
from lark_controller.store import LEASE_EXPIRED, Store
from tests.fixtures.databases import NOW, a_run
from tests.fixtures.service import wait

pytestmark = pytest.mark.postgres

POLICY = """
version: 1
networks: {jobs: [10.64.0.0/16, "2001:db8:64::/64"], local: [10.0.0.0/8, "2001:db8::/32"]}
policies: [{slice: {by: Owner}}, {wan: {when: 'Owner == "user1"', action: drop}}]
"""
EDGES = (1, 2, 3, 11, 12)


@pytest.fixture
def store(postgres_server: PostgresServer) -> Iterator[Store]:
    made = Store.open(postgres_server.new_database())
    made.migrate()
    put_policy(made, POLICY)
    yield made
    made.close()


def put_policy(store: Store, words: str) -> None:
    store.trail.put_policy(words, load(words).digest, "test", NOW)


def taken(store: Store, copy: DirectoryCopy) -> TakenDirectory | None:
    latest = store.trail.latest_policy()
    assert latest is not None
    return copy.take(latest)


def switch(datapath: int) -> Switch:
    ports = {"eth0": 1, "LOCAL": PORT_LOCAL} | {f"lark{number}": 10 + number for number in range(40)}
    return place_switch(load(POLICY), datapath, ports, normal=True, tracks=True, max_meter=0)


def seen(taken: TakenDirectory) -> dict[str, Any]:
    """All that a controller begins with."""
    directory, desired = taken.prepared.directory, taken.prepared.desired
    spaces = taken.holdings.blocks._spaces
    known = {
        "jobs": dict(directory.by_id),
        "addresses": dict(directory.by_address),
        "standings": dict(directory.standings),
        "states": {state: count for state, count in directory.states.items() if count},
        "hosts": dict(directory.hosts),
        "placed": {number: (placed.job, placed.decision) for number, placed in desired.placed.items()},
        "groups": {name: count for name, count in desired.groups.items() if count},
        "ports": taken.holdings._ports,
        "held": {version: set(space.held) for version, space in spaces.items()},
        "tenants": {
            version: {number: block.tenant for number, block in space._blocks.items()}
            for version, space in spaces.items()
        },
    }
    for datapath in EDGES:
        desired.place_switch(switch(datapath))
    known["programs"] = {datapath: desired.build(datapath) for datapath in EDGES}
    return known


def fresh(store: Store) -> TakenDirectory:
    """The directory that a start would load now."""
    latest = store.trail.latest_policy()
    assert latest is not None
    policy = load(latest.text)
    prepared = PreparedDirectory(Directory(), Decider(policy), Desired(policy))
    for job, standing in store.runs.loaded(0.0):
        prepared.directory.set_standing(job.number, *standing)
        prepared.directory.put(job)
    jobs = list(prepared.directory.by_id.values())
    prepared.desired.load((job, prepared.decider.of(job)) for job in jobs)
    return TakenDirectory(prepared, Holdings(policy, jobs))


class Writer:
    """A controller that has the term, and changes what it likes."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store, self.random = store, Random(seed)
        self.number = 0

    def live(self) -> list[Job]:
        return list(self.store.runs.live())

    def step(self) -> None:
        jobs = self.live()
        kinds = ["post"] if len(jobs) < 3 else ["post", "post", "again", "end", "state", "facts", "move", "quarantine"]
        kinds += ["lift", "renew", "expire", "prune"] if jobs else []
        getattr(self, self.random.choice(kinds))(jobs)

    def post(self, _jobs: list[Job]) -> None:
        self.number += 1
        # Addresses, slots and ports are those of jobs that have ended, and sometimes of one that is replaced.
        number = self.random.randrange(30)
        kind = self.random.choice([NetworkType.OVS_BRIDGE, NetworkType.OVS_BRIDGE, NetworkType.NAT])
        taken = {job.ipv4 for job in self.live()}
        run = a_run(number, started=1000 + self.number, network_type=kind, datapath=self.random.choice(EDGES))
        if run.ipv4 in taken:
            run = replace(run, ipv4=None, ipv6=None)
        self.store.runs.register(run, "a", "b", "test", NOW + self.number)

    def again(self, jobs: list[Job]) -> None:
        job = self.random.choice(jobs)
        self.store.runs.register(replace(job, vlan=self.random.randrange(1, 4095)), "a", "b", "test", NOW)

    def end(self, jobs: list[Job]) -> None:
        self.store.runs.end(self.random.choice(jobs).id, NOW, "done", "", "test")

    def expire(self, jobs: list[Job]) -> None:
        job = self.random.choice(jobs)
        self.store.runs.end(job.id, NOW, LEASE_EXPIRED, "", "test")
        # Its worker comes back: it lives again, with the number of before.
        if self.random.random() < 0.5:
            self.store.runs.register(replace(job, ipv4=None, ipv6=None, ipv4_block=None), "a", "b", "test", NOW)

    def state(self, jobs: list[Job]) -> None:
        states = (JobState.ENFORCED, JobState.PENDING, JobState.REFUSED)
        chosen = self.random.sample(jobs, min(3, len(jobs)))
        self.store.runs.set_states([(job.id, self.random.choice(states), f"r{self.number}") for job in chosen])

    def facts(self, jobs: list[Job]) -> None:
        found = Facts((("owner", f'"user{self.random.randrange(3)}"'),))
        self.store.runs.update_facts([(self.random.choice(jobs).id, found)], "digest")

    def move(self, jobs: list[Job]) -> None:
        free = IPv4Address("10.64.1.0") + self.random.randrange(250)
        if free not in {job.ipv4 for job in jobs}:
            self.store.runs.set_address(self.random.choice(jobs).id, free, None, (None, None), "test", NOW)

    def quarantine(self, jobs: list[Job]) -> None:
        self.store.runs.quarantine(self.random.choice(jobs).id, "it runs elsewhere", "test", NOW)

    def lift(self, jobs: list[Job]) -> None:
        if held := [job for job in jobs if job.quarantine]:
            self.store.runs.lift(held[0].id, "an operator", "test", NOW)

    def renew(self, jobs: list[Job]) -> None:
        self.store.runs.renew_many([(job.number, NOW + self.number) for job in jobs])

    def prune(self, _jobs: list[Job]) -> None:
        self.store.prune(NOW + 10.0)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_taken_over_is_what_a_start_loads(store: Store, seed: int) -> None:
    writer = Writer(store, seed)
    copy = DirectoryCopy(store, Metrics())
    for _ in range(writer.random.randrange(20)):
        writer.step()
    copy.follow()
    for _ in range(writer.random.randrange(5)):
        for _ in range(writer.random.randrange(12)):
            writer.step()
        copy.follow()
    for _ in range(writer.random.randrange(12)):
        writer.step()
    found = taken(store, copy)
    assert found is not None
    assert seen(found) == seen(fresh(store))


def test_transactions_in_flight_are_missing_until_they_have_committed(store: Store) -> None:
    for number in range(1, 4):
        store.runs.register(a_run(number), "a", "b", "test", NOW)
    copy = DirectoryCopy(store, Metrics())
    copy.follow()
    engine = store._database.engine
    late, lost = engine.connect(), engine.connect()
    # The earlier number and the earlier transaction commit last; another one never does.
    begun = late.begin()
    late.execute(text("UPDATE runs SET state = 'pending', reason = 'late' WHERE cluster = 1"))
    rolled_back = lost.begin()
    lost.execute(text("UPDATE runs SET reason = 'lost' WHERE cluster = 2"))
    store.runs.register(a_run(4), "a", "b", "test", NOW)
    copy.follow()
    rolled_back.rollback()
    begun.commit()
    late.close()
    lost.close()
    found = taken(store, copy)
    assert found is not None
    reasons = sorted(standing.reason for standing in found.prepared.directory.standings.values())
    assert reasons == ["", "", "", "late"]
    assert seen(found) == seen(fresh(store))


def test_it_is_no_copy_of_another_policy_or_server(store: Store) -> None:
    store.runs.register(a_run(1), "a", "b", "test", NOW)
    copy = DirectoryCopy(store, Metrics())
    copy.follow()
    put_policy(store, POLICY + "# another\n")
    assert taken(store, copy) is None

    metrics = Metrics()
    copy = DirectoryCopy(store, metrics)
    copy.follow()
    assert metrics.registry.get_sample_value("lark_directory_copy_jobs") == 1
    put_policy(store, POLICY)
    # It is given up, and made anew.
    copy.follow()
    assert metrics.registry.get_sample_value("lark_directory_copy_jobs") == 0
    copy.follow()
    assert metrics.registry.get_sample_value("lark_directory_copy_jobs") == 1
    held = copy._copy
    assert held is not None
    held.server = "another run of the server"
    assert taken(store, copy) is None
    assert metrics.registry.get_sample_value("lark_directory_copy_jobs") == 0


def test_tables_of_another_release_are_not_copied(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = DirectoryCopy(store, Metrics())
    with monkeypatch.context() as patched:
        patched.setattr(Store, "newest_schema", staticmethod(lambda: "9999_later"))
        copy.follow()
    assert taken(store, copy) is None


def test_it_follows_by_itself_and_stops_at_once(store: Store) -> None:
    metrics = Metrics()
    copy = DirectoryCopy(store, metrics)
    for number in range(1, 30):
        store.runs.register(a_run(number), "a", "b", "test", NOW)
    copy.start()
    wait(lambda: metrics.registry.get_sample_value("lark_directory_copy_jobs") == 29)
    store.runs.end(a_run(3).id, NOW, "done", "", "test")
    wait(lambda: metrics.registry.get_sample_value("lark_directory_copy_jobs") == 28)
    age = time.time() - (metrics.registry.get_sample_value("lark_directory_copy_timestamp_seconds") or 0.0)
    assert 0.0 <= age < 60.0
    copy.stop()
    found = taken(store, copy)
    assert found is not None
    assert len(found.prepared.directory) == 28


def test_each_instance_shows_how_old_its_copy_is(store: Store) -> None:
    here, there = (Identity(name, name, f"http://{name}", "0.2.0") for name in "ab")
    copy = DirectoryCopy(store, Metrics())

    def ages(state: str = "standby") -> list[float | None]:
        store.instances.meet(here, state, copied_at=copy.at)
        store.instances.meet(there, "standby")
        return [each.copy_age for each in store.instances.all().instances]

    assert ages() == [None, None]
    copy.follow()
    first, second = ages()
    assert first is not None
    assert 0.0 <= first < 60.0
    assert second is None
    # By the database's clock alone, whatever this machine's shows.
    store._database.write(
        lambda connection: connection.execute(text("UPDATE instances SET copied_at = copied_at - 100"))
    )
    assert (store.instances.all().instances[0].copy_age or 0.0) > 100.0
    copy.follow()
    assert (ages()[0] or 0.0) < 60.0
    # One that is active has the directory itself.
    assert ages("active") == [None, None]
    put_policy(store, POLICY + "# another\n")
    copy.follow()
    assert ages() == [None, None]


def test_a_comparison_writes_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a slow database, signs of life would wait for each write to the same row."""
    copy = DirectoryCopy(store, Metrics())
    with monkeypatch.context() as patched:
        patched.setattr(store._database, "write", None)
        copy.follow()
        first = copy.at
        copy.follow()
    assert first is not None
    assert copy.at is not None
    assert copy.at > first


def test_a_mistake_of_its_own_costs_the_copy_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    metrics = Metrics()
    copy = DirectoryCopy(store, metrics)
    copy.follow()
    monkeypatch.setattr("lark_controller.services.directory_copy.SECONDS", 0.01)

    def fails(*_: object) -> None:
        raise RuntimeError("a mistake")

    with monkeypatch.context() as patched:
        patched.setattr("lark_controller.services.directory_copy._Copy.follow", fails)
        copy.start()
        wait(lambda: metrics.registry.get_sample_value("lark_directory_copy_timestamp_seconds") == 0.0)
    wait(lambda: metrics.registry.get_sample_value("lark_directory_copy_timestamp_seconds") != 0.0)
    copy.stop()
    assert taken(store, copy) is not None


def test_a_desired_state_follows_jobs_that_changed_after_the_comparison(store: Store) -> None:
    for number in range(1, 5):
        store.runs.register(a_run(number), "a", "b", "test", NOW)
    copy = DirectoryCopy(store, Metrics())
    copy.follow()
    found = taken(store, copy)
    assert found is not None
    prepared = found.prepared
    first, second, *rest = prepared.directory.by_id.values()
    changed = replace(first, facts=Facts((("owner", '"user2"'),)))
    bring_to(prepared.desired, prepared.decider, [changed, *rest])
    assert second.number not in prepared.desired.placed
    assert prepared.desired.placed[first.number].job is changed
    assert prepared.desired.placed[first.number].decision == prepared.decider.decide(changed.facts)


@pytest.mark.parametrize(("took", "pause"), [(0.0, 2.0), (0.05, 2.0), (0.5, 10.0), (4.0, 30.0), (600.0, 30.0)])
def test_a_comparison_that_took_long_leaves_no_takeover_with_more_than_half_a_minute(took: float, pause: float) -> None:
    assert until_the_next(took) == pause
