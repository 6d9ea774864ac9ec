"""Enters the lab's root, natively or in User Mode Linux, and runs commands in it.: ``with
Lab.start(from_environment()) as lab: lab.start_pool()``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType

from lab import kernel, rootfs
from lab.channel import PAYLOAD_LIMIT, WINDOW, Channel, Kind
from lab.run import LabError
from lab.settings import LabSettings

READY_TIMEOUT = 60
POWEROFF_TIMEOUT = 15
POOL_TIMEOUT = 300
# Parts of a checkout that are not installed.
NOT_SOURCE = (".git", ".venv", "__pycache__", "build", "dist", "site", "*.egg-info", ".*_cache", "node_modules")


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a command in the lab; ``status`` is negative for a signal's number."""

    status: int
    stdout: str
    stderr: str


class Stream:
    """One command or connection in the lab, from outside. ``output`` and ``error`` grow until ``ended`` is set."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.error = bytearray()
        self.result: dict[str, object] = {}
        self.ended = threading.Event()

    def receive(self, kind: Kind, payload: bytes) -> None:
        """Take one frame; called by the lab's reading thread."""
        if kind is Kind.OUTPUT:
            self.output += payload
        elif kind is Kind.ERROR:
            self.error += payload
        elif kind is Kind.EXIT:
            self.result = json.loads(payload)
            self.ended.set()


