"""The service says at its start, and as long as it is so, that jobs can get around the wrapper."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lark_common import log
from lark_worker import cli
from lark_worker.errors import StartdError
from lark_worker.identity import wrapper_check
from lark_worker.identity.wrapper_check import OPEN, TOO_OLD, UNKNOWN, WrapperCheck
from tests.worker.pool import FakeStartd, Pool, eventually

SCRIPT = Path(__file__).parents[2] / "scripts/lark_job_wrapper.sh"


def test_what_the_startd_says_is_told_once_and_again_when_it_changes(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", "json")
    startd = FakeStartd()
    check = WrapperCheck(startd)
    assert check.problem == UNKNOWN
    seen = []
    for said in (StartdError("away"), StartdError("away still"), True, True, None, False, False, True):
        startd.network = said
        check.look()
        seen.append(check.problem)
    assert seen == [f"{UNKNOWN}: away", f"{UNKNOWN}: away still", OPEN, OPEN, TOO_OLD, "", "", OPEN]
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["level"], line.get("problem", "")) for line in lines] == [
        ("warning", f"{UNKNOWN}: away"),
        ("error", OPEN),
        ("error", TOO_OLD),
        ("info", ""),
        ("error", OPEN),
    ]


def test_the_service_asks_at_its_start_and_says_so_in_its_status(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wrapper_check, "SOON", 0.05)
    monkeypatch.setenv("LARK_WORKER_SOCKET", str(pool.socket))

    def said() -> tuple[int, str]:
        status = cli.main(["status"])
        return status, capsys.readouterr().out

    pool.stop_service()
    pool.startd.network = True
    pool.start_service()
    eventually(lambda: OPEN in said()[1])
    assert said()[0] == 1
    pool.startd.network = False
    eventually(lambda: said() == (0, "jobs: 0\nno problems\n"))


def test_programs_of_the_job_are_not_run_by_the_wrapper(tmp_path: Path) -> None:
    evil = tmp_path / "mktemp"
    evil.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    evil.chmod(0o755)
    for name in ("cat", "chmod"):
        (tmp_path / name).symlink_to(evil)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "_CONDOR_SCRATCH_DIR": str(tmp_path)}
    subprocess.run(["/bin/sh", str(SCRIPT), "true"], env=environment, capture_output=True, timeout=30, check=False)
    assert not (tmp_path / "ran").exists()
    kept = next(tmp_path.glob(".lark-environment.*")).read_bytes()
    assert f"PATH={tmp_path}:".encode() in kept
