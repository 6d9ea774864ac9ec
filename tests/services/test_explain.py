"""The controller explains what becomes of a packet, by what fake switches hold."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.errors import AdError, NotFoundError
from lark_common.transfers import Treatment
from lark_controller.api.external import ExternalWish, GatewayWord
from lark_controller.controller import Controller
from lark_controller.flows.cookies import Category, cookie
from lark_controller.flows.model import FlowData, FlowKey, Term
from lark_controller.flows.simulation.classifier import FlowEntry
from lark_controller.jobs.job import Job
from lark_controller.services.treatments import Said
from tests.fixtures.controllers import (
    OPEN,
    POLICY,
    a_core,
    an_edge,
    connect,
    post,
    running,
    until,
)

# Seconds for a switch to answer, on a machine that does much else.
PATIENCE = 60.0
NO_SLICES = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches: {core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}}
policies:
  - block: {when: 'Owner == "mallory"'}
  - connectivity: {when: 'Owner == "shut"', inbound: deny}
"""


def test_explain_says_who_and_why(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (2, "alice"), (3, "bob")):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
        good = controller.switches.explain("10.64.0.1", "10.64.0.2", PATIENCE)
        assert good.verdict == "forwarded"
        assert good.steps[0].text.endswith(", enforced")
        bad = controller.switches.explain("10.64.0.1", "10.64.0.3", PATIENCE)
        assert bad.verdict == "dropped"
        assert "slice-from" in bad.reason
        assert any('Owner = "alice"' in step.text for step in bad.steps)
        wan = controller.switches.explain(controller.jobs.at("10.64.0.3").job.id, "192.0.2.1", PATIENCE)
        assert (wan.verdict, "wan drop" in wan.reason) == ("dropped", True)
        for src, dst in (("10.64.0.9", "192.0.2.1"), ("10.64.0.1", "10.64.0.9"), ("192.0.2.1", "10.64.0.9")):
            nobody = controller.switches.explain(src, dst, PATIENCE)
            assert nobody.verdict == "dropped"
            assert "10.64.0.9" in nobody.reason


@pytest.mark.parametrize(("kind", "rest"), [("block", ""), ("connectivity", ", inbound: deny, outbound: deny")])
def test_explain_names_the_rule_that_takes_all_network_away(
    tmp_path: Path, network: FakeNetwork, kind: str, rest: str
) -> None:
    rule = f"  - {kind}: {{when: 'Owner == \"zoe\"'{rest}}}\n"
    with running(tmp_path, POLICY + rule) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (3, "zoe")):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
        for pair in (("10.64.0.1", "10.64.0.3"), ("10.64.0.3", "10.64.0.1")):
            found = controller.switches.explain(*pair, PATIENCE)
            assert found.verdict == "dropped"
            assert f'by {kind} when Owner == "zoe" (policy line' in found.reason
            # It is confirmed by its switch, and may nothing; and reasons name it as its user does.
            (zoe,) = (step.text for step in found.steps if "10.64.0.3 is job 3.0 " in step.text)
            assert zoe.endswith(", blocked")
            assert any(step.text.startswith(f"job 3.0: {kind} rule ") for step in found.steps)


def attached(
    controller: Controller, number: int, kind: str, owner: str = "alice", worker: int = 1, attributes: str = ""
) -> Job:
    """A job without a port on a switch, whose rules its worker has in place."""
    address = f"10.255.64.{worker * 10}" if kind == "nat" else f"10.64.0.{number}"
    more = f'LarkNetworkType = "{kind}"'
    job = post(
        controller, number, owner, datapath=worker, address=address, port=None, more=more, attributes=attributes
    ).job
    until(lambda: controller.workers.rules(job.host, "", 0).waiting)
    controller.workers.confirmed(job.host, controller.workers.rules(job.host, "", 0).revision, {})
    return job


@pytest.mark.parametrize("kind", ["bridge", "nat"])
@pytest.mark.parametrize("cored", [True, False])
def test_explain_asks_the_switch_of_the_receiver_where_the_sender_is_at_none(
    tmp_path: Path, network: FakeNetwork, kind: str, cored: bool
) -> None:
    declared = next(line for line in NO_SLICES.splitlines(keepends=True) if line.startswith("switches:"))
    with running(tmp_path, NO_SLICES if cored else NO_SLICES.replace(declared, "")) as controller:
        connect(network, controller, an_edge(hardware="Open vSwitch"))
        if cored:
            connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (2, "mallory"), (3, "shut")):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
        sender = attached(controller, 4, kind, worker=2)
        reached = controller.switches.explain(sender.id, "10.64.0.1", PATIENCE)
        assert (reached.verdict, reached.reason.endswith("hands it to job 1.0")) == ("forwarded", True)
        for address in ("10.64.0.2", "10.64.0.3"):
            found = controller.switches.explain(sender.id, address, PATIENCE)
            assert (found.verdict, "drops it in table" in found.reason) == ("dropped", True), address


