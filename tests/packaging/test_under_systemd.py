"""The controller's package under a real systemd: installed, started, killed, upgraded, given a wrong setting, removed.

The short form of ``make install-test``: a container whose root is a layer over this machine's, with none of this
machine's services, and in the package the Python packages of this environment.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.install.machine import Machine, wait_until
from tests.packaging.conftest import stage
from tests.packaging.debs import packed

NAME = "lark.example"
# Where the container has this environment's Python and its packages: the service may not read homes.
PREFIX, PACKAGES = "/opt/python", "/opt/packages"
SETUP = f"lark setup --name {NAME} --address 127.0.0.1 --networks 10.64.0.0/16 --gateways 10.64.0.1"
READY = f"curl -s --cacert /etc/lark/ca.pem https://{NAME}:8443/readyz"
PID = "systemctl show -P MainPID lark-controller"
# This machine's own services are no part of the container.
HIDDEN = ("etc/systemd/system", "etc/init.d")
FILES = {
    "etc/hosts": f"127.0.0.1 localhost {NAME}\n",
    "etc/hostname": f"{NAME}\n",
    "etc/fstab": "",
    "etc/machine-id": "",
    "etc/rc.local": "",
    "etc/systemd/journald.conf": "[Journal]\nStorage=volatile\n",
    # Where Python was built with a library of its own, that would be looked for where the service may not read.
    "etc/systemd/system/lark-controller.service.d/python.conf": (
        f"[Service]\nEnvironment=LD_LIBRARY_PATH={PREFIX}/lib\n"
    ),
}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    subprocess.run(["mount", "-t", "tmpfs", "machine", tmp_path], check=True)
    upper = tmp_path / "disk" / "upper"
    for name in HIDDEN:
        (upper / name).mkdir(parents=True)
        os.setxattr(upper / name, "trusted.overlay.opaque", b"y")
    for name, text in FILES.items():
        (upper / name).parent.mkdir(parents=True, exist_ok=True)
        (upper / name).write_text(text)
    binds = (f"--bind-ro={sys.base_prefix}:{PREFIX}", f"--bind-ro={sysconfig.get_path('purelib')}:{PACKAGES}")
    made = Machine("short", NAME, Path("/"), tmp_path / "disk", binds, cable=False)
    try:
        made.boot()
        yield made
    finally:
        made.stop()
        subprocess.run(["umount", "--recursive", "--lazy", tmp_path], check=True)


@pytest.fixture(scope="module")
def packages(wheels: dict[str, Path], manuals: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two versions of the controller's package."""
    folder = tmp_path_factory.mktemp("controller")
    for package in ("lark_common", "lark_controller"):
        shutil.unpack_archive(wheels[package], folder / "site", "zip")
    (folder / "site" / "packages.pth").write_text(f"{PACKAGES}\n")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    tree = stage("controller", python, manuals, folder / "tree", folder / "site")
    own = tree / "usr/lib/lark-controller"
    (own / "bin/python").unlink()
    (own / "bin/python").symlink_to(f"{PREFIX}/bin/python{python}")
    (own / "pyvenv.cfg").write_text(f"home = {PREFIX}/bin\ninclude-system-site-packages = false\n")
    return [packed({"controller": tree}, folder / "packages", version)[0] for version in ("1", "2")]


def install(machine: Machine, package: Path) -> None:
    shutil.copy(package, f"/proc/{machine.leader}/root/var")
    machine.run(f"dpkg --no-triggers --force-depends --install /var/{package.name}")


def is_ready(machine: Machine) -> bool:
    """True if the controller answers that it is."""
    answer = machine.run(READY, check=False).stdout
    return bool(answer) and json.loads(answer)["ready"] is True


def test_the_controllers_package_under_systemd(machine: Machine, packages: list[Path]) -> None:
    first, second = packages
    install(machine, first)
    state = "systemctl is-enabled lark-controller || systemctl is-active lark-controller"
    assert machine.run(state, check=False).stdout.split() == ["disabled", "inactive"]
    machine.run(SETUP)
    machine.run("systemctl enable --now lark-controller.service")
    assert is_ready(machine), "started means ready"

    before = machine.run(PID).stdout.strip()
    machine.run(f"kill -9 {before}")
    wait_until(lambda: machine.run(PID).stdout.strip() not in (before, "0") and is_ready(machine), 60, "it is back")

    before = machine.run(PID).stdout
    install(machine, second)
    assert machine.run(PID).stdout != before
    assert is_ready(machine)

    machine.run("echo LARK_LOG_LEVEL=loud >> /etc/lark/lark.env")
    assert machine.run("systemctl restart lark-controller", check=False).returncode != 0
    said = machine.run("journalctl --no-pager -u lark-controller -n 20").stdout
    assert "LARK_LOG_LEVEL" in said
    assert "accepted" in said
    machine.run("sed -i '$d' /etc/lark/lark.env; systemctl restart lark-controller")
    assert is_ready(machine)

    machine.run("dpkg --no-triggers --remove lark-controller")
    gone = "! systemctl cat lark-controller; systemctl is-active lark-controller"
    assert machine.run(gone, check=False).stdout.strip() == "inactive"
    machine.run("test -e /var/lib/lark/lark.db")
