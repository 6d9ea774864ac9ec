"""Packets that are dropped, in a real browser: their view, the overview, and jobs that are blocked."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Route, expect

from tests.fixtures.browser import WORKER2, Reader, Site, panel
from tests.fixtures.service import Json

pytestmark = pytest.mark.browser


@contextmanager
def sending(site: Site, *wishes: tuple[Json, str]) -> Iterator[None]:
    """Jobs send to addresses without end."""
    enough = threading.Event()

    def send() -> None:
        while not enough.wait(0.02):
            for job, address in wishes:
                site.sends(job, address, 2)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()


def test_what_is_dropped_now_and_by_which_rule(reader: Reader, site: Site) -> None:
    alice, bob = site.run("alice", WORKER2), site.run("bob")
    page = reader.log_in(site.reader, "#/drops")
    expect(page.get_by_text("Nothing is dropped now.")).to_be_visible()
    with sending(site, (bob, "198.51.100.7"), (bob, alice["addresses"][0]["address"])):
        expect(page.get_by_role("row", name=re.compile(r"of bob the WAN wan drop when"))).to_be_visible()
        expect(page.get_by_role("row", name=re.compile(r"of bob jobs outside the slice .*alice|bob"))).to_have_count(2)
        expect(page.locator(".sum")).to_contain_text("of 1 job")
        page.get_by_role("link", name="(policy line 15)").click()
        expect(page.get_by_role("heading", name="Policy", exact=True, level=1)).to_be_visible()
        reader.go("#/")
        expect(page.locator(".note")).to_contain_text("packets a second of 1 job are dropped now")
        row = panel(page, "Dropped now").get_by_role("row", name=re.compile("101|102"))
        row.get_by_role("link").first.click()
        expect(page.get_by_role("heading", name=re.compile(r"Job \d+\.0 of bob"))).to_be_visible()
        # At the head of the job's page, above all else.
        note = page.locator(".note")
        fast = r"Dropped now: (about )?\d+(\.\d)? packets a second"
        expect(note).to_contain_text(re.compile(fast + r" to the WAN, by wan drop when .*\(policy line 15\)"))
        others = r' to jobs outside the slice "bob", by slice .*\(policy line 14\)'
        expect(note).to_contain_text(re.compile(fast + others))
        expect(page.locator(".note, .panel").first).to_contain_text("Dropped now")
        page.goto(f"{site.url}/pages/#/jobs/{alice['id']}")
        expect(page.get_by_role("heading", name=re.compile(r"Job \d+\.0 of alice"))).to_be_visible()
        expect(page.get_by_role("heading", name="Decision")).to_be_visible()
        expect(note).to_have_count(0)
    reader.go(f"#/jobs/{bob['id']}")
    expect(page.get_by_role("heading", name="Decision")).to_be_visible()
    expect(note).to_have_count(0)
    reader.go("#/drops")
    expect(page.get_by_text("Nothing is dropped now.")).to_be_visible()


def test_the_sum_of_the_drops_is_that_of_the_rows_below_it(reader: Reader, site: Site) -> None:
    """Sum and rows are of one answer: the overview's own sum is another reading, made a moment before."""
    drop = {"packets_per_second": 21.0, "line": None, "direction": "out", "job": None, "group": "group_cms", "name": "",
            "datapath": "00000000000000c0", "kind": "group", "source": "jobs of the group group_cms", "owner": "",
            "destination": "the WAN", "host": "", "at": "2026-11-24T00:00:00Z", "estimated": False}  # fmt: skip
    rows = 2

    def before(route: Route) -> None:
        found = route.fetch()
        drops = {"jobs": 3, "packets_per_second": 28.0, "uncounted": 0, "unread": 0, "cores_unread": 1}
        route.fulfill(response=found, json={**found.json(), "drops": drops})

    def after(route: Route) -> None:
        most = int(parse_qs(urlsplit(route.request.url).query)["limit"][0])
        drops = [drop | {"rule": f"rule {at}"} for at in range(rows)][:most]
        if drops:
            drops[0] |= {"direction": "in", "source": drop["destination"], "destination": drop["source"]}
        answer = {"drops": drops, "jobs": rows, "packets_per_second": 21.0 * rows, "away": 0}
        route.fulfill(json=answer | {"uncounted": 0, "unread": 0})

    reader.page.route("**/v1/overview", before)
    reader.page.route("**/v1/drops?*", after)
    page = reader.log_in(site.reader)
    dropped = panel(page, "Dropped now")
    expect(dropped.locator("tbody tr")).to_have_count(2)
    expect(dropped.locator("tbody tr").nth(0)).to_contain_text("the WANjobs of the group group_cms")
    expect(dropped.locator("tbody tr").nth(1)).to_contain_text("jobs of the group group_cmsthe WAN")
    expect(page.get_by_text("Not known: what is dropped of groups at 1 core switch not looked at")).to_be_visible()
    note = page.locator(".note")
    expect(note).to_have_text("42 packets a second of 2 jobs are dropped now. All drops")
    expect(dropped.locator(".aside")).to_have_text("All drops")
    rows = 9
    expect(note).to_have_text("189 packets a second of 9 jobs are dropped now. All drops")
    expect(dropped.locator("tbody tr")).to_have_count(5)
    expect(dropped.locator(".aside")).to_have_text("The 5 largestAll drops")
    rows = 5
    expect(dropped.locator(".aside")).to_have_text("All drops")
    # What has been read since may be that nothing is dropped any more.
    rows = 0
    expect(dropped).to_have_count(0)
    expect(note).to_have_count(0)
    page.unroute_all(behavior="ignoreErrors")


