"""``lark run``: the whole controller in one process, until a signal stops it."""

from __future__ import annotations

import gc
import ipaddress
import os
import secrets
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar

from lark_common import log
from lark_common.errors import SettingError, StoreError
from lark_common.signals import Signals
from lark_common.systemd import Notices, boot_id
from lark_common.threads import TurnThread
from lark_controller import __version__
from lark_controller.api.instances import WORDS, Identity, Term, Why
from lark_controller.api.metrics import Metrics
from lark_controller.cli.allocator import bound_arenas
from lark_controller.cli.garbage import Garbage
from lark_controller.cli.open_files import raise_open_files
from lark_controller.cluster.controls import MemberControls
from lark_controller.cluster.member import Member
from lark_controller.controller import Controller
from lark_controller.htcondor.watch import PoolOptions
from lark_controller.rest import certificate_ends
from lark_controller.rest.app import create_app
from lark_controller.rest.forwarding.active import ActiveController
from lark_controller.rest.forwarding.origin import Head, Origin, opened
from lark_controller.rest.forwarding.questions import COUNTERS, SWITCHES, Questions
from lark_controller.rest.identities.identities import Identities, known_callers
from lark_controller.rest.joins.former_files import FormerFiles
from lark_controller.rest.joins.join_tokens import JoinTokens
from lark_controller.rest.joins.joined_workers import JoinedWorkers
from lark_controller.rest.joins.joining import Joining
from lark_controller.rest.server.waitress_server import Server
from lark_controller.rest.tokens import Tokens
from lark_controller.services.account_writer import Keeping
from lark_controller.services.counter_reading import CounterReading
from lark_controller.services.directory_copy import DirectoryCopy
from lark_controller.services.dns_updates import DnsUpdates
from lark_controller.services.handed_on_switches import HandingOn
from lark_controller.services.policy_file import PolicyFile, first_policy
from lark_controller.settings import Listen, Settings
from lark_controller.store import Store
from lark_controller.switches.fence import Fence
from lark_controller.switches.openflow.connection import OpenFlowOptions
from lark_controller.switches.openflow.loop_thread import KeptSwitches
from lark_controller.switches.openflow.relays import Seal
from lark_controller.switches.ovsdb.driver import OvsdbOptions

T = TypeVar("T")

# How long a thread calculates before another that waits gets its turn.
_SWITCH_SECONDS: Final = 0.001
# The exit status of a controller that has handed over: EX_TEMPFAIL. Started again, it stands by.
HANDED_OVER: Final = 75
# The value that a service hands its main thread, beside the numbers of signals.
WON: Final = -1
DRAINED: Final = -2
# Seconds that a drained controller gives another to take over, before it may be started again.
_SUCCESSOR_SECONDS: Final = 10.0
# Seconds in which a thread that asks the active controller ends the question that is under way.
_ASKING_SECONDS: Final = 5.0


def run(settings: Settings) -> int:
    """Stand by until this is the active controller, then run until SIGTERM or SIGINT; SIGHUP reads the policy file
    again. Returns the exit status.

    Raises SettingError, PolicyError or StoreError where it cannot start.
    """
    bound_arenas()
    raise_open_files()
    with log.in_background():
        return _serve(settings)


def _serve(settings: Settings) -> int:
    signals = Signals()
    # A start may take a while with many jobs; a SIGHUP in the meantime must not end it.
    signals.catch(signal.SIGHUP)
    service = Service(settings, notify=signals.send, lost=_end_at_once)
    signals.catch(signal.SIGTERM, signal.SIGINT)
    notices = Notices(service.alive)
    service.stand_by()
    why, reloads = Why.RELEASED, False
    try:
        if not service.won:
            notices.status(service.member.standing().sentence)
            notices.ready()
        while (received := signals.wait()) not in (signal.SIGTERM, signal.SIGINT):
            if received == WON:
                service.serve()
                notices.status(f"active, generation {service.term.generation}")
                notices.ready()
            elif received == DRAINED:
                why = Why.DRAINED
                break
            else:
                # One that stands by reads the file when it takes over.
                reloads = service.won
            if reloads and service.serves:
                service.policy_file.reload()
                reloads = False
    finally:
        log.event("stopping")
        notices.stopping()
        service.stop(why)
    return HANDED_OVER if why is Why.DRAINED else 0


