"""``lark-worker``: run the service, list the jobs that it knows, say what is wrong, print its settings."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

from lark_common import log
from lark_common.errors import LarkError
from lark_worker import settings as settings_module
from lark_worker.controller_link import ControllerLink
from lark_worker.hook_socket import HookSocket
from lark_worker.identity.processes import Programs
from lark_worker.identity.startd import LocalStartd, StartdView
from lark_worker.network.job_network import JobNetworks
from lark_worker.queues.fair_queues import FairQueues
from lark_worker.settings import Settings
from lark_worker.worker import Worker


def run(settings: Settings, startd: StartdView | None = None) -> int:
    """Run until SIGTERM or SIGINT. Raises SettingError or NetworkError where it cannot start."""
    log.configure(settings.log_level, settings.log_format)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    fair_queues = FairQueues(settings.ovs_database)
    known = startd or LocalStartd(settings.startd_address_file)
    worker = Worker(settings, ControllerLink(settings), known, JobNetworks(settings), fair_queues)
    worker.start()
    programs = Programs(frozenset(settings.starters), frozenset(settings.startds))
    service = HookSocket(settings.socket, worker, programs)
    service.start()
    fair_queues.start()
    stop.wait()
    log.event("stopping")
    fair_queues.stop()
    service.stop()
    worker.stop()
    return 0


def run_fair_queues(settings: Settings) -> int:
    """Run the fair queues of this host's Open vSwitch alone, until SIGTERM or SIGINT: for a core switch."""
    log.configure(settings.log_level, settings.log_format)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: stop.set())
    fair_queues = FairQueues(settings.ovs_database)
    fair_queues.start()
    stop.wait()
    fair_queues.stop()
    return 0


def show_jobs(settings: Settings) -> int:
    """Print the jobs that the running service knows."""
    document = _ask(settings, "/v1/jobs")
    if document is None:
        return 1
    for job in document["jobs"]:
        print(job["id"], job["slot"], job["owner"], job["state"], job["namespace"], *job["addresses"])
    return 0


def show_status(settings: Settings) -> int:
    """Print what the running service has to say of itself; 1 where that asks for somebody, or it does not answer."""
    document = _ask(settings, "/v1/status")
    if document is None:
        return 1
    print(f"jobs: {document['jobs']}")
    for problem in document["problems"]:
        print(f"problem: {problem}")
    if not document["problems"]:
        print("no problems")
    return 1 if document["problems"] else 0


def _ask(settings: Settings, path: str) -> dict[str, Any] | None:
    """What the running service answers; None, and the reason on standard error, where it does not."""
    connection = http.client.HTTPConnection("localhost", timeout=10)
    connection.sock = socket.socket(socket.AF_UNIX)
    try:
        connection.sock.connect(str(settings.socket))
        connection.request("GET", path)
        answer = connection.getresponse()
        document: dict[str, Any] = json.loads(answer.read())
    except (OSError, ValueError, http.client.HTTPException) as error:
        print(f"lark-worker: {settings.socket}: {error}", file=sys.stderr)
        return None
    finally:
        connection.close()
    if answer.status != 200:
        print(f"lark-worker: {document['detail']}", file=sys.stderr)
        return None
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="lark-worker", description="The worker service of Lark.")
    parser.add_argument(
        "action",
        choices=("run", "jobs", "status", "leaves", "settings"),
        help="run the service; list jobs; say what is wrong; look after queues alone (core switches); list settings",
    )
    given = parser.parse_args(arguments)
    os.environ.setdefault("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    try:
        settings = settings_module.load(os.environ)
        if given.action == "run":
            return run(settings)
        if given.action == "leaves":
            return run_fair_queues(settings)
        if given.action == "jobs":
            return show_jobs(settings)
        if given.action == "status":
            return show_status(settings)
        for row in settings_module.table():
            print(f"{row.variable}={row.default}")
        return 0
    except LarkError as error:
        print(f"lark-worker: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
