"""Steps of accounts that others calculate: the same as readings here, and nothing counted twice by any interleaving."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable
from math import inf
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.accounting import ledger as ledger_module
from lark_controller.accounting.ledger import Ledger
from lark_controller.accounting.readings import CountKind, FlowReading, PortReading, QueueReading, TransferCounts
from lark_controller.accounting.shares import steps as steps_module
from lark_controller.accounting.shares.steps import STATE, Ages, Step, packed, state_of, step, unpacked
from lark_controller.accounting.usage import MOST, Usage
from tests.accounting.test_ledger import job, opened, used
from tests.fixtures.databases import NOW

SEEDS: Final = 400
OLD: Final = 1e6


def seen(ledger: Ledger) -> list[Any]:
    """All that a ledger shows of its job."""
    return [
        ledger.usage(1), dict(ledger.rates()), dict(ledger.sums()), ledger.recent(1), ledger.dropping(9),
        ledger.unread(), ledger.changed(), ledger.flowing("user", 9), dict(ledger.access_points()), ledger.entries([1]),
    ]  # fmt: skip


def state(ledger: Ledger) -> bytes:
    (found,) = ledger.states([1])
    assert found is not None
    return found


READINGS = st.lists(
    st.tuples(
        st.sampled_from([0.5, 3.0, 10.0, 100.0]),
        st.tuples(*[st.sampled_from([0, 0, 1, 7, 3000, 2**40])] * 6),
        st.lists(st.tuples(st.sampled_from([*CountKind]), st.sampled_from([0, 5, 2**35])), max_size=4),
        st.sampled_from(["", "queues", "moved", "write", "gone"]),
    ),
    max_size=20,
)


@given(READINGS)
def test_a_step_that_was_calculated_elsewhere_is_a_reading_here(readings: list[Any]) -> None:
    here, there = opened(), opened()
    now, port, flows = NOW + 1, [0] * 6, {kind: [0, 0] for kind in CountKind}
    for each in (here, there):
        each.read(1, now, PortReading(*port), [], 1.0)
    for pause, more, counts, event in readings:
        now += pause
        port = [old + new for old, new in zip(port, more, strict=True)]
        for kind, size in counts:
            flows[kind] = [flows[kind][0] + 1, flows[kind][1] + size]
        found = [(int(kind), packets, size) for kind, (packets, size) in flows.items()]
        before = state(there)
        made = step(before, now, Ages(PortReading(*port), OLD, found, OLD))
        assert made is not None
        assert len(packed(made)) in (0, len(made.state) + 32)
        assert there.take([(1, before, unpacked(now, packed(made)))]) == []
        here.read(1, now, PortReading(*port), found, OLD)
        assert seen(there) == seen(here)
        for each in (here, there):
            match event:
                case "queues":
                    each.queues(1, QueueReading(len(readings), 1, 5, 0))
                case "moved":
                    each.transferred(1, now, TransferCounts(9, 9, 0, 0, int(now - NOW)), None)
                case "write":
                    each.wrote(each.entries(each.changed()))
                case "gone":
                    each.flow_gone(1, FlowReading(CountKind.WAN_OUT, *flows[CountKind.WAN_OUT]))
        if event == "gone":
            flows[CountKind.WAN_OUT] = [0, 0]
        assert seen(there) == seen(here)


class Simulation:
    """A switch with one job, the active instance's account of it, and one that reads for it; messages of the two
    connections come whenever they come, those of one in order."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.ledger = opened()
        self.now = NOW + 1.0
        self.port = [0, 0, 0, 0]
        self.flows: dict[CountKind, list[int]] = {}
        self.made: dict[CountKind, float] = {}
        self.true = [0, 0, 0, 0]
        self.true_flows = dict.fromkeys(CountKind, 0)
        # Removals that the switch has sent and the active instance has not got.
        self.removed: list[FlowReading] = []
        self.asked: list[bytes] = []
        self.answers: list[tuple[bytes, Step]] = []
        self.taken = 0
        for kind in CountKind:
            self.add(kind)
        self.read()

    def add(self, kind: CountKind) -> None:
        self.flows[kind], self.made[kind] = [0, 0], self.now

    def traffic(self) -> None:
        for place in range(4):
            more = self.random.choice([0, 1, 50])
            self.port[place] += more
            self.true[place] += more
        for kind, counts in self.flows.items():
            more = self.random.choice([0, 1, 1, 20])
            counts[0] += more
            counts[1] += 100 * more
            self.true_flows[kind] += more

    def flow_made_anew(self) -> None:
        """The active instance has changed the job's flows; the switch says what the one before had counted."""
        kind = self.random.choice(list(self.flows))
        self.removed.append(FlowReading(kind, *self.flows[kind]))
        self.add(kind)

    def removal(self) -> None:
        if self.removed:
            self.ledger.flow_gone(1, self.removed.pop(0))

    def read(self) -> None:
        """The active instance reads: by its own connection, so what was sent before the answer has come before it."""
        while self.removed:
            self.removal()
        flows = [FlowReading(kind, *counts) for kind, counts in self.flows.items()]
        self.ledger.read(1, self.now, PortReading(*self.port), flows, self.now - NOW)

    def order(self) -> None:
        self.asked.append(state(self.ledger))

    def answer(self) -> None:
        """The other one reads, for an order of any age."""
        if self.asked:
            before = self.random.choice(self.asked[-2:])
            flows = [(int(kind), packets, size) for kind, (packets, size) in self.flows.items()]
            youngest = min(self.now - made for made in self.made.values())
            made = step(before, self.now, Ages(PortReading(*self.port), OLD, flows, youngest))
            if made is not None:
                self.answers.append((before, made))

    def take(self) -> None:
        """An answer comes; it may come again, and any later."""
        if self.answers:
            before, made = self.random.choice(self.answers[-3:])
            self.taken += not self.ledger.take([(1, before, made)])

    def others(self) -> None:
        """Something else that changes the account, or nothing of it."""
        match self.random.randrange(3):
            case 0:
                self.ledger.queues(1, QueueReading(0, 0, self.random.randint(0, 9), 0))
            case 1:
                self.ledger.transferred(1, self.now, TransferCounts(1, 1, 0, 0, 5), None)
            case _:
                self.ledger.wrote(self.ledger.entries(self.ledger.changed()))

    def play(self, steps: int = 80) -> int:
        acts: list[Callable[[], None]] = [
            self.traffic, self.traffic, self.traffic, self.flow_made_anew, self.removal, self.read, self.order,
            self.order, self.answer, self.answer, self.take, self.take, self.take, self.others,
        ]  # fmt: skip
        for _ in range(steps):
            self.now += self.random.choice([0.1, 0.5, 2.0, 10.0])
            self.random.choice(acts)()
            self.check(whole=False)
        self.now += 10.0
        self.read()
        self.now += 10.0
        self.read()
        self.check(whole=True)
        return self.taken

    def check(self, *, whole: bool) -> None:
        usage = used(self.ledger)
        port = [usage.packets_out, usage.bytes_out, usage.packets_in, usage.bytes_in]
        drops = [usage.policy_drops_out, usage.policy_drops_in]
        flows = self.true_flows
        true_drops = [
            flows[CountKind.DROP_OUT], flows[CountKind.DROP_IN] + flows[CountKind.DROP_IN_IPV6]
        ]  # fmt: skip
        if whole:
            assert (port, drops) == (self.true, true_drops)
        assert all(one <= two for one, two in zip([*port, *drops], [*self.true, *true_drops], strict=True))


