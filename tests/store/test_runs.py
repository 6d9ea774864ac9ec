"""Runs in the store after a registration, an end and a lease."""

from __future__ import annotations

from dataclasses import fields, replace
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest

from lark_common.classads.ads import parse_post
from lark_common.errors import AddressError, NotFoundError, StoreError
from lark_common.runs import NetworkType
from lark_controller.api.jobs import JobFilter
from lark_controller.jobs.job import Job, JobState
from lark_controller.policies.facts import facts
from lark_controller.store import LEASE_EXPIRED, SUPERSEDED, Store, StoredRun
from tests.fixtures.databases import (
    FULL,
    LEASE,
    NOW,
    a_run,
)


def put(store: Store, job: Job, now: float = NOW, job_ad: str = 'Owner = "x"') -> StoredRun:
    return store.runs.register(job, job_ad, 'Name = "slot1"', "hook", now)


def actions(store: Store, job: Job) -> list[str]:
    return [entry.action for entry in store.trail.page(job.id, None, 100).entries][::-1]


def state(store: Store, job: Job) -> JobState:
    found = store.runs.find(job.id)
    assert found is not None
    return found.state


def test_a_run_comes_back_as_it_was_registered(store: Store) -> None:
    made = put(store, FULL)
    assert made.created
    assert made.superseded == ()
    assert made.job == replace(FULL, number=made.job.number, created=NOW)
    assert store.runs.find(FULL.id) == made.job
    assert list(store.runs.live()) == [made.job]
    assert actions(store, FULL) == ["register"]


def test_the_full_run_leaves_no_field_at_its_default() -> None:
    bare = Job(0, FULL.run, FULL.id, "", "", "", 0, 0, "")
    same = {item.name for item in fields(Job) if getattr(FULL, item.name) == getattr(bare, item.name)}
    assert same == {
        "number",
        "run",
        "id",
        "network_type",
        "state",
        "created",
        "quarantine",
        "vouched",
        "reserved",
        "external",
    }


def test_a_run_without_anything_optional_comes_back(store: Store) -> None:
    bare = Job(0, FULL.run, FULL.id, "bob", "", "", 0, 0, "worker1", NetworkType.NONE, lease_until=LEASE)
    assert store.runs.find(bare.id) is None
    assert put(store, bare).job == store.runs.find(bare.id)


def test_equal_facts_of_posts_and_of_the_store_are_one_object(store: Store) -> None:
    job_ad = b'Owner = "alice"\nGlobalJobId = "s#1.0#1"\nCores = 2\n'
    machine_ad = b'Machine = "w1"\nLarkInnerAddressIPv4 = "10.64.0.5"\n'
    ads = parse_post(job_ad + b"------\n" + machine_ad, "text/plain")
    names = frozenset({"owner", "cores"}), frozenset({"machine"})
    taken = facts(*ads, names)
    assert taken.job == (("cores", "2"), ("owner", '"alice"'))
    assert facts(*ads, names) is taken
    put(store, a_run(1, facts=taken))
    assert next(job for job in store.runs.live()).facts is taken


def test_posting_the_same_run_twice_is_the_same_job_and_extends_the_lease(store: Store) -> None:
    first = put(store, a_run())
    second = put(store, a_run(lease_until=LEASE + 60), NOW + 60)
    assert not second.created
    assert second.job == replace(first.job, lease_until=LEASE + 60)
    assert store.runs.find(first.job.id) == second.job
    assert put(store, a_run(lease_until=LEASE), NOW + 61).job.lease_until == LEASE + 60
    assert actions(store, first.job) == ["register"]


def test_a_second_post_completes_an_address_and_keeps_what_it_leaves_out(store: Store) -> None:
    first = put(store, a_run(ipv4=None, ipv6=None, state=JobState.PENDING, reason="no address yet"))
    address = IPv4Address("10.64.7.7")
    second = put(store, a_run(ipv4=address, ipv6=None, mac=None, port=None, datapath=None))
    assert second.job == replace(first.job, ipv4=address)
    assert second.job.state is JobState.PENDING
    assert actions(store, first.job) == ["register", "update"]
    third = put(store, a_run(ipv4=None, ipv6=None), job_ad='Owner = "x"\nMore = 1')
    assert third.job.ipv4 == address
    assert store.runs.ads(first.job.id) == ('Owner = "x"\nMore = 1', 'Name = "slot1"')
    assert store.trail.page(first.job.id, None, 1).entries[0].detail == "ads"


