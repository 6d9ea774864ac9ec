"""The drops at a core are of now while it is connected, and under the policy by which they were counted."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from lark_common.errors import SwitchError
from lark_controller.policies.model import GroupControl, GroupSpec, SwitchRole, WanAction, WanRule
from lark_controller.reconcile import core_drops
from lark_controller.reconcile.core_drops import CoreDrop, CoreDrops, _Count, _Place
from lark_controller.services.drops import _of_group

CORE = 7
Counted = dict[int, tuple[str, int]]


def policy(line: int = 1, ceiling: float = 1, port: str | None = None) -> Any:
    """A policy with one group whose rule is in this line, and with a WAN rule."""
    group = GroupSpec("cms", line, 10, ceiling=ceiling)
    rule = WanRule(1, line + 5, WanAction.STEER, "true", port=port)
    switches = {CORE: SimpleNamespace(role=SwitchRole.CORE, name="core1")}
    return SimpleNamespace(groups=(group,), wans=(rule,), switches=switches)


def a_link(began: float, datapath: int = CORE) -> Any:
    ports = {1: SimpleNamespace(name="lan1"), 2: SimpleNamespace(name="wan")}
    return SimpleNamespace(datapath=datapath, began=began, features=SimpleNamespace(ports=ports))


class Cores(CoreDrops):
    """The drops at one core, whose meters' counts are given; looks are ten seconds apart."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counted: Counted = {}
        self.fails = False
        self.time = 1000.0
        self.ages: dict[str, float] = {}
        clock = SimpleNamespace(time=lambda: self.time, monotonic=lambda: self.time)
        monkeypatch.setattr(core_drops, "time", clock)
        self.state = SimpleNamespace(link=a_link(500.0))
        self.switch = SimpleNamespace(
            is_edge=False, is_core=True, lan=(1,), group_control=GroupControl.METERS, max_meter=64
        )
        self.desired = SimpleNamespace(policy=policy(), switches={CORE: self.switch})
        loop: Any = SimpleNamespace(
            switches={CORE: self.state}, desired_of=lambda _datapath: self.desired, desired=self.desired
        )
        super().__init__(loop)

    async def _count(self, link: Any, switch: Any) -> Any:
        if self.fails:
            raise SwitchError("no answer")
        return {_Place("", number): _Count(*each, age=self.ages.get(each[0])) for number, each in self.counted.items()}

    def sees(self, seconds: float = 10, **packets: int) -> dict[str, float]:
        """Look at the core, whose groups have dropped so many packets; returns the rates that are shown then."""
        self.time += seconds
        self.counted = dict(enumerate(packets.items()))
        asyncio.run(self.look(CORE))
        return self.shown()

    def shown(self) -> dict[str, float]:
        return {each.group: each.packets for each in self.now()}

    def connects(self) -> None:
        self.state.link = a_link(self.time)


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
    cores.desired.policy = policy(ceiling=2)
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


def test_a_change_of_the_text_leaves_known_what_a_change_of_groups_or_wan_rules_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = Cores(monkeypatch)
    assert cores.unread() == 1
    cores.sees(cms=100)
    assert cores.unread() == 1
    assert cores.sees(cms=200) == {"cms": 10.0}
    assert cores.unread() == 0
    cores.desired.policy = policy(line=9)
    assert (cores.shown(), cores.unread()) == ({"cms": 10.0}, 0)
    for other in (policy(ceiling=2), policy(ceiling=2, port="wan")):
        cores.desired.policy = other
        switches = cores.desired.policy.switches
        assert (cores.shown(), cores.unread()) == ({}, 1)
        cores.sees(cms=300)
        # The switch that the policy declares is the same one.
        other.switches = switches
        assert cores.unread() == 1
        cores.sees(cms=300)
        assert cores.unread() == 0
    cores.state.link = None
    assert cores.unread() == 0  # It is among those that are away.


def test_a_core_that_treats_no_group_drops_nothing_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    cores.desired.policy.groups = ()
    assert cores.unread() == 0


def test_a_core_that_does_not_answer_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    cores.sees(cms=100)
    cores.sees(cms=200)
    cores.fails = True
    with pytest.raises(SwitchError):
        cores.sees(cms=300)
    assert cores.unread() == 1


def test_a_rate_is_not_of_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    cores.sees(cms=100)
    assert cores.sees(cms=200) == {"cms": 10.0}
    assert cores.sees(seconds=0.01, cms=210) == {"cms": 10.0}
    assert cores.by_group() == {"cms": 100}
    assert cores.sees(seconds=4.99, cms=250) == {"cms": 10.0}


