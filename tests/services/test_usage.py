"""Usage from the counters of switches and workers: fake switches, real store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import pytest

from fake_switch.switch import FakeNetwork, FakeSwitch
from lark_common.errors import NotFoundError
from lark_controller.accounting.readings import (
    CountKind,
    FlowReading,
    PortReading,
    QueueReading,
    TransferCounts,
    WorkerCounts,
)
from lark_controller.accounting.usage import IDLE, JobUsage, Usage
from lark_controller.api.controls import Controls
from lark_controller.api.jobs import JobFilter
from lark_controller.api.usage import TransferReport, UsageFilter
from lark_controller.controller import Controller
from lark_controller.jobs.job import Job
from lark_controller.rest.scrape import ControlsCollector, LocalParts
from lark_controller.switches.openflow.replies import PortCounters
from tests.fixtures.controllers import (
    POLICY,
    a_core,
    an_edge,
    connect,
    post,
    running,
    until,
)

DPID = "0000000000000001"
Counting = tuple[Controller, FakeSwitch, Job]


@contextmanager
def counting(path: Path, network: FakeNetwork, seconds: float, policy: str = POLICY) -> Iterator[Counting]:
    """A controller that reads counters, and a job enforced at port 11 of an edge."""
    with running(path, policy, counter_seconds=seconds) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        job = post(controller, 1, port="p1").job
        controller.jobs.confirm(job.id, 5)
        yield controller, edge, job


def counters(network: FakeNetwork, switch: FakeSwitch, port: int, sent: int, received: int, age: float = 1.0) -> None:
    """A port has counted so many packets of 100 bytes from and to the job."""
    said = PortCounters(port, sent, received, 100 * sent, 100 * received, 0, 0, age)
    network.run(lambda: switch.counted.update({port: said}))


def used(controller: Controller, job_id: str) -> JobUsage:
    return controller.jobs.detail(job_id).usage or JobUsage()


def test_ports_are_read_and_a_last_time_when_the_job_ends(tmp_path: Path, network: FakeNetwork) -> None:
    with counting(tmp_path, network, 0.05) as (controller, edge, job):
        counters(network, edge, 11, 5, 7)
        until(lambda: used(controller, job.id).usage.packets_out == 5)
        assert used(controller, job.id).usage == Usage(bytes_in=700, bytes_out=500, packets_in=7, packets_out=5)
        assert controller.usage.of_jobs([job])[job.number].usage.bytes_in == 700
        counters(network, edge, 11, 9, 9)
        controller.jobs.end(job.id, "test")
        until(lambda: used(controller, job.id).final)
        assert used(controller, job.id).usage == Usage(bytes_in=900, bytes_out=900, packets_in=9, packets_out=9)
        now = time.time()
        chosen = UsageFilter("group", now - 3600, now + 3600, 60)
        until(lambda: controller.usage.page(chosen, None, 10).rows != ())
        (row,) = controller.usage.page(chosen, None, 10).rows
        assert row.usage == used(controller, job.id).usage
        first = controller.policy.version.at
        controller.policy.put(POLICY + "# another\n", "test")
        assert controller.usage.page(chosen, None, 10).known_since == first < controller.policy.version.at


def test_transfers_are_in_the_use_of_group_user_host_and_job_and_in_the_metrics(
    tmp_path: Path, network: FakeNetwork
) -> None:
    with counting(tmp_path, network, 0.05, POLICY + "groups: {all: {when: 'true'}}\n") as (controller, edge, job):
        counters(network, edge, 11, 5, 7)
        moved = TransferReport(TransferCounts(5000, 700, 400, 300, 2000))
        assert controller.usage.transferred(job.host, {job.id: moved, "unknown": moved}).missing == {"unknown"}
        until(lambda: used(controller, job.id).usage.packets_out == 5)
        assert used(controller, job.id).rate.transfer_inward == 40_000
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in ControlsCollector(cast("Controls", controller))._groups()
            for sample in family.samples
        }
        name = "lark_group_transfer_bytes_total"
        assert {key[2:]: value for key, value in found.items() if key[:2] == (name, "all")} == {
            ("in", "wan"): 400, ("in", "local"): 4600, ("out", "wan"): 300, ("out", "local"): 400
        }  # fmt: skip
        assert found["lark_group_transfer_seconds_total", "all"] == 2
        assert found["lark_group_bytes_total", "all", "in", "local"] == 700
        controller.jobs.end(job.id, "test")
        until(lambda: used(controller, job.id).final)
        now = time.time()
        for by in ("group", "user", "host", "job"):
            chosen = UsageFilter(by, now - 3600, now + 3600, 60)
            until(lambda: controller.usage.page(chosen, None, 10).rows != ())  # noqa: B023  # done at once
            (row,) = controller.usage.page(chosen, None, 10).rows
            assert row.usage == used(controller, job.id).usage
            assert (row.usage.transfer_bytes_in, row.usage.transfer_wan_bytes_in, row.usage.bytes_in) == (
                5000,
                400,
                700,
            )


def test_minutes_of_the_past_have_no_part_that_is_more_than_its_whole(tmp_path: Path, network: FakeNetwork) -> None:
    with counting(tmp_path, network, 0) as (controller, _, job):
        ledger, writer = controller.usage._ledger, controller._account_writer
        began = time.time() // 60 * 60 + 60
        ledger.read(job.number, began, PortReading(0, 0, 0, 0), port_age=1.0)
        port = PortReading(10, 1000, 0, 0)
        ledger.read(job.number, began + 50, port, [FlowReading(CountKind.WAN_OUT, 5, 500)])
        writer.write()
        # The flow has counted the rest of the same packets by now, and a minute has passed.
        ledger.read(job.number, began + 110, port, [FlowReading(CountKind.WAN_OUT, 10, 1000)])
        writer.write()
        assert used(controller, job.id).usage.wan_bytes_out == 1000
        for by in ("group", "user", "host"):
            rows = controller.usage.page(UsageFilter(by, began, began + 180, 60, bucket="minute"), None, 10).rows
            assert [row.usage.bytes_out for row in rows] == [1000, 0]
            assert all(row.usage.is_bounded() for row in rows)
        (whole,) = controller.usage.page(UsageFilter("group", began, began + 180, 60), None, 10).rows
        assert (whole.usage.bytes_out, whole.usage.wan_bytes_out) == (1000, 1000)


def test_a_counter_of_metrics_does_not_fall_when_flows_follow_ports(tmp_path: Path, network: FakeNetwork) -> None:
    with counting(tmp_path, network, 0, POLICY + "groups: {all: {when: 'true'}}\n") as (controller, _, job):
        ledger, collector = controller.usage._ledger, ControlsCollector(cast("Controls", controller))
        now = time.time()

        def read(at: int, out: int, wan: int) -> dict[str, float]:
            """The bytes that a scrape after such a reading has, by scope."""
            flow = FlowReading(CountKind.WAN_OUT, wan // 100, wan)
            ledger.read(job.number, now + at, PortReading(out // 100, out, 0, 0), [flow], 1.0)
            return {
                sample.labels["scope"]: sample.value
                for family in collector._groups()
                for sample in family.samples
                if sample.name == "lark_group_bytes_total" and sample.labels["direction"] == "out"
            }

        read(0, 0, 0)
        assert read(10, 5000, 3000) == {"wan": 3000, "local": 2000}
        # All of it was to the WAN. Prometheus would take a counter that falls for one that began anew.
        assert read(20, 5000, 5000) == {"wan": 5000, "local": 2000}
        assert read(30, 8000, 5000) == {"wan": 5000, "local": 3000}
    parts = LocalParts()
    assert [parts.of(("all", "out"), total, wan) for total, wan in ((9, 4), (9, 6), (2, 1), (3, 3))] == [5, 5, 1, 1]


def test_the_last_reading_needs_no_round(tmp_path: Path, network: FakeNetwork) -> None:
    with counting(tmp_path, network, 0) as (controller, edge, job):
        counters(network, edge, 11, 5, 7)
        controller.jobs.end(job.id, "test")
        until(lambda: used(controller, job.id).final)
        assert used(controller, job.id).usage.packets_in == 7


def test_a_restart_goes_on_where_it_was_left(tmp_path: Path, network: FakeNetwork) -> None:
    edge = an_edge()
    with running(tmp_path, counter_seconds=0.05) as controller:
        connect(network, controller, edge)
        counters(network, edge, 11, 5, 5, age=86400)
        job, other = post(controller, 1, port="p1").job, post(controller, 2, port="p2").job
        for each in (job, other):
            controller.jobs.confirm(each.id, 5)
        counters(network, edge, 12, 1, 1)
        until(lambda: used(controller, job.id).at > 0)
        counters(network, edge, 11, 15, 15, age=86400)
        until(lambda: used(controller, job.id).usage.packets_out == 10)
    counters(network, edge, 11, 25, 25, age=86400)
    with running(tmp_path, counter_seconds=0.05) as controller:
        assert used(controller, job.id).usage.packets_out == 10
        connect(network, controller, edge)
        until(lambda: used(controller, job.id).usage.packets_out == 20)
        assert used(controller, other.id).usage.packets_out == 1
        controller.jobs.end(job.id, "test")
        until(lambda: used(controller, job.id).final)
        assert used(controller, job.id).usage.packets_out == 20
        assert [each.id for each in controller.jobs.page(JobFilter(), None, 10).jobs] == [other.id]


def test_a_job_that_ended_while_nobody_looked_keeps_what_was_read_last(tmp_path: Path, network: FakeNetwork) -> None:
    with counting(tmp_path, network, 0.05) as (controller, edge, job):
        counters(network, edge, 11, 5, 5)
        until(lambda: used(controller, job.id).usage.packets_out == 5)
        network.run(edge.disconnect)
        until(lambda: not controller.switches.find(DPID).connected)
        assert used(controller, job.id).rate.inward == 0
        controller.jobs.end(job.id, "test")
        until(lambda: used(controller, job.id).final)
        assert used(controller, job.id).usage.packets_out == 5


def test_a_port_that_is_renumbered_keeps_the_jobs_count(tmp_path: Path, network: FakeNetwork) -> None:
    with counting(tmp_path, network, 0.05) as (controller, edge, job):
        counters(network, edge, 11, 5, 5)
        until(lambda: used(controller, job.id).usage.packets_out == 5)
        old = edge.ports[11]
        network.run(lambda: edge.change_port(old, 1))
        network.run(lambda: edge.change_port(old.__class__(21, "p1", old.mac, True, False), 0))
        # The port is the same device, so it goes on counting.
        counters(network, edge, 21, 8, 5)
        until(lambda: used(controller, job.id).usage.packets_out == 8)


def test_workers_count_for_jobs_that_no_switch_has(tmp_path: Path) -> None:
    with running(tmp_path, counter_seconds=0) as controller:
        job = post(controller, 1, port="p1").job
        report = WorkerCounts(PortReading(4, 400, 5, 500), (300, 200, 3, 2), (1, 0))
        assert controller.usage.counted(job.id, report, False)
        assert controller.usage.counted(job.id, report, True)
        assert not controller.usage.counted(job.id, report, True)
        controller.jobs.end(job.id, "test")
        until(lambda: used(controller, job.id).final)
        assert used(controller, job.id).usage == Usage(500, 400, 5, 4, 300, 200, 3, 2, 1, 0)
        assert not controller.usage.counted(job.id, report, True)


def test_only_jobs_that_the_policy_accounts_are_counted(tmp_path: Path, network: FakeNetwork) -> None:
    with running(tmp_path, POLICY + "accounting: requested\n", counter_seconds=0.05) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        quiet = post(controller, 1, port="p1").job
        asking = post(controller, 2, port="p2", attributes="NetworkAccounting = true").job
        for port in (11, 12):
            counters(network, edge, port, 5, 5)
        until(lambda: used(controller, asking.id).usage.packets_out == 5)
        assert controller.jobs.detail(quiet.id).usage is None
        assert not controller.usage.counted(quiet.id, WorkerCounts(PortReading(1, 1, 1, 1)), False)
        controller.policy.put(POLICY, "test")
        until(
            lambda: (
                controller.jobs.detail(quiet.id).usage is not None and used(controller, quiet.id).usage.packets_out == 5
            )
        )


def test_rates_by_group_of_the_policy_and_by_subject(tmp_path: Path, network: FakeNetwork) -> None:
    policy = POLICY + "groups: {default: {port: wan, guarantee: 10Mbit, ceiling: 100Mbit}}\n"
    with counting(tmp_path, network, 0.05, policy) as (controller, edge, job):
        sent = 0

        def flowing() -> bool:
            nonlocal sent
            sent += 1000
            counters(network, edge, 11, sent, 0)
            (group,) = controller.usage.groups()
            return group.rate.outward > 0 and group.usage.bytes_out > 0

        until(flowing)
        until(lambda: flowing() and bool(controller.usage.flowing("user", 10)))
        (busy,) = controller.usage.flowing("job", 10) or (None,)
        assert busy is None or (busy.name, busy.jobs) == (job.id, 1)


def test_a_group_has_the_rates_that_no_core_keeps(tmp_path: Path, network: FakeNetwork) -> None:
    groups = "groups: {cms: {guarantee: 10, ceiling: 100}, atlas: {ceiling: 5}}\n"
    with running(tmp_path, POLICY + groups) as controller:
        connect(network, controller, a_core())
        unkept = {group.name: group.unkept for group in controller.usage.groups()}
        assert unkept == {
            "cms": ("core1: guarantee 10 Mb/s is not given, because a meter can only limit; groups_by: queues can",),
            "atlas": (),
        }
        # Edges mark the groups' packets, and that is all.
        controller.policy.put("version: 1\nnetworks: {local: [10.0.0.0/8]}\n" + groups, "test")
        nobody = ("the policy declares no core switch, so nothing keeps it for what jobs send and receive",)
        assert [group.unkept for group in controller.usage.groups()] == [nobody, nobody]


def test_a_job_may_be_read_without_waiting_for_the_round(tmp_path: Path, network: FakeNetwork) -> None:
    with counting(tmp_path, network, 0) as (controller, edge, job):
        counters(network, edge, 11, 5, 7)
        assert used(controller, job.id).usage.packets_in == 0
        controller.jobs.read_counters(job.id, 5)
        assert used(controller, job.id).usage == Usage(bytes_in=700, bytes_out=500, packets_in=7, packets_out=5)
        network.run(edge.disconnect)
        until(lambda: not controller.switches.find(DPID).connected)
        for known in (job.id, "0" * 16):
            controller.jobs.read_counters(known, 5)
        assert used(controller, job.id).usage.packets_in == 7


BANDWIDTH = POLICY + "  - bandwidth: {mode: requested, maximum: 150Mbit}\n"
LINKS = """topology:
  links: {internet: {between: [core1, wan], capacity: 500}}
  hosts: {default: {switch: core1, capacity: 120}}
