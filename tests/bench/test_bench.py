"""The benchmarks in short: what they measure is what they say, and costs are compared by counting, not by the clock."""

from __future__ import annotations

import asyncio
import cProfile
import pstats
import subprocess
import sys
from pathlib import Path

import pytest

from bench import (
    attacks,
    changes,
    external,
    hostile,
    instances,
    instances_report,
    limited,
    load,
    ovsdb,
    posts,
    reactive,
    report,
    scale,
    takeovers,
    usage,
    views,
)
from bench.changes import Calculated
from bench.fleet import CORES, Fleet
from bench.population import CORE, ads, jobs, short_ads
from fake_switch import switchside
from lark_common.classads.ads import parse_post
from lark_common.classads.parts import whole
from lark_controller.flows.marker import Marker
from lark_controller.flows.model import FlowKey, match
from lark_controller.flows.tables import Edge
from lark_controller.switches.openflow import wire


def test_every_answer_of_lark_and_of_the_reference_is_a_flow_and_a_packet() -> None:
    for subject in ("lark", "learning"):
        with reactive.lark(2) if subject == "lark" else reactive.learning_switch() as port:
            found = reactive.load(subject, port, 2, 3, 0.3)
        assert found["answers"] > 0
        assert abs(found["flows"] - found["answers"]) <= 2 * 3


def test_lark_decides_about_the_address_that_was_asked() -> None:
    class Remembering(load.LoadSwitch):
        def data_received(self, data: bytes) -> None:
            if self.asking and len(data) > 56 and data[1] == 14:
                decided.append(switchside.decode_flow_mod(data[: int.from_bytes(data[2:4])]).key)
            super().data_received(data)

    async def ask(port: int) -> None:
        switch = Remembering(1, "lark")
        await switch.connect("127.0.0.1", port)
        await load._ready([switch], "lark")
        switch.disconnect()

    decided: list[FlowKey] = []
    with reactive.lark(1) as port:
        asyncio.run(ask(port))
    assert decided[0].table == Edge.SLICE_FROM
    terms = {term.name: term.value for term in decided[0].match}
    assert terms["ipv4_dst"] == load.FIRST + (1 << 16)
    assert decided[0].match == match(eth_type=0x800, ipv4_dst=terms["ipv4_dst"], metadata=_metadata(decided[0]))


def _metadata(key: FlowKey) -> tuple[int, int]:
    return next((term.value, term.mask) for term in key.match if term.name == "metadata")


def test_posts_are_confirmed_beside_a_switch_that_does_not_read() -> None:
    found = posts.measure(2.0, 30, 40.0, 0.5)
    for name in ("well", "others"):
        assert found[name]["posts"] > 0
        assert found[name]["confirmed"] == found[name]["posts"]
    assert found["stalled"]["posts"] > 0
    assert found["stalled"]["confirmed"] < found["stalled"]["posts"]
    assert found["stalled"]["refused"] == 0
    assert found["packet_ins"] == 0


def calls(subject: Calculated) -> int:
    """The number of function calls in a round: a cost that does not depend on the machine."""
    profile = cProfile.Profile()
    profile.enable()
    subject.round()
    profile.disable()
    return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]  # typeshed leaves it out


def test_a_change_costs_the_same_beside_many_jobs_where_addresses_come_in_blocks() -> None:
    few, many = (changes.calculated(size, 22, 20, 40) for size in (1_000, 10_000))
    few.round()
    many.round()
    assert calls(many) / calls(few) <= 1.2
    assert many.flows[-1] <= few.flows[-1]
    assert many.desired.rules[CORE] == few.desired.rules[CORE]


def test_jobs_that_open_a_block_are_told_apart() -> None:
    found = changes.measure_calculated(1, 28, (1_000, 2_000), connected=10)
    assert 0 < found["joining"][0] < 1
    assert found["ratio_joining"] > 0
    table = report.table({"machine": report.machine(), "calculated": [found]})
    assert "the same of jobs in whose block another job is" in table


def test_a_job_as_a_whole_is_measured_at_every_size() -> None:
    found = changes.measure_whole(1, 22, (1_000, 2_000), fresh=3)
    assert len(found["millis"]) == 2
    assert found["ratio"] > 0


def test_hooks_post_ads_of_the_size_and_kind_that_a_starter_has() -> None:
    job, other = jobs(2, 26)
    body = ads(job)
    assert body == ads(job) != ads(other)
    job_text, machine_text = body.split("------\n")
    assert 7_500 <= len(job_text) <= 8_500
    assert 4_000 <= len(machine_text) <= 6_000
    job_ad, machine_ad = parse_post(body.encode(), "text/plain")
    short_job_ad, short_machine_ad = parse_post("------\n".join(short_ads(job)).encode(), "text/plain")
    assert (len(whole(job_ad.ad)), len(whole(machine_ad.ad))) == (job_text.count("\n"), machine_text.count("\n"))
    assert len(whole(job_ad.ad)) >= 150
    assert "TransferKey" in job_ad.ad
    assert "TransferKey" not in job_ad.text
    for name in ("global_job_id", "started", "owner", "user", "group", "cluster", "proc", "prio", "bandwidth"):
        assert getattr(job_ad, name) == getattr(short_job_ad, name), name
    for name in ("machine", "slot", "network_type", "address_type", "ipv4", "mac", "port", "datapath", "vlan"):
        assert getattr(machine_ad, name) == getattr(short_machine_ad, name), name


