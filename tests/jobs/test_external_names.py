"""Names of external addresses: which are accepted, and that no two users have the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.jobs.external_names import LONGEST_PAUSE, FullName, form, label, pause_after, zone

ZONES = {"example.org": 30, "jobs.example.org": 60}
BY_OWNER = form("{name}.{owner}.jobs.example.org", ZONES)


def test_a_name_is_made_by_its_form_in_the_longest_zone() -> None:
    assert BY_OWNER.full("Web", "alice") == FullName("web.alice.jobs.example.org", "jobs.example.org", 60)
    free = form("{name}.x.Example.org.", ZONES)
    assert free.full("a", "Alice Smith") == FullName("a.x.example.org", "example.org", 30)


@pytest.mark.parametrize("word", ["", "-a", "a-", "a.b", "a b", "é", "\u212a", "_a", "a" * 64, "*", "a\nb"])
def test_what_is_no_label(word: str) -> None:
    with pytest.raises(ValueError, match="is no label of a name; accepted: 1 to 63 letters"):
        label(word)


@pytest.mark.parametrize("owner", ["Alice", "cms_prod", "a.b", "", "x" * 64, "alice@example"])
def test_an_owner_that_is_no_label_has_no_name(owner: str) -> None:
    with pytest.raises(ValueError, match="the owner, is no label of a name"):
        BY_OWNER.full("web", owner)


@pytest.mark.parametrize(
    "text",
    [
        "web.jobs.example.org",
        "{owner}.{name}.jobs.example.org",
        "{name}.{name}.example.org",
        "{name}.{owner}.{owner}.example.org",
        "{name}-{owner}.example.org",
        "{name}.{group}.example.org",
        "{name}..example.org",
        "{name}.elsewhere.org",
        "{name}.badexample.org",
        "{name}",
        "{name}." + "a." * 125 + "example.org",
    ],
)
def test_what_is_no_form(text: str) -> None:
    with pytest.raises(ValueError, match=r"accepted: \{name\}, \{owner\} or not"):
        form(text, ZONES)


def test_what_is_no_zone() -> None:
    assert zone("Jobs.Example.org.") == "jobs.example.org"
    for text in ("", ".", "a..b", "-a.b", "*.a", "a b"):
        with pytest.raises(ValueError, match="is no name of a zone"):
            zone(text)


def test_a_name_that_is_too_long() -> None:
    long = form("{name}." + "a." * 90 + "{owner}.example.org", ZONES)
    with pytest.raises(ValueError, match="at most 253"):
        long.full("a" * 63, "b" * 63)


WORDS = st.text("abAB01-._", min_size=1, max_size=8)


@given(WORDS, WORDS, WORDS, WORDS)
def test_no_two_owners_have_the_same_name(name: str, owner: str, other_name: str, other: str) -> None:
    try:
        names = BY_OWNER.full(name, owner), BY_OWNER.full(other_name, other)
    except ValueError:
        return
    assert (names[0] != names[1]) or owner == other


def test_pauses_grow_and_are_bounded() -> None:
    pauses = [pause_after(attempts) for attempts in range(1, 40)]
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (2.0, LONGEST_PAUSE)
