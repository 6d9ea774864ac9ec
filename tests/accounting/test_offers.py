"""Orders to read counters, and their answers: each counts once, in time, of the one that has it; or it comes back."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.accounting.shares.messages import (
    LONGEST_ORDER,
    Answer,
    GarbledError,
    Order,
    OrderedJob,
    OrderedSwitch,
    ReadSwitch,
    answer_bytes,
    answer_of,
    order_bytes,
    order_of,
)
from lark_controller.accounting.shares.offers import (
    MOST_OFFERED,
    MOST_READERS,
    PATIENCE,
    SILENCE,
    UNABLE,
    UNSURE,
    Offers,
)
from lark_controller.accounting.shares.steps import STATE, Step
from lark_controller.accounting.usage import Rate

AT = 1e9


class Pool:
    """Offers by a clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0
        self.tokens = iter(range(1, 1_000_000))
        self.offers = Offers(
            clock=lambda: self.now, wall=lambda: AT + self.now, token=lambda: next(self.tokens).to_bytes(16)
        )

    def offer(self, *datapaths: int, jobs: int = 1) -> None:
        for datapath in datapaths:
            self.offers.offer(switch(datapath, jobs))


def switch(datapath: int, jobs: int = 1) -> OrderedSwitch:
    return OrderedSwitch(datapath, tuple(OrderedJob(number, number + 9, bytes(STATE)) for number in range(jobs)))


def answer(order: Order, *datapaths: int, after: float = 0.0, steps: int | None = None, held: float = 0.0) -> bytes:
    """The answer with those of an order's switches; all, where none is named."""
    chosen = [each for each in order.switches if not datapaths or each.datapath in datapaths]
    return answer_bytes(
        order.token,
        held,
        [
            ReadSwitch(each.datapath, after, (Step(0.0),) * (len(each.jobs) if steps is None else steps))
            for each in chosen
        ],
    )


def datapaths(order: Order) -> list[int]:
    return [each.datapath for each in order.switches]


STEPS = st.builds(
    lambda fill, rates: Step(AT, bytes([fill]) * STATE, Rate(*rates)),
    st.integers(0, 255),
    st.tuples(*[st.integers(0, 2**64 - 1)] * 4),
)


@given(st.lists(st.tuples(st.integers(0, 2**64 - 1), st.integers(1, 3)), max_size=4), st.lists(STEPS, max_size=3))
def test_what_is_written_is_read(switches: list[tuple[int, int]], steps: list[Step]) -> None:
    order = Order(b"t" * 16, AT, tuple(switch(datapath, jobs) for datapath, jobs in switches))
    assert order_of(order_bytes(order)) == order
    read = tuple(ReadSwitch(number, 0.0, (*steps, Step(AT))) for number, _ in switches)
    assert answer_of(answer_bytes(b"t" * 16, 2.5, read), AT) == Answer(b"t" * 16, 2.5, read)


def test_an_order_has_no_switch_without_jobs() -> None:
    with pytest.raises(GarbledError, match="a switch without jobs"):
        order_of(order_bytes(Order(b"t" * 16, AT, (switch(1, 0),))))


@given(st.binary(max_size=200), st.integers(0, 300), st.integers(0, 255))
def test_no_bytes_do_harm(noise: bytes, place: int, value: int) -> None:
    good = order_bytes(Order(b"t" * 16, AT, (switch(1, 2),)))
    broken = good[:place] + bytes([value]) + good[place + 1 :]
    for data in (noise, good[:place], good + noise[:1] + b"x", broken):
        for read in (order_of, lambda data: answer_of(data, AT)):
            try:
                read(data)
            except GarbledError:
                continue


