"""The map of the network in a real browser: with three workers, and with a thousand."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from lark_controller.cli import main as cli
from tests.fixtures.browser import CORE, POLICY, WORKER1, WORKER2, Reader, Site, panel
from tests.fixtures.service import wait

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
    fast = "    fast: {between: [core1, wan-fast], capacity: 10Gbit}\n  hosts:"
    site.lark.put_policy(POLICY.replace("  - slice: {by: Owner}\n", "").replace("  hosts:", fast))
    expect(table.get_by_role("row", name=re.compile("alice 2 .*all .*all .*all .*none"))).to_be_visible()
    # All ways out count, whatever their names.
    expect(picture.locator("g", has_text="WAN")).to_contain_text("of 11.0 Gb/s")
    picture.locator("a", has_text="worker2").click()
    expect(page.get_by_role("heading", name="Switch worker2")).to_be_visible()


def test_links_whose_directions_share_the_capacity_are_drawn_with_their_ends(reader: Reader, site: Site) -> None:
    half = POLICY.replace("capacity: 1Gbit}", "capacity: 1Gbit, duplex: half}").replace(
        "  hosts:\n", "  hosts:\n    worker1.example: {switch: rack1, capacity: 400Mbit, duplex: half}\n"
    )
    site.lark.put_policy(half)
    site.run("alice")
    page = reader.log_in(site.reader, "#/map")
    picture = page.get_by_role("img", name="The WAN, 1 core switch, 3 workers")
    expect(picture.locator("g", has_text="WAN")).to_contain_text("of 1.00 Gb/s together")
    links = panel(page, "Links of the topology")
    expect(links).to_contain_text("internet: core1 ↔ wan, both ways together")
    expect(links).to_contain_text("trunk1: rack1 → core1")
    found = site.lark.get("/v1/map")
    assert (found["wan"]["capacity"], found["wan"]["shared"]) == (1000.0, True)
    assert [(each["name"], each["capacity"], each["shared"]) for each in found["edges"] if each["capacity"]] == [
        ("worker1", 400.0, True)
    ]
    (internet,) = (each for each in found["links"] if each["name"] == "internet")
    assert (internet["source"], internet["target"], internet["ends"]) == ("", "", ["core1", "wan"])
    # With one way out of full duplex there is no sum that both directions share.
    site.lark.put_policy(
        half.replace("  hosts:\n", "    fast: {between: [core1, wan-fast], capacity: 10Gbit}\n  hosts:\n", 1)
    )
    expect(picture.locator("g", has_text="WAN")).to_contain_text("of 11.0 Gb/s")
    assert site.lark.get("/v1/map")["wan"]["shared"] is False


def test_a_worker_whose_jobs_are_at_no_switch_is_drawn_as_well(reader: Reader, site: Site) -> None:
    def ads(number: int, kind: str) -> str:
        made = site.ads("alice", 9, number).replace('"ovs_bridge"', f'"{kind}"').replace("worker9", "natworker")
        made = re.sub("LarkDatapathId.*\n|LarkAddressType.*\n", "", made)
        return made if kind == "none" else f'{made}LarkInnerAddressIPv4 = "192.168.9.{number}"\n'

    jobs = [site.lark.post(ads(40 + at, kind), 0).body for at, kind in enumerate(("nat", "nat", "none"))]
    site.run("alice")
    page = reader.log_in(site.reader, "#/map")
    worker = page.get_by_role("img", name="The WAN, 1 core switch, 4 workers").locator(
        "a", has_text="natworker.example"
    )
    expect(worker).to_contain_text("2 of 2 jobs wait")
    # Nobody but its neighbour calls a job behind NAT, and one of the four jobs has no network at all.
    (party,) = site.lark.get("/v1/map")["parties"]
    assert (party["jobs"], party["wan"], party["reaches"]) == (4, "some", ["some"])
    worker.click()
    expect(page.get_by_role("row", name=re.compile("140.0 .*pending alice"))).to_be_visible()
    none = page.get_by_role("row", name=re.compile("142.0 .*no network alice"))
    expect(none).to_be_visible()
    none.get_by_role("link", name="142.0").click()
    expect(page.get_by_text("It has no network: nothing passes, whatever the rules.")).to_be_visible()
    page.goto(f"{site.url}/pages/#/jobs/{jobs[0]['id']}")
    expect(panel(page, "Switches")).to_contain_text(
        "Worker natworker.example: has not put the job's rules in place yet"
    )
    decision = panel(page, "Decision")
    expect(decision).to_contain_text(
        "It may call, and be called by jobs of its slice behind the same worker’s NAT, and by nobody else."
    )
    site.lark.put_policy(POLICY.replace("policies:\n", "policies:\n  - bandwidth: {mode: guarantee}\n", 1))
    expect(decision).to_contain_text("It requests no bandwidth, and shares what is promised to no job.")
    site.lark.put_policy(POLICY.replace("policies:\n", "policies:\n  - bandwidth: {default: 5, mode: guarantee}\n", 1))
    expect(decision).to_contain_text("It has 5.00 Mb/s guaranteed once it is enforced, and may use what is free.")
    site.lark.put_policy(POLICY)
    host = "/v1/hosts/natworker.example/rules"
    there = json.dumps({"revision": site.lark.get(host)["revision"]})
    assert site.lark.request("PUT", host, there, "application/json").status == 200
    expect(panel(page, "Switches")).to_contain_text("Worker natworker.example has confirmed")


def test_jobs_that_are_not_counted_are_named(
    reader: Reader, site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARK_URL", site.url)
    monkeypatch.setenv("LARK_TOKEN", site.reader)
    site.run("alice")
    page = reader.log_in(site.reader, "#/map")
    hint = page.get_by_text("Not counted under this policy")
    expect(page.get_by_role("img", name="The WAN")).to_be_visible()
    expect(hint).to_have_count(0)
    try:
        site.lark.put_policy(f"{POLICY}accounting: none\n")
        jobs = site.lark.get("/v1/map")["uncounted"]
        assert jobs == site.lark.get("/v1/drops")["uncounted"] > 0
        counted = "1 job " if jobs == 1 else f"{jobs} jobs "
        expect(hint).to_contain_text(f"what {counted}")
        assert cli.main(["map"]) == 0
        assert f"what is sent and received by {counted}" in capsys.readouterr().out
    finally:
        site.lark.put_policy(POLICY)


def ruled(site: Site, worker: int, number: int, kind: str) -> str:
    """The ads of a job that is at no switch."""
    ads = site.ads("alice", worker, number).replace('"ovs_bridge"', f'"{kind}"')
    ads = re.sub("LarkDatapathId.*\n|LarkAddressType.*\n", "", ads)
    return f'{ads}LarkInnerAddressIPv4 = "10.64.9.{number}"\n'


def test_a_worker_has_one_state_in_the_picture_the_tables_and_the_commands(
    reader: Reader, site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LARK_URL", site.url)
    monkeypatch.setenv("LARK_TOKEN", site.reader)

    def lines(command: str) -> tuple[str, str]:
        assert cli.main([command]) == cli.OK
        one, other = (line for line in capsys.readouterr().out.splitlines() if re.search(r"\bworker[12] ", line))
        return one, other

    site.run("alice")
    for number, kind in ((50, "nat"), (51, "bridge")):
        assert site.lark.post(ruled(site, WORKER1, number, kind), 0).status == 201
    page = reader.log_in(site.reader, "#/map")
    worker = page.get_by_role("img", name="The WAN, 1 core switch, 3 workers").locator("a", has_text="worker1")
    expect(worker).to_contain_text("2 of 3 jobs wait")
    for command in ("map", "switches"):
        one, other = lines(command)
        assert "jobs wait" in one
        assert "in sync" in other
    assert "2 bridge or nat jobs wait for its worker worker1.example" in lines("switches")[0]
    why = re.compile("worker1 .*jobs wait.*2 bridge or nat jobs wait for its worker worker1.example")
    for view in ("switches", ""):
        reader.go(f"#/{view}")
        expect(page.get_by_role("row", name=why)).to_be_visible()
    # The switch itself holds what it should: no alert of its flows.
    assert site.lark.switch(WORKER1)["in_sync"] is True
    rules = "/v1/hosts/worker1.example/rules"
    there = json.dumps({"revision": site.lark.get(rules)["revision"]})
    assert site.lark.request("PUT", rules, there, "application/json").status == 200
    for command in ("map", "switches"):
        assert all("in sync" in line for line in lines(command))
    reader.go("#/map")
    expect(worker).to_contain_text("in sync, 3 jobs")
    # Nothing is known then of its jobs' traffic, which is not that there is none.
    site.disconnect(WORKER1)
    expect(worker).to_contain_text("away, 3 jobsrates not known")
    expect(page.locator("svg.map g", has_text="WAN")).to_contain_text("without 3 jobs whose switches are away")
    one, _ = lines("map")
    assert one.split() == ["worker1", "away", "3"]


def test_a_switch_that_no_policy_names_has_the_rate_of_its_jobs(site: Site) -> None:
    declared = re.search(".*role: edge, host: worker1.*\n", POLICY)
    assert declared is not None
    site.lark.put_policy(POLICY.replace(declared[0], ""))
    job = site.run("alice")
    total = itertools.count(1)

    def carries() -> dict[str, Any]:
        """It sends on, so that there is a rate at whichever moment it is looked at."""
        megabytes = next(total)
        site.passed(job, megabytes, megabytes)
        return next(each for each in site.lark.get("/v1/map")["edges"] if each["datapath"] == f"{WORKER1:016x}")

    wait(lambda: carries()["rate"]["outward"] > 0)
    assert site.lark.get("/v1/switches/worker1.example")["datapath"] == f"{WORKER1:016x}"


def test_a_thousand_workers_are_one_picture_of_the_same_size(reader: Reader, site: Site) -> None:
    lines = "".join(
        f'  many{number}: {{datapath: "{0x1000 + number:016x}", role: edge, host: many{number}.example}}\n'
        for number in range(1000)
    )
    site.lark.put_policy(POLICY.replace("policies:\n", lines + "policies:\n", 1))
    site.run("dave", 0xE3, seconds=0)
    assert site.lark.post(ruled(site, WORKER2, 50, "nat"), 0).status == 201
    found = site.lark.get("/v1/map")
    # Of those with problems, first the ones whose jobs wait; so in the overview.
    assert [each["name"] for each in found["edges"][:3]] == ["worker3", "worker2", "many0"]
    assert {each["name"] for each in site.lark.get("/v1/overview")["shown"][:2]} == {"worker2", "worker3"}
    # Nearly all are away: those that work are drawn all the same.
    assert [each["name"] for each in found["edges"] if each["connected"]] == ["worker2", "worker1"]
    assert len(found["edges"]) == 12
    assert sum(each["switches"] for each in found["rest"]) == 1003 - 12
    page = reader.log_in(site.reader, "#/map")
    picture = page.get_by_role("img", name="The WAN, 1 core switch, 1,003 workers")
    expect(picture.locator("a", has_text="workers more").first).to_be_visible()
    assert picture.locator("a").count() <= 1 + 12 + 3


def test_a_core_shows_the_load_of_its_links_against_their_capacity(reader: Reader, site: Site) -> None:
    site.lark.put_policy(POLICY.replace("wan: 2,", "wan: {port: 2, speed: 1Gbit},"))
    page = reader.log_in(site.reader, "#/map")
    core = page.get_by_role("img", name="The WAN, 1 core switch, 3 workers").locator("a", has_text="core1")
    expect(core).to_contain_text("wan (wan0): ↑ 0 b/s ↓ 0 b/s of 1.00 Gb/s")
    carries = re.compile(r"wan \(wan0\): ↑ [1-9][0-9.]* .b/s\s+↓ [1-9][0-9.]* .b/s of 1.00 Gb/s")
    classes = "() => [...document.querySelectorAll('svg.map line.wire')].map(each => each.className.baseVal)"
    # A rate is that of the last moments: the port goes on until the page has asked again and has drawn both. Nobody
    # has told the speed of the second port, so its load has no part of it.
    for _ in range(450):
        site.grows(CORE, 2, sent=10**6, received=5 * 10**5)
        if carries.search(core.text_content() or "") and page.evaluate(classes)[:2] == ["wire used", "wire"]:
            break
        page.wait_for_timeout(100)
    else:
        pytest.fail(f"the page shows no load: {core.text_content()}, {page.evaluate(classes)}")
    (found,) = site.lark.get("/v1/map")["cores"]
    assert [(each["name"], each["wan"], each["up"], each["capacity"]) for each in found["ports"]] == [
        ("wan", True, True, 1000.0), ("wan-fast", True, True, None), ("lan0", False, True, None),
    ]  # fmt: skip
    site.goes_down(CORE, 2)
    expect(core).to_contain_text("wan (wan0): down")


def test_on_a_phone_the_picture_is_as_wide_as_the_window(reader: Reader, site: Site) -> None:
    for owner in ("alice", "bob", "carol", "mallory"):
        site.run(owner)
    page = reader.log_in(site.reader, "#/map")
    page.set_viewport_size({"width": 390, "height": 800})
    picture = page.locator("svg.narrow")
    # It is drawn anew when it is asked for anew.
    expect(picture.locator("a", has_text="worker1")).to_contain_text("in sync, 4 jobs")
    box = picture.bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    size = picture.locator("text.line").first.evaluate("text => text.getBoundingClientRect().height")
    assert size >= 11


# What of each box's texts is outside of it.
OUTSIDE = """picture => [...picture.querySelectorAll("a, g")].flatMap(one => {
  const box = one.querySelector(".box").getBoundingClientRect();
  return [...one.querySelectorAll("text")].filter(text => {
    const { left, right, top, bottom } = text.getBoundingClientRect();
    return left < box.left || right > box.right || top < box.top || bottom > box.bottom;
  }).map(text => text.textContent);
})"""


def test_ports_and_links_have_their_names_and_capacities_and_every_text_is_whole(reader: Reader, site: Site) -> None:
    hosts = "  hosts:\n    worker1.example: {switch: rack1, capacity: 10Gbit, duplex: half}\n"
    site.lark.put_policy(POLICY.replace("  hosts:\n", hosts))
    site.run("alice")
    rate = {f"{part}{way}": 999.4 for part in ("", "wan_", "transfer_") for way in ("inward", "outward")}

    def busy(route: Route) -> None:
        found = route.fetch().json()
        found["wan"] |= {"rate": rate, "shared": True, "reserved": 999.4}
        for port in found["cores"][0]["ports"]:
            port |= {"interface": f"enp3s0f1np{len(port['name'])}", "outward": 999.4, "inward": 999.4}
            port |= {"capacity": None if port["declared"] == "wan" else 10_000.0}
        for edge in found["edges"]:
            edge |= {"jobs": 1234, "waiting": 1034, "rate": rate}
        edges = {each["name"]: each for each in found["edges"]}
        edges["worker1"]["state"] = "jobs wait"
        edges["worker2"]["state"] = "out of sync"
        found["rest"] = [edges["worker2"] | {"switches": 9876, "jobs": 98765}]
        route.fulfill(json=found)

    page = reader.log_in(site.reader, "#/map")
    picture = page.get_by_role("img", name="The WAN, 1 core switch")
    # By the names of the policy, and of the switch.
    expect(picture.locator("a", has_text="core1")).to_contain_text("wan (wan0)")
    expect(picture.locator("a", has_text="core1")).to_contain_text("lan (lan0)")
    page.route("**/v1/map", busy)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 844})
        page.reload()
        core, worker = picture.locator("a", has_text="core1"), picture.locator("a", has_text="worker1")
        expect(core).to_contain_text(re.compile(r"wan-fast \(enp3s0f1np8\).*999 Mb/s.*999 Mb/s"))
        expect(core).to_contain_text("capacity not known")
        expect(core).to_contain_text("10.0 Gb/s")
        expect(worker).to_contain_text("20 % of 10.0 Gb/s")
        expect(picture.locator("a", has_text="worker2")).to_contain_text("capacity not known")
        expect(picture.locator("g", has_text="WAN")).to_contain_text("of 1.00 Gb/s together")
        assert picture.evaluate(OUTSIDE) == []
        assert "…" not in (picture.text_content() or "")
    page.unroute_all(behavior="ignoreErrors")
