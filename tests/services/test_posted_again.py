"""Jobs that are posted again with other attributes: flows, workers' rules and reasons follow the new decision."""

from __future__ import annotations

from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.classads.ads import parse_post
from lark_common.runs import NetworkType
from lark_controller.api.reservations import Wish
from lark_controller.controller import Controller
from lark_controller.jobs.job import Job, JobState
from tests.fixtures.controllers import POLICY, an_edge, connect, flows_of, network, post, running
from tests.services.test_enforced_reservations import BRIDGED, put_in_place
from tests.services.test_reservations import POLICY as LINKS
from tests.services.test_reservations import start

__all__ = ["network"]

RULES = """policies:
  - block: {when: 'Bad =?= true'}
  - wan: {when: 'Closed =?= true', action: drop}
  - slice: {when: 'Team =!= undefined', by: Team}
"""


def posted(controller: Controller, *attributes: str, kind: str = "") -> Job:
    lines = [
        'Owner = "alice"', 'GlobalJobId = "s#5.0#1"', "JobCurrentStartDate = 1", *attributes, "------",
        'Machine = "worker3"', 'Name = "slot1@worker3"', 'LarkDatapathId = "0000000000000003"',
        'LarkInnerMacAddress = "02:00:00:00:00:05"', 'LarkInnerAddressIPv4 = "10.64.0.5"',
        'LarkExternalInterface = "p5"', BRIDGED.replace("bridge", kind) if kind else "AvailBandwidth = 1000",
    ]  # fmt: skip
    return controller.jobs.register(*parse_post("\n".join(lines).encode(), "text/plain"), "hook").job


def verdict(controller: Controller) -> str:
    return controller.switches.explain("10.64.0.1", "10.64.0.2", 60).verdict


@pytest.mark.parametrize("attributes", ["Bad = true", 'Team = "blue"'])
def test_a_switch_has_the_flows_of_the_ads_that_were_posted_last(
    tmp_path: Path, network: FakeNetwork, attributes: str
) -> None:
    with running(tmp_path, POLICY.replace("policies:\n", RULES)) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        job, other = (post(controller, number).job for number in (1, 2))
        for each in (job, other):
            assert controller.jobs.confirm(each.id, 20).job.state is JobState.ENFORCED
        assert verdict(controller) == "forwarded"
        before = {(each.match, each.actions) for each in flows_of(controller, job.id)}
        post(controller, 1, attributes=attributes)
        assert controller.jobs.confirm(job.id, 20).job.state is JobState.ENFORCED
        found = flows_of(controller, job.id)
        assert {each.state for each in found} == {"installed"}
        assert {(each.match, each.actions) for each in found} != before
        assert verdict(controller) == "dropped"
        post(controller, 1)
        assert controller.jobs.confirm(job.id, 20).job.state is JobState.ENFORCED
        assert {(each.match, each.actions) for each in flows_of(controller, job.id)} == before


@pytest.mark.parametrize("kind", [NetworkType.BRIDGE, NetworkType.NAT])
def test_a_worker_is_told_of_the_ads_that_were_posted_last(tmp_path: Path, kind: NetworkType) -> None:
    with running(tmp_path, LINKS.replace("policies:\n", RULES)) as controller:
        job = posted(controller, kind=kind.value)
        put_in_place(controller, job)
        held = controller.workers.rules("worker3", "", 0).revision
        assert controller.jobs.confirm(job.id, 20).job.state is JobState.ENFORCED
        posted(controller, "Bad = true", kind=kind.value)
        told = controller.workers.rules("worker3", held, 20)
        assert told.revision != held
        assert told.rules is not None
        assert [each.isolated for each in told.rules.jobs] == [True]
        assert controller.jobs.confirm(job.id, 0).job.state is not JobState.ENFORCED
        put_in_place(controller, job)
        assert controller.jobs.confirm(job.id, 20).job.state is JobState.ENFORCED


def test_reasons_of_what_is_reserved_follow_the_ads_that_were_posted_last(tmp_path: Path) -> None:
    with running(tmp_path, LINKS.replace("policies:\n", RULES)) as controller:
        job, peer = posted(controller), start(controller, 2)
        flows = [
            controller.reservations.reserve(Wish(one, to, 5), "test", of_job=False)
            for one, to in ((job.id, "wan"), (job.id, peer.id), (peer.id, job.id))
        ]

        def reasons() -> list[str]:
            return [controller.reservations.apart.why(each.id) for each in flows]

        assert reasons() == [""] * 3
        posted(controller, "Closed = true", 'Team = "blue"')
        assert "WAN traffic is dropped" in reasons()[0]
        assert all("slices keep the two jobs apart" in each for each in reasons()[1:])
        posted(controller)
        assert reasons() == [""] * 3
        posted(controller, "Bad = true")
        assert "the receiver is blocked" in reasons()[2]
