"""The operator's pages in a real browser: by keyboard, on a phone, in the dark, for screen readers."""

from __future__ import annotations

import json
import re
from io import BytesIO

import pytest
from PIL import Image
from playwright.sync_api import Browser, Locator, Route, expect

from tests.fixtures.browser import (
    POLICY,
    VIEWS,
    Reader,
    Site,
    panel,
    reading,
)

pytestmark = pytest.mark.browser

# The colour of panels in the dark.
PANEL = (0x17, 0x1C, 0x21)


def test_the_way_by_keyboard_alone(reader: Reader, site: Site) -> None:
    job = site.run("alice")
    page = reader.page
    page.goto(f"{site.url}/pages/")
    expect(page.get_by_label("Token")).to_be_focused()
    page.keyboard.type(site.reader)
    page.keyboard.press("Enter")
    expect(page.locator(".figures")).to_be_visible()
    page.reload()
    expect(page.locator(".figures")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    assert page.locator(".skip").bounding_box()["x"] >= 0  # type: ignore[index]  # it is visible now
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator(".figure").first).to_be_focused()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Jobs", level=1)).to_be_focused()
    expect(page.get_by_role("link", name="101.0")).to_be_visible()
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "101.0":
            break
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Job 101.0 of alice")).to_be_focused()
    assert page.url.endswith(f"#/jobs/{job['id']}")


def test_every_view_has_one_heading_named_fields_and_tables_with_heads(reader: Reader, site: Site) -> None:
    job = site.run("alice")
    page = reader.log_in(site.reader)
    for where in [*VIEWS, f"jobs/{job['id']}", "users/alice", "groups/group_cms", "switches/worker1"]:
        reader.go(f"#/{where}")
        expect(page.get_by_text("Loading…")).to_have_count(0)
        assert page.locator("h1").count() == 1, where
        unnamed = (
            "[...document.querySelectorAll('input, select, textarea')].filter(e => !e.labels.length && !e.ariaLabel)"
        )
        assert page.evaluate(f"{unnamed}.length") == 0, where
        bare = (
            "[...document.querySelectorAll('table')].filter(t => !t.caption || !t.querySelector('thead th[scope=col]'))"
        )
        assert page.evaluate(f"{bare}.length") == 0, where


def test_on_a_phone_in_the_dark_nothing_is_wider_than_the_screen(phone: Reader, site: Site) -> None:
    job = site.run("alice")
    site.run("bob", 0xE3, seconds=0)
    long = "u" * 120
    site.run(long, more=f'User = "{long}@{"d" * 100}"')
    page = phone.log_in(site.operator)
    for where in [*VIEWS, f"jobs/{job['id']}", "users/alice", f"users/{long}", "groups/group_cms", "switches/worker1",
                  f"explain?src={job['id']}&dst=10.64.0.9"]:  # fmt: skip
        phone.go(f"#/{where}")
        expect(page.locator("h1")).to_be_visible()
        expect(page.get_by_text(re.compile("Loading…|Asking the switch"))).to_have_count(0)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, where
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 20, 24)"


def test_on_a_phone_all_views_are_in_sight(phone: Reader, site: Site) -> None:
    page = phone.log_in(site.reader)
    names = page.get_by_role("navigation").get_by_role("link")
    assert names.count() >= len(VIEWS)
    for each in names.all():
        box = each.bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390


def test_on_a_phone_a_table_shows_that_it_goes_on(phone: Reader, site: Site) -> None:
    site.run("alice")
    page = phone.log_in(site.reader, "#/jobs")
    table = page.get_by_role("region", name="Jobs")
    expect(table.get_by_role("row")).to_have_count(2)
    assert table.evaluate("it => it.scrollWidth - it.clientWidth") > 20
    assert not _shaded(table, left=True)
    assert _shaded(table, left=False)
    table.evaluate("it => it.scrollLeft = it.scrollWidth")
    assert _shaded(table, left=True)
    assert not _shaded(table, left=False)


def test_on_a_phone_links_and_reservations_are_lists_with_all_that_is_said_of_them(phone: Reader, site: Site) -> None:
    job = site.run("alice")
    declared = "  hosts:\n    default: {switch: rack1, capacity: 1Gbit}\n"
    site.lark.put_policy(POLICY.replace("  hosts:\n", declared))
    wish = json.dumps({"source": job["id"], "destination": "files.example", "rate": 60})
    assert site.lark.request("POST", "/v1/reservations", wish, content="application/json").status == 201
    page = phone.log_in(site.reader, "#/reservations")
    for name, rows, words in (("Links", 8, "Best effort"), ("Reservations", 1, "By")):
        table = page.get_by_role("region", name=name)
        expect(table.locator("tbody tr")).to_have_count(rows)
        assert table.evaluate("it => it.scrollWidth - it.clientWidth") <= 0
        # The heads stand before the cells, and over none of them.
        apart = "it => new Set([...it.querySelectorAll('[data-head]')].map(e => getComputedStyle(e).paddingLeft)).size"
        assert table.evaluate(apart) == 1
        cell = table.locator(f"[data-head='{words}']").first
        expect(cell).to_be_visible()
        assert cell.evaluate("it => getComputedStyle(it, '::before').content") == f'"{words}"'


def test_on_a_phone_events_have_their_whole_text(phone: Reader, reader: Reader, site: Site) -> None:
    job = site.run("alice")
    said = "WAN port wan-fast of core1 is down; nothing takes its place, and of the next it is not known, either"

    def longer(route: Route) -> None:
        found = route.fetch()
        answer = found.json()
        answer["entries"] = [{**each, "detail": said} for each in answer["entries"]]
        route.fulfill(response=found, json=answer)

    for one in (phone, reader):
        one.page.route("**/v1/audit?*", longer)
        page = one.log_in(site.reader)
        for where in ("", f"jobs/{job['id']}"):
            one.go(f"#/{where}")
            detail = panel(page, "Events").locator(".reason", has_text=said).first
            expect(detail).to_be_visible()
            # At a desk it is one line, with the rest where the pointer is.
            cut = detail.evaluate("it => it.scrollWidth > it.clientWidth")
            assert (cut, detail.get_attribute("title")) == (one is reader, said), where


def _shaded(table: Locator, *, left: bool) -> bool:
    """True if the table's edge is of another colour than the panel around it."""
    picture = Image.open(BytesIO(table.screenshot())).convert("RGB")
    x = 2 if left else picture.width - 3
    colours = {picture.getpixel((x, y)) for y in range(3, picture.height - 3)}
    return PANEL not in colours


def test_a_light_page_for_who_prefers_one(chromium: Browser, site: Site) -> None:
    with reading(chromium, site, color_scheme="light") as made:
        made.log_in(site.reader)
        assert made.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 245, 247)"
