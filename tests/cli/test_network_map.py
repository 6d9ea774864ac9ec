"""The tables of ``lark map``."""

from __future__ import annotations

import pytest

from lark_controller.cli import network_map

RATE = {"wan_outward": 0.0, "wan_inward": 0.0}


def test_a_single_job_has_no_other_of_its_user(capsys: pytest.CaptureFixture[str]) -> None:
    parties = [
        {"owner": "alice", "jobs": 2, "wan": "all", "reaches": ["all", "none"]},
        {"owner": "bob", "jobs": 1, "wan": "some", "reaches": ["none", "none"]},
    ]
    wan = {"rate": RATE, "capacity": None}
    network_map.show(
        {"wan": wan, "cores": [], "edges": [], "rest": [], "parties": parties, "other_owners": 0, "other_jobs": 0}
    )
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[-2:]] == [
        ["alice", "2", "all", "all", "none"],
        ["bob", "1", "some", "none", "–"],
    ]
