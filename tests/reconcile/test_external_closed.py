"""External addresses that a switch does not have: the job runs, the reason is shown, and they open when they can."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from os_ken.ofproto import ofproto_v1_3 as ofp

from fake_switch.switch import FakeNetwork, FakeSwitch
from fake_switch.switchside import FlowMod
from lark_common.runs import Address
from lark_controller.api.external import ExternalStanding, ExternalWish
from lark_controller.controller import Controller
from lark_controller.flows.cookies import Category, parse
from lark_controller.flows.tables import Edge
from lark_controller.jobs.external import Association, listed
from lark_controller.jobs.job import Job
from lark_controller.services.dns_updates import DnsUpdates
from tests.fixtures.controllers import POLICY, an_edge, connect, network, post, running, until

__all__ = ["network"]

POOLS = """
external:
  pools: {public: [198.51.100.64/28]}
  rules: [{pool: public, open: [tcp], per_user: 9}]
"""
OWN = """
external:
  rules: [{family: ipv6, open: [tcp], per_user: 9}]
"""
UNLIMITED = POLICY.replace("max_rules: 60, ", "").replace("10.64.0.0/16]", '10.64.0.0/16, "2001:db8:64::/64"]')
NO_TRACKING = "has no connection tracking, which an open IPv6 address needs"


@dataclass(frozen=True)
class Asked:
    """A job that has asked for an external address."""

    job: Job
    association: Association


def asked(controller: Controller, number: int, opened: str = "tcp/80", name: str = "") -> Asked:
    more = f'LarkInnerAddressIPv6 = "2001:db8:64::{number}"'
    job = post(controller, number, more=more).job
    wish = ExternalWish(job.id, listed(opened), name=name)
    found = Asked(job, controller.external.associate(wish, "ops").association)
    assert controller.jobs.confirm(job.id, 20).job.state == "enforced"
    return found


def standing(controller: Controller, of: Asked) -> ExternalStanding:
    return controller.external.standing(of.association)


def count_closed(controller: Controller, of: Asked) -> int:
    """The times that an address of a job was closed, by the audit trail."""
    trail = controller.audit.page(of.job.id, None, 20).entries
    return [each.action for each in trail].count("external address closed")


def external_flows(switch: FakeSwitch) -> set[int]:
    """The jobs whose external addresses a core has flows of."""
    whose = (parse(data.cookie) for data in switch.program.flows.values())
    return {each.number for each in whose if each.category == Category.EXTERNAL and each.number}


def openings(switch: FakeSwitch) -> list[int]:
    """The jobs whose own addresses an edge has opened."""
    found = ((key, parse(data.cookie)) for key, data in switch.program.flows.items())
    return sorted({each.number for key, each in found if key.table == Edge.CONNECT and each.category == Category.JOB})


def a_core(**options: object) -> FakeSwitch:
    return FakeSwitch(0xC0, {1: "a", 2: "b", 3: "c"}, **options)  # type: ignore[arg-type]


def test_a_switch_without_connection_tracking_runs_the_job_and_opens_nothing(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, UNLIMITED + OWN) as controller:
        # In sync, though nothing on it can judge connections.
        edge = an_edge(hardware="Open vSwitch", tracks=False)
        connect(network, controller, edge)
        one = asked(controller, 1)
        state, reason = standing(controller, one)
        assert (state, NO_TRACKING in reason) == ("closed", True)
        shown = controller.jobs.found(one.job.id)
        assert (shown.state, shown.external) == ("enforced", ())
        assert shown.reason == f"external address 2001:db8:64::1 is closed: {reason}"
        assert openings(edge) == []
        steps = [step.text for step in controller.switches.explain("2001:db8:ffff::7", one.job.id, 5).steps]
        assert any("2001:db8:64::1 is closed" in text for text in steps), steps
        trail = controller.audit.page
        until(lambda: "external address closed" in [each.action for each in trail(one.job.id, None, 10).entries])
        # The next switch of that worker can.
        network.run(edge.disconnect)
        until(lambda: not controller.switches.find(f"{1:016x}").connected)
        better = an_edge(hardware="Open vSwitch", tracks=True)
        connect(network, controller, better)
        until(lambda: standing(controller, one) == ("open", ""))
        assert controller.jobs.found(one.job.id).external_addresses == (one.association.address,)
        assert openings(better) == [one.job.number]


def test_a_core_that_refuses_an_external_address_stays_in_sync_and_so_does_the_job(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, UNLIMITED + POOLS) as controller:
        core = a_core()
        for switch in (core, an_edge()):
            connect(network, controller, switch)

        def external(mod: FlowMod) -> bool:
            whose = parse(mod.data.cookie)
            return whose.category == Category.EXTERNAL and whose.number > 0

        core.fail_on(external, ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_TABLE_FULL)
        one = asked(controller, 1)
        until(lambda: standing(controller, one).state == "closed")
        assert "switch core1 refused" in standing(controller, one).reason
        assert controller.jobs.found(one.job.id).state == "enforced"
        status = controller.switches.find(f"{0xC0:016x}")
        assert (status.in_sync, status.reason) == (True, "")
        until(lambda: not external_flows(core))
        # Where another's address goes, the one that was refused is tried again.
        core.fail_nothing()
        two = asked(controller, 2)
        until(lambda: standing(controller, two).state == "open")
        controller.external.release(two.association.id, "ops")
        until(lambda: standing(controller, one).state == "open")
        assert external_flows(core) == {one.job.number}


def test_a_core_without_room_is_given_what_fits_also_after_a_restart(tmp_path: Path, network: FakeNetwork) -> None:
    (first := tmp_path / "first").mkdir()
    with running(first, UNLIMITED + POOLS) as controller:
        for switch in (core := a_core(), an_edge()):
            connect(network, controller, switch)
        frame = len(core.program.flows)
        asked(controller, 1)
        size = len(core.program.flows) - frame
    limit = f"max_rules: {frame + 2 * size + 1}"
    limited = UNLIMITED.replace("role: core, ports", f"role: core, {limit}, ports") + POOLS
    core = a_core()
    with running(tmp_path, limited) as controller:
        edge = an_edge()
        for switch in (core, edge):
            connect(network, controller, switch)
        jobs = [asked(controller, number) for number in (1, 2, 3)]
        assert [standing(controller, each).state for each in jobs] == ["open", "open", "closed"]
        assert "rules and has no room for it" in standing(controller, jobs[2]).reason
        assert controller.jobs.found(jobs[2].job.id).external == ()
        assert external_flows(core) == {jobs[0].job.number, jobs[1].job.number}
        controller.external.release(jobs[0].association.id, "ops")
        until(lambda: standing(controller, jobs[2]).state == "open")
        # The first asks again, as the youngest now.
        again = asked(controller, 1)
        assert standing(controller, again).state == "closed"
        has = external_flows(core)
    network.run(core.disconnect)
    network.run(edge.disconnect)
    with running(tmp_path, limited) as controller:
        connect(network, controller, core)
        connect(network, controller, edge)
        assert external_flows(core) == has == {jobs[1].job.number, jobs[2].job.number}
        until(lambda: standing(controller, again).state == "closed")
        assert "has no room" in controller.jobs.found(again.job.id).reason
        # A policy that knows of more room, and one that knows of less: those that have room keep it.
        controller.policy.put(limited.replace(limit, "max_rules: 10000"), "ops")
        until(lambda: standing(controller, again).state == "open")
        controller.policy.put(limited.replace(limit, f"max_rules: {frame + size}"), "ops")
        until(lambda: [standing(controller, each).state for each in jobs[1:]] == ["open", "closed"])
        until(lambda: external_flows(core) == {jobs[1].job.number})
        assert standing(controller, again).state == "closed"


class Zone(DnsUpdates):
    """The names that are added and not removed."""

    def __init__(self) -> None:
        super().__init__(None, None)
        self.names: dict[str, Address] = {}

    def add(self, to: Association, deadline: float) -> None:
        self.names[to.name] = to.address

    def remove(self, to: Association, deadline: float) -> None:
        self.names.pop(to.name, None)


def test_the_name_of_a_closed_address_leaves_the_dns_and_comes_back_also_after_a_restart(
    tmp_path: Path, network: FakeNetwork
) -> None:
    zone, named = (
        Zone(),
        POOLS.replace("open: [tcp],", 'open: [tcp], names: "{name}.x.org",') + "  zones: {x.org: 60}\n",
    )
    core, edge = a_core(), an_edge()
    with running(tmp_path, UNLIMITED + named, dns=zone) as controller:
        for switch in (core, edge):
            connect(network, controller, switch)
        jobs = [asked(controller, number, name=f"n{number}") for number in (1, 2)]
        both = {f"n{number}.x.org": each.association.address for number, each in enumerate(jobs, 1)}
        until(lambda: zone.names == both)
        limited = UNLIMITED.replace("role: core, ports", f"role: core, max_rules: {len(core.program.flows) - 1}, ports")
        controller.policy.put(limited + named, "ops")
        until(lambda: standing(controller, jobs[1]).state == "closed")
        until(lambda: list(zone.names) == ["n1.x.org"])

        def name() -> tuple[str, str]:
            found = controller.external.find(jobs[1].association.id)
            return found.name_state, found.name_reason

        until(lambda: name() == ("withheld", "the address is closed"))
        trail = controller.audit.page(jobs[1].job.id, None, 20).entries
        assert any(each.action == "name withheld" and "has no room for it" in each.detail for each in trail)
    network.run(core.disconnect)
    network.run(edge.disconnect)
    with running(tmp_path, limited + named, dns=zone) as controller:
        # Until the core is here it is as it was, and its name stays where it is.
        assert standing(controller, jobs[1])[0] == "closed"
        assert "has no room" in standing(controller, jobs[1]).reason
        assert standing(controller, jobs[0]) == ("open", "")
        controller._names.turn()
        assert list(zone.names) == ["n1.x.org"]
        for switch in (core, edge):
            connect(network, controller, switch)
        # From here on it is the core that is known to lack it, and not the store's word.
        until(lambda: count_closed(controller, jobs[1]) == 2)
        assert standing(controller, jobs[1]).state == "closed"
        assert list(zone.names) == ["n1.x.org"]
        controller.policy.put(UNLIMITED + named, "ops")
        until(lambda: zone.names == both)
        # Quarantine closes it as well.
        controller._registration.quarantine(jobs[0].job.id, "the pool contradicts it", "pool")
        until(lambda: list(zone.names) == ["n2.x.org"])
        controller.jobs.lift(jobs[0].job.id, "ops")
        until(lambda: zone.names == both)


def test_an_address_is_pending_while_its_core_has_not_connected(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, UNLIMITED + POOLS) as controller:
        connect(network, controller, an_edge())
        job = post(controller, 1).job
        assert controller.jobs.confirm(job.id, 20).job.state == "enforced"
        made = controller.external.associate(ExternalWish(job.id, listed("tcp/80")), "ops").association
        until(lambda: controller.external.standing(made).state == "pending")
        assert controller.external.standing(made).reason == "switch core1: has not connected yet"
        connect(network, controller, a_core())
        until(lambda: controller.external.standing(made) == ("open", ""))


def test_a_user_is_told_why_an_own_jobs_address_is_closed_and_of_no_others(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, UNLIMITED + OWN) as controller:
        connect(network, controller, an_edge(hardware="Open vSwitch", tracks=False))
        one = asked(controller, 1)
        outside = "2001:db8:ffff::7"
        for ends in ((outside, "2001:db8:64::1"), (one.job.id, outside)):
            steps = [step.text for step in controller.switches.explain(*ends, 5, "alice").steps]
            assert any("2001:db8:64::1 is closed" in text and NO_TRACKING in text for text in steps), steps
        other = post(controller, 2, "bob", more='LarkInnerAddressIPv6 = "2001:db8:64::2"').job
        assert "closed" not in str(controller.switches.explain(other.id, "2001:db8:64::1", 5, "bob"))


def test_a_user_is_told_of_the_translation_of_an_own_job(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, UNLIMITED + POOLS) as controller:
        for switch in (a_core(), an_edge()):
            connect(network, controller, switch)
        one = asked(controller, 1)
        address = str(one.association.address)
        until(lambda: standing(controller, one) == ("open", ""))
        for ends in (("192.0.2.7", address), (one.job.id, "192.0.2.7")):
            found = controller.switches.explain(*ends, 5, "alice")
            assert found.verdict == "forwarded"
            assert any(address in step.text and "tcp/80 open" in step.text for step in found.steps), found.steps
        bob = post(controller, 2, "bob").job
        assert "tcp/80" not in str(controller.switches.explain(bob.id, address, 5, "bob"))


def test_an_edge_without_room_keeps_the_job_and_leaves_its_address_closed(tmp_path: Path, network: FakeNetwork) -> None:
    (first := tmp_path / "first").mkdir()
    with running(first, UNLIMITED + OWN) as controller:
        edge = an_edge(hardware="Open vSwitch")
        connect(network, controller, edge)
        job = post(controller, 1, more='LarkInnerAddressIPv6 = "2001:db8:64::1"').job
        assert controller.jobs.confirm(job.id, 20).job.state == "enforced"
        full = len(edge.program.flows)
    declared = f'  worker1: {{datapath: "{1:016x}", role: edge, max_rules: {full}, ports: {{uplink: 1}}}}\npolicies:'
    with running(tmp_path, UNLIMITED.replace("policies:", declared) + OWN) as controller:
        edge = an_edge(hardware="Open vSwitch")
        connect(network, controller, edge)
        one = asked(controller, 1)
        state, reason = standing(controller, one)
        assert (state, f"takes {full} rules" in reason) == ("closed", True)
        assert controller.jobs.found(one.job.id).state == "enforced"
        network.run(edge.disconnect)
    with running(tmp_path, UNLIMITED.replace("policies:", declared) + OWN) as controller:
        connect(network, controller, edge)
        until(lambda: standing(controller, one).state == "closed")
        assert "has no room for it" in standing(controller, one).reason
