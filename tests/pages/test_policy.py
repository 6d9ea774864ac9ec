"""The operator's pages in a real browser: a policy is planned, then put in force."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import expect

from tests.fixtures.browser import POLICY, Reader, Site, panel

pytestmark = pytest.mark.browser


def test_a_mistake_in_a_policy_is_shown_with_its_line(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.operator, "#/policy")
    text = page.get_by_label("The policy in force")
    text.fill(POLICY.replace("- slice: {by: Owner}", "- slise: {by: Owner}"))
    page.get_by_role("button", name="Check").click()
    mistakes = page.locator(".mistakes")
    expect(mistakes).to_contain_text("Line 14")
    expect(mistakes).to_contain_text("slise")
    expect(page.get_by_role("status")).to_contain_text("1 mistake found.")
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    page.get_by_role("button", name="Line 14").click()
    chosen = "const t = document.activeElement; t.value.slice(t.selectionStart, t.selectionEnd)"
    assert page.evaluate(chosen) == "  - slise: {by: Owner}"


def test_a_policy_is_put_in_force_only_after_its_plan_was_seen(reader: Reader, site: Site) -> None:
    job = site.run("carol")
    page = reader.log_in(site.operator, "#/policy")
    apply, text = page.get_by_role("button", name="Apply"), page.locator("textarea")
    expect(page.get_by_text("Version 1 by policy file")).to_be_visible()
    text.fill(POLICY.replace('"mallory"', '"carol"'))
    expect(apply).to_be_disabled()
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("No mistake was found.").last).to_be_visible()
    # What a valid policy refuses all the same is beside that.
    expect(page.get_by_text("topology.hosts has no default")).to_be_visible()
    expect(apply).to_be_disabled()
    page.get_by_role("button", name="Plan").click()
    expect(panel(page, "What would change").get_by_role("row", name="1 1 is blocked")).to_contain_text("of carol")
    folded = page.get_by_role("row", name=re.compile(f"{job['cluster']}.0 carol is blocked"))
    expect(folded).to_be_hidden()
    page.get_by_role("heading", name="Jobs (1)").click()
    expect(folded).to_be_visible()
    expect(page.locator(".diff .removed").first).to_contain_text("13 -   - block: {when: 'Owner == \"mallory\"'}")
    expect(page.locator(".diff .added").first).to_contain_text("13 +   - block: {when: 'Owner == \"carol\"'}")
    page.get_by_role("heading", name=re.compile("Flows")).click()
    expect(page.get_by_role("row", name=re.compile("worker1 "))).to_be_visible()
    expect(apply).to_be_enabled()
    text.press_sequentially("#")
    expect(apply).to_be_disabled()
    text.press("Backspace")
    expect(apply).to_be_enabled()
    apply.click()
    expect(page.get_by_text("Version 2 is in force.").last).to_be_visible()
    expect(page.get_by_text("Version 2 by operator")).to_be_visible()
    assert site.lark.get("/v1/policy")["text"] == POLICY.replace('"mallory"', '"carol"')
    assert "operator" in [entry["actor"] for entry in site.lark.get("/v1/audit?subject=policy")["entries"]]


def test_a_plan_for_a_policy_that_was_replaced_since_cannot_be_applied(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.operator, "#/policy")
    page.locator("textarea").fill(POLICY + "# mine\n")
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("button", name="Apply")).to_be_enabled()
    # The page does not hear of it: what it knows of the policy stays what it was.
    known = site.lark.get("/v1/policy")
    page.route("**/v1/policy", lambda it: it.fulfill(json=known) if it.request.method == "GET" else it.continue_())
    reader.expected = ("412",)
    site.lark.put_policy(POLICY + "# theirs\n")
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("alert")).to_contain_text("version 2 by test is in force now")
    assert site.lark.get("/v1/policy")["text"] == POLICY + "# theirs\n"
    page.unroute("**/v1/policy")
    expect(page.get_by_text("Version 2 by test has come into force. Your text is still here")).to_be_visible()
    expect(page.locator("textarea")).to_have_value(POLICY + "# mine\n")
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()


def test_another_version_with_the_same_text_is_shown_as_what_it_is(reader: Reader, site: Site) -> None:
    """Both changes were made between two questions of the page, or while its tab was hidden."""
    page = reader.log_in(site.operator, "#/policy")
    expect(page.get_by_text("Version 1 by policy file")).to_be_visible()
    page.locator("textarea").fill(POLICY + "# mine\n")
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("button", name="Apply")).to_be_enabled()
    known = site.lark.get("/v1/policy")
    page.route("**/v1/policy", lambda it: it.fulfill(json=known))
    site.lark.put_policy(POLICY + "# theirs\n")
    site.lark.put_policy(POLICY)
    page.unroute("**/v1/policy")
    expect(page.get_by_text("Version 3 by test, in force since")).to_be_visible()
    expect(page.locator(".note.good")).to_have_text("Version 3 by test has come into force.")
    expect(panel(page, "History").get_by_role("row", name=re.compile(r"^3 .* test In force"))).to_be_visible()
    # The plan is for this text.
    expect(page.get_by_role("button", name="Apply")).to_be_enabled()


def test_what_was_written_is_there_after_other_pages_and_other_texts(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.operator, "#/policy")
    text, mine = page.locator("textarea"), POLICY.replace('"mallory"', '"carol"')
    expect(text).to_have_value(POLICY)
    text.fill(mine)
    reader.go("#/jobs")
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    reader.go("#/policy")
    expect(page.get_by_text("This is the text that you wrote before, not in force.").last).to_be_visible()
    expect(text).to_have_value(mine)
    # Another text in its place takes nothing away either.
    reader.go("#/policy?back=1")
    expect(text).to_have_value(POLICY)
    take_back = page.get_by_role("button", name="Take back the text that I wrote")
    take_back.click()
    expect(text).to_have_value(mine)
    expect(take_back).to_have_count(0)
    page.get_by_role("button", name="Discard the changes").click()
    expect(text).to_have_value(POLICY)
    reader.go("#/jobs")
    reader.go("#/policy")
    expect(text).to_have_value(POLICY)
    expect(take_back).to_have_count(0)


def test_a_reader_may_plan_but_not_apply(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/policy")
    page.locator("textarea").fill(POLICY + "# mine\n")
    page.get_by_role("button", name="Plan").click()
    expect(page.get_by_role("heading", name="What would change")).to_be_visible()
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    expect(page.get_by_text("Applying needs a token with the scope operate.")).to_be_visible()


def test_a_history_of_many_versions_says_which_are_shown(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/policy")
    expect(panel(page, "History").locator(".aside")).to_have_text("1 version")
    for number in range(2, 23):
        site.lark.put_policy(f"{POLICY}# {number}\n")
    reader.go("#/policy?again=1")
    expect(panel(page, "History").locator(".aside")).to_have_text("versions 22 to 3")
    panel(page, "History").get_by_role("link", name="Next page").click()
    expect(panel(page, "History").locator(".aside")).to_have_text("2 versions")


def test_who_changed_the_policy_when_and_the_way_back(reader: Reader, site: Site) -> None:
    changed = POLICY.replace('"mallory"', '"carol"')
    site.lark.put_policy(changed)
    page = reader.log_in(site.operator, "#/policy")
    history = panel(page, "History")
    expect(history.get_by_role("row", name=re.compile(r"^2 .* test In force"))).to_be_visible()
    expect(history.get_by_role("row", name=re.compile("^1 .* policy file Go back to it"))).to_be_visible()
    history.get_by_role("link", name="1", exact=True).click()
    expect(page.get_by_role("heading", name="Policy, version 1")).to_be_visible()
    expect(page.locator(".diff .removed")).to_contain_text("mallory")
    # It looks like one line of a text, and not like the banner of a controller that is gone.
    assert page.locator(".diff .removed").evaluate("line => getComputedStyle(line).borderBottomWidth") == "0px"
    expect(page.locator(".diff .added")).to_contain_text("carol")
    page.get_by_role("link", name="Go back to this version").click()
    expect(page.locator("textarea")).to_have_value(POLICY)
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    page.get_by_role("button", name="Plan").click()
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("Version 3 by operator")).to_be_visible()
    expect(history.get_by_role("row", name=re.compile("^1 .* policy file Same text"))).to_be_visible()
    assert site.lark.get("/v1/policy")["text"] == POLICY
