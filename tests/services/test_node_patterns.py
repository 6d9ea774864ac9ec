"""The pattern that a parallel job's submit file asks for: booked as its nodes register, all of it or the job waits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from lark_common.classads.ads import parse_post
from lark_common.errors import AdError, ApartError, CapacityError, PathError
from lark_controller.api.reservations import Wish
from lark_controller.controller import Controller
from lark_controller.jobs.job import Job
from tests.fixtures.controllers import running

POLICY = """
version: 1
networks: {jobs: [10.64.0.0/16, "2001:db8:64::/48"], local: [10.0.0.0/8, "2001:db8::/32"]}
topology:
  hosts:
    worker2: {switch: core1, capacity: 100}
    default: {switch: core1, capacity: 100}
"""
HOSTS = ("worker0", "worker1", "worker2")


def start(
    controller: Controller, node: int, pattern: str = "ring 40", hosts: Sequence[str] = HOSTS, *more: str, job: int = 1
) -> Job:
    """Post the ads of a node, as HTCondor hands them out."""
    slots = [f"slot{job}_{number}@{host}" for number, host in enumerate(hosts)]
    lines = [
        'Owner = "alice"', f'GlobalJobId = "s#{job}.0#1"', "JobCurrentStartDate = 1", "JobUniverse = 11",
        f'RequestMpiBandwidth = "{pattern}"', f"Node = {node}", f"MinHosts = {len(hosts)}",
        f"MaxHosts = {len(hosts)}", f'AllRemoteHosts = "{",".join(slots)}"', "------",
        f'Machine = "{hosts[node]}"', f'Name = "{slots[node]}"',
        f'LarkInnerAddressIPv4 = "10.64.{job}.{node + 1}"', f'LarkExternalInterface = "p{job}{node}"', *more,
    ]  # fmt: skip
    return controller.jobs.register(*parse_post("\n".join(lines).encode(), "text/plain"), "hook").job


def held(controller: Controller) -> dict[tuple[str, str], float]:
    """The reserved rates by the hosts from and to."""
    page = controller.reservations.page(None, None, 100).reservations
    assert all(each.job is not None and each.peer is not None for each in page)
    return {(each.source, each.destination): each.rate for each in page}


def sent(controller: Controller, job: Job) -> list[tuple[float, list[str]]]:
    """The flows that the loop has of a job: Mb/s, and to which addresses."""
    controller.switches.all()
    placed = controller._reconciler.directory.by_id[job.id]
    return [(each.kbps / 1000, list(map(str, each.target))) for each in placed.reserved if not each.incoming]


RING = {("worker0", "worker1"): 40.0, ("worker1", "worker2"): 40.0, ("worker2", "worker0"): 40.0}


def test_a_pattern_is_reserved_as_its_nodes_register_and_ends_with_them(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        # In whatever order they come.
        jobs = {node: start(controller, node) for node in (1, 0)}
        assert held(controller) == {("worker0", "worker1"): 40.0}
        jobs[2] = start(controller, 2)
        assert held(controller) == RING
        assert sent(controller, jobs[2]) == [(40, ["10.64.1.1/32"])]
        assert sent(controller, jobs[1]) == [(40, ["10.64.1.3/32"])]
        # A second post adds nothing.
        start(controller, 1)
        assert held(controller) == RING
    with running(tmp_path, POLICY) as controller:
        assert held(controller) == RING
        # A node that dies takes its flows along; it comes back as another run, of the whole job.
        controller.jobs.end(jobs[1].id, "hook")
        assert held(controller) == {("worker2", "worker0"): 40.0}
        # Nodes are known again after a restart.
        start(controller, 1)
        assert held(controller) == {("worker2", "worker0"): 40.0}
        for node in (0, 2):
            controller.jobs.end(jobs[node].id, "hook")
        assert held(controller) == {}


def test_a_node_that_starts_after_the_controller_has_is_reserved_with_those_before(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        start(controller, 0)
        start(controller, 1)
    with running(tmp_path, POLICY) as controller:
        start(controller, 2)
        assert held(controller) == RING


def test_without_room_for_all_of_it_no_node_starts_and_nothing_is_kept(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        first = start(controller, 0, job=2)
        start(controller, 1, "ring 40", HOSTS, job=2)
        # Between worker0 and worker1 there were 60 left each way; the way back to worker0 has none.
        with pytest.raises(CapacityError) as caught:
            start(controller, 0, "all 35")
        assert 'no room for RequestMpiBandwidth = "all 35": link access:worker' in str(caught.value)
        assert "has 60 of 100 Mb/s left, and 70 are asked" in str(caught.value)
        assert not caught.value.idle
        assert list(held(controller)) == [("worker0", "worker1")]
        controller.jobs.end(first.id, "hook")
        for node in range(3):
            start(controller, node, "all 35")
        assert len(held(controller)) == 6


def test_a_node_is_refused_where_others_took_the_room_meanwhile(tmp_path: Path) -> None:
    idle = POLICY.replace("topology:", "topology:\n  refused: idle")
    idle = idle.replace("worker2: {", "worker2: {addresses: [10.0.0.2], ")
    with running(tmp_path, idle) as controller:
        nodes = [start(controller, node) for node in (0, 1)]
        controller.reservations.reserve(Wish(nodes[0].id, "worker2", 1, 60), "ops", False)
        controller.reservations.reserve(Wish(nodes[1].id, "worker2", 60, 60), "ops", False)
        with pytest.raises(CapacityError) as caught:
            start(controller, 2)
        assert caught.value.idle
        assert "40 Mb/s from worker1 to worker2" in str(caught.value)
        made = controller.reservations.page(None, None, 9).reservations
        assert [each.rate for each in made] == [40, 1, 60]
        assert len(controller._reconciler.directory) == 2


def test_one_host_one_node_and_jobs_of_others_take_nothing(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        # As a job of its own with many ranks.
        start(controller, 0, "ring 500", ("worker0",))
        assert held(controller) == {}
        # Another job's nodes are none of this one's, and neither are those of another run.
        start(controller, 0, job=2)
        start(controller, 1, job=3)
        assert held(controller) == {}


def test_nodes_on_one_worker_need_no_link_between_them(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        beside = ("worker0", "worker0", "worker1")
        for node in range(3):
            start(controller, node, "all 40", beside)
        assert controller.reservations.page(None, None, 9).reservations[0].rate == 40
        assert len(controller.reservations.page(None, None, 9).reservations) == 4


def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        with pytest.raises(AdError, match="a grid of 2x2 has 4 nodes, and the job has 3"):
            start(controller, 0, "neighbours 2x2 1")
        with pytest.raises(PathError, match=r"RequestMpiBandwidth: job 1\.0 has no address of its own"):
            start(controller, 0, "ring 1", HOSTS, 'NetworkType = "nat"')
        with pytest.raises(AdError, match="the job has 4097 nodes; at most 4096 are accepted"):
            start(controller, 0, "ring 1", ["worker0"] * 4097)
        start(controller, 0)
        six = ("LarkInnerAddressIPv4 = undefined", 'LarkInnerAddressIPv6 = "2001:db8:64::2"')
        with pytest.raises(PathError, match=r"IPv6 alone, so no packet goes from one to the other"):
            start(controller, 1, "ring 40", HOSTS, *six)


def test_a_pattern_that_is_refused_takes_no_address(tmp_path: Path) -> None:
    """A job in a loop would take all that there are until the next start."""
    few = POLICY.replace("10.64.0.0/16", "10.64.0.0/26")
    own = 'LarkAddressType = "controller"', "LarkInnerAddressIPv4 = undefined"
    with running(tmp_path, few) as controller:
        for _ in range(70):
            with pytest.raises(AdError, match="a grid of 2x2"):
                start(controller, 0, "neighbours 2x2 1", HOSTS, *own)
        assert start(controller, 0, "ring 40", HOSTS, *own).addresses


def test_without_a_topology_nothing_is_reserved_and_nobody_refused(tmp_path: Path) -> None:
    with running(tmp_path, POLICY.partition("topology:")[0]) as controller:
        start(controller, 0, "ring 9000")
        start(controller, 1, "ring 9000")


def test_a_node_without_its_address_is_reserved_once_it_has_one(tmp_path: Path) -> None:
    dhcp = ('AddressType = "dhcp"',)
    with running(tmp_path, POLICY) as controller:
        start(controller, 0, "ring 40", HOSTS[:2])
        post = "\n".join([
            'Owner = "alice"', 'GlobalJobId = "s#1.0#1"', "JobCurrentStartDate = 1", 'RequestMpiBandwidth = "ring 40"',
            "Node = 1", "MaxHosts = 2", "------", 'Machine = "worker1"',
            'Name = "slot1@worker1"', 'LarkExternalInterface = "p1"', *dhcp,
        ])  # fmt: skip
        register = controller.jobs.register
        register(*parse_post(post.encode(), "text/plain"), "hook")
        assert list(held(controller)) == [("worker1", "worker0")]
        lease = f'{post}\nLarkInnerAddressIPv4 = "10.64.1.2"'
        register(*parse_post(lease.encode(), "text/plain"), "hook")
        assert held(controller) == {("worker0", "worker1"): 40, ("worker1", "worker0"): 40}


BLOCKED = """policies:
  - block: {when: 'LarkExternalInterface == "p11"'}
