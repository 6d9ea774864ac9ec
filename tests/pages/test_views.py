"""The operator's pages in a real browser: the contents of each view."""

from __future__ import annotations

import json
import re
import time
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Route, expect

from lark_controller.accounting.readings import TransferCounts
from lark_controller.api.usage import TransferReport
from lark_controller.rest.schemas.times import iso
from tests.fixtures.browser import (
    CORE,
    POLICY,
    WORKER1,
    WORKER2,
    Reader,
    Site,
    panel,
)
from tests.fixtures.service import wait

pytestmark = pytest.mark.browser


def test_a_job_with_its_decision_flows_and_ads(reader: Reader, site: Site) -> None:
    job = site.run("bob")
    page = reader.log_in(site.reader, f"#/jobs/{job['id']}")
    expect(page.get_by_role("heading", name="Job 101.0 of bob")).to_be_visible()
    expect(page.locator(".title .state")).to_have_text("enforced")
    decision = panel(page, "Decision")
    expect(decision).to_contain_text('WAN rule 1 (line 15): Owner == "bob" (drop, except 192.0.2.1)')
    expect(decision).to_contain_text('Owner = "bob"')
    dropped = "Its packets to and from the WAN are dropped, except 192.0.2.1. It may call and be called."
    expect(decision.locator("p")).to_contain_text(dropped)
    flow = page.get_by_role("row", name=re.compile("0 admit 200 .*nw_src=10.64.0.*installed"))
    expect(flow).to_have_count(0)
    page.get_by_role("heading", name="Flows").click()
    expect(flow).to_be_visible()
    expect(panel(page, "Switches").get_by_text("worker1 has confirmed")).to_be_visible()
    page.get_by_text("Job ad").click()
    expect(page.locator("pre", has_text='GlobalJobId = "submit.example#101.0#1790000000"')).to_be_visible()
    site.lark.end(job)
    expect(page.locator(".title .state")).to_have_text("ended")
    expect(page.locator("pre", has_text="GlobalJobId")).to_be_visible()
    # Another policy changes nothing of that.
    version = site.lark.get("/v1/policy")["version"]
    site.lark.put_policy(POLICY.replace('Owner == "bob"', 'Owner == "nobody"'))
    page.reload()
    then = decision.get_by_role("link", name=f"version {version} of the policy")
    expect(then).to_have_attribute("href", f"#/policy/{version}")
    expect(decision).to_contain_text(dropped)
    expect(decision.get_by_role("link", name="line 15")).to_have_attribute("href", f"#/policy/{version}")
    site.lark.put_policy(POLICY)


def test_the_decision_says_what_the_wan_rule_does(reader: Reader, site: Site) -> None:
    job = site.run("carol")
    page = reader.log_in(site.reader, f"#/jobs/{job['id']}")
    sentence = panel(page, "Decision").locator("p")
    expect(sentence).to_contain_text("Its packets to the WAN leave by the port wan-fast. It may call and be called.")
    site.lark.put_policy(POLICY.replace("  - wan: {when", "  - wan: {action: allow}\n  - wan: {when", 1))
    expect(sentence).to_contain_text("A rule allows its packets to and from the WAN. It may call")
    alone = "policies:\n  - connectivity: {inbound: deny, outbound: deny}\n"
    site.lark.put_policy(POLICY.replace("policies:\n", alone))
    expect(sentence).to_contain_text("It may neither call nor be called.")
    expect(sentence).not_to_contain_text("WAN")
    site.lark.put_policy(POLICY.replace("policies:\n", "policies:\n  - wan: {action: drop}\n"))
    expect(sentence).to_contain_text("Its packets to and from the WAN are dropped. It may call and be called.")


