"""A quarantined job in the store, on the switches, over REST and in the command line; and one object for each job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.errors import NotFoundError, StateError
from lark_controller.api.jobs import JobFilter
from lark_controller.cli import main as cli
from lark_controller.jobs.job import JobState
from lark_controller.store import Store
from tests.fixtures.controllers import (
    an_edge,
    connect,
    flows_of,
    jobs_flows,
    post,
    running,
    until,
)
from tests.fixtures.databases import NOW, a_run
from tests.fixtures.fake_controls import DPID
from tests.fixtures.rest_app import Api
from tests.fixtures.rest_socket import served
from tests.store.test_runs import put

# Fixtures of those modules.
__all__ = ["served"]

WHY = "in the pool, the job on slot1 is mallory's"


def test_quarantine_is_an_input_that_the_store_keeps(store: Store) -> None:
    job = put(store, a_run(1)).job
    quarantined = store.runs.quarantine(job.id, WHY, "pool", NOW + 1)
    assert quarantined == replace(job, quarantine=WHY)
    assert store.runs.quarantine(job.id, WHY, "pool", NOW + 2) == quarantined
    assert put(store, a_run(1)).job == quarantined
    assert list(store.runs.live()) == [quarantined]
    assert store.runs.lift(job.id, "the pool agrees", "pool", NOW + 3) == job
    assert store.runs.lift(job.id, "the pool agrees", "pool", NOW + 4) == job
    with pytest.raises(StateError, match="in no quarantine"):
        store.runs.lift(job.id, "lifted", "ann", NOW + 5, vouched=True)
    assert store.runs.quarantine(job.id, WHY, "pool", NOW + 5) == quarantined
    lifted = store.runs.lift(job.id, "lifted", "ann", NOW + 5, vouched=True)
    assert lifted == replace(job, vouched=True)
    with pytest.raises(StateError, match="in no quarantine"):
        store.runs.lift(job.id, "lifted", "ann", NOW + 5, vouched=True)
    lines = store.trail.page(job.id, None, 10).entries
    assert [(line.actor, line.action, line.detail) for line in lines[:4]] == [
        ("ann", "lift", "lifted"),
        ("pool", "quarantine", WHY),
        ("pool", "lift", "the pool agrees"),
        ("pool", "quarantine", WHY),
    ]
    assert len(lines) == 5
    store.runs.end(job.id, NOW + 6, "over", "", "hook")
    assert store.runs.quarantine(job.id, WHY, "pool", NOW + 7) is None
    assert store.runs.lift(job.id, WHY, "pool", NOW + 7) is None
    assert store.runs.quarantine("0" * 16, WHY, "pool", NOW + 7) is None


def test_a_quarantined_job_passes_nothing_and_its_slice_forgets_it(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        job = post(controller, 1).job
        controller.jobs.confirm(job.id, 5)
        open_flows = jobs_flows(edge, job.number)
        # A lift of a job in no quarantine would make it immune to later readings of the pool.
        with pytest.raises(StateError):
            controller.jobs.lift(job.id, "ann")
        assert not controller.jobs.detail(job.id).job.vouched
        assert controller._registration.quarantine(job.id, WHY, "pool") is not None
        until(lambda: controller.jobs.detail(job.id).job.state is JobState.QUARANTINED)
        controller.jobs.confirm(job.id, 5)
        assert jobs_flows(edge, job.number) < open_flows
        detail = controller.jobs.detail(job.id)
        assert (detail.job.reason, detail.decision.quarantine, detail.decision.blocked) == (WHY, WHY, False)
        page = controller.jobs.page(JobFilter(state="live"), None, 10)
        assert [each.state for each in page.jobs] == [JobState.QUARANTINED]
        own = [flow.origin for flow in flows_of(controller, job.id)]
        assert own
        # Flows that count let nothing pass of themselves.
        assert all(WHY in origin for origin in own if not origin.startswith("counts for")), own
        # Another post of the same run, or a policy, opens nothing.
        post(controller, 1)
        controller.jobs.confirm(job.id, 5)
        assert controller.jobs.detail(job.id).job.state is JobState.QUARANTINED
        text = controller.policy.version.text
        controller.policy.put(text.replace("mallory", "nobody"), "test")
        assert jobs_flows(edge, job.number) < open_flows
        lifted = controller.jobs.lift(job.id, "ann")
        assert lifted.vouched
        until(lambda: controller.jobs.detail(job.id).job.state is JobState.ENFORCED)
        assert jobs_flows(edge, job.number) == open_flows
        with pytest.raises(NotFoundError):
            controller.jobs.lift("0" * 16, "ann")


def test_directory_and_pool_hold_one_object_for_a_job(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        jobs = [post(controller, number).job for number in (1, 2)]
        for job in jobs:
            controller.jobs.confirm(job.id, 5)
        loop = controller._reconciler
        for job in jobs:
            assert loop.directory.standing(job.number).state is JobState.ENFORCED
            assert loop.desired.placed[job.number].job is loop.directory.by_id[job.id]
            assert loop.desired.jobs_at(1)[job.number - 1] is loop.desired.placed[job.number]


def test_a_database_file_that_is_gone_or_another_is_seen(tmp_path: Path) -> None:
    with running(tmp_path) as controller:
        assert controller.health.ready().ready
        (tmp_path / "lark.db").rename(tmp_path / "away")
        assert "its file cannot be found" in controller.health.ready().reasons[0]
        (tmp_path / "lark.db").touch()
        assert "another file has taken its place" in controller.health.ready().reasons[0]
        (tmp_path / "away").rename(tmp_path / "lark.db")
        assert controller.health.ready().ready


def test_an_operator_lifts_a_quarantine_from_the_command_line(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    job = served.register()
    known = served.controls.jobs.known
    assert cli.main(["lift", job["id"]]) == cli.NO
    assert "in no quarantine" in capsys.readouterr().err
    assert not known[job["id"]].vouched
    known[job["id"]] = replace(known[job["id"]], state=JobState.QUARANTINED, quarantine=WHY, reason=WHY)
    assert cli.main(["jobs", "--state", "quarantined"]) == cli.OK
    assert WHY in capsys.readouterr().out
    assert cli.main(["lift", job["id"]]) == cli.OK
    assert capsys.readouterr().out == f"job 1.0 ({job['id']}) is in no quarantine\n"
    assert known[job["id"]].vouched
    assert cli.main(["lift", DPID]) == cli.NO
