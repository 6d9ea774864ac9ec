"""External addresses in a core's tables: what passes, as what, and that changes add up to the whole."""

from __future__ import annotations

import json
from dataclasses import replace
from ipaddress import IPv4Address, ip_address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_controller.flows.cookies import Category, cookie, parse
from lark_controller.flows.desired import Desired
from lark_controller.flows.icmp_errors import inward, outward
from lark_controller.flows.model import ETH_ARP, PORT_CONTROLLER, VLAN_PRESENT, Program
from lark_controller.flows.origins import origin
from lark_controller.flows.placement import place_switch
from lark_controller.flows.simulation.simulate import PortView, Result, Tables, run
from lark_controller.flows.tables import Core
from lark_controller.flows.tracked import tracked
from lark_controller.flows.transition import Transition
from lark_controller.jobs.external import External, listed
from lark_controller.jobs.job import Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from tests.fixtures import frames
from tests.flows.test_pipeline import CORE, EDGE, a_job, mac

LAN, OUT = 1, 2
ROUTER, OUTSIDE, FIRST, OTHER = "02:00:00:00:ff:02", "192.0.2.7", "198.51.100.65", "198.51.100.66"
POLICY = """
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches:
  core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: {port: 2, next_hop: "02:00:00:00:ff:02"}}}
policies:
  - wan: {when: 'Owner == "bob"', action: drop, except: [192.0.2.8]}
  - block: {when: 'Owner == "mallory"'}
external:
  pools: {public: [198.51.100.64/28]}
  rules: [{pool: public, open: [any]}]
"""
PLAIN = POLICY[: POLICY.index("external:")]
OPENINGS = ("tcp/80", "tcp/8000-8100 udp", "icmp", "any")


def a_core(desired: Desired) -> None:
    ports = {"p1": LAN, "p2": OUT}
    desired.set_switch(place_switch(desired.policy, CORE, ports, normal=True, tracks=True, max_meter=0))


def mapped(number: int, owner: str, opened: str, address: str = FIRST) -> Job:
    return replace(a_job(number, owner), external=(External(ip_address(address), listed(opened)),))


def tables(*jobs: Job, text: str = POLICY) -> Tables:
    desired = Desired(load(text))
    a_core(desired)
    for job in jobs:
        desired.put(job, Decider(desired.policy).of(job))
    return Tables(desired.build(CORE))


def passed(found: Tables, port: int, frame: bytes) -> Result:
    return run(found, port, frame, PortView.of((LAN, OUT)))


def inwards(job: Job, port: int, source: str = OUTSIDE, address: str = FIRST) -> bytes:
    return frames.tcp(ROUTER, mac(job), source, address, 40000, port)


@pytest.mark.parametrize(
    ("opened", "port", "expected"),
    [
        ("tcp/80", 80, True),
        ("tcp/80", 81, False),
        ("udp/80", 80, False),
        ("icmp", 80, False),
        ("tcp", 81, True),
        ("any", 81, True),
        ("tcp/8000-8100", 8100, True),
        ("tcp/8000-8100", 8101, False),
    ],
)
def test_what_is_open_passes_in_both_directions(opened: str, port: int, expected: bool) -> None:
    job = mapped(1, "alice", opened)
    found = tables(job)
    came = passed(found, OUT, inwards(job, port))
    assert came.ports == ((LAN,) if expected else ())
    if expected:
        assert came.headers[0]["ipv4_dst"] == int(job.ipv4 or 0)
        assert came.headers[0]["ipv4_src"] == int(ip_address(OUTSIDE))
    answer = frames.tcp(mac(job), ROUTER, str(job.ipv4), OUTSIDE, port, 40000)
    left = passed(found, LAN, answer)
    assert left.ports == (OUT,)
    assert left.headers[0]["ipv4_src"] == int(ip_address(FIRST) if expected else job.ipv4 or 0)
    # Inside of the site it is itself.
    inside = passed(found, LAN, frames.tcp(mac(job), ROUTER, str(job.ipv4), "10.1.0.1", port, 40000))
    assert inside.headers[0]["ipv4_src"] == int(job.ipv4 or 0)


