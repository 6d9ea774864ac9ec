"""A worker for tests: real processes in the shape of HTCondor's, real Open vSwitch, the real controller."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType

import classad2

from lab.namespaces import Net
from lab.openvswitch import OpenVSwitch
from lark_common.client import Client
from lark_controller.cli.run import Service as Controller
from lark_controller.rest.tokens import Scope, add
from lark_controller.settings import load as controller_settings
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import StartdError
from lark_worker.hook_socket import HookSocket
from lark_worker.identity.processes import Process, Programs
from lark_worker.identity.startd import Slot, read_slot
from lark_worker.network.commands import run
from lark_worker.network.job_network import JobNetworks
from lark_worker.queues.fair_queues import FairQueues
from lark_worker.rules.table import delete
from lark_worker.settings import Settings
from lark_worker.settings import load as worker_settings
from lark_worker.worker import Worker

SCRIPTS = Path(__file__).parents[2] / "scripts"
NOBODY = 65534
DATAPATH = 0xE1
POLICY = """
version: 1
networks:
  jobs: [10.64.0.0/16, "2001:db8:64::/48"]
  local: [10.0.0.0/8, "2001:db8::/32"]
policies:
  - block: {when: 'Owner == "mallory"'}
  - slice: {by: Owner}
"""


class Starter:
    """A process that is a condor_starter by program, parent and user, and runs what it is told."""

    def __init__(self, folder: Path, slot: str) -> None:
        self.folder = folder / slot
        self.scratch = self.folder / "scratch"
        self.scratch.mkdir(parents=True, exist_ok=True)
        for path in (*reversed(self.folder.relative_to("/tmp").parents), Path(slot)):
            Path("/tmp", path).chmod(0o755) if path != Path(slot) else self.folder.chmod(0o755)
        shutil.chown(self.scratch, NOBODY, NOBODY)
        (self.folder / slot).write_text('echo $$\nwhile read -r line; do eval "$line"; done\n')
        (self.folder / "startd").write_text(f'"{folder}/condor_starter" -f -a {slot} submit.example\nexit $?\n')
        self._process = subprocess.Popen(
            [str(folder / "condor_startd"), "startd"],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self.pid = int(self._read())

    def run(self, command: str) -> tuple[int, str]:
        """Status and output of a shell command line below the starter, as root."""
        assert self._process.stdin is not None
        self._process.stdin.write("{ " + command.replace("\n", " ") + '; } 2>&1; printf "\\nend %s\\n" "$?"\n')
        output = []
        while not (line := self._read()).startswith("end "):
            output.append(line)
        return int(line.split()[1]), "\n".join(output)

    def as_user(self, command: str, uid: int = NOBODY) -> tuple[int, str]:
        """The same as an ordinary user."""
        quoted = "'" + command.replace("'", "'\\''") + "'"
        return self.run(f"setpriv --reuid={uid} --regid={uid} --clear-groups sh -c {quoted}")

    def kill(self) -> None:
        """kill -9, as nothing could have been said before."""
        subprocess.run(["kill", "-9", str(self.pid)], check=True)

    def close(self) -> None:
        """End startd and starter."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            self._process.stdout.close()

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError("the starter has ended")
        return line.rstrip("\n")


class FakeStartd:
    """A startd that says of each starter what the test says."""

    def __init__(self) -> None:
        self.ads: dict[int, str] = {}
        self.network: bool | StartdError | None = False

    def gives_jobs_its_network(self) -> bool | None:
        if isinstance(self.network, StartdError):
            raise self.network
        return self.network

    def slot(self, starter: Process) -> Slot:
        if starter.pid not in self.ads:
            raise StartdError("no such slot")
        return read_slot(classad2.parseOne(self.ads[starter.pid], classad2.Parser.Old))