def test_explain_follows_what_leaves_by_nat_with_an_address_of_no_job(tmp_path: Path, network: FakeNetwork) -> None:
    """Workers may have the same networks behind NAT, so the receiver's has a job with the sender's address."""
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        sender, twin = (attached(controller, 4 + worker, "nat", "bob", worker=worker) for worker in (1, 2))
        there = attached(controller, 7, "bridge", "bob", worker=2)
        controller.workers.confirmed(there.host, controller.workers.rules(there.host, "", 0).revision, {})
        found = controller.switches.explain(sender.id, there.id, PATIENCE)
        assert found.verdict == "forwarded"
        assert any(step.text.endswith("the worker's own address: explained for 10.0.0.1") for step in found.steps)
        # Its own address is of no use to anybody but other nat jobs of its worker.
        beside = attached(controller, 8, "bridge", "bob")
        for source in (beside.id, twin.id, "10.1.1.1"):
            found = controller.switches.explain(source, sender.id, PATIENCE)
            why = "none but nat jobs of worker worker1 reach a job behind its NAT"
            assert (found.verdict, found.reason) == ("dropped", why), source


def test_explain_says_that_a_worker_has_not_confirmed_the_rules_by_which_it_answers(
    tmp_path: Path, network: FakeNetwork
) -> None:
    """Its job stays enforced meanwhile, for as long as the worker is not late."""
    with running(tmp_path, NO_SLICES) as controller:
        connect(network, controller, an_edge(hardware="Open vSwitch"))
        connect(network, controller, a_core())
        job = attached(controller, 4, "bridge", worker=2)
        before = controller.switches.explain(job.id, "192.0.2.1", PATIENCE)
        assert (before.verdict, "until worker" in before.reason) == ("forwarded", False)
        controller.policy.put(NO_SLICES.replace("mallory", "alice"), "ops")
        words = " (until worker worker2 has these rules, those of before hold there)"
        for owner in (None, "alice"):
            found = controller.switches.explain(job.id, "192.0.2.1", PATIENCE, owner)
            assert (found.verdict, found.reason.endswith(words)) == ("dropped", True)
        controller.workers.confirmed(job.host, controller.workers.rules(job.host, "", 0).revision, {})
        found = controller.switches.explain(job.id, "192.0.2.1", PATIENCE)
        assert (found.verdict, "until worker" in found.reason) == ("dropped", False)


def test_explain_has_the_worker_that_keeps_a_nat_job_without_a_slice_from_those_of_slices(
    tmp_path: Path, network: FakeNetwork
) -> None:
    some = POLICY.replace("slice: {by: Owner}", "slice: {by: Owner, when: 'Owner == \"alice\"'}")
    with running(tmp_path, some) as controller:
        connect(network, controller, an_edge(hardware="Open vSwitch"))
        connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (2, "dave")):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
        sender = attached(controller, 4, "nat", "carol", worker=2)
        found = controller.switches.explain(sender.id, "10.64.0.1", PATIENCE)
        why = "10.64.0.1 is in the job networks and of no job without a slice, and the job has none"
        assert (found.verdict, found.reason) == ("dropped", f"worker worker2 drops it: {why} (policy line 10)")
        assert controller.switches.explain(sender.id, "10.64.0.2", PATIENCE).verdict == "forwarded"
        assert controller.switches.explain(sender.id, "10.1.1.1", PATIENCE).verdict == "forwarded"


