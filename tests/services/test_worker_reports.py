"""The lines of the controller's log that a worker's token may cause by reports of its queues."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_controller.api.workers import Delivered
from lark_controller.qos.delivery import Counters
from lark_controller.reconcile.guarantees import LINES_AT_ONCE
from tests.common.test_worker_rules import HOST, post, ruling

QUEUES = 2_000


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
