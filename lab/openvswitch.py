"""A private Open vSwitch: its own database, daemons, sockets and logs, all below one directory.

Nothing here touches an Open vSwitch that the machine already runs: every program has its sockets by option, and
daemons are stopped by process id. Bridges use the userspace datapath (``datapath_type=netdev``) unless another is
named, so that no kernel module is needed.

    with OpenVSwitch(directory) as ovs:
        ovs.add_bridge("br0", dpid=1, controller="tcp:127.0.0.1:6653")
        print(ovs.ofctl("br0", "dump-flows"))
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from lab.run import LabError, run

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
START_LIMIT = 20.0
STOP_LIMIT = 10.0


def programs_missing() -> tuple[str, ...]:
    """The programs that the lab needs and that are not installed."""
    path = os.environ.get("PATH", "") + os.pathsep + "/usr/sbin:/sbin"
    names = ("ovsdb-server", "ovs-vswitchd", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl", "ip", "ethtool", "ping")
    folders = [Path(folder) for folder in path.split(os.pathsep) if folder]
    return tuple(name for name in names if not any((folder / name).exists() for folder in folders))


class OpenVSwitch:
    """One Open vSwitch with all its state in ``directory``, which must exist; a context manager.

    The directory's path must be short: a Unix socket's path may have 107 bytes.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.database = directory / "conf.db"
        self.database_socket = directory / "db.sock"
        self._env = {
            **os.environ,
            "PATH": os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin",
            "OVS_RUNDIR": str(directory),
            "OVS_LOGDIR": str(directory),
            "OVS_DBDIR": str(directory),
            "OVS_SYSCONFDIR": str(directory),
        }
        self._server: subprocess.Popen[bytes] | None = None
        self._switch: subprocess.Popen[bytes] | None = None
        self._logs: list[IO[bytes]] = []
        self._taps: set[str] = set()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def switch_pid(self) -> int:
        """The process id of the running ovs-vswitchd; raises LabError when it is not running."""
        if self._switch is None or self._switch.poll() is not None:
            raise LabError("ovs-vswitchd is not running")
        return self._switch.pid

    def start(self) -> None:
        """Start both daemons and wait until they answer; raises LabError, and then leaves none running."""
        try:
            if not self.database.exists():
                run(["ovsdb-tool", "create", str(self.database), str(SCHEMA)], env=self._env)
            self._start_database()
            # Its socket is there a moment before it listens.
            init = ["ovs-vsctl", f"--db=unix:{self.database_socket}", "--retry", "--timeout=15", "--no-wait", "init"]
            run(init, env=self._env)
            self.start_switch()
        except BaseException:
            self.stop()
            raise

    def start_switch(self) -> None:
        """Start ovs-vswitchd alone and wait until it has set up the bridges of the database."""
        control = self.directory / "vswitchd.ctl"
        control.unlink(missing_ok=True)
        self._switch = self._spawn(
            "ovs-vswitchd", f"unix:{self.database_socket}", "--disable-system", f"--unixctl={control}"
        )
        self._wait_for(control, self._switch)
        # Without --no-wait, ovs-vsctl returns when the switch has taken over the database's configuration.
        self.vsctl("set", "Open_vSwitch", ".", f"external_ids:start={time.monotonic_ns()}")

    def stop_switch(self, *, kill9: bool = False) -> None:
        """Stop ovs-vswitchd alone; with ``kill9`` as in a crash, so that it can save and release nothing."""
        switch, self._switch = self._switch, None
        self._end(switch, kill9=kill9)

    @contextlib.contextmanager
    def database_hangs(self) -> Iterator[None]:
        """Let the database answer nobody for a while; it takes connections all the same."""
        if self._server is None:
            raise LabError("ovsdb-server is not running")
        self._server.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._server.send_signal(signal.SIGCONT)

    def restart(self, *, kill9: bool = False) -> None:
        """Stop and start ovs-vswitchd: its flows are gone, its configuration stays."""
        self.stop_switch(kill9=kill9)
        self.start_switch()

    def stop(self) -> None:
        """End both daemons; may be repeated."""
        if self._server is not None and self._server.poll() is None:
            with contextlib.suppress(LabError):
                self._taps.update(self.bridges())
        self.stop_switch()
        server, self._server = self._server, None
        self._end(server)
        while self._logs:
            self._logs.pop().close()
        # The userspace datapath's taps outlive the daemon.
        while self._taps:
            name = self._taps.pop()
            if Path("/sys/class/net", name, "tun_flags").exists():
                run(["ip", "link", "del", name], check=False)

    def vsctl(self, *args: str, timeout: float = 20) -> str:
        """The output of ``ovs-vsctl``; waits until the switch has done it."""
        return run(["ovs-vsctl", f"--db=unix:{self.database_socket}", *args], env=self._env, timeout=timeout).stdout

    def ofctl(self, bridge: str, command: str, *args: str, timeout: float = 20) -> str:
        """The output of ``ovs-ofctl -O OpenFlow13 COMMAND BRIDGE ARGS``, over the bridge's management socket."""
        target = f"unix:{self.directory / bridge}.mgmt"
        return run(["ovs-ofctl", "-O", "OpenFlow13", command, target, *args], env=self._env, timeout=timeout).stdout

    def appctl(self, *args: str, timeout: float = 20) -> str:
        """The output of ``ovs-appctl`` for a query of the switch (``ofproto/trace``, ``fdb/show``, …)."""
        target = str(self.directory / "vswitchd.ctl")
        return run(["ovs-appctl", "-t", target, *args], env=self._env, timeout=timeout).stdout

    @property
    def environment(self) -> dict[str, str]:
        """Environment in which ovs-ofctl and ovs-vsctl started by others (scripts) find this Open vSwitch."""
        return dict(self._env)

    def bridges(self) -> list[str]:
        """The names of the bridges that exist."""
        return self.vsctl("--timeout=5", "list-br").split()

    def add_bridge(
        self,
        name: str,
        dpid: int,
        controller: str | Iterable[str] | None = None,
        *,
        datapath_type: str = "netdev",
        fail_mode: str = "secure",
        mac: str | None = None,
    ) -> None:
        """Make a bridge as Lark needs it: OpenFlow 1.3, ``fail_mode=secure``, in-band control disabled.

        ``controller`` is one target or several (``tcp:127.0.0.1:6653``); a lost one is tried again after at most a
        second, and is asked for a sign of life every five.
        """
        options = [f"other-config:datapath-id={dpid:016x}", "other-config:disable-in-band=true"]
        if mac is not None:
            options.append(f'other-config:hwaddr="{mac}"')
        self.vsctl(
            "add-br", name, "--",
            "set", "bridge", name, f"datapath_type={datapath_type}", "protocols=OpenFlow13", *options, "--",
            "set-fail-mode", name, fail_mode,
        )  # fmt: skip
        if controller is not None:
            self.set_controller(name, controller)

    def set_controller(self, bridge: str, controller: str | Iterable[str]) -> None:
        """Point a bridge to one controller or several, and to no other."""
        targets = [controller] if isinstance(controller, str) else list(controller)
        command: list[str] = []
        for number, target in enumerate(targets):
            command += [f"--id=@c{number}", "create", "controller", f'target="{target}"', "connection_mode=out-of-band"]
            command += ["max_backoff=1000", "inactivity_probe=5000", "--"]
        references = ",".join(f"@c{number}" for number in range(len(targets)))
        self.vsctl(*command, "set", "bridge", bridge, f"controller=[{references}]")

    def set_tls(self, private_key: Path, certificate: Path, ca_certificate: Path) -> None:
        """The files (PEM) with which bridges speak to controllers whose target begins with ``ssl:``."""
        self.vsctl("set-ssl", str(private_key), str(certificate), str(ca_certificate))

    def is_connected(self, bridge: str) -> bool:
        """True if a controller of this bridge is connected."""
        shown = self.vsctl("--format=csv", "--no-headings", "--columns=is_connected,target", "list", "controller")
        targets = set(self.vsctl("get-controller", bridge).split())
        rows = (line.split(",", 1) for line in shown.splitlines())
        return any(state == "true" and target.strip('"') in targets for state, target in rows)

    def add_port(self, bridge: str, port: str, number: int | None = None, *, vlan: int | None = None) -> int:
        """Attach a device to a bridge and return its OpenFlow port number (asked for: ``number``).

        Raises LabError if Open vSwitch cannot use the device.
        """
        command = ["--may-exist", "add-port", bridge, port]
        if vlan is not None:
            command.append(f"tag={vlan}")
        if number is not None:
            command += ["--", "set", "interface", port, f"ofport_request={number}"]
        self.vsctl(*command)
        got = self.port_number(port)
        if got <= 0:
            problem = self.vsctl("get", "interface", port, "error").strip()
            raise LabError(f"port {port} of {bridge}: {problem}")
        return got

    def del_port(self, bridge: str, port: str) -> None:
        """Detach a device from a bridge; nothing happens if it is not there."""
        self.vsctl("--if-exists", "del-port", bridge, port)

    def port_number(self, port: str) -> int:
        """The OpenFlow number of a port, -1 if Open vSwitch could not open the device."""
        wait = ["--timeout=10", "wait-until", "interface", port, "ofport!=[]"]
        text = self.vsctl(*wait, "--", "get", "interface", port, "ofport")
        return int(text.strip())

    def flows(self, bridge: str, *args: str) -> list[str]:
        """The flows of a bridge without counters and ages, sorted: fit to be compared."""
        shown = self.ofctl(bridge, "dump-flows", *args, "--no-stats")
        return sorted(line.strip() for line in shown.splitlines() if "actions=" in line)

    def log(self) -> str:
        """The log of both daemons, for a failed test's message."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.directory.glob("*.log")))

    def _start_database(self) -> None:
        self.database_socket.unlink(missing_ok=True)
        self._server = self._spawn(
            "ovsdb-server",
            str(self.database),
            f"--remote=punix:{self.database_socket}",
            f"--unixctl={self.directory / 'ovsdb.ctl'}",
            # As ovs-ctl(8) has it: further listeners, and the files for TLS, are those of the database itself.
            "--remote=db:Open_vSwitch,Open_vSwitch,manager_options",
            "--private-key=db:Open_vSwitch,SSL,private_key",
            "--certificate=db:Open_vSwitch,SSL,certificate",
            "--ca-cert=db:Open_vSwitch,SSL,ca_cert",
        )
        self._wait_for(self.database_socket, self._server)

    def _spawn(self, program: str, *args: str) -> subprocess.Popen[bytes]:
        log = (self.directory / f"{program}.log").open("ab")
        self._logs.append(log)
        common = ("--no-chdir", "-vconsole:info", "-vsyslog:off", "-vfile:off")
        try:
            return subprocess.Popen(
                # A test run that is killed takes its daemons with it.
                ["setpriv", "--pdeathsig", "TERM", program, *args, *common],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise LabError(f"{program} is not installed (Debian: openvswitch-switch)") from error

    def _wait_for(self, socket: Path, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_LIMIT
        while not socket.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise LabError(f"{process.args!r} did not start:\n{self.log()}")
            time.sleep(0.01)

    @staticmethod
    def _end(process: subprocess.Popen[bytes] | None, *, kill9: bool = False) -> None:
        if process is None:
            return
        if kill9:
            process.kill()
        else:
            process.terminate()
        try:
            process.wait(STOP_LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_LIMIT)
