"""A long work on the loop leaves others their turns, and needs no more turns than it must."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_controller.policies.file import load
from lark_controller.reconcile import pace
from lark_controller.reconcile.desired_pair import DesiredPair
from lark_controller.reconcile.pace import LONGEST, PORTION, Pace
from lark_controller.reconcile.policy_change import PolicyChange
from tests.fixtures.controllers import POLICY, an_edge, connect, running, until
from tests.flows.test_desired import a_job


@pytest.mark.parametrize(("others", "share"), [(0.0, PORTION), (0.012, 0.012), (5.0, LONGEST)])
def test_a_portion_is_as_long_as_the_work_of_others_within_bounds(others: float, share: float) -> None:
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
    wanted = 2000 * (PORTION / 10) / share
    assert 0.7 * wanted < turns < 1.3 * wanted


def test_switches_go_over_to_a_policy_many_in_a_turn(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "PORTION", 1e9)
    bring_over, at = PolicyChange._bring_over, []
    with running(tmp_path) as controller:
        for datapath in range(1, 9):
            connect(network, controller, an_edge(datapath))
        until(lambda: sum(each.in_sync for each in controller.switches.all()) == 8)
        turn = [0]

        def noted(*arguments: object) -> object:
            at.append(turn[0])
            return bring_over(*arguments)  # type: ignore[arg-type]

        def count() -> None:
            turn[0] += 1
            asyncio.get_running_loop().call_soon(count)

        monkeypatch.setattr(PolicyChange, "_bring_over", noted)
        controller.jobs._openflow.loop.call_soon_threadsafe(count)
        controller.policy.put(POLICY.replace("action: drop", "port: wan-fast"), "ops")
    assert len(at) == 8
    assert len(set(at)) == 1


class _Counts(dict[int, int]):
    """Counts that may be asked for, but not gone through."""

    def __iter__(self) -> object:  # type: ignore[override]
        raise AssertionError("the counts of all switches were gone through")

    keys = items = values = __iter__  # type: ignore[assignment]


def test_a_job_does_not_go_through_the_counts_of_all_switches() -> None:
    pair = DesiredPair(load(POLICY))
    pair.desired.rules = _Counts({1: 5})
    assert pair.admit(a_job(1), None) == {0: {}}
