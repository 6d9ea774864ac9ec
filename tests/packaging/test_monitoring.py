"""Prometheus's rules and Grafana's dashboard, by Prometheus's own checks, and about metrics that are there."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from lark_controller import __version__
from lark_controller.api.switches import WanPortStatus
from tests.fixtures.fake_controls import post_body
from tests.fixtures.rest_app import make_api

ROOT = Path(__file__).parents[2]
RULES: dict[str, Any] = yaml.safe_load((ROOT / "etc/prometheus/lark.rules.yml").read_text())
DASHBOARD: dict[str, Any] = json.loads((ROOT / "etc/grafana/lark.json").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
# The page of what was tried.
PACKAGES = "docs/how-to/packages.md"
FUNCTIONS = {
    "rate",
    "increase",
    "sum",
    "count",
    "min",
    "max",
    "topk",
    "histogram_quantile",
    "time",
    "changes",
    "by",
    "and",
    "on",
    "ignoring",
}


def rules() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def expressions() -> list[str]:
    found = [rule["expr"] for rule in rules()]
    found += [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return found + [each["expr"] for each in DASHBOARD["annotations"]["list"]]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The content of a scrape: each name with its labels."""
    api = make_api(tmp_path_factory.mktemp("metrics"))
    api.post(post_body(), path="/v1/jobs?wait=1")
    found: dict[str, set[str]] = {}
    for line in api.get("/metrics").text.splitlines():
        read = re.match(r"([a-z_]+)(?:\{(.*)\})? ", line)
        if read:
            found.setdefault(read[1], set()).update(re.findall(r'(\w+)="', read[2] or ""))
    documented = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    for name, labels in re.findall(r"^\| `(lark_[a-z_]+)` \| [a-z]+ \| ([^|]*)\|", documented, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r"`(\w+)`", labels))
    return found


@pytest.mark.parametrize("expression", expressions())
def test_expressions_ask_for_metrics_and_labels_that_are_there(expression: str, series: dict[str, set[str]]) -> None:
    bare = re.sub(r'"[^"]*"', '""', expression)
    for opening, closing in ("()", "[]", "{}"):
        assert bare.count(opening) == bare.count(closing), expression
    for name, chosen in re.findall(r"\b(lark_[a-z_]+)(?:\{([^}]*)\})?", bare):
        assert name in series, name
        assert set(re.findall(r"(\w+)=", chosen)) <= series[name] | {"le", "instance"}, expression
    named = {name for name in re.findall(r"\b([a-z_]+)\s*\(", bare) if not name.startswith("lark_")}
    assert named <= FUNCTIONS, expression
    for labels in re.findall(r"by \(([^)]*)\)", bare):
        known = set().union(*(series[name] for name in re.findall(r"\blark_[a-z_]+", bare)), {"le"})
        assert {label.strip() for label in labels.split(",")} <= known, expression


def promtool(*arguments: str | Path, given: str = "") -> str:
    """The complaint of Prometheus's own program, "" where it is content; fails where it finds mistakes."""
    done = subprocess.run(["promtool", *map(str, arguments)], input=given, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def test_prometheus_has_nothing_against_the_metrics(tmp_path: Path) -> None:
    api = make_api(tmp_path)
    api.post(post_body(), path="/v1/jobs?wait=1")
    api.get("/v1/jobs")
    assert promtool("check", "metrics", given=api.get("/metrics").text) == ""


def test_every_route_has_its_latency_and_the_process_its_own_metrics(tmp_path: Path) -> None:
    api = make_api(tmp_path)
    api.register(1)
    api.get("/v1/jobs/0123456789abcdef")
    api.client.get("/nowhere")
    text = api.get("/metrics").text
    for route, method in (("/v1/jobs", "POST"), ("/v1/jobs/<job_id>", "GET"), ("none", "GET")):
        assert f'lark_http_request_seconds_count{{method="{method}",route="{route}"}} 1.0\n' in text
    assert re.search(r"^process_resident_memory_bytes [1-9]", text, re.MULTILINE)
    assert re.search(rf'^lark_build_info{{python="3[^"]*",version="{__version__}"}} 1.0$', text, re.MULTILINE)


def test_prometheus_takes_every_rule_and_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    promtool("check", "rules", ROOT / "etc/prometheus/lark.rules.yml")
    variables = {"$__rate_interval": "5m", "$instance": ".*", "$group": ".*", "$switch": ".*"}
    records = []
    for number, expression in enumerate(expressions()):
        filled = re.sub(r"\$\w+", lambda found: variables[found[0]], expression)
        records.append({"record": f"dashboard:{number}", "expr": filled})
    written = tmp_path / "rules.yml"
    written.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}))
    promtool("check", "rules", written)


