"""The reach of users, compared with each pair of their jobs."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lark_common.runs import NetworkType
from lark_controller.policies.file import load
from lark_controller.policies.model import Decision, Policy, SliceKey
from lark_controller.policies.reach import Deciding, Extent, reach

TEXT = """\
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
switches: {core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}}
policies:
  - wan: {when: 'Owner == "bob"', action: drop, except: [192.0.2.1]}
  - wan: {when: 'Owner == "carol"', action: drop}
  - wan: {when: 'Owner == "dave"', port: wan-fast}
"""
POLICY = load(TEXT)
# Without networks of jobs no worker can know whose an address is.
AMONG_HOSTS = load(TEXT.replace("jobs: [10.64.0.0/16], ", ""))

_DECISIONS = st.builds(
    Decision,
    blocked=st.sampled_from([False, False, False, True]),
    slice=st.sampled_from([None, SliceKey(1, "a"), SliceKey(1, "b")]),
    wan=st.integers(0, 3),
    inbound=st.booleans(),
    outbound=st.booleans(),
    quarantine=st.sampled_from(["", "", "", "another job is there"]),
)


_VERSIONS = st.sampled_from([frozenset(), frozenset({4}), frozenset({6}), frozenset({4, 6})])
_CLOSED = st.one_of(
    st.just(frozenset[tuple[int, int]]()),
    st.frozensets(st.tuples(st.sampled_from([1, 2]), st.sampled_from([4, 6])), max_size=3),
)
_OWNERS = st.sampled_from("xyz")
# Behind NAT there are no VLANs.
_TAGGED = st.sampled_from([NetworkType.OVS_BRIDGE, NetworkType.BRIDGE])
_JOBS = st.one_of(
    st.builds(
        Deciding,
        _OWNERS,
        _DECISIONS,
        st.sampled_from(NetworkType),
        st.sampled_from("hg"),
        st.none(),
        _VERSIONS,
        _CLOSED,
    ),
    st.builds(Deciding, _OWNERS, _DECISIONS, _TAGGED, st.just(""), st.sampled_from([10, 20]), _VERSIONS, _CLOSED),
)


def passes(one: Deciding, other: Deciding, policy: Policy) -> bool:
    a, b = one.decision, other.decision
    if a.isolated or b.isolated or not (a.outbound and b.inbound):
        return False
    if NetworkType.NONE in (one.network, other.network) or one.vlan != other.vlan:
        return False
    shared = (one.versions or {4, 6}) & (other.versions or {4, 6})
    if other.network is NetworkType.NAT:
        together = (one.network, one.host) == (NetworkType.NAT, other.host)
        return bool(shared) and a.slice == b.slice and together
    # Each may be the other's WAN.
    if all((a.wan, version) in other.closed or (b.wan, version) in one.closed for version in shared):
        return False
    # What leaves by NAT has the worker's address, which is in no slice and kept out of none: the worker alone can.
    return a.slice == b.slice or (one.network is NetworkType.NAT and a.slice is None and not policy.job_networks)


@settings(max_examples=300, deadline=None)
@given(st.lists(_JOBS, max_size=7), st.sampled_from([POLICY, AMONG_HOSTS]))
def test_the_extent_is_that_of_all_pairs_of_jobs(decided: list[Deciding], policy: Policy) -> None:
    found = reach(decided, policy, 12)
    assert sum(party.jobs for party in found.parties) == len(decided)
    jobs = list(enumerate(decided))
    for one in found.parties:
        for other, extent in zip(found.parties, one.reaches, strict=True):
            pairs = [
                passes(a, b, policy)
                for (at, a), (there, b) in product(jobs, jobs)
                if at != there and a.owner == one.owner and b.owner == other.owner
            ]
            if all(pairs) and pairs:
                assert extent == Extent.ALL
            elif not any(pairs):
                assert extent == Extent.NONE
            else:
                assert extent == Extent.SOME


@pytest.mark.parametrize(
    ("decisions", "extent"),
    [
        ([Decision()], "all"),
        ([Decision(wan=3)], "all"),
        ([Decision(wan=1)], "some"),
        ([Decision(wan=2)], "none"),
        ([Decision(), Decision(wan=2)], "some"),
        ([Decision(outbound=False)], "none"),
        ([Decision(blocked=True)], "none"),
    ],
)
def test_the_extent_of_the_wan(decisions: list[Decision], extent: str) -> None:
    (party,) = reach([Deciding("x", each) for each in decisions], POLICY, 12).parties
    assert party.wan == extent


def test_a_job_without_a_network_reaches_no_wan() -> None:
    jobs = [Deciding("x", Decision(), network) for network in (NetworkType.NAT, NetworkType.NONE)]
    assert reach(jobs, POLICY, 12).parties[0].wan == Extent.SOME
    assert reach(jobs[:1], POLICY, 12).parties[0].wan == Extent.ALL


def test_users_with_few_jobs_are_summed_up() -> None:
    decided = [Deciding(f"user{number}", Decision()) for number in range(30) for _ in range(number + 1)]
    found = reach(decided, POLICY, 3)
    assert [(party.owner, party.jobs) for party in found.parties] == [("user29", 30), ("user28", 29), ("user27", 28)]
    assert (found.other_owners, found.other_jobs) == (27, 27 * 28 // 2)


def test_jobs_of_two_vlans_or_ip_versions_reach_none() -> None:
    decision = Decision(inbound=True, outbound=True)
    ten, twenty = (Deciding("vera", decision, vlan=vlan) for vlan in (10, 20))
    (party,) = reach([ten, twenty], POLICY, 12).parties
    assert party.reaches == (Extent.NONE,)
    (party,) = reach([ten, twenty, ten], POLICY, 12).parties
    assert party.reaches == (Extent.SOME,)
    four, six = Deciding("uma", decision, versions=frozenset({4})), Deciding("vic", decision, versions=frozenset({6}))
    one, other = reach([four, six], POLICY, 12).parties
    assert (one.reaches[1], other.reaches[0]) == (Extent.NONE, Extent.NONE)