topology:"""
SLICED = BLOCKED.replace("block: {when", "slice: {by: Owner, when")


@pytest.mark.parametrize("refused", ["hold", "idle"])
@pytest.mark.parametrize(
    ("rules", "why"), [(SLICED, "slices keep the two jobs apart"), (BLOCKED, "the receiver is blocked")]
)
def test_a_pattern_between_nodes_that_a_rule_keeps_apart_is_refused_with_it(
    tmp_path: Path, rules: str, why: str, refused: str
) -> None:
    policy = POLICY.replace("topology:", f"{rules}\n  refused: {refused}")
    line = next(number for number, text in enumerate(policy.splitlines(), 1) if "  - " in text)
    with running(tmp_path, policy) as controller:
        start(controller, 0)
        with pytest.raises(ApartError) as caught:
            start(controller, 1)
        said = f"RequestMpiBandwidth: node 0 to node 1, job 1.0 to job 1.0: nothing of it passes: {why}"
        assert str(caught.value) == f"{said} (policy line {line})"
        assert caught.value.idle is (refused == "idle")
        assert held(controller) == {}
        assert len(controller._reconciler.directory) == 1
        # Nodes that send each other nothing are no concern of the pattern's.
        start(controller, 1, "0>2 40")


def test_nodes_that_a_rule_keeps_apart_after_they_were_booked_stay(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        for node in (0, 1):
            start(controller, node)
        controller.policy.put(POLICY.replace("topology:", SLICED), "ops")
        start(controller, 1)
        assert held(controller) == {("worker0", "worker1"): 40.0}
