"""An in-memory controller for tests of the REST API: real answers, no switches."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from pathlib import Path

from lark_controller.accounting.ledger import WorkerCounts
from lark_controller.accounting.questions import UsageFilter, UsagePage, UsageRow
from lark_controller.accounting.rates import Flowing
from lark_controller.accounting.usage import JobUsage, Rate, Usage
from lark_controller.ads import JobAd, MachineAd
from lark_controller.errors import AddressError, AdError, ChangedError, Mistake, NotFoundError, PolicyError
from lark_controller.host_rules import HostRules, JobRules
from lark_controller.jobs import AddressType, EndedBy, Job, JobState, NetworkType, RunKey
from lark_controller.policies.model import Because, Decision, Kind, SliceKey
from lark_controller.status import (
    AuditEntry,
    AuditPage,
    Confirmation,
    Explanation,
    FlowFilter,
    FlowPage,
    FlowStatus,
    FlowTable,
    GroupStatus,
    HostStatus,
    JobChange,
    JobDetail,
    JobFilter,
    JobPage,
    Plan,
    PolicyVersion,
    PortStatus,
    Readiness,
    Registered,
    Step,
    SwitchPlan,
    SwitchProblem,
    SwitchStatus,
    Waiting,
)
from tests.fake_reservations import FakeReservations

DPID = "00000000000000e1"
TOKENS = {scope: f"lark_{scope}_secret" for scope in ("hook", "read", "operate", "expired")}

JOB_AD = """\
GlobalJobId = "submit.example#{cluster}.0#1700000000"
JobCurrentStartDate = 1700000100
ClusterId = {cluster}
ProcId = 0
Owner = "{owner}"
User = "{owner}@example"
AcctGroup = "group_cms"
JobPrio = 0
"""
MACHINE_AD = """\
Machine = "worker1.example"
Name = "slot1_{cluster}@worker1.example"
LarkNetworkType = "ovs_bridge"
LarkAddressType = "{kind}"
{address}LarkInnerMacAddress = "02:00:00:00:00:01"
LarkExternalInterface = "job1"
LarkDatapathId = "00000000000000e1"
"""


def post_body(cluster: int = 1, owner: str = "alice", address: str = "", kind: str = "") -> str:
    """Both ads as a hook posts them."""
    line = f'LarkInnerAddressIPv4 = "{address}"\n' if address else ""
    how = kind or ("static" if address else "controller")
    job, machine = (
        JOB_AD.format(cluster=cluster, owner=owner),
        MACHINE_AD.format(cluster=cluster, address=line, kind=how),
    )
    return f"{job}------\n{machine}"


def write_tokens(path: Path) -> Path:
    """A tokens file with a token of each scope, and one that has expired."""
    lines = []
    for name, secret in TOKENS.items():
        digest = hashlib.sha256(secret.encode()).hexdigest()
        scopes, expires = ("hook, operate", ", expires: 2020-01-01") if name == "expired" else (name, "")
        lines.append(f"{name}: {{sha256: {digest}, scopes: [{scopes}]{expires}}}\n")
    path.write_text("".join(lines))
    path.chmod(0o600)
    return path


def bearer(scope: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"Bearer {TOKENS[scope]}"}


class FakeControls:
    """Controls without a controller. ``error`` is raised by every call where it is set; ``gate``, while it is clear,
    makes ``confirm`` with a timeout wait for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[str, Job] = {}
        self.read: list[str] = []
        self.ads: dict[str, tuple[str, str]] = {}
        self.ended: dict[str, float] = {}
        self.trail: list[AuditEntry] = []
        self.version = PolicyVersion(1, "version: 1\n", hashlib.sha256(b"version: 1\n").hexdigest(), 1.7e9, "start")
        self.error: Exception | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = 0
        self.arrived = threading.Condition()
        self.is_ready = True
        self.reservations = FakeReservations(self.called, self.known)
        self.revision = "5f0e12ab.17"
        self.confirmed: list[tuple[object, ...]] = []
        self.used: dict[str, JobUsage] = {}
        self.history: list[UsageRow] = []
        self.asked: UsageFilter | None = None

    def called(self) -> None:
        if self.error is not None:
            raise self.error

    def _note(self, actor: str, action: str, subject: str) -> None:
        self.trail.append(AuditEntry(len(self.trail) + 1, 1.7e9, actor, action, subject))

    def get(self, job_id: str) -> Job:
        self.called()
        try:
            return self.known[job_id]
        except KeyError:
            raise NotFoundError(f"There is no job {job_id}.") from None

    def register(self, job_ad: JobAd, machine_ad: MachineAd, actor: str) -> Registered:
        self.called()
        run = RunKey(job_ad.global_job_id, job_ad.started, machine_ad.slot)
        with self.lock:
            if run.id in self.known:
                return Registered(self.known[run.id], False)
            number = len(self.known) + 1
            ipv4 = machine_ad.ipv4
            block: IPv4Network | None = None
            if machine_ad.address_type == "controller":
                ipv4, block = IPv4Address(f"10.64.{number // 256 % 256}.{number % 256}"), IPv4Network("10.64.0.0/26")
            for other in self.known.values():
                if other.live and ipv4 is not None and other.ipv4 == ipv4:
                    raise AddressError("LarkInnerAddressIPv4", f"{ipv4} is held by another live job", other.id)
            job = Job(
                number=number,
                run=run,
                id=run.id,
                owner=job_ad.owner,
                user=job_ad.user,
                group=job_ad.group,
                cluster=job_ad.cluster,
                proc=job_ad.proc,
                host=machine_ad.machine,
                network_type=NetworkType(machine_ad.network_type),
                address_type=AddressType(machine_ad.address_type),
                ipv4=ipv4,
                ipv6=machine_ad.ipv6,
                ipv4_block=block,
                datapath=machine_ad.datapath,
                port=machine_ad.port,
                mac=machine_ad.mac,
                lease_until=1.7e9 + 900,
                created=1.7e9,
            )
            self.known[run.id] = job
            self.ads[run.id] = (job_ad.text, machine_ad.text)
            self._note(actor, "register", run.id)
            return Registered(job, True)

    def confirm(self, job_id: str, timeout: float) -> Confirmation:
        job = self.get(job_id)
        if timeout > 0:
            with self.arrived:
                self.waiting += 1
                self.arrived.notify_all()
            passed = self.gate.wait(timeout)
            with self.arrived:
                self.waiting -= 1
                self.arrived.notify_all()
            if passed:
                job = self.known[job_id] = replace(job, state=JobState.ENFORCED)
                return Confirmation(job, (DPID,))
        return Confirmation(job, (), (Waiting(DPID, "no barrier reply yet"),))

    def renew(self, job_id: str, actor: str) -> Job:
        job = self.get(job_id)
        if not job.live:
            raise NotFoundError(f"The job {job_id} has ended.")
        self.known[job_id] = replace(job, lease_until=job.lease_until + 900)
        return self.known[job_id]

    def forged(self, job_id: str, actor: str, detail: str) -> None:
        self.called()
        self.trail.append(AuditEntry(len(self.trail) + 1, 1.7e9, actor, "forged ad", job_id, detail))

    def lift(self, job_id: str, actor: str) -> Job:
        job = self.get(job_id)
        if not job.live:
            raise NotFoundError(f"The job {job_id} has ended.")
        self.known[job_id] = replace(job, quarantine="", vouched=True)
        self._note(actor, "lift", job_id)
        return self.known[job_id]

    def end(self, job_id: str, actor: str, exit_ad: str = "", by: EndedBy = EndedBy.HOOK) -> Job:
        job = self.get(job_id)
        self.known[job_id] = replace(job, state=JobState.ENDED, reason=by.reason)
        self.ended.setdefault(job_id, 1.7e9 + 60)
        self._note(actor, "end", job_id)
        return self.known[job_id]

    def read_counters(self, job_id: str, timeout: float) -> None:
        self.read.append(job_id)

    def job(self, job_id: str) -> JobDetail:
        job = self.get(job_id)
        because = Because(Kind.SLICE, 1, 7, "true", (("Owner", f'"{job.owner}"'),))
        decision = Decision(slice=SliceKey(1, f'"{job.owner}"'), group="group_cms", because=(because,))
        confirmation = Confirmation(job, (DPID,))
        return JobDetail(
            job,
            decision,
            confirmation,
            *self.ads[job_id],
            ended=self.ended.get(job_id),
            usage=self.used.get(job_id),
        )

    def jobs(self, chosen: JobFilter, cursor: str | None, limit: int) -> JobPage:
        self.called()
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise NotFoundError("That cursor is none of this list.")
        after = int(cursor or 0)
        found = [
            job
            for job in self.known.values()
            if (not cursor or (job.number < after if chosen.newest else job.number > after))
            and chosen.owner in (None, job.owner)
            and chosen.group in (None, job.group)
            and chosen.host in (None, job.host)
            and chosen.global_job_id in (None, job.run.global_job_id)
            and (chosen.state is None or (job.live if chosen.state == "live" else chosen.state == job.state))
        ]
        if chosen.newest:
            found.reverse()
        more = len(found) > limit
        return JobPage(tuple(found[:limit]), str(found[limit - 1].number) if more else None)

    def job_counts(self) -> Mapping[JobState, int]:
        self.called()
        return Counter(job.state for job in self.known.values())

    @property
    def accounts(self) -> FakeAccounts:
        return FakeAccounts(self)

    def job_at(self, address: str) -> JobDetail:
        self.called()
        for job in self.known.values():
            if job.live and address in map(str, job.addresses):
                return self.job(job.id)
        raise NotFoundError(f"No live job has the address {address}.")

    def switches(self) -> tuple[SwitchStatus, ...]:
        self.called()
        return (
            SwitchStatus(
                DPID,
                "worker1",
                "edge",
                True,
                True,
                "192.0.2.7:40000",
                host="worker1.example",
                desired=10,
                installed=10,
                jobs=len(self.known),
                drift=2,
                packet_ins=3,
                since=time.time(),
                ports=(PortStatus(1, "job1", "job", "0123456789abcdef"), PortStatus(2, "eth0", "uplink")),
                problems=(SwitchProblem(1.7e9, "table full", "table=3", None),),
            ),
            SwitchStatus("00000000000000c0", "core1", "core", False, False, reason="never connected"),
        )

    def switch(self, datapath: str) -> SwitchStatus:
        for switch in self.switches():
            if datapath in (switch.datapath, switch.name):
                return switch
        raise NotFoundError(f"There is no switch {datapath!r}.")

    def flows(self, datapath: str, chosen: FlowFilter, cursor: str | None, limit: int, timeout: float) -> FlowPage:
        self.switch(datapath)
        if cursor is not None:
            raise NotFoundError("That cursor is none of this list.")
        if chosen.job is not None:
            return FlowPage(())
        found = FlowStatus(0, "admit", 100, "in_port=1", "goto:1", "0x1", "job 1", "installed", None, 7, 420)
        return FlowPage((found,), (FlowTable(0, "admit", 1),))

    def policy(self) -> PolicyVersion:
        self.called()
        return self.version

    def check_policy(self, text: str) -> tuple[Mistake, ...]:
        self.called()
        if "version: 1" in text:
            return ()
        return (Mistake(1, 1, "version", "missing", "1"), Mistake(2, 3, "blok", "unknown key", "block, slice"))

    def _valid(self, text: str) -> None:
        mistakes = self.check_policy(text)
        if mistakes:
            raise PolicyError("policy", mistakes)

    def plan_policy(self, text: str) -> Plan:
        self._valid(text)
        change = JobChange("0123456789abcdef", "bob", ("no WAN any more",))
        switch = SwitchPlan(DPID, "worker1", 1, 0, 2, 9, 4096, ("+ table=3 …", "- table=4 …"))
        return Plan(hashlib.sha256(text.encode()).hexdigest(), 2, 1, (change,), (switch,))

    def put_policy(self, text: str, actor: str, instead_of: str | None = None) -> PolicyVersion:
        self._valid(text)
        if instead_of not in (None, self.version.digest):
            raise ChangedError(f"version {self.version.version} is in force now")
        digest = hashlib.sha256(text.encode()).hexdigest()
        self.version = PolicyVersion(self.version.version + 1, text, digest, 1.7e9, actor)
        self._note(actor, "policy", "policy")
        return self.version

    def groups(self) -> tuple[GroupStatus, ...]:
        self.called()
        return (GroupStatus("group_cms", 1, 10, None, 250.0, 250.0, "wan"), GroupStatus("default", 0, 11))

    def host_rules(self, host: str, after: str, timeout: float) -> HostStatus:
        self.called()
        if timeout and after == self.revision:
            with self.arrived:
                self.waiting += 1
                self.arrived.notify_all()
            self.gate.wait(timeout)
        job = JobRules("0123456789abcdef", NetworkType.NAT, "02:00:00:00:00:01", (ip_address("10.255.64.2"),), slice=1)
        rules = HostRules(slices={1: (ip_network("10.255.64.2/32"),)}, jobs=(job,))
        return HostStatus(host, self.revision, None if after == self.revision else rules, (job.id,))

    def host_confirmed(
        self, host: str, revision: str, refused: Mapping[str, str], late: Sequence[str] = ()
    ) -> HostStatus:
        self.called()
        self.confirmed.append((host, revision, dict(refused), *late))
        return HostStatus(host, self.revision)

    def explain(self, src: str, dst: str, timeout: float) -> Explanation:
        self.called()
        for name in (src, dst):
            if name not in self.known:
                try:
                    ip_address(name)
                except ValueError:
                    raise AdError("src" if name == src else "dst", f"{name!a} is no address and no job id") from None
        return Explanation(src, dst, "dropped", "Different users.", (Step("policy", "slice by Owner", "", 4, 240),))

    def audit(self, subject: str | None, cursor: str | None, limit: int) -> AuditPage:
        self.called()
        before = int(cursor) if cursor and cursor.isascii() and cursor.isdigit() and len(cursor) < 10 else 1 << 60
        if cursor is not None and before == 1 << 60:
            raise NotFoundError("That cursor is none of this list.")
        found = [e for e in reversed(self.trail) if e.number < before and subject in (None, e.subject)]
        return AuditPage(tuple(found[:limit]), str(found[limit - 1].number) if len(found) > limit else None)

    def ready(self) -> Readiness:
        return Readiness(self.is_ready, () if self.is_ready else ("the policy was not read",))


