"""A flow that is reserved to a job goes to that job, also once it has another address."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.errors import PathError
from lark_controller.api.reservations import Change, Wish
from lark_controller.controller import Controller
from tests.fixtures.controllers import an_edge, connect, running, until
from tests.services.test_enforced_reservations import BRIDGED
from tests.services.test_reservations import POLICY, flows, left, start

DHCP = 'AvailBandwidth = 1000\nLarkAddressType = "dhcp"'
MOVED = f'{DHCP}\nLarkInnerAddressIPv4 = "10.64.0.77"'
OLD, NEW = (ip_network("10.64.0.2/32"),), (ip_network("10.64.0.77/32"),)


def reserved_at(controller: Controller, host: str) -> list[tuple[str, ...]]:
    """The targets of the reserved flows in a worker's rules."""
    rules = controller.workers.rules(host, "", 0).rules
    assert rules is not None
    return [tuple(map(str, flow.target)) for job in rules.jobs for flow in job.reserved]


def test_a_flow_follows_the_job_to_which_it_is_reserved(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY) as controller:
        connect(network, controller, an_edge())
        sender, bridged = start(controller, 1), start(controller, 5, host=3, more=BRIDGED)
        peer = start(controller, 2, host=2, more=DHCP)
        made = [
            controller.reservations.reserve(Wish(each.id, peer.id, 5), "test", of_job=False)
            for each in (sender, bridged)
        ]
        assert [each.target for each in made] == [OLD, OLD]
        moved = start(controller, 2, host=2, more=MOVED)
        assert (moved.id, [str(each) for each in moved.addresses]) == (peer.id, ["10.64.0.77"])
        until(lambda: reserved_at(controller, "worker3") == [("10.64.0.77/32",)])
        # Another job has the address of before, and a flow of its own.
        other = start(controller, 6, host=2, more='AvailBandwidth = 1000\nLarkInnerAddressIPv4 = "10.64.0.2"')
        for each in (sender, bridged):
            with pytest.raises(PathError, match="is for the same flow"):
                controller.reservations.reserve(Wish(each.id, peer.id, 5), "test", of_job=False)
        own = controller.reservations.reserve(Wish(sender.id, other.id, 5), "test", of_job=False)
        assert (own.peer, own.target) == (other.id, OLD)

        def check(controller: Controller) -> None:
            assert [each.target for each in flows(controller, sender)] == [NEW, OLD]
            assert [each.target for each in flows(controller, bridged)] == [NEW]
            assert controller.reservations.find(made[0].id).target == NEW
            page = controller.reservations.page(sender.id, None, 10)
            assert [each.target for each in page.reservations] == [NEW, OLD]
            assert left(controller, "access:worker1", "worker1").reserved == 10

        check(controller)
        # A renewal changes nothing of it.
        renewed = controller.reservations.change(made[0].id, Change(reschedule=True, duration=600), "test", False)
        assert renewed.target == NEW
        check(controller)
    with running(tmp_path, POLICY) as controller:
        check(controller)
        with pytest.raises(PathError, match="is for the same flow"):
            controller.reservations.reserve(Wish(sender.id, peer.id, 5), "test", of_job=False)
        assert controller.reservations.change(made[0].id, Change(rate=6), "test", False).target == NEW