def test_a_switch_is_ordered_once_and_read_once() -> None:
    pool = Pool()
    assert not pool.offers.wanted(1)
    assert datapaths(pool.offers.order("b")) == []
    assert pool.offers.wanted(1)
    pool.offer(1, 2)
    first = pool.offers.order("b")
    assert datapaths(first) == [1, 2]
    assert datapaths(pool.offers.order("c")) == []
    pool.now += 1.0
    taken = pool.offers.answered("b", answer(first, after=0.5, held=1.0))
    assert taken is not None
    assert [(each.ordered.datapath, each.read.steps) for each in taken] == [
        (n, (Step(first.at + 0.5),)) for n in (1, 2)
    ]
    # The same again is the answer to nothing.
    assert pool.offers.answered("b", answer(first)) is None
    assert pool.offers.back() == []


def test_of_another_order_or_instance_nothing_is_taken() -> None:
    pool = Pool()
    pool.offers.order("b")
    pool.offer(1)
    order = pool.offers.order("b")
    other = replace(order, token=b"o" * 16)
    assert pool.offers.answered("b", answer(other)) is None
    assert pool.offers.answered("c", answer(order)) is None
    assert pool.offers.answered("b", answer(order)) is not None


def test_an_answer_that_comes_late_is_none_and_the_switch_has_come_back() -> None:
    pool = Pool()
    pool.offers.order("b")
    pool.offer(1, 2)
    order = pool.offers.order("b")
    pool.offer(3)
    pool.now += PATIENCE
    # It is known when it was read, which is of no use by now.
    assert pool.offers.answered("b", answer(order, held=PATIENCE)) is None
    assert sorted(pool.offers.back()) == [1, 2, 3]
    assert pool.offers.back() == []
    assert pool.offers.answered("b", answer(order, held=PATIENCE)) is None


@pytest.mark.parametrize(
    ("held", "good"),
    [
        (3.0, True),
        (3.0 - 0.9 * UNSURE, True),
        # On its way for longer, before the switch was read or after it: nobody can say when that was.
        (3.0 - 1.1 * UNSURE, False),
        (0.0, False),
        # Nor where it had the order for longer than the active one.
        (3.0 + 1.1 * UNSURE, False),
        (1e300, False),
        (float("inf"), False),
    ],
)
def test_a_reading_of_which_it_is_not_known_when_it_was_is_none_and_comes_back(held: float, good: bool) -> None:
    pool = Pool()
    pool.offers.order("b")
    pool.offer(1)
    order = pool.offers.order("b")
    pool.now += 3.0
    taken = pool.offers.answered("b", answer(order, after=0.0, held=held))
    if good:
        assert taken is not None
        assert pool.offers.back() == []
        return
    assert taken is None
    assert pool.offers.back() == [1]
    # It may be ordered of the same one at once: its switch is there.
    pool.offers.order("b")
    assert pool.offers.wanted(1)
    assert pool.offers.answered("b", answer(order, held=3.0)) is None


