"""Flows of jobs to hosts and addresses that no packet of theirs reaches: none is reserved, and one from before is
pending with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from lark_common.errors import ApartError, PathError
from lark_controller.api.reservations import Wish
from lark_controller.controller import Controller
from lark_controller.jobs.job import Job
from tests.fixtures.controllers import running, until
from tests.services.test_dropped_wan import DROPPED, EXCEPT, LINE, WHY
from tests.services.test_enforced_reservations import BRIDGED
from tests.services.test_followed_jobs import DHCP
from tests.services.test_reservations import ONLY_IPV6, POLICY, start

IPV6_HOST = POLICY.replace("[10.0.0.5]", '["2001:db8::5"]')
BOTH = POLICY.replace("[10.0.0.5]", '[10.0.0.5, "2001:db8::5"]')
BRIDGED_BOTH = BRIDGED + '\nLarkInnerAddressIPv6 = "2001:db8:64::3"'
NAT = BRIDGED.replace("bridge", "nat")
ONLY_IPV4 = "job 1.0 has IPv4 alone and {} IPv6 alone, so no packet goes from one to the other"
IN_WAN = DROPPED.replace("[10.0.0.5]", "[192.0.2.55]")
SLICED = POLICY.replace("policies:", "policies:\n  - slice: {by: Owner, when: 'Owner != \"nobody\"'}")
IN_JOBS = SLICED.replace("[10.0.0.5]", "[10.64.9.9]")
NO_SLICE = f"nothing of it passes: 10.64.9.9 is in the job networks and not of the job's slice (policy line {LINE})"


def reserve(controller: Controller, job: Job, to: str) -> str:
    return controller.reservations.reserve(Wish(job.id, to, 5), "test", of_job=False).id


def pending(controller: Controller, job: Job) -> list[str]:
    """The reasons with which a job's flows are pending, as its programs see them, without those of its switch."""
    why = controller.reservations.apart.why
    return [why(each.id) for each in controller.reservations.sent_by(job.id)]


@pytest.mark.parametrize("more", ["", BRIDGED, NAT])
def test_a_flow_to_addresses_of_another_ip_version_is_refused(tmp_path: Path, more: str) -> None:
    with running(tmp_path, IPV6_HOST) as controller:
        job = start(controller, 1, more=more)
        for to, called in (
            ("files.example", "files.example"),
            ("2001:db8::5", "2001:db8::5/128"),
            ("2001:4860::8888", "2001:4860::8888/128"),
        ):
            with pytest.raises(PathError) as caught:
                reserve(controller, job, to)
            assert str(caught.value) == ONLY_IPV4.format(called)
        assert controller.reservations.sent_by(job.id) == ()
        # An address of that version may come to one with DHCP, and one with both has it.
        reserve(controller, start(controller, 2, more=DHCP), "files.example")
        reserve(controller, start(controller, 3, more=BRIDGED_BOTH), "files")


def test_a_flow_is_pending_while_its_host_has_addresses_of_another_ip_version_alone(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1, more=BRIDGED)
        made = reserve(controller, job, "files.example")
        assert pending(controller, job) == [""]
        controller.policy.put(IPV6_HOST, "ops")
        reason = ONLY_IPV4.format("files.example")
        assert pending(controller, job) == [reason]
        assert [each.pending for each in controller.reservations.paths("worker1").items] == [reason]
        assert controller.reservations.find(made).holds
        controller.policy.put(BOTH, "ops")
        assert pending(controller, job) == [""]
        controller.policy.put(IPV6_HOST, "ops")
    with running(tmp_path, IPV6_HOST) as controller:
        assert pending(controller, job) == [reason]


def test_what_is_said_of_a_flow_follows_its_jobs_when_they_are_posted_again(tmp_path: Path) -> None:
    with running(tmp_path, IPV6_HOST) as controller:
        sender, receiver = start(controller, 1, more=f"{BRIDGED}\n{ONLY_IPV6}"), start(controller, 3, more=BRIDGED_BOTH)
        reserve(controller, sender, "files.example")
        reserve(controller, sender, receiver.id)
        controller.policy.put(POLICY, "ops")
        reason = "job 1.0 has IPv6 alone and files.example IPv4 alone, so no packet goes from one to the other"
        assert pending(controller, sender) == [reason, ""]
        start(controller, 1, more=BRIDGED)
        assert pending(controller, sender) == ["", ""]


