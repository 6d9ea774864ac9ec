"""KEEP=1: a shell file with which a person can look around, and the words that lead to it."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from demo.jobs import HOOK, JOBS, Hook
from demo.service import Service
from demo.topology import Topology


def write_shell_file(path: Path, topology: Topology, service: Service, hook: Hook) -> None:
    """Write what a shell reads with ``.``: where the controller is, and the commands ``on``, ``flows`` and ``hook``."""
    settings = service.access() | {"POLICY": str(service.policy_file), "LOG": str(service.log_file)}
    lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.items()]
    lines += [
        f'lark() {{ {shlex.quote(sys.executable)} -m lark_controller.cli "$@"; }}',
        f'on() {{ name=$1; shift; ip netns exec {topology.net.prefix}-"$name" "$@"; }}',
        "flows() {",
        "    case $1 in",
        *(
            f"        {switch.name}) bridge={shlex.quote(str(topology.ovs.directory / switch.device))} ;;"
            for switch in topology.switches.values()
        ),
        '        *) echo "flows core1|worker1|worker2" >&2; return 2 ;;',
        "    esac",
        '    ovs-ofctl -O OpenFlow13 dump-flows "unix:$bridge.mgmt"',
        "}",
        "hook() {",
        "    case $1 in",
    ]
    for job in JOBS:
        set_ = " ".join(f"{name}={shlex.quote(value)}" for name, value in hook.environment(job).items())
        ad = shlex.quote(hook.environment(job)["_CONDOR_JOB_AD"])
        lines.append(f'        {job.name}) env {set_} sh {shlex.quote(str(HOOK))} "$2" <{ad} ;;')
    lines += ['        *) echo "hook JOB start|update|exit" >&2; return 2 ;;', "    esac", "}"]
    path.write_text("\n".join(lines) + "\n")


def words(path: Path, service: Service) -> list[str]:
    """What to type in another shell."""
    return [
        f". {path}",
        "",
        "lark jobs                               the jobs and their state",
        "lark switches                           the switches; lark switches worker1 --flows",
        "lark explain 10.64.0.3 192.0.2.1        why bob does not reach the internet",
        "on bob ping -c 2 192.0.2.80             run a program as a job would (also: on internet …)",
        "lark plan FILE                          what another policy would change",
        "vi $POLICY                              change the policy; the controller notices",
        "flows worker1                           what Open vSwitch itself holds",
        "hook bob exit; hook bob start           end a job, start it again",
        "tail $LOG                               what the controller says",
        f'curl -H "Authorization: Bearer $(cat $LARK_TOKEN_FILE)" {service.url}/v1/jobs',
    ]
