"""A missed guarantee is a problem of its switch for as long as it is missed, and promised."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lark_controller.reconcile import guarantees
from lark_controller.reconcile.guarantees import Guarantees
from lark_controller.reconcile.queues import Promise
from lark_controller.reconcile.switch import SwitchState
from lark_controller.services.switches import _problems
from lark_controller.switches.openflow.replies import QueueCounters

CORE = 7


class Core:
    """A core with one queue of a group, 0.2 Mb/s of which are promised; looks are a minute apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.sent, self.dropped = 0.0, 0, 0
        clock = SimpleNamespace(monotonic=lambda: self.at, time=lambda: 1000 + self.at)
        monkeypatch.setattr(guarantees, "time", clock)
        self.promises = {("wan", 5): Promise(200_000, group="cms")}
        self.state = SwitchState(CORE)
        self.state.link = cast("Any", self)
        self.datapath = CORE
        self.features = SimpleNamespace(ports={1: SimpleNamespace(number=1, name="wan")})
        queues = SimpleNamespace(
            promises=lambda _datapath: self.promises,
            is_reported=lambda _datapath: True,
            waited=lambda _datapath: {},
            problems=lambda _datapath: (),
        )
        desired = SimpleNamespace(build=lambda _datapath: SimpleNamespace(flows={}))
        loop: Any = SimpleNamespace(
            switches={CORE: self.state},
            queues=queues,
            desired_of=lambda _datapath: desired,
            directory=SimpleNamespace(by_id={}),
        )
        count = SimpleNamespace(inc=lambda: None)
        metrics: Any = SimpleNamespace(guarantees_checked=count, guarantees_missed=count)
        self.loop, self.guarantees = loop, Guarantees(loop, metrics)

    async def queue_stats(self) -> list[QueueCounters]:
        return [QueueCounters(1, 5, self.sent, self.sent // 1000, self.dropped)]

    async def counters(self, _cookie: int, _mask: int) -> dict[Any, Any]:
        return {}

    def gets(self, megabits: float, drops: int = 0) -> list[tuple[float, str]]:
        """Look after a minute at this rate; returns the problems, each with the time of its beginning."""
        self.at += 60
        self.sent += round(megabits * 1e6 / 8 * 60)
        self.dropped += drops
        asyncio.run(self.guarantees.look(CORE))
        return self.problems()

    def problems(self) -> list[tuple[float, str]]:
        return [(each.at, each.problem) for each in _problems(self.loop, self.state)]


def test_a_missed_guarantee_is_one_problem_until_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(monkeypatch)
    assert core.gets(0) == []
    ((began, text),) = core.gets(0.1, drops=9)
    assert text == "guarantee missed: group cms got 0.1 of 0.2 Mb/s at port wan for 60 s, and had more to send"
    ((still, other),) = core.gets(0.05, drops=9)
    assert still == began
    assert "got 0.1 of" in other or "got 0.0 of" in other
    assert core.gets(0.2, drops=9) == []


@pytest.mark.parametrize(("megabits", "said"), [(0.18, "0.18"), (0.02, "0.0"), (0.1234, "0.1")])
def test_what_was_delivered_is_told_apart_from_what_was_promised(
    monkeypatch: pytest.MonkeyPatch, megabits: float, said: str
) -> None:
    core = Core(monkeypatch)
    core.gets(0)
    ((_, text),) = core.gets(megabits, drops=9)
    assert f"got {said} of 0.2 Mb/s" in text


@pytest.mark.parametrize("other", [{}, {("wan", 5): Promise(200_000, group="atlas")}])
def test_one_that_is_not_promised_any_more_is_none(
    monkeypatch: pytest.MonkeyPatch, other: dict[tuple[str, int], Promise]
) -> None:
    core = Core(monkeypatch)
    core.gets(0)
    assert len(core.gets(0.1, drops=9)) == 1
    core.promises = other
    assert core.problems() == []


def test_one_at_a_switch_that_is_away_is_none_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core(monkeypatch)
    core.gets(0)
    assert len(core.gets(0.1, drops=9)) == 1
    core.state.link = None
    assert core.problems() == []