def test_of_a_quarantined_job_nothing_is_said_to_pass(reader: Reader, site: Site) -> None:
    job = site.run("carol")

    waits: list[dict[str, str]] = []

    def quarantined(route: Route) -> None:
        found = route.fetch()
        held = found.json()
        decision = {**held["decision"], "quarantine": "in the pool, its slot runs another job"}
        route.fulfill(response=found, json={**held, "state": "quarantined", "decision": decision, "waiting": waits})

    reader.page.route(f"**/v1/jobs/{job['id']}", quarantined)
    page = reader.log_in(site.reader, f"#/jobs/{job['id']}")
    decided = panel(page, "Decision").locator("p").first
    expect(decided).to_have_text("It is quarantined: nothing passes.")
    # Nobody has told its switch yet.
    waits = [{"datapath": job["datapath"], "reason": "is not connected"}]
    expect(decided).to_have_text("It is quarantined, which is not in force yet: what passed before passes on.")
    page.unroute_all(behavior="ignoreErrors")


def test_what_a_job_uses_in_numbers_and_as_a_plot(reader: Reader, site: Site) -> None:
    job = site.run("alice")
    page = reader.log_in(site.reader, f"#/jobs/{job['id']}")
    use = panel(page, "Use of the network")
    expect(use.get_by_role("row", name="Sent 0 B 0 B 0 0 0")).to_be_visible()
    site.passed(job, 3, 2)
    expect(use.get_by_role("row", name="Sent 3.00 MB 0 B 3,000 0 0")).to_be_visible()
    expect(use.get_by_role("row", name="Received 2.00 MB 0 B 2,000 0 0")).to_be_visible()
    expect(use.get_by_text("Advice so far")).to_be_visible()
    expect(
        use.get_by_text(re.compile("asked for nothing; counted for .* seconds, too short for advice"))
    ).to_be_visible()
    plot = use.get_by_role("img", name="Traffic of job 101.0")
    expect(plot.locator("path.series")).to_have_count(4)
    expect(use.locator(".legend")).to_contain_text(re.compile("Sent .*b/s"))
    plot.hover()
    expect(plot.locator(".pointer")).to_have_count(1)
    site.lark.end(job)
    expect(use.get_by_text("Whole")).to_be_visible()
    expect(use.get_by_role("row", name="Sent 3.00 MB 0 B 3,000 0 0")).to_be_visible()
    # HTCondor's groups are the same in any case.
    page.goto(f"{site.url}/pages/#/groups/Group_CMS")
    expect(panel(page, "Use").get_by_role("row", name="Sent 3.00 MB")).to_be_visible()


def test_transfers_are_shown_apart_from_the_jobs_own_use_and_together_with_it(reader: Reader, site: Site) -> None:
    site.lark.put_policy(POLICY + "transfer_capacity: {groups: {group_cms: 4Gbit}}\n")
    job = site.run("alice")
    site.passed(job, 3, 2)
    page = reader.log_in(site.reader, f"#/jobs/{job['id']}")
    use = panel(page, "Use of the network")
    expect(use.get_by_role("row", name="Sent 3.00 MB 0 B 3,000 0 0")).to_be_visible()
    expect(use.get_by_role("table", name="Transfers by HTCondor")).to_have_count(0)
    moved = TransferReport(TransferCounts(50_000_000, 7_000_000, 4_000_000, 0, 8_000))
    site.lark.service.controller.usage.transferred("worker1.example", {job["id"]: moved})
    expect(use.get_by_role("row", name="From the worker 7.00 MB 0 B 10.0 MB")).to_be_visible()
    expect(use.get_by_role("row", name="To the worker 50.0 MB 4.00 MB 52.0 MB")).to_be_visible()
    expect(use.get_by_text("8 s", exact=True)).to_be_visible()
    plot = use.get_by_role("img", name="Traffic of job 101.0")
    expect(plot.locator("path.series.moved")).to_have_count(2)
    page.goto(f"{site.url}/pages/#/groups/group_cms")
    expect(panel(page, "Use").get_by_role("row", name="To the worker 50.0 MB 4.00 MB 52.0 MB")).to_be_visible()
    expect(page.locator(".facts").first).to_contain_text(re.compile(r"Moved in now[1-9][\d.]* [kM]b/s"))
    expect(page.locator(".facts").first).to_contain_text("Capacity for transfers4.00 Gb/s")
    page.goto(f"{site.url}/pages/#/users/alice")
    expect(page.locator(".facts").first).to_contain_text(re.compile(r"Moved in now[1-9][\d.]* [kM]b/s"))
    for place, name in (("", "Users that send and receive most"), ("groups", "Groups"), ("jobs", "Jobs")):
        page.goto(f"{site.url}/pages/#/{place}")
        shown = page.get_by_role("table", name=name, exact=True)
        column = shown.locator("thead th").all_inner_texts
        wait(lambda: "MOVED IN" in [each.upper() for each in column()])  # noqa: B023  # done at once
        at = [each.upper() for each in column()].index("MOVED IN")
        expect(shown.locator("tbody tr td, tbody tr th").nth(at)).to_have_text(re.compile(r"[1-9][\d.]* [kM]b/s"))


