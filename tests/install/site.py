"""The site of the tests: a controller, a central machine and two workers, set up by the how-to pages' own commands."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.inside import condor
from lab.inside.topology import BY_NAME, DOMAIN, hosts_file
from lab.settings import LabSettings
from tests.install import images
from tests.install.machine import Machine, make_lan, wait_until
from tests.install.pages import Page

WORKERS: Final = ("worker1", "worker2")
ROUTER: Final = "10.0.0.1"
# The machines that are Debian 13 and get its packages; the others are Debian 12, but for the central one, which is
# Debian testing and gets the package for access points alone, the same for each Debian.
DISTRIBUTIONS: Final = {"worker2": "debian13", "newer": "debian13"}
DEBIAN12: Final = "debian12"
SUITES: Final = {"debian12": "bookworm", "debian13": "trixie"}
# What stands in the pages for the site's own.
NAMES: Final = {
    "lark.example": f"controller.{DOMAIN}",
    "worker1.example": f"worker1.{DOMAIN}",
    "192.0.2.10": BY_NAME["controller"].address,
}
_NETWORK: Final = f"""\
[Match]
Name=eth0
[Network]
LinkLocalAddressing=no
Address={{address}}/16
Gateway={ROUTER}
"""


@dataclass
class Site:
    """The machines by name, the two builds of the packages by distribution, and the pages."""

    machines: dict[str, Machine]
    builds: dict[str, tuple[Path, Path]]
    pages: dict[str, Page]

    def __getitem__(self, name: str) -> Machine:
        return self.machines[name]

    def page(self, name: str) -> Page:
        """A how-to page, by its file's name without the ending."""
        return self.pages.setdefault(name, Page(f"{name}.md", NAMES))

    def copy(self, package: str, machine: str, build: int = 0) -> None:
        """Copy a package of a build to a machine."""
        self.put(self.builds[distribution(machine)][build], package, machine)

    def put(self, packages: Path, package: str, machine: str) -> None:
        """Copy a package from a directory to a machine's home of root, in place of an earlier one."""
        self[machine].run(f"rm -f /root/{package}_*.deb")
        (found,) = packages.glob(f"{package}_*.deb")
        folder = Path(f"/proc/{self[machine].leader}/root/root")
        shutil.copy(found, folder / found.name)

    def lark(self, command: str) -> Any:
        """The answer of ``lark COMMAND --json`` on the controller's host."""
        return json.loads(self["controller"].run(f"{self.operator}\nlark {command} --json").stdout)

    @property
    def operator(self) -> str:
        """The line that makes one the operator."""
        return self.page("controller").block("export LARK_URL").rpartition("lark switches")[0]


def distribution(machine: str) -> str:
    """The distribution whose packages a machine gets."""
    return DISTRIBUTIONS.get(machine, DEBIAN12)


@contextmanager
def running(settings: LabSettings, builds: dict[str, tuple[Path, Path]], folder: Path) -> Iterator[Site]:
    """The site with its machines on and the pool running, without Lark; all is gone at the end."""
    make_lan(f"{ROUTER}/16", "10.64.0.1/16")
    roots = {
        "controller": images.controller(settings),
        "central": images.pool(settings),
        **{name: images.worker(settings, SUITES[distribution(name)]) for name in WORKERS},
    }
    machines = {name: Machine(name, f"{name}.{DOMAIN}", root, folder / name) for name, root in roots.items()}
    site = Site(machines, builds, {})
    try:
        for name, machine in machines.items():
            prepare(machine, BY_NAME[name].address)
            machine.boot()
        _start_pool(site)
        yield site
    finally:
        for machine in machines.values():
            machine.stop()


def prepare(machine: Machine, address: str, hosts: str = "") -> None:
    """Write the files of a machine that is not on yet: its name, its network, and the names of others."""
    disk = machine.folder / "upper"
    _put(disk / "etc/hosts", hosts_file() + hosts)
    _put(disk / "etc/hostname", f"{machine.host}\n")
    _put(disk / "etc/resolv.conf", f"nameserver {ROUTER}\n")
    _put(disk / "etc/systemd/network/10-site.network", _NETWORK.format(address=address))


def _put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _start_pool(site: Site) -> None:
    """A working pool is what the pages begin with; security is as HTCondor comes, with tokens between the machines."""
    token = ""
    for name in ("central", *WORKERS):
        machine = site[name]
        machine.write("/etc/condor/config.d/10-site.conf", condor.config(BY_NAME[name]))
        machine.run("install -d -m 700 /etc/condor/passwords.d /etc/condor/tokens.d")
        machine.run("install -d -o condor -g condor /var/log/condor /var/lib/condor/spool /var/lib/condor/execute")
        if name == "central":
            machine.run("condor_store_cred add -c -p $(head -c 24 /dev/urandom | base64)")
            token = machine.run(f"condor_token_create -identity condor@{DOMAIN}").stdout
        else:
            machine.write("/etc/condor/tokens.d/pool", token, 0o600)
        machine.run("systemctl enable --now condor.service")
    wait_until(lambda: in_pool(site) == set(WORKERS), 90, "both workers are in the pool")


def in_pool(site: Site) -> set[str]:
    """The workers that the collector knows."""
    known = site["central"].run("condor_status -af Machine", check=False).stdout.split()
    return {name.partition(".")[0] for name in known}
