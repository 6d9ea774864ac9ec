"""The project's own services in the lab, installed by the pages of docs/how-to: the controller, and on each worker the
service with hook, wrapper, sudoers and base flows. Runs as root inside the lab. Standard library only.
"""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lab.inside import pki
from lab.inside.machines import DIRECTORY, POLL, on, script, wait_for, whole_text, write
from lab.inside.topology import (
    BY_NAME,
    DATABASE_URL,
    DOMAIN,
    EDGE_BRIDGE,
    GATEWAYS,
    JOBS,
    LINUX_BRIDGE,
    MACHINES,
    METRICS_PORT,
    NAMESERVER,
    NAT_NETWORKS,
    OPENFLOW_PORT,
    OPERATOR_TOKEN,
    OVSDB_PORT,
    REST_PORT,
    UPLINK,
    Machine,
)
from lab.run import LabError

SOURCE = "/lark/run/source"
CONTROLLER = BY_NAME["controller"]
URL = f"http://{CONTROLLER.address}:{REST_PORT}"
WORKER_SOCKET = "run/lark-worker/worker.sock"
READY_TIMEOUT = 120
SCRIPTS = ("starter_hook.sh", "lark_job_wrapper.sh", "lark-enter", "lark-bandwidth")

_CONTROLLER_ENV = f"""\
LARK_DATABASE_URL={DATABASE_URL}
LARK_OPENFLOW_LISTEN=0.0.0.0:{OPENFLOW_PORT}
LARK_REST_LISTEN=0.0.0.0:{REST_PORT}
LARK_OVSDB=ssl:{{host}}:{OVSDB_PORT}
LARK_OPENFLOW_TLS_KEY={pki.KEY}
LARK_OPENFLOW_TLS_CERT={pki.CERTIFICATE}
LARK_OPENFLOW_TLS_CA={pki.CA}
LARK_COLLECTOR=central.{DOMAIN}
LARK_COLLECTOR_INTERVAL=5
LARK_COLLECTOR_MARGIN=10
LARK_COLLECTOR_AD_SECONDS=30
LARK_CHECK_SECONDS=15
"""
_WORKER_ENV = f"""\
LARK_WORKER_URL={URL}
LARK_WORKER_TOKEN_FILE=/etc/lark/worker.token
LARK_WORKER_NETWORKS={",".join(JOBS)}
LARK_WORKER_GATEWAYS={",".join(GATEWAYS)}
LARK_WORKER_NAMESERVERS={NAMESERVER}
LARK_WORKER_LINUX_BRIDGE={LINUX_BRIDGE}
LARK_WORKER_NAT_NETWORKS={",".join(NAT_NETWORKS)}
LARK_WORKER_EXTERNAL_INTERFACE={EDGE_BRIDGE}
LARK_WORKER_METRICS_LISTEN=127.0.0.1:{METRICS_PORT}
"""
_HOOK_CONF = """\
LARK_SOCKET=/run/lark-worker/worker.sock
LARK_ON_FAILURE=idle
LARK_RETRIES=1
"""
# One process makes them all: each start of the `lark` command costs a second in the lab's own kernel.
_TOKENS = """\
import pathlib, sys
from lark_controller.rest.tokens import Scope, add
folder = pathlib.Path("/etc/lark")
for name in sys.argv[1:]:
    scope, hosts = (Scope.OPERATE, None) if name == "operator" else (Scope.HOOK, [f"{name}.*"])
    made = folder / f"{name}.token.new"
    made.touch(mode=0o600)
    made.write_text(add(folder / "tokens.yaml", name, [scope], hosts=hosts) + "\\n")
    made.rename(folder / f"{name}.token")
"""


def unit(machine: str, name: str, user: str, settings: str, command: str) -> None:
    """Install and start a service that is kept running (``unit`` on the machine stops and starts it)."""
    write(machine, f"/etc/lab-units/{name}", f"USER={user}\nFILE={settings}\nCOMMAND='{command}'\n")
    script(machine, ["install -m 755 /lark/run/code/lab/inside/unit.sh /usr/local/bin/unit", f"unit start {name}"])


def token(name: str) -> str:
    """A token that the controller's machine has made, once it is there. Raises LabError."""
    path = DIRECTORY / CONTROLLER.name / f"upper/etc/lark/{name}.token"
    wait_for(f"the token {name}", path)
    return whole_text(path)


def policy(*, connectivity: bool, queues: bool) -> str:
    """The policy that the lab's controller starts with; what its kernel cannot do is left out on request.

    Those are the rules on one-way connectivity, and on bandwidth.
    """
    text = Path(SOURCE, "lab/policy.yaml").read_text()
    for kind, wanted in (("connectivity", connectivity), ("bandwidth", queues)):
        if not wanted:
            text = re.sub(rf"^ *- {kind}:.*\n", "", text, flags=re.MULTILINE)
    return text


