"""Cookies bit by bit: what an operator reads in a dump, and what one masked request chooses."""

from __future__ import annotations

import pytest

from lark_controller.flows import cookies
from lark_controller.flows.cookies import Category, cookie, count_cookie, counted_by, is_ours, of_job, parse

LARGEST = (1 << 40) - 1


@pytest.mark.parametrize(
    ("category", "number", "value"),
    [
        (Category.LOCAL_BASE, 0, 0x1A4B_01_0000000000),
        (Category.SWITCH, 0, 0x1A4B_02_0000000000),
        (Category.JOB, 5, 0x1A4B_03_0000000005),
        (Category.SLICE, LARGEST, 0x1A4B_04_FFFFFFFFFF),
        (Category.WAN, 1, 0x1A4B_05_0000000001),
        (Category.CLASSIFY, 2, 0x1A4B_06_0000000002),
        (Category.CONNECTIVITY, 0, 0x1A4B_07_0000000000),
        (Category.GROUP, 63, 0x1A4B_08_000000003F),
        (Category.REACTIVE, 9, 0x1A4B_09_0000000009),
        (Category.LEARNED, 4095, 0x1A4B_0A_0000000FFF),
        (Category.COUNT, 8, 0x1A4B_0B_0000000008),
        (Category.MARKER, 3, 0x1A4B_0C_0000000003),
        (Category.EXTERNAL, 1, 0x1A4B_0D_0000000001),
    ],
)
def test_a_cookie_is_owner_category_and_number(category: Category, number: int, value: int) -> None:
    assert cookie(category, number) == value
    assert parse(value) == (0x1A4B, category, number)
    assert is_ours(value) == (category is not Category.LOCAL_BASE)
    chosen, mask = cookies.OURS
    assert value & mask == chosen
    assert not is_ours(value ^ 1 << 48)
    assert (value ^ 1 << 48) & mask != chosen


@pytest.mark.parametrize("number", [-1, LARGEST + 1])
def test_a_number_has_forty_bits(number: int) -> None:
    with pytest.raises(ValueError, match=f"cookie number {number} does not fit 40 bits"):
        cookie(Category.JOB, number)


def test_the_flows_of_one_job_are_chosen_by_two_masks() -> None:
    (own, whole), (counts, all_kinds) = of_job(5)
    assert (own, whole) == (cookie(Category.JOB, 5), (1 << 64) - 1)
    for kind in range(8):
        assert count_cookie(5, kind) & all_kinds == counts
        assert counted_by(count_cookie(5, kind)) == (5, kind)
        for other in (4, 6):
            assert count_cookie(other, kind) & all_kinds != counts
    assert count_cookie(5) == 0x1A4B_0B_0000000028
    for value in (own, cookie(Category.SWITCH), 0, count_cookie(5) ^ 1 << 60):
        assert counted_by(value) is None
