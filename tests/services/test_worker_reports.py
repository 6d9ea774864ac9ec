"""The lines of the log and of the audit trail that reports of a worker's queues cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_controller.api.audit import Happening
from lark_controller.api.workers import Delivered
from lark_controller.controller import Controller
from lark_controller.qos.delivery import Counters
from lark_controller.reconcile.guarantees import LINES_AT_ONCE
from lark_controller.reconcile.missed_guarantees import MISSED, OVER
from tests.common.test_worker_rules import HOST, POLICY, post, ruling
from tests.fixtures.controllers import running, until

QUEUES = 2_000
GUARANTEED = POLICY + "  - bandwidth: {mode: guarantee, default: 1Mbit}\n"


def test_reports_of_thousands_of_missed_guarantees_are_few_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ruling(tmp_path) as controller:
        job = post(controller, 1).job
        controller.switches.all()
        missed = [
            controller.workers.delivered(
                HOST,
                {
                    (job.id, f"eth0/{number}"): Delivered(1_000_000, Counters(at, 0, 0, None, at))
                    for number in range(QUEUES)
                },
            )
            for at in (0.0, 10.0, 20.0, 30.0)
        ]
    assert missed == [0, QUEUES, QUEUES, QUEUES]
    lines = [record for record in caplog.records if record.getMessage() == "guarantee missed"]
    assert LINES_AT_ONCE <= len(lines) <= LINES_AT_ONCE + 3


def test_a_part_of_what_is_left_is_no_guarantee_that_is_missed(tmp_path: Path) -> None:
    with running(tmp_path, GUARANTEED) as controller:
        job = post(controller, 1).job

        def report(at: float, sent: float) -> int:
            """A queue with 20 Mb/s for certain that had always more to send than ``sent`` Mb/s."""
            counted = Counters(at, round(sent * at * 1e6 / 8), 0, None, at)
            return controller.workers.delivered(HOST, {(job.id, "eth0"): Delivered(20_000_000, counted)})

        assert [report(at, 1.1) for at in (0.0, 10.0)] == [0, 0]
        assert [report(at, 0.8) for at in (1000.0, 1010.0)] == [1, 1]
        until(lambda: bool(told_of(controller, job.id)))
        ((_, text),) = told_of(controller, job.id)
        assert " of 1 Mb/s at uplink eth0 of worker1" in text


def test_a_missed_guarantee_has_an_end_in_the_trail_also_after_a_takeover(tmp_path: Path) -> None:
    def report(controller: Controller, at: float, **waited: float) -> int:
        found = {
            (jobs[name], "eth0/1"): Delivered(1_000_000, Counters(at, 0, 0, None, waited[name])) for name in waited
        }
        return controller.workers.delivered(HOST, found)

    def told(controller: Controller, name: str) -> list[str]:
        entries = controller.audit.page(jobs[name], None, 100).entries[::-1]
        return [each.action for each in entries if each.action.startswith("guarantee")]

    with running(tmp_path, GUARANTEED) as controller:
        jobs = {name: post(controller, number).job.id for number, name in enumerate(("idles", "ends"), 1)}
        assert [report(controller, at, idles=at, ends=at) for at in (0.0, 10.0, 20.0)] == [0, 2, 2]
        until(lambda: told(controller, "idles") == told(controller, "ends") == [MISSED])
    with running(tmp_path, GUARANTEED) as controller:
        found = [report(controller, at, idles=20.0, ends=at) for at in (30.0, 40.0, 50.0, 60.0)]
        assert found == [0, 1, 1, 1]
        until(lambda: told(controller, "idles") == [MISSED, OVER])
        controller.jobs.end(jobs["ends"], "test")
        controller._checks.note_late()
        until(lambda: told(controller, "ends") == [MISSED, OVER])
    with running(tmp_path, GUARANTEED) as controller:
        controller._checks.note_late()
        assert [told(controller, name) for name in jobs] == [[MISSED, OVER]] * 2


def test_a_missed_guarantee_that_goes_while_no_controller_runs_ends_at_the_start(tmp_path: Path) -> None:
    with running(tmp_path, GUARANTEED) as controller:
        job = post(controller, 1).job.id
        for at in (0.0, 10.0):
            controller.workers.delivered(HOST, {(job, "eth0/1"): Delivered(1_000_000, Counters(at, 0, 0, None, at))})
        until(lambda: bool(told_of(controller, job)))
    with running(tmp_path, GUARANTEED) as controller:
        controller._checks.note_late()
        assert [action for action, _ in told_of(controller, job)] == [MISSED]
    with running(tmp_path, POLICY) as controller:
        controller._checks.note_late()
        until(lambda: [action for action, _ in told_of(controller, job)] == [MISSED, OVER])
        assert told_of(controller, job)[-1][1].endswith(
            "uplink eth0 of worker1: the policy promises it nothing any more"
        )


def test_a_missed_guarantee_of_a_group_ends_at_the_start_where_the_policy_has_it_no_more(tmp_path: Path) -> None:
    having = """
version: 1
networks: {local: [10.0.0.0/8]}
switches: {core1: {datapath: "00000000000000c0", role: core, groups_by: queues, ports: {lan: 1, wan: 2}}}
groups: {cms: {dscp: 10, guarantee: 10Mbit, ceiling: 20Mbit}}
"""
    subject, text = "00000000000000c0", "group cms got 1.0 of 10 Mb/s at port eth1 for 60 s, and had more to send"
    with running(tmp_path, having) as controller:
        controller._journal.note(Happening(subject, MISSED, text))
    found = []
    for policy in (having, having.replace("guarantee: 10Mbit, ", ""), having):
        # What was noted is written as the controller stops.
        with running(tmp_path, policy) as controller:
            controller._checks.note_late()
        with running(tmp_path, policy) as controller:
            found.append([action for action, _ in told_of(controller, subject)])
    assert found == [[MISSED], [MISSED, OVER], [MISSED, OVER]]


def told_of(controller: Controller, subject: str) -> list[tuple[str, str]]:
    entries = controller.audit.page(subject, None, 100).entries[::-1]
    return [(each.action, each.detail) for each in entries if each.action.startswith("guarantee")]


def test_each_uplink_of_a_job_has_its_own_beginning_and_end_in_the_trail(tmp_path: Path) -> None:
    with ruling(tmp_path) as controller:
        job = post(controller, 1).job.id

        def report(at: float, *waited: float) -> list[tuple[str, str]]:
            found = {
                (job, f"eth{number}"): Delivered(1_000_000, Counters(at, 0, 0, None, each))
                for number, each in enumerate(waited)
            }
            controller.workers.delivered(HOST, found)
            entries = controller.audit.page(job, None, 100).entries[::-1]
            told = [each for each in entries if each.action in (MISSED, OVER)]
            return [(each.action, "eth0" if "eth0" in each.detail else "eth1") for each in told]

        report(0.0, 0.0, 0.0)
        report(10.0, 10.0, 0.0)
        until(lambda: report(10.0, 10.0, 0.0) == [(MISSED, "eth0")])
        report(20.0, 20.0, 10.0)
        until(lambda: report(20.0, 20.0, 10.0) == [(MISSED, "eth0"), (MISSED, "eth1")])
