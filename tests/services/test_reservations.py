"""Reservations of the running controller: at job start, by wish, through policies and restarts."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from fake_switch.switch import FakeNetwork
from lark_common.classads.ads import parse_post
from lark_common.errors import (
    CapacityError,
    ExternalAddressError,
    NotFoundError,
    PathError,
    StateError,
    StoreError,
)
from lark_common.limits import Buckets
from lark_common.log import LOGGER
from lark_controller.api.external import ExternalState, ExternalWish
from lark_controller.api.reservations import Change, LinkStatus, Wish
from lark_controller.controller import Controller
from lark_controller.jobs.job import Job, ReservedFlow
from lark_controller.services import own_changes
from tests.fixtures.controllers import (
    an_edge,
    connect,
    running,
    until,
)

POLICY = """
version: 1
networks: {jobs: [10.64.0.0/16, "2001:db8:64::/48"], local: [10.0.0.0/8, "2001:db8::/32"]}
switches:
  core1: {datapath: "00000000000000c0", role: core, ports: {lan: 1, wan: 2, wan-fast: 3}}
policies:
  - wan: {when: 'Owner == "carol"', port: wan-fast}
topology:
  links:
    internet: {between: [core1, wan], capacity: 100}
    fast: {between: [core1, wan-fast], capacity: 1000}
  hosts:
    files.example: {switch: core1, capacity: 1000, addresses: [10.0.0.5]}
    worker2: {switch: core1, capacity: 500, duplex: half}
    default: {switch: core1}
