"""Live jobs keep their addresses where another policy has other job networks, and stay under their slices there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from lark_common.errors import RuleLimitError, UnsupportedError
from lark_common.runs import Network, NetworkType
from lark_controller.flows import live_addresses as module
from lark_controller.flows.desired import Desired
from lark_controller.flows.live_addresses import (
    NOTHING_CLOSED,
    closed_networks,
    left_out,
    live_addresses,
    with_live_addresses,
)
from lark_controller.flows.prefixes import bounds, minimal_cover, within
from lark_controller.flows.tables import Edge
from lark_controller.flows.transition import Transition
from lark_controller.flows.worker_rules import permits
from lark_controller.jobs.job import Directory, Job
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.reconcile.desired_pair import DesiredPair
from lark_controller.reconcile.prepared import PreparedDirectory
from tests.fixtures import frames
from tests.flows.test_desired import apply
from tests.flows.test_pipeline import CORE, EDGE, GATEWAY, POLICY, UPLINK, VERSIONS, Site, a_job, at, mac

# As POLICY, with other job networks; the local networks have both.
ELSEWHERE = POLICY.replace("10.64.0.0/16", "10.65.0.0/16").replace("2001:db8:64::/48", "2001:db8:65::/48")
# The same job networks, and among them hosts where jobs live.
HOSTED = POLICY.replace("  local:", '  hosts: [10.64.0.0/29, "2001:db8:64::/125"]\n  local:')
# No job networks: edges ask about local addresses whose they are, and these have no live job's.
AMONG_HOSTS = POLICY.replace('  jobs: [10.64.0.0/16, "2001:db8:64::/48"]\n', "").replace(
    'local: [10.0.0.0/8, "2001:db8::/32"]', 'local: [10.65.0.0/16, "2001:db8:65::/48"]'
)
NO_NETWORKS = AMONG_HOSTS.replace('networks:\n  local: [10.65.0.0/16, "2001:db8:65::/48"]\n', "")
IPV4_ALONE = AMONG_HOSTS.replace('10.65.0.0/16, "2001:db8:65::/48"', "10.64.0.0/16")
JOBS = (a_job(1, "alice"), a_job(2, "alice"), a_job(3, "bob"))


def a_site(text: str) -> Site:
    """Jobs that were there before a policy came."""
    site = Site(*JOBS, policy=POLICY)
    policy = with_live_addresses(load(text), JOBS)
    after = Desired.following(policy, site.desired)
    for job in JOBS:
        after.decide_anew(job.number, Decider(policy).of(job))
    for _ in after.move_labels():
        pass
    site.desired = after
    return site


@VERSIONS
@pytest.mark.parametrize("text", [ELSEWHERE, HOSTED])
def test_slices_hold_at_edges_for_the_addresses_that_live_jobs_have(version: int, text: str) -> None:
    site = a_site(text)
    assert (site.udp(1, 2, version), site.udp(2, 1, version)) == ((12,), (11,))
    for source, target in ((1, 3), (3, 1)):
        assert site.udp(source, target, version) == ()
    # Of jobs at other workers nothing but the address shows whose they are.
    here, there, stranger = JOBS[0], a_job(4, "bob"), JOBS[2]
    assert there.ipv4 is not None
    assert site.leaves(UPLINK, frames.udp(mac(stranger), mac(here), at(stranger, version), at(here, version))) == ()
    assert site.leaves(11, frames.udp(mac(here), "02:00:00:00:09:09", at(here, version), at(stranger, version))) == ()
    # What is no job's stays as the policy has it.
    spare = {4: "10.64.0.4", 6: "2001:db8:64::4"}[version]
    reached = site.leaves(11, frames.udp(mac(here), "02:00:00:00:09:09", at(here, version), spare))
    assert reached == (UPLINK,)


@VERSIONS
@pytest.mark.parametrize("text", [AMONG_HOSTS, NO_NETWORKS, IPV4_ALONE])
def test_edges_ask_about_the_addresses_that_live_jobs_have_where_no_networks_are_the_jobs_own(
    version: int, text: str
) -> None:
    site = a_site(text)
    here, stranger = JOBS[0], JOBS[2]
    there = a_job(4, "bob")

    def asked(in_port: int, one: Job, other: Job) -> list[Edge]:
        frame = frames.udp(mac(one), mac(other), at(one, version), at(other, version))
        result = site.send(site.edge, in_port, frame)
        assert result.ports == ()
        return [Edge(told.table) for told in result.to_controller]

    assert (site.udp(1, 2, version), site.udp(2, 1, version)) == ((12,), (11,))
    for one, other in ((1, 3), (3, 1)):
        assert asked(10 + one, site.jobs[one], site.jobs[other]) == [Edge.SLICE_FROM]
    assert asked(UPLINK, stranger, here) == [Edge.SLICE_TO]
    # A WAN rule that drops or steers is not for them.
    way = frames.udp(mac(stranger), mac(here), at(stranger, version), at(here, version))
    assert set(site.send(site.core, 1, way).ports) == {2, 3}
    # A job that comes with another address than theirs is refused: nobody would ask about it.
    if text is not IPV4_ALONE or version == 6:
        assert left_out(load(text), there).endswith("of the policy that comes, which has slices and no networks.jobs")
    assert left_out(with_live_addresses(load(text), [there]), there) == ""


@VERSIONS
def test_nobody_outside_has_a_live_jobs_address(version: int) -> None:
    job = JOBS[0]
    frame = frames.udp(GATEWAY, mac(JOBS[1]), at(job, version), at(JOBS[1], version))
    site = a_site(ELSEWHERE)
    assert site.send(site.core, 2, frame).ports == ()


@pytest.mark.parametrize("text", [ELSEWHERE, HOSTED, AMONG_HOSTS, NO_NETWORKS])
def test_the_way_there_equals_the_full_recompute(text: str) -> None:
    before, after = Site(*JOBS), a_site(text)
    oracle = Desired(after.desired.policy)
    for switch in (after.edge, after.core):
        oracle.set_switch(switch)
    for job in JOBS:
        oracle.put(job, after.decider.of(job))
    for datapath in (EDGE, CORE):
        assert after.desired.build(datapath) == oracle.build(datapath)
        changes = Transition(before.desired, after.desired).changes(datapath)
        assert apply(before.desired.build(datapath), changes) == oracle.build(datapath)


@pytest.mark.parametrize("text", [ELSEWHERE, HOSTED])
def test_slices_hold_at_workers_and_from_the_start(text: str) -> None:
    bridged = [
        a_job(number, owner, network_type=NetworkType.BRIDGE, datapath=None, port=None)
        for number, owner in ((1, "alice"), (2, "alice"), (3, "bob"))
    ]
    policy = load(text)
    desired, decider = Desired(policy), Decider(policy)
    desired.load((job, decider.of(job)) for job in bridged)
    rules = desired.worker_rules("worker1")
    alice = next(job for job in rules.jobs if job.id == bridged[0].id)
    for version in (4, 6):
        own, stranger = (ip_address(at(job, version)) for job in bridged[1:])
        for sends in (True, False):
            assert permits(rules, alice, own, sends=sends) == ""
            assert "not of the job's slice" in permits(rules, alice, stranger, sends=sends)


def test_a_policy_whose_job_networks_have_all_live_jobs_stays_as_it_is() -> None:
    sliceless = ELSEWHERE.replace("  - slice: {by: Owner}\n", "")
    for text in (POLICY, sliceless, POLICY.replace("  jobs:", "  # jobs:")):
        policy = load(text)
        assert with_live_addresses(policy, JOBS) is policy
    behind = [a_job(1, "alice", network_type=NetworkType.NAT)]
    elsewhere = load(ELSEWHERE)
    assert with_live_addresses(elsewhere, behind) is elsewhere


def test_the_fewest_networks_are_added_and_as_many_as_switches_can_take(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = load(ELSEWHERE)
    changed = with_live_addresses(policy, [a_job(number, "alice") for number in range(8)])
    added = ip_network("10.64.0.0/29"), ip_network("2001:db8:64::/125")
    assert changed.job_networks == (*policy.job_networks, *added)
    among = load(AMONG_HOSTS)
    local = with_live_addresses(among, [a_job(number, "alice") for number in range(8)])
    assert (local.job_networks, local.local_networks) == ((), (*among.local_networks, *added))
    hosted = with_live_addresses(load(HOSTED), [a_job(number, "alice") for number in (0, 1, 2, 3)])
    assert hosted.job_networks == load(HOSTED).job_networks
    assert hosted.hosts == (ip_network("10.64.0.4/30"), ip_network("2001:db8:64::4/126"))
    # Addresses of hosts' network and those beside the job networks make no prefix together.
    both = load(HOSTED.replace("jobs: [10.64.0.0/16", "jobs: [10.64.0.0/29"))
    mixed = with_live_addresses(both, [a_job(number, "alice") for number in range(10, 0x10)])
    assert mixed.job_networks[2:] == (ip_network("10.64.0.10/31"), ip_network("10.64.0.12/30"))
    mixed = with_live_addresses(both, [a_job(number, "alice") for number in range(0x10)])
    assert (mixed.job_networks[2:], mixed.hosts) == ((ip_network("10.64.0.8/29"),), ())
    monkeypatch.setattr(module, "MOST_PREFIXES", 1)
    for given, key in ((policy, "jobs"), (among, "local")):
        with pytest.raises(
            RuleLimitError, match=rf"live jobs are 2 prefixes that networks\.{key} leaves out; at most 1"
        ):
            live_addresses(given, JOBS[:1]).check()


def scattered(count: int) -> list[Job]:
    """Jobs no two of which have addresses side by side."""
    return [
        a_job(1 + number % 8, "alice", ipv4=ip_address(f"10.64.{number // 100}.{number % 100 * 2}"),
              ipv6=ip_address(f"2001:db8:64::{number * 2:x}"))
        for number in range(count)
    ]  # fmt: skip


@pytest.mark.parametrize("text", [ELSEWHERE, AMONG_HOSTS])
def test_a_start_closes_more_where_the_addresses_of_live_jobs_are_too_many(text: str) -> None:
    few, many = scattered(512), scattered(2000)
    policy = load(text)
    exact = live_addresses(policy, few)
    exact.check()
    assert exact.closed() == NOTHING_CLOSED
    assert len(closed_networks(exact.enforced())) == len(closed_networks(policy)) + 1024
    found = live_addresses(policy, many)
    with pytest.raises(RuleLimitError, match="live jobs are 4000 prefixes"):
        found.check()
    desired, decider = Desired(policy), Decider(policy)
    desired.load((replace(job, number=number), decider.of(job)) for number, job in enumerate(many, 1))
    assert desired.closed == found.closed()
    assert "so others between them are closed, too" in desired.closed.remark
    networks = closed_networks(desired.policy)
    assert len(networks) == len(closed_networks(policy)) + 1024
    closed = bounds(networks)
    assert all(within(address, closed) for job in many for address in job.addresses)
    # What lies between them, and little else.
    added = networks[len(closed_networks(policy)) :]
    assert sum(each.num_addresses for each in added) <= 2 * 2 * len(many)


def test_a_start_keeps_no_host_of_an_entry_where_its_live_addresses_are_too_many() -> None:
    hosts = '  hosts: [10.64.0.0/20, 10.64.255.0/24, "2001:db8:64::/116"]\n  local:'
    policy = load(POLICY.replace("  local:", hosts))
    found = live_addresses(policy, scattered(1500))
    with pytest.raises(RuleLimitError, match=r"live jobs are more parts of networks\.hosts; at most 1024"):
        found.check()
    assert "so others between them and in the same hosts are closed, too" in found.closed().remark
    assert found.enforced() == replace(policy, hosts=(ip_network("10.64.255.0/24"),))
    found = live_addresses(policy, scattered(500))
    found.check()
    parts = bounds(found.enforced().hosts)
    assert not any(within(address, parts) for job in scattered(500) for address in job.addresses)
    assert sum(each.num_addresses for each in found.enforced().hosts) == 4096 + 256 + 4096 - 1000


def addresses(networks: Iterable[Network]) -> int:
    return sum(each.num_addresses for each in networks)


@pytest.mark.parametrize("text", [ELSEWHERE, AMONG_HOSTS])
def test_a_policy_that_leaves_out_what_a_start_has_closed_may_come(text: str) -> None:
    many = scattered(2000)
    start = live_addresses(load(text), many)
    now, before = start.enforced(), start.closed()
    wider = text.replace("10.65.0.0/16", "10.66.0.0/16").replace("2001:db8:65::/48", "2001:db8:66::/48")
    for again in (text, wider):
        found = live_addresses(load(again), many, now, before)
        found.check()
        assert minimal_cover(found.closed().networks) == minimal_cover(before.networks)
        assert minimal_cover(closed_networks(found.enforced())) == minimal_cover(
            (*closed_networks(load(again)), *before.networks)
        )
    # What is nobody's any more is open again.
    some = live_addresses(load(text), many[:1200], now, before)
    some.check()
    assert 0 < addresses(some.closed().networks) < addresses(before.networks)
    live_addresses(load(text), many, some.enforced(), before).check()
    with pytest.raises(RuleLimitError):
        live_addresses(load(text), many, some.enforced(), some.closed()).check()
    # One that is in none of these networks would be closed with others.
    more = [*many, a_job(9, "bob", ipv4=ip_address("10.99.0.9"), ipv6=None)]
    with pytest.raises(RuleLimitError, match="live jobs are 4001 prefixes"):
        live_addresses(load(text), more, now, before).check()
    # With few of them left none is closed beside them.
    few = live_addresses(load(text), scattered(500), now, before)
    few.check()
    assert few.closed() == NOTHING_CLOSED


def test_a_policy_with_the_entries_of_hosts_that_a_start_has_closed_may_come() -> None:
    text, many = POLICY.replace("  local:", "  hosts: [10.64.0.0/20, 10.64.255.0/24]\n  local:"), scattered(1500)
    start = live_addresses(load(text), many)
    now, before = start.enforced(), start.closed()
    again = live_addresses(load(text), many, now, before)
    again.check()
    assert (again.enforced(), again.closed()) == (now, before)
    parts = text.replace("10.64.0.0/20", "10.64.0.0/21, 10.64.8.0/21")
    live_addresses(load(parts), many, now, before).check()
    # Another entry is to be for hosts, and would be for none.
    other = text.replace("10.64.0.0/20", '10.64.0.0/20, "2001:db8:64::/116"')
    with pytest.raises(RuleLimitError, match=r"more parts of networks\.hosts"):
        live_addresses(load(other), many, now, before).check()


def test_a_job_that_comes_with_such_an_address_while_the_policy_changes_is_refused() -> None:
    policy = with_live_addresses(load(ELSEWHERE), JOBS)
    desired, decider = Desired(policy), Decider(policy)
    for job in JOBS:
        desired.put(job, decider.of(job))
    pair = DesiredPair(policy, PreparedDirectory(Directory(), decider, desired))
    pair.admit(JOBS[0], JOBS[0])
    with pytest.raises(UnsupportedError, match=r"10\.64\.0\.5 is in no job network of the policy that comes"):
        pair.admit(a_job(5, "bob"), None)


def test_no_job_is_looked_at_where_another_policy_closes_what_the_one_in_force_does() -> None:
    seen: list[Job] = []

    def jobs() -> Iterator[Job]:
        seen.extend(JOBS)
        yield from JOBS

    known = load(POLICY)
    for text in (POLICY, POLICY.replace("10.64.0.0/16", "10.64.0.0/15"), POLICY.replace("  jobs:", "  # jobs:")):
        policy = load(text)
        assert with_live_addresses(policy, jobs(), known) is policy
    assert seen == []
    # Narrower or other networks, hosts among them, and a policy in force that closed nothing.
    unsliced = replace(known, slices=())
    for policy, before in (
        (load(POLICY.replace("10.64.0.0/16", "10.64.0.0/31")), known),
        (load(ELSEWHERE), known),
        (load(HOSTED), known),
        (known, with_live_addresses(load(ELSEWHERE), JOBS)),
        (load(ELSEWHERE), unsliced),
        (load(AMONG_HOSTS), known),
        (load(AMONG_HOSTS), unsliced),
        (known, with_live_addresses(load(AMONG_HOSTS), JOBS)),
    ):
        assert with_live_addresses(policy, JOBS, before) == with_live_addresses(policy, JOBS)
