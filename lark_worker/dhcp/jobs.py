"""Jobs with AddressType dhcp: leases are put on jobs' interfaces, registered with the controller, and removed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Final

from lark_common import log
from lark_worker.dhcp.apply import configure, resolv_text, write_resolv
from lark_worker.dhcp.clients import Clients
from lark_worker.dhcp.lease import Cache, Lease
from lark_worker.errors import NetworkError
from lark_worker.identity.trusted_ad import with_lease
from lark_worker.network.job_network import INNER, resolv_path
from lark_worker.records.known_jobs import Key, KnownJobs, key_of
from lark_worker.records.records import Record
from lark_worker.settings import Settings

NO_ANSWER: Final = "no DHCP server has given an address"
_HOSTS_RESOLV: Final = Path("/etc/resolv.conf")


def has_dhcp(record: Record) -> bool:
    """True if a job's IPv4 address comes from a DHCP server."""
    return record.address_type == "dhcp" and record.network_type != "none"


def leased_address(record: Record) -> str:
    """The address with prefix length that a job has from DHCP; "" for none."""
    return next((text for text in record.addresses if has_dhcp(record) and ":" not in text), "")


class DhcpJobs:
    """Leases of the jobs of one worker; thread-safe.

    ``again`` posts a job once more when its record has changed. The caller of a method that takes a key holds that
    job's lock.
    """

    def __init__(self, settings: Settings, jobs: KnownJobs, again: Callable[[Key, Record], None]) -> None:
        self._settings = settings
        self._jobs = jobs
        self._again = again
        self._clients = Clients(Cache(settings.state_dir / "leases"), INNER, self._changed)
        self._lock = threading.Lock()
        self._applied: dict[str, Lease] = {}

    def start(self) -> None:
        """Start the clients' thread."""
        self._clients.start()

    def stop(self) -> None:
        """Stop the clients; jobs keep their leases."""
        self._clients.stop()

    def begin(self, record: Record) -> Future[Lease]:
        """Request a job's address, which is put on its interface whenever it arrives. Idempotent."""
        self._prepare(record)
        return self._clients.begin(record.id, record.mac, record.namespace)

    def obtain(self, key: Key, record: Record) -> Record | None:
        """Give a job its address, waiting ``dhcp_timeout`` for it; None where there is none by then.

        The record that is returned is still to be posted. Raises NetworkError.
        """
        future = self.begin(record)
        try:
            lease = future.result(self._settings.dhcp_timeout)
        except FutureTimeoutError:
            if not self._clients.take_cached(record.id):
                return None
            lease = future.result()
            log.event("no DHCP server answers; the cached lease is used", level=log.WARNING, job=record.id)
        return self._give(key, record, lease)

    def resume(self, record: Record) -> None:
        """Continue the client of a job that ran before the service was started."""
        had = leased_address(record)
        self._clients.begin(record.id, record.mac, record.namespace, held=bool(had))
        if had and self._clients.lease(record.id) is None:
            # It has expired meanwhile.
            self._changed(record.id)

    def end(self, record: Record) -> None:
        """End a job's client. Its lease is not released: the slot's next job requests the same."""
        if has_dhcp(record):
            self._clients.end(record.id)
            with self._lock:
                self._applied.pop(record.id, None)

    def _changed(self, job_id: str) -> None:
        """Handle a lease that is new, differs, or is lost."""
        known = self._jobs.by_id(job_id)
        if known is None:
            return
        key = key_of(known)
        with self._jobs.locked(key):
            record = self._jobs.of(key)
            if record is None or record.id != job_id or record.over or not record.made:
                return
            lease = self._clients.lease(job_id)
            before = leased_address(record)
            with self._lock:
                applied = self._applied.get(job_id)
            if lease is None and not before:
                return
            if lease is not None and before == lease.interface and applied is not None and lease.same_network(applied):
                return
            try:
                record = self._give(key, record, lease)
            except NetworkError as error:
                log.failure("a changed lease is not on the job's interface", error, job=job_id)
                return
            now = leased_address(record)
            if now == before:
                return
            log.event("a job's address has changed", job=job_id, before=before or None, now=now or None)
            then = "" if "register" in record.pending[1:] else "register"
            record = self._jobs.change(key, then=then, state="pending", reason="" if lease else NO_ANSWER)
        self._again(key, record)

    def _give(self, key: Key, record: Record, lease: Lease | None) -> Record:
        """Put a lease (None: no address) on the interface, and into the record."""
        configure(record.namespace, lease, leased_address(record), INNER, self._settings.mtu)
        with self._lock:
            if lease is None:
                self._applied.pop(record.id, None)
            else:
                self._applied[record.id] = lease
        if lease is not None:
            given = tuple(each for each in self._settings.nameservers if each.version == 4)
            write_resolv(resolv_path(record.namespace), resolv_text(lease, given))
        others = tuple(text for text in record.addresses if ":" in text)
        addresses = others if lease is None else (lease.interface, *others)
        body = with_lease(record.body, None if lease is None else lease.address)
        return self._jobs.change(key, addresses=addresses, body=body)

    def _prepare(self, record: Record) -> None:
        """Write the namespace's resolv.conf before the job starts: a running job's mount cannot be changed later."""
        path = resolv_path(record.namespace)
        if not path.exists():
            with contextlib.suppress(OSError):
                write_resolv(path, _HOSTS_RESOLV.read_text("ascii", "replace"))