def test_nothing_is_counted_twice_and_nothing_is_lost_by_any_interleaving() -> None:
    taken = [Simulation(seed).play() for seed in range(SEEDS)]
    # Otherwise nothing was shown.
    assert sum(taken) > SEEDS // 2


def _fails() -> bool:
    for seed in range(SEEDS):
        try:
            Simulation(seed).play()
        except (AssertionError, OverflowError):
            return True
    return False


class _Any(bytes):
    """A state that is every other."""

    __hash__ = bytes.__hash__

    def __eq__(self, _other: object) -> bool:
        return True

    def __ne__(self, _other: object) -> bool:
        return False


def test_without_the_comparison_of_states_it_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        ledger_module, "state_of", lambda account: None if (found := state_of(account)) is None else _Any(found)
    )
    assert _fails()


def test_without_the_ages_of_flows_it_is_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps_module, "SLACK", -inf)
    assert _fails()


BUSY = PortReading(10, 1000, 10, 1000)


@pytest.mark.parametrize(
    ("at", "found"),
    [
        (NOW + 20, Ages(BUSY, 10.5, [], inf)),  # a port that is younger than the reading before, or may be
        (NOW + 20, Ages(BUSY, None, [], inf)),
        (NOW + 20, Ages(BUSY, OLD, [(0, 1, 1)], 10.5)),  # a flow that is
        (NOW + 20, Ages(PortReading(10, 900, 10, 1000), OLD, [], inf)),  # a counter that fell
        (NOW + 20, Ages(BUSY, OLD, [(0, 1, 1)], OLD)),
        (NOW + 20, Ages(BUSY, OLD, [(1, 7, 700), (1, 8, 800)], OLD)),  # two flows for one count
        (NOW + 10, Ages(BUSY, OLD, [], inf)),  # no time since the reading before
        (NOW + 9, Ages(BUSY, OLD, [], inf)),
    ],
)
def test_a_reading_that_is_not_plain_is_left_to_the_active_instance(at: float, found: Ages) -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, PortReading(10, 1000, 10, 1000), [FlowReading(CountKind.WAN_OUT, 5, 500)], 1.0)
    assert step(state(ledger), at, found) is None
    assert step(state(ledger), NOW + 20, Ages(BUSY, OLD, [(0, 6, 600)], OLD)) is not None


