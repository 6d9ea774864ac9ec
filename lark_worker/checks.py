"""``lark-worker check``: what this worker lacks for its jobs to have networks of their own, each with what to do."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from lark_common.controllers import urls
from lark_common.errors import LarkError
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError, NetworkError, StartdError
from lark_worker.identity.startd import StartdView
from lark_worker.identity.wrapper_check import problem_of
from lark_worker.network.commands import run
from lark_worker.settings import Settings

# The version of HTCondor from which jobs can start in an empty network namespace.
SAFE_HTCONDOR: Final = (24, 7, 3)
# The last version in which a hook before the transfer was seen to keep jobs from starting in one.
BEFORE_TRIED: Final = (25, 14, 1)
# Seconds by which the clocks may differ; a certificate or token that is just valid would be refused by more.
CLOCKS: Final = 60.0
# The attributes of a job in the slot's ad, by which the startd identifies it.
JOB_ATTRIBUTES: Final = ("Owner", "GlobalJobId", "JobCurrentStartDate")
# Jobs see their own in its place, which takes a file to put it over.
RESOLV: Final = Path("/etc/resolv.conf")
_PROGRAMS: Final = ("ip", "tc", "nft", "ovs-vsctl", "ovs-ofctl", "sudo", "curl")
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Seconds before a certificate's end from which it is shown; openssl's form of a time.
SOON: Final = 30 * 86_400.0
_END: Final = "%b %d %H:%M:%S %Y %Z"
_FOR_BRIDGE: Final = "lark-worker bridge make BRIDGE INTERFACE makes one"


class State(StrEnum):
    """``ok``; ``warning``: jobs run, with less than could be; ``missing``: jobs do not get what they should."""

    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check: its subject, and in words what is there, or what is not and what to do."""

    subject: str
    state: State
    words: str


@dataclass(frozen=True, slots=True)
class HTCondor:
    """HTCondor on this worker: its configuration (knobs in capitals), its version, and its startd.

    ``trouble`` is why there is none.
    """

    settings: Mapping[str, str]
    version: tuple[int, ...]
    startd: StartdView | None
    trouble: str = ""


def findings(settings: Settings, condor: HTCondor, status: Callable[[], dict[str, Any] | None]) -> Iterator[Finding]:
    """Every check in turn, each of some seconds at most. ``status`` asks the running service; None where it is away."""
    # Of programs that are called there are messages of several lines.
    for each in _each_check(settings, condor, status):
        yield replace(each, words=" ".join(each.words.split("\n")))


def _each_check(settings: Settings, condor: HTCondor, status: Callable[[], dict[str, Any] | None]) -> Iterator[Finding]:
    yield from _rights()
    yield from _programs()
    yield from _kernel(settings)
    yield from _bridge(settings)
    yield from _uplinks(settings)
    yield from _certificates(settings, _host(condor))
    yield from _addresses(settings)
    yield from _controller(settings, condor)
    yield from _htcondor(settings, condor)
    yield from _service(settings, status())


def read_htcondor(startd_address_file: Path | None, startd: Callable[[Path | None], StartdView]) -> HTCondor:
    """HTCondor by its own bindings, which read its configuration."""
    try:
        import htcondor2

        version = tuple(map(int, re.findall(r"\d+", htcondor2.version())[:3]))
        known = {name.upper(): str(value) for name, value in htcondor2.param.items()}
    except Exception as error:  # the bindings raise what they like where there is no configuration
        return HTCondor({}, (), None, f"HTCondor's configuration cannot be read: {error}")
    try:
        return HTCondor(known, version, startd(startd_address_file))
    except Exception as error:
        return HTCondor(known, version, None, f"{type(error).__name__}: {error}")


def _rights() -> Iterator[Finding]:
    if os.geteuid() == 0:
        yield Finding("rights", State.OK, "run by root")
    else:
        yield Finding(
            "rights", State.WARNING, "not run by root: kernel, bridge and token cannot be looked at; use sudo"
        )


def _programs() -> Iterator[Finding]:
    gone = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if gone:
        yield Finding("programs", State.MISSING, f"not installed: {', '.join(gone)}")
    else:
        yield Finding("programs", State.OK, ", ".join(_PROGRAMS))


