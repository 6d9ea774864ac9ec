"""Two test runs side by side: neither sees the network namespaces of the other, nor what is kept under their names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Makes a namespace with a file of its own, and tells all that there are once it is asked.
RUN = """
import os, subprocess, sys
from pathlib import Path
from tests.fixtures import own_network
own_network.enter()
subprocess.run(["ip", "netns", "add", sys.argv[1]], check=True)
Path("/etc/netns", sys.argv[1]).mkdir()
print("made", flush=True)
sys.stdin.readline()
print(*os.listdir("/run/netns"), *os.listdir("/etc/netns"))
"""


@pytest.mark.ovs
def test_a_run_meets_no_namespace_of_another() -> None:
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", RUN, name], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for name in ("one", "other")
    ]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == "made\n"
    assert [run.communicate("\n", timeout=60)[0].split() for run in runs] == [["one"] * 2, ["other"] * 2]
    assert not any(Path(folder, name).exists() for folder in ("/run/netns", "/etc/netns") for name in ("one", "other"))