def test_an_ad_of_a_starter_is_parsed_with_few_calls() -> None:
    first, second = (ads(job).encode() for job in jobs(2, 26))
    parse_post(first, "text/plain")
    profile = cProfile.Profile()
    profile.enable()
    parse_post(second, "text/plain")
    profile.disable()
    # Each line is matched, named and kept; the expressions are those of the ads before, which have been checked.
    assert pstats.Stats(profile).total_calls < 10 * second.count(b"\n")  # type: ignore[attr-defined]  # as above


def test_the_table_is_put_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    text = report.table({"machine": report.machine(), "whole": [changes.measure_whole(1, 22, (1_000,), fresh=1)]})
    report.replace(page, text)
    assert "old" not in page.read_text()
    assert "| one job from its ads to the switch's barrier, addresses in blocks of /22" in page.read_text()
    assert page.read_text().startswith("before\n")
    assert page.read_text().endswith("after\n")
    page.write_text("no marks")
    with pytest.raises(ValueError, match="no place for the table"):
        report.replace(page, text)


def test_open_files_are_raised_to_the_hard_limit() -> None:
    code = (
        "import resource\n"
        "from lark_controller.cli.open_files import raise_open_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))\n"
        "assert raise_open_files() == 128\n"
        "assert resource.getrlimit(resource.RLIMIT_NOFILE) == (128, 128)\n"
        "assert raise_open_files() == 128\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.postgres
def test_questions_about_use_are_timed_and_read_an_index() -> None:
    found = usage.measure(2, 300, 2, minute_days=0.005)
    assert found["usage_jobs"]["rows"] == 600
    assert found["usage"]["rows"] == 1520 * (7 + 48 + 2)
    for row in found["questions"]:
        assert 0 < row["p50"] <= row["p95"], row
        assert row["plan"], row
    assert found["write_seconds"] > 0
    assert "use: 2 days of 300 jobs a day" in report.table({"machine": report.machine(), "usage": found})


@pytest.mark.postgres
def test_every_view_of_the_pages_is_timed() -> None:
    found = views.measure(2_000, 3, 2)
    assert len(found["views"]) == 19
    for row in found["views"]:
        assert 0 < row["p50"] <= row["p95"], row
        assert row["bytes"] > 0
    chosen = next(row for row in found["views"] if row["view"] == "jobs of a user in a group")
    assert chosen["bytes"] > 5_000, "there are such jobs"
    table = report.table({"machine": report.machine(), "views": found})
    assert "pages: overview, the slowest of 7 requests; 2,000 live and 6,000 ended jobs" in table


@pytest.mark.ovs
def test_every_worker_has_a_database_and_other_rates_get_there() -> None:
    found = ovsdb.measure(12, 6, 0.2)
    assert found["jobs"] == 96
    assert found["threads"] < found["without"]["threads"] + found["workers"], "no thread for each database"
    for desired in ("many", "one"):
        assert 0 < found[desired]["committed"]["p50"] < found[desired]["answered"]["p50"]
    assert 0 < found["committed_seconds"] <= found["connect_seconds"]
    assert found["storm"]["committed"] > 0
    table = report.table({"machine": report.machine(), "ovsdb": found})
    assert "OVSDB: 12 workers, each with a server of its own, 96 limited jobs: until all are connected" in table


@pytest.mark.ovs
def test_every_job_has_a_rate_of_its_own_and_is_enforced() -> None:
    found = limited.measure(128, 2)
    for kind in ("without", "with"):
        assert 0 < found[kind]["loaded"] <= found[kind]["most"]
        assert found[kind]["processor_seconds"] > 0


def test_under_attack_posts_are_answered_and_a_full_disk_is_said() -> None:
    (row,) = hostile.measure(0.5, 2, "nothing")["rows"]
    assert set(row["without"]["posts"]["statuses"]) == {"201"}
    assert set(row["under"]["posts"]["statuses"]) <= {"201", "503"}
    assert (row["ready"], row["away"]) == (503, 0)
    assert set(row["under"]["health"]["statuses"]) == {"200"}
    about = {"cores": 2, "kernel": "6.1", "python": "3.11", "load": 0.1}
    assert "| a full disk |" in report.attacked(
        about, {"seconds": 1, "workers": 2, "rate": 20, "rounds": 2, "rows": [row]}
    )


@pytest.mark.ovs
def test_connections_are_measured_with_and_without_the_translation() -> None:
    found = external.measure(1, 0.2, 300)
    rows = {(row["mtu"], row["called"], row["addresses"], row["action"]): row for row in found["rows"]}
    assert {(mtu, action) for mtu, _, _, action in rows} == {
        *((1500, action) for action in ("in", "out", "web", "rtt")),
        *((9000, action) for action in ("in", "out", "rtt")),
    }
    assert all(row["direct"] > 0 and row["mapped"] > 0 for row in rows.values())
    # A flow for each direction, and what ARP and ICMP errors need, for each mapped job.
    assert rows[1500, 1, 300, "in"]["flows"] - rows[1500, 1, 1, "in"]["flows"] == 299 * 11
    about = {"cores": 2, "kernel": "6.1", "python": "3.11", "load": 0.1}
    assert "| stream to the jobs | 9000 | 1 | 1 |" in report.translated(about, found)


def test_every_attack_reaches_the_controller() -> None:
    assert {each.program for each in hostile.ATTACKS} == set(attacks.ATTACKS)


def test_a_whole_pool_is_measured_and_its_switches_hold_what_is_calculated_anew() -> None:
    found = scale.measure(300, 8, 1.0, day_seconds=2.0)
    assert found["flows"]["connected"] == 10
    assert found["flows"]["refused"] == 0
    assert found["verified_after_sync"] == found["verified_after_reload"] == 10
    assert found["posts_at_50"]["posts"] == 50
    # Markers show what workers' switches hold, and what cores can do; these are compared, and hold all.
    assert found["restart"]["untouched"] == found["workers"] + len(CORES)
    assert found["restart"]["flow_mods"] == 0
    assert found["restart_with_posts"]["status"] == 201
    assert set(found["restart_with_posts"]["posts"]["statuses"]) <= {201}
    assert found["day"]["starts"] > 0
    assert found["day"]["statuses"] == [200, 201]
    # The processor's time is counted in hundredths of a second, which a short form may not take.
    assert found["counters"]["share"] >= 0
    assert "no_time_for" not in found
    rows = list(report._scale(found))
    assert len({row[0] for row in rows}) == len(rows)


def test_switches_have_a_master_again_after_each_kill_and_nothing_is_changed() -> None:
    kept: list[int] = []
    found = takeovers.measure(200, 6, 2, 0.0, keep=lambda figures: kept.append(figures["kills"]))
    assert (found["kills"], found["jobs"]) == (2, 200)
    # A run that is interrupted has the figures of the kills so far.
    assert kept == [1, 2]
    assert all(each["copied"] + each["in_sync"] <= each["cycle"] for each in found["each"])
    assert 0 < found["first"]["p50"] <= found["last"]["p50"] <= found["in_sync"]["worst"]
    assert found["changed"]["worst"] == 0
    about = {"cores": 2, "kernel": "6.1", "python": "3.11", "load": 0.1}
    assert "| until all have |" in report.taken_over(about, found)


def test_a_switch_is_unmarked_until_its_controller_has_marked_it() -> None:
    fleet = Fleet([0], 2, 4)
    assert fleet.unmarked() == {"edges": 2}
    marker = Marker(1, 2, normal=True, tracks=False).flow(9)
    fleet.switches[1].data_received(wire.flow_add(1, marker))
    assert fleet.unmarked() == {"edges": 1}


def test_one_and_two_instances_are_asked_the_same_and_nothing_that_was_acknowledged_is_missing() -> None:
    kept: list[int] = []
    found = instances.measure(256, 1.0, range(1, 3), keep=lambda figures: kept.append(len(figures["rows"])))
    assert kept == [1, 2]
    one, two = found["rows"]
    assert "standby" not in one
    for row, asked in ((one, "active"), (two, "active"), (two, "standby")):
        assert row[asked]["most"]["statuses"] == row[asked]["steady"]["statuses"] == [201]
        assert row[asked]["per_second"] > 0
    assert one["changes"]["per_second"] > 0
    assert len(two["changes"]["busy"]) == len(two["memory"]) == 2
    assert 0.0 <= two["changes"]["age_p50"] <= two["changes"]["age_worst"]
    assert "feed" not in one
    assert two["feed"]["per_second"] > 0
    assert len(two["feed"]["busy"]) == 1
    assert two["lost"]["acknowledged"] == two["lost"]["posts"] > 0
    assert two["lost"]["missing"] == 0
    about = {"cores": 2, "kernel": "6.1", "python": "3.11", "load": 0.1}
    table = instances_report.several(about, found)
    assert "| what | 1 instance | 2 instances |" in table
    assert all(line.count("|") == 4 for line in table.splitlines() if line.startswith("|"))
    assert "| memory of each that is left; at most | – |" in table


def test_a_measurement_whose_time_is_over_has_the_figures_that_it_found(tmp_path: Path) -> None:
    run = scale.Scale(tmp_path, 1, 1, iter(()), {}, ends_at=0.0)
    assert not run.time_for("restart")
    assert run.found == {"no_time_for": ["restart"]}
