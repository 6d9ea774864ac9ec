"""Addresses, ports and leases of jobs: whose they are, how they are given back."""

from __future__ import annotations

import cProfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.classads.ads import parse_post
from lark_common.errors import AddressError, AdError, StoreError
from lark_controller.api.jobs import Registered
from lark_controller.controller import Controller
from lark_controller.jobs.job import Directory, Job
from lark_controller.policies.decide import needed_attributes
from lark_controller.policies.file import load
from lark_controller.services.feed import Feed
from lark_controller.services.lease_clock import LeaseClock
from lark_controller.services.posting import EndRequest, PostRequest
from lark_controller.services.registration import Registration
from lark_controller.services.reservations import Reservations
from lark_controller.store import Store
from tests.fixtures.controllers import (
    POLICY,
    an_edge,
    connect,
    jobs_flows,
    post,
    running,
    until,
)
from tests.fixtures.databases import sqlite_with_tables


def test_two_jobs_cannot_have_one_address_or_one_port(tmp_path: Path) -> None:
    with running(tmp_path) as controller:
        first = post(controller, 1).job
        with pytest.raises(AddressError) as caught:
            post(controller, 2, address="10.64.0.1")
        assert caught.value.holder == first.id
        with pytest.raises(AddressError, match="belongs to live job"):
            post(controller, 2, port="p1")
        with pytest.raises(AdError, match="outside the declared job networks"):
            post(controller, 2, address="10.65.0.1")
        assert not post(controller, 1).created
        again = post(controller, 1, started=2, slot="slot1")
        assert again.created
        until(lambda: controller.jobs.detail(first.id).job.state == "ended")
        assert controller.jobs.detail(first.id).job.reason == "superseded"


@pytest.mark.parametrize("started", [0, 1])
def test_of_two_jobs_on_one_slot_with_one_start_the_first_is_over(tmp_path: Path, started: int) -> None:
    with running(tmp_path) as controller:
        first = post(controller, 1, started=started).job
        second = post(controller, 2, started=started, slot="slot1", port="p1").job
        assert controller.jobs.found(first.id).reason == "superseded"
        assert not post(controller, 1, started=started).created
        assert controller.jobs.found(second.id).live


def test_a_port_of_another_workers_switch_is_no_jobs_own(tmp_path: Path) -> None:
    declared = f'  worker7: {{datapath: "{7:016x}", role: edge, host: worker7}}\npolicies:'

    def posed(controller: Controller, datapath: int, slot: str = "slot1@rogue") -> None:
        ads = (
            f'Owner = "mallory"\nGlobalJobId = "s#9.0#1"\n------\nMachine = "rogue"\nName = "{slot}"\n'
            f'LarkDatapathId = "{datapath:016x}"\nLarkExternalInterface = "p1"\nLarkInnerAddressIPv4 = "10.64.0.9"\n'
        )
        controller.jobs.register(*parse_post(ads.encode(), "text/plain"), "hook")

    with running(tmp_path, POLICY.replace("policies:", declared)) as controller:
        first = post(controller, 1).job
        for slot in ("slot1@rogue", first.run.slot):
            with pytest.raises(AddressError, match="belongs to live job") as caught:
                posed(controller, 1, slot)
            assert caught.value.holder == first.id
        with pytest.raises(AdError, match="worker7 is that of worker7, and the job's host is rogue"):
            posed(controller, 7)


def test_a_lease_that_is_not_renewed_ends_the_job(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, lease=0.2) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        job = post(controller, 1).job
        until(lambda: controller.jobs.detail(job.id).job.state == "ended")
        until(lambda: jobs_flows(edge) == 0)
        assert controller.audit.page(job.id, None, 10).entries[0].action == "expire"