def _kernel(settings: Settings) -> Iterator[Finding]:
    """Try in a network namespace of their own what jobs' networks are made of."""
    tries: list[tuple[str, State, str]] = [
        ("network namespaces and veth", State.MISSING, "ip link add name a type veth peer name b"),
    ]
    rated = "RequestBandwidth of bridge and nat jobs is refused"
    if settings.linux_bridge or settings.nat_networks:
        tries += [
            ("nftables", State.MISSING, "nft add table inet a && nft add table bridge a"),
            (f"queues (sch_htb; without it {rated})", State.WARNING, "tc qdisc add dev lo root handle 1: htb"),
        ]
    if settings.linux_bridge:
        tries.append(("bridge", State.MISSING, "ip link add name a type bridge"))
    if settings.nat_networks:
        rule = "nft add chain ip a b '{ type nat hook postrouting priority 100; }' && nft add rule ip a b masquerade"
        tries.append(("masquerading", State.MISSING, f"nft add table ip a && {rule}"))
    fair = "tc qdisc add dev lo root cake || tc qdisc add dev lo root fq_codel"
    lacks = "a ping waits behind a bulk transfer in the same queue"
    tries.append((f"fair queueing (sch_cake or sch_fq_codel; without it {lacks})", State.WARNING, fair))
    for what, without, command in tries:
        try:
            run(["unshare", "--net", "sh", "-c", command])
        except NetworkError as error:
            # nft's first line has the reason, and those below it the command again, with marks.
            reason = str(error).split("\n")[0].rpartition(": ")[2]
            yield Finding("kernel", without, f"{what}: {reason}")
        else:
            yield Finding("kernel", State.OK, what.partition(" (")[0])


def _bridge(settings: Settings) -> Iterator[Finding]:
    if settings.network_type != "ovs_bridge" and not Path("/sys/class/net", settings.bridge).exists():
        return
    vsctl = ["ovs-vsctl", "--timeout=5", f"--db={settings.ovs_database}"]
    try:
        if settings.bridge not in run([*vsctl, "list-br"]).split():
            words = f"Open vSwitch has no bridge {settings.bridge} (LARK_WORKER_BRIDGE); {_FOR_BRIDGE}"
            yield Finding("Open vSwitch", State.MISSING, words)
            return
        fail_mode = run([*vsctl, "get-fail-mode", settings.bridge]).strip()
        controllers = run([*vsctl, "get-controller", settings.bridge]).split()
        listed = json.loads(
            run([*vsctl, "--format=json", "--columns=target,is_connected,role,status", "list", "controller"])
        )
    except (NetworkError, ValueError) as error:
        yield Finding("Open vSwitch", State.MISSING, f"its database does not answer: {error}")
        return
    if fail_mode != "secure":
        words = f"bridge {settings.bridge} forwards by itself without a controller: ovs-vsctl set-fail-mode"
        yield Finding("Open vSwitch", State.MISSING, f"{words} {settings.bridge} secure")
    if not controllers:
        words = f"bridge {settings.bridge} has no controller: ovs-vsctl set-controller {settings.bridge} ssl:HOST:6653"
        yield Finding("Open vSwitch", State.MISSING, words)
        return
    roles = {target: role for target, is_connected, role, _ in listed["data"] if is_connected and target in controllers}
    connected = sorted(roles)
    errors = {target: dict(status[1]).get("last_error", "") for target, _, _, status in listed["data"]}
    away = [target for target in controllers if target not in connected]
    if len(away) == len(controllers):
        why = ", ".join(f"{target} ({errors[target]})" if errors.get(target) else target for target in away)
        what = "is the controller running, does a packet filter let this worker through, is its certificate good?"
        yield Finding("Open vSwitch", State.MISSING, f"bridge {settings.bridge} is not connected to {why}: {what}")
        return
    others = f", not to {', '.join(away)}" if away else ""
    words = f"bridge {settings.bridge} is connected to {', '.join(connected)}{others}"
    if all(role == "slave" for role in roles.values()):
        # Open vSwitch writes roles with its statistics, every 5 s.
        words += ": none of these is the active controller, or one became it seconds ago; `lark instances` has its name"
        yield Finding("Open vSwitch", State.MISSING, words)
    else:
        yield Finding("Open vSwitch", State.OK, words)


def _uplinks(settings: Settings) -> Iterator[Finding]:
    """An uplink with addresses of its own: the machine's network settings are those of before it had the bridge."""
    vsctl = ["ovs-vsctl", "--timeout=5", f"--db={settings.ovs_database}"]
    with suppress(NetworkError, ValueError):
        ports = run([*vsctl, "list-ports", settings.bridge]).split()
        shown = json.loads(run(["ip", "-json", "address", "show"]))
        for each in shown:
            if each.get("ifname") not in ports or each["ifname"].startswith(settings.prefix):
                continue
            # Those of a router's advertisement are nobody's setting.
            has = [
                f"{one['local']}/{one['prefixlen']}"
                for one in each["addr_info"]
                if one["scope"] == "global" and not (one["family"] == "inet6" and one.get("dynamic"))
            ]
            if has:
                name, bridge = each["ifname"], settings.bridge
                words = f"{name} is a port of {bridge} and has {', '.join(has)}, which belongs to the bridge"
                todo = (
                    f"change the machine's own network settings, and move it: lark-worker bridge make {bridge} {name}"
                )
                yield Finding("Open vSwitch", State.MISSING, f"{words}: {todo}")