@pytest.mark.parametrize(
    ("src", "dst", "verdict", "asks"),
    [
        ("10.64.0.2", "10.64.0.1", "forwarded", False),
        ("10.64.0.2", "10.64.0.4", "forwarded", True),
        ("10.64.0.5", "10.64.0.1", "dropped", True),
        ("10.9.9.9", "10.64.0.1", "forwarded", True),
        ("10.9.9.9", "10.64.0.3", "dropped", True),
    ],
)
def test_explain_answers_a_switch_that_asks_as_the_controller_would(
    tmp_path: Path, network: FakeNetwork, src: str, dst: str, verdict: str, asks: bool
) -> None:
    """Among other hosts a switch asks at the first packet; nothing was sent here yet."""
    closed = "\n  - connectivity: {when: 'Owner == \"zoe\"', inbound: deny}\n"
    with running(tmp_path, OPEN.replace("[{slice: {by: Owner}}]", "\n  - slice: {by: Owner}") + closed) as controller:
        for datapath in (1, 2):
            connect(network, controller, an_edge(datapath, hardware="Open vSwitch"))
        for number, owner, worker in ((1, "alice", 1), (2, "alice", 2), (3, "zoe", 1), (5, "bob", 2)):
            job = post(controller, number, owner, datapath=worker, port=f"p{number % 4}").job
            controller.jobs.confirm(job.id, 20)
        found = controller.switches.explain(src, dst, PATIENCE)
        assert found.verdict == verdict, found
        assert any(step.text.startswith("asks the controller") for step in found.steps) == asks, found


def test_explain_tells_the_treatment_of_what_htcondor_moves_and_whether_it_is_in_place(
    tmp_path: Path, network: FakeNetwork
) -> None:
    rules = (
        "  - transfers: {when: 'Owner == \"alice\"', rate: 8Mbit, group: bulk}\n"
        "  - transfers: {when: 'Owner == \"bob\"', block: true}\n"
        "groups:\n  default: {}\n  bulk: {dscp: 9}\n"
    )
    with running(tmp_path, POLICY + rules) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        alice, bob, _ = (post(controller, number, owner).job for number, owner in enumerate(("alice", "bob", "zoe"), 1))

        def told(src: str, dst: str, owner: str | None = None) -> list[str]:
            steps = controller.switches.explain(src, dst, PATIENCE, owner).steps
            return [step.text for step in steps if step.where == "transfers"]

        here = "what HTCondor moves for job"
        unheard = "not in place on worker worker1: the worker has not confirmed that it enforces this"
        assert told("10.64.0.1", "10.64.0.2") == [
            f"{here} 1.0: at most 8 Mb/s, group bulk; {unheard}", f"{here} 2.0: blocked; {unheard}",
        ]  # fmt: skip
        trouble = "its kernel does not take the rules"
        asked = {alice.number: Treatment(8_000_000, 9), bob.number: Treatment(block=True)}
        controller.jobs.treatments.note(
            {alice.number: Said(asked[alice.number]), bob.number: Said(None, trouble)}, asked
        )
        in_place = (
            f"{here} 1.0: at most 8 Mb/s, group bulk; in place on worker worker1, "
            "the rate in both directions, the group's mark in what leaves it"
        )
        refused = f"{here} 2.0: blocked; not in place on worker worker1: {trouble}"
        assert told("10.64.0.1", "10.64.0.2") == [in_place, refused]
        # Another user's is nobody's business; a job at both ends is told of once.
        assert told("10.64.0.1", "10.64.0.2", "bob") == [refused]
        assert told("10.64.0.1", "10.64.0.1") == [in_place]
        assert told("10.64.0.3", "192.0.2.1") == [f"{here} 3.0: under no rule"]
        # The rule itself is among those that apply.
        steps = controller.switches.explain("10.64.0.1", "192.0.2.1", PATIENCE).steps
        assert any(step.text.startswith("job 1.0: transfers rule 1 (policy line") for step in steps)


def test_explain_says_that_transfers_are_outside_of_a_policy_without_rules_for_them(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (2, "bob")):
            post(controller, number, owner)

        def told(src: str, dst: str, owner: str | None = None) -> list[str]:
            steps = controller.switches.explain(src, dst, PATIENCE, owner).steps
            return [step.text for step in steps if step.where == "transfers"]

        outside = "(sandboxes, URLs) is outside of the policy, which has no rule for transfers"
        assert told("10.64.0.1", "192.0.2.1") == [f"what HTCondor moves for job 1.0 {outside}"]
        assert told("10.64.0.1", "10.64.0.2") == [f"what HTCondor moves for jobs 1.0 and 2.0 {outside}"]
        # Another user's is nobody's business; where no job is concerned, there is nothing to say.
        assert told("10.64.0.1", "10.64.0.2", "alice") == [f"what HTCondor moves for job 1.0 {outside}"]
        assert told("10.9.9.9", "192.0.2.1") == []


