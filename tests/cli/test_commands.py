from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from lark_common import controllers
from lark_common.client import ProblemError
from lark_controller.accounting.pairs import PairUse
from lark_controller.accounting.readings import TransferCounts
from lark_controller.accounting.usage import JobUsage, Peak, Usage
from lark_controller.api.drops import DropsByDown
from lark_controller.api.jobs import TransferState
from lark_controller.api.usage import TransferReport
from lark_controller.cli import main as cli
from lark_controller.cli import printing, traffic_tables
from lark_controller.policies.transfer_rules import TransferTerms
from lark_controller.qos.pair_advice import pair_advice
from tests.fixtures.fake_controls import DPID, TOKENS, bearer, post_body
from tests.fixtures.fake_usage import a_pair
from tests.fixtures.rest_app import Api


def test_jobs(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    job = served.register(1, "alice")
    served.register(2, "bob")
    assert cli.main(["jobs", "--owner", "alice"]) == cli.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["JOB", "STATE", "OWNER", "GROUP", "HOST", "ADDRESSES", "REASON"]
    assert lines[1].split() == [
        f"{job['cluster']}.{job['proc']}",
        "registering",
        "alice",
        "group_cms",
        "worker1.example",
        "10.64.0.1",
    ]
    assert len(lines) == 2
    assert cli.main(["jobs", "--json"]) == cli.OK
    assert [each["owner"] for each in json.loads(capsys.readouterr().out)] == ["alice", "bob"]
    for name in (job["id"], job["id"][:5], f"{job['cluster']}.{job['proc']}", job["global_job_id"], "10.64.0.1"):
        assert cli.main(["jobs", name]) == cli.OK
        shown = capsys.readouterr().out
        assert "slice, line 7: true" in shown
        assert job["id"] in shown
    assert cli.main(["jobs", "10.99.0.1"]) == cli.NO
    assert capsys.readouterr().err == "lark: No live job has the address 10.99.0.1.\n"


def test_the_jobs_of_a_cluster(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    found = [served.register(8, "bob")]
    for proc in range(3):
        body = post_body(7, "alice" if proc else "bob").replace("#7.0#", f"#7.{proc}#").replace("slot1_7", f"s{proc}")
        found.append(served.post(body.replace("ProcId = 0", f"ProcId = {proc}")).json)

    def listed(*words: str) -> list[str]:
        assert cli.main(["jobs", *words]) == cli.OK
        return [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]

    assert listed("7") == ["7.0", "7.1", "7.2"]
    assert listed("7", "--owner", "alice") == ["7.1", "7.2"]
    # One of them has this number, and others have none.
    assert cli.main(["jobs", "8"]) == cli.OK
    assert found[0]["id"] in capsys.readouterr().out
    assert cli.main(["jobs", "9"]) == cli.NO
    # What is for one job says which there are.
    assert cli.main(["advice", "7"]) == cli.NO
    assert "7 may mean several jobs: " in capsys.readouterr().err
    for each in found[1:]:
        served.client.delete(f"/v1/jobs/{each['id']}", headers=bearer("hook"))
    assert listed("7") == ["7.0", "7.1", "7.2"]


@pytest.mark.parametrize("word", ["7.0", "a#7.0", "a#7@b", "seven", ""])
def test_a_cluster_is_a_number(served: Api, word: str) -> None:
    assert served.get("/v1/jobs?cluster=" + quote(word)).status_code == 422


def test_a_job_shows_its_vlan(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    for number, (more, shown) in enumerate(
        (("", "ovs_bridge, port"), ("\nVLAN = 301", "ovs_bridge, VLAN 301, port")), 1
    ):
        job = served.post(f"{post_body(number).rstrip()}{more}\n").json["id"]
        assert cli.main(["jobs", job]) == cli.OK
        assert re.search(rf"^attached +{shown} ", capsys.readouterr().out, re.MULTILINE)


def test_advice(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    body = post_body(1).replace("JobPrio = 0", "RequestBandwidth = 100")
    job = served.post(body).json["id"]
    assert cli.main(["advice", "1.0"]) == cli.OK
    assert capsys.readouterr().out == (
        "nothing is known of its use: the policy does not count it, or it is not kept any more\n"
    )
    usage = Usage(bytes_out=1_250_000_000, packets_out=900_000)
    peak = Peak(0, 34_000_000)
    for final, begin in ((False, "so far: "), (True, "")):
        served.controls.jobs.used[job] = JobUsage(usage, at=1.7e9 + 1000, final=final, peak=peak)
        for name in ("1.0", job, job[:5]):
            assert cli.main(["advice", name]) == cli.OK
            assert capsys.readouterr().out.splitlines() == [
                f"{begin}asked for 100 Mb/s, used 34 at most, never throttled: 40 is enough",
                "          MEAN   HIGHEST  LOST IN QUEUES",
                "sent      10.00  34.00    0",
                "received  0.00   0.00     0",
                "In the submit file: request_bandwidth = 40",
            ]
    assert cli.main(["advice", "1.0", "--json"]) == cli.OK
    shown = json.loads(capsys.readouterr().out)
    assert (shown["advised"], shown["pairs"]["pairs"]) == (40, [])
    served.controls.jobs.used[job] = JobUsage(usage, at=1.7e9 + 1000, final=True, peak=Peak(0, 95_000_000))
    assert cli.main(["advice", "1.0"]) == cli.OK
    assert "request_bandwidth" not in capsys.readouterr().out
    assert cli.main(["advice", "77.0"]) == cli.NO


def test_advice_by_pair(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    job, peer = served.register(1)["id"], served.register(2)["id"]
    use = PairUse(peer, "worker1", "", False, True, 800, 800)
    inside = replace(a_pair(job, peer), name="node 0 to node 2", advice=pair_advice(use))
    served.controls.usage.reserved = [a_pair(job, peer), inside]
    table = [
        "2 pairs, 1 asked for too much, 40 for each is enough; node 0 to node 1: asked for steady 50 to 100 Mb/s,"
        " used 34 at most, never throttled, lost 3 packets in its queue: 40 is enough",
        "PAIR              ASKED          MEAN  HIGHEST  THROTTLED  LOST  ADVISED",
        "node 0 to node 1  50-100 steady  8.00  34.00    0 %        3     40       too much",
        "node 0 to node 2  0.8            -     -        -          -     -        needs no link",
        "One rate for each of them: 40 Mb/s",
    ]
    assert cli.main(["advice", "1.0"]) == cli.OK
    assert capsys.readouterr().out.splitlines()[1:] == table
    assert cli.main(["advice", "2.0", "--application"]) == cli.OK
    assert capsys.readouterr().out.splitlines() == table
    assert cli.main(["advice", "1.0", "--json"]) == cli.OK
    assert len(json.loads(capsys.readouterr().out)["pairs"]["pairs"]) == 2
    assert cli.main(["advice", "2.0", "--application", "--json"]) == cli.OK
    assert json.loads(capsys.readouterr().out)["jobs"] == 2
    assert cli.main(["advice", "77.0", "--application"]) == cli.NO


@pytest.mark.parametrize("status", [403, 404, 500])
def test_advice_where_pairs_are_refused(
    served: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    job = served.register(1)["id"]
    if status == 403:
        monkeypatch.setenv("LARK_TOKEN", TOKENS["hook"])
    else:

        def pairs(*_: object, **__: object) -> None:
            raise ProblemError(status, {"detail": "refused"})

        monkeypatch.setattr("lark_common.client.Client.pairs", pairs)
    expected = cli.NO if status == 500 else cli.OK
    assert cli.main(["advice", job]) == expected
    assert capsys.readouterr().out.startswith("nothing is known of its use") == (expected == cli.OK)


def test_a_number_that_two_access_points_have_is_shown_with_them(capsys: pytest.CaptureFixture[str]) -> None:
    made = [
        {"id": f"{point}{number}", "cluster": number, "proc": 0, "global_job_id": f"{point}#{number}.0#17"}
        for point, number in (("submit1", 7), ("submit2", 7), ("submit1", 8))
    ]
    rest = {"state": "enforced", "owner": "a", "group": "g", "host": "w", "addresses": [], "reason": ""}
    printing.jobs([each | rest for each in made])
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["submit1#7.0", "submit2#7.0", "8.0"]


def test_rates_of_jobs_have_their_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    rate = {"outward": 1.0, "inward": 2.0, "wan_outward": 0.0, "wan_inward": 0.0}
    rest = {"rate": rate, "jobs": 1, "user": "alice", "group": "g", "host": "worker1"}
    # The name by which a job is found; its GlobalJobId may have another number.
    names = ("submit1.example#103.0", "", None)
    found = [{"name": f"id{at}", "global_job_id": "a#104.0#1", "job_name": each} for at, each in enumerate(names)]
    traffic_tables.rates([each | rest for each in found], "job", traffic_tables.Unknown())
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["submit1.example#103.0", "id1", "id2"]


@pytest.mark.parametrize("by", ["group", "user", "host", "access_point", "job"])
def test_top_by_each_subject(served: Api, capsys: pytest.CaptureFixture[str], by: str) -> None:
    assert cli.main(["top", "--once", "--by", by]) == cli.OK
    assert capsys.readouterr().out.startswith(by.upper().replace("_", " "))


def test_audit(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    job, other = served.register(1, "alice"), served.register(2, "bob")
    served.controls.jobs.forged(job["id"], "worker1", "Owner is forged")
    assert cli.main(["audit"]) == cli.OK
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["WHEN", "WHO", "WHAT", "CONCERNS", "DETAIL"]
    assert [f"{other['cluster']}.0" in line for line in lines] == [False, True, False]
    assert lines[0].split()[1:] == ["worker1", "forged", "ad", f"{job['cluster']}.0", "Owner", "is", "forged"]
    assert cli.main(["audit", job["id"], "--json", "--limit", "1"]) == cli.OK
    assert [each["action"] for each in json.loads(capsys.readouterr().out)] == ["forged ad"]
    for word, code, told in (
        ("worker1", cli.OK, "."),
        ("policy", cli.OK, "."),
        ("nosuch", cli.NO, ", and neither a job"),
    ):
        assert cli.main(["audit", word]) == code
        out, err = capsys.readouterr()
        assert (out, err.startswith(f"There is no event of {word}{told}")) == ("", True)


def test_output_of_a_terminal_has_colours_and_no_control_characters(
    served: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = served.register()
    served.controls.jobs.known[job["id"]] = replace(served.controls.jobs.known[job["id"]], reason="\x1b[2J")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    cli.main(["jobs"])
    shown = capsys.readouterr().out
    assert "\x1b[33mregistering" in shown
    assert "\x1b[2J" not in shown


def test_top(served: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["top", "--once"]) == cli.OK
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert shown.split() == [
        "GROUP", "ACTIVE", "OUT", "IN", "WAN", "OUT", "WAN", "IN", "MOVED", "OUT", "MOVED", "IN",
        "group_cms", "2", "4.00", "8.00", "0.00", "2.00", "0.00", "0.00",
    ]  # fmt: skip
    assert cli.main(["top", "--json", "--by", "user"]) == cli.OK
    assert json.loads(capsys.readouterr().out)[0]["rate"]["inward"] == 8.0
    looks = []

    def pause(seconds: float) -> None:
        looks.append(seconds)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", pause)
    assert cli.main(["top", "--interval", "3"]) == 130
    assert looks == [3.0, 3.0]
    assert capsys.readouterr().out.count("GROUP") == 2


def test_a_job_shows_what_was_moved_for_it_and_together_with_its_own(
    served: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    job = served.register()["id"]
    report = TransferReport(TransferCounts(4_000_000, 2_000_000, 1_000_000, 0, 3_000))
    host = served.get(f"/v1/jobs/{job}").json["host"]
    assert served.controls.usage.transferred(host, {job: report}).missing == frozenset()
    assert cli.main(["jobs", job]) == cli.OK
    shown = " ".join(capsys.readouterr().out.split())
    assert "transfers out 2.0 MB (0 B WAN), in 4.0 MB (1.0 MB WAN), in 3 s; now 0.0 out, 0.0 in Mb/s" in shown
    assert "together 2.0 MB out, 4.0 MB in" in shown


def test_a_job_shows_the_rule_of_its_transfers_and_why_it_is_not_in_place(
    served: Api, capsys: pytest.CaptureFixture[str]
) -> None:
    job = served.register()["id"]
    assert cli.main(["jobs", job]) == cli.OK
    assert "transfer rule" not in capsys.readouterr().out
    terms = TransferTerms("bulk", 50.0)
    for state, shown in (
        (TransferState(True), "at most 50 Mb/s, group bulk"),
        (TransferState(False, "no nf_tables"), "at most 50 Mb/s, group bulk; pending: no nf_tables"),
    ):
        served.controls.jobs.terms = terms, state
        assert cli.main(["jobs", job]) == cli.OK
        assert re.search(rf"^transfer rule +{re.escape(shown)}$", capsys.readouterr().out, re.MULTILINE)
        found = served.get(f"/v1/jobs/{job}").json
        assert found["transfers"] == {"enforced": state.enforced, "reason": state.reason}
        assert found["decision"]["transfers"] == {
            "group": "bulk", "rate": 50.0, "group_rate": None, "access_point_rate": None, "port": None,
            "block": False, "words": "at most 50 Mb/s, group bulk",
        }  # fmt: skip


def test_a_wan_port_that_is_down_is_named_for_a_job_and_in_json(
    served: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = served.register()
    assert cli.main(["jobs", job["id"]]) == cli.OK
    assert "is down" not in capsys.readouterr().out
    served.controls.drops.down = (DropsByDown("wan-fast", ("core1",), 1),)
    why = "WAN port wan-fast of core1 is down, and nothing takes its place: what it sends to the WAN is dropped"
    for name in (job["id"], "10.64.0.1"):
        assert cli.main(["jobs", name]) == cli.OK
        assert f"{why}, and not counted as dropped" in re.sub(" +", " ", capsys.readouterr().out)
    assert cli.main(["drops", "--json"]) == cli.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["drops"], told["down"]) == ([], [{"port": "wan-fast", "switches": ["core1"], "jobs": 1}])
    # A hook's token may read jobs, and not what is dropped.
    with monkeypatch.context() as patch:
        patch.setenv("LARK_TOKEN", TOKENS["hook"])
        assert cli.main(["jobs", job["id"]]) == cli.OK
        told = capsys.readouterr()
        assert job["id"] in told.out
        assert "is down" not in told.out + told.err
    served.controls.jobs.end(job["id"], "hook")
    assert cli.main(["jobs", job["id"]]) == cli.OK
    assert "is down" not in capsys.readouterr().out


def test_a_job_says_what_it_used(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    job = served.register()
    cli.main(["jobs", job["id"]])
    assert re.search(r"^used +not counted$", capsys.readouterr().out, re.MULTILINE)
    counted = {"bytes_in": 1_500_000, "bytes_out": 999, "packets_in": 1000, "packets_out": 10}
    path = f"/v1/jobs/{job['id']}/counters"
    served.post(json.dumps(counted), path=path, kind="application/json")
    cli.main(["jobs", job["id"]])
    shown = capsys.readouterr().out
    assert "sent 999 B (0 B WAN), received 1.5 MB (0 B WAN), 0 packets dropped; now 4.0 out, 8.0 in Mb/s" in shown


def test_instances(served: Api, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli.main(["instances"]) == cli.OK
    head, active, standby, last = capsys.readouterr().out.splitlines()
    assert head.split()[5:] == ["GENERATION", "BEAT", "COPY", "SWITCHES", "COUNTERS"]
    assert head.split()[:5] == ["NAME", "URL", "VERSION", "STATE", "SINCE"]
    assert active.split()[:4] == ["ctl-a", "http://ctl-a:8080", "0.1.0", "active"]
    assert active.split()[5:] == ["7", "0.4"]
    assert standby.split()[0] == "ctl-b"
    assert "standby" in standby
    assert standby.split()[-4:] == ["0.2", "1.3", "3", "48"]
    assert last.startswith("last takeover: ")
    assert last.endswith(", first, generation 7")
    served.controls.instances.stand_by()
    assert cli.main(["instances"]) == cli.OK
    # One that has no copy yet would load everything where it took over now.
    assert capsys.readouterr().out.splitlines()[2].split()[-2:] == ["0.4", "none"]
    assert cli.main(["instances", "--json"]) == cli.OK
    assert json.loads(capsys.readouterr().out)["generation"] == 8
    instances = served.controls.instances
    instances.listed = replace(instances.listed, age=42.3)
    assert cli.main(["instances"]) == cli.OK
    assert "The database does not answer: this was read 42 s ago" in capsys.readouterr().err
    # None becomes active here, however long is waited for it.
    monkeypatch.setattr(controllers, "PAUSE", 3600.0)
    assert cli.main(["jobs"]) == cli.NO
    assert "ctl-b at http://ctl-b:8080 is active" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("state", "tokens", "warned"),
    [("standby", "b", True), ("standby", "a", False), ("lost", "b", False), ("standby", "", False)],
)
def test_instances_with_other_tokens_are_named(
    served: Api, capsys: pytest.CaptureFixture[str], state: str, tokens: str, warned: bool
) -> None:
    listed = served.controls.instances.listed
    first, second = listed.instances
    pair = (replace(first, tokens="a"), replace(second, state=state, tokens=tokens))
    served.controls.instances.listed = replace(listed, instances=pair)
    assert cli.main(["instances"]) == cli.OK
    assert ("ctl-a and ctl-b differ" in capsys.readouterr().err) == warned


@pytest.mark.parametrize("successor", [True, False, None])
def test_instances_that_cannot_take_over_are_named(
    served: Api, capsys: pytest.CaptureFixture[str], successor: bool | None
) -> None:
    listed = served.controls.instances.listed
    first, second = listed.instances
    served.controls.instances.listed = replace(listed, instances=(first, replace(second, successor=successor)))
    assert cli.main(["instances"]) == cli.OK
    assert ("ctl-b cannot take over" in capsys.readouterr().err) == (successor is False)


def test_drain(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["drain"]) == cli.OK
    assert capsys.readouterr().out == "ctl-a lets go\n"
    assert cli.main(["drain", "ctl-b"]) == cli.NO
    assert "not the active instance" in capsys.readouterr().err
    served.controls.instances.listed = replace(served.controls.instances.listed, active=None)
    assert cli.main(["drain"]) == cli.NO
    assert "No controller is active" in capsys.readouterr().err
    assert len(served.controls.instances.drained) == 1


def test_switches(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["switches"]) == cli.OK
    assert "never connected" in capsys.readouterr().out
    assert cli.main(["switches", "worker1"]) == cli.OK
    assert "table full" in capsys.readouterr().out
    assert cli.main(["switches", DPID, "--flows"]) == cli.OK
    assert re.search("0 admit +100 +7 +installed +job 1 +in_port=1 +goto:1", capsys.readouterr().out)
    assert cli.main(["switches", DPID, "--json"]) == cli.OK
    assert json.loads(capsys.readouterr().out)["name"] == "worker1"
    assert cli.main(["switches", "nobody"]) == cli.NO
    assert cli.main(["switches", "--flows"]) == cli.USAGE


def test_explain(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["explain", "10.0.0.1", "10.0.0.2"]) == cli.NO
    assert "dropped: 10.0.0.1 to 10.0.0.2: Different users." in capsys.readouterr().out
    assert cli.main(["explain", "here", "there"]) == cli.NO
    assert "an address is accepted too" in capsys.readouterr().err


def test_an_answer_that_is_not_read_to_its_end_has_a_code_of_its_own(served: Api) -> None:
    # 0 would be "forwarded", whatever the answer is.
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "lark_controller.cli.main", "explain", "10.0.0.1", "10.0.0.2"]
    try:
        done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=60)
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (cli.UNREAD, "")


def test_map(served: Api, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["map"]) == cli.OK
    switches, users = capsys.readouterr().out.split("\n\n")
    head, wan, *rows = [line.split() for line in switches.splitlines()]
    assert head == ["SWITCH", "STATE", "JOBS", "OUT", "IN", "MBIT/S"]
    assert wan[:5] == ["all", "jobs", "to", "the", "WAN"]
    assert rows[:3] == [
        ["core1", "away"],
        ["core1", "wan", "WAN,", "up", "8.0", "4.0", "1000"],
        ["core1", "eth1", "site,", "down"],
    ]
    assert [row[:3] for row in rows[3:]] == [
        ["worker9", "jobs", "wait"],
        ["worker1", "in", "sync"],
        ["all", "jobs", "to"],
    ]
    assert [line.split() for line in users.splitlines()] == [
        ["FROM", "JOBS", "WAN", "TO", "alice", "TO", "bob"],
        ["alice", "2", "all", "all", "none"],
        # A single job has no other of its user's to reach.
        ["bob", "1", "some", "none", "–"],
        ["…", "and", "7", "jobs", "of", "3", "other", "users"],
    ]
    assert cli.main(["map", "--json"]) == cli.OK
    assert json.loads(capsys.readouterr().out)["other_jobs"] == 7


def test_token_files(served: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = tmp_path / "token"
    held.write_text(TOKENS["hook"] + "\n")
    assert cli.main(["jobs", "--token-file", str(held)]) == cli.NO
    monkeypatch.delenv("LARK_TOKEN")
    monkeypatch.setenv("LARK_TOKEN_FILE", str(held))
    assert cli.main(["jobs"]) == cli.NO
    held.write_text(TOKENS["read"])
    assert cli.main(["jobs"]) == cli.OK
    assert cli.main(["jobs", "--token-file", str(tmp_path / "none")]) == cli.USAGE


def test_no_controller(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert cli.main(["jobs", "--url", f"unix:{tmp_path}/none.sock"]) == cli.UNREACHABLE
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert cli.main(["jobs", "--url", "ftp://x"]) == cli.USAGE
