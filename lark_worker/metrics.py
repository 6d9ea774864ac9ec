"""``/metrics`` of the worker service, for Prometheus: the worker's jobs, its controller, its process."""

from __future__ import annotations

import io
import socket
import socketserver
import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from http.server import BaseHTTPRequestHandler
from importlib.metadata import version
from platform import python_version
from typing import Any, Final

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from lark_common import log
from lark_common.errors import SettingError
from lark_common.exhausted import EXHAUSTED, exhausted
from lark_common.limits import InTime, Places, network_of
from lark_worker.controller_link import ControllerLink
from lark_worker.settings import address_and_port
from lark_worker.worker import Worker

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# Seconds until a caller must have sent its whole request, and for its answer; callers that are served at a time, in all
# and of one host: the worker's jobs reach this port as Prometheus does.
SECONDS: Final = 5.0
CALLERS: Final = 16
CALLERS_OF_HOST: Final = 4
# Bytes of a request. Python's own server takes a hundred lines of 64 kB, and anybody may send them.
MAX_REQUEST: Final = 65536
# Seconds until a connection is accepted again where no descriptor was left.
EXHAUSTED_SECONDS: Final = 0.5

disable_created_metrics()  # type: ignore[no-untyped-call]  # the one function that its package left without types


class WorkerCollector(Collector):
    """Metrics of a worker, from values that it has anyway. No label holds a job, a user or an address."""

    def __init__(self, worker: Worker, link: ControllerLink) -> None:
        self._worker = worker
        self._link = link

    def describe(self) -> Iterable[Metric]:
        """No description ahead of time: the registry need not ask the worker for one."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Jobs by state and kind of network, undelivered operations, problems, the controller's answers."""
        records = self._worker.records()
        counts = Counter((record.state, record.network_type) for record in records if not record.over)
        jobs = GaugeMetricFamily("lark_worker_jobs", "Jobs here, by state.", labels=("state", "network_type"))
        for labels, count in sorted(counts.items()):
            jobs.add_metric(labels, count)
        yield jobs
        waiting = sum(bool(record.pending) for record in records)
        meaning = "Jobs with reports that wait for the controller."
        yield GaugeMetricFamily("lark_worker_undelivered_jobs", meaning, waiting)
        yield GaugeMetricFamily("lark_worker_problems", "Problems that need an operator.", len(self._worker.problems()))
        yield GaugeMetricFamily(
            "lark_worker_controller_answer_timestamp_seconds",
            "Last answer of the controller, seconds since 1970; 0 where there was none.",
            self._link.answered_at,
        )
        failures = "Requests that the controller did not answer, or not as it should."
        yield CounterMetricFamily("lark_worker_controller_failures", failures, self._link.failures)
        yield from self._transfers()
        build = GaugeMetricFamily(
            "lark_worker_build_info", "Always 1; versions of Lark and Python.", labels=("version", "python")
        )
        build.add_metric((version("lark-worker"), python_version()), 1)
        yield build

    def _transfers(self) -> Iterator[Metric]:
        """Connections of transfers, and the traffic that is in no job's account."""
        transfers, missed = self._worker.transfers, self._worker.transfers.missed
        words = "Connections of transfers that are followed."
        yield GaugeMetricFamily("lark_worker_transfer_connections", words, transfers.followed)
        for name, words, value in (
            ("unseen_connections", "Connections that nobody was seen to hold while files were moved.", missed.unseen),
            ("unseen_bytes", "Their bytes.", missed.unseen_bytes),
            ("beyond_limit", "Times that a connection was found and there was no place to follow it.", missed.beyond),
            ("late_bytes", "Bytes of transfers after the end of their job.", missed.late_bytes),
            ("lost_ends", "Times that ends of connections came faster than they were read.", transfers.lost),
        ):
            yield CounterMetricFamily(f"lark_worker_transfer_{name}", words, value)
        fireflies = self._worker.fireflies
        for name, words, value in (
            ("sent", "Datagrams that tell science networks of a flow (SciTags).", fireflies.sent),
            ("failed", "Datagrams that the kernel did not send.", fireflies.failed),
            ("lost_flows", "Flows without a report, for want of room or of an answer.", fireflies.lost),
        ):
            yield CounterMetricFamily(f"lark_worker_firefly_{name}", words, value)


class MetricsServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """Answers ``GET /metrics`` from :meth:`start` to :meth:`stop`, a few requests at a time. Raises SettingError where
    it cannot listen."""

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, listen: str, worker: Worker, link: ControllerLink) -> None:
        self._places = Places(CALLERS)
        self.registry = CollectorRegistry()
        self.registry.register(WorkerCollector(worker, link))
        ProcessCollector(registry=self.registry)
        host, port = address_and_port(listen)
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise SettingError(f"LARK_WORKER_METRICS_LISTEN={listen}: cannot listen there: {error.strerror}") from None
        self._thread = threading.Thread(target=self.serve_forever, args=(0.2,), name="metrics", daemon=True)

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self.server_address[1])

    def start(self) -> None:
        """Start to serve requests."""
        self._thread.start()
        log.event("metrics", port=self.port)

    def stop(self) -> None:
        """Stop serving requests."""
        self.shutdown()
        self._thread.join(SECONDS)
        self.server_close()

    def get_request(self) -> tuple[socket.socket, object]:
        """Accept a connection; where no descriptor is left, the next is tried after a while."""
        try:
            return super().get_request()
        except OSError as error:
            if error.errno in EXHAUSTED:
                exhausted("metrics", error)
                time.sleep(EXHAUSTED_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection on a thread of its own, or close it where too many are served already."""
        host = network_of(client_address[0])
        own = self._places.take(host, CALLERS_OF_HOST)
        if own and self._places.take():
            try:
                super().process_request(request, client_address)
            except RuntimeError:
                # No thread can be started.
                self._give(host)
                raise
            return
        if own:
            self._places.give(host)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection, on its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._give(network_of(client_address[0]))

    def _give(self, host: str) -> None:
        self._places.give(host)
        self._places.give()

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors of a single connection: callers go away."""


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: MetricsServer
    server_version = "lark-worker"
    sys_version = ""
    timeout = SECONDS

    def setup(self) -> None:
        """Read with a deadline: one that sends a byte now and then would keep its place for ever."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(InTime(self.connection, time.monotonic() + SECONDS, SECONDS, MAX_REQUEST))

    def do_GET(self) -> None:
        """Send the metrics."""
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404)
            return
        data = generate_latest(self.server.registry)
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *args: object) -> None:
        """Log nothing of a scrape."""
