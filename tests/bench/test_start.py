"""The reading of a starter's log by the measurement of a job's start."""

from __future__ import annotations

import pytest

from bench import start
from lab import starts

LOG = """\
11/21/26 07:40:20.000 Process exited, pid=1, status=0
11/21/26 07:40:20.100 **** condor_starter (condor_STARTER) pid 3484 EXITING WITH STATUS 0
11/21/26 07:40:24.582 ******************************************************
11/21/26 07:40:24.582 ** condor_starter (CONDOR_STARTER) STARTING UP
11/21/26 07:40:25.632 Starting job as guided...
11/21/26 07:40:25.643 PREPARE_JOB (/usr/local/libexec/lark/lark-start) invoked.
11/21/26 07:40:26.092 Job 4.0 set to execute immediately
11/21/26 07:40:26.100 Create_Process succeeded, pid=3541
11/21/26 07:40:26.174 Process exited, pid=3541, status=0
11/21/26 07:40:26.218 **** condor_starter (condor_STARTER) pid 3485 EXITING WITH STATUS 0
"""
FIRST = 1795246826.160  # 07:40:26.160


def test_the_last_job_of_a_log_is_split_into_stages() -> None:
    found = starts.stages({**starts.moments(LOG), "first": FIRST})
    assert found == pytest.approx({"hook": 460, "wrapper": 60, "start": 528, "end": 44, "batch": 1636}, abs=0.5)


def test_a_job_without_a_hook_has_the_same_stages() -> None:
    plain = "".join(line for line in LOG.splitlines(keepends=True) if "PREPARE_JOB" not in line)
    assert starts.stages({**starts.moments(plain), "first": FIRST})["hook"] == pytest.approx(460, abs=0.5)


def test_the_table_names_differences_and_ratios_of_one_run() -> None:
    both = {name: {"p50": 100.0, "p95": 200.0} for name in start.STAGES}
    lark = {name: {"p50": 150.0, "p95": 300.0} for name in start.STAGES}
    machine = {"cores": 2, "kernel": "6.1", "load": 0.5}
    text = start.table(
        {
            "machine": machine,
            "kind": "native",
            "rounds": 20,
            "with": lark,
            "without": both,
            "load_after": 1.0,
            "realtime": False,
        }
    )
    assert text.count("| 100, 200 ms | 150, 300 ms | +50 ms | 1.50 |") == len(start.STAGES)
