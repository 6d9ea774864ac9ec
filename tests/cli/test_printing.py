"""Tables that leave something out, or have nothing to show, say so."""

from __future__ import annotations

from typing import Any

import pytest

from lark_controller.cli import printing, traffic_tables
from lark_controller.cli.traffic_tables import Unknown


def a_plan(**switch: int) -> dict[str, Any]:
    changed = {"datapath": "00000000000000c0", "name": "core1", "added": 0, "changed": 0, "removed": 0, "total": 9}
    return {
        "jobs_examined": 1, "jobs_changed": 0, "effects": [], "jobs": [], "refusals": [], "warnings": [],
        "switches": [{**changed, "max_rules": 0, "sample": [], "meters": 0, **switch}],
    }  # fmt: skip


def test_a_plan_of_meters_alone_says_that_no_flow_would_change(capsys: pytest.CaptureFixture[str]) -> None:
    printing.plan(a_plan(meters=2), jobs=False, flows=False)
    told = capsys.readouterr().out.splitlines()
    assert told[1:3] == ["no flow would change", "2 meters on 1 switch would change"]
    printing.plan(a_plan(meters=2), jobs=False, flows=True)
    assert "core1: +0 ~0 -0, then 9 flows; 2 meters would change\n" in capsys.readouterr().out
    printing.plan(a_plan(added=3), jobs=False, flows=False)
    told = capsys.readouterr().out.splitlines()
    assert told[1:] == ["flows on 1 switch would change: 3 new, 0 changed, 0 gone", "More with --flows."]


def test_drops_of_switches_that_are_away_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    traffic_tables.drops({"drops": []})
    assert capsys.readouterr().out == "Nothing is dropped now.\n"
    traffic_tables.drops({"drops": [], "away": 2})
    told = "Not known: what is dropped at 2 switches that cannot be asked (`lark switches`)"
    assert capsys.readouterr().out.splitlines() == ["Of what is known: nothing is dropped now.", told]


def test_a_wan_port_that_is_down_is_named_though_its_drops_are_not_counted(capsys: pytest.CaptureFixture[str]) -> None:
    traffic_tables.drops({"drops": [], "down": [{"port": "wan-fast", "switches": ["core1"], "jobs": 2}]})
    assert capsys.readouterr().out.splitlines() == [
        "Of what is known: nothing is dropped now.",
        "WAN port wan-fast of core1 is down, and nothing takes its place: what 2 jobs would send by it is dropped, "
        "and not counted",
    ]


def test_rates_at_switches_that_are_away_are_not_known(capsys: pytest.CaptureFixture[str]) -> None:
    traffic_tables.rates([], "group", Unknown(away=1))
    head, *told = capsys.readouterr().out.splitlines()
    assert head.startswith("GROUP")
    assert told == [
        "Of what is known: no job sends or receives anything now.",
        "Not known: what jobs send and receive at 1 switch that cannot be asked (`lark switches`)",
    ]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({}, "; now 2.0 out, 1.0 in Mb/s"),
        ({"unread": True}, "; the rate now is not known"),
        ({"unread": True, "final": True}, ""),
    ],
)
def test_a_rate_that_is_not_known_is_not_shown_as_none(more: dict[str, bool], said: str) -> None:
    names = "bytes", "wan_bytes", "policy_drops", "rate_drops"
    counts = {f"{name}_{way}": 0 for name in names for way in ("in", "out")}
    usage = {**counts, "rate": {"outward": 2.0, "inward": 1.0}, "final": False, **more}
    assert printing._used(usage).endswith(f"0 packets dropped{said}")


def test_each_line_of_a_difference_has_its_sign(capsys: pytest.CaptureFixture[str]) -> None:
    """A text that is in the store may have other line breaks of YAML."""
    each = {"version": 1, "at": "2026-11-24T00:00:00Z", "actor": "operator"}
    printing.policy_difference({"old": each, "new": each, "diff": "@@ -1,0 +1,1 @@\n+# harmless\u2028groups: {}\r\n"})
    assert capsys.readouterr().out.split("\n")[3:] == ["+# harmless\ufffdgroups: {}\ufffd", ""]


def test_the_origin_of_a_flow_is_shown_before_what_may_be_long(capsys: pytest.CaptureFixture[str]) -> None:
    flow = {"table": 4, "table_name": "wan", "priority": 100, "packets": 7, "state": "installed"}
    rest = {"origin": "wan drop (policy line 32)", "match": "ip", "actions": ""}
    printing.flows([{**flow, **rest}, {**flow, **rest, "match": "m" * 90, "actions": "a" * 900}])
    short = capsys.readouterr().out.splitlines()[1]
    assert short.index("policy line 32") < 80
    assert len(short) < 200
    assert short.endswith("drop")


def test_what_is_not_counted_is_not_said_to_be_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    traffic_tables.drops({"drops": [], "uncounted": 3})
    assert capsys.readouterr().out.splitlines() == [
        "Of what is known: nothing is dropped now.",
        "Not counted under this policy: what is dropped of 3 jobs (`accounting`)",
    ]
    traffic_tables.drops({"drops": [], "away": None, "cores_unread": 1})
    assert capsys.readouterr().out.splitlines() == [
        "Of what is known: nothing is dropped now.",
        "Not known: what is dropped of groups at 1 core switch not looked at twice yet, or not answering",
    ]
    traffic_tables.rates([], "group", Unknown(uncounted=1))
    assert capsys.readouterr().out.splitlines()[1:] == [
        "Of what is known: no job sends or receives anything now.",
        "Not counted under this policy: what is sent and received by 1 job (`accounting`)",
    ]


def test_a_list_of_reservations_says_which_are_not_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    flow: dict[str, Any] = {
        "id": "r1", "kind": "flow", "rate": 5.0, "source": "w1", "destination": "w2", "job": "a" * 16,
        "job_name": "103.0", "peer": "b" * 16, "peer_name": "104.0", "until": None, "state": "pending", "reason": "why",
    }  # fmt: skip
    nobodys = {**flow, "id": "r2", "job": None, "job_name": None, "peer": None, "peer_name": None, "state": None}
    printing.reservations([flow, {**flow, "id": "r3", "state": "enforced", "reason": ""}, nobodys])
    told = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [each[3] for each in told] == [
        "w1    w2, job 104.0  103.0  its jobs end  pending: why",
        "w1    w2, job 104.0  103.0  its jobs end  enforced",
        "w1    w2                    its jobs end",
    ]
