"""Every setting of the worker service in one table: the fields of :class:`Settings`, with meaning and accepted values.

A field ``bridge`` is the environment variable ``LARK_WORKER_BRIDGE``. Durations are seconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Annotated, Final

from lark_common.runs import Address, Network
from lark_common.settings_table import About, Setting, SettingsTable, lines_of

PREFIX: Final = "LARK_WORKER_"
# The settings that the service's unit reads.
FILE: Final = Path("/etc/lark/worker.env")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a worker service."""

    url: Annotated[
        str,
        About(
            "The controller: `http://…`, `https://…` or `unix:/path`; of several controllers all, separated by commas "
            "or spaces."
        ),
    ] = "http://127.0.0.1:8080"
    token_file: Annotated[
        Path | None,
        About(
            "File with the bearer token (scope hook), mode 0600: one that group or others may read is refused. "
            "Empty: no token is sent."
        ),
    ] = None
    ca_file: Annotated[
        Path | None, About("PEM file of the authorities that may have signed the controller's certificate.")
    ] = None
    cert_file: Annotated[
        Path | None,
        About("Certificate (PEM) that is shown to the controller, with this host's name, where that asks for one."),
    ] = None
    key_file: Annotated[Path | None, About("Private key (PEM) of that certificate, mode 0600.")] = None
    socket: Annotated[Path, About("The Unix socket on which hooks and wrapper ask.")] = Path(
        "/run/lark-worker/worker.sock"
    )
    state_dir: Annotated[
        Path, About("Directory of the records of jobs and of reports that the controller does not have yet.")
    ] = Path("/var/lib/lark-worker")
    bridge: Annotated[str, About("The Open vSwitch bridge that jobs are attached to.")] = "br0"
    ovs_database: Annotated[str, About("Open vSwitch's database.")] = "unix:/run/openvswitch/db.sock"
    networks: Annotated[
        tuple[Network, ...],
        About(
            "Comma-separated networks that job addresses are in; what length an address gets, and what is on the link."
        ),
    ] = ()
    gateways: Annotated[
        tuple[Address, ...], About("Comma-separated routers of those networks, at most one for IPv4 and one for IPv6.")
    ] = ()
    gateway_wan: Annotated[
        str,
        About("The interface that leads outside, on a Linux gateway of external addresses: `lark-worker gateway`."),
    ] = ""
    gateway_pools: Annotated[
        tuple[Network, ...],
        About("Comma-separated IPv4 networks of the external addresses of that gateway; its jobs are in `networks`."),
    ] = ()
    nameservers: Annotated[
        tuple[Address, ...], About("Comma-separated DNS servers for jobs. Empty: jobs use the worker's resolv.conf.")
    ] = ()
    linux_bridge: Annotated[
        str, About("The Linux bridge of `bridge` jobs where the slot's ad names none (BridgeInterface).")
    ] = ""
    nat_networks: Annotated[
        tuple[Network, ...],
        About(
            "Comma-separated private networks of this worker's `nat` jobs, at most one for IPv4 and one for IPv6 "
            "(NAT66). The first address of each is the worker's."
        ),
    ] = ()
    external_interface: Annotated[
        str, About("The interface by which what `nat` jobs send leaves, masqueraded; needed for them.")
    ] = ""
    connections: Annotated[
        int,
        About(
            "Connections that a `nat` job may have open at a time, and a `bridge` job that may only call or only "
            "be called; at a Linux gateway an external address from outside, and a job its own. A sixteenth of that "
            "may be opened a second, for ever. 0: any number.",
            "connections",
            0,
            1000000,
        ),
    ] = 4096
    ovs_connections: Annotated[
        int,
        About(
            "Connections that Open vSwitch tracks for all one-way jobs together. While it is half of that, a job "
            "with more than `CONNECTIONS` loses its own. 0: any number.",
            "connections",
            0,
            1000000,
        ),
    ] = 65536
    mtu: Annotated[int, About("MTU of a job's interface.", "bytes", 1280, 65535)] = 1500
    job_sysctls: Annotated[
        tuple[str, ...],
        About(
            "Comma-separated kernel parameters of each job's namespace, `NAME=VALUE` with a NAME as "
            "`net.ipv4.tcp_rmem`; those that the kernel has for the whole machine alone are not among them."
        ),
    ] = ()
    network_type: Annotated[
        str, About("NetworkType of jobs where the slot's ad has none.", choices=("ovs_bridge", "bridge", "nat", "none"))
    ] = "ovs_bridge"
    address_type: Annotated[
        str, About("AddressType of jobs where the slot's ad has none.", choices=("controller", "static", "dhcp"))
    ] = "controller"
    script: Annotated[
        Path | None,
        About("Program that may change the machine attributes of a job; both ads on standard input, see below."),
    ] = None
    namespace_script: Annotated[
        Path | None,
        About("Program that is run at the start and at the end of each job's namespace; both ads on standard input."),
    ] = None
    on_failure: Annotated[
        str,
        About("Outcome for a job when the controller cannot be reached.", choices=("start", "hold", "idle")),
    ] = "idle"
    wait: Annotated[float, About("Time that a start waits for the switches' confirmation.", "seconds", 0, 30)] = 2.0
    timeout: Annotated[
        float,
        About(
            "Time that a start waits for the controller, for all of several together; with `WAIT` less than the hook "
            "waits.",
            "seconds",
            0.1,
            60,
        ),
    ] = 4.0
    dhcp_timeout: Annotated[
        float, About("Time that the start of a job with AddressType dhcp waits for its lease.", "seconds", 0.1, 60)
    ] = 6.0
    dhcp_on_failure: Annotated[
        str,
        About(
            "Outcome for a job when no DHCP server gives an address. `start`: it runs, and is given one later.",
            choices=("start", "hold", "idle"),
        ),
    ] = "idle"
    counter_seconds: Annotated[
        float,
        About(
            "Interval of reports to the controller of the use by `bridge` and `nat` jobs, and of all jobs' transfers; "
            "0 for at their end alone.",
            "seconds",
            0,
            3600,
        ),
    ] = 30.0
    accounting: Annotated[
        str,
        About(
            "The jobs whose network use is reported to HTCondor. `requested`: those with NetworkAccounting = true.",
            choices=("all", "requested", "none"),
        ),
    ] = "all"
    usage_interval: Annotated[
        float, About("Interval in which the counters of jobs' interfaces are read.", "seconds", 0.1, 3600)
    ] = 10.0
    metrics_listen: Annotated[
        str,
        About(
            "Address and port on which `/metrics` is served to Prometheus, such as `0.0.0.0:9464` or `[::]:9464`; "
            "it needs no token. Empty: it is not served."
        ),
    ] = ""
    prefix: Annotated[str, About("Begins the name of every interface and namespace; 1 to 4 letters, digits.")] = "lark"
    startd_address_file: Annotated[
        Path | None, About("File with the startd's address. Empty: as in HTCondor's configuration.")
    ] = None
    starters: Annotated[tuple[str, ...], About("Comma-separated paths of condor_starter.")] = (
        "/usr/sbin/condor_starter",
        "/usr/libexec/condor/condor_starter",
    )
    startds: Annotated[tuple[str, ...], About("Comma-separated paths of condor_startd.")] = ("/usr/sbin/condor_startd",)
    log_level: Annotated[
        str, About("The least important events that are logged.", choices=("debug", "info", "warning", "error"))
    ] = "info"
    log_format: Annotated[
        str, About("`text`: key=value lines; `json`: one object a line.", choices=("text", "json"))
    ] = "text"


