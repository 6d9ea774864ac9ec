"""The job directory's indexes agree with each other, whatever of a job is replaced."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from hypothesis import given
from hypothesis import strategies as st

from lark_common.runs import RunKey
from lark_controller.jobs.job import Directory, Job, JobState

STATES = (JobState.REGISTERING, JobState.PENDING, JobState.ENFORCED)


def a_job(number: int, owner: str, host: str, address: int | None, state: JobState) -> Job:
    run = RunKey(f"s#{number}.0#1", 1, f"slot{number}")
    ipv4 = None if address is None else IPv4Address("10.0.0.0") + address
    return Job(number, run, run.id, owner, owner, "group", number, 0, host, ipv4=ipv4, state=state)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 4), st.sampled_from("ab"), st.sampled_from("xy"), st.booleans(), st.sampled_from(STATES),
            st.booleans(),
        )
    )
)  # fmt: skip
def test_indexes_follow_every_change(steps: list[tuple[int, str, str, bool, JobState, bool]]) -> None:
    directory, there = Directory(), dict[str, Job]()
    for number, owner, host, addressed, state, stays in steps:
        job = a_job(number, owner, host, number if addressed else None, state)
        if stays:
            assert directory.put(job) == there.get(job.id)
            there[job.id] = job
        else:
            assert directory.remove(job.id) == there.pop(job.id, None)
    assert directory.by_id == there
    assert directory.by_number == {job.number: job for job in there.values()}
    assert directory.by_address == {job.ipv4: job for job in there.values() if job.ipv4 is not None}
    for index, name in ((directory.by_owner, "owner"), (directory.by_group, "group"), (directory.by_host, "host")):
        assert {key: set(found) for key, found in index.items()} == {
            key: {job.number for job in there.values() if getattr(job, name) == key}
            for key in {getattr(job, name) for job in there.values()}
        }
    assert +directory.states == {
        state: count for state in STATES if (count := sum(job.state is state for job in there.values()))
    }


def test_a_job_that_is_replaced_is_found_as_it_is_now() -> None:
    directory = Directory()
    job = a_job(1, "a", "x", 1, JobState.REGISTERING)
    directory.put(job)
    later = replace(job, state=JobState.ENFORCED)
    assert directory.put(later) is job
    assert (
        directory.by_owner["a"][1] is directory.by_id[job.id] is directory.by_address[IPv4Address("10.0.0.1")] is later
    )