def test_accounts_without_a_plain_reading_have_no_state() -> None:
    ledger = opened()
    assert ledger.states([1, 7]) == [None, b""]
    ledger.read(1, NOW + 10, BUSY, [], 1.0)
    assert len(state(ledger)) == STATE
    before = state(ledger)
    made = step(before, NOW + 20, Ages(PortReading(11, 1100, 10, 1000), OLD, [], inf))
    assert made is not None
    ledger.close(1, NOW + 15)
    assert ledger.states([1]) == [None]
    assert ledger.take([(1, before, made), (9, before, made)]) == [1, 9]
    assert used(ledger).packets_out == 10


def changed(made: Step, name: str, value: int) -> Step:
    """The step with another number of its state."""
    numbers = array("Q", made.state[8:])
    place = {name: place for place, name in enumerate(Usage._fields)} | {"peak": len(numbers) - 5}
    numbers[place[name]] = value
    return made._replace(state=made.state[:8] + numbers.tobytes())


@pytest.mark.parametrize(
    "wrong",
    [
        lambda made: changed(made, "packets_out", 9),
        lambda made: changed(made, "throttled", 2**64 - 1),
        # Neither is any database's.
        lambda made: changed(made, "wan_bytes_in", MOST + 1),
        lambda made: changed(made, "peak", MOST + 1),
        lambda made: made._replace(at=NOW + 10),
        lambda made: made._replace(at=NOW + 9),
        lambda made: Step(NOW + 10),
        lambda made: Step(NOW - 10),
    ],
)
def test_a_step_that_cannot_be_one_is_not_taken(wrong: Callable[[Step], Step]) -> None:
    ledger = opened()
    ledger.read(1, NOW + 10, BUSY, [], 1.0)
    before, shown = state(ledger), seen(ledger)
    made = step(before, NOW + 20, Ages(PortReading(11, 1100, 10, 1000), OLD, [], inf))
    assert made is not None
    assert ledger.take([(1, before, wrong(made))]) == [1]
    assert seen(ledger) == shown
    assert ledger.take([(1, before, changed(made, "peak", MOST))]) == []


def test_an_account_that_begins_with_another_number_takes_no_step() -> None:
    """A job's number is no other's, so a step for one is none for another in the same state."""
    ledger = opened()
    ledger.begin(job(2), "group_cms")
    for number in (1, 2):
        ledger.read(number, NOW + 10, BUSY, [], 1.0)
    before = state(ledger)
    made = step(before, NOW + 20, Ages(PortReading(11, 1100, 10, 1000), OLD, [], inf))
    assert made is not None
    assert ledger.take([(1, before, made)]) == []
    assert ledger.take([(1, before, made)]) == [1]
    second = ledger.usage(2)
    assert second is not None
    assert second.usage.packets_out == 10
