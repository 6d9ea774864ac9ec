"""The site's own programs: VLANs by name, and what runs at the start and at the end of a job's namespace."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from lark_worker.life.site_program import MAX_OUTPUT, Ended, run_program
from tests.worker.pool import Pool, a_pool, eventually
from tests.worker.test_jobs import value
from tests.worker.test_killed import service

pytestmark = pytest.mark.ovs

# What ships as an example, which does what the paper's does (section IV): names in the ads, numbers in the end.
NAMES = str(Path(__file__).parents[2] / "etc" / "vlan-names.sh")
NOTES = """#!/bin/sh
cat >{folder}/$1.ads
ip netns exec "$LARK_NAMESPACE" ip -brief link show eth0 >{folder}/$1.link 2>&1
echo "$1 $LARK_JOB_ID $LARK_EXTERNAL_INTERFACE" >>{folder}/calls
if [ -e {folder}/refuse ]; then echo "not today" >&2; exit 1; fi
"""
# Kills the service that runs it, the first time.
KILLS = """#!/bin/sh
echo "$1" >>{folder}/calls
if mkdir {folder}/killed 2>/dev/null; then kill -9 $PPID; fi
"""


def program(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@contextmanager
def noting(ovs: OpenVSwitch, net: Net) -> Iterator[tuple[Pool, Path]]:
    with temporary_directory() as name:
        folder = Path(name)
        script = program(folder / "notes", NOTES.format(folder=folder))
        with a_pool(folder, ovs, net, namespace_script=script) as pool:
            yield pool, folder


@contextmanager
def a_worker(ovs: OpenVSwitch, net: Net, **settings: str) -> Iterator[Pool]:
    with temporary_directory() as name, a_pool(Path(name), ovs, net, **settings) as pool:
        yield pool


def asking(pool: Pool, vlan: str) -> str:
    """The hook's output for a job that asks for a VLAN, on a slot that has what the job asks for."""
    starter = pool.starter(1, "alice", "VLAN = TARGET.RequestedVLAN\n")
    return pool.hook(starter, "start", "alice", 1, f"RequestedVLAN = {vlan}\n")


@pytest.mark.parametrize(("asked", "number"), [('"physics"', 41), ('"chemistry"', 42), ("7", 7), ("undefined", None)])
def test_a_vlan_by_name_becomes_the_workers_number(ovs: OpenVSwitch, net: Net, asked: str, number: int | None) -> None:
    with a_worker(ovs, net, script=NAMES) as pool:
        said = asking(pool, asked)
        assert value(said, "LarkState") == "enforced", said
        assert pool.client.job(value(said, "LarkJobId"))["vlan"] == number


@pytest.mark.parametrize(
    ("script", "reason"),
    [({"script": NAMES}, "this worker has no VLAN of that name"), ({}, "a name is for the site's script to turn")],
)
def test_a_name_that_nobody_turns_is_refused_with_the_reason(
    ovs: OpenVSwitch, net: Net, script: dict[str, str], reason: str
) -> None:
    with a_worker(ovs, net, **script) as pool:
        assert reason in value(asking(pool, '"alchemy"'), "HookStatusMessage")


def test_a_script_runs_at_the_start_and_the_end_of_the_namespace_with_both_ads(ovs: OpenVSwitch, net: Net) -> None:
    with noting(ovs, net) as (pool, folder):
        starter = pool.starter(1, "alice", "Rack = 7\n")
        said = pool.hook(starter, "start", "alice", 1, "Experiment = 9\n")
        job = value(said, "LarkJobId")
        device = value(said, "LarkExternalInterface")
        assert (folder / "calls").read_text() == f"start {job} {device}\n"
        # A second question of the same hook is no second start.
        pool.hook(starter, "start", "alice", 1)
        # The service starts again: the job runs on, and its end is told.
        pool.stop_service()
        pool.start_service()
        pool.hook(starter, "exit", "alice", 1)
        eventually(lambda: (folder / "calls").read_text() == f"start {job} {device}\nend {job} {device}\n")
        for action in ("start", "end"):
            own, _, machine = (folder / f"{action}.ads").read_text().partition("\n------\n")
            assert "Experiment = 9" in own
            assert "Rack = 7" in machine
            assert 'LarkInternalInterface = "eth0"' in machine
            # At both moments the namespace is there.
            assert (folder / f"{action}.link").read_text().startswith("eth0")
        eventually(lambda: not pool.leftovers())


