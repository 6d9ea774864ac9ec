"""Gives the queues that the controller made what Open vSwitch does not: fair queueing inside, fair shares among them.

Open vSwitch makes each queue a class of HTB with a plain FIFO, in which a ping waits behind everything, and one job's
bulk transfer before its own small requests. Every class gets an ``fq_codel`` leaf here, which Open vSwitch leaves alone
when it changes rates. It also sets no quantum, so that what is left over is shared equally; here it is set in
proportion to the classes' guarantees, again each time that Open vSwitch changes a class.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from lark_controller import log
from lark_worker import tc
from lark_worker.commands import run
from lark_worker.errors import NetworkError

# external_ids of the rows that the controller makes (lark_controller.qos.rows).
MARK: Final = "lark-datapath"
# Microseconds. CoDel's own 5 and 100 ms (RFC 8290) take a busy machine's late timers for a standing queue and drop; a
# ping does not wait for the bulk of others in either case.
TARGET: Final = 15_000
INTERVAL: Final = 150_000
# How long a class sends in its turn, at the rate that it is guaranteed; and bytes that are a turn at least, since HTB
# lets a class send a whole packet in each, and packets come joined together.
TURN: Final = 0.004
LEAST_TURN: Final = 8192
MOST_TURN: Final = 16_000_000
# Seconds in which changes are gathered, and after which one looks although nothing was said.
GATHER: Final = 0.02
LOOK: Final = 30.0


class Leaves:
    """Watches the queues of an Open vSwitch, by its database's address, on a thread of its own."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._stopping = threading.Event()
        self._wake, self._woken = socket.socketpair()
        self._thread = threading.Thread(target=self._watch, name="leaves", daemon=True)
        self._trouble = ""

    def start(self) -> None:
        """Start to watch. Raises NetworkError where the kernel cannot be listened to."""
        try:
            self._listening = tc.listener()
        except OSError as error:
            raise NetworkError(f"traffic control cannot be watched: {error}") from None
        self._listening.setblocking(False)
        self._thread.start()

    def stop(self) -> None:
        """Watch no more; what was set stays."""
        self._stopping.set()
        self._woken.send(b"\0")
        self._thread.join(10)

    def _watch(self) -> None:
        with self._listening, self._wake, self._woken:
            while not self._stopping.is_set():
                try:
                    self._look()
                    self._say("")
                except NetworkError as error:
                    self._say(str(error))
                select.select([self._listening, self._wake], [], [], LOOK)
                self._stopping.wait(GATHER)
                self._drain()

    def _drain(self) -> None:
        while True:
            try:
                self._listening.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                # A backlog that ran over (ENOBUFS) says no more than a message does: something changed.
                continue

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.event("queues have no fair-queueing leaves", level=log.WARNING, reason=trouble)
        self._trouble = trouble

    def _look(self) -> None:
        missed = ""
        for port, device in sorted(marked_ports(self._database).items()):
            attached, trouble = settle(tc.classes(device))
            if trouble:
                missed = f"port {port}: {trouble}"
            if attached:
                log.event("fair-queueing leaves", port=port, queues=attached)
        if missed:
            raise NetworkError(missed)


def settle(found: Iterable[tc.HtbClass]) -> tuple[int, str]:
    """Give a device's classes leaves and quanta where they lack them; answers how many leaves, and what went wrong."""
    leaves = [one for one in found if one.parent != tc.TC_H_ROOT]
    attached, trouble = 0, ""
    for one in leaves:
        wanted = turn(one.rate)
        try:
            if len(leaves) > 1 and one.quantum != wanted:
                tc.set_quantum(one, wanted)
            if not one.leaf:
                tc.add_fq_codel(one, TARGET, INTERVAL)
                attached += 1
        except NetworkError as error:
            trouble = f"class {one.id >> 16:x}:{one.id & 0xFFFF:x}: {error}"
    return attached, trouble


def turn(rate: int) -> int:
    """The bytes that a class guaranteed ``rate`` bytes a second may send in its turn."""
    return min(max(round(rate * TURN), LEAST_TURN), MOST_TURN)


def marked_ports(database: str) -> dict[str, int]:
    """The ports that have queues of the controller's, with their devices' indices. Raises NetworkError."""
    shown = run(
        [
            "ovs-vsctl", "--timeout=10", f"--db={database}", "--format=json",
            "--columns=_uuid,external_ids", "list", "qos", "--", "--columns=name,qos", "list", "port",
        ]
    )  # fmt: skip
    ours: set[str] = set()
    ports: dict[str, int] = {}
    for line in shown.splitlines():
        table: dict[str, Any] = json.loads(line)
        for first, second in table["data"]:
            if table["headings"][0] == "_uuid":
                if any(key == MARK for key, _ in second[1]):
                    ours.add(first[1])
            elif second[0] == "uuid" and second[1] in ours:
                with contextlib.suppress(OSError, ValueError):
                    ports[first] = int(Path("/sys/class/net", first, "ifindex").read_text())
    return ports