# Room for two addresses' flows on the core.
WIDE = POLICY.replace("max_rules: 60", "max_rules: 200")
EXTERNAL = """
external:
  pools: {public: [198.51.100.64/30]}
  rules:
    - {when: 'Owner == "alice"', pool: public, open: [tcp/80, udp/53]}
    - {when: 'Owner == "carol"', pool: public, open: [any]}
"""


def test_explain_walks_through_the_translation_in_both_directions(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, WIDE + EXTERNAL) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        alice, zoe, carol = (
            post(controller, number, owner).job for number, owner in enumerate(("alice", "zoe", "carol"), 1)
        )
        for job in (alice, carol):
            controller.external.associate(ExternalWish(job.id), "test")
        for job in (alice, zoe, carol):
            controller.jobs.confirm(job.id, 20)

        def told(src: str, dst: str, owner: str | None = None) -> tuple[str, str, str]:
            found = controller.switches.explain(src, dst, PATIENCE, owner)
            return found.verdict, found.reason, "\n".join(f"{step.where}: {step.text}" for step in found.steps)

        verdict, reason, steps = told("192.0.2.1", "198.51.100.64")
        assert (verdict, reason) == ("forwarded", "fake 0000000000000001 hands it to job 1.0"), steps
        assert "job 1.0, with tcp/80, udp/53 open: explained for a packet of tcp to port 80" in steps
        assert "core1 classify: acts and goes on: external address" in steps
        verdict, reason, steps = told(alice.id, "192.0.2.1")
        assert (verdict, reason) == ("forwarded", "core1 sends it to the WAN by wan, wan-fast as 198.51.100.64")
        assert "has the external address 198.51.100.64 with tcp/80, udp/53 open: explained for a packet of tcp" in steps
        # Where all is open, for a ping as everywhere else; and what the address is said to send, the job sends.
        assert told("192.0.2.1", "198.51.100.65")[1].endswith("hands it to job 3.0")
        assert told("198.51.100.65", "192.0.2.1")[1].endswith("as 198.51.100.65")
        assert told(zoe.id, "192.0.2.1")[1] == "core1 sends it to the WAN by wan, wan-fast"
        verdict, reason, steps = told("192.0.2.1", "198.51.100.66")
        assert verdict == "dropped"
        assert "external: 198.51.100.66 is of pool public, and no live job has it" in steps
        # Inside of the site a job has its own address alone.
        assert told(zoe.id, "198.51.100.64")[0] == "dropped"
        # A user hears of own jobs alone, by the external address as well.
        assert "job 1.0" in told("192.0.2.1", "198.51.100.64", "alice")[2]
        assert "1.0" not in told(zoe.id, "198.51.100.64", "zoe")[2]
        with pytest.raises(NotFoundError):
            told("192.0.2.1", "198.51.100.64", "zoe")
        controller.external.release(controller.external.page(alice.id).associations[0].id, "test")
        assert "no live job has it" in told("192.0.2.1", "198.51.100.64")[2]


def test_what_leaves_by_ipv6_is_explained_as_it_is_beside_an_external_address(
    tmp_path: Path, network: FakeNetwork
) -> None:
    text = WIDE.replace("[10.64.0.0/16]", "[10.64.0.0/16, '2001:db8:64::/64']")
    with running(tmp_path, text + EXTERNAL) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        alice = post(controller, 1, more='LarkInnerAddressIPv6 = "2001:db8:64::1"').job
        controller.external.associate(ExternalWish(alice.id), "test")
        controller.jobs.confirm(alice.id, 20)
        for source, target, told in (("10.64.0.1", "192.0.2.1", True), ("2001:db8:64::1", "2001:db8:1::1", False)):
            found = controller.switches.explain(source, target, PATIENCE)
            assert found.verdict == "forwarded"
            assert any(step.where == "external" for step in found.steps) is told


