"""Labs for the tests in this directory, each booted once; their logs are kept when a test fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from lab import kernel
from lab.__main__ import NO_MIRROR
from lab.boot import Lab
from lab.settings import LabSettings, from_environment
from tests import own_network
from tests.lab.remains import wait_ready


@contextmanager
def booted(request: pytest.FixtureRequest, settings: LabSettings) -> Iterator[Lab]:
    """A pool with two workers. A test leaves it as it found it: machines on, queue empty."""
    before = request.session.testsfailed
    lab = Lab.start(settings)
    keep = True
    try:
        lab.start_pool()
        yield lab
        keep = request.session.testsfailed > before
    finally:
        lab.stop(keep=keep)


def built() -> tuple[int, str]:
    """Build the root file system, unless it is there: exit status and output of ``python3 -m lab build``.

    It comes from a mirror, and the tests' own network leads nowhere.
    """
    done = own_network.run_outside([sys.executable, "-m", "lab", "build"])
    return done.returncode, done.stdout.strip()


@pytest.fixture(scope="session")
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The lab of ``LAB_KIND``; by itself, native or User Mode Linux."""
    status, said = built()
    if status:
        pytest.fail(f"the lab's root file system cannot be built: {said}")
    with booted(request, from_environment()) as lab:
        yield lab


@pytest.fixture(scope="session")
def one_way_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab with every policy in force: User Mode Linux has no conntrack zones, so it is never that.

    Native where the kernel has Open vSwitch, else with its userspace datapath.
    """
    status, said = built()
    if status == NO_MIRROR:
        pytest.skip(f"THE SHORT FORM OF THE LAB DID NOT RUN, its root file system is not built: {said}")
    if status:
        pytest.fail(f"the lab's root file system cannot be built: {said}")
    settings = from_environment()
    if kernel.choose(settings.kind).kind != "uml":
        yield request.getfixturevalue("lab")
        return
    kind = "native" if kernel.choose("auto").kind == "native" else "userspace"
    with booted(request, replace(settings, kind=kind)) as lab:
        yield lab


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything that uses the lab is marked so; the short form is part of all tests."""
    for item in items:
        if "lab" in getattr(item, "fixturenames", ()):
            item.add_marker("lab")


@pytest.fixture
def short_leases(lab: Lab) -> Iterator[None]:
    """The controller with leases of half a minute, as long as the test lasts."""
    file = "/etc/lark/lark.env"
    change = f"unit stop lark-controller; {{}} {file}; unit start lark-controller"
    lab.on("controller", "sh", "-c", change.format("echo LARK_LEASE_SECONDS=30 >>"))
    wait_ready(lab)
    yield
    lab.on("controller", "sh", "-c", change.format("sed -i /LEASE_SECONDS/d"))
    wait_ready(lab)