def test_the_policy_sees_the_job_behind_the_address() -> None:
    bob, mallory = mapped(1, "bob", "any"), mapped(2, "mallory", "any", OTHER)
    found = tables(bob, mallory)
    assert passed(found, OUT, inwards(bob, 80)).dropped
    assert passed(found, OUT, inwards(bob, 80, "192.0.2.8")).ports == (LAN,)
    assert passed(found, OUT, inwards(mallory, 80, address=OTHER)).dropped
    assert passed(found, LAN, frames.tcp(mac(bob), ROUTER, str(bob.ipv4), OUTSIDE, 80, 40000)).dropped


@pytest.mark.parametrize("source", [FIRST, OTHER, "198.51.100.79"])
@pytest.mark.parametrize("port", [LAN, OUT])
def test_nobody_sends_with_an_external_address(source: str, port: int) -> None:
    job = mapped(1, "alice", "any")
    found = tables(job)
    for destination in (FIRST, OUTSIDE, str(job.ipv4)):
        assert passed(found, port, frames.tcp(ROUTER, mac(job), source, destination, 40000, 80)).dropped
    assert passed(found, port, frames.arp(ROUTER, ROUTER, source, "00:00:00:00:00:00", "10.64.255.3")).dropped


def test_no_job_address_comes_from_outside_behind_an_external_one() -> None:
    job = mapped(1, "alice", "any")
    assert passed(tables(job), OUT, inwards(job, 80, "10.64.0.9")).dropped


def test_an_address_is_asked_for_outside_and_only_a_jobs_is_answered() -> None:
    job = mapped(1, "alice", "tcp/80")
    found = tables(job)
    asked = frames.arp(ROUTER, ROUTER, "192.0.2.254", "00:00:00:00:00:00", FIRST)
    (fields,) = passed(found, OUT, asked).headers
    assert passed(found, OUT, asked).ports == (OUT,)
    assert (fields["eth_type"], fields["arp_op"], fields["eth_dst"]) == (ETH_ARP, 2, int(ROUTER.replace(":", ""), 16))
    assert (fields["arp_spa"], fields["arp_tpa"]) == (int(ip_address(FIRST)), int(ip_address(FIRST)))
    assert fields["arp_sha"] == fields["eth_src"] == int(mac(job).replace(":", ""), 16)
    assert passed(found, OUT, frames.arp(ROUTER, ROUTER, "192.0.2.254", "00:00:00:00:00:00", OTHER)).dropped
    assert passed(found, LAN, asked).dropped


PLACED = POLICY.replace("wan: {port: 2", "wan-b: {port: 3, backup: wan}, wan: {port: 2").replace(
    "{public: [198.51.100.64/28]}", "{public: {networks: [198.51.100.64/28], PLACE}}"
)


@pytest.mark.parametrize(
    ("place", "down", "answering"),
    [
        ("port: wan", set(), {2}),
        ("port: wan-b", set(), {3}),
        # What is steered to a port that is down leaves by its backup, where it is answered then.
        ("port: wan-b", {3}, {2, 3}),
        ("switch: core1", set(), {2, 3}),
        ("switch: core2", set(), set()),
    ],
)
def test_an_address_is_answered_for_at_its_pools_ports_alone(place: str, down: set[int], answering: set[int]) -> None:
    more = '  core2: {datapath: "00000000000000c9", role: core, ports: {lan: 1, wan: 2}}\npolicies:'
    desired = Desired(load(PLACED.replace("PLACE", place).replace("policies:", more)))
    ports = {"p1": 1, "p2": 2, "p3": 3}
    desired.set_switch(
        place_switch(desired.policy, CORE, ports, normal=True, tracks=True, max_meter=0, down=frozenset(down))
    )
    job = mapped(1, "alice", "tcp/80")
    desired.put(job, Decider(desired.policy).of(job))
    found = Tables(desired.build(CORE))
    view = PortView.of((1, 2, 3))
    asked = frames.arp(ROUTER, ROUTER, "192.0.2.254", "00:00:00:00:00:00", FIRST)
    assert {port for port in (2, 3) if run(found, port, asked, view).ports == (port,)} == answering
    assert {port for port in (2, 3) if not run(found, port, inwards(job, 80), view).dropped} == answering
    # Wherever it is, nobody sends with it.
    for port in (1, 2, 3):
        assert run(found, port, frames.tcp(ROUTER, mac(job), FIRST, OUTSIDE, 1, 80), view).dropped


