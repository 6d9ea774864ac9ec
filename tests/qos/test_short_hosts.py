"""Hosts of the topology by the first part of their names."""

from __future__ import annotations

import pytest

from lark_common.errors import PathError
from lark_controller.policies.file import load
from lark_controller.qos.booking import end_of
from lark_controller.qos.topology import Topology

POLICY = """
version: 1
networks: {local: [10.0.0.0/8]}
topology:
  links:
    trunk: {between: [rack1, core1], capacity: 10Gbit}
  hosts:
    files.example: {switch: rack1, capacity: 2Gbit, addresses: [10.0.0.5]}
    disk.example: {switch: rack1, capacity: 2Gbit}
    disk.elsewhere: {switch: rack1, capacity: 2Gbit}
    tape: {switch: rack1, capacity: 2Gbit}
    tape.example: {switch: rack1, capacity: 2Gbit}
"""


def named(text: str) -> str:
    policy = load(POLICY)
    assert policy.topology is not None
    return end_of(text, lambda _: None, None, policy, Topology(policy.topology, {})).node


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("files.example", "files.example"),
        ("files", "files.example"),
        ("Files", "files.example"),
        ("tape", "tape"),
        ("disk.example", "disk.example"),
    ],
)
def test_a_host_by_its_whole_name_or_its_first_part(text: str, node: str) -> None:
    assert named(text) == node


def test_a_first_part_that_two_hosts_have_names_neither() -> None:
    with pytest.raises(PathError, match=r"several hosts .* called disk: disk\.elsewhere, disk\.example"):
        named("disk")
    with pytest.raises(PathError, match="neither a live job, nor a host"):
        named("fil")
