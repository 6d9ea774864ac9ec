"""A controller on Debian 13, from its installation to its removal, by the commands of the how-to pages.

It is beside the site's own, of whose network it is. Each test goes on where the one before it has ended.
"""

from __future__ import annotations

import json

import pytest

from lab.inside.topology import DOMAIN
from lab.settings import from_environment
from lark_controller import __version__
from tests.install import images
from tests.install.machine import Machine, wait_until
from tests.install.pages import Page
from tests.install.site import Site, distribution, prepare

NAME = "newer"
ADDRESS = "10.0.0.60"
PAGE = Page("controller.md", {"lark.example": f"{NAME}.{DOMAIN}", "192.0.2.10": ADDRESS})
PID = "systemctl show -P MainPID lark-controller"


@pytest.fixture(scope="module")
def newer(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The machine; it ends with the site."""
    folder = tmp_path_factory.mktemp(NAME)
    machine = site.machines[NAME] = Machine(NAME, f"{NAME}.{DOMAIN}", images.newer(from_environment()), folder)
    prepare(machine, ADDRESS, f"{ADDRESS} {machine.host} {NAME}\n")
    machine.boot()
    return machine


def is_ready(machine: Machine) -> bool:
    """True if the page's question is answered as the page says, whoever started the service."""
    curl = PAGE.block("systemctl enable --now lark-controller").splitlines()[-1]
    answer = machine.run(curl, check=False).stdout
    return bool(answer) and json.loads(answer)["ready"] is True


def operators(machine: Machine) -> str:
    """What the operator's command says."""
    return machine.run(PAGE.block("export LARK_URL")).stdout


def test_it_is_installed_and_ready(site: Site, newer: Machine) -> None:
    site.copy("lark-controller", NAME)
    newer.run(PAGE.block("apt install ./lark-controller_*.deb  "))
    newer.run(PAGE.block("getent hosts"), timeout=5)
    newer.run(PAGE.block("lark setup --name"))
    newer.run(PAGE.block("lark check"))
    newer.run(PAGE.block("systemctl enable --now lark-controller"))
    assert is_ready(newer)
    operators(newer)
    assert newer.run("systemctl --failed --plain --no-legend").stdout == ""


def test_systemd_starts_it_again_when_it_is_killed(newer: Machine) -> None:
    before = newer.run(PID).stdout
    newer.run(f"kill -9 {before}")
    wait_until(lambda: newer.run(PID).stdout not in (before, "0\n") and is_ready(newer), 60, "it is ready again")


def test_it_is_there_after_a_restart_of_the_machine(newer: Machine) -> None:
    newer.restart()
    wait_until(lambda: is_ready(newer), 60, "it is ready without anybody")
    operators(newer)


def test_an_upgrade_starts_the_new_one(site: Site, newer: Machine) -> None:
    before = newer.run(PID).stdout
    site.copy("lark-controller", NAME, build=1)
    newer.run(PAGE.block("apt install ./lark-controller_*.deb"))
    version = newer.run("dpkg-query -Wf '${Version}' lark-controller").stdout
    assert version == f"{__version__}-2~{distribution(NAME)}"
    assert newer.run(PID).stdout != before
    wait_until(lambda: is_ready(newer), 60, "it is ready")
    operators(newer)


def test_removed_it_is_as_it_was_once_it_is_back_and_purged_it_is_gone(newer: Machine) -> None:
    newer.run("apt remove lark-controller")
    assert newer.run("systemctl is-active lark-controller", check=False).stdout.strip() == "inactive"
    newer.run("test -e /etc/lark/lark.env && test -e /var/lib/lark/lark.db && ! test -e /usr/bin/lark")
    newer.run(PAGE.block("apt install ./lark-controller_*.deb"))
    newer.run(PAGE.block("systemctl enable --now lark-controller"))
    operators(newer)
    newer.run("apt purge lark-controller")
    newer.run("! test -e /var/lib/lark && ! test -e /etc/lark/lark.env && ! test -e /usr/lib/lark-controller")
    # Certificates and the authority are the site's.
    newer.run("test -e /etc/lark/ca/ca.key && test -e /etc/lark/rest.pem")
