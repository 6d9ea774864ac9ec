"""REST of an instance that stands by, and the routes on instances."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_common.errors import StandbyError, StoreError
from lark_controller.api.instances import Standing
from lark_controller.cluster.controls import MemberControls
from lark_controller.rest.auth import AUTHENTICATED
from lark_controller.rest.problems import CONTENT_TYPE
from tests.fixtures.fake_controls import FakeControls, bearer
from tests.fixtures.fake_instances import A, B, FakeInstances
from tests.fixtures.rest_app import Api, make_api


@pytest.fixture
def api(tmp_path: Path) -> Api:
    return make_api(tmp_path)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/jobs"),
        ("POST", "/v1/jobs"),
        ("DELETE", "/v1/jobs/0000000000000001"),
        ("POST", "/v1/hosts/worker1/leases"),
        ("PUT", "/v1/policy"),
        ("GET", "/v1/overview"),
        ("GET", "/v1/audit"),
        ("GET", "/v1/nothing"),
    ],
)
def test_every_other_route_names_the_active_one(api: Api, method: str, path: str) -> None:
    api.controls.instances.stand_by()
    # Also without a token: a client is to go elsewhere with it.
    answer = api.client.open(path, method=method)
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert answer.content_type == CONTENT_TYPE
    assert answer.json is not None
    assert answer.json["type"] == "urn:lark:problem:standby"
    assert answer.json["active"] == B.url
    assert B.name in answer.json["detail"]
    assert not api.controls.jobs.known


@pytest.mark.parametrize(("token", "counts"), [("hook", True), ("stranger", False), (None, False)])
def test_who_asks_with_a_valid_token_is_known_before_a_takeover(api: Api, token: str | None, counts: bool) -> None:
    api.controls.instances.stand_by()
    shown: list[bool] = []
    given = {"hook": bearer("hook"), "stranger": {"Authorization": "Bearer of-nobody"}}
    headers = {} if token is None else given[token]
    environ = {AUTHENTICATED: lambda: shown.append(True)}
    assert api.client.get("/v1/jobs", headers=headers, environ_overrides=environ).status_code == 503
    assert bool(shown) is counts


def test_where_none_is_active_none_is_named(api: Api) -> None:
    api.controls.instances.place = Standing(False, 7, 0.0, sentence="stands by; no controller is active")
    answer = api.get("/v1/jobs")
    assert (answer.status_code, answer.json["active"]) == (503, None)
    assert "no controller is active" in answer.json["detail"]
    assert "href" not in api.client.get("/pages/").text


def test_health_metrics_and_the_description_are_everywhere(api: Api) -> None:
    assert 'lark_jobs{state="enforced"}' in api.get("/metrics").text
    api.controls.instances.stand_by()
    assert api.client.get("/healthz").status_code == 200
    assert api.client.get("/openapi.json").status_code == 200
    text = api.get("/metrics").text
    assert "lark_instance_active 0.0" in text
    assert "lark_instance_successor 1.0" in text
    assert "lark_instance_generation 8.0" in text
    assert "lark_instance_takeover_timestamp_seconds 1.7e+09" in text
    # What a controller that stands by does not have is absent.
    assert "lark_jobs{" not in text
    assert "lark_switches " not in text


def test_pages_lead_to_the_active_one(api: Api) -> None:
    assert api.client.get("/pages/").status_code == 200
    api.controls.instances.stand_by()
    for path in ("/", "/pages/", "/pages/main.js"):
        answer = api.client.get(path)
        assert answer.status_code == 503
        assert f'<a href="{B.url}">{B.name}</a>' in answer.text


@pytest.mark.parametrize("url", ["javascript:alert(1)", "unix:/run/lark.sock", '"><script>'])
def test_a_page_has_no_link_that_is_none(api: Api, url: str) -> None:
    api.controls.instances.place = Standing(False, 8, 0.0, "<b>", url, "stands by")
    text = api.client.get("/pages/").text
    assert "href" not in text
    assert "<b>" not in text
    assert "<script>" not in text


@pytest.mark.parametrize("standby", [False, True])
def test_instances_are_listed_by_each(api: Api, standby: bool) -> None:
    if standby:
        api.controls.instances.stand_by()
    answer = api.get("/v1/instances")
    assert answer.status_code == 200
    assert answer.json["generation"] == (8 if standby else 7)
    assert answer.json["active"] == (B.id if standby else A.id)
    assert [each["state"] for each in answer.json["instances"]] == ["active", "standby"]
    assert answer.json["since"].startswith("2023-11-14T")
    assert api.get("/v1/instances", "hook").status_code == 403
    api.controls.error = StoreError("the database is away")
    assert api.get("/v1/instances").json["type"] == "urn:lark:problem:store"


def test_drain(api: Api) -> None:
    def drain(instance: str, scope: str = "operate") -> int:
        return api.client.post(f"/v1/instances/{instance}/drain", headers=bearer(scope)).status_code

    assert drain("ctl-a", "read") == 403
    assert drain("ctl-b") == 409
    assert drain("nobody") == 404
    assert api.controls.instances.drained == []
    assert drain("ctl-a") == 200
    assert drain(A.id) == 200
    assert len(api.controls.instances.drained) == 2


def test_controls_of_an_instance_are_its_controllers() -> None:
    instances = FakeInstances(lambda: None)
    instances.stand_by()
    controls = MemberControls(instances)
    for subject in ("jobs", "switches", "policy", "workers", "reservations", "usage", "drops", "audit"):
        with pytest.raises(StandbyError) as raised:
            getattr(controls, subject)
        assert raised.value.active == B.url
    assert controls.health.ready().reasons == (f"stands by; {B.name} at {B.url} is active",)
    served = FakeControls()
    instances.place = Standing(True, 9, 0.0, A.name, A.url)
    assert not controls.health.ready().ready
    controls.serve(served)
    assert controls.jobs is served.jobs
    assert controls.audit is served.audit
    assert controls.health.ready().ready
