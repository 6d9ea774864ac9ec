"""The RPMs, installed, upgraded and removed by dnf.

No mirror of Enterprise Linux is asked: the root is Debian 12 with its systemd, and one RPM without files provides what
ours need, by the names that Enterprise Linux has for it. So dependencies, files, scripts, users and rights are tried;
the programs are not started, since their Python 3.12 is not there.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.settings import from_environment
from lark_controller import __version__
from tests.fixtures import own_network
from tests.install import images

PACKAGES = ("lark-access-point", "lark-controller", "lark-worker")
NEEDED = (
    "/bin/sh", "/usr/bin/python3", "/usr/bin/python3.12", "curl", "glibc", "iproute", "iproute-tc", "iputils", "libgcc",
    "libstdc++", "nftables", "openssl", "sudo", "systemd", "zlib",
)  # fmt: skip
STAND_IN = f"""\
Name: stand-in
Version: 1
Release: 1
Summary: Names of what the packages need
License: none
BuildArch: noarch
Provides: {", ".join(NEEDED)}
%description
Nothing.
%files
"""


@dataclass(frozen=True)
class Root:
    """A root file system into which dnf installs; ``upper`` has what is new there."""

    path: Path
    upper: Path

    def dnf(self, *words: str | Path, check: bool = True) -> str:
        """The output of dnf."""
        options = ("--assumeyes", f"--installroot={self.path}", "--setopt=reposdir=/nonexistent", "--releasever=9")
        cache = f"--setopt=cachedir={self.upper.parent}/cache"
        done = subprocess.run(
            ["dnf", *options, cache, "--nogpgcheck", "--setopt=install_weak_deps=False", *words],
            capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        said = done.stdout + done.stderr
        assert not check or done.returncode == 0, said
        return said

    def versions(self) -> set[str]:
        """Name, version and release of the packages that are installed."""
        asked = ["rpm", "--root", str(self.path), "-qa", "--queryformat", "%{NAME} %{VERSION}-%{RELEASE}\n"]
        said = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        return {line for line in said.splitlines() if line.startswith("lark-")}

    def run(self, *words: str) -> str:
        """The output of a program in there."""
        return subprocess.run(["chroot", self.path, *words], capture_output=True, text=True, check=True).stdout

    def mode(self, name: str) -> str:
        """Mode and owner of a file, links followed."""
        return self.run("stat", "-Lc", "%a %U %G", name).strip()

    def ours(self) -> set[str]:
        """Files and links that are new, but for those of the package database."""
        found = {f"/{path.relative_to(self.upper)}" for path in self.upper.rglob("*") if not path.is_dir()}
        # A removed file of the layer below, which stands there as a device, is none of ours.
        found -= {name for name in found if stat.S_ISCHR((self.upper / name[1:]).lstat().st_mode)}
        return {name for name in found if "lark" in name}


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    made = own_network.run_outside([sys.executable, "-m", "tests.install.images", "controller"])
    assert made.returncode == 0, made.stdout
    subprocess.run(["mount", "-t", "tmpfs", "root", tmp_path], check=True)
    try:
        for name in ("upper", "work", "root"):
            (tmp_path / name).mkdir()
        layers = f"lowerdir={images.controller(from_environment())},upperdir={tmp_path}/upper,workdir={tmp_path}/work"
        subprocess.run(["mount", "-t", "overlay", "root", "-o", layers, tmp_path / "root"], check=True)
        subprocess.run(["mount", "--bind", "/proc", tmp_path / "root/proc"], check=True)
        yield Root(tmp_path / "root", tmp_path / "upper")
    finally:
        subprocess.run(["umount", "--recursive", "--lazy", tmp_path], check=True)


@pytest.fixture
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-in")
    (folder / "stand-in.spec").write_text(STAND_IN)
    defined = [f"--define=_topdir {folder}", f"--define=_rpmdir {folder}"]
    subprocess.run(["rpmbuild", "-bb", "--quiet", *defined, folder / "stand-in.spec"], check=True, capture_output=True)
    return next(folder.rglob("*.rpm"))


@pytest.mark.parametrize("name", ["el9", "el10"])
def test_dnf_installs_upgrades_and_removes(
    name: str, rpms: dict[str, tuple[Path, Path]], root: Root, stand_in: Path
) -> None:
    first, second = (sorted(folder.glob("*.rpm")) for folder in rpms[name])
    assert len(first) == len(second) == len(PACKAGES)
    refused = root.dnf("install", *first, check=False)
    assert set(re.findall(r"nothing provides (\S+) needed by", refused)) <= set(NEEDED), refused
    assert root.versions() == set()

    root.dnf("install", stand_in, *first)
    assert root.versions() == {f"{package} {__version__}-1.{name}" for package in PACKAGES}
    for package in PACKAGES:
        verified = ["rpm", "--root", str(root.path), "--verify", package]
        assert subprocess.run(verified, capture_output=True, text=True).stdout == "", package
    assert root.run("getent", "passwd", "lark").endswith(":/var/lib/lark:/usr/sbin/nologin\n")
    assert {file: root.mode(file) for file in MODES} == MODES
    for text in ("/etc/lark/lark.env", "/etc/lark/worker.env"):
        with (root.path / text[1:]).open("a") as file:
            file.write("# the site's\n")
    # As the packages' scripts make them where Python is there.
    compiled = [root.path / f"usr/lib/{each}/lib/__pycache__" for each in ("lark-controller", "lark-worker")]
    for folder in compiled:
        folder.mkdir()
        (folder / "a.cpython-312.pyc").write_bytes(b"")

    root.dnf("upgrade", *second)
    assert root.versions() == {f"{package} {__version__}-2.{name}" for package in PACKAGES}
    assert {file: root.mode(file) for file in MODES} == MODES
    assert (root.path / "etc/lark/lark.env").read_text().endswith("# the site's\n")

    root.dnf("remove", *PACKAGES)
    assert root.versions() == set()
    left = root.ours()
    assert {os.path.dirname(file) for file in left} <= {"/etc/lark"}, left
    assert (root.path / "etc/lark/worker.env").read_text().endswith("# the site's\n")


# Some file of each kind, with its mode and owner.
MODES = {
    "/etc/lark": "755 root root",
    "/etc/lark/lark.env": "640 root lark",
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