def test_a_wan_that_is_dropped_but_for_addresses_of_another_ip_version_is_reserved_by_none(tmp_path: Path) -> None:
    other = EXCEPT.replace('[192.0.2.0/28, "2001:db9::/64"]', '["2001:db9::/64"]')
    why = "the job's WAN traffic is dropped but for addresses of another IP version than the job's"
    with running(tmp_path, EXCEPT) as controller:
        job = start(controller, 1, more=BRIDGED)
        made = reserve(controller, job, "wan")
        controller.policy.put(other, "ops")
        assert pending(controller, job) == [f"nothing of it passes: {why} (policy line {LINE})"]
        controller.reservations.release(made, "test", of_job=False)
        with pytest.raises(ApartError, match=why):
            reserve(controller, job, "wan")
        reserve(controller, start(controller, 2, more=f"{BRIDGED}\n{ONLY_IPV6}"), "wan")


@pytest.mark.parametrize("more", ["", BRIDGED, NAT])
def test_a_host_in_the_wan_is_reached_as_the_wan_is(tmp_path: Path, more: str) -> None:
    with running(tmp_path, DROPPED) as controller:
        job, other = start(controller, 1, more=more), start(controller, 2, "bob", more=more)
        made = [reserve(controller, job, "files.example"), reserve(controller, other, "files.example")]
        controller.policy.put(IN_WAN, "ops")
        assert [*pending(controller, job), *pending(controller, other)] == [WHY, ""]
        # One address that is local is enough.
        controller.policy.put(IN_WAN.replace("[192.0.2.55]", "[192.0.2.55, 10.0.0.5]"), "ops")
        assert pending(controller, job) == [""]
        controller.policy.put(IN_WAN.replace("action: drop", "action: drop, except: [192.0.2.55]"), "ops")
        assert pending(controller, job) == [""]
        controller.policy.put(IN_WAN, "ops")
        controller.reservations.release(made[0], "test", of_job=False)
        for to, called in (("files", "192.0.2.55/32"), ("192.0.2.55", "192.0.2.55/32")):
            with pytest.raises(ApartError) as caught:
                reserve(controller, job, to)
            assert str(caught.value) == f"job 1.0 to {called}: {WHY}"


@pytest.mark.parametrize("more", ["", BRIDGED, NAT])
def test_a_host_among_jobs_is_in_no_slice(tmp_path: Path, more: str) -> None:
    with running(tmp_path, SLICED) as controller:
        job = start(controller, 1, more=more)
        made = reserve(controller, job, "files.example")
        controller.policy.put(IN_JOBS, "ops")
        assert pending(controller, job) == [NO_SLICE]
        if more:
            explained = controller.switches.explain(job.id, "10.64.9.9", 20)
            assert explained.verdict == "dropped"
            assert "10.64.9.9 is in the job networks and not of the job's slice" in explained.reason
        controller.policy.put(IN_JOBS.replace("networks: {", "networks: {hosts: [10.64.9.9], "), "ops")
        assert pending(controller, job) == [""]
        controller.policy.put(IN_JOBS, "ops")
        controller.reservations.release(made, "test", of_job=False)
        with pytest.raises(ApartError, match=r"10\.64\.9\.9 is in the job networks and not of the job's slice"):
            reserve(controller, job, "files.example")
        # Behind NAT a job without a slice reaches no addresses of jobs that have none.
        free = start(controller, 2, "nobody", more=more)
        if more == NAT:
            with pytest.raises(ApartError, match="of no job without a slice, and the job has none"):
                reserve(controller, free, "files.example")
        else:
            reserve(controller, free, "files.example")


def test_a_flow_to_a_job_in_quarantine_waits_for_its_end(tmp_path: Path) -> None:
    why = "nothing of it passes: the receiver is in quarantine"
    with running(tmp_path, POLICY) as controller:
        sender, receiver = start(controller, 1, more=BRIDGED), start(controller, 2, host=2, more=BRIDGED)
        made = reserve(controller, sender, receiver.id)
        controller._registration.quarantine(receiver.id, "its slot is another job's", "pool")
        assert pending(controller, sender) == [why]
        until(lambda: [each.pending for each in controller.reservations.paths("worker1").items] == [why])
        assert controller.reservations.find(made).holds
        with pytest.raises(ApartError) as caught:
            reserve(controller, start(controller, 3, more=BRIDGED), receiver.id)
        assert str(caught.value) == f"job 3.0 to job 2.0: {why}"
    with running(tmp_path, POLICY) as controller:
        assert pending(controller, sender) == [why]
        controller.jobs.lift(receiver.id, "test")
        assert pending(controller, sender) == [""]
