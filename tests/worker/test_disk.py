"""A worker whose disk takes nothing more: jobs that run go on and end, new ones are told why they do not start."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from lark_worker.dhcp.lease import Cache, Lease
from lark_worker.records.known_jobs import KnownJobs, key_of
from lark_worker.records.records import Record
from tests.worker.pool import Pool, eventually


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


def a_record(number: int, jobs: KnownJobs) -> Record:
    return Record(
        id=f"{number:016x}", number=number, boot=jobs.boot, starter=10_000_000 + number, started=1,
        global_job_id=f"s#{number}.0#1", run_started=1, slot=f"slot{number}@w", owner="alice", namespace=f"ns{number}",
        port=f"p{number}", mac="02:00:00:00:00:01", network_type="ovs_bridge", address_type="static", body="x" * 2000,
        addresses=(), pending=("register",),
    )  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        "", "\0\0\0\0", "[" * 100_000, '{"a":' * 100_000, "[]", "null", "{}", '"' + "x" * 100,
        {"number": "first"}, {"number": None}, {"starter": 1e400}, {"started": True}, {"addresses": [5]},
        {"pending": [None]}, {"counted": {"out": "many"}}, {"counted": []}, {"vlan": "7"},
        {"made": "yes"}, {"body": None}, {"id": "../x"},
    ],
)  # fmt: skip
def test_a_damaged_record_is_passed_over_and_others_are_read(tmp_path: Path, damage: str | dict[str, object]) -> None:
    jobs = KnownJobs(tmp_path)
    records = [jobs.write(a_record(number, jobs)) for number in (1, 2, 3)]
    second = tmp_path / f"{records[1].id}.json"
    whole = json.loads(second.read_text())
    second.write_text(damage if isinstance(damage, str) else json.dumps(whole | damage))
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "half.new").write_bytes(b"\xff{")
    assert KnownJobs(tmp_path).load() == [records[0], records[2]]
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{records[0].id}.json", f"{records[2].id}.json"]


@pytest.mark.parametrize(
    "damage", ["", "\xff", "[" * 100_000, '{"length": Infinity}', {"length": 1e400}, {"mtu": None}, {"routes": [5]}]
)
def test_a_damaged_lease_is_forgotten(tmp_path: Path, damage: str | dict[str, object]) -> None:
    address = IPv4Address("10.64.0.9")
    lease = Lease(address, 24, IPv4Address("10.64.0.1"), 0.0, 50.0, 80.0, 100.0)
    cache = Cache(tmp_path)
    for mac in ("02:00:00:00:00:01", "02:00:00:00:00:02"):
        cache.write(mac, lease)
    file = tmp_path / "020000000001.json"
    whole = json.loads(file.read_text())
    file.write_text(damage if isinstance(damage, str) else json.dumps(whole | damage), "latin-1")
    assert cache.read("02:00:00:00:00:01", 1.0) is None
    assert cache.sweep(1.0) == 1
    assert cache.read("02:00:00:00:00:02", 1.0) == lease


def test_what_the_disk_does_not_take_is_known_all_the_same(full: Path) -> None:
    jobs = KnownJobs(full / "jobs")
    record = jobs.write(a_record(1, jobs))
    fill(full)
    key = key_of(record)
    assert jobs.change(key, over=True, exit_ad="y" * 9000, then="end").over
    jobs.delivered(key, "register")
    found = jobs.by_id(record.id)
    assert found is not None
    assert (found.over, found.pending) == (True, ("end",))
    with pytest.raises(OSError, match="No space left"):
        jobs.write(a_record(2, jobs))
    # What a service that starts now finds is older, and whole.
    assert [each.over for each in KnownJobs(full / "jobs").load()] == [False]
    jobs.forget(found)
    assert KnownJobs(full / "jobs").load() == []


@pytest.mark.ovs
def test_on_a_full_disk_jobs_end_and_new_ones_are_told_why_they_do_not_start(
    pool: Pool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool.stop_service()
    state = pool.folder / "worker"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "full", str(state)], check=True)
    try:
        pool.start_service()
        runs, late = pool.starter(1, "alice"), pool.starter(2, "bob")
        assert 'LarkState = "enforced"' in pool.hook(runs, "start", "alice", 1)
        fill(state)
        said = pool.hook(late, "start", "bob", 2)
        assert "this worker's disk does not take the job's record: No space left on device" in said
        pool.hook(runs, "exit", "alice", 1)
        eventually(lambda: list(pool.client.jobs()) == [])
        eventually(lambda: pool.leftovers() == [])

        # What nobody has thought of is answered, too, and the log says what it was.
        (state / "filling").unlink()

        def broken(*_: object) -> None:
            raise OSError(5, "Input/output error")

        monkeypatch.setattr(pool.worker, "register", broken)
        assert "The worker service failed; its log has the reason." in pool.hook(late, "start", "bob", 2)
        assert any("unexpected error" in record.getMessage() for record in caplog.records)
    finally:
        pool.stop_service()
        subprocess.run(["umount", str(state)], check=True)
