"""A long work on the loop leaves others their turns, and needs no more turns than it must."""

from __future__ import annotations

import asyncio
import cProfile
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_switch.switch import FakeNetwork
from lark_controller.policies.file import load
from lark_controller.reconcile import pace, policy_change
from lark_controller.reconcile.desired_pair import DesiredPair
from lark_controller.reconcile.pace import LONGEST, PORTION, TURNS, Pace
from lark_controller.reconcile.policy_change import PolicyChange
from lark_controller.switches.openflow.applies import Outcome
from lark_controller.switches.openflow.handed_over import HandedOver
from tests.fixtures.controllers import POLICY, an_edge, connect, running, until
from tests.flows.test_desired import FULL, a_job


@pytest.mark.parametrize(("others", "share"), [(0.0, PORTION), (0.024, 0.012), (5.0, LONGEST)])
def test_a_portion_is_half_as_long_as_the_work_of_others_within_bounds(others: float, share: float) -> None:
    now, turns = [0.0], 0

    async def work() -> None:
        nonlocal turns
        step = PORTION / 10
        steps = Pace(lambda: now[0])

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                now[0] += others
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        for _ in range(2000):
            now[0] += step
            await steps.step()
        beside.cancel()

    asyncio.run(work())
    # Where others take as long as a portion, they have one turn after it.
    wanted = 2000 * (PORTION / 10) / share * (1 if others else TURNS)
    assert 0.7 * wanted < turns < 1.3 * wanted


@pytest.mark.parametrize(("turn", "between"), [(0.0, TURNS), (0.001, TURNS), (0.004, 2), (0.02, 1)])
def test_a_start_takes_its_turns_of_the_loop_between_two_portions(turn: float, between: int) -> None:
    """A post that has to wait for a portion at each of its steps waits five times as long."""
    now, turns = [0.0], list[int]()

    async def work() -> None:
        steps, count = Pace(lambda: now[0]), 0

        async def other() -> None:
            nonlocal count
            while True:
                count += 1
                now[0] += turn
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        for _ in range(50):
            now[0] += 0.008
            await steps.step()
            turns.append(count)
        beside.cancel()

    asyncio.run(work())
    assert {later - earlier for earlier, later in itertools.pairwise(turns)} <= {between, 0}


def test_a_long_work_and_what_is_handed_over_do_not_drive_each_other_up() -> None:
    now, turns = [0.0], list[float]()

    def spend(seconds: float) -> None:
        now[0] += seconds

    async def work() -> None:
        loop = asyncio.get_running_loop()
        handed = HandedOver(lambda: loop, lambda: now[0])

        async def switches() -> None:
            while True:
                turns.append(now[0])
                spend(0.004)
                await asyncio.sleep(0)

        beside = asyncio.create_task(switches())
        # More than is worked on meanwhile; one piece takes long.
        for _ in range(20_000):
            handed.put(spend, 0.001)
        steps = Pace(lambda: now[0])
        for count in range(4000):
            spend(0.3 if count == 500 else 0.0005)
            await steps.step()
        beside.cancel()
        handed.forget()

    asyncio.run(work())
    taken = [later - earlier for earlier, later in itertools.pairwise(turns)]
    assert max(taken) > 0.3
    assert max(taken[-20:]) < 0.04