"""


def test_advice_of_a_job_that_lives_and_of_the_same_that_has_ended(
    tmp_path: Path, network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lark_controller.qos.advice.LEAST_SECONDS", 0.5)
    monkeypatch.setattr("lark_controller.accounting.account.LEAST_STRETCH", 0.5)
    with running(tmp_path, BANDWIDTH, counter_seconds=0.05) as controller:
        edge = an_edge()
        connect(network, controller, edge)
        asks = "RequestBandwidth = 100"
        job = post(controller, 1, port="p1", attributes=asks).job
        counters(network, edge, 11, 10_000, 0)
        until(lambda: controller.usage.advice(job.id).verdict == "too much")
        live = controller.usage.advice(job.id)
        assert (live.asked, live.mode, live.counts, live.so_far) == (100, "cap", 100, True)
        assert live.advised is not None
        assert 0 < live.highest.outward <= live.advised <= 80
        # The queue has held it back since then, for much of the time.
        controller.usage.counted(
            job.id, WorkerCounts(PortReading(10_000, 1_000_000, 0, 0), queues=QueueReading(0, 3, 0, 3_600_000)), True
        )
        controller.jobs.end(job.id, "test")
        until(lambda: not controller.usage.advice(job.id).so_far)
        ended = controller.usage.advice(job.id)
        # A stretch begins at a whole millisecond, a mean does not.
        assert ended.highest.outward >= 0.99 * live.highest.outward
        assert (ended.verdict, ended.dropped_out, ended.throttled) == ("too little", 3, 1)
        assert (ended.advised, ended.bounded_by) == (150, "the policy allows")
    # From the store alone; the machine's link is the topology's now.
    with running(tmp_path, BANDWIDTH + LINKS, counter_seconds=0) as controller:
        again = controller.usage.advice(job.id)
        assert (again.highest, again.throttled) == (ended.highest, ended.throttled)
        assert (again.advised, again.bounded_by) == (120, "its worker's link carries")
        with pytest.raises(NotFoundError):
            controller.usage.advice("0" * 16)


def test_advice_of_jobs_that_nothing_is_known_of(tmp_path: Path) -> None:
    with running(tmp_path, POLICY + "accounting: none\n", counter_seconds=0) as controller:
        job = post(controller, 1, port="p1").job
        assert controller.usage.advice(job.id).reason == "not counted"
        none = post(controller, 2, port="p2", more='LarkNetworkType = "none"').job
        assert controller.usage.advice(none.id).reason == "no network"


def test_a_rate_that_no_worker_reports_any_more_ends(tmp_path: Path) -> None:
    with running(tmp_path, POLICY, counter_seconds=0) as controller:
        nat = 'LarkNetworkType = "nat"'
        dead, alive = (post(controller, n, address=f"10.255.64.{n}", port=None, more=nat).job for n in (1, 2))
        # The worker of the first says how often it reports; that of the second is of an earlier release.
        for job, interval in ((dead, 1.0), (alive, None)):
            report = WorkerCounts(PortReading(10, 1000, 0, 0), policy_drops=(0, 10), interval=interval)
            assert controller.usage.counted(job.id, report, False)
        moved = TransferReport(TransferCounts(5000, 0, 0, 0, 1000), interval=1.0)
        controller.usage.transferred(dead.host, {dead.id: moved})
        assert {each.name for each in controller.usage.flowing("job", 9)} == {dead.id, alive.id}
        until(lambda: used(controller, dead.id).rate == IDLE)
        assert [each.name for each in controller.usage.flowing("job", 9)] == [alive.id]
        assert [each.job for each in controller.drops.now(9).drops] == [alive.id]
        assert used(controller, dead.id).usage.bytes_out == 1000