class Lab:
    """A lab that runs. ``directory`` holds its logs, and is seen inside as ``/lark/run``."""

    def __init__(
        self, directory: Path, choice: kernel.Choice, process: subprocess.Popen[bytes], sock: socket.socket
    ) -> None:
        self.directory = directory
        self.choice = choice
        self._process = process
        self._socket = sock
        self._channel = Channel(sock.fileno(), window=WINDOW)
        self._streams: dict[int, Stream] = {}
        self._numbers = count(1)
        self._ready = threading.Event()
        self._gone = threading.Event()
        self._reader = threading.Thread(target=self._serve, daemon=True)
        self._reader.start()

    @classmethod
    def start(cls, settings: LabSettings, packages: Sequence[str] = ()) -> Lab:
        """Build the root if need be, enter it, and wait until it takes commands. The pool is not started yet.

        ``packages`` are Debian's that the root has beside its own.

        Raises LabError if this machine cannot, or if the lab does not answer in time; the message names its log.
        """
        if os.geteuid() != 0:
            raise LabError("the lab needs root: it makes namespaces and mounts")
        choice = kernel.choose(settings.kind)
        print(f"lab: {choice.kind}: {choice.reason}", file=sys.stderr)
        root = rootfs.build(settings, packages)
        settings.runs.mkdir(parents=True, exist_ok=True)
        directory = Path(tempfile.mkdtemp(prefix="lark-lab-", dir=settings.runs))
        # Users inside read their results and code through it.
        directory.chmod(0o755)
        layers = (_install_project(settings, root, directory), *root.layers)
        ours, theirs = socket.socketpair()
        with theirs, (directory / "logs" / "console.log").open("wb") as console:
            process = subprocess.Popen(
                _enter(choice.kind, directory, layers, settings.memory_mb, theirs.fileno()),
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        lab = cls(directory, choice, process, ours)
        deadline = time.monotonic() + READY_TIMEOUT
        while not lab._ready.wait(0.1):
            if process.poll() is not None or time.monotonic() > deadline:
                lab.stop(keep=True)
                raise LabError(f"the lab did not come up within {READY_TIMEOUT} s: see {directory}/logs/console.log")
        return lab

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(keep=kind is not None)

    def start_pool(self, timeout: float = POOL_TIMEOUT) -> None:
        """Switch every machine on and wait until both workers are in the pool; progress goes to standard error.

        Raises LabError with what was printed if that fails.
        """
        result = self.pool("start", timeout=timeout)
        sys.stderr.write(result.stdout)

    def pool(self, *arguments: str, timeout: float = 120) -> Result:
        """Run ``lab.inside.pool`` with ``arguments``: start, on NAME, off NAME, status, logs. Raises LabError if it
        fails.
        """
        return self.run(["python3", "-m", "lab.inside.pool", *arguments], timeout=timeout)

    def on(
        self,
        machine: str,
        *command: str,
        user: str = "root",
        timeout: float = 60,
        check: bool = True,
        stdin: str = "",
    ) -> Result:
        """Run ``command`` on a machine of the lab, as ``user`` and in their home; otherwise like ``run``."""
        return self.run(["on", machine, "-u", user, *command], timeout=timeout, check=check, stdin=stdin)

    def write(self, machine: str, path: str, text: str, *, user: str = "root", mode: int = 0o644) -> None:
        """Write a file on a machine, owned by ``user``; its directory is made. Raises LabError if that fails."""
        script = 'mkdir -p "$(dirname "$1")" && cat > "$1" && chmod "$2" "$1"'
        self.on(machine, "sh", "-c", script, "lab", path, f"{mode:o}", user=user, stdin=text)

    def run(
        self,
        command: Sequence[str],
        *,
        timeout: float = 60,
        check: bool = True,
        stdin: str = "",
        env: Mapping[str, str] | None = None,
    ) -> Result:
        """Run ``command`` in the lab, outside its machines, and return its result.

        Raises LabError if it cannot be started, does not end within ``timeout`` seconds (it is killed then), if the
        lab is gone, or (with ``check``) for another status than 0.
        """
        stream = Stream()
        number = self.open(stream, Kind.EXEC, {"argv": list(command), "env": dict(env or {})})
        self.give(number, stdin.encode())
        self.give(number, b"", end=True)
        if not stream.ended.wait(timeout):
            self.kill(number)
            raise LabError(f"{' '.join(command)}: no end within {timeout:g} s\n{_tail(stream.output + stream.error)}")
        if "error" in stream.result:
            raise LabError(f"{' '.join(command)}: {stream.result['error']}")
        status = int(str(stream.result["status"]))
        if check and status != 0:
            raise LabError(f"{' '.join(command)}: status {status}: {_tail(stream.error or stream.output)}")
        return Result(status, stream.output.decode(errors="replace"), stream.error.decode(errors="replace"))

    def open(self, stream: Stream, kind: Kind, request: Mapping[str, object]) -> int:
        """Start a command (EXEC) or a connection (CONNECT) that ``stream`` gets the frames of; its number.

        Raises LabError if the lab is gone.
        """
        number = next(self._numbers)
        self._streams[number] = stream
        self._send(number, kind, json.dumps(request).encode())
        return number

    def give(self, number: int, data: bytes, *, end: bool = False) -> None:
        """Give ``data`` to a stream's input; ``end`` closes it. Raises LabError if the lab is gone."""
        for start in range(0, len(data), PAYLOAD_LIMIT):
            self._send(number, Kind.INPUT, data[start : start + PAYLOAD_LIMIT])
        if end:
            self._send(number, Kind.INPUT)

    def resize(self, number: int, rows: int, columns: int) -> None:
        """Tell a stream's terminal its size. Raises LabError if the lab is gone."""
        self._send(number, Kind.RESIZE, json.dumps({"rows": rows, "columns": columns}).encode())

    def kill(self, number: int) -> None:
        """End a stream's command and its process group, or its connection."""
        with contextlib.suppress(LabError):
            self._send(number, Kind.KILL)

    def stop(self, *, keep: bool) -> None:
        """Switch the lab off, at the latest by killing it. With ``keep`` every daemon's log stays in ``directory``."""
        if keep and self._ready.is_set() and not self._gone.is_set():
            with contextlib.suppress(LabError):
                self.pool("logs")
        with contextlib.suppress(LabError):
            self._send(0, Kind.POWEROFF)
        try:
            self._process.wait(POWEROFF_TIMEOUT)
        except subprocess.TimeoutExpired:
            # The first process of the PID namespace dies with this one, and all others with that.
            self._process.kill()
            self._process.wait()
        self._socket.shutdown(socket.SHUT_RDWR)
        self._reader.join()
        self._socket.close()
        if keep:
            print(f"lab: the logs are in {self.directory}/logs", file=sys.stderr)
        else:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _send(self, number: int, kind: Kind, payload: bytes = b"") -> None:
        try:
            self._channel.send(number, kind, payload)
        except OSError as error:
            raise LabError(f"the lab is gone: see {self.directory}/logs/console.log") from error

    def _serve(self) -> None:
        self._channel.serve(self._receive)
        self._gone.set()
        for stream in list(self._streams.values()):
            stream.receive(Kind.EXIT, b'{"error": "the lab is gone"}')

    def _receive(self, number: int, kind: Kind, payload: bytes) -> None:
        if kind is Kind.READY:
            self._ready.set()
        stream = self._streams.get(number)
        if stream is not None:
            if kind is Kind.EXIT:
                del self._streams[number]
            stream.receive(kind, payload)


def _tail(output: bytes | bytearray, size: int = 4000) -> str:
    return bytes(output[-size:]).decode(errors="replace").strip()


def _install_project(settings: LabSettings, root: rootfs.RootFs, directory: Path) -> Path:
    """Install the checkout into ``/opt/lark``, as a layer of this run, and leave its source and the lab's own code in
    it.
    """
    for name in ("code", "logs", "root"):
        (directory / name).mkdir()
    ignore = shutil.ignore_patterns(*NOT_SOURCE)
    shutil.copytree(settings.source, directory / "source", ignore=ignore, symlinks=True)
    shutil.copytree(settings.source / "lab", directory / "code" / "lab", ignore=ignore)
    layer = directory / "project"
    distributions = "/mnt/lark_common /mnt/lark_worker /mnt"
    install = f"/opt/lark/bin/pip install --no-cache-dir --no-index --no-deps --no-build-isolation -q {distributions}"
    rootfs.install(root.layers, layer, directory / "source", install)
    return layer


def _enter(kind: str, directory: Path, layers: Sequence[Path], memory_mb: int, fd: int) -> list[str]:
    """The command that enters the root, as the first process of a PID namespace that ends with the caller."""
    root = directory / "root"
    lines = [
        "set -e",
        f"mount -t overlay lab -o lowerdir={':'.join(map(str, layers))} {root}",
        f"mount --bind {directory} {root}/mnt",
    ]
    namespaces = ["--mount", "--pid"]
    init = "/mnt/code/lab/inside/init.sh"
    if kind == "uml":
        lines += [
            f"mount -t proc proc {root}/proc",
            # The guest's memory is a file here: it is taken as it is used, and ends with the mount.
            f"mount -t tmpfs -o size={memory_mb + 64}m memory {root}/tmp",
            f"mount -t tmpfs -o size={memory_mb + 64}m memory {root}/dev/shm",
            # Without HOME the kernel fails while it starts: it keeps the name of its instance there.
            f"exec {' '.join(kernel.real_time(kind))} env -i PATH=$PATH HOME=/tmp TMPDIR=/dev/shm chroot {root}"
            f" /usr/bin/linux.uml mem={memory_mb}M rootfstype=hostfs rootflags=/"
            f" root=/dev/root ro seccomp=on con0=null,fd:1 con=null ssl0=fd:{fd} ssl=null quiet panic=-1"
            f" init={init} LAB_KIND=uml LAB_CHANNEL=/dev/ttyS0",
        ]
    else:
        namespaces += ["--net", "--uts", "--ipc"]
        userspace = "LAB_USERSPACE=1" if kind == "userspace" else ""
        lines += [
            f"exec env -i PATH=$PATH LAB_KIND=native LAB_CHANNEL=fd:{fd} {userspace} chroot {root} /bin/sh {init}"
        ]
    enter = ["setpriv", "--pdeathsig", "KILL", "unshare", *namespaces, "--fork", "--kill-child=KILL"]
    return [*enter, "sh", "-c", "\n".join(lines)]