def test_what_was_made_under_this_controller_is_counted_from_0(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    cores.ages = {"cms": 1000.0, "atlas": 4.0}
    # The connection began 510 s ago: cms was there before it.
    cores.sees(cms=100, atlas=30)
    assert cores.by_group() == {"atlas": 30}
    cores.ages = {"cms": 1010.0, "atlas": 14.0, "lhcb": 6.0}
    assert cores.sees(cms=100, atlas=30, lhcb=60) == {"lhcb": 6.0}
    # One that was there when the core was seen last, and was not looked at then, has counted for nobody.
    cores.ages["alice"] = 30.0
    cores.sees(cms=100, atlas=30, lhcb=60, alice=500)
    assert cores.by_group() == {"atlas": 30, "lhcb": 60}
    # A switch that starts again may go on with its counts, and say that they are new.
    cores.connects()
    cores.ages = {"cms": 11.0, "atlas": 11.0, "lhcb": 11.0, "alice": 11.0}
    cores.sees(cms=100, atlas=40, lhcb=60, alice=500)
    assert cores.by_group() == {"atlas": 40, "lhcb": 60}


def followed(
    cores: Cores, monkeypatch: pytest.MonkeyPatch, seconds: int, every: float = 0.0, flood: range = range(1 << 30)
) -> tuple[list[float], dict[float, dict[str, float]]]:
    """The seconds, of the clock that begins at 0, of looks within the next ``seconds``, and what is shown at each.

    The core drops one packet a second, in these seconds of the clock.
    """
    looks: list[float] = []
    shown: dict[float, dict[str, float]] = {}
    sleep = asyncio.sleep

    async def count(_link: Any, _switch: Any) -> Any:
        looks.append(cores.time - 1000)
        return {_Place("", 0): _Count("cms", len(range(flood.start, min(flood.stop, int(cores.time) - 1000))))}

    async def turn(_seconds: float) -> None:
        await sleep(0)
        await sleep(0)
        cores.time += 1
        shown[cores.time - 1000] = cores.shown()

    async def follow() -> None:
        until = cores.time + seconds
        await cores.start(every)
        while cores.time < until:
            await sleep(0)

    with monkeypatch.context() as patched:
        patched.setattr(cores, "_count", count)
        patched.setattr(asyncio, "sleep", turn)
        asyncio.run(follow())
    return looks, shown


def test_a_core_whose_drops_are_not_known_is_looked_at_every_few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    (first, second), _ = followed(cores, monkeypatch, 60)
    assert first <= 3
    assert core_drops.SOON <= second - first <= core_drops.SOON + 2
    cores.desired.policy = policy(ceiling=3)
    changed_at = cores.time - 1000
    (first, second), _ = followed(cores, monkeypatch, 60)
    assert first <= changed_at + 3
    assert core_drops.SOON <= second - first <= core_drops.SOON + 2
    # Where one was asked a moment before, too.
    cores.desired.policy = policy(ceiling=4)
    changed_at = cores.time - 1000
    asyncio.run(cores.look(CORE))
    cores.desired.policy = policy(ceiling=5)
    (first, *_), _ = followed(cores, monkeypatch, 9)
    assert first <= changed_at + 3
    assert cores.shown() == {"cms": 1.0}


def test_what_a_core_drops_is_shown_two_readings_after_it_began_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of the whole time in between, as fast as it is."""
    looks, shown = followed(Cores(monkeypatch), monkeypatch, 200, every=10, flood=range(55, 155))
    assert {round(after - before) for before, after in pairwise(looks[1:])} == {10}
    assert not any(shown[second] for second in range(20, 55))
    assert all(shown[second] for second in range(66, 155))
    assert all(shown[second] == {"cms": 1.0} for second in range(77, 155))
    assert not any(shown[second] for second in range(176, 200))


def test_of_very_many_cores_a_part_is_asked_at_once_and_each_comes_to_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cores = Cores(monkeypatch)
    many = range(100, 100 + 3 * core_drops._AT_ONCE)
    loop: Any = cores._loop
    loop.switches.clear()
    for datapath in many:
        loop.switches[datapath] = SimpleNamespace(link=a_link(500.0, datapath))
        cores.desired.switches[datapath] = cores.switch
    cores.desired.policy.switches = {
        datapath: SimpleNamespace(role=SwitchRole.CORE, name=f"core{datapath}") for datapath in many
    }
    asked = []
    for _ in range(3):
        due = cores._due(cores.time, 10.0)
        assert len(due) == core_drops._AT_ONCE
        asked += due
        for datapath in due:
            asyncio.run(cores.look(datapath))
    assert sorted(asked) == list(many)
    assert cores._due(cores.time, 10.0) == []


def test_packets_to_the_site_are_dropped_on_their_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    counts = {_Place("lan1", 10): 0, _Place("wan", 10): 0, _Place("", 10): 0}

    async def count(_link: Any, _switch: Any) -> Any:
        return {place: _Count("cms", packets) for place, packets in counts.items()}

    monkeypatch.setattr(cores, "_count", count)
    cores.sees()
    counts |= {_Place("lan1", 10): 50, _Place("wan", 10): 20, _Place("", 10): 10}
    cores.sees()
    assert sorted((each.inward, each.packets) for each in cores.now()) == [(False, 3.0), (True, 5.0)]
    # Which way an access point's transfers go is not seen at its port.
    cores.switch.is_core = False
    counts[_Place("lan1", 10)] += 10
    cores.sees()
    assert [(each.inward, each.packets) for each in cores.now()] == [(None, 1.0)]


@pytest.mark.parametrize(
    ("inward", "direction", "source", "destination"),
    [
        (True, "in", "the WAN", "jobs of the group cms"),
        (False, "out", "jobs of the group cms", "the WAN"),
        (None, "out", "jobs of the group cms", "the WAN, or from there to them"),
    ],
)
def test_the_direction_of_a_groups_drops(inward: bool | None, direction: str, source: str, destination: str) -> None:
    drop = _of_group(CoreDrop(CORE, "cms", 5.0, 0.0, inward), policy(line=3))
    assert (drop.direction, drop.source, drop.destination, drop.line) == (direction, source, destination, 3)
