"""A job's RequestBandwidth while no ``bandwidth`` rule of the policy is for the job: it is booked, and not enforced."""

from __future__ import annotations

import pytest

from lark_controller.policies.bandwidth import NO_RULE
from tests.fixtures.browser import POLICY, Site
from tests.fixtures.controllers import until
from tests.fixtures.service import Json
from tests.services.test_enforced_reservations import put_in_place

BOOKED = POLICY + "    default: {switch: rack1, capacity: 1Gbit}\n"
FOR_CAROL = BOOKED.replace("groups:\n", "  - bandwidth: {when: 'Owner == \"carol\"'}\ngroups:\n", 1)
FOR_ALL = BOOKED.replace("groups:\n", "  - bandwidth: {mode: guarantee}\ngroups:\n", 1)


def run(site: Site, kind: str) -> Json:
    """A job of alice on worker1 that asks for bandwidth."""
    ads = site.ads("alice", more="RequestBandwidth = 200").replace('"ovs_bridge"', f'"{kind}"')
    if kind == "nat":
        ads = ads.replace('"controller"', '"static"') + 'LarkInnerAddressIPv4 = "10.255.64.2"\n'
    answer = site.lark.post(ads, 0)
    assert answer.status == 201, answer
    assert isinstance(answer.body, dict)
    return answer.body


def confirmed(site: Site, job: Json) -> Json:
    """The job once its worker has confirmed its rules."""
    controller = site.lark.service.controller
    if (live := controller.jobs.live(job["id"])) is not None:
        put_in_place(controller, live)
    found = site.lark.get(f"/v1/jobs/{job['id']}")
    assert isinstance(found, dict)
    return found


def standing(site: Site, job: Json) -> tuple[str, str]:
    """The state of the job's own reservation, and the reason."""
    (found,) = site.lark.get(f"/v1/reservations?job={job['id']}")["reservations"]
    assert (found["kind"], found["rate"]) == ("job", 200)
    return found["state"], found["reason"]


def taken(site: Site) -> list[float]:
    """The reserved part of both directions of worker1's access link."""
    links = site.lark.get("/v1/links")["links"]
    return [each["reserved"] for each in links if each["name"] == "access:worker1.example"]


@pytest.mark.parametrize("kind", ["ovs_bridge", "bridge", "nat"])
@pytest.mark.parametrize("without", [BOOKED, FOR_CAROL])
def test_what_no_rule_enforces_is_pending_until_a_policy_has_a_rule(site: Site, kind: str, without: str) -> None:
    site.lark.put_policy(without)
    job = run(site, kind)
    # The job itself has all that the policy has for it.
    until(lambda: confirmed(site, job)["state"] == "enforced")
    assert standing(site, job) == ("pending", NO_RULE)
    # Nobody waits for what does not come.
    (found,) = site.lark.get(f"/v1/reservations?job={job['id']}")["reservations"]
    assert site.lark.get(f"/v1/reservations/{found['id']}?wait=60") == found
    assert taken(site) == [200, 200]
    site.lark.put_policy(FOR_ALL)
    if kind == "ovs_bridge":
        # Its switch's database is not set: that is what it waits for then, with its job.
        until(lambda: confirmed(site, job)["state"] == "pending")
        assert standing(site, job) == ("pending", confirmed(site, job)["reason"])
        assert standing(site, job)[1] not in ("", NO_RULE)
    else:
        until(lambda: (confirmed(site, job)["state"], *standing(site, job)) == ("enforced", "enforced", ""))
    site.lark.put_policy(without)
    until(lambda: (confirmed(site, job)["state"], *standing(site, job)) == ("enforced", "pending", NO_RULE))
    assert taken(site) == [200, 200]


def test_another_rate_is_not_under_way_where_no_rule_enforces_it(site: Site) -> None:
    site.lark.put_policy(BOOKED)
    job = run(site, "bridge")
    until(lambda: confirmed(site, job)["state"] == "enforced")
    (found,) = site.lark.get(f"/v1/reservations?job={job['id']}")["reservations"]
    changed = site.lark.request("PATCH", f"/v1/reservations/{found['id']}", '{"rate": 100}', "application/json").body
    assert (changed["rate"], changed["state"]) == (100, "pending")
    assert changed["reason"].startswith(NO_RULE)
    assert taken(site) == [100, 100]


def test_a_blocked_job_without_a_rule_has_both_reasons(site: Site) -> None:
    site.lark.put_policy(BOOKED.replace('"mallory"', '"alice"'))
    job = run(site, "bridge")
    until(lambda: confirmed(site, job)["state"] == "enforced")
    line = 1 + BOOKED.splitlines().index("  - block: {when: 'Owner == \"mallory\"'}")
    also = f"nothing of the job passes: it is blocked (policy line {line})"
    assert standing(site, job) == ("pending", f"{NO_RULE}; also {also}")


def test_a_plan_and_a_check_say_that_no_rule_enforces_what_is_booked(site: Site) -> None:
    said = "policies has no bandwidth rule: "
    for text, warned in ((BOOKED, True), (FOR_CAROL, False), (FOR_ALL, False)):
        for path in ("check", "plan"):
            answer = site.lark.request("POST", f"/v1/policy/{path}", text, "application/yaml")
            assert any(each.startswith(said) for each in answer.body["warnings"]) is warned, (path, answer)
