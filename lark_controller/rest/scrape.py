"""Gauges that are read from the controller at each scrape."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lark_common import log
from lark_controller.api.controls import Controls
from lark_controller.api.drops import CORES_UNREAD, UNREAD
from lark_controller.api.switches import SwitchStatus, WanPortStatus
from lark_controller.policies.topology import ACCESS

# Bytes in a megabit: the base units of Prometheus are bytes.
_MEGABIT: Final = 1e6 / 8


class ControlsCollector(Collector):
    """Metrics of the controller, from values that it has anyway; what cannot be read is absent from the scrape, and
    logged."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        # Several may scrape at a time, and what is read later must not be counted before what was read earlier.
        self._counting = threading.Lock()
        self._local = LocalParts()

    def describe(self) -> Iterable[Metric]:
        """No description ahead of time: the registry need not ask the controller for one."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """The place among the instances; of the active one jobs by state, switches, the policy in force, readiness,
        groups, use, the links of the topology."""
        parts: list[Callable[[], Iterable[Metric]]] = [self._instance]
        if self._controls.instances.standing().active:
            parts += (self._jobs, self._switches, self._policy, self._groups, self._written, self._links)
        for part in parts:
            try:
                yield from part()
            except Exception as error:
                log.failure("metrics not read", error, part=part.__name__.strip("_"))

    def _instance(self) -> list[Metric]:
        standing = self._controls.instances.standing()
        ready = self._controls.health.ready().ready
        words = "Time of the last takeover, seconds since 1970; 0 where there was none."
        return [
            GaugeMetricFamily("lark_instance_active", "1 where this is the active instance.", standing.active),
            GaugeMetricFamily("lark_instance_successor", "1 where it stands by and can take over.", standing.successor),
            GaugeMetricFamily("lark_instance_generation", "Number of the present term.", standing.generation),
            GaugeMetricFamily("lark_instance_takeover_timestamp_seconds", words, standing.since),
            GaugeMetricFamily("lark_ready", "1 where the controller can do its work.", ready),
        ]

    def _jobs(self) -> list[Metric]:
        counts = self._controls.jobs.counts()
        jobs = GaugeMetricFamily("lark_jobs", "Live jobs, by state.", labels=("state",))
        for state in ("registering", "enforced", "no_network", "pending", "quarantined"):
            jobs.add_metric((state,), getattr(counts, state))
        text = "Live jobs of which nothing passes, by a rule of the policy or by quarantine."
        return [
            jobs,
            GaugeMetricFamily("lark_jobs_isolated", text, counts.isolated),
            GaugeMetricFamily("lark_jobs_unread", f"{UNREAD}.", self._controls.drops.unread()),
        ]

    def _switches(self) -> list[Metric]:
        switches = self._controls.switches.all()
        connected = sum(switch.connected for switch in switches)
        in_sync = sum(switch.connected and switch.in_sync for switch in switches)
        desired = sum(switch.desired for switch in switches)
        installed = sum(switch.installed for switch in switches)
        drift = sum(switch.drift for switch in switches)
        packet_ins = sum(switch.packet_ins for switch in switches)
        return [
            GaugeMetricFamily("lark_switches", "Switches declared, seen, or with jobs.", len(switches)),
            GaugeMetricFamily("lark_switches_connected", "Switches connected now.", connected),
            GaugeMetricFamily("lark_switches_in_sync", "Switches that hold exactly what is desired.", in_sync),
            GaugeMetricFamily("lark_cores_unread", f"{CORES_UNREAD}.", self._controls.drops.cores_unread()),
            GaugeMetricFamily("lark_flows_desired", "Flows desired on all switches.", desired),
            GaugeMetricFamily("lark_flows_installed", "Flows installed on all switches.", installed),
            CounterMetricFamily("lark_switch_drift", "Flows that checks found changed by somebody else.", drift),
            CounterMetricFamily("lark_packet_ins", "Packets that switches sent to the controller.", packet_ins),
            *_each(switches),
            *_wan_ports(self._controls.switches.wan_ports(), _labels(switches)),
        ]

    def _policy(self) -> list[Metric]:
        policy = self._controls.policy.version
        return [
            GaugeMetricFamily("lark_policy_version", "Version of the policy in force.", policy.version),
            GaugeMetricFamily(
                "lark_policy_timestamp_seconds",
                "Time when the policy in force was put there, seconds since 1970.",
                policy.at,
            ),
        ]

    def _groups(self) -> list[Metric]:
        with self._counting:
            return self._groups_by_counter()

    def _groups_by_counter(self) -> list[Metric]:
        labels = ("group", "direction")
        size = CounterMetricFamily("lark_group_bytes", "Use by a group's jobs.", labels=(*labels, "scope"))
        packets = CounterMetricFamily("lark_group_packets", "Use by a group's jobs.", labels=labels)
        words = "Bytes that HTCondor moved for a group's jobs outside of their networks."
        moved = CounterMetricFamily("lark_group_transfer_bytes", words, labels=(*labels, "scope"))
        words = "Time in which there was a transfer, added up over a group's jobs."
        moving = CounterMetricFamily("lark_group_transfer_seconds", words, labels=("group",))
        drops = CounterMetricFamily("lark_group_drops", "Packets of a group's jobs.", labels=(*labels, "reason"))
        shared = CounterMetricFamily(
            "lark_group_core_drops", "Packets that a group's queues and meters on cores dropped.", labels=("group",)
        )
        jobs = GaugeMetricFamily("lark_group_jobs", "Live jobs.", labels=("group",))
        sure = GaugeMetricFamily("lark_group_guarantee_bytes_per_second", "Guaranteed.", labels=("group",))
        most = GaugeMetricFamily("lark_group_ceiling_bytes_per_second", "Highest rate.", labels=("group",))
        for group in self._controls.usage.groups():
            used = group.usage
            for direction, total, wan, count, policy, rate in (
                ("in", used.bytes_in, used.wan_bytes_in, used.packets_in, used.policy_drops_in, used.rate_drops_in),
                ("out", used.bytes_out, used.wan_bytes_out, used.packets_out, used.policy_drops_out,
                 used.rate_drops_out),
            ):  # fmt: skip
                size.add_metric((group.name, direction, "wan"), wan)
                size.add_metric((group.name, direction, "local"), self._local.of((group.name, direction), total, wan))
                packets.add_metric((group.name, direction), count)
                drops.add_metric((group.name, direction, "policy"), policy)
                drops.add_metric((group.name, direction, "rate"), rate)
            for direction, total, wan in (
                ("in", used.transfer_bytes_in, used.transfer_wan_bytes_in),
                ("out", used.transfer_bytes_out, used.transfer_wan_bytes_out),
            ):
                moved.add_metric((group.name, direction, "wan"), wan)
                local = self._local.of((group.name, f"moved {direction}"), total, wan)
                moved.add_metric((group.name, direction, "local"), local)
            moving.add_metric((group.name,), used.transfer_millis / 1000)
            shared.add_metric((group.name,), group.core_drops)
            jobs.add_metric((group.name,), group.jobs)
            for family, megabits in ((sure, group.guarantee), (most, group.ceiling)):
                if megabits is not None:
                    family.add_metric((group.name,), megabits * _MEGABIT)
        return [size, packets, moved, moving, drops, shared, jobs, sure, most]

    def _written(self) -> list[Metric]:
        words = "Time of the last write of jobs' use, seconds since 1970."
        return [GaugeMetricFamily("lark_usage_written_timestamp_seconds", words, self._controls.usage.written)]

    def _links(self) -> list[Metric]:
        labels = ("link", "source", "target")
        capacity = GaugeMetricFamily("lark_link_capacity_bytes_per_second", "Capacity of a link.", labels=labels)
        reserved = GaugeMetricFamily("lark_link_reserved_bytes_per_second", "Reserved part of it.", labels=labels)
        for link in self._controls.reservations.links().items:
            # Every worker has an access link, and the number of series must not grow with the pool.
            if not link.name.startswith(ACCESS):
                capacity.add_metric((link.name, link.source, link.target), link.capacity * _MEGABIT)
                reserved.add_metric((link.name, link.source, link.target), link.reserved * _MEGABIT)
        return [capacity, reserved]


class LocalParts:
    """Counters of what is left of totals without their parts of the WAN.

    A port is counted before the flows behind it: for a moment more is left than is local, and Prometheus takes a
    counter that falls for one that began anew, all of it new.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[int, int]] = {}

    def of(self, key: tuple[str, str], total: int, wan: int) -> int:
        """The local part of a total that grows; it does not fall, unless the total has begun anew."""
        before, most = self._known.get(key, (0, 0))
        local = max(0, total - wan) if total < before else max(most, total - wan)
        self._known[key] = total, local
        return local