def test_a_job_that_is_blocked_is_not_shown_as_well(reader: Reader, site: Site) -> None:
    job = site.run("mallory")
    assert job["state"] == "enforced"
    page = reader.log_in(site.reader)
    expect(page.locator(".figures")).to_contain_text("1 blocked")
    expect(page.locator(".figure", has_text="Jobs enforced").locator(".value")).to_have_text("0")
    site.run("alice")
    expect(page.locator(".figure", has_text="Jobs enforced").locator(".value")).to_have_text("1")
    # One without a network, whose rules nobody enforces, is counted apart; so is one that is blocked and waits.
    assert site.lark.post(site.ads("carol").replace('"ovs_bridge"', '"none"'), 5.0).body["state"] == "enforced"
    assert site.lark.post(site.ads("mallory", 0xE3), 0).status == 201
    figure = page.locator(".figure", has_text="Jobs enforced")
    expect(figure.locator(".beside")).to_have_text("1 blocked, 1 pending, 1 without a network")
    expect(figure.locator(".value")).to_have_text("1")
    reader.go("#/jobs")
    row = page.get_by_role("row", name=re.compile("mallory")).filter(has_text="worker1")
    expect(row.locator(".state")).to_have_text("blocked")
    expect(row.locator(".state")).to_have_class(re.compile("bad"))
    page.get_by_label("State").select_option("Blocked")
    # Without the one that waits.
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr .state")).to_have_text("blocked")
    reader.go(f"#/jobs/{job['id']}")
    expect(page.locator(".title .state")).to_have_text("blocked")


def test_what_is_not_read_is_not_said_to_be_nothing(reader: Reader, site: Site) -> None:
    """After a start of the controller each view with rates says of how many jobs they are not known."""
    site.run("alice")

    def after_a_start(route: Route) -> None:
        found = route.fetch()
        answer = found.json()
        where = answer["drops"] if "ready" in answer else answer
        where["unread"] = 3
        route.fulfill(response=found, json=answer)

    for each in ("overview", "drops?*", "groups", "map", "rates?*"):
        reader.page.route(f"**/v1/{each}", after_a_start)
    page = reader.log_in(site.reader, "#/drops")
    expect(page.get_by_text("Of what is known, nothing is dropped now.")).to_be_visible()
    for view in ("drops", "", "groups", "map", "groups/group_cms", "users/alice"):
        reader.go(f"#/{view}")
        expect(
            page.get_by_text(re.compile("Not known: .* 3 jobs whose counters are not read twice yet"))
        ).to_be_visible()

    def unread(route: Route) -> None:
        found = route.fetch()
        answer = found.json()
        for each in answer["jobs"]:
            each["usage"] = {"unread": True, "rate": {"outward": 0.0, "inward": 0.0}}
        route.fulfill(response=found, json=answer)

    page.route("**/v1/jobs?*", unread)
    reader.go("#/jobs")
    expect(page.get_by_role("row", name=re.compile("alice")).get_by_text("not known")).to_have_count(2)
    page.unroute_all()
    reader.go("#/drops")
    expect(page.get_by_text("Nothing is dropped now.")).to_be_visible()


def test_a_wan_port_that_is_down_is_named_where_drops_are(reader: Reader, site: Site) -> None:
    job = site.run("alice")
    page = reader.log_in(site.reader)
    down = [{"port": "wan-fast", "switches": ["core1"], "jobs": 1}]

    def with_down(route: Route) -> None:
        found = route.fetch()
        answer = found.json()
        (answer["drops"] if isinstance(answer["drops"], dict) else answer)["down"] = down
        route.fulfill(response=found, json=answer)

    def unreached(route: Route) -> None:
        found = route.fetch()
        parties = [
            each | {"wan": "none", "wan_reason": "WAN port wan-fast is down"} for each in found.json()["parties"]
        ]
        route.fulfill(response=found, json=found.json() | {"parties": parties})

    page.route(re.compile("/v1/(overview|drops)"), with_down)
    page.route("**/v1/map", unreached)
    port = "WAN port wan-fast of core1 is down, and nothing takes its place: what "
    for where in ("#/", "#/drops"):
        reader.go(where)
        expect(page.locator(".note")).to_contain_text(f"{port}1 job would send by it is dropped, and not counted.")
    expect(page.get_by_text("Of what is known, nothing is dropped now.")).to_be_visible()
    reader.go(f"#/jobs/{job['id']}")
    expect(page.locator(".note").first).to_contain_text(f"{port}it sends to the WAN is dropped")
    reader.go("#/map")
    expect(page.get_by_text("alice to the WAN: none, as WAN port wan-fast is down.")).to_be_visible()