def test_a_call_is_explained_by_the_wan_port_where_its_pool_is(tmp_path: Path, network: FakeNetwork) -> None:
    placed = EXTERNAL.replace("[198.51.100.64/30]", "{networks: [198.51.100.64/30], port: wan-fast, switch: core2}")
    second = '  core2: {datapath: "00000000000000c2", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}\npolicies:'
    with running(tmp_path, WIDE.replace("policies:", second) + placed) as controller:
        for switch in (an_edge(), a_core()):
            connect(network, controller, switch)
        alice = post(controller, 1, "alice").job
        controller.external.associate(ExternalWish(alice.id), "test")
        for ends in (("192.0.2.1", "198.51.100.64"), (alice.id, "192.0.2.1")):
            found = controller.switches.explain(*ends, PATIENCE)
            waits = "no core that translates the external address has connected yet: core2"
            assert (found.verdict, found.reason) == ("unknown", waits)
        connect(network, controller, FakeSwitch(0xC2, {1: "l", 2: "w", 3: "f"}))
        controller.jobs.confirm(alice.id, 20)
        found = controller.switches.explain("192.0.2.1", "198.51.100.64", PATIENCE)
        by = "where it comes by wan-fast of core2: at wan of core1, wan-fast of core1, wan of core2 it is dropped"
        assert (found.verdict, found.reason) == ("forwarded", f"fake 0000000000000001 hands it to job 1.0, {by}")
        owners = controller.switches.explain("192.0.2.1", "198.51.100.64", PATIENCE, "alice").reason
        assert owners.endswith(", where it comes by the WAN port where its pool is; at others it is dropped")
        assert any(step.where == "core2 classify" and "external address" in step.text for step in found.steps)
        assert not any(step.where.startswith("core1") for step in found.steps)


def test_what_a_linux_gateway_translates_is_explained_from_there_on(tmp_path: Path, network: FakeNetwork) -> None:
    text = WIDE.replace(WIDE[WIDE.index("switches:") : WIDE.index("policies:")], "")
    with running(tmp_path, text + EXTERNAL) as controller:
        alice = post(controller, 1, "alice").job
        controller.external.associate(ExternalWish(alice.id), "test")

        def told(src: str, dst: str, owner: str | None = None) -> tuple[str, str, str]:
            found = controller.switches.explain(src, dst, PATIENCE, owner)
            return found.verdict, found.reason, "\n".join(f"{step.where}: {step.text}" for step in found.steps)

        # The gateway is not the reason where a switch cannot be asked.
        away = "not every switch on its way could be asked"
        assert told("192.0.2.1", "198.51.100.64", "alice")[:2] == ("unknown", away)
        assert told("192.0.2.1", "198.51.100.64")[1] == "the switch of job 1.0 has not connected yet"
        connect(network, controller, an_edge())
        controller.jobs.confirm(alice.id, 0)
        # No gateway has it yet.
        verdict, reason, steps = told("192.0.2.1", "198.51.100.64")
        waits = "no gateway that serves 198.51.100.64 is there"
        assert told("192.0.2.1", "198.51.100.64", "alice")[:2] == ("unknown", waits)
        assert (verdict, reason) == (
            "unknown",
            f"by the rules that should be there: forwarded, fake 0000000000000001 hands it to job 1.0; {waits}",
        )
        revision = controller.external.translations("", 0).revision
        pools = (IPv4Network("198.51.100.64/30"),)
        controller.external.translated(GatewayWord("gateway1", pools, revision, 60.0))
        controller.jobs.confirm(alice.id, 20)
        verdict, reason, steps = told("192.0.2.1", "198.51.100.64")
        assert (verdict, reason) == ("forwarded", "fake 0000000000000001 hands it to job 1.0"), steps
        assert "external: a Linux gateway sends it on to 10.64.0.1" in steps
        verdict, reason, steps = told(alice.id, "192.0.2.1")
        assert verdict == "forwarded"
        assert "external: a Linux gateway sends it as 198.51.100.64" in steps
        # Its user hears the same of it, and what comes from inside is dropped there.
        assert "external: a Linux gateway sends it on to 10.64.0.1" in told("192.0.2.1", "198.51.100.64", "alice")[2]
        zoe = post(controller, 2, "zoe").job
        controller.jobs.confirm(zoe.id, 20)
        verdict, reason, steps = told(zoe.id, "198.51.100.64")
        assert (verdict, reason) == ("dropped", "a Linux gateway drops what comes from inside for an external address")


@pytest.mark.parametrize("strange", [{"goto": 0}, {"match": (("oxm_80003a04", 1, 0xFFFFFFFF), ("ipv4_src", 1, 1))}])
def test_a_switch_that_reports_what_no_switch_takes_is_told_of(
    tmp_path: Path, network: FakeNetwork, strange: dict[str, Any]
) -> None:
    with running(tmp_path) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        for number in (1, 2):
            controller.jobs.confirm(post(controller, number).job.id, 20)
        key = FlowKey(0, 9, tuple(Term(*each) for each in strange.get("match", ())))
        data = FlowData(cookie(Category.SWITCH), goto=strange.get("goto"))
        edge.tables.entries[key] = FlowEntry(key, data)
        found = controller.switches.explain("10.64.0.1", "10.64.0.2", PATIENCE)
        assert found.verdict == "unknown"
        assert "reports a flow that no switch takes" in found.reason


