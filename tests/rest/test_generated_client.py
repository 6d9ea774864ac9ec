"""A client that openapi-python-client makes from the OpenAPI document, against a real controller."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_switch.switch import FakeNetwork
from lark_controller.rest.tokens import Scope
from tests.fixtures.browser import POLICY, Site

PAGE = Path(__file__).parents[2] / "docs/reference/rest.md"
METHODS = {"get", "put", "post", "patch", "delete"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with FakeNetwork() as network:
        made = Site(tmp_path_factory.mktemp("site"), network)
        yield made
        made.lark.stop()


@pytest.fixture(scope="module")
def document(site: Site) -> dict[str, Any]:
    with urllib.request.urlopen(f"{site.url}/openapi.json", timeout=20) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


class Generated:
    """The generated package: ``call(scope, tag, operation, …)`` calls one of its functions with a token's client."""

    def __init__(self, folder: Path, site: Site, said: str) -> None:
        self.folder = folder
        self.said = said
        package = importlib.import_module("lark_api")
        self.models: Any = importlib.import_module("lark_api.models")
        tokens = {Scope.HOOK: site.hook, Scope.READ: site.reader, Scope.OPERATE: site.operator}
        self._clients = {
            scope: package.AuthenticatedClient(base_url=site.url, token=token, timeout=60)
            for scope, token in tokens.items()
        }

    def call(self, scope: Scope, tag: str, operation: str, *args: Any, **kwargs: Any) -> Any:
        function: Callable[..., Any] = importlib.import_module(f"lark_api.api.{tag}.{operation}").sync
        return function(*args, client=self._clients[scope], **kwargs)


@pytest.fixture(scope="module")
def generated(site: Site, document: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Generated]:
    directory = tmp_path_factory.mktemp("generated")
    directory.joinpath("openapi.json").write_text(json.dumps(document))
    # The command of the page, without its formatting of what it makes.
    directory.joinpath("config.yaml").write_text("post_hooks: []\n")
    (command,) = re.findall(r"^    openapi-python-client (generate .+)$", PAGE.read_text("utf-8"), flags=re.MULTILINE)
    program = Path(sys.executable).with_name("openapi-python-client")
    whole = [str(program), *shlex.split(command), "--config", "config.yaml"]
    done = subprocess.run(whole, cwd=directory, capture_output=True, text=True, check=True, timeout=120)
    sys.path.insert(0, str(directory))
    yield Generated(directory / "lark_api", site, done.stdout + done.stderr)
    sys.path.remove(str(directory))


def test_every_operation_has_a_name_that_is_its_own(document: dict[str, Any]) -> None:
    names = [path[method]["operationId"] for path in document["paths"].values() for method in METHODS & set(path)]
    assert len(names) == len(set(names)) >= 40
    assert [name for name in names if not re.fullmatch("[a-z]+(_[a-z]+)*", name)] == []


def test_patterns_mean_the_same_to_every_language(document: dict[str, Any]) -> None:
    patterns = set(re.findall(r'"pattern": ("(?:[^"\\\\]|\\\\.)*")', json.dumps(document)))
    assert patterns
    for pattern in map(json.loads, patterns):
        assert not re.search(r"\\[AZzabG]|\(\?[P<#aiLmsux]", pattern), pattern


def test_no_schema_has_two_types(document: dict[str, Any]) -> None:
    """Beside null: generators for Go, ogen and oapi-codegen, refuse the document then."""
    several = [types for types in re.findall(r'"type": \[([^]]*)\]', json.dumps(document)) if types.count(",")]
    assert several
    assert [types for types in several if types.count(",") > 1 or '"null"' not in types] == []


def test_the_generator_leaves_nothing_out(document: dict[str, Any], generated: Generated) -> None:
    made = {path.stem for path in (generated.folder / "api").glob("*/[a-z]*.py")}
    named = {path[method]["operationId"] for path in document["paths"].values() for method in METHODS & set(path)}
    assert made == named
    assert "will not be generated" not in generated.said
    # YAML and plain text stay, beside JSON, for people with curl.
    unsupported = set(re.findall("Unsupported content type (.*)", generated.said))
    assert unsupported <= {"text/plain", "application/yaml"}