@pytest.mark.parametrize(
    ("changes", "attribute"),
    [({"ipv6": None}, "LarkInnerAddressIPv4"), ({"ipv4": None}, "LarkInnerAddressIPv6")],
)
def test_an_address_of_another_live_job_is_refused_and_nothing_is_written(
    store: Store, changes: dict[str, Any], attribute: str
) -> None:
    holder = put(store, a_run(1)).job
    with pytest.raises(AddressError) as raised:
        put(store, replace(a_run(2, ipv4=holder.ipv4, ipv6=holder.ipv6), **changes))
    assert raised.value.attribute == attribute
    assert raised.value.holder == holder.id
    assert list(store.runs.live()) == [holder]
    assert len(store.trail.page(None, None, 10).entries) == 1


def test_one_address_of_two_held_rolls_back_the_end_of_the_other_holder(store: Store) -> None:
    older = put(store, a_run(1, started=1000)).job
    holder = put(store, a_run(2)).job
    with pytest.raises(AddressError):
        put(store, a_run(1, started=2000, ipv6=holder.ipv6))
    assert state(store, older) is JobState.REGISTERING


def test_a_completed_address_held_by_another_is_refused(store: Store) -> None:
    holder = put(store, a_run(1)).job
    put(store, a_run(2, ipv4=None, ipv6=None))
    with pytest.raises(AddressError):
        put(store, a_run(2, ipv4=holder.ipv4, ipv6=None))


def test_addresses_behind_nat_may_be_equal(store: Store) -> None:
    address = IPv4Address("192.168.1.2")
    for number, kind in ((1, NetworkType.NAT), (2, NetworkType.NAT), (3, NetworkType.OVS_BRIDGE), (4, NetworkType.NAT)):
        assert put(store, a_run(number, network_type=kind, ipv4=address)).created
    assert len(list(store.runs.live())) == 4


def test_an_address_whose_lease_looks_over_is_its_holders_until_the_holder_is_ended(store: Store) -> None:
    old = put(store, a_run(1, lease_until=NOW - 1), NOW - 100).job
    with pytest.raises(AddressError) as raised:
        put(store, a_run(2, ipv4=old.ipv4, ipv6=None))
    assert raised.value.holder == old.id
    store.runs.end(old.id, NOW, LEASE_EXPIRED, "", "lark")
    assert put(store, a_run(2, ipv4=old.ipv4, ipv6=None)).superseded == ()
    assert actions(store, old) == ["register", "expire"]


def test_a_run_that_its_lease_has_ended_lives_again_when_posted_and_another_ended_run_does_not(store: Store) -> None:
    first = put(store, a_run(1)).job
    store.runs.end(first.id, NOW, LEASE_EXPIRED, "", "lark")
    again = put(store, a_run(1, ipv4=None, ipv6=None), NOW + 1)
    assert (again.created, again.job) == (False, first)
    assert store.runs.find(first.id) == first
    assert store.runs.ending(first.id) is None
    assert actions(store, first) == ["register", "expire", "update"]
    store.runs.end(first.id, NOW + 2, "ended by its hook", "", "hook")
    assert put(store, a_run(1), NOW + 3).job.state is JobState.ENDED


def test_a_run_that_its_lease_has_ended_does_not_get_an_address_back_that_another_holds(store: Store) -> None:
    old = put(store, a_run(1)).job
    store.runs.end(old.id, NOW, LEASE_EXPIRED, "", "lark")
    holder = put(store, a_run(2, ipv4=old.ipv4, ipv6=None)).job
    with pytest.raises(AddressError) as raised:
        put(store, a_run(1))
    assert raised.value.holder == holder.id
    assert state(store, old) is JobState.ENDED


@pytest.mark.parametrize("other_address", [False, True])
def test_a_later_run_on_the_same_slot_supersedes(store: Store, other_address: bool) -> None:
    old = put(store, a_run(1, started=1000, slot="slot1@worker0")).job
    later = a_run(1, started=2000, slot="slot1@worker0")
    if other_address:
        later = replace(later, ipv4=IPv4Address("10.64.9.9"), ipv6=IPv6Address("2001:db8:64::99"), port="lark9")
    made = put(store, later)
    assert made.created
    assert [(job.id, job.state, job.reason) for job in made.superseded] == [(old.id, JobState.ENDED, SUPERSEDED)]
    assert [job.id for job in store.runs.live()] == [later.id]
    assert actions(store, old) == ["register", "supersede"]


