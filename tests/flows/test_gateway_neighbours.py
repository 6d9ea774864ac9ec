"""A core learns where jobs are though what they send to a gateway goes past its learning, on a real Open vSwitch."""

from __future__ import annotations

import time

import pytest

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lark_controller.flows.desired import Desired
from lark_controller.flows.text import flow_text
from lark_controller.policies.file import load
from tests.fixtures.controllers import until
from tests.flows.test_pipeline import CORE
from tests.flows.test_wan_backup import HOPS, core, policy

pytestmark = pytest.mark.ovs


@pytest.mark.parametrize("version", [4, 6])
def test_what_a_job_answers_a_gateway_that_asks_is_learned(ovs: OpenVSwitch, net: Net, version: int) -> None:
    """Without it answers to the job go out by all ports, other WAN ports among them, once its MAC is forgotten."""
    bridge = net.name("br")
    ovs.vsctl("add-br", bridge, "--", "set", "bridge", bridge, "datapath_type=netdev", "fail_mode=secure")
    job = net.host("job", addresses=["10.64.0.5/8", "2001:db8::5/64"])
    gateway = net.host("gw", addresses=["10.0.0.2/8", "2001:db8::2/64"], mac=HOPS["wan"])
    if version == 4:
        # Nothing that IPv6 says by itself is to teach the core.
        net.exec(job, ["sh", "-c", "echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6"])
    for number, host in enumerate((job, gateway), 1):
        ovs.add_port(bridge, host.port, number)
    desired = Desired(load(policy({})))
    desired.set_switch(core(desired, set(), set()))
    for key, data in desired.build(CORE).flows.items():
        ovs.ofctl(bridge, "add-flow", flow_text(key, data))
    to_job, to_gateway = (("10.64.0.5", "10.0.0.2"), ("2001:db8::5", "2001:db8::2"))[version == 6]
    until(lambda: net.ping(job, to_gateway))

    def known() -> bool:
        return job.mac in ovs.appctl("fdb/show", bridge)

    # The job has the gateway's MAC, and asks nobody: what it sends teaches the core nothing.
    for host, address, other in ((job, to_gateway, gateway), (gateway, to_job, job)):
        entry = ["ip", f"-{version}", "neigh", "replace", address, "lladdr", other.mac, "dev", host.device]
        net.exec(host, [*entry, "nud", "permanent"])

    def is_forgotten() -> bool:
        """After some seconds in which it sends to the gateway alone: what IPv6 says by itself at its start is over."""
        ovs.appctl("fdb/flush", bridge)
        time.sleep(3)
        return net.ping(job, to_gateway) and not known()

    until(is_forgotten)
    # A gateway asks again for a job whose MAC it has not seen confirmed for some seconds (RFC 4861, section 7.3.3).
    asks = ["ip", f"-{version}", "neigh", "replace", to_job, "lladdr", job.mac, "dev", gateway.device, "nud", "probe"]
    net.exec(gateway, asks)
    until(known)