def test_packets_keep_the_tag_of_the_vlan_in_which_the_pool_is_routed() -> None:
    job = replace(mapped(1, "alice", "udp/1000-2000"), vlan=42)
    found = tables(job)
    came = passed(found, OUT, frames.udp(ROUTER, mac(job), OUTSIDE, FIRST, vlan=42))
    left = passed(found, LAN, frames.udp(mac(job), ROUTER, str(job.ipv4), OUTSIDE, vlan=42))
    asked = frames.arp(ROUTER, ROUTER, "192.0.2.254", "00:00:00:00:00:00", FIRST)
    tagged = asked[:12] + b"\x81\0\0\x2a" + asked[12:]
    answered = passed(found, OUT, tagged)
    assert (came.ports, left.ports, answered.ports) == ((LAN,), (OUT,), (OUT,))
    for result in (came, left, answered):
        assert result.headers[0]["vlan_vid"] == VLAN_PRESENT | 42
    assert came.headers[0]["ipv4_dst"] == int(job.ipv4 or 0)
    assert left.headers[0]["ipv4_src"] == int(ip_address(FIRST))


def test_icmp_errors_are_translated_by_the_controller_and_go_on_through_the_tables() -> None:
    job = mapped(1, "alice", "tcp/80")
    found, external = tables(job), mapped(1, "alice", "tcp/80").external[0]
    about = frames.ip(FIRST, OUTSIDE, 6, frames.tcp_payload(FIRST, OUTSIDE, 80, 40000, frames.SYN))[1]
    came = frames.icmp(ROUTER, mac(job), "203.0.113.1", FIRST, 3, 4, rest=b"\0\0\5\0" + about)
    (asked,) = passed(found, OUT, came).to_controller
    assert (asked.table, parse(asked.cookie).number) == (Core.CLASSIFY, job.number)
    assert job.ipv4 is not None
    inside = inward(came, external, IPv4Address(job.ipv4), 2 << 40 | job.number)
    assert inside is not None
    assert passed(found, OUT, inside).ports == (LAN,)
    # The job's own error leaves as the external address, though nobody may send with that.
    about = frames.ip(OUTSIDE, str(job.ipv4), 6, frames.tcp_payload(OUTSIDE, str(job.ipv4), 40000, 80, frames.SYN))[1]
    left = frames.icmp(mac(job), ROUTER, str(job.ipv4), OUTSIDE, 3, 3, rest=bytes(4) + about)
    (asked,) = passed(found, LAN, left).to_controller
    assert (asked.table, parse(asked.cookie).number) == (Core.EXTERNAL, job.number)
    outside = outward(left, external, IPv4Address(job.ipv4))
    assert outside is not None
    assert passed(found, LAN, outside).dropped
    assert OUT in passed(found, PORT_CONTROLLER, outside).ports


def test_of_a_router_with_an_address_among_the_jobs_its_errors_alone_come_by_an_external_address() -> None:
    router = "10.64.255.1"
    job, text = mapped(1, "alice", "tcp/80"), POLICY.replace("local:", f"hosts: [{router}], local:")
    found, about = tables(job, text=text), frames.tcp_payload(FIRST, OUTSIDE, 80, 40000, frames.SYN)
    quoted = bytes(4) + frames.ip(FIRST, OUTSIDE, 6, about)[1]
    # Path MTU discovery through that very router depends on them.
    for kind in (3, 11, 12):
        came = frames.icmp(ROUTER, mac(job), router, FIRST, kind, 4, rest=quoted)
        (asked,) = passed(found, OUT, came).to_controller
        assert (asked.table, parse(asked.cookie)[1:]) == (Core.QOS, (Category.EXTERNAL, 0))
        assert job.ipv4 is not None
        inside = inward(came, job.external[0], IPv4Address(job.ipv4), 2 << 40 | job.number)
        assert inside is not None
        assert passed(found, OUT, inside).ports == (LAN,)
        # None that comes from inside, or is said to come from a job.
        assert passed(found, LAN, came).dropped
        assert passed(found, OUT, frames.icmp(ROUTER, mac(job), "10.64.0.9", FIRST, kind, 4, rest=quoted)).dropped
    # Else it is a host of the site, which reaches the job by its own address.
    assert passed(found, OUT, inwards(job, 80, router)).dropped
    assert passed(found, OUT, inwards(job, 80, router, str(job.ipv4))).ports == (LAN,)


