"""The steps that remain after ``lark setup``, in order, with their commands."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lark_controller.cli.setup import texts
from lark_controller.cli.setup.holders import Outcome
from lark_controller.cli.setup.plan import OPERATOR, Plan, Request
from lark_controller.rest.token_files import SUFFIX

# The files that a worker gets. Their directory's own mode stays behind: others read /etc/lark on a worker.
WORKER_FILES: Final = ("ca.pem", "switch.key", "switch.pem", "worker.env", "worker.token")
# As many hosts are named even where they are all that there are.
_FEW: Final = 3
_UNIT: Final = "lark-controller.service"


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the machine, the purpose, and the commands to be run there by root."""

    where: str
    what: str
    commands: tuple[str, ...]


_ACCESS_POINT: Final = Step(
    "On each access point",
    "let jobs ask for networks",
    (
        "apt install ./lark-access-point_*.deb    # Enterprise Linux: dnf install ./lark-access-point-*.rpm",
        "condor_qedit -constraint 'WantJobNetworking =?= undefined' WantJobNetworking false",
    ),
)


def steps(request: Request, planned: Plan) -> tuple[Step, ...]:
    """Everything that is left to do."""
    url = f"https://{request.names[0]}:{texts.reached(planned.settings.rest_listen)}"
    authority = shlex.quote(str(request.directory / "ca.pem"))
    token = shlex.quote(str(request.directory / f"{OPERATOR}{SUFFIX}"))
    here = [
        Step("On this host", "start the controller", _start(request, planned)),
        Step(
            "On this host",
            "look whether it answers workers, and which switches are there",
            (
                f"curl --cacert {authority} {url}/readyz",
                f"export LARK_URL={url} LARK_CA={authority} LARK_TOKEN_FILE={token}",
                "lark switches",
            ),
        ),
    ]
    # Also where an earlier run was the one with --joins.
    if planned.settings.join_settings and not request.workers:
        steps_of_join = (
            Step(
                "On this host",
                "make a token by which these workers join, each once, within two hours",
                ("lark join add --hosts hosts.txt",),
            ),
            Step(
                "On each worker",
                "install Lark, join (eth0: its network card), and let jobs start again",
                (
                    "condor_off -startd -peaceful",
                    "apt install ./lark-worker_*.deb    # Enterprise Linux: dnf install ./lark-worker-*.rpm",
                    f"lark-worker setup --controller {url} --interface eth0 --join TOKEN",
                    "condor_on -startd",
                    "lark-worker check",
                ),
            ),
            _ACCESS_POINT,
        )
        return (*here, *steps_of_join)
    if not request.workers:
        again = f"lark setup --name {request.names[0]} --workers FILE"
        return (*here, Step("On this host", "make the workers' directories, from a list with a host a line", (again,)))
    changed = [host for host in request.workers if host in planned.changed_workers] or request.workers
    port = texts.reached(planned.settings.openflow_tls_listen)
    target = request.addresses[0] if request.addresses else request.names[0]
    shown = f"[{target}]" if ":" in str(target) else str(target)
    return (
        *here,
        Step(
            "On this host",
            "copy each worker's directory to it, before its package is installed",
            (_copy(request.directory / "workers", changed),),
        ),
        Step(
            "On each worker",
            "install Lark, make the bridge (eth0: its network card), and connect it",
            (
                "condor_off -startd -peaceful",
                "apt install ./lark-worker_*.deb    # Enterprise Linux: dnf install ./lark-worker-*.rpm",
                "lark-worker bridge make br0 eth0",
                f"ovs-vsctl set-ssl {texts.PLACE}/switch.key {texts.PLACE}/switch.pem {texts.PLACE}/ca.pem",
                f"ovs-vsctl set-controller br0 ssl:{shown}:{port} -- set controller br0 connection_mode=out-of-band "
                "max_backoff=1000 inactivity_probe=5000",
                "systemctl enable --now lark-worker.service",
                "condor_on -startd",
                "lark-worker check",
            ),
        ),
        _ACCESS_POINT,
    )


def _copy(directory: Path, hosts: Sequence[str]) -> str:
    """The shell's loop that copies these workers' files to them, with their modes."""
    folder = shlex.quote(str(directory))
    is_all = len(hosts) > _FEW and {each.name for each in directory.iterdir()} == set(hosts)
    listed = f"$(ls {folder})" if is_all else " ".join(hosts)
    files = " ".join(WORKER_FILES)
    there = f"mkdir -p -m 755 {texts.PLACE} && tar -C {texts.PLACE} --no-same-owner -xpf -"
    return f"for host in {listed}; do tar -C {folder}/$host -cf - {files} | ssh root@$host '{there}'; done"


def _start(request: Request, planned: Plan) -> tuple[str, ...]:
    commands = [f"systemctl enable --now {_UNIT}"]
    if planned.settings_file or Outcome.RENEWED in {pair.outcome for pair in (planned.authority, *planned.own)}:
        # It reads settings and certificates at its start alone, and may run already.
        commands = [f"systemctl enable {_UNIT}", f"systemctl restart {_UNIT}"]
    if request.directory != texts.PLACE:
        # The unit reads /etc/lark/lark.env.
        own = f"/etc/systemd/system/{_UNIT}.d"
        line = f"printf '[Service]\\nEnvironmentFile=%s\\n' {shlex.quote(str(request.directory / 'lark.env'))}"
        return (f"mkdir -p {own} && {line} > {own}/50-setup.conf", "systemctl daemon-reload", *commands)
    return tuple(commands)
