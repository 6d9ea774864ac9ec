"""The difference of two policy texts, judged by patch(1)."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lark_controller.policies.compare import MOST_CHANGES, compare

_TEXT = st.lists(st.sampled_from("abcd"), max_size=14).map(lambda lines: "".join(f"{line}\n" for line in lines))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(old=_TEXT, new=_TEXT)
def test_patch_makes_the_new_text_out_of_the_old_one(tmp_path: Path, old: str, new: str) -> None:
    made, difference = tmp_path / "made", tmp_path / "difference"
    made.write_text(old)
    found = compare(old, new)
    difference.write_text(f"--- made\n+++ made\n{found.diff}")
    if found.diff:
        subprocess.run(["patch", "--silent", made, difference], check=True, timeout=20)
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