def test_flows_for_hosts_among_the_jobs_add_up_with_the_pools_networks() -> None:
    def flows(hosts: int, addresses: int, wans: int, placed: int = 0) -> int:
        ports = {f"wan{each}": {"port": 2 + each} for each in range(wans)}
        switch = {"datapath": "00000000000000c0", "role": "core", "ports": {"lan": 1, **ports}}
        # Single addresses of which no two make a network.
        pools: dict[str, Any] = {"public": [f"198.51.{each // 100}.{each % 100 * 2}" for each in range(addresses)]}
        if placed:
            pools["near"] = {"networks": [f"203.0.113.{each * 2}" for each in range(placed)], "port": "wan0"}
        policy = load(json.dumps({
            "version": 1,
            "networks": {"jobs": ["10.64.0.0/16"], "hosts": [f"10.64.255.{each}" for each in range(hosts)]},
            "switches": {"core1": switch},
            "external": {"pools": pools, "rules": [{"pool": "public", "open": ["any"]}]},
        }))  # fmt: skip
        desired = Desired(policy)
        names = {f"p{each}": each for each in range(1, 2 + wans)}
        desired.set_switch(place_switch(policy, CORE, names, normal=True, tracks=True, max_meter=0))
        return len(desired.build(CORE).flows)

    # What another host needs does not depend on the pools, nor what another address needs on hosts and ports.
    assert flows(20, 100, 2) - flows(10, 100, 2) == flows(20, 10, 2) - flows(10, 10, 2) == 10 * 2
    one = flows(1, 11, 1) - flows(1, 10, 1)
    assert one == 1 + flows(0, 11, 1) - flows(0, 10, 1)
    assert flows(20, 100, 2) - flows(20, 50, 2) == flows(1, 100, 3) - flows(1, 50, 3) == 50 * one
    # Where a pool is at one port, each address is closed at the others.
    assert flows(20, 10, 2, 60) - flows(20, 10, 2, 10) == 50 * (one + 1)


OPENS = """
version: 1
networks: {{jobs: [10.64.0.0/16, "2001:db8:64::/64"], local: [10.0.0.0/8, "2001:db8:64::/48"]}}
edge: {{uplinks: [up]}}
policies: [{rule}]
external: {{rules: [{{family: ipv6, open: [any]}}]}}
"""
FAR, NEAR = "2001:db8:ffff::7", "2001:db8:64:1::7"
CONNECTIVITY = {"allow": "", "deny": "connectivity: {inbound: deny}"}


def an_edge_with(opened: str, connectivity: str) -> tuple[Job, Program]:
    rule = CONNECTIVITY[connectivity]
    desired = Desired(load(OPENS.format(rule=f"{{{rule}}}" if rule else "")))
    switch = place_switch(desired.policy, EDGE, {"up": 9, "p1": 11}, normal=True, tracks=True, max_meter=0)
    desired.set_switch(switch)
    job = a_job(1, "alice")
    assert job.ipv6 is not None
    job = replace(job, external=(External(job.ipv6, listed(opened)),)) if opened else job
    desired.put(job, Decider(desired.policy).of(job))
    return job, desired.build(EDGE)


@pytest.mark.parametrize("connectivity", ["allow", "deny"])
@pytest.mark.parametrize(
    ("opened", "protocol", "port", "expected"),
    [
        ("tcp/80", "tcp", 80, True),
        ("tcp/80", "tcp", 81, False),
        ("tcp/80", "udp", 80, False),
        ("tcp/80", "icmp", 0, False),
        ("icmp", "icmp", 0, True),
        ("udp/5000-5003", "udp", 5003, True),
        ("udp/5000-5003", "udp", 5004, False),
        ("any", "tcp", 81, True),
        ("any", "icmp", 0, True),
    ],
)
def test_an_own_address_is_open_to_the_wan_on_what_was_asked_for_alone(
    opened: str, protocol: str, port: int, expected: bool, connectivity: str
) -> None:
    job, program = an_edge_with(opened, connectivity)
    found = Tables(program)

    def comes(source: str) -> bool:
        ends = ROUTER, mac(job), source, str(job.ipv6)
        if protocol == "icmp":
            frame = frames.icmp(*ends, 128)
        else:
            frame = (frames.tcp if protocol == "tcp" else frames.udp)(*ends, 40000, port)
        return run(found, 9, frame, PortView.of((9, 11))).ports == (11,)

    assert comes(FAR) is expected
    # The site's own hosts are connectivity's matter, whatever is open.
    assert comes(NEAR) is (connectivity == "allow")
    # What the job has begun itself is answered.
    out = frames.tcp(mac(job), ROUTER, str(job.ipv6), FAR, 40000, 443)
    assert run(found, 11, out, PortView.of((9, 11))).ports == (9,)


