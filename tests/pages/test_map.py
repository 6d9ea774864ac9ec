"""The map of the network in a real browser: with three workers, and with a thousand."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.fixtures.browser import POLICY, WORKER2, Reader, Site, panel

pytestmark = pytest.mark.browser


def test_three_workers_and_who_reaches_whom(reader: Reader, site: Site) -> None:
    for owner in ("alice", "alice", "bob"):
        site.run(owner)
    site.run("mallory", WORKER2)
    page = reader.log_in(site.reader, "#/map")
    picture = page.get_by_role("img", name="The WAN, 1 core switch, 3 workers")
    expect(picture.locator("a", has_text="worker1")).to_contain_text("in sync, 3 jobs")
    expect(picture.locator("a", has_text="worker3")).to_contain_text("away")
    expect(picture.locator("g", has_text="WAN")).to_contain_text("of 1.00 Gb/s")
    table = panel(page, "Who reaches whom")
    expect(table.get_by_role("row", name=re.compile("alice 2 .*all .*all .*none .*none"))).to_be_visible()
    expect(table.get_by_role("row", name=re.compile("bob 1 .*some .*none – .*none"))).to_be_visible()
    expect(table.get_by_role("row", name=re.compile("mallory 1 .*none .*none .*none –"))).to_be_visible()
    site.lark.put_policy(POLICY.replace("  - slice: {by: Owner}\n", ""))
    expect(table.get_by_role("row", name=re.compile("alice 2 .*all .*all .*all .*none"))).to_be_visible()
    picture.locator("a", has_text="worker2").click()
    expect(page.get_by_role("heading", name="Switch worker2")).to_be_visible()


def test_a_thousand_workers_are_one_picture_of_the_same_size(reader: Reader, site: Site) -> None:
    lines = "".join(
        f'  many{number}: {{datapath: "{0x1000 + number:016x}", role: edge, host: many{number}.example}}\n'
        for number in range(1000)
    )
    site.lark.put_policy(POLICY.replace("policies:\n", lines + "policies:\n", 1))
    found = site.lark.get("/v1/map")
    assert len(found["edges"]) == 12
    assert sum(each["switches"] for each in found["rest"]) == 1003 - 12
    page = reader.log_in(site.reader, "#/map")
    picture = page.get_by_role("img", name="The WAN, 1 core switch, 1,003 workers")
    expect(picture.locator("a", has_text="workers more").first).to_be_visible()
    assert picture.locator("a").count() <= 1 + 12 + 3
