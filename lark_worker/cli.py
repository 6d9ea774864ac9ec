"""``lark-worker``: run the service, list its jobs, say what is wrong, print settings, make the worker's bridge."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from lark_common import log
from lark_common.errors import LarkError
from lark_common.signals import Signals
from lark_worker import settings as settings_module
from lark_worker.controller_link import ControllerLink
from lark_worker.hook_socket import HookSocket
from lark_worker.identity.processes import Programs
from lark_worker.identity.startd import LocalStartd, StartdView
from lark_worker.metrics import MetricsServer
from lark_worker.network import own_bridge
from lark_worker.network.job_network import JobNetworks
from lark_worker.queues.fair_queues import FairQueues
from lark_worker.settings import Settings
from lark_worker.worker import Worker


def run(settings: Settings, startd: StartdView | None = None) -> int:
    """Run until SIGTERM or SIGINT. Raises SettingError or NetworkError where it cannot start."""
    log.configure(settings.log_level, settings.log_format)
    signals = Signals()
    signals.catch(signal.SIGTERM, signal.SIGINT)
    fair_queues = FairQueues(settings.ovs_database)
    known = startd or LocalStartd(settings.startd_address_file)
    link = ControllerLink(settings)
    worker = Worker(settings, link, known, JobNetworks(settings), fair_queues)
    metrics = MetricsServer(settings.metrics_listen, worker, link) if settings.metrics_listen else None
    worker.start()
    programs = Programs(frozenset(settings.starters), frozenset(settings.startds))
    service = HookSocket(settings.socket, worker, programs)
    service.start()
    fair_queues.start()
    if metrics is not None:
        metrics.start()
    signals.wait()
    log.event("stopping")
    if metrics is not None:
        metrics.stop()
    fair_queues.stop()
    service.stop()
    worker.stop()
    return 0


def run_fair_queues(settings: Settings) -> int:
    """Run the fair queues of this host's Open vSwitch alone, until SIGTERM or SIGINT: for a core switch."""
    log.configure(settings.log_level, settings.log_format)
    signals = Signals()
    signals.catch(signal.SIGTERM, signal.SIGINT)
    fair_queues = FairQueues(settings.ovs_database)
    fair_queues.start()
    signals.wait()
    fair_queues.stop()
    return 0


def show_jobs(settings: Settings) -> int:
    """Print the jobs of the running service."""
    document = _ask(settings, "/v1/jobs")
    if document is None:
        return 1
    for job in document["jobs"]:
        print(job["id"], job["slot"], job["owner"], job["state"], job["namespace"], *job["addresses"])
    return 0


def show_status(settings: Settings) -> int:
    """Print the state of the running service; 1 where that asks for somebody, or it does not answer."""
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
    """The running service's answer; None, and the reason on standard error, where there is none."""
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


def _add_bridge(parser: argparse.ArgumentParser) -> None:
    steps = parser.add_subparsers(dest="step", required=True, metavar="step")
    make = steps.add_parser("make", help="make BRIDGE, and move INTERFACE into it with its addresses and routes")
    make.add_argument("bridge", metavar="BRIDGE")
    make.add_argument("interface", metavar="INTERFACE")
    make.add_argument("--kind", choices=own_bridge.KINDS, default="ovs", help="Open vSwitch's or the kernel's")
    make.add_argument("--datapath-id", default="", metavar="HEX", help="of an Open vSwitch bridge, 16 digits")
    make.add_argument(
        "--wait", type=float, default=15.0, metavar="SECONDS",
        help="how long a router may take to answer before all is undone; 0: none is asked",
    )  # fmt: skip
    undo = steps.add_parser("undo", help="take apart what make has made")
    undo.add_argument("bridge", metavar="BRIDGE")


def change_bridge(settings: Settings, given: argparse.Namespace) -> int:
    """Make the worker's bridge, or take it apart. Raises NetworkError."""
    bridges = own_bridge.OwnBridge(settings.state_dir, settings.ovs_database)
    if given.step == "undo":
        moved = bridges.undo(given.bridge)
    else:
        moved = bridges.make(given.bridge, given.interface, given.kind, given.datapath_id, given.wait)
    for line in own_bridge.messages(moved, made=given.step == "make"):
        print(line)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a program."""
    parser = argparse.ArgumentParser(prog="lark-worker", description="The worker service of Lark.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    actions.add_parser("run", help="run the service")
    actions.add_parser("jobs", help="list jobs")
    actions.add_parser("status", help="say what is wrong")
    actions.add_parser("leaves", help="look after queues alone (core switches)")
    actions.add_parser("settings", help="list settings")
    _add_bridge(actions.add_parser("bridge", help="make the worker's bridge with an interface in it, or undo that"))
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
        if given.action == "bridge":
            return change_bridge(settings, given)
        for row in settings_module.table():
            print(f"{row.variable}={row.default}")
        return 0
    except LarkError as error:
        print(f"lark-worker: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