def test_a_renewal_of_all_tells_which_of_the_jobs_are_not_enforced(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        enforced, waits = post(controller, 1).job, post(controller, 2, port="uplink").job
        until(lambda: controller.jobs.confirm(enforced.id, 0.05).job.state == "enforced")
        until(lambda: controller.jobs.confirm(waits.id, 0.05).job.state == "pending")
        (told,) = controller.jobs.renew_all(enforced.host, [enforced.id, waits.id, waits.id, "0" * 16]).unsettled
        assert (told.job, told.state) == (waits.id, "pending")
        assert told.reason.endswith("its port uplink is an uplink, not a job's")
        assert controller.jobs.renew_all("elsewhere", [waits.id]).unsettled == ()


def test_a_job_that_its_lease_has_ended_comes_back_with_the_address_that_it_was_given(
    tmp_path: Path, network: FakeNetwork
) -> None:
    def assigned(controller: Controller, number: int) -> Job:
        return post(controller, number, address=None, more='LarkAddressType = "controller"').job

    with running(tmp_path, lease=2.0) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        first, second = assigned(controller, 1), assigned(controller, 2)
        until(
            lambda: controller.jobs.detail(first.id).job.state == controller.jobs.detail(second.id).job.state == "ended"
        )
        back = assigned(controller, 2)
        assert (back.live, back.addresses) == (True, second.addresses)
        assert first.addresses != second.addresses


def test_addresses_come_from_blocks_and_are_given_back(tmp_path: Path) -> None:
    with running(tmp_path) as controller:
        jobs = [
            post(controller, n, owner, address=None, port=None, more='LarkAddressType = "controller"').job
            for n, owner in enumerate(("alice", "alice", "bob"), 1)
        ]
        assert [str(job.ipv4) for job in jobs[:2]] == ["10.64.0.1", "10.64.0.2"]
        assert jobs[0].ipv4_block == jobs[1].ipv4_block != jobs[2].ipv4_block
        again = post(controller, 1, "alice", address=None, port=None, more='LarkAddressType = "controller"')
        assert (again.created, again.job.ipv4) == (False, jobs[0].ipv4)
        for job in jobs:
            controller.jobs.end(job.id, "hook")
        until(lambda: controller.jobs.counts().live == 0)
    with running(tmp_path) as controller:
        fresh = post(controller, 7, "zoe", address=None, port=None, more='LarkAddressType = "controller"').job
        assert str(fresh.ipv4) == "10.64.0.1"


def test_addresses_of_declared_hosts_are_no_jobs(tmp_path: Path) -> None:
    policy = POLICY.replace("  local:", "  hosts: [10.64.0.1, 10.64.0.2/31]\n  local:")
    with running(tmp_path, policy) as controller:
        with pytest.raises(AdError, match="kept for a host"):
            post(controller, 1)
        job = post(controller, 1, address=None, port=None, more='LarkAddressType = "controller"').job
        assert str(job.ipv4) == "10.64.0.4"


@pytest.fixture
def ahead() -> list[float]:
    """The seconds by which the clock of a registration is ahead."""
    return [0.0]


@pytest.fixture
def registered(tmp_path: Path, ahead: list[float]) -> Iterator[tuple[Store, Registration, Job]]:
    """A registration without switches, and a job of it."""
    store = Store.open(sqlite_with_tables(tmp_path / "lark.db"))
    feed = Feed(Directory(), lambda job: None, lambda number: None, LeaseClock(lambda: time.time() + ahead[0]))
    registration = Registration(store, 900, feed, Reservations(store, feed))
    policy = load(POLICY)
    registration.use(policy, needed_attributes(policy))
    yield store, registration, a_post(registration, "alice")
    store.close()


def ads_of(owner: str) -> str:
    return (
        f'Owner = "{owner}"\nGlobalJobId = "{owner}#1.0#1"\n------\n'
        f'Machine = "w"\nName = "{owner}@w"\nLarkInnerAddressIPv4 = "10.64.0.1"\n'
    )


def a_post(registration: Registration, owner: str) -> Job:
    return registration.register(*parse_post(ads_of(owner).encode(), "text/plain"), "hook").job


@pytest.mark.parametrize("again", ["renewed", "posted"])
def test_what_is_heard_of_a_job_while_leases_are_looked_through_is_not_lost(
    registered: tuple[Store, Registration, Job], monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    store, registration, job = registered
    assert store.runs.renew(job.id, 5.0)
    look = store.runs.expired

    def expired(now: float) -> list[Job]:
        found = look(now)
        if again == "renewed":
            registration.renew(job.id)
        else:
            a_post(registration, "alice")
        return found

    monkeypatch.setattr(store.runs, "expired", expired)
    # The job was posted longer ago than a lease, and renewed since.
    registration._feed.put(replace(job, lease_until=5.0))
    assert registration.expire(time.time()) == 0
    found = store.runs.find(job.id)
    assert found is not None
    assert found.live


def test_a_clock_that_is_back_for_a_moment_ends_no_job_and_frees_no_address(
    registered: tuple[Store, Registration, Job], ahead: list[float]
) -> None:
    store, registration, job = registered
    ahead[0] = -7200.0
    registration.renew(job.id)
    a_post(registration, "alice")
    ahead[0] = 0.0
    # By the lease that is stored, it is over.
    registration.write_leases()
    assert [each.id for each in store.runs.expired(time.time())] == [job.id]
    with pytest.raises(AddressError) as caught:
        a_post(registration, "bob")
    assert caught.value.holder == job.id
    # Leases begin anew first; until then none ends.
    assert registration._feed.clock.was_set
    assert registration.expire(time.time()) == 0
    found = store.runs.find(job.id)
    assert found is not None
    assert found.live


def test_a_database_that_is_away_for_half_a_day_ends_no_job_that_goes_on(
    registered: tuple[Store, Registration, Job], ahead: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, registration, job = registered
    # Time passes, and is not set.
    clock = LeaseClock(lambda: time.time() + ahead[0], lambda: time.monotonic() + ahead[0])
    registration._feed.clock = clock
    lost = a_place(registration, 7).job

    def away(*_: object) -> None:
        raise StoreError("the database is away")

    with monkeypatch.context() as patched:
        for name in ("carry_out", "renew_many", "expired"):
            patched.setattr(store.runs, name, away)
        while ahead[0] < 12 * 3600:
            ahead[0] += 300.0
            # Its worker is answered as ever.
            assert registration.renew(job.id).lease_until > clock()
            with pytest.raises(StoreError):
                registration.expire(clock())
        with pytest.raises(StoreError):
            a_place(registration, 8)
    # What was heard meanwhile is written first; the other one's lease had run out in the first quarter of an hour.
    assert registration.expire(clock()) == 1
    assert [each.id for each in store.runs.live()] == [job.id]
    assert not (found := store.runs.find(lost.id)) or not found.live
    assert a_place(registration, 8).job.addresses
    with pytest.raises(AddressError):
        a_post(registration, "bob")


def test_a_clock_that_is_slewed_was_not_set(ahead: list[float]) -> None:
    clock = LeaseClock(lambda: time.time() + ahead[0])
    for step in range(1, 20):
        ahead[0] = step * 0.25
        assert abs(clock() - time.time()) < 6
    found = [clock.was_set]
    ahead[0] = 3600.0
    assert abs(clock() - time.time() - 3600) < 1
    found.append(clock.was_set)
    clock.forget()
    assert [*found, clock.was_set] == [False, True, False]


def test_a_post_that_takes_the_address_of_a_job_that_ends_in_the_same_transaction_has_it(
    registered: tuple[Store, Registration, Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, registration, old = registered
    told: list[object] = []
    monkeypatch.setattr(registration._feed, "_put", lambda job: told.append(job.id))
    monkeypatch.setattr(registration._feed, "_gone", told.append)
    job_ad, machine_ad = parse_post(ads_of("bob").encode(), "text/plain")
    post = PostRequest(job_ad, machine_ad, "hook")
    new, ended = registration._carry_out([post, EndRequest(old.id, "hook", "over")])
    assert isinstance(new, Registered)
    assert isinstance(ended, Job)
    assert new.job.addresses == old.addresses
    assert told == [old.number, new.job.id]
    assert registration._feed.directory.by_address[old.addresses[0]] == new.job
    assert registration._held.blocks.holds(old.addresses[0])


def test_a_refusal_that_comes_late_frees_nobody_elses_address(registered: tuple[Store, Registration, Job]) -> None:
    _, registration, refused = registered
    registration.end(refused.id, "hook", "over")
    other = a_post(registration, "bob")
    assert other.addresses == refused.addresses
    assert registration.refused(refused)
    assert registration._held.blocks.holds(refused.addresses[0])


def a_place(registration: Registration, number: int) -> Registered:
    """A post of a job whose address the controller gives, at a port of its own."""
    text = (
        f'Owner = "alice"\nGlobalJobId = "s#{number}.0#1"\n------\nMachine = "w"\nName = "slot{number}@w"\n'
        f'LarkNetworkType = "ovs_bridge"\nLarkAddressType = "controller"\nLarkExternalInterface = "p{number}"\n'
    )
    return registration.register(*parse_post(text.encode(), "text/plain"), "hook")


def test_a_policy_that_gives_addresses_as_before_leaves_those_of_live_jobs_alone(
    registered: tuple[Store, Registration, Job],
) -> None:
    _, registration, _ = registered
    for number in range(1, 9):
        a_place(registration, number)
    steering = load(POLICY.replace("action: drop", "port: wan-fast"))
    calls = []
    for number in (9, 200):
        while len(registration.live()) < number:
            a_place(registration, 100 + len(registration.live()))
        profile = cProfile.Profile()
        profile.runcall(registration.use, steering, needed_attributes(steering))
        calls.append(sum(each.callcount for each in profile.getstats()))
    assert calls[1] < 1.5 * calls[0]
    with pytest.raises(AddressError, match="belongs to live job"):
        registration.register(
            *parse_post(
                b'Owner = "bob"\nGlobalJobId = "s#900.0#1"\n------\nMachine = "w"\nName = "other@w"\n'
                b'LarkNetworkType = "ovs_bridge"\nLarkAddressType = "controller"\nLarkExternalInterface = "p1"\n',
                "text/plain",
            ),
            "hook",
        )
    taken = {str(job.ipv4) for job in registration.live()}
    assert str(a_place(registration, 901).job.ipv4) not in taken


def test_a_policy_with_other_blocks_knows_the_addresses_of_live_jobs(
    registered: tuple[Store, Registration, Job],
) -> None:
    _, registration, _ = registered
    taken = {str(a_place(registration, number).job.ipv4) for number in range(1, 9)}
    other = load(POLICY.replace("  local:", "  hosts: [10.64.255.1]\n  block_prefix: {ipv4: 29}\n  local:"))
    registration.use(other, needed_attributes(other))
    more = [str(a_place(registration, number).job.ipv4) for number in range(11, 31)]
    assert len({*taken, *more}) == 28
