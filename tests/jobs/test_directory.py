"""The job directory's indexes agree with each other, whatever of a job is replaced."""

from __future__ import annotations

from collections import Counter
from dataclasses import FrozenInstanceError, fields, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_common.runs import NetworkType, RunKey
from lark_controller.jobs import job as job_module
from lark_controller.jobs.external import External, listed
from lark_controller.jobs.job import (
    SHARED_SIZE,
    Directory,
    Facts,
    Job,
    JobState,
    ReservedFlow,
    Standing,
    in_state,
    job_of,
    numbered,
    shared_facts,
    with_address,
)
from tests.fixtures.databases import FULL

STATES = (JobState.REGISTERING, JobState.PENDING, JobState.ENFORCED)


def a_job(number: int, address: int | None, *, behind_nat: bool = False) -> Job:
    run = RunKey(f"s#{number}.0#1", 1, f"slot{number}")
    ipv4 = None if address is None else IPv4Address("10.0.0.0") + address
    kind = NetworkType.NAT if behind_nat else NetworkType.OVS_BRIDGE
    return Job(number, run, run.id, "a", "a", "group", number, 0, "x", network_type=kind, ipv4=ipv4)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4), st.sampled_from([None, 0, 10]), st.booleans(), st.sampled_from([None, *STATES]),
            st.booleans(),
        )
    )
)  # fmt: skip
def test_indexes_follow_every_change(steps: list[tuple[int, int | None, bool, JobState | None, bool]]) -> None:
    directory, there, far = Directory(), dict[str, Job](), dict[int, Standing]()
    for number, address, behind_nat, state, stays in steps:
        job = a_job(number, None if address is None else address + number, behind_nat=behind_nat)
        if stays:
            assert directory.put(job) == there.get(job.id)
            there[job.id] = job
        else:
            assert directory.remove(job.id) == there.pop(job.id, None)
        if state is not None:
            directory.set_standing(number, state, "why")
            far[number] = Standing(state, "why")
        else:
            directory.forget(number)
            far.pop(number, None)
    assert directory.by_id == there
    assert directory.by_address == {
        job.ipv4: job for job in there.values() if job.ipv4 is not None and job.has_pool_address
    }
    assert directory.standings == far
    assert +directory.states == Counter(standing.state for standing in far.values())


def test_a_job_that_is_replaced_is_found_as_it_is_now() -> None:
    directory = Directory()
    job = a_job(1, 1)
    directory.put(job)
    later = replace(job, quarantine="the pool says so")
    assert directory.put(later) is job
    assert directory.by_id[job.id] is directory.by_address[IPv4Address("10.0.0.1")] is later
    directory.set_standing(1, JobState.PENDING, "is away")
    found = directory.live(job.id)
    assert found == replace(later, state=JobState.PENDING, reason="is away")


def test_an_address_that_has_gone_to_another_job_stays_with_that() -> None:
    directory = Directory()
    first, second = a_job(1, 1), a_job(2, 1)
    directory.put(first)
    directory.put(second)
    directory.remove(first.id)
    assert directory.by_address == {IPv4Address("10.0.0.1"): second}


def test_equal_standings_are_one_and_few_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "_SHARED", 2)
    directory = Directory()
    for number in range(1, 5):
        directory.set_standing(number, JobState.PENDING, "is away")
    assert directory.standing(4) is directory.standing(1)
    # A third one begins the memory anew; those that are held stay as they are.
    for number, reason in ((5, "one"), (6, "two"), (7, "is away")):
        directory.set_standing(number, JobState.PENDING, reason)
    assert directory.standing(7) == directory.standing(1)
    assert directory.standing(7) is not directory.standing(1)
    assert directory.standing(99) == Standing(JobState.REGISTERING, "")
    assert directory.live("no such job") is None


