"""The jobs of this worker: each from its starter's first word to the controller's last confirmation.

A job is known by its starter (process id and start), found by ancestry of whoever asks. One lock a starter keeps what
is asked for one job in order; jobs do not wait for each other.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import replace
from typing import Any, Final

from lark_controller import log
from lark_worker.errors import AwayError, CallerError, ForgedError, NetworkError, RefusedError
from lark_worker.link import Answer, Link
from lark_worker.merge import check, merge, post
from lark_worker.network import Networks, names
from lark_worker.processes import Process, boot_id, is_alive
from lark_worker.records import Record, Records
from lark_worker.settings import Settings
from lark_worker.spool import Spool
from lark_worker.startd import StartdView
from lark_worker.wanted import wanted
from lark_worker.watch import Watch

Key = tuple[int, int]

DEFAULT_LEASE: Final = 900.0
# The state of a job that did not start because the controller was away.
AWAY: Final = "away"
# HookStatusCode of a prepare hook: 1 to 299 hold the job, 300 and above let it go back to Idle.
HOLD: Final = 20
IDLE: Final = 300


class Worker:
    """Registers, renews and ends the jobs of one worker; thread-safe."""

    def __init__(self, settings: Settings, link: Link, startd: StartdView, networks: Networks) -> None:
        self._settings = settings
        self._link = link
        self._startd = startd
        self._networks = networks
        self._records = Records(settings.state_dir / "jobs")
        self._spool = Spool(self._deliver)
        self._watch = Watch()
        self._boot = boot_id()
        self._lock = threading.Lock()
        self._locks: dict[Key, threading.RLock] = {}
        self._jobs: dict[Key, Record] = {}
        self._by_id: dict[str, Record] = {}
        self._registering: dict[str, Future[Answer]] = {}
        self._number = 0
        self._lease = DEFAULT_LEASE
        self._stopping = threading.Event()
        self._renewer = threading.Thread(target=self._renew_all, name="renew", daemon=True)

    def start(self) -> None:
        """Take up the jobs that still run, end those that do not, remove what belongs to none. Raises NetworkError."""
        known = self._records.load()
        self._number = max((record.number for record in known), default=0)
        self._watch.start()
        live = [record for record in known if not record.over and self._lives(record)]
        self._networks.sweep(live)
        for record in known:
            self._keep(record)
            key = (record.starter, record.started)
            if not record.over and not self._watch_starter(record):
                self._ended(key)
            elif record.made and "register" in record.pending:
                self._later(key, record)
            elif record.pending:
                self._spool.add(record.slot, record.id)
            elif record.over:
                self._forget(record)
        log.event("jobs taken up", live=len(live), known=len(known))
        self._renewer.start()

    def stop(self) -> None:
        """Stop; jobs that run keep their networks."""
        self._stopping.set()
        self._spool.stop()
        self._watch.stop()
        self._renewer.join(10)

    def register(self, starter: Process, body: bytes, wait: float) -> str:
        """Make a job's network and register it: the answer as ClassAd lines. Said again, the same.

        Raises CallerError, ForgedError, AdError, RefusedError, StartdError, NetworkError.
        """
        key = (starter.pid, starter.started)
        with self._locked(key):
            record = self._jobs.get(key)
            if record is None:
                record = self._admit(starter, body)
            elif body:
                self._check_again(record, body)
            if record.over:
                return self._said(record)
            if record.made and record.state == "pending" and "register" in record.pending:
                return lines(record)
            if record.made and "register" not in record.pending and record.state not in ("registering", "pending"):
                return lines(record)
            return self._bring_up(key, record, min(wait, self._settings.wait))

    def renew(self, starter: Process, job_id: str) -> str:
        """Say that a job still runs; the service renews its lease by itself. Raises CallerError for another's job."""
        return lines(self._own(starter, job_id))

    def end(self, starter: Process, job_id: str, exit_ad: str) -> str:
        """Remove a job's network, soon, and let the controller know. Raises CallerError."""
        record = self._own(starter, job_id)
        key = (starter.pid, starter.started)
        self._over(key, exit_ad)
        # HTCondor waits for the exit hook, and need not wait for the kernel to take the network down.
        threading.Thread(target=self._ended, args=(key,), name=f"end {job_id}", daemon=True).start()
        return lines(replace(record, state="ended", reason=""))

    def namespace(self, starter: Process) -> Record:
        """The job of a starter, for entering its namespace. Raises CallerError where it has none."""
        record = self._jobs.get((starter.pid, starter.started))
        if record is None or record.over:
            raise CallerError("this job has no network here: its start was not registered")
        return record

    def records(self) -> tuple[Record, ...]:
        """Every job that is known, in the order in which they came."""
        with self._lock:
            return tuple(sorted(self._by_id.values(), key=lambda record: record.number))

    def _own(self, starter: Process, job_id: str) -> Record:
        record = self._jobs.get((starter.pid, starter.started))
        if record is None:
            raise CallerError("this job is not registered")
        if record.id != job_id:
            raise CallerError(f"{job_id} is not this job")
        return record

    def _admit(self, starter: Process, body: bytes) -> Record:
        """A new job, decided and on disk; nothing is made yet."""
        slot = self._startd.slot(starter)
        try:
            merged = merge(body, slot)
        except ForgedError as error:
            self._forged(slot.run.id, slot.run.slot, slot.owner, error)
            raise
        want = wanted(merged, self._settings)
        job_id = slot.run.id
        self._supersede(job_id)
        namespace, port, mac = names(self._settings.prefix, job_id)
        machine: Any = want.machine
        addresses: tuple[str, ...] = ()
        if want.network_type != "none":
            machine["LarkExternalInterface"] = port
            machine["LarkInnerMacAddress"] = mac
            machine["LarkDatapathId"] = self._networks.datapath_id()
            if want.address_type == "static":
                given = [address for address in (want.ipv4, want.ipv6) if address is not None]
                addresses = self._networks.interfaces(given)
        with self._lock:
            self._number += 1
            number = self._number
        record = Record(
            id=job_id,
            number=number,
            boot=self._boot,
            starter=starter.pid,
            started=starter.started,
            global_job_id=slot.run.global_job_id,
            run_started=slot.run.started,
            slot=slot.run.slot,
            owner=slot.owner,
            namespace=namespace,
            port=port,
            mac=mac,
            network_type=want.network_type,
            address_type=want.address_type,
            body=post(merged.job, machine),
            addresses=addresses,
            pending=("register",),
        )
        self._write(record)
        if not self._watch_starter(record):
            self._forget(record)
            raise CallerError("the job's starter has ended")
        log.event("job begins", job=record.id, slot=record.slot, owner=record.owner, network=record.network_type)
        return record

    def _check_again(self, record: Record, body: bytes) -> None:
        """What is handed over for a job that is known counts for nothing; a lie is noted all the same."""
        try:
            check(body, record.body)
        except ForgedError as error:
            self._forged(record.id, record.slot, record.owner, error)
            raise

    def _forged(self, job_id: str, slot: str, owner: str, error: ForgedError) -> None:
        log.event("forged ad refused", level=log.WARNING, job=job_id, slot=slot, owner=owner, reason=error)
        # The user waits for the refusal, not for the trail.
        threading.Thread(
            target=self._tell_forgery, args=(job_id, owner, str(error)), name="forgery", daemon=True
        ).start()

    def _tell_forgery(self, job_id: str, owner: str, detail: str) -> None:
        """The controller's audit trail has it too; where the controller is away, the log alone."""
        # A thousand bytes are accepted there.
        text = f"job of {owner}: {detail}".encode("ascii", "backslashreplace")[:1000].decode("ascii")
        try:
            self._link.forged(job_id, text)
        except (AwayError, RefusedError) as error:
            log.event("the audit trail of the controller lacks a forged ad", job=job_id, reason=error)

    def _supersede(self, job_id: str) -> None:
        """A starter that came before for the same run has nothing more to say."""
        old = self._by_id.get(job_id)
        if old is not None:
            self._change((old.starter, old.started), over=True, pending=())
            self._networks.remove(old)

    def _bring_up(self, key: Key, record: Record, wait: float) -> str:
        """Network and registration side by side; then the switches' confirmation. The caller holds the job's lock."""
        future = self._register_soon(record) if "register" in record.pending else None
        if not record.made:
            self._networks.make(record)
            record = self._change(key, made=True)
        if future is not None:
            try:
                answer = future.result(self._settings.timeout)
            except FutureTimeoutError:
                return self._without_controller(key, record, future)
            except RefusedError as error:
                self._give_up(key, "refused", str(error))
                raise
            record = self._configure(key, answer)
        if record.network_type != "none" and wait > 0:
            record = self._confirm(key, record, wait)
        return lines(record)

    def _register_soon(self, record: Record) -> Future[Answer]:
        with self._lock:
            future = self._registering.get(record.id)
            if future is not None:
                return future
            future = self._registering[record.id] = Future()
        self._spool.add(record.slot, record.id)
        return future

    def _confirm(self, key: Key, record: Record, wait: float) -> Record:
        """Wait until the switches hold the job's flows; its port is there by now."""
        try:
            answer = self._link.register(record.body, wait)
        except AwayError as error:
            return self._change(key, state="pending", reason=str(error))
        except RefusedError as error:
            self._give_up(key, "refused", str(error))
            raise
        return self._change(key, state=answer.state, reason=answer.reason)

    def _configure(self, key: Key, answer: Answer) -> Record:
        """Put the addresses that the controller gave on the job's interface."""
        record = self._jobs[key]
        self._lease = answer.lease
        addresses = record.addresses
        if record.network_type != "none":
            addresses = self._networks.interfaces(answer.addresses)
            self._networks.configure(replace(record, addresses=addresses), record.addresses)
        return self._change(key, state=answer.state, reason=answer.reason, addresses=addresses)

    def _without_controller(self, key: Key, record: Record, future: Future[Answer]) -> str:
        """What the site chose for jobs that start while the controller is away."""
        choice = self._settings.on_failure
        reason = "the controller cannot be asked"
        log.event("job starts without the controller", level=log.WARNING, job=record.id, choice=choice)
        if choice == "start":
            record = self._change(key, state="pending", reason=reason)
            if record.addresses:
                self._networks.configure(record)
            future.add_done_callback(lambda done: self._late(key, done))
            return lines(record)
        return self._said(self._give_up(key, AWAY, reason))

    def _said(self, record: Record) -> str:
        """What was said of a job that did not start, again; a hook asks twice when an answer takes its time."""
        if record.state == "refused":
            raise RefusedError(record.reason)
        if record.state != AWAY:
            raise CallerError("this job has ended")
        code = HOLD if self._settings.on_failure == "hold" else IDLE
        return f'{lines(record)}HookStatusCode = {code}\nHookStatusMessage = "Lark: {record.reason}"\n'

    def _later(self, key: Key, record: Record) -> None:
        """Let the registration take its time; the job runs meanwhile."""
        self._register_soon(record).add_done_callback(lambda done: self._late(key, done))

    def _late(self, key: Key, done: Future[Answer]) -> None:
        """The controller has answered after the job has started."""
        with self._locked(key):
            record = self._jobs.get(key)
            if record is None or record.over:
                return
            try:
                record = self._configure(key, done.result())
                log.event("job registered late", job=record.id, state=record.state)
            except RefusedError as error:
                # It runs without a network: its port passes nothing as long as the controller does not know it.
                self._change(key, state="refused", reason=str(error))
            except NetworkError as error:
                self._change(key, state="pending", reason=str(error))
                log.failure("a late job's network is not whole", error, job=record.id)

    def _give_up(self, key: Key, state: str, reason: str) -> Record:
        """The job does not start here. It may have been registered, so the controller hears of its end alone."""
        with self._locked(key):
            record = self._change(key, over=True, state=state, reason=reason, pending=("end",))
            self._spool.add(record.slot, record.id)
            self._networks.remove(record)
            return record

    def _over(self, key: Key, exit_ad: str) -> Record | None:
        """Note that a job has ended, so that the controller is told in time. May be repeated."""
        with self._locked(key):
            record = self._jobs.get(key)
            if record is None or record.over:
                return record
            record = self._change(key, over=True, state="ended", exit_ad=exit_ad, then="end")
            self._spool.add(record.slot, record.id)
            log.event("job ends", job=record.id, slot=record.slot)
            return record

    def _ended(self, key: Key) -> None:
        """A job or its starter has ended, whether or not its exit hook was called: its network goes."""
        with self._locked(key):
            record = self._over(key, "")
            if record is None:
                return
            try:
                self._networks.remove(record)
            except NetworkError as error:
                log.failure("a job's network is not all gone; the next start sweeps it", error, job=record.id)
        with self._lock:
            current = self._jobs.get(key)
            if current is not None and not current.pending and not self._lives(record):
                self._drop(record)

    def _deliver(self, job_id: str) -> None:
        """Tell the controller what is pending of a job, in order. Raises AwayError."""
        while True:
            record = self._by_id.get(job_id)
            if record is None or not record.pending:
                return
            key = (record.starter, record.started)
            if record.pending[0] == "register":
                self._deliver_register(key, record)
            else:
                self._link.end(record.id, record.exit_ad)
                self._told(key, "end")
                self._forget(record)

    def _deliver_register(self, key: Key, record: Record) -> None:
        answer: Answer | RefusedError
        try:
            answer = self._link.register(record.body)
        except RefusedError as error:
            log.event("the controller refused a job", level=log.WARNING, job=record.id, reason=error)
            answer = error
        self._told(key, "register")
        with self._lock:
            future = self._registering.pop(record.id, None)
        if future is None:
            return
        if isinstance(answer, RefusedError):
            future.set_exception(answer)
        else:
            future.set_result(answer)

    def _renew_all(self) -> None:
        """Renew every job's lease three times within it; a job that the controller has forgotten is posted again."""
        while not self._stopping.wait(min(300.0, self._lease / 3)):
            for record in self.records():
                if record.over or "register" in record.pending or record.state == "refused":
                    continue
                try:
                    if not self._link.renew(record.id):
                        self._post_again(record)
                except (AwayError, RefusedError) as error:
                    log.event("leases are not renewed", level=log.WARNING, reason=error)
                    break

    def _post_again(self, record: Record) -> None:
        key = (record.starter, record.started)
        with self._locked(key):
            current = self._jobs.get(key)
            if current is None or current.over or current.pending:
                return
            record = self._change(key, state="pending", then="register")
        self._later(key, record)
        log.event("the controller had forgotten a job; posted again", job=record.id)

    def _watch_starter(self, record: Record) -> bool:
        key = (record.starter, record.started)
        return record.boot == self._boot and self._watch.add(*key, lambda: self._ended(key))

    def _lives(self, record: Record) -> bool:
        return record.boot == self._boot and is_alive(record.starter, record.started)

    def _locked(self, key: Key) -> threading.RLock:
        with self._lock:
            return self._locks.setdefault(key, threading.RLock())

    def _told(self, key: Key, operation: str) -> None:
        with self._lock:
            record = self._jobs.get(key)
            if record is not None:
                self._store(record.told(operation))

    def _change(self, key: Key, *, then: str = "", **changes: Any) -> Record:
        """Change fields of a job's record, and let ``then`` be told after what is pending already."""
        with self._lock:
            record = replace(self._jobs[key], **changes)
            return self._store(replace(record, pending=(*record.pending, then)) if then else record)

    def _write(self, record: Record) -> Record:
        with self._lock:
            return self._store(record)

    def _store(self, record: Record) -> Record:
        """On disk, then in memory. The caller holds the lock."""
        self._records.write(record)
        return self._keep(record)

    def _keep(self, record: Record) -> Record:
        self._jobs[record.starter, record.started] = record
        self._by_id[record.id] = record
        return record

    def _forget(self, record: Record) -> None:
        """The controller knows that the job is over. Its starter may still ask for a while, and is told so."""
        with self._lock:
            self._records.remove(record.id)
            current = self._by_id.get(record.id)
            if current is not None and current.starter == record.starter:
                del self._by_id[record.id]
            if not self._lives(record):
                self._drop(record)

    def _drop(self, record: Record) -> None:
        key = (record.starter, record.started)
        self._jobs.pop(key, None)
        self._locks.pop(key, None)


def lines(record: Record) -> str:
    """A job as ClassAd lines, which a prepare hook prints for HTCondor to merge into the job ad."""
    entries = {
        "LarkJobId": record.id,
        "LarkState": record.state,
        "LarkReason": " ".join(record.reason.split()).replace("\\", "/").replace('"', "'"),
        "LarkAddressType": record.address_type,
        "LarkNetworkType": record.network_type,
    }
    for interface in record.addresses:
        address = interface.partition("/")[0]
        entries[f"LarkInnerAddressIPv{6 if ':' in address else 4}"] = address
    if record.network_type != "none":
        entries["LarkInnerMacAddress"] = record.mac
        entries["LarkExternalInterface"] = record.port
    return "".join(f'{name} = "{value}"\n' for name, value in entries.items())