TWO = {"a": "1x20", "b": "0x20"}
READY = {"a": "0x20", "b": "1x20"}
COPIED = {"a": "0x20", "b": "0+60x20"}
TAKEN = {"a": "0x20", "b": "0x20"}
UP = {"a": "1x20", "b": "1x20"}
OLD = {"LarkCopyOld": [{"job": "lark", "instance": "b"}]}


# Values of each minute: which one is active, which could take over, when its copy was right, its takeovers from one
# that was lost, which ones answer.
@pytest.mark.parametrize(
    ("active", "successor", "copy", "taken", "up", "fired"),
    [
        pytest.param(TWO, READY, COPIED, TAKEN, UP, {}, id="one stands by"),
        pytest.param(
            {"a": "1x20"}, {"a": "0x20"}, {"a": "0x20"}, {"a": "0x20"}, {"a": "1x20"}, {}, id="one is all there is"
        ),
        pytest.param(
            TWO, {"a": "0x20", "b": "1x4 0x15"}, COPIED, TAKEN, UP, {"LarkNoneStandsBy": [{}]},
            id="one that stands by does not know the tables",
        ),
        pytest.param(
            TWO, {"a": "0x20"}, COPIED, TAKEN, UP, {"LarkNoneStandsBy": [{}]}, id="one of a release before the metric"
        ),
        pytest.param(
            {"a": "1x9 _x10", "b": "0x9 1x10"}, {"a": "0x9 _x10", "b": "1x9 0x10"},
            {"a": "0x20", "b": "0+60x9 0x10"}, {"a": "0x20", "b": "0x9 1x10"}, {"a": "1x9 0x10", "b": "1x20"},
            {"LarkTookOver": [{"job": "lark", "instance": "b", "reason": "silent"}], "LarkNoneStandsBy": [{}]},
            id="one is lost",
        ),
        pytest.param(TWO, READY, {"a": "0x20", "b": "0x20"}, TAKEN, UP, OLD, id="no copy"),
        pytest.param(TWO, READY, {"a": "0x20", "b": "0+60x2 120x18"}, TAKEN, UP, OLD, id="an old copy"),
    ],
)  # fmt: skip
def test_alerts_of_several_controllers_fire_where_they_should(
    tmp_path: Path,
    active: dict[str, str],
    successor: dict[str, str],
    copy: dict[str, str],
    taken: dict[str, str],
    up: dict[str, str],
    fired: dict[str, list[dict[str, str]]],
) -> None:
    series = [
        {"series": f'{name}{{job="lark",instance="{one}"{more}}}', "values": values}
        for name, more, each in (
            ("lark_instance_active", "", active),
            ("lark_instance_successor", "", successor),
            ("lark_directory_copy_timestamp_seconds", "", copy),
            ("lark_instance_takeovers_total", ',reason="silent"', taken),
            ("up", "", up),
        )
        for one, values in each.items()
    ]
    expected = [
        {
            "eval_time": "18m",
            "alertname": rule["alert"],
            "exp_alerts": [
                {
                    "exp_labels": labels | rule["labels"],
                    "exp_annotations": {key: _filled(text, labels) for key, text in rule["annotations"].items()},
                }
                for labels in fired.get(rule["alert"], [])
            ],
        }
        for rule in rules()
        if rule["alert"] in ("LarkTookOver", "LarkNoneStandsBy", "LarkCopyOld")
    ]
    written = tmp_path / "test.yml"
    written.write_text(
        yaml.safe_dump(
            {
                "rule_files": [str(ROOT / "etc/prometheus/lark.rules.yml")],
                "evaluation_interval": "1m",
                "tests": [{"interval": "1m", "input_series": series, "alert_rule_test": expected}],
            }
        )
    )
    promtool("test", "rules", written)