def test_what_a_job_has() -> None:
    job = a_job(1, 1)
    assert (job.called, job.live, job.has_pool_address) == ("1.0", True, True)
    assert [replace(job, state=state).live for state in JobState] == [True, True, True, True, False, False]
    assert [state.value for state in JobState] == [
        "registering", "enforced", "pending", "quarantined", "refused", "ended",
    ]  # fmt: skip
    assert [replace(job, network_type=kind).has_pool_address for kind in NetworkType] == [
        kind in ("ovs_bridge", "bridge") for kind in NetworkType
    ]
    four, six = IPv4Address("10.0.0.1"), IPv6Address("2001:db8::1")
    block4, block6 = IPv4Network("10.0.0.0/30"), IPv6Network("2001:db8::/126")
    both = replace(job, ipv4=four, ipv6=six, ipv4_block=block4, ipv6_block=block6)
    assert both.addresses == (four, six)
    assert both.blocks == ((four, block4), (six, block6))
    assert replace(both, ipv4=None).addresses == (six,)
    assert replace(both, ipv4=None, ipv6_block=None).blocks == ((six, None),)
    assert replace(both, ipv6=None).blocks == ((four, block4),)


def test_a_job_of_which_little_is_known() -> None:
    job = a_job(1, None)
    assert (job.state, job.reason, job.lease_until, job.created) == (JobState.REGISTERING, "", 0.0, 0.0)
    assert (job.facts, job.quarantine, job.vouched, job.reserved) == (Facts((), ()), "", False, ())
    assert job.address_type == "static"
    assert {job.ipv4, job.ipv6, job.ipv4_block, job.ipv6_block, job.datapath, job.port, job.mac, job.vlan} == {None}
    assert {job.bandwidth, job.inbound, job.outbound} == {None}


def outside(*numbers: int, names: tuple[str, ...] = ()) -> tuple[External, ...]:
    """External addresses of these numbers, with these names."""
    return tuple(
        External(IPv4Address("198.51.100.0") + number, listed("tcp/80, icmp"), name)
        for number, name in zip(numbers, (*names, *("",) * len(numbers)), strict=False)
    )


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4), st.sampled_from(["W1", "w1", "w2"]), st.sampled_from([(), (0,), (10,), (0, 10)]),
            st.booleans(),
        )
    )
)  # fmt: skip
def test_hosts_and_external_addresses_follow_every_change(
    steps: list[tuple[int, str, tuple[int, ...], bool]],
) -> None:
    directory, there = Directory(), dict[str, Job]()
    for number, host, addresses, stays in steps:
        job = replace(a_job(number, 1 + number), host=host, external=outside(*(each + number for each in addresses)))
        if stays:
            directory.put(job)
            there[job.id] = job
        else:
            directory.remove(job.id)
            there.pop(job.id, None)
    assert len(directory) == len(there)
    assert directory.hosts == Counter(job.host.lower() for job in there.values())
    assert all(directory.hosts.values())
    assert directory.by_external == {each.address: job for job in there.values() for each in job.external}
    assert directory.by_address == {job.ipv4: job for job in there.values()}


def test_an_external_address_that_has_gone_to_another_job_stays_with_that() -> None:
    directory = Directory()
    first, second = (replace(a_job(number, number), external=outside(1)) for number in (1, 2))
    directory.put(first)
    directory.put(second)
    directory.put(replace(first, external=()))
    assert directory.by_external == {IPv4Address("198.51.100.1"): second}
    directory.remove(first.id)
    assert directory.by_external == {IPv4Address("198.51.100.1"): second}


def test_an_address_that_is_closed_is_not_shown() -> None:
    directory = Directory()
    job = replace(a_job(1, 1), external=outside(1, 2))
    directory.put(job)
    directory.closed[1] = {IPv4Address("198.51.100.1"): "no switch has room"}
    assert directory.now(job).external == outside(2)
    assert directory.now(replace(job, number=2)).external == outside(1, 2)
    directory.set_standing(1, JobState.ENFORCED)
    directory.forget(1)
    assert directory.closed == {}
    assert directory.now(job) == job


def test_a_job_in_the_state_that_it_has_is_the_same_one() -> None:
    job = replace(a_job(1, 1), state=JobState.PENDING, reason="is away")
    assert in_state(job, JobState.PENDING, "is away") is job
    other = in_state(job, JobState.PENDING, "has no room")
    assert (other.state, other.reason) == (JobState.PENDING, "has no room")
    other = in_state(job, JobState.REFUSED, "is away")
    assert (other.state, other.reason) == (JobState.REFUSED, "is away")


