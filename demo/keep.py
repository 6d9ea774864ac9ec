"""KEEP=1: a shell file with which a person can look around, and the words that lead to it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from demo.jobs import HOOK, JOBS, Hook
from demo.service import Service
from demo.topology import Topology

WORDS = """\
lark jobs                               the jobs and their state
lark switches                           the switches; lark switches worker1 --flows
lark explain 10.64.0.3 192.0.2.1        why bob does not reach the internet
on bob ping -c 2 192.0.2.80             run a program where a job runs (or on internet, router1, …)
lark plan FILE                          what another policy would change
vi $POLICY                              change the policy; the controller notices
flows worker1                           what Open vSwitch itself holds
hook bob exit; hook bob start           end a job, start it again
tail $LOG                               the log of the controller
curl -H "Authorization: Bearer $(cat $LARK_TOKEN_FILE)" $LARK_URL/v1/jobs
""".splitlines()


def write_shell_file(path: Path, topology: Topology, service: Service, hook: Hook) -> None:
    """Write what a shell reads with ``.``: where the controller is, and the commands ``on``, ``flows`` and ``hook``."""
    settings = service.access() | {"POLICY": str(service.policy_file), "LOG": str(service.log_file)}
    # A token that is made there is of the demo's controller, and not of one that the machine may have.
    settings["LARK_TOKENS_FILE"] = str(service.tokens_file)
    lines = [
        *(f"export {name}={shlex.quote(value)}" for name, value in settings.items()),
        f'lark() {{ {shlex.quote(sys.executable)} -m lark_controller.cli.main "$@"; }}',
        f'on() {{ on_host=$1; shift; ip netns exec {topology.net.prefix}-"$on_host" "$@"; }}',
        *_flows(topology),
        *_hook(hook),
    ]
    path.write_text("\n".join(lines) + "\n")


def _flows(topology: Topology) -> Iterator[str]:
    yield "flows() {"
    yield "    case $1 in"
    for switch in topology.switches.values():
        socket = shlex.quote(f"unix:{topology.ovs.directory / switch.device}.mgmt")
        yield f"        {switch.name}) ovs-ofctl -O OpenFlow13 dump-flows {socket} ;;"
    yield '        *) echo "flows core1|worker1|worker2" >&2; return 2 ;;'
    yield "    esac"
    yield "}"


def _hook(hook: Hook) -> Iterator[str]:
    yield "hook() {"
    yield "    hook_action=$2"
    yield "    case $1 in"
    for job in JOBS:
        settings = hook.environment(job)
        words = " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items())
        yield f"        {job.name}) hook_ad={shlex.quote(settings['_CONDOR_JOB_AD'])}; set -- {words} ;;"
    yield '        *) echo "hook JOB start|update|exit" >&2; return 2 ;;'
    yield "    esac"
    # A job that starts again is a new run, which HTCondor gives a start of its own.
    yield '    if [ "$hook_action" = start ]; then'
    yield '        sed -i "s/^JobCurrentStartDate = .*/JobCurrentStartDate = $(date +%s)/" "$hook_ad"'
    yield "    fi"
    yield f'    env "$@" sh {shlex.quote(str(HOOK))} "$hook_action" exit <"$hook_ad"'
    yield "}"
