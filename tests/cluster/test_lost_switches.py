"""An active instance whose link to the switches is cut, and that to the database is not: real processes."""

from __future__ import annotations

import pytest

from fake_switch.switch import FakeNetwork
from lark_controller.cli.run import HANDED_OVER
from tests.cluster.test_counters_of_standby import ADS
from tests.cluster.test_kept_switches import begin, connected_to_both, in_sync, instances
from tests.cluster.test_processes import Instance, until

__all__ = ["instances"]
pytestmark = pytest.mark.postgres


def test_a_switch_that_the_active_one_has_lost_gets_the_other_as_its_master(
    instances: tuple[Instance, Instance],
) -> None:
    a, b = instances
    begin(a, b)
    with FakeNetwork() as network:
        edge, more = connected_to_both(network, a, b)
        # It is expected from now on.
        status, body = a.ask("/v1/jobs?wait=10", "POST", ADS)
        assert (status, body["state"]) == (201, "enforced")
        more.forget_counts()
        network.run(edge.disconnect)
        assert a.process is not None
        assert a.process.wait(120) == HANDED_OVER
        # Until then it was handed on: a connection that ends with the term.
        until(more.closed.is_set)
        again = more.another()
        network.call(again.connect("127.0.0.1", b.openflow))
        until(lambda: edge.masters.is_master(again))
        until(lambda: in_sync(b))
        assert b.live() == {body["id"]}
        assert (more.changed, again.changed) == (0, 0)
        entries = b.ask("/v1/audit?subject=controller")[1]["entries"]
        (handed_over,) = [each for each in entries if each["action"] == "hand over"]
        assert handed_over["detail"] == "0 of 1 switches are connected here, 1 others to b"
        assert b.ask("/v1/instances")[1]["why"] == "drained"