class Pool:
    """One worker with its service, below ``folder``; the controller may be absent.

    What it left in the kernel would change what the packets of the next pool meet: :meth:`close` takes all of it away.
    """

    def __init__(
        self,
        folder: Path,
        ovs: OpenVSwitch,
        net: Net,
        extra: dict[str, str],
        policy: str = POLICY,
        controller: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.folder = folder
        self.ovs = ovs
        self.startd = FakeStartd()
        self.starters: list[Starter] = []
        self.bridge = net.name("b")
        self.prefix = "wt" + net.prefix[-2:]
        self.socket = folder / "worker.sock"
        (folder / "policy.yaml").write_text(policy)
        self.token = add(folder / "tokens.yaml", "worker", [Scope.HOOK, Scope.OPERATE])
        (folder / "token").write_text(self.token)
        (folder / "token").chmod(0o600)
        for program in ("condor_starter", "condor_startd"):
            shutil.copy("/bin/dash", folder / program)
        # The checkout may be where no other user can read.
        shutil.copy(SCRIPTS / "starter_hook.sh", folder / "starter_hook.sh")
        self._of_controller = dict(controller)
        self.controller: Controller | None = None
        self.worker: Worker | None = None
        self.service: HookSocket | None = None
        self.environment: dict[str, str] = {}
        self._ports = (0, 0)
        self._remove_tables()
        try:
            self._begin(extra)
        except BaseException:
            self.close()
            raise

    def _begin(self, extra: dict[str, str]) -> None:
        folder, ovs = self.folder, self.ovs
        self.start_controller()
        ovs.add_bridge(self.bridge, DATAPATH, f"tcp:127.0.0.1:{self._ports[0]}")
        self.environment = {
            "LARK_WORKER_URL": f"http://127.0.0.1:{self._ports[1]}",
            "LARK_WORKER_TOKEN_FILE": str(folder / "token"),
            "LARK_WORKER_SOCKET": str(self.socket),
            "LARK_WORKER_STATE_DIR": str(folder / "worker"),
            "LARK_WORKER_BRIDGE": self.bridge,
            "LARK_WORKER_OVS_DATABASE": f"unix:{ovs.database_socket}",
            "LARK_WORKER_NETWORKS": "10.64.0.0/16,2001:db8:64::/48",
            "LARK_WORKER_NAMESERVERS": "10.64.0.53",
            "LARK_WORKER_PREFIX": self.prefix,
            "LARK_WORKER_STARTERS": str(folder / "condor_starter"),
            "LARK_WORKER_STARTDS": str(folder / "condor_startd"),
            # On a busy machine the controller, in this same process, may take long to answer and to confirm.
            "LARK_WORKER_TIMEOUT": "15",
            "LARK_WORKER_WAIT": "20",
            **extra,
        }
        self.enter = folder / "lark-enter"
        self.enter.write_text(
            (SCRIPTS / "lark-enter").read_text().replace("/run/lark-worker/worker.sock", str(self.socket))
        )
        self.enter.chmod(0o755)
        self.start_service()

    @property
    def settings(self) -> Settings:
        return worker_settings(self.environment)

    def start_controller(self) -> None:
        settings = controller_settings(
            {
                "LARK_STATE_DIR": str(self.folder / "controller"),
                "LARK_POLICY_FILE": str(self.folder / "policy.yaml"),
                "LARK_TOKENS_FILE": str(self.folder / "tokens.yaml"),
                "LARK_OPENFLOW_LISTEN": f"127.0.0.1:{self._ports[0]}",
                "LARK_REST_LISTEN": f"127.0.0.1:{self._ports[1]}",
                **self._of_controller,
            }
        )
        self.controller = Controller(settings)
        self.controller.start()
        self._ports = (
            self.controller.controller.openflow_addresses[0][1],
            self.controller.server.addresses[0].port,
        )

    def stop_controller(self) -> None:
        controller, self.controller = self.controller, None
        if controller is not None:
            controller.stop()

    @property
    def client(self) -> Client:
        return Client(f"http://127.0.0.1:{self._ports[1]}", self.token)

    def start_service(self) -> None:
        settings = self.settings
        leaves = FairQueues(settings.ovs_database)
        self.link = ControllerLink(settings)
        self.worker = Worker(settings, self.link, self.startd, JobNetworks(settings), leaves)
        self.worker.start()
        programs = Programs(frozenset(settings.starters), frozenset(settings.startds))
        self.service = HookSocket(settings.socket, self.worker, programs)
        self.service.start()

    def stop_service(self) -> None:
        service, worker = self.service, self.worker
        self.service = self.worker = None
        with ExitStack() as stack:
            if worker is not None:
                stack.callback(worker.stop)
            if service is not None:
                stack.callback(service.stop)

    def starter(self, number: int, owner: str, machine: str = "", group: str = "") -> Starter:
        """A starter with a job of ``owner`` on slot ``number``, not yet registered."""
        starter = Starter(self.folder, f"slot1_{number}")
        self.starters.append(starter)
        self.startd.ads[starter.pid] = (
            f'Name = "slot1_{number}@worker1"\nMachine = "worker1"\nGlobalJobId = "submit#{number}.0#1"\n'
            f'Owner = "{owner}"\nJobCurrentStartDate = 1700000000\n'
            + (f'AcctGroup = "{group}"\n' if group else "")
            + machine
        )
        return starter

    def hook(self, starter: Starter, action: str, owner: str, number: int, more: str = "", wait: float = 20) -> str:
        """The output of ``starter_hook.sh`` for a job whose user claims to be ``owner``; a start that is confirmed does
        not ``wait`` for the rest of that time."""
        ad = starter.scratch / "job.ad"
        ad.write_text(
            f'Owner = "{owner}"\nGlobalJobId = "submit#{number}.0#1"\nJobCurrentStartDate = 1700000000\n{more}'
        )
        ad.chmod(0o644)
        machine = starter.scratch / "machine.ad"
        machine.write_text(f'Name = "slot1_{number}@worker1"\nMachine = "worker1"\n')
        machine.chmod(0o644)
        _, said = starter.as_user(
            f"LARK_SOCKET={self.socket} LARK_HOOK_CONF=/nonexistent LARK_WAIT={wait:g} LARK_RETRIES=0 LARK_TIMEOUT=60"
            f" _CONDOR_MACHINE_AD={machine} _CONDOR_SCRATCH_DIR={starter.scratch}"
            f" {self.folder}/starter_hook.sh {action} exit <{ad}"
        )
        return said

    def inside(self, starter: Starter, command: str) -> tuple[int, str]:
        """Run a command as the job's user in the job's namespace, by lark-enter, as sudo would start it."""
        file = starter.scratch / "environment"
        file.write_bytes(b"PATH=/usr/sbin:/usr/bin:/sbin:/bin\0JOB=yes\0")
        shutil.chown(file, NOBODY, NOBODY)
        quoted = "'" + command.replace("'", "'\\''") + "'"
        return starter.run(f"SUDO_UID={NOBODY} SUDO_GID={NOBODY} {self.enter} {file} /bin/sh -c {quoted}")

    def ports(self) -> list[str]:
        """Ports of jobs on the bridge."""
        return [port for port in self.ovs.vsctl("list-ports", self.bridge).split() if port.startswith(self.prefix)]

    def leftovers(self) -> list[str]:
        """The ports, devices and namespaces that have this worker's names."""
        devices = [path.name for path in Path("/sys/class/net").iterdir()]
        folders = [path.name for folder in ("/run/netns", "/etc/netns") for path in _listed(Path(folder))]
        return [name for name in (*self.ports(), *devices, *folders) if name.startswith(self.prefix)]

    def close(self) -> None:
        """End all that was started, and take away what jobs have left in the kernel, whatever of it fails."""
        with ExitStack() as stack:
            stack.callback(self._remove_tables)
            stack.callback(self._sweep)
            stack.callback(self.stop_controller)
            stack.callback(self.stop_service)
            for starter in self.starters:
                stack.callback(starter.close)

    def _sweep(self) -> None:
        if self.environment:
            JobNetworks(self.settings).sweep(())

    def _remove_tables(self) -> None:
        """Remove the tables with this worker's names: a service that is stopped leaves those of live jobs."""
        listed = json.loads(run(["nft", "-j", "list", "tables"]) or '{"nftables": []}')["nftables"]
        for table in (entry["table"] for entry in listed if "table" in entry):
            if table["name"] == self.prefix or table["name"].startswith(f"{self.prefix}_"):
                run(["nft", "-f", "-"], delete(table["family"], table["name"]))


def _listed(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.exists() else []


@contextmanager
def a_pool(folder: Path, ovs: OpenVSwitch, net: Net, policy: str = POLICY, **extra: str) -> Iterator[Pool]:
    """A pool for one test."""
    pool = Pool(folder, ovs, net, {f"LARK_WORKER_{name.upper()}": value for name, value in extra.items()}, policy)
    try:
        yield pool
    finally:
        pool.close()


@contextmanager
def a_pool_with_queues(folder: Path, ovs: OpenVSwitch, net: Net, policy: str) -> Iterator[Pool]:
    """A pool for one test, whose controller makes queues at the switch, too."""
    pool = Pool(folder, ovs, net, {}, policy, {"LARK_OVSDB": f"unix:{ovs.database_socket}"})
    try:
        yield pool
    finally:
        pool.close()
        # First: rows that a port uses cannot be destroyed.
        ovs.vsctl("--if-exists", "del-br", pool.bridge)
        ovs.vsctl("--all", "destroy", "qos", "--", "--all", "destroy", "queue")


def eventually(what: object, seconds: float = 60.0) -> None:
    """Wait until ``what()`` is true; an event that is never set makes no busy loop."""
    assert callable(what)
    pause = threading.Event()
    left = seconds
    while not what():
        assert left > 0, "did not come to be"
        pause.wait(0.05)
        left -= 0.05
