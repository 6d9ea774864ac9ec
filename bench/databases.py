"""Many real OVSDB servers, one a worker, in a process of their own: ``python -m bench.databases DIRECTORY COUNT PORT``.

Each is an ``ovsdb-server`` with the schema of Open vSwitch on a Unix socket, and on ``PORT`` of its worker's own
loopback address unless that is 0, and has a bridge with all ports of a
worker of :mod:`bench.population`. ovs-vswitchd is played: a request (``next_cfg``) is reported as in force
(``cur_cfg``) as soon as it was committed. ``commits`` on the standard input is answered by a line of JSON with what was
committed since the last time; at the standard input's end all servers are stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from bench.fleet import own_address
from bench.population import PORTS
from lab.openvswitch import SCHEMA
from lark_controller.cli.open_files import raise_open_files

START_SECONDS: Final = 600.0
# Connections that are opened at a time.
AT_ONCE: Final = 64
MONITOR: Final = "cfg"


def address(directory: Path, number: int) -> str:
    """The address of the database of worker ``number``, as in a policy."""
    return f"unix:{_socket(directory, number)}"


class Played:
    """One database, on which ovs-vswitchd is played."""

    def __init__(self, number: int, commits: list[tuple[int, float]]) -> None:
        self._number = number
        self._commits = commits
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._said = 0
        self._next_cfg = 0
        self._ready = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def connect(self, path: Path) -> None:
        """Say which datapath the bridge is, and follow the database from now on."""
        reader, self._writer = await asyncio.open_unix_connection(str(path))
        self._task = asyncio.create_task(self._follow(reader))
        where: list[object] = [["name", "==", "br0"]]
        row = {"datapath_id": f"{self._number:016x}"}
        self._transact({"op": "update", "table": "Bridge", "where": where, "row": row})
        self._send("monitor", ["Open_vSwitch", MONITOR, {"Open_vSwitch": {"columns": ["next_cfg"]}}], MONITOR)
        await self._ready.wait()

    async def ended(self) -> None:
        """Wait for the end of the connection."""
        assert self._task is not None
        await asyncio.wait([self._task])

    def close(self) -> None:
        """End the connection."""
        if self._task is not None:
            self._task.cancel()
        if self._writer is not None:
            self._writer.close()

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65_536):
            now = time.monotonic()
            self._text += data.decode()
            while self._text:
                try:
                    message, end = self._decoder.raw_decode(self._text)
                except json.JSONDecodeError:
                    break
                self._text = self._text[end:].lstrip()
                self._take(message, now)

    def _take(self, message: dict[str, Any], now: float) -> None:
        if message.get("method") == "echo":
            self._write({"id": message["id"], "result": message["params"], "error": None})
        elif message.get("method") == "update":
            self._changed(message["params"][1], now)
        elif message.get("id") == MONITOR:
            # Requests that came while nobody was there.
            self._changed(message["result"], now)
            self._ready.set()
        elif message.get("error") or any(each and "error" in each for each in message.get("result") or ()):
            raise RuntimeError(f"database {self._number} refuses: {message}")

    def _changed(self, tables: dict[str, Any], now: float) -> None:
        for row in tables.get("Open_vSwitch", {}).values():
            number = row["new"]["next_cfg"]
            if number != self._next_cfg:
                self._next_cfg = number
                self._commits.append((self._number, now))
                self._transact({"op": "update", "table": "Open_vSwitch", "where": [], "row": {"cur_cfg": number}})

    def _transact(self, *operations: dict[str, Any]) -> None:
        self._said += 1
        self._send("transact", ["Open_vSwitch", *operations], self._said)

    def _send(self, method: str, params: list[Any], request: int | str) -> None:
        self._write({"id": request, "method": method, "params": params})

    def _write(self, message: dict[str, Any]) -> None:
        assert self._writer is not None
        self._writer.write(json.dumps(message).encode())


def template(path: Path) -> None:
    """A database with one bridge that has a worker's ports."""
    subprocess.run(["ovsdb-tool", "create", str(path), str(SCHEMA)], check=True)
    operations: list[Any] = ["Open_vSwitch"]
    ports = []
    for number, name in enumerate(("br0", "eth0", *(f"job{each}" for each in range(PORTS)))):
        kind = {"type": "internal"} if name == "br0" else {}
        interface = {"op": "insert", "table": "Interface", "uuid-name": f"i{number}", "row": {"name": name, **kind}}
        row = {"name": name, "interfaces": ["named-uuid", f"i{number}"]}
        operations += [interface, {"op": "insert", "table": "Port", "uuid-name": f"p{number}", "row": row}]
        ports.append(["named-uuid", f"p{number}"])
    bridge = {"name": "br0", "ports": ["set", ports]}
    operations.append({"op": "insert", "table": "Bridge", "uuid-name": "b", "row": bridge})
    operations.append({"op": "insert", "table": "Open_vSwitch", "row": {"bridges": ["named-uuid", "b"]}})
    done = subprocess.run(
        ["ovsdb-tool", "transact", str(path), json.dumps(operations)], check=True, capture_output=True, text=True
    )
    if '"error"' in done.stdout:
        raise RuntimeError(f"ovsdb-tool: {done.stdout}")