@pytest.mark.parametrize("switches", [policy_change._AT_ONCE - 1, 3 * policy_change._AT_ONCE])
def test_switches_go_over_to_a_policy_some_in_a_turn(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch, switches: int
) -> None:
    monkeypatch.setattr(pace, "PORTION", 1e9)
    monkeypatch.setattr(policy_change, "_LONGEST", 1e9)
    bring_over, at, under_way = PolicyChange._bring_over, list[int](), list[int]()
    outcomes: list[asyncio.Future[Outcome]] = []
    with running(tmp_path) as controller:
        for datapath in range(1, switches + 1):
            connect(network, controller, an_edge(datapath))
        until(lambda: sum(each.in_sync for each in controller.switches.all()) == switches)
        turn = [0]

        def noted(*arguments: Any) -> tuple[int, asyncio.Future[Outcome] | None]:
            at.append(turn[0])
            count, outcome = bring_over(*arguments)
            outcomes.extend([] if outcome is None else [outcome])
            under_way.append(sum(not each.done() for each in outcomes))
            return count, outcome

        def count() -> None:
            turn[0] += 1
            asyncio.get_running_loop().call_soon(count)

        monkeypatch.setattr(PolicyChange, "_bring_over", noted)
        controller.jobs._openflow.loop.call_soon_threadsafe(count)
        controller.policy.put(POLICY.replace("action: drop", "port: wan-fast"), "ops")
    assert len(at) == switches
    assert len(set(at[: policy_change._AT_ONCE])) == 1
    # Each that is under way has a part of every turn, which jobs that start wait for.
    assert max(under_way) == min(switches, policy_change._AT_ONCE)


def test_where_switches_are_slow_one_more_goes_over_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_change, "_LONGEST", 0.0)

    async def play() -> None:
        loop = asyncio.get_running_loop()
        changes: list[asyncio.Future[Outcome]] = [loop.create_future() for _ in range(3 * policy_change._AT_ONCE)]
        waited_for: list[asyncio.Future[Outcome]] = []
        for count, change in enumerate(changes, 1):
            waited_for = await policy_change._room([*waited_for, change])
            assert waited_for == changes[max(0, count - policy_change._AT_ONCE + 1) : count]
        waited_for[3].cancel()
        rest = [each for each in waited_for if each is not waited_for[3]]
        assert await policy_change._room(waited_for) == rest

    asyncio.run(play())


class _Counts(dict[int, int]):
    """Counts that may be asked for, but not gone through."""

    def __iter__(self) -> object:  # type: ignore[override]
        raise AssertionError("the counts of all switches were gone through")

    keys = items = values = __iter__  # type: ignore[assignment]


def test_a_job_does_not_go_through_the_counts_of_all_switches() -> None:
    pair = DesiredPair(load(POLICY))
    pair.desired.rules = _Counts({1: 5})
    assert pair.admit(a_job(1), None) == {0: {}}


def _calls_to_decide(count: int) -> int:
    """The calls of functions to decide so many jobs anew by a policy that steers none of them."""
    pair = DesiredPair(load(FULL))
    facts = [a_job(1, owner=f"user{number}", group="local").facts for number in range(4)]
    for number in range(1, count + 1):
        pair.admit(a_job(number, facts=facts[number % 4]), None)
    profile = cProfile.Profile()
    profile.enable()
    asyncio.run(pair.prepare(load(FULL.replace('"cms"\'', '"atlas"\'')), dict))
    profile.disable()
    assert all(pair.coming.placed[number] is placed for number, placed in pair.desired.placed.items())
    return sum(each.callcount for each in profile.getstats())


def test_equal_facts_are_decided_once_and_their_jobs_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine the work takes more turns of the loop, which are calls as well.
    monkeypatch.setattr(pace, "PORTION", 1e9)
    pair = DesiredPair(load(FULL))
    facts = a_job(1, owner="user1", group="local").facts
    for number in range(1, 4):
        pair.admit(a_job(number, facts=facts), None)
    pair.admit(a_job(4, facts=facts, quarantine="the pool contradicts it"), None)
    asyncio.run(pair.prepare(load(FULL.replace('"mallory"', '"user1"')), dict))
    decisions = [pair.coming.placed[number].decision for number in range(1, 5)]
    assert decisions[0].blocked
    assert decisions[1] is decisions[2] is decisions[0]
    assert decisions[3] == replace(decisions[0], quarantine="the pool contradicts it")
    assert (_calls_to_decide(400) - _calls_to_decide(200)) / 200 < 10
