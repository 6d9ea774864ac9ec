"""A controller on Debian 13, from its installation to its removal, by the commands of the how-to pages.

It begins with the last release, installed by that release's own pages, and is upgraded to this commit. It is beside the
site's own, of whose network it is. Each test goes on where the one before it has ended.
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
from tests.install.released import Release
from tests.install.site import Site, distribution, prepare

NAME = "newer"
ADDRESS = "10.0.0.60"
PAGE = Page("controller.md", {"lark.example": f"{NAME}.{DOMAIN}", "192.0.2.10": ADDRESS})
PID = "systemctl show -P MainPID lark-controller"


@pytest.fixture(scope="module")
def newer(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """The machine; it ends with the site."""
    folder = tmp_path_factory.mktemp(NAME)
    machine = site.machines[NAME] = Machine(
        NAME, f"{NAME}.{DOMAIN}", images.controller(from_environment(), "trixie"), folder
    )
    prepare(machine, ADDRESS, f"{ADDRESS} {machine.host} {NAME}\n")
    machine.boot()
    return machine


def is_ready(machine: Machine) -> bool:
    """True if the page's question is answered as the page says, whoever started the service."""
    curl = PAGE.block("systemctl enable lark-controller").splitlines()[-1]
    answer = machine.run(curl, check=False).stdout
    return bool(answer) and json.loads(answer)["ready"] is True


def operators(machine: Machine) -> str:
    """The output of the operator's command."""
    return machine.run(PAGE.block("export LARK_URL")).stdout


def test_the_last_release_is_installed_and_ready(site: Site, newer: Machine, released: Release) -> None:
    page = released.page(PAGE)
    site.put(released.packages, "lark-controller", NAME)
    newer.run(page.block("apt install ./lark-controller_*.deb  "))
    newer.run(page.block("getent hosts"), timeout=5)
    newer.run(page.block("lark setup --name"))
    newer.run(page.block("lark check"))
    newer.run(page.block("systemctl enable lark-controller"))
    assert is_ready(newer)
    operators(newer)


def test_systemd_starts_it_again_when_it_is_killed(newer: Machine) -> None:
    before = newer.run(PID).stdout
    newer.run(f"kill -9 {before}")
    wait_until(lambda: newer.run(PID).stdout not in (before, "0\n") and is_ready(newer), 60, "it is ready again")


def test_it_is_there_after_a_restart_of_the_machine(newer: Machine) -> None:
    newer.restart()
    wait_until(lambda: is_ready(newer), 60, "it is ready without anybody")
    operators(newer)


def test_an_upgrade_from_the_last_release_starts_the_new_one(site: Site, newer: Machine) -> None:
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
    newer.run(PAGE.block("systemctl enable lark-controller"))
    operators(newer)
    newer.run("apt purge lark-controller")
    newer.run("! test -e /var/lib/lark && ! test -e /etc/lark/lark.env && ! test -e /usr/lib/lark-controller")
    # Certificates and the authority are the site's.
    newer.run("test -e /etc/lark/ca/ca.key && test -e /etc/lark/rest.pem")


def test_it_is_one_of_several_with_keys_of_its_own(site: Site, newer: Machine) -> None:
    """Its database is a file of its own here: PostgreSQL is tests/cluster's."""
    page = Page("several-controllers.md", {"lark2.example": newer.host, "192.0.2.11": ADDRESS})
    newer.run("rm -r /etc/lark")
    newer.run(PAGE.block("apt install ./lark-controller_*.deb"))
    # There is no ssh at the site, and no database but the file.
    shared = "tar -C /etc/lark -cf - ca ca.pem join.env operator.token policy.yaml tokens.yaml"
    copied = site["controller"].run(f"{shared} | base64").stdout
    changes = (
        (f"ssh root@lark1.example {shared}", "base64 --decode"),
        (" \\\n    --database-url 'postgresql://lark@db.example/lark?passfile=/etc/lark/pgpass'", ""),
    )
    newer.run(page.block("ssh root@lark1.example", *changes), stdin=copied)
    newer.run(PAGE.block("systemctl enable lark-controller"))
    operators(newer)
    assert (
        newer.run("sha256sum < /etc/lark/ca.pem").stdout
        == site["controller"].run("sha256sum < /etc/lark/ca.pem").stdout
    )
    keys = [machine.run("sha256sum < /etc/lark/rest.key").stdout for machine in (newer, site["controller"])]
    assert keys[0] != keys[1]
