"""Prometheus's rules and Grafana's dashboard: of the right form, and about metrics that are there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fixtures.fake_controls import post_body
from tests.fixtures.rest_app import make_api

ROOT = Path(__file__).parents[2]
RULES: dict[str, Any] = yaml.safe_load((ROOT / "etc/prometheus/lark.rules.yml").read_text())
DASHBOARD: dict[str, Any] = json.loads((ROOT / "etc/grafana/lark.json").read_text())
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
FUNCTIONS = {"rate", "increase", "sum", "min", "max", "topk", "histogram_quantile", "time", "changes", "by", "and"}


def rules() -> Iterator[dict[str, Any]]:
    for group in RULES["groups"]:
        yield from group["rules"]


def expressions() -> list[str]:
    found = [rule["expr"] for rule in rules()]
    found += [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return found + [each["expr"] for each in DASHBOARD["annotations"]["list"]]


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """What a scrape has: each name with its labels."""
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
        assert set(re.findall(r"(\w+)=", chosen)) <= series[name] | {"le"}, expression
    named = {name for name in re.findall(r"\b([a-z_]+)\s*\(", bare) if not name.startswith("lark_")}
    assert named <= FUNCTIONS, expression
    for labels in re.findall(r"by \(([^)]*)\)", bare):
        known = set().union(*(series[name] for name in re.findall(r"\blark_[a-z_]+", bare)), {"le"})
        assert {label.strip() for label in labels.split(",")} <= known, expression


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
    assert source["datasources"][0]["uid"] == DASHBOARD["panels"][0]["datasource"]["uid"]
    assert any(volume.endswith("dashboards/lark.json:ro") for volume in grafana["volumes"])


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
