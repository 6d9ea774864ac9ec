"""The map's reach says what Explain says, also where a job's address is none of the local networks."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_controller.policies.reach import Extent
from tests.fixtures.controllers import an_edge, connect, network, post, running, until
from tests.services.test_explain import PATIENCE

__all__ = ["network"]

# No job networks, and jobs with addresses of their own that are not local.
TEXT = """
version: 1
networks: {local: [10.0.0.0/8]}
switches: {core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}}
policies:
  - wan: {when: 'Owner == "zoe" || Owner == "yan"', action: drop}
  - wan: {when: 'Owner == "vic"', action: drop, except: [172.16.5.3]}
"""
ADDRESSES = {
    "zoe": "172.16.5.1",
    "yan": "172.16.5.2",
    "wim": "172.16.5.3",
    "vic": "172.16.5.4",
    "local": "10.1.0.5",
    "nat": "10.255.64.2",
}
# With job networks, of which a nat job's worker has no address where nothing else is local.
POOLED = TEXT.replace("local: [10.0.0.0/8]", "jobs: [172.16.0.0/16], local: [10.0.0.0/8]")


@pytest.mark.parametrize(("text", "kind"), [(TEXT, "bridge"), (TEXT, "ovs_bridge"), (POOLED, "bridge")])
def test_a_job_may_be_the_wan_of_another(tmp_path: Path, network: FakeNetwork, text: str, kind: str) -> None:
    ids = {}
    with running(tmp_path, text) as controller:
        connect(network, controller, an_edge())
        for number, (owner, address) in enumerate(ADDRESSES.items(), 1):
            if text is POOLED and owner == "local":
                continue
            network_type = "nat" if owner == "nat" else kind if number < 4 else "bridge"
            at_port = network_type == "ovs_bridge"
            more = f'LarkNetworkType = "{network_type}"'
            job = post(controller, number, owner, address=address, port="" if at_port else None, more=more).job
            ids[owner] = job.id
            if at_port:
                controller.jobs.confirm(job.id, 20)
        revision = controller.workers.rules("worker1", "", 0).revision
        controller.workers.confirmed("worker1", revision, {})
        until(lambda: not controller.workers.rules("worker1", "", 0).waiting)
        parties = controller.policy.reach().parties
        owners = [each.owner for each in parties]
        reached = {
            (one.owner, other): extent for one in parties for other, extent in zip(owners, one.reaches, strict=True)
        }
        found = {}
        for one, other in permutations(ids, 2):
            explained = controller.switches.explain(ids[one], ids[other], PATIENCE)
            found[one, other] = Extent.ALL if explained.verdict == "forwarded" else Extent.NONE
        assert {pair: reached[pair] for pair in found} == found
        assert found["zoe", "yan"] == (Extent.NONE if text is TEXT else Extent.ALL)
