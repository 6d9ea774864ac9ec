"""The lab in short: boot a pool, six jobs of four users by condor_submit, every policy seen from inside them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lab import controller
from lab.boot import Lab
from lab.jobs import running
from tests.lab import stage


@pytest.fixture(scope="module")
def cast(lab: Lab) -> Iterator[stage.Cast]:
    with running(lab, list(stage.CAST.values())) as started:
        yield dict(zip(stage.CAST, started, strict=True))


def test_every_job_has_an_identity_of_its_own_and_is_enforced(lab: Lab, cast: stage.Cast) -> None:
    known = {job["id"]: job for job in controller.jobs(lab)}
    assert {known[job.id]["owner"] for job in cast.values()} == {"alice", "bob", "carol", "mallory"}
    assert {job["state"] for job in known.values()} == {"enforced"}
    assert len({address for name in cast for address in stage.addresses(cast, name)}) == 2 * len(cast)
    assert {name: job.worker for name, job in cast.items()} == {name: wish.worker for name, wish in stage.CAST.items()}


def test_block_slice_and_one_way_connectivity_between_jobs(cast: stage.Cast) -> None:
    assert stage.pairs(stage.matrix(cast, cast)) == {
        ("alice1", "alice2"), ("alice2", "alice1"), ("caller", "alice1"), ("caller", "alice2"),
    }  # fmt: skip


def test_wan_drop_with_its_exception_and_steering(cast: stage.Cast) -> None:
    assert stage.wan_matrix(cast, cast) == {
        "alice1": ({"wan"}, {"wan"}),
        "alice2": ({"wan"}, {"wan"}),
        "caller": ({"wan"}, {"wan"}),
        "bob": ({"wan"}, {"-"}),
        "carol": ({"wan-fast"}, {"wan-fast"}),
        "mallory": ({"-"}, {"-"}),
    }


def test_what_the_wan_reaches(lab: Lab, cast: stage.Cast) -> None:
    assert stage.called_from(lab, "wan1", cast, cast) == {"alice1", "alice2", "bob", "carol"}
    assert stage.called_from(lab, "wan2", cast, cast) == {"alice1", "alice2", "carol"}


def test_the_group_of_a_job_is_seen_at_the_core(lab: Lab, cast: stage.Cast) -> None:
    assert stage.dscp_at_core(lab, cast["carol"]) == {34}
