"""External addresses by network type, address type and family, asked for in the ad and at run time: each cell of the
table in docs/how-to/external-addresses.md."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import Connection

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.errors import ExternalAddressError, StoreError
from lark_common.limits import Buckets
from lark_common.runs import Address
from lark_controller.api.external import ExternalWish
from lark_controller.api.jobs import Registered
from lark_controller.controller import Controller
from lark_controller.jobs.external import External, listed
from lark_controller.jobs.job import Job
from lark_controller.policies.model import Policy
from lark_controller.services import external
from lark_controller.services.external_rules import why_over
from lark_controller.store import external_addresses
from lark_controller.store.external_addresses import Claim
from tests.fixtures.controllers import POLICY, an_edge, connect, network, post, running, until

__all__ = ["network"]

SECTION: Final = """
external:
  pools: {public: [198.51.100.64/28]}
  rules:
    - {pool: public, open: [tcp], per_user: 9}
    - {family: ipv6, open: [tcp], per_user: 9}
  refused: REFUSED
"""
OPEN: Final = POLICY.replace("max_rules: 60, ", "").replace("10.64.0.0/16]", '10.64.0.0/16, "2001:db8:64::/64"]')
V4, V6 = "198.51.100.64", "2001:db8:64::1"
NO_TYPE = "external addresses are for jobs of type ovs_bridge"
# Network type, address type, with an IPv6 address, family: the outcome, an address or the reason why there is none.
CELLS: Final = [
    ("ovs_bridge", "static", True, "ipv4", V4),
    ("ovs_bridge", "static", True, "ipv6", V6),
    ("ovs_bridge", "static", False, "ipv6", "the job has no IPv6 address of its own"),
    ("ovs_bridge", "controller", True, "ipv4", V4),
    ("ovs_bridge", "dhcp", True, "ipv4", V4),
    ("ovs_bridge", "dhcp", True, "ipv6", V6),
    ("ovs_bridge", "dhcp", False, "ipv6", "the job has no IPv6 address of its own"),
    ("bridge", "static", True, "ipv4", f"network type bridge: {NO_TYPE}"),
    ("bridge", "static", True, "ipv6", f"network type bridge: {NO_TYPE}"),
    ("bridge", "dhcp", False, "ipv4", f"network type bridge: {NO_TYPE}"),
    ("nat", "static", True, "ipv4", f"network type nat: {NO_TYPE}"),
    ("nat", "static", True, "ipv6", f"network type nat: {NO_TYPE}"),
    ("none", "static", False, "ipv4", f"network type none: {NO_TYPE}"),
    ("none", "static", False, "ipv6", f"network type none: {NO_TYPE}"),
]


def registered(
    controller: Controller, kind: str, address_type: str, ipv6: bool, asks: str, *, lease: bool = True
) -> Registered:
    """A job that is posted as its worker posts it; a DHCP job once more with its lease."""
    more = f'NetworkType = "{kind}"\nAddressType = "{address_type}"\n'
    more += f'LarkInnerAddressIPv6 = "{V6}"\n' if ipv6 else ""
    own = "" if kind != "none" and address_type == "static" else None
    port = None if kind == "none" else ""
    found = post(controller, 1, address=own, port=port, more=more, attributes=asks)
    if address_type == "dhcp" and lease:
        found = post(controller, 1, address="10.64.0.1", port=port, more=more, attributes=asks)
    return found


def asking(family: str) -> str:
    return f'RequestExternalAddress = true\nExternalFamily = "{family}"\n'


@pytest.mark.parametrize(("kind", "address_type", "ipv6", "family", "outcome"), CELLS)
def test_asked_for_in_the_ad(
    tmp_path: Path, kind: str, address_type: str, ipv6: bool, family: str, outcome: str
) -> None:
    with running(tmp_path, OPEN + SECTION.replace("REFUSED", "hold")) as controller:
        if outcome in (V4, V6):
            job = registered(controller, kind, address_type, ipv6, asking(family)).job
            assert [str(each.address) for each in controller.external.page(job.id).associations] == [outcome]
            return
        with pytest.raises(ExternalAddressError, match=outcome) as refused:
            registered(controller, kind, address_type, ipv6, asking(family))
        assert not refused.value.idle
        # The hook holds it with that reason, and nothing of it stays.
        until(lambda: controller.jobs.counts().live == 0)
    # Where the site lets it run without, it runs, and the trail says why.
    (tmp_path / "without").mkdir()
    with running(tmp_path / "without", OPEN + SECTION.replace("REFUSED", "run")) as controller:
        job = registered(controller, kind, address_type, ipv6, asking(family)).job
        assert job.live
        assert controller.external.page().associations == ()
        trail = {entry.action: entry.detail for entry in controller.audit.page(job.id, None, 9).entries}
        assert outcome in trail["no external address"]


@pytest.mark.parametrize(("kind", "address_type", "ipv6", "family", "outcome"), CELLS)
def test_asked_for_at_run_time(
    tmp_path: Path, kind: str, address_type: str, ipv6: bool, family: str, outcome: str
) -> None:
    with running(tmp_path, OPEN + SECTION.replace("REFUSED", "hold")) as controller:
        job = registered(controller, kind, address_type, ipv6, "").job
        wish = ExternalWish(job.id, family=4 if family == "ipv4" else 6)
        if outcome in (V4, V6):
            assert str(controller.external.associate(wish, "ops").association.address) == outcome
            return
        with pytest.raises(ExternalAddressError, match=outcome):
            controller.external.associate(wish, "ops")
        assert controller.jobs.live(job.id) is not None


def test_a_job_that_runs_already_keeps_its_network_without_an_external_address(
    tmp_path: Path, network: FakeNetwork
) -> None:
    """Started without a lease, by the site's choice: when that comes it is too late to hold the job."""
    none_left = SECTION.replace("REFUSED", "hold").replace("198.51.100.64/28", "198.51.100.64/32")
    with running(tmp_path, OPEN + none_left) as controller:
        for switch in (FakeSwitch(0xC0, {1: "a", 2: "b", 3: "c"}), an_edge(hardware="Open vSwitch")):
            connect(network, controller, switch)
        first = post(controller, 2).job
        controller.external.associate(ExternalWish(first.id, family=4), "ops")
        more, asks = 'AddressType = "dhcp"', asking("ipv4")
        job = post(controller, 1, address=None, more=more, attributes=asks).job
        late = post(controller, 1, more=more, attributes=asks, running=True).job
        assert (late.id, late.live) == (job.id, True)
        until(lambda: controller.jobs.found(job.id).state == "enforced")
        trail = [
            each for each in controller.audit.page(job.id, None, 9).entries if each.action == "no external address"
        ]
        assert [each.detail for each in trail] == ["pool public has no address left: all 1 are given or rest"]
        # One whose words are wrong is told in the same place; one that has not started yet is refused.
        wrong = f'{asks}ExternalPorts = "tcp/0"'
        assert post(controller, 3, attributes=wrong, running=True).job.live
        with pytest.raises(ExternalAddressError, match="no address left"):
            post(controller, 4, attributes=asks)