def test_the_whole_life_of_a_job(generated: Generated, site: Site) -> None:
    call, models = generated.call, generated.models
    job_ad, _, machine_ad = site.ads("alice").partition("------\n")
    job = call(Scope.HOOK, "jobs", "register_job", body=models.BothAds(job_ad, machine_ad), wait=20.0)
    assert (job.state, job.owner, len(job.addresses)) == (models.RegisteredState.ENFORCED, "alice", 1)
    shown = call(Scope.READ, "jobs", "show_job", job.id)
    assert shown.decision.group == "group_cms"
    assert [each.line for each in shown.decision.because] == [14, 18]
    assert job.id in [each.id for each in call(Scope.READ, "jobs", "list_jobs", owner="alice").jobs]
    address = job.addresses[0].address
    assert call(Scope.READ, "addresses", "find_job_by_address", address).id == job.id
    assert call(Scope.HOOK, "jobs", "renew_job", job.id).lease_until >= job.lease_until
    why = call(Scope.READ, "explain", "explain", src=job.id, dst="192.0.2.1")
    assert why.verdict == "forwarded"
    flows = call(Scope.READ, "switches", "list_flows", "worker1", job=job.id).flows
    assert {flow.state for flow in flows} == {"installed"}
    ended = call(Scope.HOOK, "jobs", "end_job", job.id, body=models.ExitAd("ExitCode = 0\n"))
    assert ended.state == models.JobState.ENDED
    refused = call(Scope.HOOK, "jobs", "renew_job", job.id)
    assert isinstance(refused, models.Problem)
    assert refused.status == 404


def test_the_whole_life_of_a_policy(generated: Generated, site: Site) -> None:
    call, models = generated.call, generated.models
    first = call(Scope.READ, "policy", "show_policy")
    assert first.text == POLICY
    wrong = call(Scope.READ, "policy", "check_policy", body=models.PolicyText(POLICY.replace("slice:", "slise:")))
    assert [each.line for each in wrong.mistakes][:1] == [14]
    job = site.run("carol")
    new = models.PolicyText(POLICY.replace('"mallory"', '"carol"'))
    plan = call(Scope.READ, "policy", "plan_policy", body=new)
    assert [(each.changes, each.jobs) for each in plan.effects] == [(["is blocked"], 1)]
    put = call(Scope.OPERATE, "policy", "put_policy", body=new)
    assert (put.version, put.actor) == (first.version + 1, "operator")
    assert call(Scope.READ, "jobs", "show_job", job["id"]).decision.blocked is True
    listed = call(Scope.READ, "policy", "list_policy_versions").versions
    assert [each.version for each in listed] == [put.version, first.version]
    difference = call(Scope.READ, "policy", "compare_policy_versions", old=first.version)
    assert (difference.added, difference.removed) == (1, 1)
    back = call(Scope.OPERATE, "policy", "restore_policy_version", first.version)
    assert (back.version, back.text) == (put.version + 1, POLICY)
    site.lark.end(job)


def test_the_whole_life_of_a_reservation(generated: Generated) -> None:
    call, models = generated.call, generated.models
    wish = models.Wish(source="files.example", destination="wan", rate=250.0, duration=3600.0)
    made = call(Scope.OPERATE, "reservations", "make_reservation", body=wish)
    assert (made.rate, made.actor) == (250.0, "operator")
    internet = [each for each in call(Scope.READ, "reservations", "list_links").links if each.name == "internet"]
    assert 250.0 in [each.reserved for each in internet]
    change = models.ReservationChange(rate=100.0)
    assert call(Scope.OPERATE, "reservations", "change_reservation", made.id, body=change).rate == 100.0
    assert call(Scope.READ, "reservations", "show_reservation", made.id).rate == 100.0
    too_much = models.Wish(source="files.example", destination="wan", rate=5000.0, duration=60.0)
    assert call(Scope.OPERATE, "reservations", "make_reservation", body=too_much).status == 409
    call(Scope.OPERATE, "reservations", "release_reservation", made.id)
    assert call(Scope.READ, "reservations", "list_reservations").reservations == []
