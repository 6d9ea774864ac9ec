"""Sums side by side in one number: each is calculated as it would be alone."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from lark_controller.accounting.lanes import fraction, is_bounded, packed, share, unpacked
from lark_controller.accounting.usage import MOST, Usage

EDGES = st.sampled_from([0, 1, 2, MOST - 1, MOST, MOST + 1, 2**63, 2**64 - 1])
VALUES = st.one_of(EDGES, st.integers(0, 2**64 - 1), st.integers(0, 10**6))
USES = st.tuples(*(VALUES for _ in Usage._fields)).map(lambda values: Usage(*values))
SMALL = st.tuples(*(st.integers(0, 3) for _ in Usage._fields)).map(lambda values: Usage(*values))


@given(USES)
def test_sums_come_out_as_they_were_put_in_up_to_the_most(use: Usage) -> None:
    assert unpacked(packed(use)) == use.kept()


@given(st.lists(USES, max_size=20))
def test_sums_of_many_are_those_of_each_up_to_the_most(some: list[Usage]) -> None:
    whole = Usage(*(sum(values) for values in zip(*some, strict=True))) if some else Usage()
    assert unpacked(sum(map(packed, some))) == whole.kept()


@given(USES, st.integers(1, 900_000_001), st.data())
@example(Usage(*[2**64 - 1] * len(Usage._fields)), 900_000_001, None)
def test_a_share_is_rounded_down_as_a_division_of_whole_numbers(
    use: Usage, whole: int, data: st.DataObject | None
) -> None:
    for part in (0, 1, whole - 1, whole) if data is None else (data.draw(st.integers(0, whole)),):
        expected = Usage(*(value * part // whole for value in use))
        assert share(packed(use), fraction(part, whole)) == packed(expected)


@given(st.one_of(USES, SMALL))
def test_a_part_above_its_whole_is_seen_in_whichever_it_is(use: Usage) -> None:
    assert is_bounded(packed(use)) == use.is_bounded()
    assert is_bounded(packed(use.bounded()))
    for name in ("bytes_in", "bytes_out", "packets_in", "packets_out"):
        more = use.bounded()._replace(**{name: 4, f"wan_{name}": 5})
        assert not is_bounded(packed(more))
    for name in ("bytes_in", "bytes_out"):
        more = use.bounded()._replace(**{f"transfer_{name}": 4, f"transfer_wan_{name}": 5})
        assert not is_bounded(packed(more))
