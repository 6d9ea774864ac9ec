"""Fixtures: a real Open vSwitch for the whole run, and network namespaces for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch, programs_missing


@pytest.fixture(scope="session")
def ovs() -> Iterator[OpenVSwitch]:
    """An Open vSwitch shared by all tests of the run; a test that restarts it makes its own with ``own_ovs``."""
    yield from _open_vswitch()


@pytest.fixture
def own_ovs() -> Iterator[OpenVSwitch]:
    """An Open vSwitch of one test's own, which it may stop, kill and restart."""
    yield from _open_vswitch()


@pytest.fixture
def net(ovs: OpenVSwitch) -> Iterator[Net]:
    """Network namespaces of one test; bridges of ``ovs`` whose names begin with ``net.prefix`` go with them."""
    with Net() as net:
        yield net
        for bridge in ovs.bridges():
            if bridge.startswith(net.prefix):
                ovs.vsctl("--if-exists", "del-br", bridge)


def _open_vswitch() -> Iterator[OpenVSwitch]:
    missing = programs_missing()
    if missing:
        pytest.fail(f"not installed: {', '.join(missing)}; scripts/setup.sh installs what tests need")
    with temporary_directory() as directory, OpenVSwitch(Path(directory)) as ovs:
        yield ovs
