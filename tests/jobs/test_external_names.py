"""Names of external addresses: which are accepted, and that no two users have the same."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lark_controller.jobs.external_names import (
    LONGEST_PAUSE,
    WANTED,
    FullName,
    NameState,
    form,
    label,
    pause_after,
    zone,
)

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


def labels(last: int) -> str:
    return ".".join(["b" * 63] * 3 + ["b" * last])


def test_a_name_a_form_and_a_zone_may_have_253_letters() -> None:
    assert zone(labels(61)) == labels(61)
    assert len(labels(61)) == 253
    with pytest.raises(ValueError, match="is no name of a zone"):
        zone(labels(62))
    longest = f"{{name}}.{labels(42)}.example.org"
    assert form(longest, ZONES).text == longest
    with pytest.raises(ValueError, match="is in no zone of"):
        form(f"{{name}}.{labels(43)}.example.org", ZONES)
    made = form(f"{{name}}.{'c' * 63}.{'c' * 63}.{'c' * 50}.example.org", ZONES)
    assert len(made.full("n" * 62, "o").text) == 253
    with pytest.raises(ValueError, match="a name of 254 letters; at most 253 are accepted"):
        made.full("n" * 63, "o")


@pytest.mark.parametrize(
    ("call", "shown"),
    [
        (lambda: label("_" * 80), "_" * 64),
        (lambda: zone("_" * 80), "_" * 64),
        (lambda: form("_" * 80, ZONES), "_" * 64),
        (lambda: BY_OWNER.full("web", "_" * 80), "_" * 64),
        (lambda: form("{name}." + "a." * 40 + "net", ZONES), ("{name}." + "a." * 40)[:64]),
    ],
)
def test_a_word_that_is_refused_is_shown_by_its_first_sixty_four_letters(
    call: Callable[[], object], shown: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(repr(shown))}"):
        call()


def test_the_zones_that_there_are_stand_in_the_mistake() -> None:
    with pytest.raises(ValueError, match=r"is in no zone of external\.zones \(none\);"):
        form("{name}.a.org", {})
    many = {f"z{number}.org": 5 for number in range(10)}
    eight = ", ".join(f"z{number}.org" for number in range(8))
    with pytest.raises(ValueError, match=rf"\({re.escape(eight)}\);"):
        form("{name}.a.org", many)


def test_states_of_a_name_are_stored_by_these_words() -> None:
    words = ["none", "pending", "registered", "withheld", "removing", "removed"]
    assert [state.value for state in NameState] == words
    assert [state for state in NameState if state in WANTED] == [NameState(word) for word in words[1:4]]


def test_a_label_may_have_blanks_around_it() -> None:
    assert label(" Web-1 ") == "web-1"
    assert label("a" * 63) == "a" * 63