def _certificates(settings: Settings, host: str) -> Iterator[Finding]:
    """The ends of the certificates that this worker and its switch show, and of the authorities that they trust."""
    named = [settings.cert_file, settings.ca_file]
    if shutil.which("ovs-vsctl", path=_PATH) is not None:
        with suppress(NetworkError):
            shown = run(["ovs-vsctl", "--timeout=5", f"--db={settings.ovs_database}", "get-ssl"])
            named += map(Path, re.findall(r"(?m)^(?:CA )?Certificate: (/.*)$", shown))
    here = f"lark-worker setup --controller {urls(settings.url)[0]} --join TOKEN"
    anew = f"on the controller's host lark join add {host}, and here {here}"
    ends = []
    for path in dict.fromkeys(filter(None, named)):
        if not path.exists():
            yield Finding("certificates", State.MISSING, f"there is no {path}: {anew}")
            continue
        try:
            end = datetime.strptime(
                run(["openssl", "x509", "-in", str(path), "-noout", "-enddate"]).partition("=")[2].strip(), _END
            ).replace(tzinfo=UTC)
        except (NetworkError, ValueError) as error:
            # openssl has several lines, with the numbers of its errors.
            reason = str(error).splitlines()[-1]
            yield Finding("certificates", State.MISSING, f"{path} cannot be read as a certificate: {reason}")
            continue
        left = (end - datetime.now(UTC)).total_seconds()
        if left < SOON:
            state, words = (State.MISSING, "has expired") if left <= 0 else (State.WARNING, "ends soon")
            yield Finding(
                "certificates", state, f"{path} {words} ({end:%Y-%m-%d}): {anew}; a copied file: copy the new one"
            )
        else:
            ends.append((end, path))
    if ends:
        end, path = min(ends)
        yield Finding("certificates", State.OK, f"the first to end is {path}, on {end:%Y-%m-%d}")


def _addresses(settings: Settings) -> Iterator[Finding]:
    if settings.address_type == "controller" and not settings.networks:
        words = "LARK_WORKER_NETWORKS is empty: addresses of jobs have no network on their link"
        yield Finding("addresses", State.MISSING, words)
    elif settings.address_type == "controller" and not settings.gateways:
        words = "LARK_WORKER_GATEWAYS is empty: jobs reach their own network alone"
        yield Finding("addresses", State.WARNING, words)
    else:
        networks = ", ".join(map(str, settings.networks)) or "by slot's ad"
        yield Finding("addresses", State.OK, f"{settings.address_type}: {networks}")
    for name in ("nat_networks", "external_interface"):
        if bool(settings.nat_networks) != bool(settings.external_interface) and not getattr(settings, name):
            words = f"LARK_WORKER_{name.upper()} is empty, and nat jobs need it beside the other one"
            yield Finding("addresses", State.MISSING, words)
    if (settings.nameservers or settings.address_type == "dhcp") and not RESOLV.exists():
        words = f"there is no {RESOLV}, in whose place a job's name servers are: no job can start; make one"
        yield Finding("addresses", State.MISSING, words)
    if settings.external_interface:
        # Fails where it is a port of none.
        with suppress(NetworkError):
            vsctl = ["ovs-vsctl", "--timeout=5", f"--db={settings.ovs_database}"]
            bridge = run([*vsctl, "port-to-br", settings.external_interface]).strip()
            words = f"{settings.external_interface} is a port of {bridge}, so nothing of nat jobs leaves by it"
            yield Finding("addresses", State.MISSING, f"{words}: LARK_WORKER_EXTERNAL_INTERFACE={bridge}")
    for device in filter(None, (settings.linux_bridge, settings.external_interface)):
        if not Path("/sys/class/net", device).exists():
            yield Finding("addresses", State.MISSING, f"there is no interface {device}")


def _controller(settings: Settings, condor: HTCondor) -> Iterator[Finding]:
    """Ask as the service does: its URL, certificates and token, in the name of this host."""
    host = _host(condor)
    try:
        link = ControllerLink(settings)
        link.renew(host, ())
    except AwayError as error:
        yield Finding("controller", State.MISSING, f"{settings.url}: {error}")
        return
    except LarkError as error:
        yield Finding("controller", State.MISSING, str(error))
        return
    if abs(link.ahead) > CLOCKS:
        words = f"its clock is {link.ahead:+.0f} s from this worker's; both should follow a time server"
        yield Finding("controller", State.WARNING, words)
    for url, reason in link.silent().items():
        yield Finding(
            "controller", State.WARNING, f"{url}: {reason} Jobs start without it while another one is active."
        )
    yield Finding("controller", State.OK, f"{settings.url} answers, and the token is good for {host}")


def _host(condor: HTCondor) -> str:
    """This worker's name, as Machine in its slots' ads has it."""
    return condor.settings.get("FULL_HOSTNAME") or os.uname().nodename