def test_the_rule_of_transfers_and_the_mark_are_shown_of_jobs_without_a_network_too(reader: Reader, site: Site) -> None:
    rules = (
        "  - transfers: {when: 'Owner == \"carol\"', rate: 50Mbit}\n"
        "  - scitags: {experiment: 3, activity: 12, when: 'Owner == \"carol\"'}\n"
    )
    site.lark.put_policy(POLICY.replace("policies:\n", f"policies:\n{rules}"))
    page = reader.log_in(site.reader)
    for kind in ("ovs_bridge", "none"):
        ads = site.ads("carol").replace('"ovs_bridge"', f'"{kind}"')
        answer = site.lark.post(ads, 5.0)
        assert answer.status == 201, answer
        reader.go(f"#/jobs/{answer.body['id']}")
        decision = panel(page, "Decision")
        expect(decision).to_contain_text("What HTCondor moves for it: at most 50 Mb/s")
        expect(decision).to_contain_text("(pending: the worker has not confirmed that it enforces this)")
        expect(decision).to_contain_text("Its mark for science networks (SciTag): experiment 3, activity 12.")


def test_a_job_shows_its_external_address(reader: Reader, site: Site) -> None:
    pools = "external: {pools: {public: [203.0.113.64/30]}, rules: [{pool: public, open: [tcp/80]}]}\n"
    site.lark.put_policy(POLICY + pools)
    job = site.run("alice")
    page = reader.log_in(site.reader, f"#/jobs/{job['id']}")
    run = panel(page, "Run")
    expect(run).to_contain_text("101.0")
    expect(run.get_by_text("External address")).to_have_count(0)
    asked = {"job": job["id"], "open": ["tcp/80"]}
    made = site.lark.request("POST", "/v1/external-addresses", json.dumps(asked), "application/json").body
    expect(run).to_contain_text(f"External address{made['address']}open: tcp/80")
    site.lark.put_policy(POLICY)


