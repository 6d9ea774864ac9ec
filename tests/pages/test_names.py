"""Names and links of the pages: each leads to what it names, and each user is told apart."""

from __future__ import annotations

import itertools
import re

import pytest
from playwright.sync_api import expect

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.runs import RunKey
from tests.fixtures.browser import Reader, Site, panel
from tests.fixtures.controllers import until
from tests.fixtures.service import Json

pytestmark = pytest.mark.browser

# It looks like the id of a job.
DATAPATH = 0x1234567890ABCDEF


def job_like_a_datapath(site: Site) -> Json:
    """A job whose id begins with four zeros, as most datapath ids do."""
    for number in itertools.count(1):
        name, slot = f"submit.example#777.{number}#1790000000", "slot1_55@worker1.example"
        if RunKey(name, 1790000000, slot).id.startswith("0000"):
            ads = site.ads("zed", number=55).replace("submit.example#155.0#1790000000", name)
            answer = site.lark.post(ads, 5.0)
            assert answer.status == 201, answer
            assert isinstance(answer.body, dict)
            return answer.body
    raise AssertionError


def test_events_lead_to_the_job_or_switch_of_any_id(reader: Reader, site: Site, network: FakeNetwork) -> None:
    job = job_like_a_datapath(site)
    assert job["id"].startswith("0000")
    switch = FakeSwitch(DATAPATH, {1: "eth0"})
    for _ in range(2):
        network.call(switch.connect(*site.lark.service.controller.openflow_addresses[0]))
        until(lambda: is_connected(site))
        network.run(switch.disconnect)
        until(lambda: not is_connected(site))
    page = reader.log_in(site.reader, "#/events")
    registered = page.get_by_role("row", name=re.compile("register 155.0")).get_by_role("link", name="155.0")
    expect(registered).to_have_attribute("href", f"#/jobs/{job['id']}")
    row = page.locator("tbody tr", has_text="fake 1234567890abcdef").first
    expect(row.get_by_role("link")).to_have_attribute("href", f"#/switches/{DATAPATH:016x}")
    # An id in a text, whose kind nobody tells, is looked up.
    reader.expected = ("404",)
    for address, title in ((job["id"], "Job 155.0 of zed"), (f"{DATAPATH:016x}", "Switch fake 1234567890abcdef")):
        page.goto(f"{site.url}/pages/#/find/{address}")
        expect(page.get_by_role("heading", name=title, exact=True, level=1)).to_be_visible()


def is_connected(site: Site) -> bool:
    """True once the controller takes the switch to be connected."""
    found = [each for each in site.lark.get("/v1/switches")["switches"] if each["datapath"] == f"{DATAPATH:016x}"]
    return bool(found and found[0]["connected"])


def test_a_cluster_leads_to_its_jobs(reader: Reader, site: Site) -> None:
    for number in (56, 57):
        ads = site.ads("erin", number=number).replace(f"#{100 + number}.0#", f"#9007.{number}#")
        ads = ads.replace(f"ClusterId = {100 + number}\nProcId = 0", f"ClusterId = 9007\nProcId = {number}")
        assert site.lark.post(ads, 5.0).status == 201
    page = reader.log_in(site.reader, "#/")
    reader.expected = ("404", "409")
    for word in ("9007", "submit#9007"):
        page.get_by_role("searchbox").fill(word)
        page.get_by_role("searchbox").press("Enter")
        expect(page.get_by_role("heading", name="Jobs", exact=True, level=1)).to_be_visible()
        expect(page.locator("tbody").get_by_role("link", name=re.compile(r"^9007\."))).to_have_text(
            ["9007.57", "9007.56"]
        )
        expect(page.get_by_label("Cluster")).to_have_value(word)
        page.goto(f"{site.url}/pages/#/")


def test_an_owner_of_two_domains_has_the_rates_of_both(reader: Reader, site: Site) -> None:
    jobs = []
    for domain in ("a.example", "b.example"):
        answer = site.lark.post(site.ads("dave").replace("dave@example", f"dave@{domain}"), 5.0)
        assert answer.status == 201, answer
        jobs.append(answer.body)
    total = itertools.count(1)

    def both() -> bool:
        megabytes = next(total)
        for job in jobs:
            site.passed(job, megabytes, 0)
        return len(site.lark.get("/v1/rates?by=user")["rates"]) == 2

    until(both)
    page = reader.log_in(site.reader, "#/users/dave")
    expect(page.get_by_text("The sum of dave@a.example, dave@b.example.")).to_be_visible()
    expect(panel(page, "Live jobs").locator("tbody tr")).to_have_count(2)
    expect(page.get_by_role("heading", name="Over time, dave@b.example")).to_be_visible()
    page.get_by_role("link", name="dave@b.example").click()
    expect(page.get_by_role("heading", name="User dave@b.example", exact=True)).to_be_visible()
    expect(page.get_by_text("Of dave@b.example alone.")).to_be_visible()
    expect(panel(page, "Live jobs").locator("tbody tr")).to_have_count(1)
    both()
    page.goto(f"{site.url}/pages/#/")
    row = page.get_by_role("link", name="dave@a.example")
    while not row.is_visible():
        both()
        page.wait_for_timeout(200)
    expect(row).to_have_attribute("href", "#/users/dave?user=dave%40a.example")