def test_a_script_that_fails_at_the_start_refuses_the_job(ovs: OpenVSwitch, net: Net) -> None:
    with noting(ovs, net) as (pool, folder):
        (folder / "refuse").touch()
        said = pool.hook(pool.starter(1, "alice"), "start", "alice", 1)
        assert "not today" in value(said, "HookStatusMessage")
        eventually(lambda: not pool.leftovers())
        assert (folder / "calls").read_text().startswith("start ")
        assert "end" not in (folder / "calls").read_text()


def test_what_a_script_leaves_in_the_background_is_not_waited_for(ovs: OpenVSwitch, net: Net) -> None:
    """A capture of the job's packets, say, which has the script's output for its own."""
    with temporary_directory() as name:
        folder = Path(name)
        text = f'#!/bin/sh\n[ "$1" = end ] || {{ yes & echo $! >{folder}/pid; }}\n'
        try:
            with a_pool(folder, ovs, net, namespace_script=program(folder / "starts", text)) as pool:
                said = pool.hook(pool.starter(1, "alice"), "start", "alice", 1)
                assert value(said, "LarkState") == "enforced"
        finally:
            # It has ended by itself where its output went to a pipe that is closed.
            subprocess.run(["kill", (folder / "pid").read_text().strip()], check=False, capture_output=True)


def test_a_program_that_fails_is_told_by_its_last_line_and_need_not_read(tmp_path: Path) -> None:
    lines = "echo first >&2; head -c 300000 /dev/zero >&2; printf 'no\\n  the disk is full \\n' >&2; exit 1"
    failing = program(tmp_path / "fails", f"#!/bin/sh\n{lines}\n")
    assert run_program([failing], "ad\n" * 100_000).why == "  the disk is full"
    silent = program(tmp_path / "silent", "#!/bin/sh\nexit 3\n")
    assert run_program([silent, "end"], "").why == f"{silent} end ended with status 3"
    absent = str(tmp_path / "absent")
    assert run_program([absent], "").why == f"{absent} cannot be run: No such file or directory"


def test_of_what_a_program_prints_no_more_is_kept_than_is_read(tmp_path: Path) -> None:
    for size, kept in ((MAX_OUTPUT, MAX_OUTPUT), (3 * MAX_OUTPUT, MAX_OUTPUT + 1)):
        prints = program(tmp_path / f"prints{size}", f"#!/bin/sh\nhead -c {size} /dev/zero | tr '\\0' x\n")
        assert run_program([prints], "") == Ended("", b"x" * kept)


@pytest.mark.parametrize(("lives", "calls"), [(True, ["start", "start", "end"]), (False, ["start", "end"])])
def test_a_service_that_is_killed_while_the_script_runs_leaves_no_job_without_it(
    ovs: OpenVSwitch, net: Net, lives: bool, calls: list[str]
) -> None:
    with temporary_directory() as name:
        folder = Path(name)
        script = program(folder / "kills", KILLS.format(folder=folder))
        with a_pool(folder, ovs, net, namespace_script=script) as pool:
            pool.stop_service()
            starter = pool.starter(1, "alice")
            with service(pool) as running:
                pool.hook(starter, "start", "alice", 1)
                running.wait(30)
            if not lives:
                starter.kill()
            with service(pool):
                if lives:
                    assert value(pool.hook(starter, "start", "alice", 1), "LarkState") == "enforced"
                    starter.kill()
                eventually(lambda: pool.leftovers() == [])
                eventually(lambda: (folder / "calls").read_text().split() == calls)


def test_a_script_that_fails_at_the_end_holds_nothing_up(ovs: OpenVSwitch, net: Net) -> None:
    with noting(ovs, net) as (pool, folder):
        starter = pool.starter(1, "alice")
        said = pool.hook(starter, "start", "alice", 1)
        (folder / "refuse").touch()
        starter.kill()
        eventually(lambda: pool.client.job(value(said, "LarkJobId"))["state"] == "ended")
        eventually(lambda: not pool.leftovers())
        assert (folder / "calls").read_text().count("end") == 1


def test_a_slots_ad_has_both_ends_of_its_jobs_link(ovs: OpenVSwitch, net: Net) -> None:
    with temporary_directory() as name, a_pool(Path(name), ovs, net, usage_interval="0.1") as pool:
        starter = pool.starter(1, "alice")
        said = pool.hook(starter, "start", "alice", 1)
        slots = pool.socket.parent / "slots"
        outer = f'ExternalInterface = "{value(said, "LarkExternalInterface")}"'
        eventually(lambda: slots.exists() and outer in slots.read_text())
        assert 'InternalInterface = "eth0"' in slots.read_text()
        pool.hook(starter, "exit", "alice", 1)
        eventually(lambda: "ExternalInterface = undefined" in slots.read_text())