def controller(machine: Machine, *, connectivity: bool, queues: bool) -> None:
    """The controller on PostgreSQL, as its own user, with the lab's policy, and a token for each worker and the
    operator.

    A policy that is there already, from before a loss of power, stays.
    """
    workers = [each.name for each in MACHINES if "execute" in each.roles]
    write(machine.name, "/etc/lark/lark.env", _CONTROLLER_ENV, mode=0o640)
    write(machine.name, "/etc/lark/policy.yaml.new", policy(connectivity=connectivity, queues=queues))
    write(machine.name, "/usr/local/bin/lark", _client(OPERATOR_TOKEN), mode=0o755)
    write(machine.name, "/usr/local/lib/lark-tokens", _TOKENS)
    lines = [
        "id lark >/dev/null 2>&1 ||"
        " useradd --system --home-dir /var/lib/lark --create-home --shell /usr/sbin/nologin lark",
        "[ -e /etc/lark/policy.yaml ] || mv /etc/lark/policy.yaml.new /etc/lark/policy.yaml",
        "chown lark /etc/lark/policy.yaml",
        "chgrp lark /etc/lark /etc/lark/lark.env",
        "chmod 770 /etc/lark",
        'as_lark() { setpriv --reuid lark --regid lark --init-groups --reset-env "$@"; }',
        "[ -e /etc/lark/operator.token ] ||"
        f" as_lark /opt/lark/bin/python /usr/local/lib/lark-tokens {' '.join(workers)} operator",
    ]
    pki.install(machine.name)
    lines.append(f"chown -R lark {pki.FOLDER}")
    script(machine.name, lines)
    unit(machine.name, "lark-controller", "lark", "/etc/lark/lark.env", "/opt/lark/bin/lark run")


def base_flows(machine: Machine) -> None:
    """The flows that a worker's bridge has before any controller, and whoever looks after them."""
    script(machine.name, [f"install -m 755 {SOURCE}/scripts/lark-base-flows /usr/local/sbin/lark-base-flows"])
    flows = f"/usr/local/sbin/lark-base-flows {EDGE_BRIDGE} {UPLINK}"
    on(machine.name, *flows.split())
    unit(machine.name, "lark-base-flows", "root", "", flows.replace("flows ", "flows --watch 5 ", 1))


def worker(machine: Machine) -> None:
    """The worker service with hook, wrapper and the way in; HTCondor's part of it is the file in its config.d."""
    write(machine.name, "/etc/lark/worker.env", _WORKER_ENV, mode=0o600)
    write(machine.name, "/etc/lark/hook.conf", _HOOK_CONF)
    libexec = "/usr/local/libexec/lark"
    lines = [
        f"install -d {libexec} /run/lark-worker",
        f"install -m 755 {' '.join(f'{SOURCE}/scripts/{name}' for name in SCRIPTS)} {libexec}/",
        # For jobs on a Linux bridge, and for those behind NAT by IPv6.
        f"ip link add {LINUX_BRIDGE} type bridge mcast_snooping 0",
        f"ip link set eth1 master {LINUX_BRIDGE}",
        f"ip link set {LINUX_BRIDGE} up",
        "sysctl -qw net.ipv6.conf.all.forwarding=1",
        f"ln -sf starter_hook.sh {libexec}/lark-start",
        f"install -m 440 {SOURCE}/etc/sudoers.d/lark /etc/sudoers.d/lark",
        "visudo -cq",
        f"install -D -m 644 {SOURCE}/etc/condor/50-lark.conf /etc/condor/config.d/50-lark.conf",
    ]
    script(machine.name, lines)
    write(machine.name, "/etc/lark/worker.token", token(machine.name), mode=0o600)
    unit(machine.name, "lark-worker", "root", "/etc/lark/worker.env", "/opt/lark/bin/lark-worker run")


def leaves(machine: Machine) -> None:
    """Fair queueing inside the queues of a switch that is no worker's; a worker's service has it with it."""
    unit(machine.name, "lark-leaves", "root", "", "/opt/lark/bin/lark-worker leaves")


def operator() -> None:
    """The ``lark`` command beside the machines, with the operator's token."""
    program = Path("/usr/local/bin/lark")
    program.write_text(_client(f"{DIRECTORY}/{CONTROLLER.name}/upper{OPERATOR_TOKEN}"))
    program.chmod(0o755)


def _client(token_file: str) -> str:
    return (
        f"#!/bin/sh\nexport LARK_URL=${{LARK_URL:-{URL}}} LARK_TOKEN_FILE=${{LARK_TOKEN_FILE:-{token_file}}}\n"
        'exec /opt/lark/bin/lark "$@"\n'
    )


def ask(path: str) -> Any:
    """The answer of the controller's API to the operator. Raises OSError where it does not answer, or not with 200."""
    request = urllib.request.Request(f"{URL}{path}", headers={"Authorization": f"Bearer {token('operator').strip()}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.load(answer)


def missing(machines: Iterable[Machine]) -> list[str]:
    """The parts not ready yet, in words: the controller, the switches of ``machines``, the services of its workers."""
    try:
        switches = {each["datapath"]: each for each in ask("/v1/switches")["switches"]}
    except (OSError, ValueError) as error:
        return [f"the controller: {error}"]
    found = []
    for machine in machines:
        switch = switches.get(machine.bridge.datapath_id) if machine.bridge else None
        if machine.bridge and not (switch and switch["in_sync"]):
            found.append(f"the switch of {machine.name}: {switch['reason'] if switch else 'not known'}")
        if "execute" in machine.roles:
            pid = (DIRECTORY / machine.name / "pid").read_text()
            if not Path(f"/proc/{pid}/root/{WORKER_SOCKET}").exists():
                found.append(f"the worker service of {machine.name}")
    return found


def wait_until_ready(machines: Iterable[Machine], seconds: float = READY_TIMEOUT) -> None:
    """Wait until nothing is :func:`missing`. Raises LabError, naming what is, after ``seconds``."""
    machines = tuple(machines)
    deadline = time.monotonic() + seconds
    while absent := missing(machines):
        if time.monotonic() > deadline:
            raise LabError(f"not ready after {seconds:g} s: {'; '.join(absent)}")
        time.sleep(POLL * 10)
