"""The job directory's indexes agree with each other, whatever of a job is replaced."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from lark_common.runs import NetworkType, RunKey
from lark_controller.jobs.job import Directory, Job, JobState, Standing

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