def test_another_job_on_the_same_slot_and_port_supersedes_where_starts_are_unknown(store: Store) -> None:
    old = put(store, a_run(1, started=0, slot="slot1@worker0")).job
    new = a_run(2, started=0, slot="slot1@worker0", ipv4=old.ipv4, ipv6=old.ipv6, port=old.port)
    assert [job.id for job in put(store, new).superseded] == [old.id]


def test_a_later_run_with_the_same_address_on_another_port_is_refused(store: Store) -> None:
    old = put(store, a_run(1, started=1000, slot="slot1@worker0")).job
    with pytest.raises(AddressError):
        put(store, a_run(2, started=2000, slot="slot1@worker0", ipv4=old.ipv4, port="other"))


def test_an_earlier_run_neither_takes_the_address_nor_the_slot_of_a_later(store: Store) -> None:
    later = put(store, a_run(1, started=2000, slot="slot1@worker0")).job
    with pytest.raises(AddressError):
        put(store, a_run(1, started=1000, slot="slot1@worker0"))
    late = put(store, a_run(2, started=1000, slot="slot1@worker0"))
    assert late.created
    assert (late.job.state, late.job.reason) == (JobState.ENDED, SUPERSEDED)
    assert store.runs.find(late.job.id) == late.job
    assert list(store.runs.live()) == [later]
    assert actions(store, late.job) == ["register", "supersede"]


@pytest.mark.parametrize("started", [0, 1000])
@pytest.mark.parametrize("given_up", [False, True])
@pytest.mark.parametrize("same_address", [False, True])
def test_a_run_that_is_taken_in_again_ends_none_that_was_stored_after_it(
    store: Store, started: int, given_up: bool, same_address: bool
) -> None:
    first = put(store, a_run(1, started=started, slot="slot1@worker0")).job
    if given_up:
        store.runs.end(first.id, NOW, LEASE_EXPIRED, "", "lark")
    else:
        store.runs.set_states([(first.id, JobState.REFUSED, "rule limit")])
    ports = {"ipv4": first.ipv4, "ipv6": first.ipv6, "port": first.port} if same_address else {}
    second = put(store, a_run(2, started=started, slot="slot1@worker0", **ports)).job
    again = a_run(1, started=started, slot="slot1@worker0")
    if same_address:
        with pytest.raises(AddressError) as raised:
            put(store, again)
        assert raised.value.holder == second.id
    else:
        made = put(store, again)
        assert made.superseded == ()
        assert (made.job.state, made.job.reason) == (JobState.ENDED, SUPERSEDED)
    assert list(store.runs.live()) == [second]


def test_nodes_of_a_parallel_job_do_not_evict_each_other(store: Store) -> None:
    nodes = [
        a_run(1, slot=f"slot{node}@worker0", ipv4=IPv4Address(f"10.64.0.{node}"), ipv6=None, port=f"lark{node}")
        for node in range(1, 5)
    ]
    assert len({node.run.global_job_id for node in nodes}) == 1
    for node in nodes:
        assert put(store, node).superseded == ()
    assert len(list(store.runs.live())) == 4
    page = store.runs.page(JobFilter(global_job_id=nodes[0].run.global_job_id), None, 10)
    assert [job.id for job in page.jobs] == [node.id for node in nodes]


def test_an_ended_run_stays_ended_and_frees_its_address(store: Store) -> None:
    job = put(store, a_run(1)).job
    ended = store.runs.end(job.id, NOW + 1, "exited", "", "hook")
    assert ended == replace(job, state=JobState.ENDED, reason="exited")
    assert store.runs.end(job.id, NOW + 2, "again", "ExitCode = 0", "hook") == ended
    assert store.runs.end(job.id, NOW + 3, "again", "ExitCode = 1", "hook") == ended
    assert store.runs.ending(job.id) == (NOW + 1, "exited", "ExitCode = 0")
    assert put(store, a_run(1), NOW + 4) == StoredRun(ended, False)
    assert put(store, a_run(2, ipv4=job.ipv4, ipv6=job.ipv6)).created
    assert actions(store, job) == ["register", "end"]
    assert not store.runs.renew(job.id, LEASE)
    assert store.runs.end("0" * 16, NOW, "exited", "", "hook") is None


