"""The six jobs: who runs where, the ads that HTCondor gives a hook, and the hook itself, run as HTCondor runs it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from demo.topology import ROOT
from lab.namespaces import Host
from lab.run import run

HOOK = ROOT / "scripts" / "starter_hook.sh"


@dataclass(frozen=True, slots=True)
class DemoJob:
    """A job to run: its number (cluster, address, slot are made from it), its name here, its owner, its worker."""

    number: int
    name: str
    owner: str
    worker: str

    @property
    def short(self) -> str:
        """Its name in the head of a matrix."""
        return self.name[0].upper() + self.name.partition("-")[2]

    @property
    def group(self) -> str:
        """Its accounting group."""
        return "group_astro" if self.owner in ("carol", "mallory") else "group_physics"

    @property
    def ipv4(self) -> str:
        """Its IPv4 address."""
        return f"10.64.0.{self.number}"

    @property
    def ipv6(self) -> str:
        """Its IPv6 address."""
        return f"2001:db8:64::{self.number}"

    @property
    def slot(self) -> str:
        """The slot's short name."""
        return f"slot1_{self.number}"


JOBS = (
    DemoJob(1, "alice-1", "alice", "worker1"),
    DemoJob(2, "alice-2", "alice", "worker2"),
    DemoJob(3, "bob", "bob", "worker1"),
    DemoJob(4, "carol-1", "carol", "worker1"),
    DemoJob(5, "carol-2", "carol", "worker2"),
    DemoJob(6, "mallory", "mallory", "worker2"),
)


def job_ad(job: DemoJob) -> str:
    """The job ad as the hook reads it on standard input."""
    return f"""\
AccountingGroup = "{job.group}.{job.owner}"
AcctGroup = "{job.group}"
AcctGroupUser = "{job.owner}"
Args = "3600"
ClusterId = {100 + job.number}
Cmd = "/bin/sleep"
EnteredCurrentStatus = 1700000100
GlobalJobId = "submit.example#{100 + job.number}.0#1700000000"
Iwd = "/home/{job.owner}"
JobCurrentStartDate = 1700000100
JobPrio = 0
JobStatus = 2
JobUniverse = 5
MyType = "Job"
NumJobStarts = 1
Owner = "{job.owner}"
ProcId = 0
QDate = 1700000000
RemoteHost = "{job.slot}@{job.worker}.example"
RequestCpus = 1
RequestMemory = 128
Requirements = (TARGET.Arch == "X86_64") && (TARGET.OpSys == "LINUX") && (TARGET.Memory >= RequestMemory)
TargetType = "Machine"
User = "{job.owner}@submit.example"
"""


def machine_ad(job: DemoJob, host: Host, datapath: int) -> str:
    """The machine ad, with the attributes in which a worker publishes how the job is attached."""
    return f"""\
Activity = "Busy"
Arch = "X86_64"
Cpus = 1
LarkAddressType = "static"
LarkDatapathId = "{datapath:016x}"
LarkExternalInterface = "{host.port}"
LarkInnerAddressIPv4 = "{job.ipv4}"
LarkInnerAddressIPv6 = "{job.ipv6}"
LarkInnerMacAddress = "{host.mac}"
LarkNetworkType = "ovs_bridge"
Machine = "{job.worker}.example"
Memory = 2048
MyType = "Machine"
Name = "{job.slot}@{job.worker}.example"
OpSys = "LINUX"
State = "Claimed"
"""


class Hook:
    """scripts/starter_hook.sh with the settings of the demo's controller."""

    def __init__(self, directory: Path, url: str, token_file: Path) -> None:
        self._directory = directory
        self._settings = {"LARK_URL": url, "LARK_TOKEN_FILE": str(token_file), "LARK_WAIT": "10"}

    def start(self, job: DemoJob, host: Host, datapath: int) -> dict[str, str]:
        """Say that a job starts; returns the lines that HTCondor would merge into the job ad."""
        scratch = self._directory / job.name
        scratch.mkdir()
        (scratch / ".job.ad").write_text(job_ad(job))
        (scratch / ".machine.ad").write_text(machine_ad(job, host, datapath))
        answer = self._run(job, "start")
        return dict(re.findall(r'(?m)^(\w+) = "?(.*?)"?$', answer))

    def end(self, job: DemoJob) -> None:
        """Say that a job has ended."""
        self._run(job, "exit", "exit")

    def _run(self, job: DemoJob, *arguments: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("LARK_", "_CONDOR"))}
        environment |= self.environment(job)
        return run(["sh", str(HOOK), *arguments], stdin=job_ad(job), env=environment, timeout=40).stdout

    def environment(self, job: DemoJob) -> dict[str, str]:
        """The settings of the hook, and the environment that HTCondor gives the hook of a job."""
        scratch = self._directory / job.name
        return self._settings | {
            "LARK_HOOK_CONF": str(scratch / "none"),
            "_CONDOR_JOB_AD": str(scratch / ".job.ad"),
            "_CONDOR_MACHINE_AD": str(scratch / ".machine.ad"),
            "_CONDOR_SCRATCH_DIR": str(scratch),
            "_CONDOR_SLOT": job.slot,
        }
