"""Every policy as real jobs see it; one-way connectivity on a lab whose kernel has it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab import controller, submit
from lab.boot import Lab
from lab.jobs import Wish, running
from lab.settings import SOURCE
from tests.lab import stage
from tests.lab.remains import remove, wait_enforced, wait_until
from tests.lab.trials import policy

pytestmark = pytest.mark.kernel_datapath


@pytest.fixture(scope="module")
def cast(lab: Lab) -> Iterator[stage.Cast]:
    names = [name for name in stage.CAST if name != "caller"]
    with running(lab, [stage.CAST[name] for name in names]) as started:
        yield dict(zip(names, started, strict=True))


def test_jobs_of_one_user_reach_each_other_and_nobody_else(cast: stage.Cast) -> None:
    assert stage.pairs(stage.matrix(cast, cast)) == {("alice1", "alice2"), ("alice2", "alice1")}


def test_a_slice_holds_on_one_worker_as_on_two(lab: Lab) -> None:
    users = ("alice", "alice", "bob", "bob")
    with running(lab, [Wish(user, worker="worker1") for user in users]) as started:
        cast = dict(zip(("alice1", "alice2", "bob1", "bob2"), started, strict=True))
        assert stage.pairs(stage.matrix(cast, cast)) == {
            ("alice1", "alice2"), ("alice2", "alice1"), ("bob1", "bob2"), ("bob2", "bob1"),
        }  # fmt: skip


def test_the_wan_by_user_and_group(cast: stage.Cast) -> None:
    assert stage.wan_matrix(cast, cast) == {
        "alice1": ({"wan"}, {"wan"}),
        "alice2": ({"wan"}, {"wan"}),
        "bob": ({"wan"}, {"-"}),
        "carol": ({"wan-fast"}, {"wan-fast"}),
        "mallory": ({"-"}, {"-"}),
    }


def test_what_the_wan_reaches(lab: Lab, cast: stage.Cast) -> None:
    assert stage.called_from(lab, "wan1", cast, cast) == {"alice1", "alice2", "bob", "carol"}
    assert stage.called_from(lab, "wan2", cast, cast) == {"alice1", "alice2", "carol"}


def test_a_blocked_job_still_has_its_loopback(cast: stage.Cast) -> None:
    assert cast["mallory"].reach([("tcp", "127.0.0.1"), ("udp", "::1"), ("ping", "10.64.0.1")]) == ["echo", "echo", ""]


def test_the_groups_of_jobs_are_seen_at_the_core(lab: Lab) -> None:
    groups = {"group_cms": 18, "group_cms.analysis": 18, "group_cms.prod": 34, "group_atlas": 20}
    wishes = [Wish("alice", {"accounting_group": group}) for group in groups]
    wishes += [Wish("alice"), Wish("alice", {"accounting_group": "group_cms", "priority": "20"})]
    with running(lab, wishes) as started:
        assert [stage.dscp_at_core(lab, job) for job in started] == [{dscp} for dscp in (*groups.values(), 10, 46)]


def test_a_policy_that_changes_concerns_jobs_that_run(lab: Lab, cast: stage.Cast) -> None:
    text = lab.on("controller", "cat", "/etc/lark/policy.yaml").stdout
    blocked = text.replace("""'Owner == "mallory"'""", """'Owner == "bob"'""")
    assert blocked != text
    with policy(lab, blocked):
        assert stage.wan_matrix(cast, ("bob", "mallory")) == {"bob": ({"-"}, {"-"}), "mallory": ({"wan"}, {"wan"})}
    assert stage.wan_matrix(cast, ("bob", "mallory")) == {"bob": ({"wan"}, {"-"}), "mallory": ({"-"}, {"-"})}


def test_one_way_connectivity_without_conntrack_zones_is_refused_and_not_approximated(lab: Lab) -> None:
    features = lab.on("worker1", "ovs-appctl", "dpif/show-dp-features", "br0").stdout
    with policy(lab, Path(SOURCE, "lab/policy.yaml").read_text()):
        lines = {**stage.ONE_WAY, "requirements": 'Machine == "worker1.lab.test"'}
        sent = submit.submit(lab, "alice", "exec sleep 600", lines)
        try:
            if "CT zone: Yes" in features:
                wait_enforced(lab, sent)
            else:
                wait_until(lambda: submit.attribute(lab, sent, "JobStatus") == "5", 60, "the job is held")
                assert "has no connection tracking" in submit.attribute(lab, sent, "HoldReason")
            # Others notice nothing of it.
            assert controller.api(lab, "/v1/switches/worker1")["in_sync"]
        finally:
            remove(lab, sent)
