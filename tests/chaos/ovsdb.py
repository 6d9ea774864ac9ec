"""The workers' databases: real OVSDB servers on TCP, on which ovs-vswitchd is played; and how each is taken away."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any, Final

from bench.databases import Played, template

PAUSE: Final = 0.3
PATIENCE: Final = 5.0
# Of so many servers one is taken away at a time.
PART: Final = 3


class Server:
    """One worker's server."""

    def __init__(self, directory: Path, number: int, port: int, empty: Path) -> None:
        self.number, self._port = number, port
        self._directory, self._empty = directory, empty
        self.socket = directory / "db.sock"
        directory.mkdir()
        self._process: subprocess.Popen[bytes] | None = None
        self.start(empty=True)

    @property
    def address(self) -> str:
        """The address at which the controller finds it, in the form that a policy has."""
        return f"tcp:127.0.0.1:{self._port}"

    def start(self, *, empty: bool) -> None:
        """Start it, with what it held or as it was at first."""
        self.kill()
        if empty:
            shutil.copy(self._empty, self._directory / "conf.db")
        for name in ("db.sock", "ctl", ".conf.db.~lock~"):
            (self._directory / name).unlink(missing_ok=True)
        self._process = subprocess.Popen(
            ["ovsdb-server", "conf.db", f"--remote=ptcp:{self._port}:127.0.0.1", f"--remote=punix:{self.socket}",
             f"--unixctl={self._directory / 'ctl'}", "--no-chdir", "-vconsole:off", "-vsyslog:off"],
            cwd=self._directory, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def stay(self) -> None:
        """Put what is committed into force as ovs-vswitchd does, whenever the server is there."""
        while True:
            played = Played(self.number, [])
            try:
                async with asyncio.timeout(PATIENCE):
                    await played.connect(self.socket)
                await played.ended()
            except OSError:
                pass
            finally:
                played.close()
            await asyncio.sleep(PAUSE)

    def queues(self) -> dict[str, str]:
        """The queues of each port as the checker compares them, and the rows that belong to no port. Raises OSError."""
        ports, qos, queues = self._select(
            ("Port", "name", "qos"), ("QoS", "other_config", "queues"), ("Queue", "other_config")
        )
        by_queue = {row["_uuid"][1]: dict(row["other_config"][1]) for row in queues}
        by_qos = {row["_uuid"][1]: row for row in qos}
        found = {}
        for port in ports:
            row = by_qos.pop(port["qos"][1], None) if port["qos"][0] == "uuid" else None
            if row is not None:
                held = {number: by_queue.pop(at[1], {}) for number, at in row["queues"][1]}
                rate = dict(row["other_config"][1]).get("max-rate")
                found[port["name"]] = queues_text(
                    rate,
                    {number: (config.get("min-rate", "0"), config.get("max-rate")) for number, config in held.items()},
                )
        return found | {f"row {uuid}": "of no port" for uuid in (*by_qos, *by_queue)}

    def _select(self, *tables: tuple[str, ...]) -> list[list[dict[str, Any]]]:
        operations = [
            {"op": "select", "table": name, "where": [], "columns": ["_uuid", *columns]} for name, *columns in tables
        ]
        request = {"id": 1, "method": "transact", "params": ["Open_vSwitch", *operations]}
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(self.socket))
            connection.sendall(json.dumps(request).encode())
            data = b""
            while True:
                part = connection.recv(1 << 20)
                if not part:
                    raise ConnectionResetError
                data += part
                try:
                    answer = json.loads(data)
                except ValueError:
                    continue
                return [each["rows"] for each in answer["result"]]


class Servers:
    """The servers of all workers; that of worker ``number`` listens on ``first_port + number``."""

    def __init__(self, directory: Path, workers: int, first_port: int) -> None:
        empty = directory / "empty.db"
        template(empty)
        self.each = tuple(
            Server(directory / str(number), number, first_port + number, empty) for number in range(1, workers + 1)
        )
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Let ovs-vswitchd be played."""
        self._tasks = [asyncio.create_task(server.stay()) for server in self.each]

    @property
    def addresses(self) -> dict[int, str]:
        """The address of each worker's database."""
        return {server.number: server.address for server in self.each}

    def chosen(self, chosen: float) -> tuple[Server, ...]:
        """A part of them, for a number from 0 to 1."""
        return self.each[int(chosen * PART) % PART :: PART]

    async def stop(self) -> None:
        """End them all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for server in self.each:
            server.kill()


def queues_text(rate: object, queues: dict[int, tuple[object, object]]) -> str:
    """A port's queues as one text: what each has at least and at most, in bits a second."""
    each = (f"{number}: {least} to {most}" for number, (least, most) in sorted(queues.items()))
    return f"{rate} in all; " + ", ".join(each)
