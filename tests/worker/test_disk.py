"""A worker whose disk takes nothing more: jobs that run go on and end, new ones are told why they do not start."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lark_worker.jobs import Jobs, key_of
from lark_worker.records import Record


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    """A file system that a test fills with :func:`fill`."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "full", str(tmp_path)], check=True)
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def fill(folder: Path) -> None:
    with (folder / "filling").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)


def a_record(number: int, jobs: Jobs) -> Record:
    return Record(
        id=f"{number:016x}", number=number, boot=jobs.boot, starter=10_000_000 + number, started=1,
        global_job_id=f"s#{number}.0#1", run_started=1, slot=f"slot{number}@w", owner="alice", namespace=f"ns{number}",
        port=f"p{number}", mac="02:00:00:00:00:01", network_type="ovs_bridge", address_type="static", body="x" * 2000,
        addresses=(), pending=("register",),
    )  # fmt: skip


def test_what_the_disk_does_not_take_is_known_all_the_same(full: Path) -> None:
    jobs = Jobs(full / "jobs")
    record = jobs.write(a_record(1, jobs))
    fill(full)
    key = key_of(record)
    assert jobs.change(key, over=True, exit_ad="y" * 9000, then="end").over
    jobs.told(key, "register")
    found = jobs.by_id(record.id)
    assert found is not None
    assert (found.over, found.pending) == (True, ("end",))
    with pytest.raises(OSError, match="No space left"):
        jobs.write(a_record(2, jobs))
    # What a service that starts now finds is older, and whole.
    assert [each.over for each in Jobs(full / "jobs").load()] == [False]
    jobs.forget(found)
    assert Jobs(full / "jobs").load() == []