def _end_at_once(sentence: str) -> None:
    """End the process, and with it everything that it might still write."""
    log.event("fenced: this controller ends, and stands by once it is started again", level=log.ERROR, reason=sentence)
    log.flush()
    os._exit(HANDED_OVER)


class Service:
    """An instance: its place among the others, REST server, and, once it is the active one, controller and policy file.

    ``notify`` is called with :data:`WON` when this instance is to :meth:`serve`, and :data:`DRAINED` when it is to
    :meth:`stop`; ``lost`` when another has taken over: then nothing of it may go on. Both on any thread.
    """

    def __init__(
        self,
        settings: Settings,
        notify: Callable[[int], None] = lambda _number: None,
        lost: Callable[[str], None] = lambda _sentence: None,
    ) -> None:
        self.settings = settings
        if settings.database_url.startswith("sqlite"):
            _make_state_dir(settings.state_dir)
        self.store = Store.open(settings.database_url)
        self.metrics = Metrics()
        self._notify, self._lost = notify, lost
        self._kept: KeptSwitches | None = None
        # A switch may be wrong: what it shows is a reason to ask the database.
        self._fence = Fence(shown=lambda _sentence: self.member.look_now())
        self._terms: SimpleQueue[Term] = SimpleQueue()
        self._term: Term | None = None
        self._controller: Controller | None = None
        self._counters: CounterReading | None = None
        self._handing_on: HandingOn | None = None
        self._policy_file: PolicyFile | None = None
        self._garbage = Garbage()
        try:
            self.store.claim()
            _warn_of_shared_keys(settings)
            certificate_ends.note(settings, self.metrics, datetime.now(UTC))
            self.joined = JoinedWorkers(self.store.joins)
            joining = self._former_files = None
            if settings.join_settings is not None:
                joining = Joining(settings, JoinTokens(self.store.joins, self.joined))
                self._former_files = FormerFiles(settings.state_dir)
            tokens = Tokens(settings.tokens_file, joined=self.joined.find)
            self.identities = None if settings.jwt_file is None else Identities.of_file(settings.jwt_file)
            self.active = ActiveController(settings.instance_ca or settings.openflow_tls_ca)
            name = settings.instance_name or socket.gethostname()
            me = Identity(secrets.token_hex(8), name, "", __version__, boot_id())
            self.member = Member(
                self.store, me, won=self._won, lost=self._lose, drained=lambda: notify(DRAINED),
                moved=self._moved, tokens=tokens.digest, counters=self._lately, kept=self._keeps,
                reached=self._reached, copied=self._copied,
            )  # fmt: skip
            self.controls = MemberControls(self.member)
            app = create_app(self.controls, settings, tokens, self.metrics, self.identities, joining, self.active)
            self.server = Server(app, settings, known_callers(tokens, self.identities), self._origin)
            self._copy = None
            if not settings.database_url.startswith("sqlite"):
                self._copy = DirectoryCopy(self.store, self.metrics)
            self.member.me = replace(me, url=settings.instance_url or _own_url(settings, self.server.addresses[0]))
            if self._copy is not None:
                self._kept = kept = KeptSwitches(openflow_options(settings), self._fence, self._generation, self._seal)
                self.metrics.switches_kept.set_function(partial(getattr, kept, "count"))
                self.metrics.switches_handed_on.set_function(partial(getattr, kept, "handed_on"))
                standing = self.member.standing
                counters = Questions(self.active, standing, COUNTERS, me.id)
                self._counters = CounterReading(kept, counters.ask, self.metrics)
                switches = Questions(self.active, standing, SWITCHES, me.id)
                self._handing_on = HandingOn(kept, switches.ask, lambda: standing().url)
        except BaseException:
            self.store.close()
            raise

    @property
    def won(self) -> bool:
        """True once this instance has taken over, whether it serves yet or not."""
        return self._term is not None or not self._terms.empty()

    @property
    def serves(self) -> bool:
        """True from the end of :meth:`serve` on."""
        return self._policy_file is not None

    @property
    def term(self) -> Term:
        """The term in which this instance serves."""
        return _there(self._term)

    @property
    def controller(self) -> Controller:
        """The controller of an instance that serves."""
        return _there(self._controller)

    @property
    def policy_file(self) -> PolicyFile:
        """The watch of the policy file of an instance that serves."""
        return _there(self._policy_file)

    def start(self) -> None:
        """Stand by, wait until this is the active instance, and serve."""
        self.stand_by()
        self.serve()

    def stand_by(self) -> None:
        """Answer REST as one that stands by, and look at the term. Raises StoreError."""
        if self.identities is not None:
            self.identities.start()
        self.server.start()
        try:
            self.member.join()
            # Without a term that it has read, it could be no switch's slave.
            if self._kept is not None and not self.won and self._generation():
                self._kept.start()
                for asking in self._asking():
                    asking.start()
        except BaseException:
            self.member.leave()
            self.server.stop()
            self.store.close()
            raise
        self.joined.thread.start()
        if self._copy is not None and not self.won:
            self._copy.start()

    def serve(self) -> None:
        """Wait until this is the active instance; load the directory, listen for switches, then answer REST."""
        self._term = term = self._terms.get()
        self.metrics.takeovers.labels(str(term.why)).inc()
        if self._kept is not None:
            # First of all: from now on switches refuse the one before.
            self._kept.lead(term.generation)
        for asking in self._asking():
            # A takeover waits for nothing of it.
            asking.stop(0.0)
        try:
            self._start_controller(term)
        except BaseException:
            # Another may have what this one lacks.
            self.member.release(Why.RELEASED)
            self.member.leave()
            self.server.stop()
            raise
        self.controls.serve(self.controller)
        self.member.serves(self.controller.switches.expected)
        log.event(
            "running",
            openflow=_joined(self.controller.openflow_addresses),
            openflow_tls=_joined(self.controller.openflow_tls_addresses) or None,
            rest=",".join(map(str, self.server.addresses)),
            generation=term.generation,
        )

    def _origin(self, header: str, head: Head) -> Origin | None:
        standing = self.member.standing()
        return opened(standing.key, standing.generation, header, head) if standing.active else None

    def _seal(self) -> Seal:
        standing = self.member.standing()
        return Seal(standing.key, standing.generation, self.member.me.name)

    def _asking(self) -> tuple[TurnThread, ...]:
        """The threads that ask the active instance while this one stands by."""
        return tuple(each.thread for each in (self._counters, self._handing_on) if each is not None)

    def _moved(self) -> None:
        """Ends what is under way at the active instance: another has the term."""
        self.active.hang_up()
        if self._kept is not None:
            self._kept.end_relays()

    def _lately(self) -> int:
        return 0 if self._counters is None else self._counters.lately()

    def _keeps(self) -> int:
        return 0 if self._kept is None else self._kept.count + self._kept.handed_on

    def _reached(self, datapaths: Iterable[int]) -> int:
        return 0 if self._kept is None else self._kept.reached(datapaths)

    def _copied(self) -> float | None:
        return None if self._copy is None else self._copy.at

    def _generation(self) -> int:
        return self.member.standing().generation

    def _won(self, term: Term) -> None:
        self._terms.put(term)
        self._notify(WON)

    def _lose(self, sentence: str) -> None:
        self._fence.shut(sentence)
        self._lost(sentence)

    def _start_controller(self, term: Term) -> None:
        settings = self.settings
        self.store.migrate()
        self.member.share_key()
        if self._former_files is not None:
            self._former_files.take(self.store.joins, self.member.me.name)
        # The last changes of the one before, before the first request.
        self.joined.refresh()
        # Of SQLite's one controller the file is the same whatever the host is called.
        reader = "" if settings.database_url.startswith("sqlite") else self.member.me.name
        policy = first_policy(self.store, settings.policy_file, reader)
        self._controller = controller = Controller(
            self.store,
            policy,
            replace(openflow_options(settings), generation=term.generation),
            self.metrics,
            lease_seconds=settings.lease_seconds,
            check_seconds=settings.check_seconds,
            retention_days=settings.retention_days,
            pool=pool_options(settings),
            ovsdb=replace(ovsdb_options(settings), generation=term.generation),
            keeping=Keeping(
                read_seconds=settings.counter_seconds,
                write_seconds=settings.usage_write_seconds,
                minute_days=settings.usage_minute_days,
                hour_days=settings.usage_hour_days,
                day_days=settings.usage_day_days,
                job_days=settings.usage_job_days,
            ),
            fence=self._fence,
            scitags_registry=settings.scitags_registry,
            dns=DnsUpdates(next(iter(settings.dns_server), None), settings.dns_key),
            taken=None if self._copy is None else self._copy.take(policy),
            kept=self._kept,
        )
        policy_file = PolicyFile(settings.policy_file, partial(controller.policy.put, file_of=reader))
        # Of what a start loads nothing is garbage: each collection would go through all of it.
        gc.collect()
        gc.disable()
        try:
            controller.start(_takeover(term, self.member.me.name), term)
        except BaseException:
            gc.enable()
            raise
        # A thread that answers a request waits so long for one that calculates, again at each of its system calls: with
        # Python's own 5 ms a flood of messages on the switches' thread made an answer take 0.1 s.
        sys.setswitchinterval(_SWITCH_SECONDS)
        if self.identities is not None:
            controller.health.needs(self.identities)
        policy_file.start()
        self._garbage.start()
        controller.health.needs(self._garbage.thread, *policy_file.threads, *self.member.threads, self.joined.thread)
        self._policy_file = policy_file

    def alive(self) -> bool:
        """True while it does its work; where it is False only a new start helps."""
        if self._policy_file is None:
            kept = self._kept is None or self._kept.is_alive()
            return kept and all(thread.is_alive() for thread in (*self.member.threads, self.joined.thread))
        return self.controller.health.alive()

    def stop(self, why: Why = Why.RELEASED) -> None:
        """Stop answering, then the switches' connections; let the term go, and close the store."""
        if self._policy_file is not None:
            self._policy_file.stop()
            self.controller.release()
        self.active.hang_up()
        self.server.stop()
        if self.identities is not None:
            self.identities.stop()
        if self._policy_file is not None:
            self.controller.stop()
        elif self._kept is not None:
            self._kept.stop()
        for asking in self._asking():
            asking.stop(_ASKING_SECONDS)
        self.joined.thread.stop()
        if self._copy is not None:
            self._copy.stop()
        self._garbage.stop()
        self.member.release(why)
        if why is Why.DRAINED:
            self._wait_for_successor()
        self.member.leave()
        self.store.close()

    def _wait_for_successor(self) -> None:
        end = time.monotonic() + _SUCCESSOR_SECONDS
        with suppress(StoreError):
            while self.member.all().active is None and time.monotonic() < end:
                time.sleep(0.1)


def _there(value: T | None) -> T:
    if value is None:
        raise RuntimeError("this instance does not serve")
    return value


def _takeover(term: Term, name: str) -> str:
    """The words of the audit trail for the beginning of a term."""
    before = f"; before it {term.before}" if term.before and term.before != name else ""
    return f"{name}, generation {term.generation}: {WORDS[term.why]}{before}"


def _own_url(settings: Settings, listen: Listen) -> str:
    if listen.path:
        return f"unix:{listen.path}"
    every = ipaddress.ip_address(listen.host).is_unspecified if listen.host != "localhost" else False
    host = socket.getfqdn() if every else listen.host
    scheme = "http" if settings.rest_tls_cert is None else "https"
    return f"{scheme}://[{host}]:{listen.port}" if ":" in host else f"{scheme}://{host}:{listen.port}"


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
    for key in (settings.rest_tls_key, settings.openflow_tls_key, settings.join_key, settings.dns_key):
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
