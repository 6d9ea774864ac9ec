"""Podman with images and containers in a directory of the test's own; it runs in containers, too."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
# Seconds for one step; the image's packages come from a network.
TIMEOUT: Final = 900
# Root of a container may not raise limits, and podman asks for that.
_RUNTIME: Final = """#!/usr/bin/python3
import json, os, sys
given = sys.argv[1:]
def plain(path, inner):
    document = json.load(open(path))
    (document["process"] if inner else document).pop("rlimits", None)
    json.dump(document, open(path, "w"))
for word, after in zip(given, given[1:] + [""]):
    if word in ("--bundle", "-b"):
        plain(os.path.join(after, "config.json"), True)
    elif word in ("--process", "-p") and "exec" in given:
        plain(after, False)
os.execv("/usr/bin/crun", ["crun", *given])
"""
_CONTAINERS: Final = """[engine]
runtime = "plain"
cgroup_manager = "cgroupfs"
events_logger = "file"
[engine.runtimes]
plain = ["{folder}/runtime"]
"""
_STORAGE: Final = """[storage]
driver = "overlay"
graphroot = "{folder}/images"
runroot = "{folder}/run"
"""
# Mounts of one command are those of the next, and end with the last. crun takes either kind of cgroups, and not both
# beside each other.
ALONE: Final = (
    "unshare", "--mount", "--propagation", "private", "sh", "-c",
    'umount /sys/fs/cgroup/unified 2>/dev/null || true; exec "$@"', "alone",
)  # fmt: skip


class Engine:
    """Podman on ``folder``, in a program that was started by :data:`ALONE`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in (("runtime", _RUNTIME), ("containers.conf", _CONTAINERS), ("storage.conf", _STORAGE)):
            path = folder / name
            path.write_text(text.replace("{folder}", str(folder)))
            path.chmod(0o755)

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which podman finds its settings."""
        return {
            **os.environ,
            "CONTAINERS_CONF": str(self.folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(self.folder / "storage.conf"),
        }

    def run(
        self, command: Sequence[str | Path], *, cwd: Path = ROOT, given: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run a program with podman's settings; fails where it does."""
        done = subprocess.run(
            command,
            cwd=cwd, env=self.environment, input=given, capture_output=True, text=True, timeout=TIMEOUT, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done
