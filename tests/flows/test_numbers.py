"""Sets of job numbers: as Python's own, with the next ones in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lark_controller.flows.numbers import NumberSet

NUMBERS = st.one_of(st.integers(1, 3_000), st.integers(1, 2**63 - 1))


@given(st.lists(st.tuples(st.booleans(), NUMBERS)), st.none() | NUMBERS, st.booleans())
def test_a_set_has_the_numbers_of_one_of_python_in_order(
    changes: list[tuple[bool, int]], after: int | None, down: bool
) -> None:
    found, oracle = NumberSet(), set[int]()
    for adds, number in changes:
        (found.add if adds else found.discard)(number)
        (oracle.add if adds else oracle.discard)(number)
    copied = found.copy()
    copied.update([5, 5, 6])
    assert (set(found), len(found)) == (oracle, len(oracle))
    assert (set(copied), len(copied)) == (oracle | {5, 6}, len(oracle | {5, 6}))
    assert all(number in found for number in oracle)
    wanted = [
        each for each in sorted(oracle, reverse=down) if after is None or (each < after if down else each > after)
    ]
    assert list(found.after(after, down=down)) == wanted
