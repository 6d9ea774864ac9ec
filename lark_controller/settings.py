"""Every setting in one table: the fields of :class:`Settings`, each with its meaning, unit and accepted values.

A field ``lease_seconds`` is the environment variable ``LARK_LEASE_SECONDS`` and the option ``--lease-seconds``.
Durations are seconds.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

from lark_common.settings_table import About, Setting, SettingsTable

PREFIX: Final = "LARK_"
# Variables of scripts and the command line under the same prefix.
CLIENT_VARIABLES: Final = frozenset({"LARK_URL", "LARK_TOKEN", "LARK_TOKEN_FILE", "LARK_CA"})
OVSDB_PATTERN: Final = r"unix:/\S+|(ssl|tcp):(\{host\}|\[[0-9a-fA-F:]+\]|[\w.-]+):[0-9]{1,5}"


@dataclass(frozen=True, slots=True)
class Listen:
    """The address at which a server listens: a TCP address and port, or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: str = ""

    @property
    def loopback(self) -> bool:
        """True where no other machine can reach it."""
        return bool(self.path) or self.host == "localhost" or ipaddress.ip_address(self.host).is_loopback

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


Listens = tuple[Listen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a controller. The defaults are those of one controller on one machine."""

    state_dir: Annotated[Path, About("Directory of the embedded database; made with mode 0700 if absent.")] = Path(
        "/var/lib/lark"
    )
    database_url: Annotated[
        str,
        About(
            "SQLAlchemy URL of the database (`sqlite:///…` or `postgresql+psycopg://…`). "
            "Empty: SQLite, `lark.db` in the state directory."
        ),
    ] = field(default="", repr=False)
    policy_file: Annotated[Path, About("The policy to run; read at start, on SIGHUP, and when the file changes.")] = (
        Path("/etc/lark/policy.yaml")
    )
    instance_name: Annotated[
        str, About("The name of this controller among several on one database. Empty: the name of its machine.")
    ] = ""
    instance_url: Annotated[
        str,
        About(
            "The URL of this controller's REST API as others reach it, which those that stand by name. "
            "Empty: the first address of `LARK_REST_LISTEN`, with the machine's name where that is every address."
        ),
    ] = ""
    instance_ca: Annotated[
        Path | None,
        About(
            "Authorities (PEM) of the other controllers' REST certificates, for requests that one that stands by hands "
            "on to the active one. Empty: those in `LARK_OPENFLOW_TLS_CA`, or, without that, those that the machine "
            "trusts."
        ),
    ] = None
    openflow_listen: Annotated[
        Listens,
        About(
            "Comma-separated addresses for OpenFlow over plain TCP; empty for none. Plain OpenFlow has no "
            "authentication: whoever reaches the port can pose as a switch, so other machines get TLS or a network of "
            "their own."
        ),
    ] = (Listen("127.0.0.1", 6653),)
    openflow_tls_listen: Annotated[
        Listens, About("Comma-separated addresses for OpenFlow over TLS; needs certificate, key and CA.")
    ] = ()
    openflow_tls_cert: Annotated[Path | None, About("Certificate (PEM) that the controller shows to switches.")] = None
    openflow_tls_key: Annotated[Path | None, About("Private key (PEM) of that certificate.")] = None
    openflow_tls_ca: Annotated[Path | None, About("CA certificates (PEM) that switches' own must chain to.")] = None
    ovsdb: Annotated[
        str,
        About(
            "Addresses of switches' OVSDB servers, for queues: `ssl:{host}:6640`, `tcp:{host}:6640` (`{host}`: the "
            "host from which the switch has connected) or `unix:/path`; empty for none. Over ssl the controller shows "
            "the certificate that it shows to switches."
        ),
    ] = ""
    rest_listen: Annotated[
        Listens,
        About("Comma-separated addresses of the REST API: `host:port` or `unix:/path`.", unix=True),
    ] = (Listen("127.0.0.1", 8080),)
    rest_tls_cert: Annotated[
        Path | None, About("Certificate (PEM) of the REST API; with it every TCP address of the API uses TLS.")
    ] = None
    rest_tls_key: Annotated[Path | None, About("Private key (PEM) of that certificate.")] = None
    rest_tls_ca: Annotated[
        Path | None,
        About(
            "Authorities (PEM) of workers' certificates; with them a hook's token is good for the hosts that the "
            "certificate names, and over TCP for none without one."
        ),
    ] = None
    tokens_file: Annotated[
        Path, About("The API's bearer tokens (their hashes), made by `lark token`; read again when it changes.")
    ] = Path("/etc/lark/tokens.yaml")
    join_settings: Annotated[
        Path | None,
        About(
            "Settings (`LARK_WORKER_…`) of workers that join by a token of `lark join`; read at each join. Empty: no "
            "worker may join."
        ),
    ] = None
    join_key: Annotated[
        Path | None,
        About(
            "Private key (PEM) of the first authority in `LARK_OPENFLOW_TLS_CA`, with which certificates of workers "
            "that join are signed. Empty: none is signed, and workers bring theirs."
        ),
    ] = None
    jwt_file: Annotated[
        Path | None,
        About(
            "Issuers whose JWTs the API accepts beside its own tokens (OIDC providers, SciTokens, HTCondor's "
            "IDTOKENS), and what their claims allow; read again when it changes. Empty: none."
        ),
    ] = None
    munge_socket: Annotated[
        Path | None,
        About(
            "Socket of the munged of this host, whose credentials the API accepts from users beside tokens, for their "
            "own jobs (`/run/munge/munge.socket.2`). Empty: none is accepted."
        ),
    ] = None
    dns_server: Annotated[
        Listens,
        About(
            "Address and port of the DNS server that takes updates (RFC 2136) of names of external addresses "
            "(`192.0.2.53:53`). Empty: such names stay pending."
        ),
    ] = ()
    dns_key: Annotated[
        Path | None,
        About(
            "Key (TSIG) with which these updates are signed, as `tsig-keygen` writes it; read at each update. The "
            "controller's user alone should be able to read it."
        ),
    ] = None
    scitags_registry: Annotated[
        Path | None,
        About(
            "Registry of experiments and activities (JSON, in the form of the SciTags project), for names in the "
            "policy's `scitags` rules; read again when it changes. Empty: rules have numbers."
        ),
    ] = None
    lease_seconds: Annotated[float, About("Time for which a job lives without renewal.", "seconds", 30, 604800)] = 900.0
    rest_threads: Annotated[
        int, About("Threads that answer REST requests; at least 8 more than waiting posts.", "threads", 9, 1024)
    ] = 272
    waiting_posts: Annotated[
        int,
        About(
            "Requests that may wait for switches at a time; a post beyond it is answered at once.",
            "requests",
            1,
            1000,
        ),
    ] = 256
    waiting_workers: Annotated[
        int,
        About(
            "Workers that may wait for changes of their rules at a time, on threads beside `LARK_REST_THREADS`; "
            "one beyond it is answered at once, and asks again. A quarter of these places is for those who wait for "
            "changes of links and paths.",
            "requests",
            1,
            4096,
        ),
    ] = 64
    wait_limit: Annotated[float, About("The longest `?wait=` that a post may ask for.", "seconds", 0, 600)] = 30.0
    max_ads_bytes: Annotated[
        int, About("The largest body of job and machine ad, or exit ad.", "bytes", 1024, 16777216)
    ] = 262144
    max_body_bytes: Annotated[
        int, About("The largest body of any request; in effect the largest policy.", "bytes", 1024, 67108864)
    ] = 4194304
    rate_limit: Annotated[
        float, About("Requests a second that each token may make on average.", "requests/s", 0.1, 1000000)
    ] = 1000.0
    rate_burst: Annotated[int, About("Requests that a token may make at once.", "requests", 1, 1000000)] = 2000
    switch_timeout: Annotated[
        float, About("Time without an answer after which a switch counts as away.", "seconds", 0.1, 600)
    ] = 5.0
    echo_interval: Annotated[float, About("Interval of echo requests to a silent switch.", "seconds", 0.1, 3600)] = 5.0
    outbox_bytes: Annotated[
        int, About("The most that is queued for a switch that does not read.", "bytes", 65536, 1073741824)
    ] = 4194304
    packet_in_rate: Annotated[
        float,
        About(
            "PacketIns of each switch that are handled on average (20,000 at once); others are dropped, those of "
            "ports that ask seldom last. ICMP errors about external addresses have a tenth of that beside it.",
            "PacketIns/s",
            1,
            1000000,
        ),
    ] = 2000.0
    check_seconds: Annotated[
        float,
        About(
            "Interval in which each switch is dumped and compared in full, longer where that would take more than a "
            "quarter of the time; 0 for never.",
            "seconds",
            0,
            86400,
        ),
    ] = 60.0
    retention_days: Annotated[
        float, About("Time for which ended jobs and the audit trail are kept; 0 for ever.", "days", 0, 36500)
    ] = 90.0
    collector: Annotated[
        str,
        About(
            "HTCondor's collector (`host`, `host:port`, several with commas between), with whose ads the directory is "
            "compared; empty for no comparison."
        ),
    ] = ""
    collector_interval: Annotated[float, About("Interval of the queries of the collector.", "seconds", 1, 3600)] = 60.0
    collector_timeout: Annotated[float, About("Time limit for an answer of the collector.", "seconds", 1, 600)] = 30.0
    collector_margin: Annotated[
        float,
        About(
            "The most that the clocks of controller, collector and workers differ and ads are late; "
            "a contradiction that may be a late ad counts against a job only after that time.",
            "seconds",
            1,
            3600,
        ),
    ] = 60.0
    collector_ad_seconds: Annotated[
        float,
        About(
            "The greatest age of a slot's ad: twice the startds' UPDATE_INTERVAL. "
            "For that time after a collector's start, a missing slot does not count as gone.",
            "seconds",
            1,
            86400,
        ),
    ] = 600.0
    counter_seconds: Annotated[
        float,
        About(
            "Interval in which each switch's counters of jobs, and a core's of groups, are read; 0 for never.",
            "seconds",
            0,
            3600,
        ),
    ] = 10.0
    usage_write_seconds: Annotated[
        float, About("Interval in which the use by jobs is written to the database.", "seconds", 0.1, 3600)
    ] = 60.0
    usage_minute_days: Annotated[
        float, About("Time for which use is kept by the minute; 0 for ever.", "days", 0, 36500)
    ] = 2.0
    usage_hour_days: Annotated[
        float, About("Time for which use is kept by the hour; 0 for ever.", "days", 0, 36500)
    ] = 92.0
    usage_day_days: Annotated[float, About("Time for which use is kept by the day; 0 for ever.", "days", 0, 36500)] = (
        1830.0
    )
    usage_job_days: Annotated[
        float, About("Time for which the use of each ended job is kept; 0 for ever.", "days", 0, 36500)
    ] = 35.0
    log_level: Annotated[
        str, About("The least important events that are logged.", choices=("debug", "info", "warning", "error"))
    ] = "info"
    log_format: Annotated[
        str, About("`text`: key=value lines; `json`: one object a line.", choices=("text", "json"))
    ] = "text"


def table() -> tuple[Setting, ...]:
    """Every setting, in the order in which they are documented."""
    return _TABLE.rows


def load(environ: Mapping[str, str], overrides: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment; ``overrides`` (by field name) win over it.

    Raises:
        SettingError: naming every setting that cannot be used, one a line, and what is accepted.
    """
    settings = _TABLE.load(environ, overrides)
    if settings.database_url:
        return settings
    return replace(settings, database_url=f"sqlite:///{(settings.state_dir / 'lark.db').absolute()}")


def _listen(text: str, about: About) -> Listen:
    unix = about.unix
    if text.startswith("unix:"):
        if not unix or not text.startswith("unix:/"):
            raise ValueError(f"{text}: accepted: host:port" + (" or unix:/absolute/path" if unix else ""))
        return Listen(path=text.removeprefix("unix:"))
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    accepted = "accepted: address:port, with an IPv6 address in brackets" + (", or unix:/path" if unix else "")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535 or (":" in bare and bare == host):
        raise ValueError(f"{text}: {accepted}")
    if bare != "localhost":
        try:
            ipaddress.ip_address(bare)
        except ValueError:
            raise ValueError(f"{text}: {accepted}; {bare or 'the address'} is no IP address") from None
    return Listen(bare, int(port))


def _together(settings: Settings) -> Iterator[str]:
    """Mistakes that only several settings together make."""
    if settings.rest_threads < settings.waiting_posts + 8:
        least = settings.waiting_posts + 8
        yield (
            f"LARK_REST_THREADS={settings.rest_threads}: at least LARK_WAITING_POSTS + 8 = {least} "
            "is accepted, so that waiting posts never delay other requests"
        )
    if (settings.rest_tls_cert is None) != (settings.rest_tls_key is None):
        yield "LARK_REST_TLS_CERT and LARK_REST_TLS_KEY: accepted only together"
    if settings.rest_tls_ca is not None and settings.rest_tls_cert is None:
        yield "LARK_REST_TLS_CA: needs LARK_REST_TLS_CERT and LARK_REST_TLS_KEY"
    tls = (settings.openflow_tls_cert, settings.openflow_tls_key, settings.openflow_tls_ca)
    if settings.openflow_tls_listen and None in tls:
        yield "LARK_OPENFLOW_TLS_LISTEN: needs LARK_OPENFLOW_TLS_CERT, LARK_OPENFLOW_TLS_KEY and LARK_OPENFLOW_TLS_CA"
    if settings.join_settings is not None and (settings.rest_tls_cert is None or not settings.openflow_tls_listen):
        yield "LARK_JOIN_SETTINGS: needs LARK_REST_TLS_CERT and LARK_OPENFLOW_TLS_LISTEN, since workers join over TLS"
    if settings.join_key is not None and settings.join_settings is None:
        yield "LARK_JOIN_KEY: needs LARK_JOIN_SETTINGS, without which no worker may join"
    if len(settings.dns_server) > 1:
        yield "LARK_DNS_SERVER: one address is accepted"
    if bool(settings.dns_server) != (settings.dns_key is not None):
        yield "LARK_DNS_SERVER and LARK_DNS_KEY: accepted only together"
    if settings.ovsdb and not re.fullmatch(OVSDB_PATTERN, settings.ovsdb):
        yield f"LARK_OVSDB={settings.ovsdb}: accepted: ssl:{{host}}:PORT, tcp:{{host}}:PORT or unix:/absolute/path"
    if settings.ovsdb.startswith("ssl:") and None in tls:
        yield "LARK_OVSDB=ssl:…: needs LARK_OPENFLOW_TLS_CERT, LARK_OPENFLOW_TLS_KEY and LARK_OPENFLOW_TLS_CA"
    if not settings.openflow_listen and not settings.openflow_tls_listen:
        yield "LARK_OPENFLOW_LISTEN: no switch can connect without it or LARK_OPENFLOW_TLS_LISTEN"
    if not settings.rest_listen:
        yield "LARK_REST_LISTEN: at least one address is needed"
    if settings.max_ads_bytes > settings.max_body_bytes:
        yield f"LARK_MAX_ADS_BYTES={settings.max_ads_bytes}: at most LARK_MAX_BODY_BYTES = {settings.max_body_bytes}"


_TABLE: Final = SettingsTable(Settings, PREFIX, readers={Listen: _listen}, together=_together, others=CLIENT_VARIABLES)