def test_what_comes_from_outside_to_a_job_in_a_vlan_is_explained_with_its_tag(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, WIDE) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        for number, more in ((1, "LarkVLAN = 7"), (2, "")):
            controller.jobs.confirm(post(controller, number, more=more).job.id, 20)
        found = controller.switches.explain("192.0.2.1", "10.64.0.1", PATIENCE)
        assert found.verdict == "forwarded", found
        assert any("with the tag of VLAN 7" in step.text for step in found.steps)
        # Its own packets get the tag at its port; a job in no VLAN is not behind that tag.
        assert controller.switches.explain("10.64.0.1", "192.0.2.1", PATIENCE).verdict == "forwarded"
        apart = controller.switches.explain("10.64.0.1", "10.64.0.2", PATIENCE)
        assert (apart.verdict, "the jobs are in different VLANs: 7 and none" in apart.reason) == ("dropped", True), (
            apart
        )
        plain = controller.switches.explain("192.0.2.1", "10.64.0.2", PATIENCE)
        assert (plain.verdict, any("VLAN" in step.text for step in plain.steps)) == ("forwarded", False)


def test_a_wan_port_that_is_down_forwards_nothing(tmp_path: Path, network: FakeNetwork) -> None:
    hops = WIDE.replace("wan: 2, wan-fast: 3", 'wan: {port: 2, next_hop: "02:00:00:00:ff:02"}, wan-fast: 3')
    assert hops != WIDE
    with running(tmp_path, hops) as controller:
        core = a_core()
        connect(network, controller, an_edge())
        connect(network, controller, core)
        controller.jobs.confirm(post(controller, 1).job.id, 20)

        def told(src: str, dst: str) -> tuple[str, str]:
            found = controller.switches.explain(src, dst, PATIENCE)
            return found.verdict, found.reason

        out, back = ("10.64.0.1", "192.0.2.1"), ("192.0.2.1", "10.64.0.1")
        assert told(*out) == ("forwarded", "core1 sends it to the WAN by wan")
        assert told(*back)[0] == "forwarded"
        network.call(_down(core, 2))
        until(lambda: told(*out) == ("dropped", "core1 sends it to the WAN by wan, which is down"))
        # By the other one it may come still.
        assert told(*back)[0] == "forwarded"
        network.call(_down(core, 3))
        until(lambda: told(*back) == ("dropped", "it would come from the WAN by wan, which is down"))


async def _down(switch: FakeSwitch, port: int) -> None:
    switch.change_port(replace(switch.ports[port], up=False))


def test_ends_of_two_ip_versions_are_named_as_their_users_do(tmp_path: Path) -> None:
    with running(tmp_path) as controller:
        job = post(controller, 1, "alice").job
        with pytest.raises(AdError, match=r"^1\.0 and 2001:db8::1 have no address of the same IP version$"):
            controller.switches.explain(job.id, "2001:db8::1", PATIENCE)


def test_two_jobs_of_one_number_are_told_apart_by_their_access_points(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path) as controller:
        connect(network, controller, an_edge())
        jobs = [
            post(controller, number, global_id=f"submit{number}.example#103.0#1", attributes="ClusterId = 103").job
            for number in (1, 2)
        ]
        for job in jobs:
            controller.jobs.confirm(job.id, 20)
        found = controller.switches.explain(jobs[0].id, jobs[1].id, PATIENCE)
        assert found.reason.endswith("hands it to job submit2.example#103.0"), found
        said = "\n".join(step.text for step in found.steps)
        assert said.count("job submit1.example#103.0") == said.count("job submit2.example#103.0") > 0
        assert "for jobs submit1.example#103.0 and submit2.example#103.0" in said
        # One of them alone has the number as it is.
        (*_, other) = controller.switches.explain(jobs[0].id, "192.0.2.1", PATIENCE).steps
        assert "submit1" not in other.text
        lines = controller.policy.plan(POLICY.replace('Owner == "mallory"', 'GlobalJobId == "submit1.example#103.0#1"'))
        assert [effect.example for effect in lines.effects] == ["103.0"]
