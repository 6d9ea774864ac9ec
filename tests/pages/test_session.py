"""The operator's pages in a real browser: log-in and log-out, and that a page follows the controller."""

from __future__ import annotations

import re
import time

import pytest
from playwright.sync_api import expect
from sqlalchemy import text

from lark_controller.api.instances import Identity
from lark_controller.cluster import silence
from tests.fixtures.browser import POLICY, VIEWS, Reader, Site

pytestmark = pytest.mark.browser


def test_a_wrong_token_and_one_that_may_not_read_are_told_why(reader: Reader, site: Site) -> None:
    reader.expected = ("401",)
    page = reader.page
    page.goto(f"{site.url}/")
    assert page.url.endswith("/pages/")
    for token, reason in (("lark_wrong", "The token is not known."), (site.hook, "These pages need read or operate.")):
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Log in").click()
        expect(page.get_by_role("alert")).to_contain_text(reason)
        assert page.evaluate("sessionStorage.length") == 0
    page.get_by_label("Token").fill(site.reader)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_a_refusal_is_gone_while_the_next_token_is_looked_at(reader: Reader, site: Site) -> None:
    """So that what is shown answers the token that was given last, and the same reason twice is said twice."""
    page = reader.go("")

    def gives() -> None:
        page.get_by_label("Token").fill(site.hook)
        page.get_by_role("button", name="Log in").click()

    gives()
    expect(page.get_by_role("alert")).to_contain_text("These pages need read or operate.")
    page.evaluate("ask = fetch; fetch = (...all) => new Promise((then) => { go = () => then(ask(...all)); }); null")
    gives()
    expect(page.get_by_role("alert")).to_have_count(0)
    page.evaluate("go()")
    expect(page.get_by_role("alert")).to_contain_text("These pages need read or operate.")
    assert page.evaluate("sessionStorage.length") == 0


@pytest.mark.parametrize("where", [*VIEWS, "jobs/0123456789abcdef", "users/alice", "groups/default", "switches/core1"])
def test_no_view_shows_anything_before_the_log_in(reader: Reader, site: Site, where: str) -> None:
    asked = []
    reader.page.on("request", lambda request: asked.append(request.url) if "/v1/" in request.url else None)
    reader.go(f"#/{where}")
    expect(reader.page.get_by_role("heading", name="Log in")).to_be_visible()
    assert reader.page.get_by_role("navigation").count() == 0
    assert asked == []


