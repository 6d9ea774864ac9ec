"""External addresses of real jobs, from the submit file to a client outside of the site."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab import controller, submit
from lab.boot import Lab
from lab.jobs import remove
from tests.lab.remains import wait_until
from tests.lab.trials import advertised, policy

POOL = "198.51.100.64/30"
PORT = 8080
SECTION = f"""
external:
  pools: {{public: [{POOL}]}}
  quarantine: 0
  rules:
    - {{when: 'Owner == "alice"', pool: public, open: [tcp/{PORT}], per_user: 1}}
    - {{when: 'Owner == "bob"', pool: public, open: [icmp]}}
"""
ASKS = {"+RequestExternalAddress": "true", "+ExternalPorts": f'"tcp/{PORT}"'}
# A page that says what the job knows of its address, for as long as the test needs it.
SERVES = (
    'echo "$LARK_EXTERNAL_ADDRESS $LARK_EXTERNAL_PORTS" >page; cat page;'
    f" timeout 300 python3 -m http.server {PORT} >/dev/null 2>&1"
)


@pytest.fixture(scope="module", autouse=True)
def external(lab: Lab) -> Iterator[None]:
    """Pools in the policy, and the way to them: the gateway asks for them on the core's link."""
    text = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    routes = (("gateway-wan", ("dev", "in0")), ("wan1", ("via", "203.0.113.1", "src", "192.0.2.1")))
    with policy(lab, text + SECTION):
        for machine, way in routes:
            lab.on(machine, "ip", "route", "add", POOL, *way)
        try:
            yield
        finally:
            for machine, _ in routes:
                lab.on(machine, "ip", "route", "del", POOL)


@contextmanager
def submitted(lab: Lab, user: str, script: str, lines: dict[str, str]) -> Iterator[submit.Jobs]:
    jobs = submit.submit(lab, user, script, lines)
    try:
        yield jobs
    finally:
        remove(lab, [jobs])


def addresses(lab: Lab) -> list[dict[str, Any]]:
    return list(controller.api(lab, "/v1/external-addresses")["addresses"])


def page(lab: Lab, address: str) -> str:
    """The job's page as a host in the WAN sees it; empty where it does not answer."""
    asked = lab.on("wan1", "curl", "-s", "--max-time", "2", f"http://{address}:{PORT}/page", check=False)
    return asked.stdout.strip()


def test_a_page_that_a_job_serves_is_opened_from_outside(lab: Lab) -> None:
    with submitted(lab, "alice", SERVES, ASKS) as jobs:
        wait_until(lambda: addresses(lab), 60, "an external address")
        (given,) = addresses(lab)
        assert (given["owner"], given["open"], given["job_name"]) == ("alice", [f"tcp/{PORT}"], f"{jobs.cluster}.0")
        wait_until(lambda: page(lab, given["address"]), 30, "the page outside")
        # The job has known it since its first instruction.
        assert page(lab, given["address"]) == f"{given['address']} tcp/{PORT}"
        assert page(lab, "198.51.100.67") == ""
        # What is not open is closed, and one user has so many.
        ping = lab.on("wan1", "ping", "-c", "1", "-W", "1", given["address"], check=False)
        assert ping.status != 0
        with submitted(lab, "alice", "true", ASKS) as second:
            wait_until(lambda: submit.attribute(lab, second, "JobStatus") == "5", 60, "a job on hold")
            why = submit.attribute(lab, second, "HoldReason")
            assert "the jobs of alice have 1 external addresses; at most 1" in why
        explained = controller.api(lab, f"/v1/explain?src=192.0.2.1&dst={given['address']}")
        assert explained["verdict"] == "forwarded", explained
    wait_until(lambda: not addresses(lab), 60, "the end of the address")
    assert page(lab, given["address"]) == ""
    assert submit.attribute(lab, jobs, "LarkExternalAddressIPv4") == given["address"]
    assert submit.attribute(lab, jobs, "LarkExternalPorts") == f"tcp/{PORT}"


def test_another_users_job_has_none_of_it(lab: Lab) -> None:
    with submitted(lab, "bob", "true", ASKS) as jobs:
        wait_until(lambda: submit.attribute(lab, jobs, "JobStatus") == "5", 60, "a job on hold")
        assert f"tcp/{PORT}: the policy opens icmp" in submit.attribute(lab, jobs, "HoldReason")
    with submitted(lab, "carol", "true", ASKS) as jobs:
        wait_until(lambda: submit.attribute(lab, jobs, "JobStatus") == "5", 60, "a job on hold")
        assert "no rule of the policy's section external" in submit.attribute(lab, jobs, "HoldReason")
    assert addresses(lab) == []
    # Who writes the controller's words into the submit file writes nothing into the environment of the job.
    forged = {"+LarkExternalAddressIPv4": '"198.51.100.66"', "environment": "LARK_EXTERNAL_ADDRESS=198.51.100.66"}
    jobs = submit.submit(lab, "bob", 'echo "has:$LARK_EXTERNAL_ADDRESS"', forged)
    submit.wait(lab, jobs)
    assert submit.output(lab, jobs).strip() == "has:"
    assert addresses(lab) == []


def refusals(lab: Lab) -> int:
    """The entries of the audit trail about jobs of alice that were one too many."""
    entries = controller.api(lab, "/v1/audit?limit=1000")["entries"]
    return sum(each["action"] == "no external address" and "at most 1" in each["detail"] for each in entries)


def test_where_the_site_says_so_a_job_waits_in_the_queue_until_there_is_one(lab: Lab) -> None:
    text = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout + SECTION
    controller.api(lab, "/v1/policy", "PUT", text.replace("  quarantine: 0", "  quarantine: 0\n  refused: idle"))
    try:
        with submitted(lab, "alice", SERVES, ASKS):
            wait_until(lambda: addresses(lab), 60, "an external address")
            before = refusals(lab)
            second = submit.submit(lab, "alice", 'echo "has:$LARK_EXTERNAL_ADDRESS"', ASKS)
            wait_until(lambda: refusals(lab) > before, 90, "the refusal of the second job")
            assert submit.attribute(lab, second, "JobStatus") in ("1", "2")
        submit.wait(lab, second)
        assert submit.output(lab, second).startswith("has:198.51.100.6")
    finally:
        controller.api(lab, "/v1/policy", "PUT", text)


def test_what_is_left_takes_part_in_matchmaking(lab: Lab) -> None:
    wait_until(lambda: advertised(lab, "worker1", "ExternalHeadroom_public") == "4", 150, "the headroom of the pool")
    on = 'Machine == "worker1.lab.test"'
    too_much = {**ASKS, "requirements": f"{on} && TARGET.ExternalHeadroom_public >= 5"}
    with submitted(lab, "alice", "true", too_much) as never:
        enough = submit.submit(
            lab, "alice", "true", {**ASKS, "requirements": f"{on} && TARGET.ExternalHeadroom_public >= 1"}
        )
        submit.wait(lab, enough)
        assert submit.attribute(lab, never, "JobStatus") == "1"
    assert submit.attribute(lab, enough, "LarkExternalAddressIPv4") != ""
