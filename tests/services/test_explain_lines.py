"""The last line of an explanation has the line of the rule that drops, whichever rule it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from tests.fixtures.controllers import an_edge, connect, post, running
from tests.services.test_explain import PATIENCE, attached

BLOCK = "block: {when: 'Owner == \"mallory\"'}"
SLICE = "slice: {by: Owner, when: 'Owner != \"none\"'}"
MUTE = "connectivity: {when: 'Owner == \"mute\"', outbound: deny}"
SHUT = "connectivity: {when: 'Owner == \"shut\"', inbound: deny}"
DROP = "wan: {when: 'Owner == \"bob\"', action: drop}"
CLOSED = "networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}"
OPEN = "networks: {local: [10.0.0.0/8]}"
OWNERS = ("alice", "bob", "none", "mute", "shut", "mute", "shut", "mallory")


def policy(networks: str, *rules: str) -> str:
    return "\n".join(("version: 1", networks, "policies:", *(f"  - {rule}" for rule in rules), ""))


@pytest.mark.parametrize(
    ("text", "src", "dst", "rule"),
    [
        (policy(CLOSED, BLOCK, SLICE), 1, 2, SLICE),
        # A job that no slice rule takes is kept apart by the other's.
        (policy(CLOSED, BLOCK, SLICE), 3, 1, SLICE),
        (policy(CLOSED, BLOCK, SLICE), 1, 3, SLICE),
        (policy(OPEN, BLOCK, SLICE), 1, 2, SLICE),
        (policy(CLOSED, MUTE, SHUT), 4, 1, MUTE),
        (policy(CLOSED, MUTE, SHUT), 1, 5, SHUT),
        # The sender's rule decides first.
        (policy(CLOSED, MUTE, SHUT), 4, 5, MUTE),
        (policy(CLOSED, MUTE, BLOCK), 1, 8, BLOCK),
    ],
)
def test_a_switch_drops_by_a_rule_that_has_a_line(
    tmp_path: Path, network: FakeNetwork, text: str, src: int, dst: int, rule: str
) -> None:
    with running(tmp_path, text) as controller:
        connect(network, controller, an_edge(hardware="Open vSwitch"))
        for number, owner in enumerate(OWNERS, 1):
            if number in (src, dst):
                controller.jobs.confirm(post(controller, number, owner, port=f"p{1 + (number == dst)}").job.id, 20)
        found = controller.switches.explain(f"10.64.0.{src}", f"10.64.0.{dst}", PATIENCE)
        line = text.splitlines().index(f"  - {rule}") + 1
        assert (found.verdict, found.reason[-len(said := f"(policy line {line})") :]) == ("dropped", said), found.reason
        assert found.reason.count("policy line") == 1
        # So has the flow among the steps.
        assert any(step.flow and step.text.endswith(said) for step in found.steps)


@pytest.mark.parametrize(
    ("owner", "dst", "rule"),
    [
        ("mallory", "10.64.0.1", BLOCK),
        ("bob", "10.64.0.1", SLICE),
        ("bob", "192.0.2.1", DROP),
        ("mute", "10.1.1.1", MUTE),
    ],
)
def test_a_worker_drops_by_a_rule_that_has_a_line(
    tmp_path: Path, network: FakeNetwork, owner: str, dst: str, rule: str
) -> None:
    text = policy(CLOSED, BLOCK, SLICE, DROP, MUTE)
    with running(tmp_path, text) as controller:
        connect(network, controller, an_edge(hardware="Open vSwitch"))
        controller.jobs.confirm(post(controller, 1, "alice").job.id, 20)
        sender = attached(controller, 4, "bridge", owner, worker=2)
        found = controller.switches.explain(sender.id, dst, PATIENCE)
        line = text.splitlines().index(f"  - {rule}") + 1
        assert (found.verdict, found.reason[-len(said := f"(policy line {line})") :]) == ("dropped", said), found.reason
