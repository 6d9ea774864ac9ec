"""A flow that is reserved to a host of the topology goes to the addresses that the policy gives that host."""

from __future__ import annotations

import sqlite3
from ipaddress import ip_network
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.errors import CapacityError, PathError
from lark_common.runs import Network, NetworkType
from lark_controller.api.reservations import Change, Wish
from lark_controller.controller import Controller
from lark_controller.jobs.job import Job, JobState
from lark_controller.qos.reservation import Reservation
from tests.fixtures.controllers import an_edge, connect, network, running, until
from tests.services.test_enforced_reservations import BRIDGED, put_in_place
from tests.services.test_followed_jobs import reserved_at
from tests.services.test_reservations import POLICY, flows, left, start

__all__ = ["network"]

MOVED = POLICY.replace("[10.0.0.5]", '[10.0.0.55, "2001:db8::55"]')
WITHOUT = POLICY.replace(", addresses: [10.0.0.5]", "")
GONE = POLICY.replace("files.example:", "other.example:").replace("    default: {switch: core1}\n", "")
OLD, NEW = (ip_network("10.0.0.5/32"),), (ip_network("10.0.0.55/32"), ip_network("2001:db8::55/128"))


def told(controller: Controller, job: Job) -> list[tuple[Network, ...]]:
    """The targets of the reserved flows of a job, the same to its switch or worker as in each list."""
    found = [each.target for each in flows(controller, job)]
    if job.network_type is NetworkType.BRIDGE:
        until(lambda: reserved_at(controller, job.host) == [tuple(map(str, target)) for target in found])
    return found


def listed(controller: Controller, job: Job) -> list[Reservation]:
    """The reservations of a job as lists show them."""
    return list(controller.reservations.page(job.id, None, 10).reservations)


def reasons(controller: Controller, job: Job) -> list[str]:
    """The reasons why nothing of a job's flows passes."""
    return [controller.reservations.apart.why(each.id) for each in controller.reservations.sent_by(job.id)]


def test_a_flow_to_a_host_follows_the_addresses_of_another_policy(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY) as controller:
        connect(network, controller, an_edge())
        sender, bridged, other = start(controller, 1), start(controller, 5, host=3, more=BRIDGED), start(controller, 2)
        made = [
            controller.reservations.reserve(Wish(each.id, "Files", 5), "test", of_job=False)
            for each in (sender, bridged)
        ]
        one = controller.reservations.reserve(Wish(other.id, "10.0.0.5", 5), "test", of_job=False)
        assert [(each.destination, each.target) for each in (*made, one)] == [("files.example", OLD)] * 3
        controller.policy.put(MOVED, "ops")

        def check(controller: Controller) -> None:
            for each, job in zip(made, (sender, bridged), strict=True):
                assert told(controller, job) == [NEW]
                assert [found.target for found in listed(controller, job)] == [NEW]
                assert controller.reservations.find(each.id).target == NEW
                with pytest.raises(PathError, match=f"reservation {each.id} is for the same flow"):
                    controller.reservations.reserve(Wish(job.id, "10.0.0.55", 5), "test", of_job=False)
            # One to an address stays there.
            assert told(controller, other) == [found.target for found in listed(controller, other)] == [OLD]
            assert left(controller, "access:files.example", "core1").reserved == 15

        check(controller)
        renewed = controller.reservations.change(made[0].id, Change(reschedule=True, duration=600), "test", False)
        assert renewed.target == NEW
        check(controller)
    with running(tmp_path, MOVED) as controller:
        check(controller)
    with running(tmp_path, POLICY) as controller:
        # The file was changed while no controller ran.
        assert [told(controller, each) for each in (sender, bridged, other)] == [[OLD]] * 3


@pytest.mark.parametrize("policy", [WITHOUT, GONE, POLICY[: POLICY.index("topology:")]])
def test_a_flow_to_a_host_without_addresses_is_pending_and_is_none_to_the_wan(tmp_path: Path, policy: str) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 5, host=3, more=BRIDGED)
        made = controller.reservations.reserve(Wish(job.id, "files.example", 5), "test", of_job=False)
        said = f"{made.id} from job 5.0 to files.example"
        planned = [each for each in controller.policy.plan(policy).warnings if "addresses" in each]
        assert planned == [
            f"1 reservation goes to a host without addresses in the topology, and would be pending, such as {said}"
        ]
        assert not any("reservation" in each for each in controller.policy.plan(MOVED).warnings)
        controller.policy.put(policy, "ops")
        assert told(controller, job) == []
        reason = "the policy's topology has no addresses of files.example"
        assert reasons(controller, job) == [reason]
        put_in_place(controller, job)
        until(lambda: controller.jobs.found(job.id).state is JobState.ENFORCED)
        assert [each.pending for each in controller.reservations.paths("worker3").items] == [reason]
        assert controller.reservations.find(made.id).target == ()
        controller.policy.put(POLICY, "ops")
        assert (told(controller, job), reasons(controller, job)) == ([OLD], [""])
        controller.policy.put(WITHOUT, "ops")
        with pytest.raises(PathError, match=r"no addresses of files\.example, so which packets go there is not known"):
            controller.reservations.reserve(Wish(job.id, "files.example", 5), "test", of_job=False)
        # It takes nothing of the WAN, and no job sends this one.
        to_wan = controller.reservations.reserve(Wish(job.id, "wan", 5), "test", of_job=False)
        controller.reservations.reserve(Wish("worker2", "files.example", 5, 60), "test", of_job=False)
        assert [each.number for each in flows(controller, job)] == [to_wan.number]
    with running(tmp_path, POLICY) as controller:
        assert told(controller, job) == [OLD, ()]


