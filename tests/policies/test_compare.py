"""The difference of two policy texts, judged by patch(1)."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lark_controller.policies.compare import MOST_CHANGES, compare

_TEXT = st.lists(st.sampled_from("abcd"), max_size=14).map(lambda lines: "".join(f"{line}\n" for line in lines))
# The same, and some without their last newline.
_ANY_END = st.tuples(_TEXT, st.booleans()).map(lambda made: made[0].removesuffix("\n") if made[1] else made[0])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=_ANY_END, new=_ANY_END)
def test_patch_makes_the_new_text_out_of_the_old_one(tmp_path: Path, old: str, new: str) -> None:
    made, difference = tmp_path / "made", tmp_path / "difference"
    made.write_text(old)
    found = compare(old, new)
    difference.write_text(f"--- made\n+++ made\n{found.diff}")
    if found.diff:
        subprocess.run(["patch", "--silent", made, difference], check=True, timeout=20)
    assert bool(found.diff) == (old != new)
    assert (made.read_text() if made.exists() else "") == new
    assert found.added - found.removed == len(new.splitlines()) - len(old.splitlines())


@pytest.mark.parametrize("end", ["", "\n"])
def test_a_change_is_shown_with_the_lines_around_it(end: str) -> None:
    old = "\n".join("abcdefghij") + end
    found = compare(old, old.replace("e", "E"))
    assert found.diff == "@@ -2,7 +2,7 @@\n b\n c\n d\n-e\n+E\n f\n g\n h\n"
    assert (found.added, found.removed) == (1, 1)
    assert compare(old, old).diff == ""


def test_texts_that_differ_much_are_replaced_in_one_piece() -> None:
    count = MOST_CHANGES
    old, new = ("\n".join(f"{name}{at}" for at in range(count)) for name in "ab")
    found = compare(old, new)
    assert (found.added, found.removed) == (count, count)
    assert found.diff.splitlines()[0] == f"@@ -1,{count} +1,{count} @@"


def common(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence, by the textbook's table."""
    row = [0] * (len(other) + 1)
    for mine in one:
        before = row[:]
        for at, theirs in enumerate(other):
            row[at + 1] = before[at] + 1 if mine == theirs else max(row[at], before[at + 1])
    return row[-1]


@given(old=_TEXT, new=_TEXT)
def test_no_line_is_shown_as_changed_that_need_not_be(old: str, new: str) -> None:
    before, after = old.splitlines(), new.splitlines()
    found = compare(old, new)
    kept = common(before, after)
    assert (found.removed, found.added) == (len(before) - kept, len(after) - kept)


def hunks(diff: str) -> list[tuple[tuple[int, int], tuple[int, int], list[str]]]:
    found: list[tuple[tuple[int, int], tuple[int, int], list[str]]] = []
    for line in diff.splitlines():
        if line.startswith("@@"):
            old, new = re.fullmatch(r"@@ -(\d+,\d+) \+(\d+,\d+) @@", line).groups()  # type: ignore[union-attr]
            (a, b), (c, d) = (map(int, each.split(",")) for each in (old, new))
            found.append(((a, b), (c, d), []))
        else:
            found[-1][2].append(line)
    return found


@given(old=_TEXT, new=_TEXT)
def test_each_hunk_stands_where_it_says_in_both_texts(old: str, new: str) -> None:
    before, after = old.splitlines(), new.splitlines()
    for (x, width), (y, height), lines in hunks(compare(old, new).diff):
        # An empty range is named by the line before it.
        start, top = x - (width > 0), y - (height > 0)
        assert [line[1:] for line in lines if line[0] in " -"] == before[start : start + width]
        assert [line[1:] for line in lines if line[0] in " +"] == after[top : top + height]
        assert any(line[0] != " " for line in lines)


@pytest.mark.parametrize(("between", "count"), [(1, 1), (6, 1), (7, 2), (20, 2)])
def test_changes_near_each_other_share_a_hunk(between: int, count: int) -> None:
    middle = [f"m{at}" for at in range(between)]
    old, new = "\n".join(["a", *middle, "b", "c", "d", "e", "f"]), "\n".join(["A", *middle, "B", "c", "d", "e", "f"])
    found = hunks(compare(old, new).diff)
    assert len(found) == count
    assert found[-1][2][-3:] == [" c", " d", " e"]
    if count == 2:
        assert found[0][2] == ["-a", "+A", " m0", " m1", " m2"]
        assert found[1][2][:3] == [f" m{at}" for at in range(between - 3, between)]


@pytest.mark.parametrize(("most", "in_one_piece"), [(4, False), (3, True)])
def test_as_many_changes_as_allowed_are_shown_apart(
    most: int, in_one_piece: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lark_controller.policies.compare.MOST_CHANGES", most)
    found = compare("a\nx\nb\n", "A\nx\nB\n")
    assert (found.added, found.removed) == ((3, 3) if in_one_piece else (2, 2))


@pytest.mark.parametrize(
    ("old", "new", "diff"),
    [
        ("", "a\n", "@@ -0,0 +1,1 @@\n+a\n"),
        ("a\n", "", "@@ -1,1 +0,0 @@\n-a\n"),
        ("a\nb", "a\nb\n", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+b\n"),
        ("a\nb", "a\nb", ""),
        ("", "", ""),
        ("a\n", "a\n\n", "@@ -1,1 +1,2 @@\n a\n+\n"),
    ],
)
def test_the_ends_of_texts(old: str, new: str, diff: str) -> None:
    assert compare(old, new).diff == diff
