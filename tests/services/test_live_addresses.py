"""A policy with other job networks while jobs have addresses of the old ones, on fake switches."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.errors import AdError, RuleLimitError
from lark_controller.api.metrics import Metrics
from lark_controller.controller import Controller
from lark_controller.flows import live_addresses
from lark_controller.flows.desired import Desired
from lark_controller.jobs.job import Directory
from lark_controller.policies.decide import Decider
from lark_controller.policies.file import load
from lark_controller.reconcile.prepared import PreparedDirectory
from lark_controller.services.directory_copy import TakenDirectory
from lark_controller.services.holdings import Holdings
from lark_controller.store import Store
from tests.fixtures.controllers import OPTIONS, POLICY, a_core, an_edge, connect, network, post, running, until
from tests.fixtures.databases import sqlite_with_tables
from tests.flows.test_pipeline import a_job
from tests.services.test_explain import PATIENCE, attached

__all__ = ["network"]

TEXT = POLICY.replace("max_rules: 60, ", "")
ELSEWHERE = TEXT.replace("10.64.0.0/16", "10.65.0.0/16")
# No job networks, and local ones without the jobs' addresses.
AMONG_HOSTS = TEXT.replace("  jobs: [10.64.0.0/16]\n  local: [10.0.0.0/8]", "  local: [10.65.0.0/16]")
KEPT = "3 of 3 live jobs keep addresses that networks.jobs leaves out or networks.hosts has"


def test_slices_of_live_jobs_outlive_their_networks(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, TEXT) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (2, "carol")):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
        bridged = attached(controller, 3, "bridge", "dora", 2)
        plan = controller.policy.plan(ELSEWHERE)
        assert (plan.jobs_changed, plan.refusals) == (0, ())
        assert any(sentence.startswith(KEPT) for sentence in plan.warnings)
        assert any("3 of 3 live jobs would be refused if they started now" in each for each in plan.warnings)
        with monkeypatch.context() as patch:
            patch.setattr(live_addresses, "MOST_PREFIXES", 1)
            assert any("2 prefixes" in each for each in controller.policy.plan(ELSEWHERE).refusals)
            with pytest.raises(RuleLimitError, match="2 prefixes"):
                controller.policy.put(ELSEWHERE, "ops")
        controller.policy.put(ELSEWHERE, "ops")
        until(lambda: controller.policy.plan(ELSEWHERE).switches == ())
        revision = controller.workers.rules(bridged.host, "", 0).revision
        controller.workers.confirmed(bridged.host, revision, {})
        for source, target in ((1, 2), (2, 1), (1, 3), (3, 1), (3, 2)):
            found = controller.switches.explain(f"10.64.0.{source}", f"10.64.0.{target}", PATIENCE)
            assert found.verdict == "dropped", (source, target, found.reason)
        back = controller.policy.plan(TEXT)
        assert back.jobs_changed == 0
        assert not any(sentence.startswith(KEPT) for sentence in back.warnings)
        controller.policy.put(TEXT, "ops")
        until(lambda: controller.policy.plan(TEXT).switches == ())
        rules = controller.workers.rules(bridged.host, "", 0).rules
        assert rules is not None
        assert rules.job_networks == load(TEXT).job_networks


def test_slices_hold_over_a_start_with_other_networks(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, TEXT) as controller:
        connect(network, controller, an_edge())
        for number, owner in ((1, "alice"), (2, "carol")):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
    with running(tmp_path, ELSEWHERE) as controller:
        connect(network, controller, an_edge())
        assert controller.policy.policy.job_networks == load(ELSEWHERE).job_networks
        until(lambda: controller.switches.explain("10.64.0.1", "10.64.0.2", PATIENCE).verdict == "dropped", 20)
        assert controller.switches.find(f"{1:016x}").problems == ()


def test_a_start_that_closes_more_than_live_jobs_have_says_so(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, TEXT) as controller:
        connect(network, controller, an_edge())
        for number, owner, port in ((1, "alice", "p1"), (2, "carol", "p2"), (9, "dora", "p3")):
            controller.jobs.confirm(post(controller, number, owner, port=port).job.id, 20)
    monkeypatch.setattr(live_addresses, "MOST_PREFIXES", 2)
    with running(tmp_path, ELSEWHERE) as controller:
        connect(network, controller, an_edge())
        for one, other in ((1, 2), (2, 1), (1, 9), (9, 1)):
            found = controller.switches.explain(f"10.64.0.{one}", f"10.64.0.{other}", PATIENCE)
            assert (found.verdict, "slice" in found.reason) == ("dropped", True)
        (problem,) = controller.switches.find(f"{1:016x}").problems
        assert problem.problem.startswith(
            "the addresses of live jobs are 3 prefixes that networks.jobs leaves out; at mo"
        )
        # Another policy closes no more, and may be about something else.
        blocks = f"{ELSEWHERE}  - block: {{when: 'Owner == \"dora\"'}}\n"
        plan = controller.policy.plan(blocks)
        assert (plan.refusals, plan.jobs_changed) == ((), 1)
        controller.policy.put(blocks, "ops")
        until(lambda: controller.policy.plan(blocks).switches == ())
        assert controller.switches.find(f"{1:016x}").problems[0].problem == problem.problem
        assert controller.switches.explain("10.64.0.1", "10.64.0.2", PATIENCE).verdict == "dropped"
        controller.policy.put(TEXT, "ops")
        assert controller.switches.find(f"{1:016x}").problems == ()
        # A reload is refused where a start cannot be.
        assert any("3 prefixes" in each for each in controller.policy.plan(ELSEWHERE).refusals)
        with pytest.raises(RuleLimitError, match="3 prefixes"):
            controller.policy.put(ELSEWHERE, "ops")


@pytest.mark.parametrize("text", [AMONG_HOSTS, AMONG_HOSTS.replace("networks:\n  local: [10.65.0.0/16]\n", "")])
def test_slices_hold_for_addresses_that_are_not_local_where_no_networks_are_the_jobs_own(
    tmp_path: Path, network: FakeNetwork, text: str
) -> None:
    def apart(number: int, other: int) -> bool:
        found = controller.switches.explain(f"10.64.0.{number}", f"10.64.0.{other}", PATIENCE)
        return found.verdict == "dropped" and "slice" in found.reason

    with running(tmp_path, TEXT) as controller:
        connect(network, controller, an_edge())
        connect(network, controller, a_core())
        for number, owner in ((1, "alice"), (2, "carol")):
            controller.jobs.confirm(post(controller, number, owner).job.id, 20)
        warnings = controller.policy.plan(text).warnings
        assert any("2 of 2 live jobs keep addresses that are not in networks.local" in each for each in warnings)
        controller.policy.put(text, "ops")
        until(lambda: controller.policy.plan(text).switches == ())
        assert apart(1, 2)
        assert apart(2, 1)
        # As the map has it, by slices.
        assert {party.reaches for party in controller.policy.reach().parties} == {("none", "none")}
        # One more would be asked about by no switch.
        with pytest.raises(AdError, match=r"10\.64\.0\.3 is not in networks\.local of the policy, which has slices"):
            post(controller, 3, "dora")
    with running(tmp_path, text) as controller:
        connect(network, controller, an_edge())
        until(lambda: apart(1, 2) and apart(2, 1), 20)


def test_a_job_may_have_any_address_where_nothing_depends_on_local_networks(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with running(tmp_path, "version: 1\nnetworks: {local: [10.65.0.0/16]}\n") as controller:
        connect(network, controller, an_edge())
        assert controller.jobs.confirm(post(controller, 1).job.id, 20).job.state == "enforced"


def test_a_controller_that_takes_over_gives_addresses_by_the_policy_as_it_is_written(tmp_path: Path) -> None:
    policy = load(ELSEWHERE)
    desired, decider = Desired(policy), Decider(policy)
    job = a_job(1, "alice")
    desired.load([(job, decider.of(job))])
    assert len(desired.policy.job_networks) > 1
    taken = TakenDirectory(PreparedDirectory(Directory(), decider, desired), Holdings(policy))
    store = Store.open(sqlite_with_tables(tmp_path / "lark.db"))
    version = store.trail.put_policy(ELSEWHERE, policy.digest, "test", time.time())
    controller = Controller(store, version, OPTIONS, Metrics(), check_seconds=0, taken=taken)
    controller.start()
    try:
        assert controller.policy.policy is policy
        with pytest.raises(AdError, match=r"10\.64\.0\.2 is outside the declared job networks: 10\.65\.0\.0/16$"):
            post(controller, 2, "alice")
    finally:
        controller.stop()
        store.close()