"""

ONLY_IPV6 = 'LarkInnerAddressIPv4 = undefined\nLarkInnerAddressIPv6 = "2001:db8:64::2"'


def start(
    controller: Controller, number: int, owner: str = "alice", rate: float | None = None, host: int = 1, more: str = ""
) -> Job:
    lines = [
        f'Owner = "{owner}"', f'GlobalJobId = "s#{number}.0#1"', "JobCurrentStartDate = 1",
        "" if rate is None else f"RequestBandwidth = {rate}", "------",
        f'Machine = "worker{host}"', f'Name = "slot{number}@worker{host}"', f'LarkDatapathId = "{host:016x}"',
        f'LarkInnerMacAddress = "02:00:00:00:00:{number:02x}"', f'LarkInnerAddressIPv4 = "10.64.0.{number}"',
        f'LarkExternalInterface = "p{number}"', more or "AvailBandwidth = 1000",
    ]  # fmt: skip
    return controller.jobs.register(*parse_post("\n".join(lines).encode(), "text/plain"), "hook").job


def left(controller: Controller, name: str, source: str = "") -> LinkStatus:
    links = controller.reservations.links().items
    return next(each for each in links if each.name == name and source in ("", each.source))


def flows(controller: Controller, job: Job) -> tuple[ReservedFlow, ...]:
    """The reserved flows that the loop has of a job, once what was asked before has been done."""
    controller.switches.all()
    found = controller._reconciler.desired.placed.get(job.number)
    return () if found is None else found.job.reserved


def test_a_job_gets_what_it_requests_or_is_not_registered(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        first = start(controller, 1, rate=600)
        with pytest.raises(CapacityError, match="has 400 of 1000 Mb/s left, and 600 are asked") as caught:
            start(controller, 2, rate=600)
        assert not caught.value.idle
        assert start(controller, 3, rate=400).live
        assert start(controller, 4).live
        access = left(controller, "access:worker1", "worker1")
        assert (access.capacity, access.reserved, access.best_effort) == (1000, 1000, 0)
        controller.jobs.end(first.id, "hook")
        assert left(controller, "access:worker1", "core1").best_effort == 600
        assert start(controller, 2, rate=600).live


def test_the_refused_job_is_known_to_nobody_and_its_address_is_free(tmp_path: Path) -> None:
    with running(tmp_path, POLICY.replace("topology:", "topology:\n  refused: idle")) as controller:
        start(controller, 1, rate=1000)
        with pytest.raises(CapacityError) as caught:
            start(controller, 2, rate=1)
        assert caught.value.idle
        assert start(controller, 2).live


def test_links_of_workers_are_shown_once_a_job_is_there(tmp_path: Path) -> None:
    fixed = POLICY.replace("default: {switch: core1}", "default: {switch: core1, capacity: 700}")
    with running(tmp_path, fixed) as controller:
        assert "access:worker1" not in {each.name for each in controller.reservations.links().items}
        start(controller, 1)
        assert left(controller, "access:worker1").best_effort == 700
        start(controller, 3, rate=100)
    with running(tmp_path, fixed) as controller:
        assert left(controller, "access:worker1").best_effort == 600


def test_a_half_duplex_link_holds_half(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        start(controller, 1, rate=250, host=2, more="AvailBandwidth = 9999")
        assert left(controller, "access:worker2").best_effort == 0


def test_a_worker_of_unknown_speed(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        with pytest.raises(PathError, match="the capacity of the access link of worker1 is not known"):
            start(controller, 1, rate=1, more=" ")
        assert start(controller, 2, more=" ").live
        # Another job's machine ad says it for the whole worker.
        start(controller, 3)
        assert start(controller, 1, rate=1, more=" ").live


def test_request_bandwidth_up_to_the_wan(tmp_path: Path) -> None:
    with running(tmp_path, POLICY.replace("topology:", "topology:\n  reserves: wan")) as controller:
        start(controller, 1, rate=60)
        with pytest.raises(CapacityError, match="link internet"):
            start(controller, 2, rate=60)
        # Carol's traffic is steered to the other WAN.
        start(controller, 2, owner="carol", rate=60)
        assert left(controller, "internet", "core1").reserved == 60
        assert left(controller, "fast", "wan-fast").reserved == 60


def test_without_a_topology_nothing_is_refused_and_nothing_reserved(tmp_path: Path) -> None:
    with running(tmp_path, POLICY[: POLICY.index("topology:")]) as controller:
        job = start(controller, 1, rate=100_000)
        assert controller.reservations.links().items == ()
        with pytest.raises(PathError, match="declares no topology"):
            controller.reservations.reserve(Wish(job.id, "wan", 1), "ops", False)


@pytest.mark.parametrize(
    ("destination", "node", "addresses", "peer"),
    [
        ("wan", "wan", [], False),
        ("192.0.2.7", "wan", ["192.0.2.7/32"], False),
        ("192.0.2.0/24", "wan", ["192.0.2.0/24"], False),
        ("wan-fast", "wan-fast", [], False),
        ("10.64.0.2", "worker2", ["10.64.0.2/32"], True),
        ("files.example", "files.example", ["10.0.0.5/32"], False),
        ("10.0.0.5", "files.example", ["10.0.0.5/32"], False),
    ],
)
def test_where_a_flow_may_go(tmp_path: Path, destination: str, node: str, addresses: list[str], peer: bool) -> None:
    with running(tmp_path, POLICY) as controller:
        sender, receiver = start(controller, 1), start(controller, 2, host=2)
        until(lambda: len(controller._reconciler.directory) == 2)
        made = controller.reservations.reserve(Wish("10.64.0.1", destination, 50), "hook", True)
        assert (made.source, made.destination, made.job) == ("worker1", node, sender.id)
        assert [str(network) for network in made.target] == addresses
        assert (made.peer == receiver.id) is peer
        flow = ReservedFlow(made.number, 50_000, made.target, peer=made.peer, node=made.destination)
        assert flows(controller, sender) == (flow,)
        controller.jobs.end(receiver.id if peer else sender.id, "hook")
        assert flows(controller, sender) == ()
        assert controller.reservations.page(None, None, 10).reservations == ()


def test_a_flow_is_steady_where_its_job_asks_for_that_and_stays_so(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1)
        until(lambda: len(controller._reconciler.directory) == 1)
        made = controller.reservations.reserve(Wish(job.id, "wan", 50, steady=True), "hook", True)
        assert [each.steady for each in flows(controller, job)] == [True]
        controller.reservations.change(made.id, Change(rate=40), "hook", True)
        assert [(each.kbps, each.steady) for each in flows(controller, job)] == [(40_000, True)]
        controller.reservations.change(made.id, Change(steady=False), "hook", True)
        assert [(each.kbps, each.steady) for each in flows(controller, job)] == [(40_000, False)]
        assert not controller.reservations.find(made.id).steady
        controller.reservations.change(made.id, Change(steady=True), "hook", True)
        assert controller.reservations.find(made.id).steady
    with running(tmp_path, POLICY) as controller:
        assert [each.steady for each in flows(controller, job)] == [True]
    with running(tmp_path, POLICY) as controller:
        asks = start(controller, 2, rate=10)
        (own,) = controller.reservations.page(asks.id, None, 10).reservations
        with pytest.raises(PathError, match="only its rate can be changed"):
            controller.reservations.change(own.id, Change(steady=True), "ops", False)


def test_wishes_that_make_no_sense(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1)
        reserve = controller.reservations.reserve
        for source, destination, said in (
            ("nobody", "wan", "neither a live job, nor a host"),
            ("worker2", "10.9.9.9", "is no WAN address"),
            ("10.9.9.9", "wan", "is no WAN address"),
            (job.id, "worker2.", "neither a live job"),
            (job.id, start(controller, 2, host=2, more=ONLY_IPV6).id, "has IPv4 alone and job 2.0 IPv6 alone"),
        ):
            with pytest.raises(PathError, match=said):
                reserve(Wish(source, destination, 1, 60), "ops", False)
        with pytest.raises(PathError, match="needs a duration"):
            reserve(Wish("worker2", "wan", 1), "ops", False)
        with pytest.raises(PathError, match="is no live job"):
            reserve(Wish("worker2", "wan", 1, 60), "hook", True)
        of_operator = reserve(Wish("worker2", "wan", 1, 60), "ops", False)
        with pytest.raises(PathError, match="not that of a flow that a job sends"):
            controller.reservations.change(of_operator.id, Change(2), "hook", True)
        with pytest.raises(PathError, match="not that of a flow that a job sends"):
            controller.reservations.release(of_operator.id, "hook", True)
        controller.reservations.release(of_operator.id, "ops", False)
        with pytest.raises(NotFoundError, match="no reservation has the id"):
            controller.reservations.release(of_operator.id, "ops", False)


def test_a_flow_has_one_reservation(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1)
        for destination in ("wan", "192.0.2.1", "192.0.2.0/24", "10.0.0.5"):
            controller.reservations.reserve(Wish(job.id, destination, 1), "hook", True)
            with pytest.raises(PathError, match="is for the same flow; change that one"):
                controller.reservations.reserve(Wish(job.id, destination, 1), "hook", True)
        assert len(flows(controller, job)) == 4


def test_a_job_has_so_many_reserved_flows_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lark_controller.services.reservations.MOST_FLOWS", 2)
    with running(tmp_path, POLICY) as controller:
        job, peer = start(controller, 1), start(controller, 2, host=2)
        reserve = controller.reservations.reserve
        first = reserve(Wish(job.id, "192.0.2.1", 0.1), "hook", True)
        reserve(Wish(job.id, "192.0.2.2", 0.1), "hook", True)
        with pytest.raises(PathError, match="has 2 reserved flows; at most 2"):
            reserve(Wish(job.id, "192.0.2.3", 0.1), "hook", True)
        # What goes to it is another's.
        reserve(Wish(peer.id, job.id, 0.1), "hook", True)
        reserve(Wish(peer.id, "192.0.2.1", 0.1), "hook", True)
        controller.reservations.release(first.id, "hook", True)
        reserve(Wish(job.id, "192.0.2.3", 0.1), "hook", True)


def test_a_flow_changes_and_ends(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1)
        made = controller.reservations.reserve(Wish(job.id, "wan", 40, 3600), "hook", True)
        assert made.until == pytest.approx(time.time() + 3600, abs=60)
        with pytest.raises(CapacityError):
            controller.reservations.change(made.id, Change(101), "hook", True)
        assert flows(controller, job)[0].kbps == 40_000
        changed = controller.reservations.change(made.id, Change(100, None, True), "hook", True)
        assert (changed.rate, changed.until) == (100, None)
        assert flows(controller, job)[0].kbps == 100_000
        controller.reservations.change(made.id, Change(None, 1.0, True), "hook", True)
        assert controller.reservations.expire(time.time() + 2) == 1
        assert flows(controller, job) == ()
        assert left(controller, "internet").reserved == 0


def test_an_end_that_a_job_puts_off_is_no_line_of_the_audit_trail_and_wakes_nobody(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1)
        made = controller.reservations.reserve(Wish(job.id, "wan", 40, 60), "hook", True)
        before, changes = _actions(controller, job), controller.reservations._watch._changes
        # As an application does three times in each lease.
        renewed = controller.reservations.change(made.id, Change(40, 3600, True, steady=False), "hook", True)
        assert renewed.until == pytest.approx(time.time() + 3600, abs=60)
        assert controller.reservations.expire(time.time() + 120) == 0
        assert (_actions(controller, job), controller.reservations._watch._changes) == (before, changes)
        controller.reservations.change(made.id, Change(40, 7200, True), "ops", False)
        controller.reservations.change(made.id, Change(41, 7200, True), "hook", True)
        assert _actions(controller, job) == ["change", "change", *before]
        assert controller.reservations._watch._changes > changes
        controller.reservations.change(made.id, Change(41, 1.0, True), "hook", True)
        assert controller.reservations.expire(time.time() + 2) == 1
        assert flows(controller, job) == ()


def test_a_job_that_changes_rates_in_a_loop_fills_neither_the_audit_trail_nor_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = 0.0
    lines = partial(Buckets, own_changes.LINES_A_SECOND, 4, 9, lambda: clock)
    monkeypatch.setattr(own_changes, "Buckets", lambda *_: lines())
    with running(tmp_path, POLICY) as controller, caplog.at_level("INFO", LOGGER):
        job, other = start(controller, 1), start(controller, 2)
        reservations = controller.reservations
        made = reservations.reserve(Wish(job.id, "wan", 40), "hook", True)
        for turn in range(20):
            # What is refused takes no line of what is made.
            with pytest.raises(CapacityError):
                reservations.change(made.id, Change(rate=10_000), "hook", True)
            reservations.change(made.id, Change(rate=41 + turn), "hook", True)
            # That is no change.
            reservations.change(made.id, Change(rate=41 + turn, duration=3600, reschedule=True), "hook", True)
        reservations.release(made.id, "hook", True)
        short = reservations.reserve(Wish(job.id, "wan", 40, 1.0), "hook", True)
        assert reservations.expire(time.time() + 2) == 1
        assert _actions(controller, job) == ["change"] * 3 + ["reserve", "register"]
        # Others, and whoever is no job, have all their lines meanwhile.
        reservations.reserve(Wish(other.id, "wan", 1), "hook", True)
        again = reservations.reserve(Wish(job.id, "wan", 1), "ops", False)
        reservations.change(again.id, Change(rate=2), "ops", False)
        assert _actions(controller, other) == ["reserve", "register"]
        assert _actions(controller, job) == ["change", "reserve", *["change"] * 3, "reserve", "register"]
        for _ in range(3):
            clock += 60
            reservations.expire(time.time())
        (last, *_) = controller.audit.page(job.id, None, 1).entries
        assert last.detail == "20 changes of its own reservations without a line each"
        assert len(_actions(controller, job)) == 8
        reservations.change(again.id, Change(rate=3), "hook", True)
        assert controller.audit.page(job.id, None, 1).entries[0].detail == f"reservation {again.id}: 2 to 3 Mb/s"
    told = [each.__dict__["lark_fields"] for each in caplog.records if "reserv" in each.getMessage()]
    assert len([each for each in told if each.get("job") == job.id]) == 8
    assert short.id not in str(told)


def _actions(controller: Controller, job: Job) -> list[str]:
    """The actions in the audit trail of a job, the newest first."""
    return [each.action for each in controller.audit.page(job.id, None, 100).entries]


def test_an_operator_changes_what_a_job_requested(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1, rate=100)
        made = controller.reservations.page(job.id, None, 10).reservations[0]
        with pytest.raises(PathError, match="not that of a flow"):
            controller.reservations.change(made.id, Change(200), "hook", True)
        with pytest.raises(PathError, match="ends with the job"):
            controller.reservations.change(made.id, Change(None, 1.0, True), "ops", False)
        controller.reservations.change(made.id, Change(200), "ops", False)
        assert controller.jobs.detail(job.id).job.bandwidth == 200
        controller.switches.all()
        controller.switches.all()
        assert controller._reconciler.desired.placed[job.number].job.bandwidth == 200
        controller.reservations.release(made.id, "ops", False)
        assert controller.jobs.detail(job.id).job.bandwidth is None
        assert left(controller, "access:worker1").reserved == 0


def test_a_restart_knows_what_is_reserved(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1, rate=100)
        made = controller.reservations.reserve(Wish(job.id, "wan", 40), "hook", True)
    with running(tmp_path, POLICY) as controller:
        assert controller.reservations.find(made.id) == made
        assert flows(controller, job) == (ReservedFlow(made.number, 40_000, (), node=made.destination),)
        assert left(controller, "access:worker1", "worker1").reserved == 140
        # The same post again, after the restart, finds its reservation and keeps its flow.
        start(controller, 1, rate=100)
        assert left(controller, "access:worker1", "worker1").reserved == 140
        assert flows(controller, job) != ()


def test_a_new_policy_counts_anew_and_takes_nothing_away(tmp_path: Path) -> None:
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1, rate=100)
        made = controller.reservations.reserve(Wish(job.id, "wan", 80), "hook", True)
        controller.policy.put(POLICY.replace("capacity: 100}", "capacity: 50, duplex: half}"), "ops")
        internet = left(controller, "internet")
        assert (internet.duplex, internet.capacity, internet.reserved, internet.best_effort) == ("half", 50, 80, -30)
        with pytest.raises(CapacityError):
            controller.reservations.reserve(Wish(job.id, "192.0.2.1", 1), "hook", True)
        assert controller.reservations.change(made.id, Change(60), "hook", True).rate == 60
        controller.policy.put(POLICY, "ops")
        assert left(controller, "internet", "core1").best_effort == 40


def test_what_jobs_were_promised_before_there_was_a_topology_counts_on_it(tmp_path: Path) -> None:
    without = POLICY.partition("topology:")[0]
    with running(tmp_path, without) as controller:
        start(controller, 1, rate=900)
        unknown = start(controller, 2, rate=50, host=3, more="JobLabel = 1")
        start(controller, 3)
        controller.policy.put(POLICY, "ops")
        assert left(controller, "access:worker1", "worker1").reserved == 900
        with pytest.raises(CapacityError):
            start(controller, 4, rate=200)
        # Nothing says how much the link of this one carries: it has a reservation that takes nothing.
        (held,) = controller.reservations.page(unknown.id, None, 10).reservations
        assert (held.rate, dict(held.holds)) == (50, {})
        # Other rules promise other rates.
        rule = "policies:\n  - bandwidth: {default: 10, maximum: 600}"
        controller.policy.put(POLICY.replace("policies:", rule), "ops")
        assert left(controller, "access:worker1", "worker1").reserved == 610
        controller.policy.put(without, "ops")
        assert controller.reservations.links().items == ()
    with running(tmp_path, POLICY) as controller:
        assert left(controller, "access:worker1", "worker1").reserved == 900


@pytest.mark.parametrize("step", ["worker_capacities", "reroute", "flows"])
def test_a_database_that_goes_away_while_the_policy_changes_lets_nobody_in_unseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def away(*_: object) -> None:
        raise StoreError("the server restarts")

    smaller = POLICY.replace("default: {switch: core1}", "default: {switch: core1, capacity: 600}")
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1, rate=400)
        with monkeypatch.context() as patched:
            patched.setattr(controller._store.reservations, step, away)
            assert controller.policy.put(smaller, "ops").text == smaller
            for refused in (lambda: start(controller, 2, rate=1), lambda: controller.reservations.expire(0.0)):
                with pytest.raises(StoreError):
                    refused()
        with pytest.raises(CapacityError):
            start(controller, 2, rate=300)
        assert left(controller, "access:worker1", "worker1").best_effort == 200
        controller.jobs.end(job.id, "hook")
        start(controller, 2, rate=300)


def test_a_job_that_was_in_quarantine_is_what_the_policy_in_force_makes_of_it(tmp_path: Path) -> None:
    blocking = POLICY.replace("policies:", "policies:\n  - block: {when: 'TARGET.Rack == 7'}")
    with running(tmp_path, POLICY) as controller:
        job = start(controller, 1, more="AvailBandwidth = 1000\nRack = 7")
        controller.policy.put(blocking, "ops")
        controller.reservations.reserve(Wish(job.id, "wan", 40), "hook", True)
        reserved = flows(controller, job)
        assert controller._registration.quarantine(job.id, "another job is there", "pool")
        assert controller._registration.lift(job.id, "the pool agrees", "pool")
        assert flows(controller, job) == reserved != ()
        assert controller._reconciler.desired.placed[job.number].decision.blocked


def test_a_job_whose_switch_refuses_it_frees_its_bandwidth(tmp_path: Path, network: FakeNetwork) -> None:
    def limited(rules: int) -> str:
        line = (
            f'  worker1: {{datapath: "{1:016x}", role: edge, host: worker1, max_rules: {rules}, ports: {{uplink: 1}}}}'
        )
        return POLICY.replace("policies:", f"{line}\npolicies:")

    with running(tmp_path, limited(0)) as controller:
        connect(network, controller, an_edge())
        first = start(controller, 1, rate=100)
        assert controller.jobs.confirm(first.id, 20).job.state == "enforced"
        controller.policy.put(limited(controller.switches.find(f"{1:016x}").desired + 2), "ops")
        second = start(controller, 2, rate=100)
        until(lambda: controller.jobs.confirm(second.id, 0).job.state == "refused")
        until(lambda: left(controller, "access:worker1", "worker1").reserved == 100)


def test_an_external_address_ends_with_a_reservation_and_outlives_a_restart_with_it(tmp_path: Path) -> None:
    external = "external: {pools: {public: [198.51.100.64/28]}, rules: [{pool: public, open: [tcp]}]}\n"
    with running(tmp_path, POLICY + external) as controller:
        job, other = start(controller, 1), start(controller, 2, "bob")
        flow = controller.reservations.reserve(Wish(job.id, "wan", 10.0), "ops", False)
        with pytest.raises(ExternalAddressError, match=f"no reserved flow of job {other.called} has the id {flow.id}"):
            controller.external.associate(ExternalWish(other.id, reservation=flow.id), "ops")
        made = controller.external.associate(ExternalWish(job.id, reservation=flow.id), "ops").association
        assert made.reservation == flow.number
        assert [each.id for each in controller.reservations.at(job.id)] == [flow.id]
        assert not controller.external.associate(ExternalWish(job.id, reservation=flow.id), "ops").created
        second = controller.reservations.reserve(Wish(job.id, "files.example", 5.0), "ops", False)
        with pytest.raises(StateError, match="not with that reservation; release that first"):
            controller.external.associate(ExternalWish(job.id, reservation=second.id), "ops")
        controller.external.expire(time.time())
        assert controller.jobs.found(job.id).external_addresses == (made.address,)
    with running(tmp_path, POLICY + external) as controller:
        controller.external.expire(time.time())
        assert controller.external.find(made.id).released is None
        assert controller.jobs.found(job.id).external_addresses == (made.address,)
        controller.reservations.release(flow.id, "ops", of_job=False)
        # At once in the network, and in the store with the release.
        assert controller.jobs.found(job.id).external_addresses == ()
        over = controller.external.find(made.id)
        assert (over.why, over.released is not None) == ("its reservation is over", True)
        assert controller.external.page().associations == ()
        assert controller.external.standing(made) == (ExternalState.OVER, "its reservation is over")
        assert controller.audit.page(job.id, None, 1).entries[0].action == "dissociate"
        # Another time limit ends one as well.
        short = controller.reservations.reserve(Wish(job.id, "wan", 10.0, 1.0), "ops", False)
        again = controller.external.associate(ExternalWish(job.id, reservation=short.id), "ops").association
        until(
            lambda: controller.reservations.expire(time.time()) or not controller.jobs.found(job.id).external_addresses
        )
        controller.external.expire(time.time())
        assert controller.external.find(again.id).why == "its reservation is over"
        # A flow ends with the job that it goes to, and the address of its sender with it.
        flow = controller.reservations.reserve(Wish(job.id, other.id, 1.0), "ops", False)
        third = controller.external.associate(ExternalWish(job.id, reservation=flow.id), "ops").association
        controller.jobs.end(other.id, "hook")
        assert controller.external.find(third.id).why == "its reservation is over"
        assert controller.jobs.found(job.id).external_addresses == ()
