"""Counters of a switch that an instance which stands by reads: real processes, and a switch that counts."""

from __future__ import annotations

import re
import signal
import urllib.request
from collections.abc import Iterator

import pytest

from bench.fleet import Mastered
from fake_switch.switch import FakeNetwork
from tests.cluster.test_kept_switches import begin, connected_to_both, instances
from tests.cluster.test_processes import Instance, until

__all__ = ["instances"]
pytestmark = pytest.mark.postgres

ADS = """\
GlobalJobId = "submit.example#1.0#1700000000"
JobCurrentStartDate = 1700000000
ClusterId = 1
ProcId = 0
Owner = "alice"
User = "alice@example"
AcctGroup = "group_cms"
------
Machine = "worker1.example"
Name = "slot1_1@worker1.example"
LarkNetworkType = "ovs_bridge"
LarkExternalInterface = "job1"
LarkDatapathId = "0000000000000001"
LarkInnerMacAddress = "02:00:00:00:00:01"
LarkInnerAddressIPv4 = "10.64.0.1"
"""


def results(instance: Instance) -> dict[str, float]:
    """The switches whose counters were read, by result; of one that stands by under ``for_active``."""
    request = urllib.request.Request(f"{instance.url}/metrics", headers={"Authorization": f"Bearer {instance.token}"})
    with urllib.request.urlopen(request, timeout=15) as answer:
        text = answer.read().decode()
    found = dict(re.findall(r'^lark_switch_counters_read_total\{result="(\w+)"\} (\S+)$', text, re.MULTILINE))
    found |= dict(re.findall(r"^lark_switch_counters_read_(for_active)_total (\S+)$", text, re.MULTILINE))
    return {name: float(value) for name, value in found.items()}


@pytest.fixture
def both(instances: tuple[Instance, Instance]) -> Iterator[tuple[Instance, Instance, Mastered]]:
    """The active one, one that stands by, and a switch that both have, with a job whose counters grow."""
    a, b = instances
    for each in instances:
        each.environ["LARK_COUNTER_SECONDS"] = "0.5"
    begin(a, b)
    with FakeNetwork() as network:
        edge, more = connected_to_both(network, a, b)
        status, body = a.ask("/v1/jobs?wait=10", "POST", ADS)
        assert status == 201, body
        edge.busy = more.busy = True
        yield a, b, more


def test_one_that_stands_by_reads_and_the_active_one_counts(both: tuple[Instance, Instance, Mastered]) -> None:
    a, b, more = both
    until(lambda: results(a)["taken"] >= 3)
    assert results(b)["for_active"] >= 3
    assert results(a)["refused"] == 0
    # It has written nothing to the switch.
    assert (more.flow_mods, more.refused_as_slave) == (0, 0)
    # The switch counts 100 packets a second each way, and nothing is counted twice.
    (job,) = a.ask("/v1/jobs")[1]["jobs"]
    used = a.ask(f"/v1/jobs/{job['id']}?fresh=true")[1]["usage"]
    assert 0 < used["packets_out"] <= more.packets()
    assert used["packets_out"] == used["packets_in"]

    # Paused, it answers nothing: the active one reads itself, and nothing is missing.
    assert b.process is not None
    b.process.send_signal(signal.SIGSTOP)
    own = results(a)["own"]
    until(lambda: results(a)["own"] >= own + 3)
    b.process.send_signal(signal.SIGCONT)
    taken = results(a)["taken"]
    until(lambda: results(a)["taken"] > taken)
    after = a.ask(f"/v1/jobs/{job['id']}?fresh=true")[1]["usage"]
    assert used["packets_out"] < after["packets_out"] <= more.packets()