@pytest.mark.parametrize("connectivity", ["allow", "deny"])
def test_a_job_that_did_not_ask_is_as_connectivity_says(connectivity: str) -> None:
    job, program = an_edge_with("", connectivity)
    frame = frames.tcp(ROUTER, mac(job), FAR, str(job.ipv6), 40000, 80)
    assert run(Tables(program), 9, frame, PortView.of((9, 11))).ports == ((11,) if connectivity == "allow" else ())


def test_other_openings_are_told_apart_in_a_switchs_flows() -> None:
    """So that a switch that was away forgets what came in by those that are over."""
    was, other, none = (tracked(an_edge_with(opened, "deny")[1]) for opened in ("tcp/80", "tcp/81", ""))
    assert {each.address for each in was - other} == {each.address for each in was - none} == {a_job(1, "alice").ipv6}


def test_a_policy_without_the_section_has_no_more_than_a_table_to_pass() -> None:
    desired = Desired(load(PLAIN))
    a_core(desired)
    assert not [
        data for data in desired.build(CORE).flows.values() if data.cookie >> 40 == cookie(Category.EXTERNAL) >> 40
    ]


def test_flows_say_whose_they_are() -> None:
    desired = Desired(load(POLICY))
    a_core(desired)
    desired.put(mapped(1, "alice", "tcp/80"), Decider(desired.policy).decide(a_job(1, "alice").facts))
    said = {origin(desired, {}, data).text for data in desired.build(CORE).flows.values()}
    assert any(text.startswith(f"external address {FIRST} of job 1.0 of alice") for text in said), said
    assert "external addresses that are closed" in said


histories = st.lists(
    st.tuples(
        st.sampled_from(["put", "bare", "remove"]),
        st.integers(1, 4),
        st.sampled_from(["alice", "bob", "mallory"]),
        st.sampled_from(OPENINGS),
        st.sampled_from([FIRST, OTHER, "198.51.100.70", "198.51.100.71"]),
    ),
    max_size=12,
)


@settings(max_examples=100, deadline=None)
@given(histories, st.booleans())
def test_changes_add_up_to_the_whole_and_policies_follow_each_other(history: list[Any], plain: bool) -> None:
    desired = Desired(load(POLICY))
    a_core(desired)
    decider, program = Decider(desired.policy), desired.program(CORE)
    live: dict[int, Job] = {}
    for what, number, owner, opened, address in history:
        if what == "remove":
            live.pop(number, None)
            changes = desired.remove(number)
        else:
            others = {str(each.address) for job in live.values() if job.number != number for each in job.external}
            if what == "put" and address in others:
                # The store gives no address to two.
                continue
            job = mapped(number, owner, opened, address) if what == "put" else a_job(number, owner)
            live[number] = job
            changes = desired.put(job, decider.of(job))
        if change := changes.get(CORE):
            flows = {key: data for key, data in program.flows.items() if key not in set(change.flows_gone)}
            program = Program(flows | {flow.key: flow.data for flow in change.flows_set})
        assert program.flows == desired.build(CORE).flows
        assert desired.rules[CORE] == len(program.flows)
    after = Desired.following(load(PLAIN if plain else POLICY.replace("192.0.2.8", "192.0.2.9")), desired)
    decider = Decider(after.policy)
    for number, job in live.items():
        after.decide_anew(number, decider.of(job))
    list(after.move_labels())
    change = Transition(desired, after).changes(CORE)
    flows = {key: data for key, data in program.flows.items() if key not in set(change.flows_gone)}
    assert flows | {flow.key: flow.data for flow in change.flows_set} == after.build(CORE).flows
