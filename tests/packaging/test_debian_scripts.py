"""The Debian packages, installed, upgraded, removed and purged by dpkg: files, modes, users and their scripts.

The short form of ``make install-test``: each package has Lark's own files and no Python packages, its root is a layer
over this machine's that is gone afterwards, and a program that notes its calls stands in HTCondor's place.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.packaging.conftest import ROLES
from tests.packaging.debs import packed

CALLS: Final = "var/lib/condor-calls"


class Machine:
    """A root file system into which dpkg installs."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *words: str | Path) -> str:
        """The output of a program in there, both streams as one; fails where it does."""
        command = ["chroot", str(self.path), *map(str, words)]
        done = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        assert done.returncode == 0, done.stdout
        return done.stdout

    def dpkg(self, *words: str | Path) -> str:
        """The output of dpkg, without the triggers of other packages, and without what ours depend on."""
        return self.run("dpkg", "--no-triggers", "--force-depends", *words)

    def install(self, packages: list[Path]) -> None:
        for package in packages:
            shutil.copy(package, self.path / "var")
        self.dpkg("--install", *(f"/var/{package.name}" for package in packages))

    def state(self, name: str) -> str:
        """Mode and owner of a file, links followed; empty where there is none."""
        if not (self.path / name[1:]).exists() and not (self.path / name[1:]).is_symlink():
            return ""
        return self.run("stat", "-Lc", "%a %U %G", name).strip()

    def calls(self) -> int:
        """The number of times that HTCondor was told to read its configuration again."""
        return len((self.path / CALLS).read_text().splitlines())


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    subprocess.run(["mount", "-t", "tmpfs", "root", tmp_path], check=True)
    try:
        for name in ("upper", "work", "root"):
            (tmp_path / name).mkdir()
        layers = f"lowerdir=/,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        subprocess.run(["mount", "-t", "overlay", "root", "-o", layers, tmp_path / "root"], check=True)
        subprocess.run(["mount", "--bind", "/proc", tmp_path / "root/proc"], check=True)
        made = Machine(tmp_path / "root")
        (made.path / CALLS).write_text("")
        stand_in = made.path / "usr/bin/condor_reconfig"
        stand_in.write_text(f"#!/bin/sh\necho called >>/{CALLS}\n")
        stand_in.chmod(0o755)
        yield made
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", tmp_path], check=True)


def test_dpkg_installs_upgrades_removes_and_purges(trees: dict[str, Path], machine: Machine, tmp_path: Path) -> None:
    folder = tmp_path / "packages"
    machine.install(packed(trees, folder, "1"))
    assert {name: machine.state(name) for name in MODES} == MODES
    assert machine.run("getent", "passwd", "lark").strip().endswith(":/var/lib/lark:/usr/sbin/nologin")
    # The access point's; a worker's waits until its startd is started again.
    assert machine.calls() == 1

    settings = ("etc/lark/lark.env", "etc/lark/worker.env")
    for name in settings:
        with (machine.path / name).open("a") as file:
            file.write("# the site's\n")
    for name in ("etc/lark/rest.pem", "etc/lark/join.env", "var/lib/lark/lark.db", "var/lib/lark-worker/jobs"):
        (machine.path / name).parent.mkdir(exist_ok=True)
        (machine.path / name).write_text("")
    machine.install(packed(trees, folder, "2"))
    assert {name: machine.state(name) for name in MODES} == MODES
    for name in settings:
        assert (machine.path / name).read_text().endswith("# the site's\n")

    before = machine.calls()
    machine.dpkg("--remove", *(f"lark-{role}" for role in ROLES))
    assert machine.calls() == before + 2, "the worker's HTCondor and the access point's"
    left = {name for name in MODES if machine.state(name)}
    assert left == {name for name in MODES if name.startswith("/etc/lark")}, left
    for name in settings:
        assert (machine.path / name).read_text().endswith("# the site's\n")
    assert machine.state("/var/lib/lark/lark.db")

    machine.dpkg("--purge", *(f"lark-{role}" for role in ROLES))
    assert [path.name for path in (machine.path / "etc/lark").iterdir()] == ["rest.pem"]
    assert not machine.state("/var/lib/lark")
    assert not machine.state("/var/lib/lark-worker")


# Some file of each kind, with its mode and owner.
MODES: Final = {
    "/etc/lark": "755 root root",
    "/etc/lark/lark.env": "640 root lark",
    "/etc/lark/policy.yaml": "640 root lark",
    "/etc/lark/tokens.yaml": "600 lark lark",
    "/etc/lark/worker.env": "600 root root",
    "/etc/lark/hook.conf": "644 root root",
    "/etc/sudoers.d/lark": "440 root root",
    "/etc/condor/config.d/50-lark.conf": "644 root root",
    "/etc/condor/config.d/51-lark-access-point.conf": "644 root root",
    "/usr/lib/systemd/system/lark-controller.service": "644 root root",
    "/usr/lib/systemd/system/lark-worker.service": "644 root root",
    "/usr/libexec/lark/lark-start": "755 root root",
    "/usr/libexec/lark/lark-enter": "755 root root",
    "/usr/sbin/lark-base-flows": "755 root root",
}