def test_a_pool_that_is_exhausted_is_looked_through_once_and_again_when_something_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = SECTION.replace("REFUSED", "hold\n  quarantine: 0").replace("198.51.100.64/28", "198.51.100.64/32")
    looked, choose = list[object](), external_addresses._chosen

    def chosen(connection: Connection, claim: Claim) -> Address:
        looked.append(claim)
        return choose(connection, claim)

    monkeypatch.setattr(external_addresses, "_chosen", chosen)
    with running(tmp_path, OPEN + section) as controller:
        first, second = post(controller, 1).job, post(controller, 2).job
        made = controller.external.associate(ExternalWish(first.id, family=4), "ops").association
        for _ in range(20):
            with pytest.raises(ExternalAddressError, match="pool public has no address left: all 1 are given or rest"):
                controller.external.associate(ExternalWish(second.id, family=4), "ops")
        # Every few seconds what has rested is freed, and then it is looked for again.
        assert (before := len(looked)) < 8
        controller.external.release(made.id, "ops")
        given = controller.external.associate(ExternalWish(second.id, family=4), "ops").association
        assert (given.address, len(looked)) == (made.address, before + 1)


def test_a_job_that_asks_and_releases_in_a_loop_is_given_an_address_a_minute(tmp_path: Path) -> None:
    with running(tmp_path, OPEN + SECTION.replace("REFUSED", "hold")) as controller:
        first, second = post(controller, 1).job, post(controller, 2).job
        controls, clock = controller.external, 100.0
        controls._given = Buckets(1 / 60, 3, clock=lambda: clock)
        for _ in range(3):
            wish = ExternalWish(first.id, family=4)
            made = controls.associate(wish, "alice").association
            # It has that already.
            assert controls.associate(wish, "alice").association.id == made.id
            controls.release(made.id, "alice")
        for _ in range(20):
            with pytest.raises(ExternalAddressError, match=r"job .* has asked and released too often; .* in [0-9]+ s"):
                controls.associate(ExternalWish(first.id, family=4), "alice")
        assert len(controller.audit.page(first.id, None, 100).entries) == 1 + 2 * 3 + 1
        controls.expire(time.time())
        assert controls.associate(ExternalWish(second.id, family=4), "alice").created
        with pytest.raises(ExternalAddressError, match="too often"):
            controls.associate(ExternalWish(first.id, family=4), "alice")
        # Once its time has come it is given one again, and no more than one.
        clock += 61.0
        again = controls.associate(ExternalWish(first.id, family=4), "alice")
        assert again.created
        controls.release(again.association.id, "alice")
        with pytest.raises(ExternalAddressError, match="too often"):
            controls.associate(ExternalWish(first.id, family=4), "alice")


