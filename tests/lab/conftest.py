"""Labs for the tests in this directory, each booted once; their logs are kept when a test fails."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from lab import controller, kernel
from lab.__main__ import NO_MIRROR
from lab.boot import Lab
from lab.settings import LabSettings, from_environment
from tests.fixtures import own_network
from tests.lab.packages import MPI
from tests.lab.remains import Neighbour, remove, wait_until


@contextmanager
def booted(request: pytest.FixtureRequest, settings: LabSettings, packages: Sequence[str] = ()) -> Iterator[Lab]:
    """A pool with two workers. A test leaves it as it found it: machines on, queue empty."""
    before = request.session.testsfailed
    lab = Lab.start(settings, packages)
    keep = True
    try:
        lab.start_pool()
        yield lab
        keep = request.session.testsfailed > before
    finally:
        lab.stop(keep=keep)


def built(packages: Sequence[str] = ()) -> tuple[int, str]:
    """Build the root file system, unless it is there: exit status and output of ``python3 -m lab build``.

    It comes from a mirror, and the tests' own network leads nowhere.
    """
    done = own_network.run_outside([sys.executable, "-m", "lab", "build", *packages])
    return done.returncode, done.stdout.strip()


@pytest.fixture(scope="session")
def kernel_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """The lab of ``LAB_KIND``; by itself, native or User Mode Linux: the kernel forwards, with queues and delay."""
    status, said = built(MPI)
    if status:
        pytest.fail(f"the lab's root file system cannot be built: {said}")
    with booted(request, from_environment(), MPI) as lab:
        yield lab


@pytest.fixture(scope="session")
def quick_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab that is quick and has every policy in force: User Mode Linux has no conntrack zones, so it is never that.

    Native where the kernel has Open vSwitch, else with its userspace datapath, where queues have no effect.
    """
    status, said = built()
    if status == NO_MIRROR:
        # Without a mirror there is no HTCondor to be had; nothing of Lark has failed, and what did not run is said.
        pytest.skip(f"THE SHORT FORM OF THE LAB DID NOT RUN, its root file system is not built: {said}")
    if status:
        pytest.fail(f"the lab's root file system cannot be built: {said}")
    settings = from_environment()
    if kernel.choose(settings.kind).kind != "uml":
        yield request.getfixturevalue("kernel_lab")
        return
    kind = "native" if kernel.choose("auto").kind == "native" else "userspace"
    with booted(request, replace(settings, kind=kind)) as lab:
        yield lab


@pytest.fixture(scope="module")
def lab(request: pytest.FixtureRequest) -> Lab:
    """The lab that a module's tests need: with the mark ``kernel_datapath`` the one, else the other."""
    needed = "kernel_lab" if request.node.get_closest_marker("kernel_datapath") else "quick_lab"
    found: Lab = request.getfixturevalue(needed)
    return found


@pytest.fixture(scope="module", autouse=True)
def emptied(request: pytest.FixtureRequest, lab: Lab) -> Iterator[None]:
    """A module begins without jobs, and what it leaves because one of its tests failed does not concern the next.

    Jobs that were removed may stay in the queue (JobStatus 3), where their worker has lost its power.
    """
    wait_until(lambda: not controller.jobs(lab), 90, "the jobs of other modules are over")
    before = request.session.testsfailed
    yield
    if request.session.testsfailed > before:
        lab.on("central", "condor_rm", "-all", check=False)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of the lab, but for the short form, which is part of all tests."""
    here = Path(__file__).parent
    for item in items:
        if item.path.parent == here and item.path.name != "test_short_form.py":
            item.add_marker("lab")


@pytest.fixture
def policy_restored(lab: Lab) -> Iterator[None]:
    """The policy as it was, after each test."""
    before = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    yield
    controller.api(lab, "/v1/policy", "PUT", before)
    controller.wait_in_sync(lab)


@pytest.fixture
def neighbour(lab: Lab) -> Iterator[Neighbour]:
    """A job on the first worker that is to notice nothing of what happens beside it."""
    neighbour = Neighbour(lab, "worker1")
    yield neighbour
    remove(lab, neighbour.jobs)