@pytest.mark.parametrize("kind", ["", BRIDGED])
@pytest.mark.parametrize("host_first", [False, True])
def test_a_host_that_gets_the_address_of_another_flow_of_the_job(
    tmp_path: Path, network: FakeNetwork, kind: str, host_first: bool
) -> None:
    near = (ip_network("192.0.2.55/32"),)
    taken = POLICY.replace("[10.0.0.5]", "[192.0.2.55]")
    with running(tmp_path, POLICY) as controller:
        connect(network, controller, an_edge())
        job = start(controller, 5, host=3 if kind else 1, more=kind)
        wishes = ("files.example", "192.0.2.55") if host_first else ("192.0.2.55", "files.example")
        one, other = (controller.reservations.reserve(Wish(job.id, to, 5), "test", of_job=False).id for to in wishes)
        controller.policy.put(taken, "ops")
        # The older one has it, at a switch as at a worker.
        shared = f"reservation {one} has the same addresses"
        assert (told(controller, job), reasons(controller, job)) == ([near], ["", shared])
        assert [each.number for each in flows(controller, job)] == [controller.reservations.find(one).number]
        assert [each.target for each in listed(controller, job)] == [near, near]
    with running(tmp_path, taken) as controller:
        assert (told(controller, job), reasons(controller, job)) == ([near], ["", shared])
        # With one more address something is of it.
        controller.policy.put(POLICY.replace("[10.0.0.5]", "[192.0.2.55, 10.0.0.5]"), "ops")
        found = [(*near, *OLD)] if host_first else [near, OLD]
        assert told(controller, job) == found
        assert reasons(controller, job) == ["", shared if host_first else ""]
        controller.policy.put(taken, "ops")
        controller.reservations.release(one, "test", of_job=False)
        assert (told(controller, job), reasons(controller, job)) == ([near], [""])
        assert controller.reservations.find(other).target == near


@pytest.mark.parametrize("more", ["", BRIDGED])
def test_a_flow_to_an_address_counts_at_the_host_that_has_it(tmp_path: Path, more: str) -> None:
    another = "    other.example: {switch: core1, capacity: 300, addresses: [X]}\n    worker2:"
    policy = POLICY.replace("    worker2:", another.replace("X", "10.0.0.6"))
    swapped = policy.replace("[10.0.0.5]", "[10.0.0.7]").replace("[10.0.0.6]", "[10.0.0.5]")
    nowhere = swapped.replace("[10.0.0.5]", "[10.0.0.8]")

    def counted(controller: Controller) -> list[float]:
        """The rates that are reserved at the two hosts, and to the WAN."""
        ends = ("access:files.example", "access:other.example", "internet")
        return [left(controller, each, "core1").reserved for each in ends]

    with running(tmp_path, policy) as controller:
        job = start(controller, 1, more=more)
        made = controller.reservations.reserve(Wish(job.id, "10.0.0.5", 5), "test", of_job=False)
        assert (made.destination, counted(controller)) == ("files.example", [5, 0, 0])
        assert not any("reservation" in each for each in controller.policy.plan(swapped).warnings)
        controller.policy.put(swapped, "ops")
        assert controller.reservations.find(made.id).destination == "other.example"
        assert (told(controller, job), reasons(controller, job)) == ([OLD], [""])
        assert counted(controller) == [0, 5, 0]
        with pytest.raises(CapacityError, match=r"has 295 of 300 Mb/s left"):
            controller.reservations.reserve(Wish("worker2", "other", 299, 60), "test", of_job=False)
        said = f"{made.id} from job 1.0 to other.example"
        assert (
            f"1 reservation goes to an address that no host of the topology has, and would be pending, such as {said}"
            in controller.policy.plan(nowhere).warnings
        )
        controller.policy.put(nowhere, "ops")
    with running(tmp_path, nowhere) as controller:
        assert reasons(controller, job) == ["no host of the policy's topology has 10.0.0.5/32"]
        assert controller.reservations.find(made.id).destination == "other.example"
        # An address that is not local is of the WAN, until a host has it.
        far = nowhere.replace("local: [10.0.0.0/8,", "local: [10.0.0.8/32,")
        controller.policy.put(far, "ops")
        assert (controller.reservations.find(made.id).destination, reasons(controller, job)) == ("wan", [""])
        assert counted(controller) == [0, 0, 5]
        controller.policy.put(policy, "ops")
        assert (controller.reservations.find(made.id).destination, reasons(controller, job)) == ("files.example", [""])
        assert counted(controller) == [5, 0, 0]


def test_a_flow_from_before_stays_where_it_was_reserved(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 5, host=3, more=BRIDGED)
        controller.reservations.reserve(Wish(job.id, "files.example", 5), "test", of_job=False)
    with sqlite3.connect(tmp_path / "lark.db") as database:
        # Of rows from before there was this column nothing is known.
        assert database.execute("UPDATE reservations SET to_host = 0").rowcount == 1
    database.close()
    with running(tmp_path, MOVED) as controller:
        assert told(controller, job) == [OLD]