def test_a_dhcp_job_gets_its_address_with_its_lease_and_hears_so_before(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, OPEN + SECTION.replace("REFUSED", "hold")) as controller:
        for switch in (FakeSwitch(0xC0, {1: "a", 2: "b", 3: "c"}), an_edge(hardware="Open vSwitch")):
            connect(network, controller, switch)
        job = registered(controller, "ovs_bridge", "dhcp", True, asking("both"), lease=False).job
        # Its own IPv6 address is there already.
        assert [str(each.address) for each in controller.external.page(job.id).associations] == [V6]
        with pytest.raises(ExternalAddressError, match="no IPv4 address of its own yet"):
            controller.external.associate(ExternalWish(job.id, family=4), "ops")
        registered(controller, "ovs_bridge", "dhcp", True, asking("both"))
        assert {str(each) for each in controller.jobs.confirm(job.id, 20).job.external_addresses} == {V4, V6}


def test_a_job_whose_user_asks_while_it_is_posted_keeps_that_and_starts(tmp_path: Path) -> None:
    with running(tmp_path, OPEN + SECTION.replace("REFUSED", "hold")) as controller:
        controls, had = controller.external, controller.external._store.had

        def meanwhile(job_id: str, family: int) -> bool:
            found = bool(had(job_id, family))
            controls.associate(ExternalWish(job_id, listed("tcp/81"), family=4), "alice")
            return found

        controls._store.had = meanwhile
        job = post(controller, 1, attributes=f'{asking("ipv4")}ExternalPorts = "tcp/80"').job
        assert job.live
        assert [each.openings for each in controls.page(job.id).associations] == [listed("tcp/81")]
        trail = [each.detail for each in controller.audit.page(job.id, None, 9).entries]
        assert any("release that first" in each for each in trail), trail


def test_the_policy_is_asked_again_about_those_alone_that_are_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, text = list[str](), OPEN + SECTION.replace("REFUSED", "hold")

    def noted(policy: Policy | None, job: Job, has: External) -> str:
        asked.append(job.id)
        return why_over(policy, job, has)

    with running(tmp_path, text) as controller:
        jobs = [post(controller, number).job.id for number in (1, 2, 3)]
        for job_id in jobs:
            controller.external.associate(ExternalWish(job_id, family=4), "ops")
        controller.external.expire(time.time())
        monkeypatch.setattr(external, "why_over", noted)
        controller.external.expire(time.time())
        assert asked == []
        # It is quarantined, which is another job for the policy; a renewal is not.
        controller.jobs.renew(jobs[0])
        controller._registration.quarantine(jobs[1], "the pool contradicts it", "pool")
        for _ in range(2):
            controller.external.expire(time.time())
        assert asked == [jobs[1]]

        # A database that is away when a policy is taken leaves the comparison to the next time.
        def away(*_: object) -> None:
            raise StoreError("away")

        monkeypatch.setattr(controller.external._store, "release", away)
        controller.policy.put(
            text.replace("open: [tcp], per_user: 9}\n    - {family", "open: [udp]}\n    - {family"), "ops"
        )
        assert len(controller.external.page().associations) == 3
        monkeypatch.undo()
        controller.external.expire(time.time())
        assert controller.external.page().associations == ()
