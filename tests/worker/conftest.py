"""A pool for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.namespaces import Net, temporary_directory
from lab.openvswitch import OpenVSwitch
from tests.worker.pool import Pool, a_pool


@pytest.fixture
def pool(ovs: OpenVSwitch, net: Net) -> Iterator[Pool]:
    with temporary_directory() as folder, a_pool(Path(folder), ovs, net) as made:
        yield made
