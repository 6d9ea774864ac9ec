"""Reading the flows that drop: only where their counters tell anything, and what a pause makes of them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

from lark_controller.flows.drop_sources import DropSource, drop_sources
from lark_controller.flows.model import FlowKey
from lark_controller.jobs.job import Facts
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.policies.model import RuleKind
from lark_controller.reconcile.drop_shares import DropShares
from lark_controller.reconcile.switch import SwitchState

POLICY = load("""
version: 1
networks: {jobs: [10.64.0.0/16], local: [10.0.0.0/8]}
policies:
  - slice: {by: Owner}
  - wan: {when: 'Owner == "bob"', action: drop}
""")
SLICE, WAN = DropSource(RuleKind.SLICE, 0, False), DropSource(RuleKind.WAN, 1, False)


class Link:
    """A switch with what each rule has dropped; ``turns`` are the numbers of requests that left together."""

    def __init__(self) -> None:
        self.dropped: dict[DropSource, int] = {}
        self.turns: list[int] = []
        self._asked: list[asyncio.Future[list[tuple[FlowKey, int]]]] = []

    def drop_counts(self, cookie: int, mask: int) -> asyncio.Future[list[tuple[FlowKey, int]]]:
        loop = asyncio.get_running_loop()
        if not self._asked:
            loop.call_soon(self._answer)
        self._asked.append(loop.create_future())
        return self._asked[-1]

    def _answer(self) -> None:
        asked, self._asked = self._asked, []
        self.turns.append(len(asked))
        keys = {source: key for key, source in drop_sources(POLICY, tracks=True).items()}
        asked[0].set_result([(keys[source], packets) for source, packets in self.dropped.items()])
        for other in asked[1:]:
            other.set_result([])


class Pool:
    """An edge with jobs of these users."""

    def __init__(self, *owners: str) -> None:
        self.link = Link()
        decider = Decider(POLICY)
        decided = [decider.decide(Facts((("owner", f'"{owner}"'),))) for owner in owners]
        self.desired = SimpleNamespace(
            policy=POLICY,
            switches={1: SimpleNamespace(is_edge=True, tracks=True)},
            present_at=lambda _: iter([SimpleNamespace(decision=decision) for decision in decided]),
        )
        switches = MappingProxyType({1: SwitchState(1, link=cast("Any", self.link), compared=True)})
        self.shares = DropShares(cast("Any", SimpleNamespace(switches=switches, desired_of=lambda _: self.desired)))

    def look(self, *, drops: bool = True, **dropped: int) -> tuple[dict[DropSource, int], bool]:
        """The shares after a round, since whose end the switch has dropped so much in all."""
        self.link.dropped.update({SLICE if name == "sliced" else WAN: packets for name, packets in dropped.items()})
        asyncio.run(self.shares.look(1, drops=drops))
        found = self.shares.of(1)
        return dict(found.packets), found.is_of_now


def test_flows_that_drop_are_not_read_where_one_rule_alone_may_drop_each_jobs_packets() -> None:
    pool = Pool("alice", "carol")
    assert pool.look(sliced=10) == ({}, False)
    assert pool.link.turns == []


def test_they_are_read_in_the_very_round_in_which_something_is_dropped_and_in_one_go() -> None:
    pool = Pool("alice", "bob")
    pool.look(drops=False)
    assert pool.link.turns == []
    assert pool.look(sliced=10, wan=5)[0] == {SLICE: 10, WAN: 5}
    assert pool.link.turns == [2]


def test_the_shares_of_rounds_that_follow_each_other_are_of_now_and_those_after_a_pause_are_not() -> None:
    pool = Pool("bob")
    assert pool.look(sliced=10, wan=5) == ({SLICE: 10, WAN: 5}, False)
    assert pool.look(wan=25) == ({WAN: 20}, True)
    pool.look(drops=False)
    # Nobody looked meanwhile, so some of it may have come long ago.
    assert pool.look(sliced=11, wan=125) == ({SLICE: 1, WAN: 100}, False)
    assert pool.look(sliced=13) == ({SLICE: 2}, True)
    pool.shares.gone(1)
    assert pool.look(sliced=14) == ({SLICE: 1}, False)


def test_the_shares_of_two_policies_rules_are_not_of_now() -> None:
    pool = Pool("bob")
    pool.look(sliced=10, wan=50)
    assert pool.look(sliced=11, wan=60)[1]
    # In another policy the same place is another rule's.
    pool.desired.policy = replace(POLICY)
    assert not pool.look(sliced=12, wan=70)[1]
    assert pool.look(sliced=13, wan=80) == ({SLICE: 1, WAN: 10}, True)


def test_flows_that_were_made_anew_count_from_0() -> None:
    pool = Pool("bob")
    pool.look(sliced=10, wan=50)
    assert pool.look(sliced=3, wan=51) == ({SLICE: 3, WAN: 1}, True)
