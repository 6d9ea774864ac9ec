"""``lark run``: the whole controller in one process, until it is told to stop."""

from __future__ import annotations

import gc
import signal
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

from lark_common import log
from lark_common.errors import SettingError
from lark_common.signals import Signals
from lark_controller.api.metrics import Metrics
from lark_controller.cli.open_files import raise_open_files
from lark_controller.controller import Controller
from lark_controller.htcondor.watch import PoolOptions
from lark_controller.rest.app import create_app
from lark_controller.rest.server.waitress_server import Server
from lark_controller.rest.tokens import Tokens
from lark_controller.services.account_writer import Keeping
from lark_controller.services.policy_file import PolicyFile, first_policy
from lark_controller.settings import Settings
from lark_controller.store import Store
from lark_controller.switches.openflow.connection import OpenFlowOptions
from lark_controller.switches.ovsdb.driver import OvsdbOptions

# How long a thread calculates before another that waits gets its turn.
_SWITCH_SECONDS: Final = 0.001


def run(settings: Settings) -> int:
    """Run until SIGTERM or SIGINT; SIGHUP reads the policy file again. Returns the exit status.

    Raises SettingError, PolicyError or StoreError where it cannot start.
    """
    raise_open_files()
    with log.in_background():
        return _serve(settings)


def _serve(settings: Settings) -> int:
    signals = Signals()
    # A start may take a while with many jobs; a SIGHUP in the meantime must not end it.
    signals.catch(signal.SIGHUP)
    service = Service(settings)
    signals.catch(signal.SIGTERM, signal.SIGINT)
    service.start()
    try:
        while signals.wait() == signal.SIGHUP:
            service.policy_file.reload()
    finally:
        log.event("stopping")
        service.stop()
    return 0


class Service:
    """Controller, REST server and policy file, wired by the settings."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        if settings.database_url.startswith("sqlite"):
            _make_state_dir(settings.state_dir)
        self.store = _opened(settings.database_url)
        self.metrics = Metrics()
        self.controller = Controller(
            self.store,
            first_policy(self.store, settings.policy_file),
            openflow_options(settings),
            self.metrics,
            lease_seconds=settings.lease_seconds,
            check_seconds=settings.check_seconds,
            retention_days=settings.retention_days,
            pool=pool_options(settings),
            ovsdb=ovsdb_options(settings),
            keeping=Keeping(
                read_seconds=settings.counter_seconds,
                write_seconds=settings.usage_write_seconds,
                minute_days=settings.usage_minute_days,
                hour_days=settings.usage_hour_days,
                day_days=settings.usage_day_days,
                job_days=settings.usage_job_days,
            ),
        )
        _warn_of_shared_keys(settings)
        tokens = Tokens(settings.tokens_file)
        self.server = Server(create_app(self.controller, settings, tokens, self.metrics), settings, tokens.of)
        self.policy_file = PolicyFile(settings.policy_file, self.controller.policy.put)

    def start(self) -> None:
        """Load the directory, listen for switches, then answer REST."""
        # Of what a start loads nothing is garbage: each collection would go through all of it.
        gc.collect()
        gc.disable()
        try:
            self.controller.start()
        finally:
            gc.enable()
        # Objects loaded by now live as long as the process; the garbage collector need not visit them again and again.
        gc.freeze()
        # A full collection stops all threads for 50 to 100 ms with 1,000 switches: one for every 70,000 objects that
        # come to stay, as Python has it, would show in the latency of posts. One for every million is enough, since
        # hardly anything here refers to itself.
        gc.set_threshold(5_000, 10, 20)
        # A thread that answers a request waits so long for one that calculates, again at each of its system calls: with
        # Python's own 5 ms a flood of messages on the switches' thread made an answer take 0.1 s.
        sys.setswitchinterval(_SWITCH_SECONDS)
        self.server.start()
        self.policy_file.start()
        self.controller.health.needs(*self.policy_file.threads)
        log.event(
            "running",
            openflow=_joined(self.controller.openflow_addresses),
            openflow_tls=_joined(self.controller.openflow_tls_addresses) or None,
            rest=",".join(map(str, self.server.addresses)),
        )

    def stop(self) -> None:
        """Stop answering, then the switches' connections, then the store."""
        self.policy_file.stop()
        self.controller.release()
        self.server.stop()
        self.controller.stop()
        self.store.close()


def _opened(url: str) -> Store:
    """The store, claimed and with its tables. Raises StoreError."""
    store = Store.open(url)
    try:
        if not store.claim():
            log.event(
                "another controller uses this database, or has a moment ago",
                level=log.WARNING,
                hint="switches that hear two controllers lose the flows of each other's jobs",
            )
        store.migrate()
    except BaseException:
        store.close()
        raise
    return store


def openflow_options(settings: Settings) -> OpenFlowOptions:
    """The OpenFlow listener by the settings."""
    return OpenFlowOptions(
        listen=tuple((each.host, each.port) for each in settings.openflow_listen),
        tls_listen=tuple((each.host, each.port) for each in settings.openflow_tls_listen),
        cert=_text(settings.openflow_tls_cert),
        key=_text(settings.openflow_tls_key),
        ca=_text(settings.openflow_tls_ca),
        echo_interval=settings.echo_interval,
        echo_timeout=settings.switch_timeout,
        handshake_timeout=settings.switch_timeout,
        write_timeout=settings.switch_timeout,
        outbox_bytes=settings.outbox_bytes,
        apply_timeout=settings.switch_timeout,
        packet_in_rate=settings.packet_in_rate,
    )


def pool_options(settings: Settings) -> PoolOptions | None:
    """The options for reading the pool, None where it is not read."""
    if not settings.collector:
        return None
    return PoolOptions(
        settings.collector,
        interval=settings.collector_interval,
        timeout=settings.collector_timeout,
        margin=settings.collector_margin,
        ad_seconds=settings.collector_ad_seconds,
    )


def ovsdb_options(settings: Settings) -> OvsdbOptions:
    """The way to switches' databases by the settings."""
    return OvsdbOptions(settings.ovsdb, settings.openflow_tls_key, settings.openflow_tls_cert, settings.openflow_tls_ca)


def _warn_of_shared_keys(settings: Settings) -> None:
    for key in (settings.rest_tls_key, settings.openflow_tls_key):
        # A group may be that of all services with the certificate; a file that is not there is missed when it is used.
        with suppress(OSError):
            if key is not None and key.stat().st_mode & stat.S_IRWXO:
                log.event("a private key can be read by others", level=log.WARNING, file=key, hint=f"chmod o= {key}")


def _make_state_dir(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(f"LARK_STATE_DIR={path}: cannot be made: {error.strerror}") from None


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _joined(addresses: tuple[tuple[str, int], ...]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in addresses)
