"""``lark-worker``: set the worker up, run the service, list its jobs and its problems, make the bridge."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import argcomplete
from argcomplete.shell_integration import shellcode

from lark_common import log
from lark_common.errors import LarkError, SettingError
from lark_common.runs import names, number
from lark_common.signals import Signals
from lark_common.systemd import Notices
from lark_worker import checks, given_controllers, set_up
from lark_worker import settings as settings_module
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import NetworkError
from lark_worker.hook_socket import HookSocket
from lark_worker.identity.processes import Programs
from lark_worker.identity.startd import LocalStartd, StartdView
from lark_worker.join import Place
from lark_worker.metrics import MetricsServer
from lark_worker.network import own_bridge
from lark_worker.network.job_network import JobNetworks
from lark_worker.queues.fair_queues import FairQueues
from lark_worker.rules import gateway
from lark_worker.settings import Settings
from lark_worker.worker import Worker

# As the policy takes them; one of zeros is none.
_DATAPATH_ID: Final = re.compile("(?![0:]+$)(?:[0-9a-f]{16}|[0-9a-f]{2}(?::[0-9a-f]{2}){7})")


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
    notices = Notices(lambda: _ask(settings, "/v1/status") is not None)
    notices.ready()
    signals.wait()
    log.event("stopping")
    notices.stopping()
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
    notices = Notices(fair_queues.is_alive)
    notices.ready()
    signals.wait()
    notices.stopping()
    fair_queues.stop()
    return 0


def run_gateway(settings: Settings, given: argparse.Namespace) -> int:
    """Keep this gateway's translation until SIGTERM or SIGINT, or print its counters. Raises NetworkError."""
    if given.counters:
        print(json.dumps(gateway.totals()))
        return 0
    wan = given.wan or settings.gateway_wan
    pools = given.pool or [str(network) for network in settings.gateway_pools]
    jobs = given.jobs or [str(network) for network in settings.networks if network.version == 4]
    if not wan or not pools or not jobs:
        raise NetworkError(
            "--wan, --pool and --jobs are needed, --pool and --jobs as often as there are networks; or the settings "
            "LARK_WORKER_GATEWAY_WAN, LARK_WORKER_GATEWAY_POOLS and LARK_WORKER_NETWORKS"
        )
    log.configure(settings.log_level, settings.log_format)
    place = gateway.Place(wan, gateway.networks(pools), gateway.networks(jobs), settings.connections)
    signals = Signals()
    signals.catch(signal.SIGTERM, signal.SIGINT)
    translation, stopping = gateway.Gateway(place, ControllerLink(settings)), threading.Event()
    thread = threading.Thread(target=translation.repeat, args=(stopping.wait, given.seconds))
    thread.start()
    notices = Notices(thread.is_alive)
    notices.ready()
    signals.wait()
    notices.stopping()
    stopping.set()
    thread.join()
    return 0


def show_jobs(settings: Settings, *, as_json: bool = False) -> int:
    """Print the jobs of the running service."""
    document = _ask(settings, "/v1/jobs")
    if document is None:
        return 1
    if as_json:
        print(json.dumps(document["jobs"]))
        return 0
    called = names((job["id"], number(job["global_job_id"]), job["global_job_id"]) for job in document["jobs"])
    head = ("JOB", "SLOT", "OWNER", "STATE", "ADDRESSES", "NAMESPACE")
    rows = [
        (called[job["id"]], job["slot"], job["owner"], job["state"],
         " ".join(job["addresses"]) or "-", job["namespace"])
        for job in document["jobs"]
    ]  # fmt: skip
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    for row in [head, *rows] if rows else []:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    return 0


def show_status(settings: Settings, *, as_json: bool = False) -> int:
    """Print the state of the running service; 1 where that asks for somebody, or it does not answer."""
    document = _ask(settings, "/v1/status")
    if document is None:
        return 1
    if as_json:
        print(json.dumps(document))
        return 1 if document["problems"] else 0
    print(f"jobs: {document['jobs']}")
    for problem in document["problems"]:
        print(f"problem: {problem}")
    if not document["problems"]:
        print("no problems")
    return 1 if document["problems"] else 0