def test_a_refused_run_frees_its_address_and_may_be_posted_again(store: Store) -> None:
    job = put(store, a_run(1)).job
    assert store.runs.set_states([(job.id, JobState.REFUSED, "rule limit")])
    assert list(store.runs.live()) == []
    assert not store.runs.set_states([(job.id, JobState.ENFORCED, "")])
    again = put(store, a_run(1))
    assert not again.created
    assert again.job == job
    assert store.runs.set_states([(job.id, JobState.REFUSED, "rule limit")])
    assert put(store, a_run(2, ipv4=job.ipv4)).created
    with pytest.raises(AddressError):
        put(store, a_run(1))
    ended = store.runs.end(job.id, NOW, "exited", "", "hook")
    assert ended is not None
    assert ended.state is JobState.ENDED


def test_a_run_that_is_refused_at_once_holds_nothing(store: Store) -> None:
    holder = put(store, a_run(1)).job
    refused = put(store, a_run(2, ipv4=holder.ipv4, state=JobState.REFUSED, reason="bad address"))
    assert refused.created
    assert list(store.runs.live()) == [holder]


def test_numbers_are_not_used_again(store: Store) -> None:
    first = put(store, a_run(1)).job
    store.runs.end(first.id, NOW, "exited", "", "hook")
    assert store.prune(NOW + 1).runs == 1
    assert put(store, a_run(2)).job.number > first.number


def test_set_address(store: Store) -> None:
    job = put(store, a_run(1, ipv4=None, ipv6=None)).job
    other = put(store, a_run(2)).job
    address, block = FULL.ipv4, (FULL.ipv4_block, FULL.ipv6_block)
    done = store.runs.set_address(job.id, address, FULL.ipv6, block, "controller", NOW)
    assert done.job == store.runs.find(job.id)
    assert done.job.addresses == FULL.addresses
    assert (done.job.ipv4_block, done.job.ipv6_block) == block
    assert actions(store, job) == ["register", "address"]
    with pytest.raises(AddressError):
        store.runs.set_address(job.id, other.ipv4, None, (None, None), "controller", NOW)
    with pytest.raises(NotFoundError):
        store.runs.set_address("0" * 16, address, None, (None, None), "controller", NOW)


def test_leases(store: Store) -> None:
    jobs = [put(store, a_run(number)).job for number in range(1, 4)]
    assert store.runs.renew(jobs[0].id, LEASE + 10)
    assert store.runs.renew_many([(jobs[1].number, LEASE + 20), (9**9, LEASE)]) == 1
    assert store.runs.renew_many([]) == 0
    assert [job.id for job in store.runs.expired(LEASE + 15)] == [jobs[0].id, jobs[2].id]
    assert store.runs.begin_leases(LEASE + 15) == 3
    assert store.runs.expired(LEASE + 15) == []
    # One that was given by a clock that was ahead is no longer than the others.
    assert [job.lease_until for job in store.runs.live()] == [LEASE + 15] * 3
    assert {entry.action for entry in store.trail.page(None, None, 100).entries} == {"register"}


def test_states_are_kept_in_batches(store: Store) -> None:
    jobs = [put(store, a_run(number)).job for number in range(1, 4)]
    states = [(job.id, JobState.ENFORCED, "") for job in jobs] + [("0" * 16, JobState.PENDING, "x")]
    assert store.runs.set_states(states) == 3
    assert {job.state for job in store.runs.live()} == {JobState.ENFORCED}
    with pytest.raises(ValueError, match=r"runs\.end"):
        store.runs.set_states([(jobs[0].id, JobState.ENDED, "")])


@pytest.mark.parametrize(
    "changes",
    [{"owner": "a\0b"}, {"reason": "\ud800"}, {"cluster": 2**63}],
    ids=["NUL", "lone surrogate", "65 bits"],
)
def test_what_a_database_cannot_hold_is_a_store_error(store: Store, changes: dict[str, Any]) -> None:
    with pytest.raises(StoreError) as raised:
        put(store, a_run(1, **changes))
    assert "Traceback" not in str(raised.value)
    assert "INSERT" not in str(raised.value)
    assert put(store, a_run(1)).created


def test_ads_with_nul_or_surrogates_are_store_errors(store: Store) -> None:
    for ad in ("a\0b", "\udcff"):
        with pytest.raises(StoreError):
            put(store, a_run(1), job_ad=ad)
    text = 'Owner = "🐦 \\"é\\" \u202e"\r\n\x01'
    assert put(store, a_run(1), job_ad=text).created
    assert store.runs.ads(a_run(1).id) == (text, 'Name = "slot1"')
