"""The controller's own metrics, in a registry of their own, for Prometheus.

Labels are bounded: routes, methods, states and results, never jobs, users or addresses. Values that the controller has
anyway (jobs, switches, policy) are not counted here but read at each scrape, by ``rest/scrape.py``.
"""

from __future__ import annotations

from collections.abc import Iterable
from platform import python_version
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric

from lark_controller import __version__
from lark_controller.api.instances import Why

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# A post is meant to take less than 50 ms, and may be asked to wait for half a minute.
HTTP_BUCKETS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0)
POST_BUCKETS: Final = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

# Each counter's begin is the process's; as series of their own the begins would double every counter.
disable_created_metrics()  # type: ignore[no-untyped-call]  # the one function that its package left without types


class Metrics:
    """Counters and histograms that the controller and its REST API increment."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        build = Gauge(
            "lark_build_info", "Always 1; versions of Lark and Python.", ("version", "python"), registry=self.registry
        )
        build.labels(__version__, python_version()).set(1)
        self.http_requests = Counter(
            "lark_http_requests",
            "REST requests answered, by route, method and status.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self.http_seconds = Histogram(
            "lark_http_request_seconds",
            "Seconds from a REST request to its answer, waits included, by route and method.",
            ("route", "method"),
            registry=self.registry,
            buckets=HTTP_BUCKETS,
        )
        self.post_seconds = Histogram(
            "lark_post_seconds",
            "Seconds from a job's POST to its answer, the wait for switches included.",
            registry=self.registry,
            buckets=POST_BUCKETS,
        )
        self.waits_refused = Counter(
            "lark_waits_refused",
            "Posts answered at once because too many requests were waiting already.",
            registry=self.registry,
        )
        self.policy_changes = Counter(
            "lark_policy_changes",
            "Policies offered to the controller, by result: accepted or refused.",
            ("result",),
            registry=self.registry,
        )
        for result in ("accepted", "refused"):
            self.policy_changes.labels(result)
        self.flow_errors = Counter(
            "lark_flow_errors",
            "Error messages that switches sent about Lark's flows, groups and meters.",
            registry=self.registry,
        )
        self.guarantees_checked = Counter(
            "lark_guarantees_checked",
            "Guarantees of queues that were compared with what was delivered.",
            registry=self.registry,
        )
        self.guarantees_missed = Counter(
            "lark_guarantees_missed",
            "Guarantees of queues that were missed although there was more to send.",
            registry=self.registry,
        )
        self.leases_expired = Counter(
            "lark_leases_expired",
            "Jobs that were ended because their lease ran out.",
            registry=self.registry,
        )
        self.certificate_ends = Gauge(
            "lark_certificate_end_timestamp_seconds",
            "End of the certificates that a setting named at the start, seconds since 1970.",
            ("setting",),
            registry=self.registry,
        )
        self.takeovers = Counter(
            "lark_instance_takeovers",
            "Takeovers by this instance since it started, by reason.",
            ("reason",),
            registry=self.registry,
        )
        for why in Why:
            self.takeovers.labels(str(why))
        self.handed_on = Counter(
            "lark_requests_handed_on",
            "REST requests that were handed on to the active controller while this one stood by, by result: answered, "
            "busy, unreachable or broken.",
            ("result",),
            registry=self.registry,
        )
        for result in ("answered", "busy", "unreachable", "broken"):
            self.handed_on.labels(result)
        self.counters_read = Counter(
            "lark_switch_counters_read",
            "Switches whose counters were read, by result: own (by the active controller itself), taken (by one that "
            "stands by), changed (so too, but the accounts had changed meanwhile), left (not in time, or not plain); "
            "and answers: late (to no order that is open, or too long on its way), refused (none at all).",
            ("result",),
            registry=self.registry,
        )
        for result in ("own", "taken", "changed", "left", "late", "refused"):
            self.counters_read.labels(result)
        self.counters_read_for_active = Counter(
            "lark_switch_counters_read_for_active",
            "Switches whose counters this controller has read for the active one while it stood by.",
            registry=self.registry,
        )
        self.copy_at = Gauge(
            "lark_directory_copy_timestamp_seconds",
            "Time when the copy of the directory, of a controller that stands by, was last as the database had it, "
            "seconds since 1970; 0 where there is none.",
            registry=self.registry,
        )
        self.copy_jobs = Gauge(
            "lark_directory_copy_jobs",
            "Jobs in the copy of the directory of a controller that stands by; 0 where there is none.",
            registry=self.registry,
        )
        self.switches_kept = Gauge(
            "lark_switches_kept",
            "Switches that are connected to this controller while it stands by, so that it need not wait for them when "
            "it takes over; 0 while it is active.",
            registry=self.registry,
        )
        self.switches_handed_on = Gauge(
            "lark_switches_handed_on",
            "Switches that reach this controller, which stands by, and not the active one, to which it hands them on.",
            registry=self.registry,
        )
        self.leases_kept = Counter(
            "lark_leases_kept",
            "Jobs that live on beyond their lease, because they run in the pool or it cannot be asked.",
            registry=self.registry,
        )
        self.quarantines = Counter(
            "lark_quarantines",
            "Jobs that were quarantined because the pool contradicts them.",
            registry=self.registry,
        )
        self.pool_readings = Counter(
            "lark_pool_readings",
            "Questions to HTCondor's collector, by result: read or failed.",
            ("result",),
            registry=self.registry,
        )
        for result in ("read", "failed"):
            self.pool_readings.labels(result)
        self.pool_read_at = Gauge(
            "lark_pool_reading_timestamp_seconds",
            "Time of the last successful query of the collector, seconds since 1970; 0 where there was none.",
            registry=self.registry,
        )

    def render(self) -> bytes:
        """The registry in Prometheus's text format."""
        return generate_latest(self.registry)

    def families(self) -> Iterable[Metric]:
        """Every metric in the registry, as it would be scraped now."""
        return self.registry.collect()