def test_the_loop_does_not_wait_while_an_answer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is an answer taken whose order comes back meanwhile."""
    pool = Pool()
    pool.offers.order("b")
    pool.offer(1)
    order = pool.offers.order("b")

    def read(data: bytes, at: float) -> Answer:
        assert pool.offers.back() == []
        pool.now += PATIENCE
        assert pool.offers.back() == [1]
        return answer_of(data, at)

    monkeypatch.setattr("lark_controller.accounting.shares.offers.answer_of", read)
    assert pool.offers.answered("b", answer(order)) is None
    assert pool.offers.back() == []


def test_one_that_asks_again_without_an_answer_gives_its_order_back() -> None:
    pool = Pool()
    pool.offers.order("b")
    pool.offer(1)
    order = pool.offers.order("b")
    assert datapaths(pool.offers.order("b")) == []
    assert pool.offers.back() == [1]
    assert pool.offers.answered("b", answer(order)) is None


def test_what_is_missing_is_not_ordered_of_it_again_for_a_while_but_what_is_not_plain_is() -> None:
    pool = Pool()
    pool.offers.order("b")
    pool.offer(1, 2)
    order = pool.offers.order("b")
    read = answer_bytes(order.token, 0.0, [ReadSwitch(2, 0.0, ())])
    assert pool.offers.answered("b", read) == []
    assert sorted(pool.offers.back()) == [1, 2]
    assert (pool.offers.wanted(1), pool.offers.wanted(2)) == (False, True)
    pool.offers.order("c")
    assert pool.offers.wanted(1)
    pool.offer(1, 2)
    assert datapaths(pool.offers.order("b")) == [2]
    assert datapaths(pool.offers.order("c")) == [1]
    pool.now += UNABLE
    pool.offers.order("b")
    assert pool.offers.wanted(1)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda order: answer_bytes(order.token, 0.0, [ReadSwitch(9, 0.0, (Step(0.0),))]),
        lambda order: answer_bytes(order.token, 0.0, [ReadSwitch(1, 0.0, (Step(0.0),))] * 2),
        lambda order: answer(order, steps=2),
        lambda order: answer(order, after=-1.0),
        lambda order: answer(order, after=0.5, held=0.4),
        lambda order: answer(order, after=float("nan")),
        lambda order: answer(order, held=float("nan")),
        lambda order: answer(order)[:-1],
        lambda order: answer(order) + b"x",
    ],
)
def test_an_answer_that_does_not_fit_its_order_changes_nothing(wrong: object) -> None:
    pool = Pool()
    pool.offers.order("b")
    pool.offer(1)
    order = pool.offers.order("b")
    assert callable(wrong)
    with pytest.raises(GarbledError):
        pool.offers.answered("b", wrong(order))
    assert pool.offers.answered("b", answer(order)) is not None


def test_nothing_is_offered_for_one_that_is_silent() -> None:
    pool = Pool()
    pool.offers.order("b")
    pool.now += SILENCE + 0.1
    assert not pool.offers.wanted(1)
    pool.offers.order("b")
    pool.offer(1)
    pool.offers.order("b")
    # It is reading.
    pool.now += SILENCE + 0.1
    assert pool.offers.wanted(2)


def test_orders_and_offers_have_a_bound() -> None:
    pool = Pool()
    jobs = LONGEST_ORDER // (3 * STATE)
    for reader in range(MOST_READERS):
        pool.offers.order(str(reader))
    assert pool.offers.order("one more").switches == ()
    assert "one more" not in pool.offers._readers
    number = 0
    while pool.offers.wanted(number):
        pool.offer(number, jobs=jobs)
        number += 1
    assert number * switch(0, jobs).size <= MOST_OFFERED + LONGEST_ORDER
    order = pool.offers.order("0")
    assert len(order_bytes(order)) <= LONGEST_ORDER + 100
    assert len(order.switches) == 2
    # Those who have not asked for long make room.
    pool.now += UNABLE + 1.0
    pool.offers.order("one more")
    assert list(pool.offers._readers) == ["one more"]


def test_whatever_comes_in_whatever_order_each_offer_ends_once() -> None:
    """Random questions, answers, repetitions and pauses: each switch that was offered is read or comes back, once."""
    for seed in range(300):
        chance, pool = random.Random(seed), Pool()
        open_, ended, orders = set[int](), list[int](), list[tuple[str, Order]]()
        for number in range(60):
            pool.now += chance.choice([0.0, 0.1, 1.0, PATIENCE])
            match chance.randrange(4):
                case 0:
                    if pool.offers.wanted(number):
                        pool.offer(number)
                        open_.add(number)
                case 1:
                    reader = chance.choice("bcd")
                    orders.append((reader, pool.offers.order(reader)))
                case 2 if orders:
                    reader, order = chance.choice(orders)
                    try:
                        taken = pool.offers.answered(
                            chance.choice([reader, "b"]),
                            answer(order, number - 1, number - 2, held=chance.choice([AT + pool.now - order.at, 0.0])),
                        )
                    except GarbledError:
                        continue
                    ended += [each.ordered.datapath for each in taken or ()]
                case 3:
                    ended += pool.offers.back()
        pool.now += PATIENCE
        ended += pool.offers.back()
        assert sorted(ended) == sorted(open_)
