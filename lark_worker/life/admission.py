"""Admits a job: its identity by the startd, its wishes by the ads, its network chosen; on disk before it is made."""

from __future__ import annotations

import contextlib
import threading
from typing import Any, Final

from lark_common import log
from lark_common.limits import Buckets
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError, CallerError, ForgedError, NetworkError, RefusedError
from lark_worker.identity.processes import Process
from lark_worker.identity.startd import StartdView
from lark_worker.identity.trusted_ad import check_same_job, post_body, trusted_ads
from lark_worker.life.ending import Endings
from lark_worker.life.network_choice import choose_network
from lark_worker.network.job_network import INNER, JobNetworks, device_names, slot_mac
from lark_worker.records.known_jobs import KnownJobs, key_of
from lark_worker.records.records import Record
from lark_worker.settings import Settings

# Forged ads of a job that go into the controller's audit trail.
FORGERIES_AT_ONCE: Final = 10
FORGERIES_A_SECOND: Final = 1 / 60
# The same in the worker service's log.
LINES_AT_ONCE: Final = 20
LINES_A_SECOND: Final = 0.2


class Admission:
    """Admits jobs, and compares their users' ads with the startd's; thread-safe."""

    def __init__(
        self,
        settings: Settings,
        jobs: KnownJobs,
        link: ControllerLink,
        startd: StartdView,
        networks: JobNetworks,
        endings: Endings,
    ) -> None:
        self._settings = settings
        self._jobs = jobs
        self._link = link
        self._startd = startd
        self._networks = networks
        self._endings = endings
        self._assigning = threading.Lock()
        self._forgeries = Buckets(FORGERIES_A_SECOND, FORGERIES_AT_ONCE)
        self._lines = Buckets(LINES_A_SECOND, LINES_AT_ONCE)

    def admit(self, starter: Process, body: bytes) -> Record:
        """Choose a new job's network and write its record; nothing is made yet.

        Raises CallerError, ForgedError, AdError, RefusedError, StartdError, NetworkError.
        """
        slot = self._startd.slot(starter)
        try:
            ads = trusted_ads(body, slot)
        except ForgedError as error:
            self._forged(slot.run.id, slot.run.slot, slot.owner, error)
            raise
        choice = choose_network(ads, self._settings)
        self._networks.check(choice.network_type, choice.bridge, choice.vlan)
        job_id = slot.run.id
        self._endings.supersede(job_id)
        namespace, port, mac = device_names(self._settings.prefix, job_id)
        machine: Any = choice.machine
        addresses: tuple[str, ...] = ()
        if choice.network_type != "none":
            machine["LarkExternalInterface"] = port
            machine["LarkInternalInterface"] = INNER
            machine["LarkInnerMacAddress"] = mac
            if choice.network_type == "ovs_bridge":
                machine["LarkDatapathId"] = self._networks.datapath_id()
            if choice.address_type == "dhcp":
                machine["LarkInnerMacAddress"] = mac = slot_mac(slot.run.slot)
            if choice.network_type != "nat" and choice.address_type in ("static", "dhcp"):
                given = [address for address in (choice.ipv4, choice.ipv6) if address is not None]
                addresses = self._networks.interfaces(given)
        # An address behind NAT is taken once the record is written.
        with self._assigning:
            if choice.network_type == "nat":
                addresses = self._behind_nat(machine)
            record = Record(
                id=job_id,
                number=self._jobs.number(),
                boot=self._jobs.boot,
                starter=starter.pid,
                started=starter.started,
                global_job_id=slot.run.global_job_id,
                run_started=slot.run.started,
                slot=slot.run.slot,
                owner=slot.owner,
                namespace=namespace,
                port=port,
                mac=mac,
                network_type=choice.network_type,
                address_type=choice.address_type,
                body=post_body(ads.job, machine),
                addresses=addresses,
                pending=("register",),
                machine=slot.machine,
                bridge=choice.bridge,
                vlan=choice.vlan,
                accounted=choice.accounted,
            )
            try:
                self._jobs.write(record)
            except OSError as error:
                raise NetworkError(f"this worker's disk does not take the job's record: {error.strerror}") from None
        try:
            watched = self._endings.watch(record)
        except OSError as error:
            self._jobs.change(key_of(record), over=True, pending=())
            with contextlib.suppress(OSError):
                self._jobs.forget(record)
            raise NetworkError(f"the job's starter cannot be watched: {error.strerror}") from None
        if not watched:
            self._jobs.forget(record)
            raise CallerError("the job's starter has ended")
        log.event("job begins", job=record.id, slot=record.slot, owner=record.owner, network=record.network_type)
        return record

    def _behind_nat(self, machine: Any) -> tuple[str, ...]:
        """Addresses that no live job of this worker has; they replace those of the machine ad."""
        live = [record for record in self._jobs.all() if record.network_type == "nat" and not record.over]
        addresses = self._networks.assign([text for record in live for text in record.addresses])
        for version in (4, 6):
            for spelling in (f"LarkInnerAddressIPv{version}", f"InnerAddressIPv{version}"):
                if spelling in machine:
                    del machine[spelling]
        for text in addresses:
            machine[f"LarkInnerAddressIPv{6 if ':' in text else 4}"] = text.partition("/")[0]
        return addresses

    def check_again(self, record: Record, body: bytes) -> None:
        """Compare a further post of an admitted job, which changes nothing; a forged one is noted.

        Raises ForgedError, AdError.
        """
        try:
            check_same_job(body, record.body)
        except ForgedError as error:
            self._forged(record.id, record.slot, record.owner, error)
            raise

    def _forged(self, job_id: str, slot: str, owner: str, error: ForgedError) -> None:
        if not self._lines.take(job_id):
            log.event("forged ad refused", level=log.WARNING, job=job_id, slot=slot, owner=owner, reason=error)
        if self._forgeries.take(job_id):
            # More of the same in the trail would cost the token that all jobs of the worker share.
            return
        # The user waits for the refusal, not for the trail.
        threading.Thread(
            target=self._report_forgery, args=(job_id, owner, str(error)), name="forgery", daemon=True
        ).start()

    def _report_forgery(self, job_id: str, owner: str, detail: str) -> None:
        """Write a forgery into the controller's audit trail; while the controller is away, the log alone has it."""
        # A thousand bytes are accepted there.
        text = f"job of {owner}: {detail}".encode("ascii", "backslashreplace")[:1000].decode("ascii")
        try:
            self._link.forged(job_id, text)
        except (AwayError, RefusedError) as error:
            log.event("the audit trail of the controller lacks a forged ad", job=job_id, reason=error)
