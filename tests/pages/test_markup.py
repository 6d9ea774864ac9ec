"""Markup that others wrote is text in the pages, and the browser itself refuses what would not be."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from tests.fixtures.browser import Reader, Site

pytestmark = pytest.mark.browser


def test_markup_in_an_ad_is_text_wherever_it_is_shown(reader: Reader, site: Site) -> None:
    evil = "<img src=x onerror=document.title='taken'><script>document.title='taken'</script>"
    ads = site.ads("alice", more=f'Cmd = "{evil}"').replace('"alice', f'"{evil}')
    answer = site.lark.post(ads)
    assert answer.status == 201, answer
    job, owner = answer.body["id"], answer.body["owner"]
    assert owner == evil
    site.lark.request("POST", f"/v1/jobs/{job}/forgery", evil)
    page = reader.log_in(site.reader)
    places = ["", "jobs", f"jobs/{job}", "switches/worker1", "events", f"explain?src={job}&dst=192.0.2.1"]
    for where in places:
        reader.go(f"#/{where}")
        expect(page.locator("main").get_by_text("<script>").first).to_be_attached()
        expect(page.locator("main").get_by_text("taken").first).to_be_attached()
        assert page.locator("main img, main script").count() == 0
        assert "taken" not in page.title().replace(evil, "")
    reader.go("#/jobs")
    page.get_by_role("link", name=evil).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(f"User {evil}")
    expect(page.locator("tbody tr").first).to_be_visible()
    reader.go("#/%3Cimg%20src=x%3E/<script>")
    expect(page.get_by_role("heading", level=1)).to_have_text("Not found")


def test_the_browser_itself_refuses_markup_and_foreign_scripts(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader)
    reader.expected = ("Content Security Policy", "requires 'Trusted")
    for attempt in (
        "document.body.innerHTML = '<p>x</p>'",
        "document.body.insertAdjacentHTML('beforeend', '<p>x</p>')",
        "document.createElement('script').textContent = 'window.x = 1'",
    ):
        assert page.evaluate(
            f"() => {{ try {{ {attempt}; return 'done' }} catch (error) {{ return error.name }} }}"
        ) in (
            "TypeError",
            "EvalError",
        )
    page.evaluate(
        "() => { const s = document.createElement('p'); s.setAttribute('style', 'color: red'); s.id = 'styled';"
        " document.body.append(s) }"
    )
    assert page.evaluate("getComputedStyle(document.getElementById('styled')).color") != "rgb(255, 0, 0)"