def _htcondor(settings: Settings, condor: HTCondor) -> Iterator[Finding]:
    if not condor.settings:
        yield Finding("HTCondor", State.MISSING, condor.trouble)
        return
    version = ".".join(map(str, condor.version))
    if condor.version < SAFE_HTCONDOR:
        words = f"version {version} cannot start jobs in an empty network namespace: they can get around the wrapper"
        yield Finding("HTCondor", State.WARNING, f"{words}; 24.7.3 and later can")
    else:
        yield Finding("HTCondor", State.OK, f"version {version}")
    keyword = condor.settings.get("STARTER_JOB_HOOK_KEYWORD", "")
    yield _program(condor, f"{keyword.upper() or 'LARK'}_HOOK_PREPARE_JOB", "no job is registered")
    yield _program(condor, "USER_JOB_WRAPPER", "jobs start in the worker's own network")
    if not keyword:
        words = "STARTER_JOB_HOOK_KEYWORD is not set: no hook runs; install 50-lark.conf"
        yield Finding("HTCondor", State.MISSING, words)
    named = {name.lower() for name in re.split(r"[\s,]+", condor.settings.get("STARTD_JOB_ATTRS", ""))}
    unnamed = [name for name in JOB_ATTRIBUTES if name.lower() not in named]
    if unnamed:
        words = f"STARTD_JOB_ATTRS lacks {', '.join(unnamed)}: the startd does not say whose a job is"
        yield Finding("HTCondor", State.MISSING, f"{words}; install 50-lark.conf")
    if not any(Path(path).exists() for path in settings.starters):
        words = f"no condor_starter at {' or '.join(settings.starters)}: set LARK_WORKER_STARTERS"
        yield Finding("HTCondor", State.MISSING, words)
    yield from _way_in()
    if condor.startd is None:
        yield Finding("HTCondor", State.MISSING, f"the startd cannot be asked: {condor.trouble}")
        return
    try:
        problem = problem_of(condor.startd.gives_jobs_its_network())
    except StartdError as error:
        yield Finding("HTCondor", State.MISSING, str(error))
        return
    if problem:
        yield Finding("HTCondor", State.MISSING, problem)
        return
    yield Finding("HTCondor", State.OK, "jobs start in an empty network namespace, and the wrapper brings them out")
    before = f"{keyword.upper() or 'LARK'}_HOOK_PREPARE_JOB_BEFORE_TRANSFER"
    if condor.settings.get(before):
        # docs/design/lab.md has what happens there.
        words = f"{before} is set, and so is NO_JOB_NETWORKING: with both, HTCondor 25.14.1 starts no job"
        todo = (
            "leave one out (NO_JOB_NETWORKING = False lets jobs that get around the wrapper into this worker's network)"
        )
        if condor.version <= BEFORE_TRIED:
            yield Finding("HTCondor", State.MISSING, f"{words}; {todo}")
        else:
            yield Finding(
                "HTCondor", State.WARNING, f"{words}, and {version} was not tried; see that a job starts, or {todo}"
            )


def _way_in() -> Iterator[Finding]:
    """The account that runs a job may start lark-enter by sudo."""
    try:
        allowed = re.findall(r"NOPASSWD: (\S*/lark-enter)", run(["sudo", "-n", "-l", "-U", "nobody"]))
    except NetworkError as error:
        yield Finding("sudo", State.MISSING, str(error))
        return
    if not allowed:
        yield Finding("sudo", State.MISSING, "no rule lets jobs start lark-enter: install sudoers.d/lark, mode 0440")
    elif not os.access(allowed[0], os.X_OK):
        yield Finding("sudo", State.MISSING, f"{allowed[0]} is not there, or no program: no job enters its network")
    else:
        yield Finding("sudo", State.OK, f"jobs may start {allowed[0]}")


def _program(condor: HTCondor, knob: str, without: str) -> Finding:
    path = condor.settings.get(knob, "")
    if not path:
        return Finding("HTCondor", State.MISSING, f"{knob} is not set: {without}; install 50-lark.conf")
    if not os.access(path, os.X_OK):
        return Finding("HTCondor", State.MISSING, f"{knob}: {path} is not there, or no program: {without}")
    return Finding("HTCondor", State.OK, f"{knob} is {path}")


def _service(settings: Settings, status: Mapping[str, Any] | None) -> Iterator[Finding]:
    if status is None:
        words = f"the worker service does not answer at {settings.socket}: systemctl status lark-worker"
        yield Finding("service", State.MISSING, words)
        return
    problems = [str(problem) for problem in status["problems"]]
    for problem in problems:
        yield Finding("service", State.WARNING, problem)
    if not problems:
        yield Finding("service", State.OK, f"runs, with {status['jobs']} jobs and without problems")