def check(settings: Settings, *, as_json: bool = False) -> int:
    """Print what this worker has and lacks for its jobs' networks; 1 where something is missing."""
    condor = checks.read_htcondor(settings.startd_address_file, LocalStartd)
    found = []
    for finding in checks.findings(settings, condor, lambda: _ask(settings, "/v1/status")):
        found.append(finding)
        if not as_json:
            print(f"{finding.state:<8} {finding.subject}: {finding.words}", flush=True)
    if as_json:
        print(json.dumps([asdict(finding) for finding in found]))
    return 1 if any(finding.state is checks.State.MISSING for finding in found) else 0


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
        reason = (isinstance(error, OSError) and error.strerror) or error
        words = f"the worker service does not answer at {settings.socket} ({reason}): systemctl status lark-worker"
        print(f"lark-worker: {words}", file=sys.stderr)
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
    _with_datapath_id(make, "of an Open vSwitch bridge")
    make.add_argument(
        "--wait", type=float, default=15.0, metavar="SECONDS",
        help="how long a router may take to answer before all is undone; 0: none is asked",
    )  # fmt: skip
    undo = steps.add_parser("undo", help="take apart what make has made")
    undo.add_argument("bridge", metavar="BRIDGE")
    for each in (make, undo):
        _with_json(each)


def _with_datapath_id(parser: argparse.ArgumentParser, whose: str) -> None:
    # Its default is no text: of that the type would be asked.
    parser.add_argument("--datapath-id", type=_datapath_id, metavar="HEX", help=f"{whose}, 16 hexadecimal digits")


def _datapath_id(text: str) -> str:
    """A datapath id as the policy takes it. Of any other, Open vSwitch takes no notice, and says nothing."""
    found = text.lower()
    if _DATAPATH_ID.fullmatch(found) is None:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not 16 hexadecimal digits, with or without colons and not all 0: 00000000000000e1 for one"
        )
    return found.replace(":", "")


def _with_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON, for scripts")


def _add_setup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--controller", required=True, metavar="URL", help="https://NAME:PORT; of several all, with commas between"
    )
    parser.add_argument(
        "--join", default="", metavar="TOKEN", help="of `lark join add`; -: from standard input, so that ps shows none"
    )
    parser.add_argument("--interface", default="", help="the network card that the bridge gets; none: it is there")
    parser.add_argument("--kind", choices=own_bridge.KINDS[:2], default="ovs", help="of the bridge that is made")
    _with_datapath_id(parser, "of the bridge that is made")
    parser.add_argument(
        "--wait", type=float, default=15.0, metavar="SECONDS",
        help="how long a router may take to answer over the bridge before that is undone; 0: none is asked",
    )  # fmt: skip
    parser.add_argument(
        "--address", type=ip_address, metavar="IP", action="append", default=[],
        help="to which the switch connects [REST's]; one for each controller, in the same order",
    )  # fmt: skip
    parser.add_argument("--host", default="", help="this worker, as Machine in its slots' ads has it [HTCondor's]")
    parser.add_argument(
        "--directory", type=Path, default=settings_module.FILE.parent, metavar="DIR", help="[/etc/lark]"
    )
    _with_json(parser)


def join_and_start(given: argparse.Namespace) -> int:
    """Join the controllers, make the bridge, start the service, and check; 1 where something but HTCondor is missing.

    Raises LarkError where a step fails.
    """
    place = Place(given.directory.absolute())
    file = place.settings
    first = settings_module.load(settings_module.with_file(os.environ, file))
    condor = checks.read_htcondor(first.startd_address_file, LocalStartd)
    host = given.host or condor.settings.get("FULL_HOSTNAME") or os.uname().nodename
    token = sys.stdin.read() if given.join == "-" else given.join
    wish = set_up.Wish(
        given_controllers.given(given.controller), token.strip(), host, place, given.interface, given.kind,
        given.datapath_id or "", given.wait, tuple(given.address),
    )  # fmt: skip
    done, found = [], []
    for line in set_up.steps(wish):
        done.append(line)
        if not given.json:
            print(line, flush=True)
    settings = settings_module.load(settings_module.with_file(os.environ, file))
    if not given.json:
        print("\nlark-worker check:")
    for finding in checks.findings(settings, condor, lambda: _ask(settings, "/v1/status")):
        found.append(finding)
        if not given.json:
            print(f"{finding.state:<8} {finding.subject}: {finding.words}", flush=True)
    if given.json:
        print(json.dumps({"steps": done, "check": [asdict(finding) for finding in found]}))
    # The startd is started when everything else is there.
    return 1 if any(each.state is checks.State.MISSING and each.subject != "HTCondor" for each in found) else 0