def test_a_changed_job_has_all_other_values_as_before() -> None:
    before = replace(FULL)
    assert in_state(FULL, JobState.REFUSED, "no room") == replace(FULL, state=JobState.REFUSED, reason="no room")
    assert numbered(FULL, 77, 5.0) == replace(FULL, number=77, created=5.0)
    four, six = IPv4Network("10.9.8.0/24"), IPv6Network("2001:db8::/64")
    assert with_address(FULL, four[7], four) == replace(FULL, ipv4=four[7], ipv4_block=four)
    assert with_address(FULL, six[7], six) == replace(FULL, ipv6=six[7], ipv6_block=six)
    assert before == FULL
    with pytest.raises(FrozenInstanceError):
        numbered(FULL, 77, 5.0).number = 78  # type: ignore[misc]  # it is frozen


def test_what_a_job_has_outside_of_the_site() -> None:
    job = a_job(1, 1)
    assert (job.opened, job.external_addresses, job.external_open, job.external_name) == (None, (), (), "")
    job = replace(job, external=outside(1, 2, names=("", "web.example.org")))
    assert job.opened is None
    assert job.external_addresses == (IPv4Address("198.51.100.1"), IPv4Address("198.51.100.2"))
    assert job.external_open == ("icmp", "tcp/80")
    assert job.external_name == "web.example.org"
    own = External(IPv6Address("2001:db8::1"), listed("udp/5"))
    job = replace(job, external=(*outside(1), own))
    assert (job.opened, job.external_open, job.external_name) == (own, ("icmp", "tcp/80", "udp/5"), "")


def test_facts_are_shared_up_to_a_size() -> None:
    def both(count: int) -> tuple[Facts, Facts]:
        # Both ads count, and each with its values alone.
        one, other = (Facts((("a", "x" * count),), (("machine", "y" * 24),)) for _ in range(2))
        assert one.size == count + 24
        return one, other

    one, other = both(SHARED_SIZE - 24)
    assert shared_facts(other) is shared_facts(one)
    one, other = both(SHARED_SIZE - 23)
    assert shared_facts(one) is one
    assert shared_facts(other) is other


def test_a_reserved_flow_of_which_little_is_said() -> None:
    flow = ReservedFlow(1, 5)
    assert (flow.target, flow.incoming, flow.steady) == ((), False, False)
    assert a_job(1, 1).external == ()


def test_a_job_of_values_is_one_as_any_other() -> None:
    job = Job(7, RunKey("a#1.0#1", 1, "slot1@w"), "id", "alice", "alice@a", "g", 1, 0, "w", vouched=True)
    made = job_of(*(getattr(job, each.name) for each in fields(Job)))
    assert (type(made), made, hash(made), repr(made)) == (Job, job, hash(job), repr(job))
    assert replace(made, host="x") == replace(job, host="x")
    with pytest.raises(FrozenInstanceError):
        made.host = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        job_of(7)


@given(
    st.lists(
        st.tuples(st.sampled_from([None, 0, 10]), st.booleans(), st.sampled_from([*STATES, JobState.QUARANTINED]),
                  st.sampled_from(["x", "X", "y"]), st.booleans()),
    )
)  # fmt: skip
def test_a_directory_is_loaded_as_if_its_jobs_had_come(
    found: list[tuple[int | None, bool, JobState, str, bool]],
) -> None:
    loaded, one_by_one, jobs = Directory(), Directory(), list[tuple[Job, Standing]]()
    for number, (address, behind_nat, state, host, mapped) in enumerate(found, 1):
        job = a_job(number, None if address is None else address + number, behind_nat=behind_nat)
        outside = External(IPv4Address("192.0.2.0") + number, listed("tcp/22"))
        jobs.append((replace(job, host=host, external=(outside,) if mapped else ()), Standing(state, "why")))
    loaded.load(jobs)
    for job, standing in jobs:
        one_by_one.begin(job.number, standing)
        one_by_one.put(job)
    assert vars(loaded) == vars(one_by_one)
