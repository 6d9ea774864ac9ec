"""One-way connectivity as real jobs see it, on a lab whose kernel (or Open vSwitch) has conntrack zones."""

from __future__ import annotations

from lab import controller
from lab.boot import Lab
from lab.jobs import Wish, running
from tests.lab import stage


def asks(**wanted: bool) -> dict[str, str]:
    return {f"+{name.capitalize()}Connectivity": str(value).lower() for name, value in wanted.items()}


def test_a_job_that_only_calls_and_one_that_is_only_called(lab: Lab) -> None:
    cast = {
        "caller": Wish("alice", asks(inbound=False), worker="worker1"),
        "called": Wish("alice", asks(outbound=False), worker="worker2"),
        "caller2": Wish("alice", asks(inbound=False, outbound=True), worker="worker2"),
        "both": Wish("alice", asks(inbound=True, outbound=True), worker="worker1"),
    }
    with running(lab, list(cast.values())) as started:
        jobs = dict(zip(cast, started, strict=True))
        assert stage.pairs(stage.matrix(jobs, jobs)) == {
            ("caller", "called"), ("caller", "both"), ("caller2", "called"), ("caller2", "both"), ("both", "called"),
        }  # fmt: skip
        assert stage.wan_matrix(jobs, jobs) == {
            "caller": ({"wan"}, {"wan"}),
            "called": ({"-"}, {"-"}),
            "caller2": ({"wan"}, {"wan"}),
            "both": ({"wan"}, {"wan"}),
        }
        assert stage.called_from(lab, "wan1", jobs, jobs) == {"called", "both"}


def test_a_job_with_neither_has_a_loopback_interface_alone(lab: Lab) -> None:
    with running(lab, [Wish("alice", asks(inbound=False, outbound=False))]) as (job,):
        assert job.run("ls /proc/sys/net/ipv4/conf").stdout.split() == ["all", "default", "lo"]
        assert job.reach([("tcp", "127.0.0.1"), ("tcp", "::1"), ("http", "192.0.2.1")]) == ["echo", "echo", ""]
        assert controller.api(lab, f"/v1/jobs/{job.id}")["network_type"] == "none"
