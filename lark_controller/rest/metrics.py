"""Gauges that are read from the controller at each scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lark_controller import log
from lark_controller.jobs import JobState
from lark_controller.policies.topology import ACCESS
from lark_controller.status import Controls


class ControlsCollector(Collector):
    """What the controller knows anyway, as metrics; what cannot be read is absent from the scrape, and logged."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def describe(self) -> Iterable[Metric]:
        """No description ahead of time: the registry need not ask the controller for one."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Jobs by state, switches in total, the policy in force, readiness, the links of the topology."""
        for part in (self._jobs, self._switches, self._policy, self._links):
            try:
                yield from part()
            except Exception as error:
                log.failure("metrics not read", error, part=part.__name__.strip("_"))

    def _jobs(self) -> list[Metric]:
        counts = self._controls.job_counts()
        jobs = GaugeMetricFamily("lark_jobs", "Live jobs, by state.", labels=("state",))
        for state in (JobState.REGISTERING, JobState.ENFORCED, JobState.PENDING, JobState.QUARANTINED):
            jobs.add_metric((str(state),), counts.get(state, 0))
        return [jobs]

    def _switches(self) -> list[Metric]:
        switches = self._controls.switches()
        connected = sum(switch.connected for switch in switches)
        in_sync = sum(switch.connected and switch.in_sync for switch in switches)
        desired = sum(switch.desired for switch in switches)
        installed = sum(switch.installed for switch in switches)
        drift = sum(switch.drift for switch in switches)
        packet_ins = sum(switch.packet_ins for switch in switches)
        return [
            GaugeMetricFamily("lark_switches", "Switches declared or seen.", len(switches)),
            GaugeMetricFamily("lark_switches_connected", "Switches connected now.", connected),
            GaugeMetricFamily("lark_switches_in_sync", "Switches that hold exactly what is desired.", in_sync),
            GaugeMetricFamily("lark_flows_desired", "Flows desired on all switches.", desired),
            GaugeMetricFamily("lark_flows_installed", "Flows installed on all switches.", installed),
            CounterMetricFamily("lark_switch_drift", "Flows that checks found changed by somebody else.", drift),
            CounterMetricFamily("lark_packet_ins", "Packets that switches sent to the controller.", packet_ins),
        ]

    def _policy(self) -> list[Metric]:
        policy = self._controls.policy()
        return [
            GaugeMetricFamily("lark_policy_version", "Version of the policy in force.", policy.version),
            GaugeMetricFamily(
                "lark_policy_timestamp_seconds",
                "When the policy in force was put there, seconds since 1970.",
                policy.at,
            ),
            GaugeMetricFamily("lark_ready", "1 where the controller can do its work.", self._controls.ready().ready),
        ]

    def _links(self) -> list[Metric]:
        labels = ("link", "source", "target")
        capacity = GaugeMetricFamily("lark_link_capacity_bits_per_second", "What a link carries.", labels=labels)
        reserved = GaugeMetricFamily("lark_link_reserved_bits_per_second", "What is reserved of it.", labels=labels)
        for link in self._controls.reservations.links():
            # Every worker has an access link, and the number of series must not grow with the pool.
            if not link.name.startswith(ACCESS):
                capacity.add_metric((link.name, link.source, link.target), link.capacity * 1e6)
                reserved.add_metric((link.name, link.source, link.target), link.reserved * 1e6)
        return [capacity, reserved]
