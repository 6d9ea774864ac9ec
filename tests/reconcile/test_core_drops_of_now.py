"""The drops at a core are of now while it is connected, and under the policy by which they were counted."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from lark_common.errors import SwitchError
from lark_controller.reconcile import core_drops
from lark_controller.reconcile.core_drops import CoreDrops, _Place

CORE = 7
Counted = dict[int, tuple[str, int]]


class Cores(CoreDrops):
    """The drops at one core, whose meters' counts are given; looks are ten seconds apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counted: Counted = {}
        self.fails = False
        self.time = 1000.0
        monkeypatch.setattr(core_drops, "time", SimpleNamespace(time=lambda: self.time))
        self.state = SimpleNamespace(link=SimpleNamespace(datapath=CORE))
        self.desired = SimpleNamespace(policy=object(), switches={CORE: SimpleNamespace(is_edge=False)})
        loop: Any = SimpleNamespace(switches={CORE: self.state}, desired_of=lambda _datapath: self.desired)
        super().__init__(loop)

    async def _count(self, link: Any, switch: Any) -> Any:
        if self.fails:
            raise SwitchError("no answer")
        return {_Place("", number): each for number, each in self.counted.items()}

    def sees(self, **packets: int) -> dict[str, float]:
        """Look at the core, whose groups have dropped so many packets; returns the rates that are shown then."""
        self.time += 10
        self.counted = dict(enumerate(packets.items()))
        asyncio.run(self.look(CORE))
        return self.shown()

    def shown(self) -> dict[str, float]:
        return {each.group: each.packets for each in self.now()}

    def connects(self) -> None:
        self.state.link = SimpleNamespace(datapath=CORE)


def test_a_core_that_is_away_drops_nothing_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    assert cores.sees(cms=100, atlas=0) == {}
    assert cores.sees(cms=200, atlas=0) == {"cms": 10.0}
    cores.state.link = None
    assert cores.shown() == {}
    cores.connects()
    # Nobody knows how much of it was dropped of late; it counts all the same.
    assert cores.shown() == {}
    assert cores.sees(cms=500, atlas=0) == {}
    assert cores.by_group() == {"cms": 400}
    assert cores.sees(cms=500, atlas=30) == {"atlas": 3.0}


def test_a_core_that_does_not_answer_drops_nothing_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    cores.sees(cms=100)
    assert cores.sees(cms=200) == {"cms": 10.0}
    cores.fails = True
    with pytest.raises(SwitchError):
        cores.sees(cms=300)
    assert cores.shown() == {}
    cores.fails = False
    assert cores.sees(cms=400) == {"cms": 10.0}
    assert cores.by_group() == {"cms": 300}


def test_drops_under_the_policy_before_are_not_shown_under_this_one(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    cores.sees(cms=100)
    assert cores.sees(cms=200) == {"cms": 10.0}
    cores.desired.policy = object()
    assert cores.shown() == {}
    # The meter is another group's now: whose packets came meanwhile is not known.
    assert cores.sees(atlas=300) == {}
    assert cores.by_group() == {"cms": 100}
    assert cores.sees(atlas=350) == {"atlas": 5.0}
    assert cores.by_group() == {"cms": 100, "atlas": 50}


def test_a_place_that_one_look_has_not_seen_has_not_dropped_all_since(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    cores.sees(cms=100, atlas=5000)
    assert cores.sees(cms=200) == {"cms": 10.0}
    # It counts what came meanwhile, of which nobody knows how much is of now.
    assert cores.sees(cms=300, atlas=5100) == {"cms": 10.0}
    assert cores.by_group() == {"cms": 200, "atlas": 100}
    assert cores.sees(cms=300, atlas=5200) == {"atlas": 10.0}
    assert cores.by_group() == {"cms": 200, "atlas": 200}


def test_what_a_place_dropped_before_it_was_first_seen_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    cores.sees(cms=100)
    assert cores.sees(cms=100, atlas=5000) == {}
    assert cores.by_group() == {}
    assert cores.sees(cms=100, atlas=5100) == {"atlas": 10.0}