def _each(switches: Sequence[SwitchStatus]) -> list[Metric]:
    """The metrics of each switch; their number grows with the workers."""
    named = _labels(switches)
    labels = ("switch",)
    connected = GaugeMetricFamily("lark_switch_connected", "1 where it is connected.", labels=labels)
    in_sync = GaugeMetricFamily("lark_switch_in_sync", "1 where it holds exactly what is desired.", labels=labels)
    flows = GaugeMetricFamily("lark_switch_flows", "Flows installed.", labels=labels)
    limit = GaugeMetricFamily("lark_switch_flow_limit", "Its rule limit, 0 for none.", labels=labels)
    for switch in switches:
        name = (named[switch.datapath],)
        connected.add_metric(name, switch.connected)
        in_sync.add_metric(name, switch.connected and switch.in_sync)
        flows.add_metric(name, switch.installed)
        limit.add_metric(name, switch.max_rules)
    return [connected, in_sync, flows, limit]


def _labels(switches: Sequence[SwitchStatus]) -> dict[str, str]:
    """The names of switches by datapath id. Those that share one are distinguished by their datapath ids: of two series
    with equal labels Prometheus drops one."""
    named = Counter(switch.name for switch in switches)
    return {each.datapath: each.name if named[each.name] == 1 else each.datapath for each in switches}


def _wan_ports(ports: Iterable[WanPortStatus], names: Mapping[str, str]) -> list[Metric]:
    labels = ("switch", "port")
    down = GaugeMetricFamily("lark_wan_port_down", "1 where a WAN port of a core is down.", labels=labels)
    words = "1 where it is down, and no other takes its place."
    unreplaced = GaugeMetricFamily("lark_wan_port_unreplaced", words, labels=labels)
    for port in ports:
        name = names.get(port.datapath, port.datapath), port.name
        down.add_metric(name, not port.up)
        unreplaced.add_metric(name, not port.up and not port.replaced)
    return [down, unreplaced]