def _spawn(directory: Path, number: int, empty: Path, port: int) -> subprocess.Popen[bytes]:
    own = _socket(directory, number).parent
    own.mkdir()
    shutil.copy(empty, own / "conf.db")
    remotes = [f"--remote=punix:{own / 'db.sock'}"]
    if port:
        remotes.append(f"--remote=ptcp:{port}:{own_address(number)}")
    return subprocess.Popen(
        ["ovsdb-server", str(own / "conf.db"), *remotes, f"--unixctl={own / 'ctl'}", "--no-chdir", "-vconsole:off",
         "-vsyslog:off"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _socket(directory: Path, number: int) -> Path:
    return directory / str(number) / "db.sock"


async def _connected(directory: Path, count: int, commits: list[tuple[int, float]]) -> list[Played]:
    deadline = time.monotonic() + START_SECONDS
    while not all(_socket(directory, number).exists() for number in range(1, count + 1)):
        if time.monotonic() > deadline:
            raise TimeoutError("not every ovsdb-server has started")
        await asyncio.sleep(0.05)
    played = [Played(number, commits) for number in range(1, count + 1)]
    for begin in range(0, count, AT_ONCE):
        part = played[begin : begin + AT_ONCE]
        await asyncio.gather(*(each.connect(_socket(directory, each._number)) for each in part))
    return played


async def _serve(directory: Path, count: int) -> None:
    commits: list[tuple[int, float]] = []
    played = await _connected(directory, count, commits)
    _say({"databases": count})
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, sys.stdin.readline):
        _say(commits)
        commits.clear()
    for each in played:
        each.close()


def _say(found: object) -> None:
    print(json.dumps(found), flush=True)


def main(directory: Path, count: int, port: int) -> None:
    """Start the servers, serve until the standard input ends, and stop them."""
    raise_open_files()
    empty = directory / "template.db"
    template(empty)
    servers: list[subprocess.Popen[bytes]] = []
    try:
        # The ones that have started are stopped as well when one cannot be.
        servers.extend(_spawn(directory, number, empty, port) for number in range(1, count + 1))
        asyncio.run(_serve(directory, count))
    finally:
        for server in servers:
            server.terminate()
        for server in servers:
            server.wait()


class Databases:
    """The process, from the side of the measurement. Entered once every database is served."""

    def __init__(self, directory: Path, count: int, port: int = 0) -> None:
        self._command = [sys.executable, "-m", "bench.databases", str(directory), str(count), str(port)]
        self.seconds = 0.0

    def __enter__(self) -> Self:
        started = time.perf_counter()
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        try:
            self._read()
        except BaseException:
            self._end()
            raise
        self.seconds = time.perf_counter() - started
        return self

    def commits(self) -> list[tuple[int, float]]:
        """The commits since the last call: the worker's number, and ``time.monotonic`` when it was seen."""
        assert self._process.stdin is not None
        self._process.stdin.write("commits\n")
        self._process.stdin.flush()
        return [(number, at) for number, at in self._read()]

    def _read(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the databases have ended")
        return json.loads(line)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _end(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            # The servers are of the process's own session, so none outlives it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