# Values of each minute for two hours: of a controller for which every alert that one alone can have is to fire, and of
# one that is well.
ILL = {
    "lark_instance_active": "1x120",
    "lark_instance_generation": "1+1x120",
    "lark_ready": "0x120",
    'lark_switch_connected{switch="away"}': "0x120",
    'lark_switch_in_sync{switch="away"}': "0x120",
    'lark_switch_connected{switch="other"}': "1x120",
    'lark_switch_in_sync{switch="other"}': "0x120",
    'lark_switch_flows{switch="other"}': "95x120",
    'lark_switch_flow_limit{switch="other"}': "100x120",
    'lark_wan_port_down{switch="other",port="wan"}': "1x120",
    'lark_wan_port_unreplaced{switch="other",port="wan"}': "1x120",
    'lark_wan_port_down{switch="other",port="wan-fast"}': "1x120",
    'lark_wan_port_unreplaced{switch="other",port="wan-fast"}': "0x120",
    'lark_jobs{state="pending"}': "10x120",
    'lark_jobs{state="quarantined"}': "1x120",
    "lark_guarantees_missed_total": "0+1x120",
    'lark_pool_readings_total{result="failed"}': "0+1x120",
    'lark_pool_readings_total{result="read"}': "1x120",
    "lark_pool_reading_timestamp_seconds": "60x120",
    "lark_flow_errors_total": "0+1x120",
    "lark_switch_drift_total": "0+1x120",
    'lark_group_bytes_total{group="cms",direction="out",scope="wan"}': "0+6000x120",
    'lark_group_ceiling_bytes_per_second{group="cms"}': "100x120",
    'lark_group_drops_total{group="cms",direction="out",reason="policy"}': "0+10x120",
    'lark_group_packets_total{group="cms",direction="out"}': "0+100x120",
    "lark_usage_written_timestamp_seconds": "60x120",
    'lark_post_seconds_bucket{le="5.0"}': "0x120",
    'lark_post_seconds_bucket{le="10.0"}': "0+10x120",
    'lark_post_seconds_bucket{le="+Inf"}': "0+10x120",
    'lark_certificate_end_timestamp_seconds{setting="LARK_REST_TLS_CERT"}': "86400x120",
}
WELL = dict.fromkeys(ILL, "0x120") | {
    "lark_instance_active": "1x120",
    "lark_ready": "1x120",
    "up": "1x120",
    'lark_switch_connected{switch="away"}': "1x120",
    'lark_switch_in_sync{switch="away"}': "1x120",
    'lark_switch_connected{switch="other"}': "1x120",
    'lark_switch_in_sync{switch="other"}': "1x120",
    'lark_switch_flows{switch="other"}': "80x120",
    'lark_switch_flow_limit{switch="other"}': "100x120",
    'lark_jobs{state="enforced"}': "10x120",
    'lark_pool_readings_total{result="read"}': "0+1x120",
    "lark_pool_reading_timestamp_seconds": "0+60x120",
    'lark_group_bytes_total{group="cms",direction="out",scope="wan"}': "0+3000x120",
    'lark_group_ceiling_bytes_per_second{group="cms"}': "100x120",
    'lark_group_packets_total{group="cms",direction="out"}': "0+100x120",
    "lark_usage_written_timestamp_seconds": "0+60x120",
    'lark_post_seconds_bucket{le="5.0"}': "0+10x120",
    'lark_post_seconds_bucket{le="10.0"}': "0+10x120",
    'lark_post_seconds_bucket{le="+Inf"}': "0+10x120",
    'lark_certificate_end_timestamp_seconds{setting="LARK_REST_TLS_CERT"}': "31536000x120",
}
# Alerts of several controllers, of none, and of one that does not answer.
OF_OTHERS = {"LarkTookOver", "LarkNoneStandsBy", "LarkCopyOld", "LarkNoneActive", "LarkControllerDown"}


@pytest.mark.parametrize(
    ("values", "fired"),
    [
        pytest.param(ILL, {rule["alert"] for rule in rules()} - OF_OTHERS, id="every alert"),
        pytest.param(
            {"up": "0x120", "lark_instance_active": "0x120"}, {"LarkControllerDown", "LarkNoneActive"}, id="away"
        ),
        pytest.param(WELL, set(), id="none"),
    ],
)
def test_every_alert_fires_on_what_it_is_for(tmp_path: Path, values: dict[str, str], fired: set[str]) -> None:
    written = tmp_path / "test.yml"
    given = [{"series": _at(name, 'job="lark",instance="a"'), "values": each} for name, each in values.items()]
    asked = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": "110m",
        "exp_samples": [{"labels": f'{{alertname="{each}"}}', "value": 1} for each in sorted(fired)],
    }
    document = {
        "rule_files": [str(ROOT / "etc/prometheus/lark.rules.yml")],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": given, "promql_expr_test": [asked]}],
    }
    written.write_text(yaml.safe_dump(document))
    promtool("test", "rules", written)


def _at(series: str, labels: str) -> str:
    """A series with these labels before its own."""
    name, _, own = series.partition("{")
    return f"{name}{{{labels}{',' if own else ''}{own or '}'}"


def _filled(text: str, labels: dict[str, str]) -> str:
    return re.sub(r"{{ \$labels\.(\w+) }}", lambda found: labels[found[1]], text)


