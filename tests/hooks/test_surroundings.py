"""The hook where HTCondor or the worker hands it something odd: ads, directories, programs, signals."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import classad2
import pytest

from tests.fixtures.hook import (
    ACCEPTED,
    HOOK,
    JOB_AD,
    Hook,
    StandIn,
    reply,
)


def test_attributes_that_are_not_utf_8_are_left_out(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED)]
    ad = JOB_AD.encode() + b'Title = "M\xfcller"\nCity = "Z\xc3\xbcrich"\n'
    outcome = hook.run("start", url=stand_in.url, stdin=ad)
    assert JOB_AD.encode() + 'City = "Zürich"\n'.encode() in stand_in.asked[0].body
    assert b"Title" not in stand_in.asked[0].body
    assert "left out" in outcome.stderr
    assert "HookStatusCode" not in outcome.ad


def test_of_a_very_large_ad_the_longest_attributes_are_left_out(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED)]
    ad = f'{JOB_AD}Environment = "{"x" * 1_000_000}"\nArgs = "-n 5"\n'
    outcome = hook.run("start", url=stand_in.url, stdin=ad.encode())
    assert f'{JOB_AD}Args = "-n 5"\n'.encode() in stand_in.asked[0].body
    assert len(stand_in.asked[0].body) < 10_000
    assert "left out" in outcome.stderr
    assert "HookStatusCode" not in outcome.ad
    # One that the controller takes goes out whole.
    ad = f'{JOB_AD}Environment = "{"x" * 100_000}"\n'
    assert hook.run("start", url=stand_in.url, stdin=ad.encode()).stderr == ""
    assert ad.encode() in stand_in.asked[1].body


@pytest.mark.parametrize("size", [0, 1_000_000, 5_000_000])
def test_an_ad_of_any_size_is_survived(hook: Hook, stand_in: StandIn, size: int) -> None:
    stand_in.answers = [reply(413, "the ads are larger than 262144 bytes")]
    outcome = hook.run("start", url=stand_in.url, stdin=b"x" * size)
    assert "262144" in str(outcome.ad["HookStatusMessage"])
    assert len(stand_in.asked[0].body) <= 2_200_000


def test_rubbish_on_standard_input_is_survived(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(422, "the job ad is no ClassAd")]
    for action in ("start", "update", "exit"):
        hook.run(action, url=stand_in.url, stdin=bytes(range(256)) * 64 + b"GlobalJobId = \0\xff\n")
    assert stand_in.asked[0].body.startswith(b"\1\2\3")


def test_a_missing_machine_ad_is_the_controllers_to_judge(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(422, "Name: the machine ad has none")]
    outcome = hook.run("start", url=stand_in.url, _CONDOR_MACHINE_AD="-")
    assert "no machine ad" in outcome.stderr
    assert stand_in.asked[0].body.rstrip().endswith(b"------")
    outcome = hook.run("start", url=stand_in.url, _CONDOR_MACHINE_AD="/nonexistent")
    assert "Name: the machine ad has none" in str(outcome.ad["HookStatusMessage"])


def test_nowhere_to_write_changes_nothing(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED)]
    for directory in ("/nonexistent", "/proc", "-"):
        outcome = hook.run("start", url=stand_in.url, _CONDOR_SCRATCH_DIR=directory)
        assert outcome.ad["LarkState"] == "enforced"
    outcome = hook.run("start", url=stand_in.url, LARK_STATE_DIR="/dev/full", TMPDIR="/dev/full")
    assert outcome.ad["LarkState"] == "enforced"


def test_a_full_disk_changes_nothing(hook: Hook, stand_in: StandIn) -> None:
    stand_in.answers = [reply(201, ACCEPTED)]
    scratch = hook.folder / "scratch"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "full", str(scratch)], check=True)
    try:
        (scratch / "data").write_bytes(b"x" * 4096)
        outcome = hook.run("start", url=stand_in.url, TMPDIR=str(scratch))
    finally:
        subprocess.run(["umount", str(scratch)], check=True)
    assert outcome.ad["LarkState"] == "enforced"


def test_without_curl_the_setting_decides(hook: Hook, tmp_path: Path) -> None:
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    shell = shutil.which(hook.shell[0])
    assert shell
    for program in ("cat", "head", "sed", "tr", "id", "ls", "date", "sleep", "tail", "sha256sum", "rm"):
        found = shutil.which(program)
        assert found
        (bin_ / program).symlink_to(found)
    (bin_ / hook.shell[0]).symlink_to(shell)
    outcome = hook.run("start", url="http://127.0.0.1:9", PATH=str(bin_), LARK_ON_FAILURE="hold")
    assert outcome.ad["HookStatusMessage"] == "Lark: curl is not installed"


def test_a_hook_that_is_interrupted_still_answers(hook: Hook, stand_in: StandIn) -> None:
    arrived = threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        arrived.set()
        stand_in.released.wait(120)

    stand_in.answers = [hang]
    environment = {"PATH": os.environ["PATH"], "LARK_URL": stand_in.url, "LARK_TIMEOUT": "4", "LARK_RETRIES": "0"}
    process = subprocess.Popen(
        [*hook.shell, str(HOOK), "start"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=environment
    )
    assert arrived.wait(30)
    process.terminate()
    stdout, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert dict(classad2.parseOne(stdout.decode()))["LarkState"] == "unmanaged"


def test_an_unknown_action_is_said_and_harmless(hook: Hook) -> None:
    for args in ((), ("begin",)):
        outcome = hook.run(*args)
        assert outcome.stdout == ""
        assert "usage:" in outcome.stderr