def table() -> tuple[Setting, ...]:
    """Every setting, in the order in which they are documented."""
    return _TABLE.rows


def load(environ: Mapping[str, str]) -> Settings:
    """Settings from the environment. Raises SettingError naming every one that cannot be used, one a line."""
    return _TABLE.load(environ)


def with_file(environ: Mapping[str, str], file: Path = FILE) -> dict[str, str]:
    """The environment with the settings of the service's file below it, so that commands have what the service has.

    Where the file is absent or may not be read, the environment alone.
    """
    try:
        text = file.read_text("utf-8", "replace")
    except OSError:
        return dict(environ)
    return {**{name: value for name, value in lines_of(text).items() if name.startswith(PREFIX)}, **environ}


# One parameter of a namespace, such as net.ipv4.tcp_rmem=4096 131072 67108864.
SYSCTL: Final = re.compile(r"net\.(core|ipv4|ipv6)\.([a-z0-9_]{1,64})=([0-9]{1,20}(?: [0-9]{1,20}){0,3})")


def address_and_port(text: str) -> tuple[str, int]:
    """The address and the port of ``ADDRESS:PORT``. Raises ValueError."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise ValueError(text)
    return str(ip_address(host.removeprefix("[").removesuffix("]"))), int(port)


def _together(settings: Settings) -> Iterator[str]:
    """Mistakes that a value alone, or one of several, makes."""
    if not re.fullmatch(r"[a-z][a-z0-9]{0,3}", settings.prefix):
        yield f"{PREFIX}PREFIX={settings.prefix}: accepted: 1 to 4 small letters and digits, a letter first"
    for name in ("gateways", "nat_networks"):
        values = getattr(settings, name)
        if len({value.version for value in values}) != len(values):
            yield f"{PREFIX}{name.upper()}: accepted: at most one of each IP version"
    if any(network.num_addresses < 4 for network in settings.nat_networks):
        yield f"{PREFIX}NAT_NETWORKS: accepted: networks of 4 addresses or more, since the worker has one itself"
    if settings.metrics_listen:
        try:
            address_and_port(settings.metrics_listen)
        except ValueError:
            yield f"{PREFIX}METRICS_LISTEN={settings.metrics_listen}: accepted: ADDRESS:PORT, such as 0.0.0.0:9464"
    for word in settings.job_sysctls:
        if not SYSCTL.fullmatch(word):
            yield f"{PREFIX}JOB_SYSCTLS={word}: accepted: net.core.NAME=VALUE, net.ipv4.NAME=VALUE, net.ipv6.NAME=VALUE"
    # A bridge's name is part of a file's, too.
    for name in ("external_interface", "linux_bridge", "bridge", "gateway_wan"):
        if not re.fullmatch(r"[!#-.0-~]{0,15}", getattr(settings, name)):
            yield f"{PREFIX}{name.upper()}={getattr(settings, name)}: accepted: an interface's name"


def _network(text: str, _about: About) -> Network:
    return ip_network(text)


def _address(text: str, _about: About) -> Address:
    return ip_address(text)


_TABLE: Final = SettingsTable(
    Settings, PREFIX, readers={Network: _network, Address: _address}, together=_together, closed=True
)
