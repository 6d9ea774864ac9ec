"""The calculations of the pages' scripts, in the browser that runs them."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.fixtures.browser import Reader, Site, reading

pytestmark = pytest.mark.browser


def test_lines_that_differ(reader: Reader, site: Site) -> None:
    """Unchanged and gone lines are the old text, unchanged and new ones the new text, and no difference is shorter."""
    chance = random.Random(5)
    pairs = [("", ""), ("a\n", ""), ("", "a\n"), ("a\nb\nc\n", "a\nc\nd\n"), ("a\n", "a\n")]
    for _ in range(300):
        before = [chance.choice("abcd") for _ in range(chance.randrange(12))]
        after = [line for line in before if chance.random() < 0.7]
        for _ in range(chance.randrange(4)):
            after.insert(chance.randrange(len(after) + 1), chance.choice("abcde"))
        pairs.append(("".join(f"{line}\n" for line in before), "".join(f"{line}\n" for line in after)))
    reader.go("")
    found: list[list[dict[str, Any]]] = reader.page.evaluate(
        "async (pairs) => { const { compare } = await import('/pages/lines.js');"
        " return pairs.map(([before, after]) => compare(before, after)) }",
        pairs,
    )
    for (one, other), lines in zip(pairs, found, strict=True):
        old, new = one.splitlines(), other.splitlines()
        assert [line["text"] for line in lines if line["sign"] != "+"] == old
        assert [line["text"] for line in lines if line["sign"] != "-"] == new
        assert [line["old"] for line in lines if line["old"]] == list(range(1, len(old) + 1))
        assert [line["now"] for line in lines if line["now"]] == list(range(1, len(new) + 1))
        assert sum(line["sign"] == " " for line in lines) == common(old, new)
    ends = reader.page.evaluate(
        "async () => { const { compare } = await import('/pages/lines.js');"
        " return compare('a\\nb', 'a\\nb\\n').map((line) => line.sign + line.text) }"
    )
    assert ends == [" a", "-b\n\\ No newline at end of file", "+b"]


def common(one: list[str], other: list[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for a in one:
        before = row
        row = [0]
        for at, b in enumerate(other):
            row.append(before[at] + 1 if a == b else max(before[at + 1], row[at]))
    return row[-1]


def test_texts_that_differ_in_everything_are_not_compared_line_by_line(reader: Reader, site: Site) -> None:
    reader.go("")
    found = reader.page.evaluate(
        "async () => { const { compare, condensed } = await import('/pages/lines.js');"
        " const many = (word) => [...Array(5000)].map((_, at) => word + at).join('\\n');"
        " const same = many('a').replace('a2500\\n', 'b\\n');"
        " const short = condensed(compare(many('a'), same)).map((line) => line.gap || line.sign);"
        " return [compare(many('a'), many('b')), short] }"
    )
    assert found == [None, [2497, " ", " ", " ", "-", "+", " ", " ", " ", 2496]]


def test_numbers_rates_and_durations_in_words(reader: Reader, site: Site) -> None:
    reader.go("")
    words = reader.page.evaluate(
        "async () => { const { bytes, count, duration, rate } = await import('/pages/format.js'); return {"
        " rate: [null, 0, 0.0004, 0.25, 1, 12.34, 99.96, 250, 999.7, 1000, 12345].map(rate),"
        " bytes: [null, 0, 1, 999, 1000, 123456, 5e9].map(bytes),"
        " count: [null, 0, 1234567].map(count),"
        " duration: [0, 99, 100, 3600, 19200, 86400 * 2.5].map(duration) } }"
    )
    assert words == {
        "rate": ["–", "0 b/s", "400 b/s", "250 kb/s", "1.00 Mb/s", "12.3 Mb/s", "100 Mb/s", "250 Mb/s", "1.00 Gb/s",
                 "1.00 Gb/s", "12.3 Gb/s"],
        "bytes": ["–", "0 B", "1 B", "999 B", "1.00 kB", "123 kB", "5.00 GB"],
        "count": ["–", "0", "1,234,567"],
        "duration": ["0 s", "99 s", "2 min", "60 min", "5 h 20 min", "2 d 12 h"],
    }  # fmt: skip


def test_a_plot_has_a_round_scale_and_marks_at_even_times(reader: Reader, site: Site) -> None:
    reader.go("")
    found = reader.page.evaluate(
        "async () => { const { marks, roundUp } = await import('/pages/plot.js'); return ["
        " [0, 0.3, 1, 1.01, 240, 500, 501].map(roundUp), marks(0, 600000, 6), marks(60001, 70000, 5)] }"
    )
    assert found[0] == [1, 0.5, 1, 2, 250, 500, 1000]
    assert found[1]["step"] == 120000
    assert found[1]["at"][0] % 60000 == 0
    assert found[2] == {"step": 2000, "at": [62000, 64000, 66000, 68000, 70000]}


def test_marks_of_days_stay_at_midnight_where_clocks_are_changed(chromium: Browser, site: Site) -> None:
    with reading(chromium, site, timezone_id="Europe/Berlin") as reader:
        reader.go("")
        days = reader.page.evaluate(
            "async () => { const { marks } = await import('/pages/plot.js');"
            " const { clock, day } = await import('/pages/format.js');"
            " const words = (first, last) => marks(Date.parse(first), Date.parse(last), 7).at"
            "   .map((ms) => `${day(new Date(ms)).slice(5)} ${clock(new Date(ms))}`);"
            " return [words('2026-10-23T12:00Z', '2026-10-28T12:00Z'),"
            "   words('2026-03-27T12:00Z', '2026-03-31T12:00Z')] }"
        )
    assert days[0] == [f"10-{day} 00:00:00" for day in range(24, 29)]
    assert days[1] == [f"03-{day} 00:00:00" for day in range(28, 32)]


@pytest.mark.parametrize("days", [1, 7, 31])
def test_a_plot_as_wide_as_a_phone_has_marks_apart_from_each_other(reader: Reader, site: Site, days: int) -> None:
    reader.go("")
    places = reader.page.evaluate(
        "async (days) => { const { plot } = await import('/pages/plot.js');"
        " const at = (tree) => [tree, ...(tree.children || []).flatMap(at)];"
        " const until = Date.parse('2026-11-27T20:00Z'), from = until - days * 864e5;"
        " const series = [{ name: 'Sent', kind: 'out', points: [[from, 1], [until, 2]] }];"
        " return at(plot({ label: 'x', series, from, until, width: 322 }))"
        "   .filter(({ attributes }) => attributes?.['text-anchor'] === 'middle')"
        "   .map(({ attributes }) => attributes.x) }",
        days,
    )
    assert len(places) >= 2
    assert all(after - before > 45 for before, after in itertools.pairwise(places))


def test_a_bucket_is_read_wherever_it_is_pointed_to(reader: Reader, site: Site) -> None:
    """Also beside its neighbour, whose end is at the time of its beginning; between samples the nearest is read."""
    reader.go("")
    found = reader.page.evaluate(
        "async () => { const { reading } = await import('/pages/plot.js');"
        " const points = [[0, 25, 864e5], [864e5, 25], [864e5, 0, 1728e5], [1728e5, 0], [1728e5 + 1, undefined],"
        "   [1728e5 + 60000, 7], [1728e5 + 70000, 9]];"
        " return [1, 864e5 - 1, 864e5, 15e7, 1728e5 + 20000, 1728e5 + 58000, 1728e5 + 66000].map((at) => {"
        "   const { at: where, words, values } = reading([{ name: 'Sent', points }], at);"
        "   return [where - at, values.get('Sent'), words.length] }) }"
    )
    stretch, moment = len("1970-01-01 00:00:00 to 1970-01-02 00:00:00"), len("1970-01-01 00:00:00")
    assert found == [
        [0, 25, stretch], [0, 25, stretch], [0, 0, stretch], [0, 0, stretch],
        [-19999, None, moment], [2000, 7, moment], [4000, 9, moment],
    ]  # fmt: skip


def test_buckets_of_use_become_rates_over_time(reader: Reader, site: Site) -> None:
    """Idle buckets are 0, what lies before the first row is unknown, and a bucket that not all is counted of is left
    out."""
    reader.go("")
    found = reader.page.evaluate(
        "async () => { const { pointsOf } = await import('/pages/history.js');"
        " const row = (minute, bytes) => ({start: new Date(minute * 60000).toISOString(), bytes_in: bytes,"
        "   bytes_out: 0, wan_bytes_in: 0, wan_bytes_out: bytes / 2});"
        " const rows = [row(2, 7500000), row(2, 7500000), row(4, 15000000), row(5, 9)];"
        " const points = pointsOf([{rows, step: 60}], 0, 330000);"
        " return points.map((each) => [each.at / 60000, each.inward, each.wan_outward]) }"
    )
    assert found == [[2, 2, 1], [3, 2, 1], [3, 0, 0], [4, 0, 0], [4, 2, 1], [5, 2, 1]]


def test_the_bucket_that_is_not_over_is_shown_by_narrower_ones(reader: Reader, site: Site) -> None:
    """On a fresh installation too, whose first minute is in no hour and no day that is over."""
    reader.go("")
    old, fresh = reader.page.evaluate(
        "async () => { const { pointsOf } = await import('/pages/history.js');"
        " const row = (minute, bytes) => ({start: new Date(minute * 60000).toISOString(), bytes_in: bytes,"
        "   bytes_out: 0, wan_bytes_in: 0, wan_bytes_out: 0});"
        " const show = (parts, counted) =>"
        "   pointsOf(parts, 0, counted * 60000).map((each) => [each.at / 60000, each.inward]);"
        " const hours = {rows: [row(60, 450000000), row(120, 9)], step: 3600};"
        " const minutes = {rows: [row(121, 15000000)], step: 60};"
        " return [show([hours, minutes], 122.5), show([{rows: [row(120, 9)], step: 3600}, minutes], 122.5)] }"
    )
    assert old == [[60, 1], [120, 1], [120, 0], [121, 0], [121, 2], [122, 2]]
    assert fresh == [[121, 2], [122, 2]]


def test_the_bucket_in_which_the_installation_began_is_drawn_from_then_on(reader: Reader, site: Site) -> None:
    """Of the time before nothing is known: it is no part of the mean, and has no line."""
    reader.go("")
    hour, day, minute, before = reader.page.evaluate(
        "async () => { const { pointsOf } = await import('/pages/history.js');"
        " const row = (minute, bytes) => ({start: new Date(minute * 60000).toISOString(), bytes_in: bytes,"
        "   bytes_out: 0, wan_bytes_in: 0, wan_bytes_out: 0});"
        " const show = (bucket, step, since, counted) =>"
        "   pointsOf([{rows: [bucket], step}], 0, counted * 60000, since * 60000)"
        "     .map((each) => [each.at / 60000, (each.until ?? 0) / 60000, each.inward]);"
        " return [show(row(60, 37500000), 3600, 115, 120), show(row(1440, 1350000000), 86400, 2520, 2880),"
        "   show(row(60, 7500000), 60, 60.5, 61), show(row(60, 450000000), 3600, 30, 120)] }"
    )
    assert hour == [[115, 120, 1], [120, 0, 1]]
    assert day == [[2520, 2880, 0.5], [2880, 0, 0.5]]
    assert minute == [[60.5, 61, 2], [61, 0, 2]]
    assert before == [[60, 120, 1], [120, 0, 1]]


def test_no_line_is_drawn_through_a_minute_of_which_nothing_is_known(reader: Reader, site: Site) -> None:
    """A page that is opened in the midst of a burst has no sample of the running minute from before."""
    reader.go("")
    late, soon, idle = reader.page.evaluate(
        "async () => { const { joined } = await import('/pages/history.js');"
        " const whole = [{at: 0, inward: 0}, {at: 60000, inward: 0}];"
        " const at = (...times) => times.map((each) => ({at: each, inward: 8}));"
        " const show = (points) => points.map((each) => [each.at, each.inward ?? null]);"
        " return [joined(whole, at(50000, 125000, 135000), 0), joined(whole, at(65000, 75000), 0),"
        "   joined([], at(125000), 0)].map(show) }"
    )
    assert late == [[0, 0], [60000, 0], [60001, None], [125000, 8], [135000, 8]]
    assert soon == [[0, 0], [60000, 0], [65000, 8], [75000, 8]]
    assert idle == [[125000, 8]]


def test_a_rate_of_0_is_no_sample_while_jobs_are_unread(reader: Reader, site: Site) -> None:
    reader.go("")
    found = reader.page.evaluate(
        "async () => { const { rememberKnown, samplesOf } = await import('/pages/samples.js');"
        " const pause = () => new Promise((done) => setTimeout(done, 5));"
        " for (const [rate, unread] of [[8, 0], [0, 3], [0, 3], [7, 3], [0, 0]]) {"
        "   rememberKnown('group x', {inward: rate}, unread); await pause(); }"
        " return samplesOf('group x').map((each) => each.inward) }"
    )
    assert found == [8, 7, 0]


def test_what_has_not_changed_keeps_its_element(reader: Reader, site: Site) -> None:
    reader.go("")
    kept = reader.page.evaluate(
        "async () => { const { h, patch } = await import('/pages/dom.js');"
        " const root = document.createElement('div'); let clicks = [];"
        " const draw = (rows, note) => patch(root, note && h('div', {class: 'note'}, note),"
        "   h('div', {class: 'form'}, h('input', {value: 'a'})),"
        "   h('ul', {}, rows.map((row) => {"
        "     const click = () => clicks.push(row + rows.length); return h('li', {key: row, on: {click}}, row) })));"
        " draw(['a', 'b', 'c']); const [form, list] = root.children; form.firstChild.value = 'typed';"
        " const b = list.children[1]; draw(['c', 'b', '<b>'], 'note'); b.click();"
        " return [form === root.children[1], form.firstChild.value, b === root.querySelector('ul').children[1], clicks,"
        "   root.querySelector('ul').textContent, root.querySelectorAll('b').length] }"
    )
    assert kept == [True, "typed", True, ["b3"], "cb<b>", 0]


def test_rows_are_kept_from_one_painting_to_the_next_whatever_their_keys(reader: Reader, site: Site) -> None:
    """Groups that stand in one line of the policy have one rule; only the group tells their drops apart."""
    reader.go("")
    rule = "the group's queue or meter is full (policy line 9)"
    drop = {"packets_per_second": 1, "line": 9, "direction": "out", "job": None, "datapath": "00000000000000c0",
            "kind": "group", "rule": rule, "destination": "the WAN", "at": "2026-11-24T00:00:00Z"}  # fmt: skip
    drops = [drop | {"group": each, "source": f"jobs of the group {each}"} for each in ("a", "b", "c")]
    keys, texts = reader.page.evaluate(
        "async (drops) => { const { h, patch } = await import('/pages/dom.js');"
        " const { dropTable } = await import('/pages/views/drops.js'); const root = document.createElement('div');"
        " const keys = dropTable(drops).children[0].children.at(-1).children.map((row) => row.key); const texts = [];"
        " for (const row of [...'one', ...'two']) {"
        "   patch(root, h('ul', {}, [...'xxyx'].map((key, at) => h('li', { key }, row + at))));"
        "   texts.push(root.textContent); }"
        " return [keys, texts] }",
        drops,
    )
    assert len(set(keys)) == 3
    assert texts == ["".join(f"{letter}{at}" for at in range(4)) for letter in "onetwo"]
