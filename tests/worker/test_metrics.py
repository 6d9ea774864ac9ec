"""``/metrics`` of the worker service, by Prometheus's own check, while jobs run and the controller is away."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.error import HTTPError

import pytest

from lark_common.errors import SettingError
from lark_worker import metrics
from lark_worker.metrics import MetricsServer
from lark_worker.settings import address_and_port, load
from tests.fixtures.peak_memory import forget_peak, peak
from tests.worker.pool import Pool, eventually

pytestmark = pytest.mark.ovs

DOCUMENTED = Path(__file__).parents[2] / "docs/reference/metrics.md"


@pytest.fixture
def served(pool: Pool) -> Iterator[MetricsServer]:
    assert pool.worker is not None
    server = MetricsServer("127.0.0.1:0", pool.worker, pool.link)
    server.start()
    yield server
    server.stop()


def scraped(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=20) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def value(text: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found, text
    return float(found[1])


def test_the_workers_jobs_and_its_controller(pool: Pool, served: MetricsServer) -> None:
    began = time.time()
    alice = pool.starter(1, "alice")
    pool.hook(alice, "start", "alice", 1)
    text = scraped(served)
    enforced = 'lark_worker_jobs{network_type="ovs_bridge",state="enforced"}'
    assert value(text, enforced) == 1
    assert value(text, "lark_worker_undelivered_jobs") == 0
    assert value(text, "lark_worker_controller_answer_timestamp_seconds") >= began - 1
    assert value(text, "process_resident_memory_bytes") > 0
    assert "alice" not in text
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=60)
    assert (checked.returncode, checked.stderr) == (0, "")

    pool.stop_controller()
    before = value(scraped(served), "lark_worker_controller_failures_total")
    pool.hook(alice, "exit", "alice", 1)
    eventually(lambda: value(scraped(served), "lark_worker_undelivered_jobs") == 1)
    eventually(lambda: value(scraped(served), "lark_worker_controller_failures_total") > before)
    pool.start_controller()
    eventually(lambda: value(scraped(served), "lark_worker_undelivered_jobs") == 0, 60)
    assert enforced not in scraped(served)


def test_every_metric_is_documented(pool: Pool, served: MetricsServer) -> None:
    pool.hook(pool.starter(1, "alice"), "start", "alice", 1)
    real = dict(re.findall(r"^# TYPE (lark_worker_\w+) (\w+)$", scraped(served), re.MULTILINE))
    documented = re.findall(
        r"^\| `(lark_worker_[a-z_]+)` \| ([a-z]+) of a worker \|", DOCUMENTED.read_text(), re.MULTILINE
    )
    assert dict(documented) == real


def test_callers_that_send_a_byte_now_and_then_hold_up_nobody(
    pool: Pool, served: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metrics, "SECONDS", 2.0)
    over = threading.Event()

    def drip() -> None:
        with socket.create_connection(("127.0.0.1", served.port)) as slow, suppress(OSError):
            slow.sendall(b"GET /metrics HTTP/1.1\r\n")
            while not over.wait(0.05):
                slow.sendall(b"X")

    threads = [threading.Thread(target=drip) for _ in range(metrics.CALLERS)]
    for thread in threads:
        thread.start()
    eventually(lambda: _answers(served), 20)
    # Whoever waited for these would wait for ever: after a while they end, and it shows.
    late = threading.Timer(60, over.set)
    late.start()
    served.stop()
    assert not over.is_set()
    late.cancel()
    over.set()
    for thread in threads:
        thread.join()


def test_one_host_does_not_take_all_places(pool: Pool, served: MetricsServer) -> None:
    """A job reaches this port from an address of its own."""
    with ExitStack() as stack:
        here, job = ("127.0.0.1", served.port), ("127.0.0.2", 0)
        silent = [stack.enter_context(socket.create_connection(here, 20, job)) for _ in range(2 * metrics.CALLERS)]
        assert "lark_worker_problems" in scraped(served)
        assert silent[-1].recv(1) == b""


def test_long_requests_take_no_memory(pool: Pool, served: MetricsServer) -> None:
    line = b"a: " + b"b" * 65_000 + b"\r\n"
    before = forget_peak()
    began = threading.Barrier(metrics.CALLERS_OF_HOST)

    def ask() -> None:
        with socket.create_connection(("127.0.0.1", served.port), timeout=20) as long, suppress(OSError):
            long.sendall(b"GET /metrics HTTP/1.1\r\n")
            began.wait(20)
            # One line fewer than Python's own server takes, and the head has no end.
            for _ in range(99):
                long.sendall(line)
            long.recv(1)

    threads = [threading.Thread(target=ask) for _ in range(metrics.CALLERS_OF_HOST)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A hundred such lines of each would be 25 MB.
    assert peak() < before + (16 << 20)
    assert "lark_worker_problems" in scraped(served)


def _answers(server: MetricsServer) -> bool:
    try:
        return "lark_worker_problems" in scraped(server)
    except OSError:
        return False


def test_nothing_else_is_served_and_a_silent_caller_is_not_waited_for(served: MetricsServer) -> None:
    with pytest.raises(HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{served.port}/v1/jobs", timeout=20)
    with socket.create_connection(("127.0.0.1", served.port)):
        assert "lark_worker_problems" in scraped(served)


def test_places_to_listen(pool: Pool) -> None:
    assert address_and_port("[::]:9464") == ("::", 9464)
    assert address_and_port("0.0.0.0:9464") == ("0.0.0.0", 9464)
    for wrong in ("9464", "worker1:9464", "127.0.0.1:", "127.0.0.1:70000", "127.0.0.1:x"):
        with pytest.raises(SettingError, match="accepted: ADDRESS:PORT"):
            load({"LARK_WORKER_METRICS_LISTEN": wrong})
    assert pool.worker is not None
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingError, match="cannot listen there"):
            MetricsServer(where, pool.worker, pool.link)
