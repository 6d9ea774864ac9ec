"""The flows that drop for all jobs of an edge: which of them may drop a job's packets, and how they are asked for."""

from __future__ import annotations

import pytest

from lark_controller.flows.cookies import Category, cookie, count_cookie
from lark_controller.flows.drop_sources import DropSource, are_several, cookies_of, drop_sources, may_drop
from lark_controller.flows.edge.program import rules
from lark_controller.jobs.job import Facts
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.policies.model import RuleKind

SLICE = "  - slice: {by: Owner, when: 'Owner != \"alice\"'}\n"
WAN = "  - wan: {when: 'Owner == \"bob\"', action: drop}\n  - wan: {when: 'Owner == \"carol\"', action: allow}\n"
ONE_WAY = '  - connectivity: {when: \'Owner == "dave" || Owner == "bob"\', inbound: deny}\n'
BLOCK = "  - block: {when: 'Owner == \"mallory\"'}\n"
NETWORKS = "version: 1\nnetworks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}\npolicies:\n"
REQUESTS = {SLICE: 1, WAN: 1, ONE_WAY: 1, SLICE + WAN: 2, WAN + ONE_WAY: 1, SLICE + WAN + ONE_WAY: 2}


@pytest.mark.parametrize("kinds", REQUESTS)
def test_the_flows_that_drop_are_asked_for_in_few_requests_and_hardly_any_other(kinds: str) -> None:
    policy = load(NETWORKS + kinds)
    sources = drop_sources(policy, tracks=True)
    chosen = cookies_of(sources.values())
    assert len(chosen) == REQUESTS[kinds]

    def times(number: int) -> int:
        return sum((number ^ value) & mask == 0 for value, mask in chosen)

    flows = {flow.key: flow.data.cookie for flow in rules(policy, tracks=True)}
    assert sources
    assert all(times(flows[key]) == 1 for key in sources)
    # Nothing of which a switch has as many as it has jobs, users or groups.
    others = (
        cookie(Category.SWITCH), cookie(Category.JOB, 7), cookie(Category.SLICE, 1), cookie(Category.GROUP, 10),
        cookie(Category.REACTIVE, 99), count_cookie(7, 3),
    )  # fmt: skip
    assert not any(map(times, others))


def test_nothing_is_asked_for_where_no_rule_drops() -> None:
    assert cookies_of(drop_sources(load("version: 1\n"), tracks=True).values()) == ()


@pytest.mark.parametrize(
    ("owner", "outward", "inward", "several"),
    [
        ("alice", [RuleKind.SLICE], [RuleKind.SLICE], False),
        ("bob", [RuleKind.SLICE, RuleKind.WAN], [RuleKind.SLICE, RuleKind.WAN, RuleKind.CONNECTIVITY], True),
        ("carol", [RuleKind.SLICE], [RuleKind.SLICE], False),
        ("dave", [RuleKind.SLICE], [RuleKind.SLICE, RuleKind.CONNECTIVITY], True),
        ("erin", [RuleKind.SLICE], [RuleKind.SLICE], False),
        ("mallory", [], [], False),
    ],
)
def test_the_rules_that_may_drop_a_jobs_packets(
    owner: str, outward: list[RuleKind], inward: list[RuleKind], several: bool
) -> None:
    policy = load(NETWORKS + BLOCK + SLICE + WAN + ONE_WAY)
    decision = Decider(policy).decide(Facts((("owner", f'"{owner}"'),)))
    found = [list(may_drop(decision, policy, way)) for way in (False, True)]
    assert [[source.kind for source in sources] for sources in found] == [outward, inward]
    assert are_several(decision, policy) is several
    # Each is one of those that an edge counts.
    counted = set(drop_sources(policy, tracks=True).values())
    assert all(source in counted for sources in found for source in sources)


def test_a_worker_that_enforces_rules_drops_nothing_for_a_slice_that_the_job_is_not_in() -> None:
    policy = load(NETWORKS + SLICE)
    decision = Decider(policy).decide(Facts((("owner", '"alice"'),)))
    assert list(may_drop(decision, policy, False, ruled=True)) == []
    assert list(may_drop(decision, policy, True)) == [DropSource(RuleKind.SLICE, 0, True)]
