"""The local startd's ad of a slot: the only source of a job's identity.

The startd puts GlobalJobId into a claimed slot's ad, and the attributes of the job ad that the administrator names in
``STARTD_JOB_ATTRS``. These come from the schedd through the shadow, not from the job's user on the worker.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import classad2

from lark_common.classads.ads import parse_post
from lark_common.classads.text import not_text
from lark_common.errors import AdError
from lark_common.runs import RunKey
from lark_worker.errors import StartdError
from lark_worker.identity.processes import Process, arguments_of

# Seconds that a slot's ad may take to show its starter's job.
PATIENCE: Final = 5.0
PAUSE: Final = 0.05


@dataclass(frozen=True, slots=True)
class Slot:
    """A claimed slot: ``ad`` is its whole ad (not to be changed), ``run`` the job's run on it."""

    run: RunKey
    machine: str
    owner: str
    group: str
    ad: classad2.ClassAd = field(repr=False, compare=False)


class StartdView(Protocol):
    """Finds the slot of a starter."""

    def slot(self, starter: Process) -> Slot:
        """The slot of a running starter. Raises StartdError."""

    def gives_jobs_its_network(self) -> bool | None:
        """True if jobs start in the worker's own network, False if in an empty namespace; None where HTCondor has no
        other way. Raises StartdError."""


# The identity of a job, as attributes of the job ad: taken from the startd, never from the user.
IDENTITY: Final = (
    "Owner", "User", "OsUser", "NTDomain", "AcctGroup", "AcctGroupUser", "AccountingGroup", "GlobalJobId",
    "JobCurrentStartDate", "ClusterId", "ProcId", "RemoteHost", "JobPrio",
)  # fmt: skip


def identity(slot_ad: classad2.ClassAd) -> classad2.ClassAd:
    """The identity of a slot's job as attributes of a job ad. Raises StartdError where the slot has no job."""
    found = classad2.ClassAd()
    for name in IDENTITY:
        value = slot_ad.get(name)
        if isinstance(value, str | int | float) and not isinstance(value, bool):
            found[name] = value
    if not found.get("GlobalJobId"):
        raise StartdError("the slot's ad names no GlobalJobId: no job runs there")
    if not found.get("Owner"):
        owner = slot_ad.get("RemoteOwner")
        if not isinstance(owner, str) or not owner:
            raise StartdError("the slot's ad names neither Owner nor RemoteOwner; STARTD_JOB_ATTRS must hold Owner")
        found["Owner"] = owner.partition("@")[0]
    if "JobCurrentStartDate" not in found and isinstance(slot_ad.get("JobStart"), int):
        found["JobCurrentStartDate"] = slot_ad["JobStart"]
    for name, part in zip(("ClusterId", "ProcId"), _job_numbers(str(found["GlobalJobId"])), strict=True):
        found[name] = part
    found["RemoteHost"] = slot_ad.get("Name") or ""
    return found


def _job_numbers(global_job_id: str) -> tuple[int, int]:
    parts = global_job_id.split("#")
    numbers = parts[-2].split(".") if len(parts) > 2 else []
    if len(numbers) == 2 and all(part.isascii() and part.isdigit() for part in numbers):
        return int(numbers[0]), int(numbers[1])
    return 0, 0


def read_slot(ad: classad2.ClassAd) -> Slot:
    """A slot from its ad. Raises StartdError."""
    for attribute in not_text(ad):
        # Latin-1 of an administrator, or of a job's user by STARTD_JOB_ATTRS: no policy can ask for it.
        del ad[attribute]
    own = identity(ad)
    name, machine = ad.get("Name"), ad.get("Machine")
    if not isinstance(name, str) or not isinstance(machine, str):
        raise StartdError("the slot's ad lacks Name or Machine")
    where = classad2.ClassAd({"Name": name, "Machine": machine, "NetworkType": "none"})
    try:
        # The controller's own reading, so that both give the run the same id.
        job, _ = parse_post(f"{own.printOld()}\n------\n{where.printOld()}".encode(), "text/plain")
    except AdError as error:
        raise StartdError(f"the slot's ad cannot be used: {error}") from None
    return Slot(RunKey(job.global_job_id, job.started, name), machine, job.owner, job.group, ad)


def slot_name(arguments: Sequence[str]) -> str:
    """The slot (without host) that a starter was started for, from its command line: ``-a slot1_1``. Raises
    StartdError."""
    for option, value in itertools.pairwise(arguments):
        if option in ("-a", "-slot-name") and value.replace("_", "").isalnum():
            return value
    raise StartdError("the starter's command line names no slot")


class LocalStartd:
    """Queries the startd of this machine directly, by HTCondor's own bindings; the collector is not needed.

    ``address_file`` None is the one that HTCondor's configuration names (``STARTD_ADDRESS_FILE``).
    """

    def __init__(self, address_file: Path | None = None) -> None:
        # Reads HTCondor's configuration when it is imported, so only where it is used.
        import htcondor2

        self._htcondor: Any = htcondor2
        self._file = address_file or Path(htcondor2.param["STARTD_ADDRESS_FILE"])
        # The bindings make no promise about threads.
        self._lock = threading.Lock()

    def slot(self, starter: Process) -> Slot:
        """The slot of a running starter; waits a little for the startd to show its job. Raises StartdError."""
        try:
            name = slot_name(arguments_of(starter))
        except OSError as error:
            raise StartdError(f"the starter's command line cannot be read: {error}") from None
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._ask(name, starter.pid)
            except StartdError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(PAUSE)

    def gives_jobs_its_network(self) -> bool | None:
        """As in :class:`StartdView`. Raises StartdError."""
        found = self._query("SlotID == 1 || SlotID == 0", ["HasJobNetworking"])
        if not found:
            raise StartdError("the startd has no slot yet")
        advertised = found[0].get("HasJobNetworking")
        return advertised if isinstance(advertised, bool) else None

    def _query(self, constraint: str, projection: Sequence[str] = ()) -> Sequence[classad2.ClassAd]:
        try:
            address = self._file.read_text("utf-8").partition("\n")[0]
            with self._lock:
                found: Sequence[classad2.ClassAd] = self._htcondor.Collector(address).query(
                    self._htcondor.AdType.Startd, constraint, list(projection)
                )
        except FileNotFoundError:
            raise StartdError(f"the startd does not run (there is no {self._file}): condor_on -startd") from None
        except (OSError, RuntimeError, self._htcondor.HTCondorException) as error:
            raise StartdError(f"the startd cannot be asked: {error}") from None
        return found

    def _ask(self, name: str, pid: int) -> Slot:
        found = self._query(f'split(Name, "@")[0] == "{name}"')
        if len(found) != 1:
            raise StartdError(f"the startd has {len(found)} slots of the name {name}")
        ad = found[0]
        # HTCondor 25 names the starter's process; with an older one the slot's name has to do.
        if isinstance(ad.get("StarterPid"), int) and ad["StarterPid"] != pid:
            raise StartdError(f"slot {name} belongs to process {ad['StarterPid']}, not to {pid}")
        return read_slot(ad)