def test_the_dashboard_goes_into_any_grafana() -> None:
    text = json.dumps(DASHBOARD)
    assert set(re.findall(r'"uid": "([^"]*)"', text)) == {"lark", "${datasource}"}
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    assert list(variables) == ["datasource", "instance", "group", "switch"]
    used = {name for name in re.findall(r"\$\{?(\w+)", text) if not name.startswith("__")}
    assert used == set(variables)
    (policy,) = DASHBOARD["annotations"]["list"]
    # The moment at which the policy came into force, in milliseconds, is where the mark stands.
    assert policy["expr"].startswith("lark_policy_timestamp_seconds")
    assert policy["expr"].endswith("* 1000")
    assert policy["useValueForTime"] == "on"


def test_every_alert_says_how_bad_it_is_and_what_it_means() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(names) == len(set(names)) >= 10
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}, rule["alert"]
        assert rule["labels"]["severity"] in ("info", "warning", "critical")
        assert rule["annotations"]["summary"]
        assert re.fullmatch(r"\d+[smh]", rule.get("for", "1m"))


def test_the_dashboard_has_no_two_panels_in_one_place() -> None:
    places: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        grid = panel["gridPos"]
        assert grid["x"] + grid["w"] <= 24
        cells = {
            (x, y) for x in range(grid["x"], grid["x"] + grid["w"]) for y in range(grid["y"], grid["y"] + grid["h"])
        }
        assert not cells & places, panel["title"]
        places |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))


def test_compose_gives_both_what_they_read() -> None:
    config = yaml.safe_load((ROOT / "etc/prometheus/prometheus.yml").read_text())
    prometheus, grafana = COMPOSE["services"]["prometheus"], COMPOSE["services"]["grafana"]
    mounted = {volume.split(":")[1] for volume in prometheus["volumes"]}
    assert set(config["rule_files"]) <= mounted
    (scrape,) = config["scrape_configs"]
    assert Path(scrape["authorization"]["credentials_file"]).name in prometheus["secrets"]
    assert scrape["static_configs"][0]["targets"] == ["controller:8080"]
    source = yaml.safe_load((ROOT / "etc/grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert [(each["type"], each["isDefault"]) for each in source["datasources"]] == [("prometheus", True)]
    assert any(volume.endswith("dashboards/lark.json:ro") for volume in grafana["volumes"])


def test_the_page_names_the_prometheus_of_the_compose_file_and_the_one_that_was_tried() -> None:
    version = COMPOSE["services"]["prometheus"]["image"].rpartition(":v")[2]
    page = (ROOT / "docs/how-to/monitoring.md").read_text("utf-8")
    (tried,) = re.findall(r"made of Debian packages: .*Prometheus ([0-9.]+),", (ROOT / PACKAGES).read_text("utf-8"))
    assert f"the image of {version};" in page
    assert f"Debian's {tried} in its place" in page


def test_no_series_grows_with_jobs_users_or_addresses(tmp_path: Path) -> None:
    api = make_api(tmp_path)

    def names() -> set[str]:
        return {line.rsplit(" ", 1)[0] for line in api.get("/metrics").text.splitlines() if line.startswith("lark_")}

    api.get("/metrics")
    api.register(1)
    before = names()
    for number in range(2, 6):
        api.register(number, owner=f"user{number}")
    assert names() == before


def test_switches_of_one_name_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = make_api(tmp_path)
    one, core = api.controls.switches.all()
    # Bridges that were copied with their descriptions.
    other = replace(one, datapath="00000000000000e2", connected=False)
    monkeypatch.setattr(api.controls.switches, "all", lambda: (one, other, core))
    series = [line.rsplit(" ", 1) for line in api.get("/metrics").text.splitlines() if "lark_switch_connected{" in line]
    assert series == [
        [f'lark_switch_connected{{switch="{name}"}}', value]
        for name, value in ((one.datapath, "1.0"), (other.datapath, "0.0"), ("core1", "0.0"))
    ]


def test_each_wan_port_of_a_core_is_there_with_its_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    api = make_api(tmp_path)
    core = "00000000000000c0"
    ports = (
        WanPortStatus(core, "wan", up=True, replaced=False),
        WanPortStatus(core, "wan-fast", up=False, replaced=True),
        WanPortStatus(core, "wan-spare", up=False, replaced=False),
    )
    monkeypatch.setattr(api.controls.switches, "wan_ports", lambda: ports)
    series = [line for line in api.get("/metrics").text.splitlines() if line.startswith("lark_wan_port_")]
    assert series == [
        f'lark_wan_port_{name}{{port="{port}",switch="core1"}} {value:.1f}'
        for name, values in (("down", (0, 1, 1)), ("unreplaced", (0, 0, 1)))
        for port, value in zip(("wan", "wan-fast", "wan-spare"), values, strict=True)
    ]