def change_bridge(settings: Settings, given: argparse.Namespace) -> int:
    """Make the worker's bridge, or take it apart. Raises NetworkError."""
    bridges = own_bridge.OwnBridge(settings.state_dir, settings.ovs_database)
    if given.step == "undo":
        moved = bridges.undo(given.bridge)
    else:
        if given.kind == "linux" and given.datapath_id:
            raise NetworkError("a bridge of the kernel has no datapath id: leave --datapath-id out, or use --kind ovs")
        moved = bridges.make(given.bridge, given.interface, given.kind, given.datapath_id or "", given.wait)
    lines = tuple(own_bridge.messages(moved, made=given.step == "make"))
    print(json.dumps({"steps": lines}) if given.json else "\n".join(lines))
    return 0


def show_settings(*, as_json: bool = False) -> int:
    """Print every setting with its default."""
    if as_json:
        print(json.dumps([{"setting": row.variable, "default": row.default} for row in settings_module.table()]))
    else:
        print("\n".join(f"{row.variable}={row.default}" for row in settings_module.table()))
    return 0


def parser() -> argparse.ArgumentParser:
    """The command's parser."""
    made = argparse.ArgumentParser(prog="lark-worker", description="The worker service of Lark.")
    made.add_argument("--version", action="version", version=f"lark-worker {version('lark-worker')}")
    actions = made.add_subparsers(dest="action", required=True, metavar="action")
    actions.add_parser("run", help="run the service")
    for name, words in (
        ("jobs", "list jobs"),
        ("status", "show the number of jobs, and problems"),
        ("check", "list what this worker lacks for its jobs to have networks, and what to do"),
        ("settings", "list settings"),
    ):
        _with_json(actions.add_parser(name, help=words))
    actions.add_parser("leaves", help="look after queues alone (core switches)")
    made_gateway = actions.add_parser("gateway", help="translate external addresses on a plain Linux gateway")
    made_gateway.add_argument("--wan", metavar="INTERFACE", help="the interface that leads outside")
    made_gateway.add_argument(
        "--pool", action="append", default=[], metavar="NETWORK", help="external addresses of here"
    )
    made_gateway.add_argument("--jobs", action="append", default=[], metavar="NETWORK", help="a network of jobs")
    made_gateway.add_argument(
        "--seconds", type=_seconds, default=2.0, help="that each question waits for a change, 0.1 to 3600 [2]"
    )
    made_gateway.add_argument(
        "--counters", action="store_true", help="print what each address has carried, as JSON; end"
    )
    _add_setup(actions.add_parser("setup", help="join the controllers, make the bridge, and start the service"))
    _add_bridge(actions.add_parser("bridge", help="make the worker's bridge with an interface in it, or undo that"))
    made_completion = actions.add_parser("completion", help="print what completes this command at a shell's prompt")
    made_completion.add_argument("shell", choices=("bash", "zsh", "fish"))
    return made


def _seconds(word: str) -> float:
    """Seconds out of a word. Raises ArgumentTypeError."""
    try:
        seconds = float(word)
    except ValueError:
        seconds = 0.0
    # Not a number is in no range.
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{word!a:.40} is not accepted; accepted: 0.1 to 3600")
    return seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a program."""
    made = parser()
    argcomplete.autocomplete(made)
    given = made.parse_args(arguments)
    if given.action == "completion":
        print(shellcode(["lark-worker"], shell=given.shell))
        return 0
    os.environ.setdefault("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
    try:
        if given.action == "setup":
            return join_and_start(given)
        # A service has its settings from its unit; a command on a shell has none, and is to see what the service sees.
        service = given.action in ("run", "leaves", "settings")
        settings = settings_module.load(os.environ if service else settings_module.with_file(os.environ))
        if given.action == "run":
            return run(settings)
        if given.action == "leaves":
            return run_fair_queues(settings)
        if given.action == "gateway":
            return run_gateway(settings, given)
        if given.action == "jobs":
            return show_jobs(settings, as_json=given.json)
        if given.action == "status":
            return show_status(settings, as_json=given.json)
        if given.action == "check":
            return check(settings, as_json=given.json)
        if given.action == "bridge":
            return change_bridge(settings, given)
        return show_settings(as_json=given.json)
    except LarkError as error:
        print(f"lark-worker: {error}", file=sys.stderr)
        return 2 if isinstance(error, SettingError) else 1


if __name__ == "__main__":
    sys.exit(main())