def test_signing_out_forgets_the_token_in_every_tab(reader: Reader, site: Site) -> None:
    first = reader.log_in(site.reader)
    second = reader.new_tab()
    second.goto(f"{site.url}/pages/#/groups")
    expect(second.get_by_role("heading", name="Groups")).to_be_visible()
    first.get_by_role("button", name="Sign out").click()
    for page in (first, second):
        expect(page.get_by_role("heading", name="Log in")).to_be_visible()
        assert page.evaluate("sessionStorage.length + document.cookie.length + localStorage.length") == 0
    first.reload()
    expect(first.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_token_that_is_taken_away_ends_the_log_in(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    reader.expected = ("401",)
    tokens = site.lark.directory / "tokens.yaml"
    tokens.write_text(re.sub(r"(?m)^reader: .*\n", "", tokens.read_text()))
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("The token is not known.")


def test_the_overview_shows_the_controllers_where_there_are_several(
    reader: Reader, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second one gives no further sign of life, and is not to be lost for that before the test asks for it.
    monkeypatch.setattr(silence, "AWAY_SECONDS", 3600.0)
    page = reader.log_in(site.reader)
    expect(page.get_by_role("heading", name="Events")).to_be_visible()
    assert page.get_by_role("heading", name="Controllers").count() == 0
    store = site.lark.service.store
    store.instances.register(Identity("b1", "lark2", "https://lark2.example:8443", "0.2.0"))
    rows = page.get_by_role("table", name="Controllers").get_by_role("row")
    expect(rows).to_have_count(3)
    expect(rows.nth(1)).to_contain_text("active")
    expect(rows.nth(1)).to_contain_text("since")
    # It has not said which tables it knows.
    expect(rows.nth(2)).to_contain_text(re.compile("lark2.*standby.*cannot take over.*none"))
    copied = text(f"UPDATE instances SET copied_at = {time.time() - 36_000.0} WHERE id = 'b1'")
    store._database.write(lambda connection: connection.execute(copied), unguarded=True)
    expect(rows.nth(2)).to_contain_text(re.compile("10 h.* old"))
    monkeypatch.setattr(silence, "AWAY_SECONDS", 0.0)
    expect(rows.nth(2)).to_contain_text(re.compile("lark2.*lost"))
    expect(page.get_by_text(re.compile("Last takeover: .*, first"))).to_be_visible()


def test_the_overview_follows_jobs_that_come_and_go(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader)
    enforced = page.locator(".figure", has_text="Jobs enforced").locator(".value")
    expect(enforced).to_have_text("0")
    expect(page.locator(".figure", has_text="Switches in sync").locator(".value")).to_have_text("3 of 4")
    expect(page.get_by_role("row", name=re.compile("worker3.*away"))).to_be_visible()
    page.evaluate("window.before = true")
    job = site.run("alice")
    expect(enforced).to_have_text("1")
    expect(page.get_by_role("row", name=re.compile(r"group_cms not all is kept 1\b"))).to_be_visible()
    expect(page.get_by_role("row", name=re.compile(f"register {job['cluster']}.0"))).to_be_visible()
    site.run("dave", 0xE3, seconds=0)
    expect(page.get_by_role("row", name=re.compile("pending dave worker3.example"))).to_be_visible()
    site.lark.end(job)
    expect(enforced).to_have_text("0")
    assert page.evaluate("window.before"), "the page was loaded anew"


def test_a_controller_that_is_away_is_said_and_its_return_is_noticed(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    reader.expected = ("Failed to load resource",)
    page.route("**/v1/**", lambda route: route.abort())
    expect(page.get_by_text("Not current", exact=True)).to_be_visible()
    expect(page.get_by_role("status")).to_contain_text("The controller does not answer")
    expect(page.get_by_role("heading", name="Groups")).to_be_visible()
    banner = page.get_by_role("region", name="Not current")
    expect(banner).to_contain_text(re.compile(r"What you see is \d+ s old, of \d\d:\d\d:\d\d\."))
    age = re.compile(r"is (\d+) s old")
    first = int(age.findall(banner.inner_text())[0])
    # A look may come later than a second after the one before.
    later = "|".join(str(first + seconds) for seconds in range(2, 60))
    expect(banner).to_contain_text(re.compile(rf"is ({later}) s old"))
    page.goto(f"{site.url}/pages/#/jobs")
    expect(banner).to_contain_text("There is nothing to show yet.")
    page.unroute("**/v1/**")
    banner.get_by_role("button", name="Ask now").click()
    expect(page.locator(".fresh")).to_have_text("Live", timeout=30_000)
    expect(banner).to_have_count(0)


def test_a_controller_that_hangs_is_noticed_before_the_request_is_given_up(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/drops")
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    page.route("**/v1/**", lambda route: None)
    banner = page.get_by_role("region", name="Not current")
    expect(banner).to_contain_text(re.compile(r"does not answer\. What you see is \d+ s old"), timeout=15_000)
    expect(page.locator(".fresh")).to_have_text("Not current")
    # Requests that nobody has handled go on.
    page.unroute("**/v1/**")
    expect(page.locator(".fresh")).to_have_text("Live")
    expect(banner).to_have_count(0)


# Goes to another view and answers how that looks a moment later, when nothing can have been answered or given up.
_ON = """
where => new Promise((done) => {
  addEventListener("hashchange", () => setTimeout(() => done(["h1", ".fresh", ".gone"].map(
    (each) => document.querySelector(each)?.textContent || "")), 100), { once: true });
  location.hash = where;
})
"""
_HEAR = """
heard = [];
new MutationObserver(() => heard.push(said.textContent)).observe(said, { childList: true }); null
"""


def test_what_is_known_of_a_controller_that_hangs_stays_over_a_change_of_view(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/drops")
    expect(page.locator(".fresh")).to_have_text("Live")
    page.evaluate(_HEAR)
    page.route("**/v1/**", lambda route: None)
    banner = page.get_by_role("region", name="Not current")
    expect(banner).to_contain_text("does not answer", timeout=15_000)
    nothing = "The controller has not answered yet. There is nothing to show yet."
    assert page.evaluate(_ON, "#/switches") == ["Switches", "Not current", nothing]
    assert page.evaluate(_ON, "#/jobs") == ["Jobs", "Not current", nothing]
    # Nothing is asked there, and nothing is out of date; what is known holds for the view after it.
    assert page.evaluate(_ON, "#/explain") == ["Explain", "", ""]
    assert page.get_by_role("status").inner_text() == ""
    assert page.evaluate(_ON, "#/groups") == ["Groups", "Not current", nothing]
    page.unroute("**/v1/**")
    expect(page.locator(".fresh")).to_have_text("Live")
    expect(banner).to_have_count(0)
    late = "Not current: The controller has not answered yet."
    assert page.evaluate("heard") == [late, "", late, "Live again."]
    assert page.evaluate(_ON, "#/switches")[2] == ""


def test_why_a_controller_is_away_is_said_until_it_answers(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/drops")
    expect(page.locator(".fresh")).to_have_text("Live")
    reader.expected = ("Failed to load resource",)
    page.route("**/v1/**", lambda route: route.abort())
    expect(page.locator(".fresh")).to_have_text("Not current")
    page.unroute("**/v1/**")
    page.route("**/v1/**", lambda route: None)
    heading, fresh, banner = page.evaluate(_ON, "#/switches")
    assert (heading, fresh) == ("Switches", "Not current")
    said = "The controller does not answer. There is nothing to show yet. Asking again…"
    assert banner.startswith(said)
    # An answer that is late as well says nothing else.
    page.wait_for_timeout(6_500)
    expect(page.get_by_role("region", name="Not current")).to_contain_text(said)
    # Where the answer to the first question fails, the view keeps its name.
    page.unroute("**/v1/**")
    expect(page.locator(".fresh")).to_have_text("Live")
    page.route("**/v1/**", lambda route: route.abort())
    reader.go("#/groups")
    expect(page.get_by_role("alert")).to_contain_text("The controller does not answer")
    expect(page.get_by_role("heading", level=1)).to_have_text("Groups")


def test_the_first_answer_of_a_view_may_be_late_as_well(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/drops")
    expect(page.locator(".fresh")).to_have_text("Live")
    page.route("**/v1/**", lambda route: None)
    assert page.evaluate(_ON, "#/switches") == ["Switches", "", ""]
    banner = page.get_by_role("region", name="Not current")
    expect(banner).to_have_text(re.compile("has not answered yet. There is nothing to show yet.$"), timeout=15_000)
    expect(page.locator(".fresh")).to_have_text("Not current")
    expect(page.get_by_role("status")).to_have_text("Not current: The controller has not answered yet.")
    page.unroute("**/v1/**")
    expect(page.locator(".fresh")).to_have_text("Live")
    # Of a view in several parts one may be late alone.
    page.route("**/v1/audit?*", lambda route: None)
    page.evaluate(_ON, "#/")
    expect(banner).to_have_text(re.compile("has not answered yet. A part of this view is still missing.$"))
    page.unroute("**/v1/audit?*")
    expect(banner).to_have_count(0)


def test_an_explanation_is_as_current_as_any_other_view(reader: Reader, site: Site) -> None:
    alice = site.run("alice")
    page = reader.log_in(site.reader, f"#/explain?src={alice['id']}&dst=192.0.2.1")
    expect(page.locator(".verdict")).to_contain_text("forwarded")
    expect(page.locator(".fresh")).to_have_text("Live")
    site.lark.put_policy(POLICY.replace('"mallory"', '"alice"'))
    expect(page.locator(".verdict")).to_contain_text("dropped")
    reader.expected = ("Failed to load resource",)
    page.route("**/v1/**", lambda route: route.abort())
    banner = page.get_by_role("region", name="Not current")
    expect(banner).to_contain_text(re.compile(r"What you see is \d+ s old"))
    expect(page.locator(".verdict")).to_contain_text("dropped")
    # The question can be put again, where nothing was answered yet as well.
    reader.go(f"#/explain?src={alice['id']}&dst=192.0.2.2")
    expect(page.get_by_role("alert")).to_contain_text("The controller does not answer")
    expect(page.get_by_label("To")).to_have_value("192.0.2.2")
    page.unroute("**/v1/**")
    banner.get_by_role("button", name="Ask now").click()
    expect(page.locator(".verdict")).to_contain_text("dropped")


def test_what_is_not_asked_for_any_more_does_not_grow_old(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/groups/group_cms")
    expect(page.locator(".fresh")).to_have_text("Live")
    with page.expect_response("**/v1/usage?*bucket=hour*"):
        page.get_by_role("button", name="Day", exact=True).click()
    page.evaluate("{ const now = Date.now; Date.now = () => now() + 40000; }")
    banner = page.get_by_role("region", name="Not current")
    with page.expect_response("**/v1/groups"), page.expect_response("**/v1/jobs?*"):
        pass
    expect(banner).to_have_count(0)
    expect(page.locator(".fresh")).to_have_text("Live")


@pytest.mark.parametrize("where", ["nowhere", "jobs/0123456789abcdef", "policy/9"])
def test_what_is_not_there_is_not_out_of_date(reader: Reader, site: Site, where: str) -> None:
    reader.expected = ("404",)
    page = reader.log_in(site.reader, f"#/{where}")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    assert page.get_by_text("Not current").count() == 0
    assert page.locator(".fresh").count() == 0


def test_a_controller_that_stands_by_refuses_nothing(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    reader.expected = ("503",)
    words = "This controller stands by; a at http://a, the last that was active, is not reached."
    problem = {"title": "This controller stands by", "status": 503, "detail": words, "type": "urn:lark:problem:standby"}
    page.route("**/v1/*", lambda route: route.fulfill(status=503, json=problem))
    expect(page.get_by_role("region", name="Not current").locator("strong")).to_have_text(words)


def test_one_part_that_fails_is_said_though_others_are_answered(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    reader.expected = ("503",)
    problem = {"title": "Service Unavailable", "status": 503, "detail": "All threads are busy."}
    page.route("**/v1/audit?*", lambda route: route.fulfill(status=503, json=problem))
    banner = page.get_by_role("region", name="Not current")
    expect(banner).to_contain_text("The controller refuses: All threads are busy.")
    with page.expect_response("**/v1/overview"):
        pass
    expect(page.get_by_text("Not current", exact=True)).to_be_visible()
    page.unroute("**/v1/audit?*")
    banner.get_by_role("button", name="Ask now").click()
    expect(banner).to_have_count(0)


def test_a_hidden_page_asks_nothing(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    hide = "Object.defineProperty(document, 'hidden', {value: %s, configurable: true});"
    fire = "document.dispatchEvent(new Event('visibilitychange'))"
    page.evaluate(hide % "true" + fire)
    expect(page.get_by_text("Paused", exact=True)).to_be_visible()
    page.evaluate(hide % "false" + fire)
    expect(page.get_by_text("Live", exact=True)).to_be_visible()
    # Nor does it say that it is hidden when it is shown again, and is not answered.
    page.evaluate(hide % "true" + fire)
    expect(page.get_by_text("Paused", exact=True)).to_be_visible()
    page.route("**/v1/**", lambda route: None)
    page.evaluate(hide % "false" + fire)
    expect(page.get_by_text("Paused", exact=True)).to_have_count(0)
    banner = page.get_by_role("region", name="Not current")
    expect(banner).to_contain_text(re.compile(r"does not answer\. What you see is \d+ s old"), timeout=15_000)


def test_what_has_the_focus_keeps_it_while_the_page_goes_on(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/switches")
    field = page.get_by_label("Name, host, role or state")
    field.fill("work")
    expect(page.get_by_role("row")).to_have_count(4)
    with page.expect_response("**/v1/switches"):
        pass
    expect(field).to_be_focused()
    expect(field).to_have_value("work")