def test_a_group_whose_rates_no_core_keeps_says_so(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/groups")
    expect(page.get_by_role("row", name=re.compile("group_cms not all is kept"))).to_be_visible()
    page.get_by_role("link", name="group_cms").click()
    expect(page.get_by_text("core1: guarantee 250 Mb/s is not given, because a meter can only limit")).to_be_visible()


def test_a_group_that_no_job_names_says_that_it_has_no_history(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/groups/default")
    said = page.get_by_text("None of its live jobs has the AcctGroup default")
    expect(panel(page, "Over time")).to_contain_text("Jobs with AcctGroup default or a subgroup of it")
    expect(said).to_have_count(0)
    site.run("bob")
    expect(said).to_be_visible()
    expect(panel(page, "Over time")).to_contain_text("What its jobs move now")


def test_a_jobs_plot_begins_before_its_page_was_opened(reader: Reader, site: Site) -> None:
    job = site.run("alice")
    where = f"/v1/jobs/{job['id']}/rates"
    wait(lambda: len(site.lark.get(where)["rates"]) >= 6)
    page = reader.log_in(site.reader, f"#/jobs/{job['id']}")
    plot = panel(page, "Use of the network").get_by_role("img", name="Traffic of job 101.0")
    # The page itself looks every three seconds.
    drawn = plot.locator("path.series").first.get_attribute("d") or ""
    assert len(re.findall("[ML]", drawn)) >= 6, drawn


def test_the_history_of_a_group_over_a_range(reader: Reader, site: Site) -> None:
    site.run("alice")
    zero = {"throttled_seconds": 0.0, "job": None, "owner": None, "user": None, "host": None, "final": None}

    def rows(route: Route) -> None:
        asked = parse_qs(urlsplit(route.request.url).query)
        width = {"minute": 60, "hour": 3600, "day": 86400}[asked["bucket"][0]]
        first = (int(asked["from"][0]) // width + 5) * width
        made = [
            {"start": iso(first + at * width), "end": iso(first + (at + 1) * width), "group": "group_cms", **zero}
            | {f"{part}bytes_{way}": 10**6 * width for part in ("", "wan_", "transfer_") for way in ("in", "out")}
            for at in range(3)
        ]
        # Of all subgroups apart there may be more than one answer holds.
        made = made if asked.get("together") == ["true"] else []
        route.fulfill(json={"bucket_seconds": width, "counted": iso(time.time()), "rows": made, "next": None})

    page = reader.page
    page.route("**/v1/usage?*", rows)
    reader.log_in(site.reader, "#/groups/group_cms")
    over = panel(page, "Over time")
    for name in ("Hour", "Day", "Week"):
        over.get_by_role("button", name=name, exact=True).click()
        expect(over.get_by_role("button", name=name, exact=True)).to_have_attribute("aria-pressed", "true")
        drawn = over.get_by_role("img", name=f"Traffic of group_cms, last {name.lower()}")
        expect(drawn).to_contain_text("10.0 Mb/s")
        for kind in ("path.series", "path.series.moved"):
            expect(drawn.locator(kind).first).to_have_attribute("d", re.compile(r"M\d.*L\d"))
    expect(over.locator(".legend")).to_contain_text("Guarantee 250 Mb/s")


@pytest.mark.parametrize("name", ["15 minutes", "Day", "Week", "Month"])
def test_a_fresh_installation_has_a_history_at_once(reader: Reader, site: Site, name: str) -> None:
    """Before any hour, and any minute, is over."""
    job = site.run("alice")
    page = reader.log_in(site.reader, "#/groups/group_cms")
    over = panel(page, "Over time")
    over.get_by_role("button", name=name, exact=True).click()
    drawn = over.get_by_role("img", name=f"Traffic of group_cms, last {name.lower()}")
    begun = time.time()

    def counted() -> str:
        """Two megabytes a second, as far as the switch can be told."""
        megabytes = max(1, round(2 * (time.time() - begun)))
        site.passed(job, megabytes, 0)
        return drawn.locator("path.series").first.get_attribute("d") or "" if drawn.count() else ""

    wait(lambda: len(re.findall("L", counted())) >= 3, 60)
    expect(over.locator(".legend")).to_contain_text(re.compile("Sent .*Mb/s"))


def test_a_job_that_is_not_there_is_said(reader: Reader, site: Site) -> None:
    reader.expected = ("404",)
    page = reader.log_in(site.reader, "#/jobs/0123456789abcdef")
    expect(page.get_by_role("alert")).to_contain_text("no job has the id 0123456789abcdef")


def test_jobs_are_filtered_and_shown_page_by_page(reader: Reader, site: Site) -> None:
    for number in range(55):
        site.run("alice" if number % 11 else "bob", WORKER1 if number % 2 else WORKER2, seconds=0)
    page = reader.log_in(site.reader, "#/jobs")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(50)
    page.get_by_role("link", name="Next page").click()
    expect(rows).to_have_count(5)
    page.get_by_role("link", name="First page").click()
    # The view comes anew, and its form with it.
    expect(rows).to_have_count(50)
    page.get_by_label("User", exact=True).fill("bob")
    page.get_by_role("button", name="Show").click()
    expect(rows).to_have_count(5)
    assert page.url.endswith("#/jobs?owner=bob&state=live&order=newest")
    page.get_by_label("State").select_option("Pending")
    expect(page.get_by_text("No job is like that.")).to_be_visible()
    page.go_back()
    expect(rows).to_have_count(5)


def test_user_and_group(reader: Reader, site: Site) -> None:
    for owner in ("alice", "alice", "bob"):
        site.run(owner)
    page = reader.log_in(site.reader, "#/users/alice")
    expect(panel(page, "Live jobs").locator("tbody tr")).to_have_count(2)
    page.get_by_role("link", name="group_cms").first.click()
    expect(page.get_by_role("heading", name="Group group_cms", exact=True)).to_be_visible()
    expect(page.locator(".facts").first).to_contain_text("Guarantee250 Mb/s")
    expect(panel(page, "Live jobs with AcctGroup group_cms").locator("tbody tr")).to_have_count(2)


def test_a_switch_with_the_origin_of_each_flow(reader: Reader, site: Site) -> None:
    job = site.run("bob")
    page = reader.log_in(site.reader, "#/switches")
    page.get_by_role("link", name="worker1").click()
    expect(page.get_by_role("heading", name="Switch worker1")).to_be_visible()
    expect(panel(page, "Jobs").get_by_role("row", name=re.compile("101.0 ✓ enforced bob"))).to_be_visible()
    page.get_by_role("heading", name="Flows").click()
    expect(page.get_by_role("heading", name=re.compile(r"Table 4 wan \(\d+\)"))).to_be_visible()
    origin = page.get_by_role("row", name=re.compile('wan drop when Owner == "bob" \\(policy line 15\\)'))
    expect(origin.first).to_be_visible()
    page.get_by_label("Flows that contain").fill(job["id"])
    expect(origin).to_have_count(0)
    expect(page.get_by_role("row", name=re.compile(f"job 101.0 of bob .*{job['id']}")).first).to_be_visible()
    page.get_by_text("Ports (61)").click()
    port = page.get_by_role("row", name=re.compile("11 job1 job 101.0"))
    expect(port.get_by_role("link", name="101.0")).to_have_attribute("href", f"#/jobs/{job['id']}")
    reader.go("#/events")
    event = page.get_by_role("row", name=re.compile("register 101.0"))
    expect(event.get_by_role("link", name="101.0")).to_have_attribute("href", f"#/jobs/{job['id']}")


def test_a_switchs_flows_come_by_the_hundred_and_by_table(reader: Reader, site: Site) -> None:
    for _ in range(8):
        site.run("bob")
    tables = {each["name"]: each for each in site.lark.get(f"/v1/switches/{WORKER1:016x}/flows")["tables"]}
    every = sum(each["flows"] for each in tables.values())
    assert 100 < every <= 200
    page = reader.log_in(site.reader, f"#/switches/{WORKER1:016x}")
    page.get_by_role("heading", name="Flows").click()
    rows = page.locator(".one-table tbody tr")
    expect(rows).to_have_count(100)
    expect(page.get_by_text(f"The first 100 of {every} flows.")).to_be_visible()
    page.get_by_role("button", name="Show more").click()
    expect(rows).to_have_count(every)
    expect(page.get_by_role("button", name="Show more")).to_have_count(0)
    forward = tables["forward"]
    page.get_by_role("combobox", name="Table").select_option(str(forward["number"]))
    expect(rows).to_have_count(forward["flows"])
    expect(page.get_by_role("heading", name=re.compile(r"^Table \d"))).to_have_count(1)
    page.get_by_label("Flows that contain").fill("no flow has this")
    expect(page.get_by_text("No flow is like that.")).to_be_visible()
    expect(page.get_by_role("combobox", name="Table")).to_have_value(str(forward["number"]))


def test_choices_while_a_switch_is_slow_wait_for_its_answer_and_take_no_more_places(reader: Reader, site: Site) -> None:
    for _ in range(3):
        site.run("bob")
    page = reader.log_in(site.reader, f"#/switches/{WORKER1:016x}")
    page.get_by_role("heading", name="Flows").click()
    rows = page.locator(".one-table tbody tr")
    expect(rows).not_to_have_count(0)
    site.stall(3.0)
    # Each is asked for, since more time than between two keys lies between them: more often than a reader may wait.
    for text in ("drop", "job", "eth", "bob", "nw_src", "no flow has this"):
        page.get_by_label("Flows that contain").fill(text)
        page.wait_for_timeout(350)
    expect(page.get_by_text("No flow is like that.")).to_be_visible()
    expect(rows).to_have_count(0)


def test_a_table_that_is_chosen_while_a_switch_is_slow_comes_with_its_answer(reader: Reader, site: Site) -> None:
    """The switch's jobs are drawn again meanwhile, beside the flows of before."""
    site.run("bob")
    forward = next(
        each for each in site.lark.get(f"/v1/switches/{WORKER1:016x}/flows")["tables"] if each["name"] == "forward"
    )
    page = reader.log_in(site.reader, f"#/switches/{WORKER1:016x}")
    page.get_by_role("heading", name="Flows").click()
    rows = page.locator(".one-table tbody tr")
    expect(rows).not_to_have_count(0)
    site.stall(3.0)
    page.get_by_role("combobox", name="Table").select_option(str(forward["number"]))
    page.wait_for_timeout(2000)
    expect(rows).to_have_count(forward["flows"])


def test_explain_step_by_step(reader: Reader, site: Site) -> None:
    alice, bob = site.run("alice"), site.run("bob", WORKER2)
    page = reader.log_in(site.reader, "#/explain")
    page.get_by_label("From").fill(alice["id"])
    page.get_by_label("To").fill(bob["addresses"][0]["address"])
    page.get_by_role("button", name="Explain").click()
    expect(page.locator(".verdict")).to_contain_text("dropped")
    expect(page.locator(".verdict")).to_contain_text("worker1 drops it in table slice-from")
    expect(page.get_by_role("status")).to_contain_text("dropped")
    expect(page.locator(".steps li").first).to_contain_text("is job 101.0")
    expect(page.locator(".steps li").nth(-2)).to_contain_text("drops it: slice policy")
    # The jobs' files do not go that way.
    expect(page.locator(".steps li").last).to_contain_text("sandboxes, URLs) is outside of the policy")
    page.get_by_label("To").fill("192.0.2.1")
    page.get_by_role("button", name="Explain").click()
    expect(page.locator(".verdict")).to_contain_text("forwarded")
    reader.expected = ("404",)
    page.get_by_label("To").fill("nobody")
    page.get_by_role("button", name="Explain").click()
    expect(page.get_by_role("alert")).to_contain_text("an address is accepted too")


def test_the_one_field_finds_jobs_addresses_users_hosts_and_switches(reader: Reader, site: Site) -> None:
    job = site.run("alice")
    page = reader.log_in(site.reader)
    reader.expected = ("404", "422")
    for text, title in (
        (job["id"], "Job 101.0 of alice"),
        (job["addresses"][0]["address"], "Job 101.0 of alice"),
        ("submit.example#101.0#1790000000", "Job 101.0 of alice"),
        ("101.0", "Job 101.0 of alice"),
        ("submit#101.0", "Job 101.0 of alice"),
        ("101", "Job 101.0 of alice"),
        ("101@submit", "Job 101.0 of alice"),
        ("101.0@submit.example", "Job 101.0 of alice"),
        (job["id"][:6], "Job 101.0 of alice"),
        ("worker1", "Switch worker1"),
        ("alice", "User alice"),
        ("worker1.example", "Jobs"),
        # A host that has had no job has its switch all the same.
        ("worker3.example", "Switch worker3"),
        ("core1", "Switch core1"),
        ("Core1", "Switch core1"),
        ("WORKER1", "Switch worker1"),
        (f"{CORE:016x}", "Switch core1"),
        ("group_cms", "Group group_cms"),
        ("group_atlas", "Group group_atlas"),
    ):
        field = page.get_by_role("searchbox")
        field.fill(text)
        field.press("Enter")
        expect(page.get_by_role("heading", name=title, exact=True, level=1)).to_be_visible()
        page.goto(f"{site.url}/pages/#/events")
        expect(page.get_by_role("heading", name="Events", exact=True, level=1)).to_be_visible()
    page.get_by_role("searchbox").fill("nobody")
    page.get_by_role("searchbox").press("Enter")
    expect(page.get_by_role("status")).to_contain_text("Nothing is called nobody.")


def test_a_missed_guarantee_is_an_event_with_its_job(reader: Reader, site: Site) -> None:
    """And is counted in the metric of its alert. The counters are those of a worker whose uplink carries too little."""
    host = "    natworker.example: {switch: rack1, capacity: 2Gbit}\n"
    rules = "policies:\n  - bandwidth: {mode: guarantee}\n"
    site.lark.put_policy(
        POLICY.replace("    files.example:", f"{host}    files.example:").replace("policies:\n", rules)
    )
    ads = site.ads("alice", 9, more="RequestBandwidth = 50").replace("worker9", "natworker")
    ads = re.sub("LarkDatapathId.*\n", "", ads).replace('"ovs_bridge"', '"bridge"')
    job = site.lark.post(ads, 0).body

    def delivered(seconds: int) -> int:
        queue = {"job": job["id"], "queue": "eth0", "promised": 50_000_000, "dropped": 0}
        queue |= {"sent": seconds * 1_250_000, "waited": seconds * 1000}
        body = json.dumps({"at": 1000 * (1 + seconds), "queues": [queue]})
        answer = site.lark.request("POST", "/v1/hosts/natworker.example/delivered", body, "application/json")
        return int(answer.body["missed"])

    assert [delivered(seconds) for seconds in (0, 10, 20)] == [0, 1, 1]
    sentence = (
        "job 101.0 of alice got 10.0 of 50 Mb/s at uplink eth0 of natworker.example for 10 s, and had more to send"
    )
    page = reader.log_in(site.reader, "#/events")
    row = page.get_by_role("row", name=f"guarantee missed 101.0 controller {sentence}")
    # Once an hour is enough for the trail.
    expect(row).to_have_count(1)
    row.get_by_role("link", name="101.0").click()
    expect(page.get_by_role("heading", name="Job 101.0 of alice")).to_be_visible()
    expect(panel(page, "Events")).to_contain_text(sentence)
    reader.go("#/")
    expect(panel(page, "Events")).to_contain_text("guarantee missed 101.0")
    assert "lark_guarantees_missed_total 2.0" in site.lark.get("/metrics")


def test_reservations_and_what_they_leave_of_each_link(reader: Reader, site: Site) -> None:
    page = reader.log_in(site.reader, "#/reservations")
    expect(page.get_by_text("Nothing is reserved.")).to_be_visible()
    wish = '{"source": "files.example", "destination": "wan", "rate": 250, "duration": 3600}'
    assert site.lark.request("POST", "/v1/reservations", wish, "application/json").status == 201
    internet = page.get_by_role("row", name=re.compile("internet core1 → wan"))
    expect(internet).to_contain_text("250 Mb/s1.00 Gb/s750 Mb/s")
    expect(page.get_by_role("row", name=re.compile(r"^250 Mb.s files\.example wan flow .* test$"))).to_be_visible()
