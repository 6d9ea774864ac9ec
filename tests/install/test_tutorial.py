"""The tutorial, followed to the letter: its commands in a shell beside the demo that it starts, in their order."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.install.engine import ROOT
from tests.install.machine import wait_until
from tests.install.pages import blocks

PAGE = ROOT / "docs" / "tutorial.md"
# Blocks that are no commands of the second shell.
START, ENTER = "KEEP=1 make demo\n", "nsenter "
_PICTURE = r"(?m)^ {4}alice-1,? .*\n(?: {4}.*\n|\n(?= {4}))*"
_MARK = "@@ block"


def told() -> list[str]:
    """The blocks for the second shell."""
    page = re.sub(_PICTURE, "", PAGE.read_text())
    return [block for block in blocks(page) if block != START and not block.startswith(ENTER)]


def test_no_command_names_an_external_address() -> None:
    """The one that a job gets depends on how long ago the demo released its own."""
    assert [block for block in told() if "203.0.113." in block] == []


@pytest.fixture(scope="module")
def tutorial(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The output of each block, by the block."""
    output = tmp_path_factory.mktemp("tutorial") / "output"
    with output.open("wb") as file:
        demo = subprocess.Popen(
            ["sh", "-c", START], cwd=ROOT, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
    try:
        said: list[str] = []

        def kept() -> bool:
            assert demo.poll() is None, output.read_text()
            said[:] = re.findall(r"(?m)^ *(nsenter --net .*|\. /\S+)$", output.read_text())
            return len(said) == 2

        wait_until(kept, 180, "the demo says how to look around")
        entering, reading = said
        script = f". {reading.split()[1]}\n"
        for number, block in enumerate(told()):
            script += f"echo '{_MARK} {number}'\n{{\n{block}}} 2>&1\n"
        done = subprocess.run(
            [*entering.split(), "bash", "-c", script], capture_output=True, text=True, timeout=400, cwd=ROOT
        )
        parts = re.split(rf"(?m)^{_MARK} \d+\n", done.stdout)[1:]
        yield dict(zip(told(), parts, strict=True))
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGINT)
            demo.wait(60)


def of(tutorial: dict[str, str], *words: str) -> str:
    """The output of the one block with these words."""
    (found,) = (said for block, said in tutorial.items() if all(word in block for word in words))
    return found


def answered(said: str) -> list[bool]:
    """True where each ping has had an answer."""
    return [number != "0" for number in re.findall(r"(\d+) received", said)]


def verdicts(said: str) -> list[str]:
    """The last line of each explanation."""
    return re.findall(r"(?m)^(dropped|forwarded): ", said)


def test_jobs_and_switches_are_as_the_page_says(tutorial: dict[str, str]) -> None:
    jobs = re.findall(r"(?m)^\d+\.0 +(\w+) +(\w+)", tutorial["lark jobs\n"])
    assert [owner for state, owner in jobs if state == "enforced"] == ["alice", "alice", "bob", "mallory"]
    assert [owner for state, owner in jobs if state == "blocked"] == ["carol", "carol"]
    assert "slice" in of(tutorial, "lark jobs 10.64.0.3")
    ports = re.findall(r"(?m)^\d+ +\w+ +(job|closed)\b", of(tutorial, "lark switches worker1"))
    assert ports == ["job", "job", "job", "closed"]
    assert answered(of(tutorial, "on stranger")) == [False]


def test_reasons_are_as_the_page_says(tutorial: dict[str, str]) -> None:
    assert answered(of(tutorial, "on bob ping -c 2 192.0.2.1\n")) == [False, True]
    assert verdicts(of(tutorial, "lark explain 10.64.0.3 192.0.2.1\n")) == ["dropped", "forwarded"]
    assert verdicts(of(tutorial, "lark explain 2001:db8:64::3")) == ["dropped", "dropped"]


def test_the_policy_changes_as_the_page_says(tutorial: dict[str, str]) -> None:
    planned = of(tutorial, "lark plan")
    assert "no mistakes" in planned
    assert "3 of 6 jobs" in planned
    assert answered(of(tutorial, "cp /tmp/new.yaml $POLICY\nsleep")) == [True, True, False]
    steered = of(tutorial, "tcpdump")
    assert verdicts(steered) == ["forwarded"]
    captured = re.findall(r"ICMP echo (\w+)", steered)
    assert captured
    assert set(captured) == {"request"}
    refused = of(tutorial, "bad.yaml")
    assert refused.count("policies[1].slice") >= 4
    assert "policy file not used" in refused


def test_the_outside_calls_a_job_as_the_page_says(tutorial: dict[str, str]) -> None:
    called = of(tutorial, "lark external add")
    assert "<!DOCTYPE" in called
    assert verdicts(called) == ["forwarded"]


def test_a_job_ends_and_starts_again_as_the_page_says(tutorial: dict[str, str]) -> None:
    said = of(tutorial, "hook alice-2 exit")
    assert answered(said) == [False, True]
    assert verdicts(said) == ["dropped"]
    assert 'LarkState = "enforced"' in said
    assert "cookie=0x1a4b" in of(tutorial, "flows core1")