class FakeAccounts:
    """What jobs have used, as tests set it."""

    def __init__(self, controls: FakeControls) -> None:
        self.of = controls
        self.written = 1.7e9

    def of_jobs(self, jobs: Sequence[Job]) -> Mapping[int, JobUsage]:
        self.of.called()
        return {job.number: self.of.used[job.id] for job in jobs if job.id in self.of.used}

    def counted(self, job_id: str, report: WorkerCounts, final: bool) -> bool:
        job = self.of.get(job_id)
        if not job.live or (job_id in self.of.used and self.of.used[job_id].final):
            return False
        port, wan, drops = report.port, report.wan or (0, 0, 0, 0), report.policy_drops or (0, 0)
        usage = Usage(
            port.tx_bytes, port.rx_bytes, port.tx_packets, port.rx_packets, *wan, *drops, port.tx_dropped,
            port.rx_dropped,
        )  # fmt: skip
        self.of.used[job_id] = JobUsage(usage, Rate(8_000_000, 4_000_000, 2_000_000, 1_000_000), 1.7e9 + 30, final)
        return True

    def page(self, chosen: UsageFilter, cursor: str | None, limit: int) -> UsagePage:
        self.of.called()
        self.of.asked = chosen
        if cursor is not None and not (cursor.isascii() and cursor.isdigit() and len(cursor) < 10):
            raise NotFoundError("That cursor is none of this list.")
        after = int(cursor or 0)
        rows = self.of.history[after : after + limit]
        more = len(self.of.history) > after + limit
        seconds = None if chosen.by == "job" else chosen.seconds
        return UsagePage(tuple(rows), chosen.start, chosen.end, seconds, str(after + limit) if more else None)

    def recent(self, job_id: str) -> Sequence[tuple[float, Rate]]:
        self.of.get(job_id)
        return [(1.7e9, Rate(8_000_000, 4_000_000, 2_000_000, 1_000_000))]

    def flowing(self, by: str, limit: int) -> tuple[Flowing, ...]:
        self.of.called()
        return (Flowing("group_cms", Rate(8_000_000, 4_000_000, 2_000_000, 0), 2, "group_cms"),)[:limit]
