"""Makes the controller's queues fair, which Open vSwitch does not: fair queueing inside, fair shares among them.

Open vSwitch makes each queue a class of HTB with a plain FIFO, in which a ping waits behind everything, and one job's
bulk transfer before its own small requests. Every class gets a leaf of CAKE here (``fq_codel`` where the kernel has
none), which Open vSwitch leaves alone when it changes rates. It also sets no quantum, so that what is left over is
shared equally; here it is set in proportion to the classes' guarantees, again each time that Open vSwitch changes a
class.

For how many seconds packets were waiting in a queue, and how many were dropped there, is written into its row
(external_ids): so the controller sees a job that was held back, and a guarantee that was missed. Open
vSwitch itself ignores that column.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lark_common import log
from lark_common.deliveries import Delivered, Deliveries
from lark_common.threads import StoppableThread
from lark_worker.errors import NetworkError
from lark_worker.network.commands import run
from lark_worker.queues import tc

# external_ids of the rows that the controller makes (lark_controller.switches.ovsdb.rows).
MARK: Final = "lark-datapath"
WAITED: Final = "lark-waited"
DROPPED: Final = "lark-dropped"
# Microseconds. CoDel's own 5 and 100 ms (RFC 8290) take a busy machine's late timers for a standing queue and drop; a
# ping does not wait for the bulk of others in either case.
TARGET: Final = 15_000
INTERVAL: Final = 150_000
# Frames whose time on a slow queue is no standing queue either (RFC 8289, section 4.4, asks for one at least).
FRAMES: Final = 2 * 1514
# Bytes a second. Up to this ceiling (175 Mb/s) joined packets are taken apart: one of 64 KiB takes 10 ms at 50 Mb/s, a
# ping waits for it whatever the order in the leaf. Above, it waits less than 3 ms, and taking apart costs more.
SPLIT: Final = 21_845_333
# Seconds that a class sends in its turn, at its guaranteed rate. HTB lets a class send a whole packet in each turn, so
# in shorter ones than the longest packet takes all classes get the same; what is left over is waited for longer, the
# longer turns are.
TURNS: Final = (0.004, 0.008, 0.016)
# Bytes of the longest packet: joined ones of TCP; two frames where a leaf takes them apart.
JOINED: Final = 65_536
MOST_TURN: Final = 16_000_000
# Seconds in which changes are gathered, and between two comparisons without a notice from the kernel.
GATHER: Final = 0.02
LOOK: Final = 30.0
# Open vSwitch's handle of a port's HTB, 1:0; queue n is its class 1:(n + 1).
_ROOT: Final = 0x10000
# The queues of reserved flows: the controller gives the one with number n the queue FIRST + n % COUNT, unless another
# has that (lark_controller.qos.queues).
FIRST_RESERVED: Final = 0x8000
RESERVED: Final = 0xEFFF - FIRST_RESERVED + 1
# Seconds between two looks whether packets wait, and between two writings of what was seen.
SAMPLE: Final = 1.0
WRITE: Final = 10.0


@dataclass(frozen=True, slots=True)
class Port:
    """A port with queues of the controller's: its device's index, and the rows of its queues (uuid) by number."""

    device: int
    queues: Mapping[int, str]


class FairQueues:
    """Watches the queues of an Open vSwitch, by its database's address, on a thread of its own."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._wake, self._woken = socket.socketpair()
        self._thread = StoppableThread("fair queues", self._watch, wake=self._wake_thread)
        self._trouble = ""
        self._sampled = 0.0
        self._ports: dict[str, Port] = {}
        # By row: seconds of waiting, packets dropped, and what is written of both.
        self._waited: dict[str, float] = {}
        self._dropped: dict[str, int] = {}
        self._written: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        # Of reserved flows, by queue.
        self._delivered: Deliveries[int] = Deliveries()

    def start(self) -> None:
        """Start the thread. Raises NetworkError where the kernel cannot be listened to."""
        try:
            self._listening = tc.listener()
        except OSError as error:
            raise NetworkError(f"traffic control cannot be watched: {error}") from None
        self._listening.setblocking(False)
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; leaves and quanta stay."""
        self._thread.stop()

    def is_alive(self) -> bool:
        """True while the thread runs."""
        return self._thread.is_alive()

    def write_now(self) -> None:
        """Write the counters of queues now: a job ends, and its queues go with it."""
        try:
            self._sample(least=0.0)
            self._write()
        except NetworkError as error:
            log.event("queues' counters are not written", level=log.WARNING, reason=error)

    def delivered(self, number: int, others: Iterable[int]) -> Delivered | None:
        """The delivery of the reserved flow with that number; None where it is not counted, or it may share its queue's
        number with one of the worker's ``others``."""
        place = number % RESERVED
        with self._lock:
            if any(other != number and other % RESERVED == place for other in others):
                return None
            return self._delivered.of(FIRST_RESERVED + place)

    def _wake_thread(self) -> None:
        # The thread may have seen already that it is to end, and closed its sockets.
        with contextlib.suppress(OSError):
            self._woken.send(b"\0")

    def _watch(self) -> None:
        with self._listening, self._wake, self._woken:
            # When to do so next; the monotonic clock begins with 0 when a machine boots.
            look_at = write_at = 0.0
            while not self._thread.stopping:
                try:
                    if time.monotonic() >= look_at:
                        # Set first, so that after a fault it is not tried again at once.
                        look_at = time.monotonic() + LOOK
                        self._look()
                    self._sample()
                    if time.monotonic() >= write_at:
                        self._write()
                        write_at = time.monotonic() + WRITE
                    self._log_trouble("")
                except NetworkError as error:
                    self._log_trouble(str(error))
                except Exception as error:  # an unexpected error must not stop this thread
                    self._log_trouble(f"{type(error).__name__}: {error}")
                pause = SAMPLE if self._ports else LOOK
                if select.select([self._listening, self._wake], [], [], pause)[0]:
                    look_at = 0.0
                    self._thread.pause(GATHER)
                    self._drain()

    def _drain(self) -> None:
        while True:
            try:
                self._listening.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                # A full receive buffer (ENOBUFS) means the same as a message: something changed.
                continue

    def _log_trouble(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            log.event("queues have no fair-queueing leaves", level=log.WARNING, reason=trouble)
        self._trouble = trouble

    def _look(self) -> None:
        missed = ""
        self._ports = marked_ports(self._database)
        rows = {uuid for port in self._ports.values() for uuid in port.queues.values()}
        with self._lock:
            self._waited = {uuid: self._waited.get(uuid, 0.0) for uuid in rows}
            self._dropped = {uuid: self._dropped.get(uuid, 0) for uuid in rows}
            self._written = {uuid: counts for uuid, counts in self._written.items() if uuid in rows}
        for port, here in sorted(self._ports.items()):
            attached, trouble = attach_leaves(tc.classes(here.device))
            if trouble:
                missed = f"port {port}: {trouble}"
            if attached:
                log.event("fair-queueing leaves", port=port, queues=attached)
        if missed:
            raise NetworkError(missed)

    def _sample(self, least: float = SAMPLE / 2) -> None:
        """Count the seconds of waiting and the dropped packets of each queue; not twice within ``least`` seconds."""
        with self._lock:
            now = time.monotonic()
            past = min(now - self._sampled, 2 * SAMPLE)
            if past < least or not self._ports:
                return
            self._sampled = now
            self._read_delivered(now)
            leaves = tc.leaves()
            for port in self._ports.values():
                seen = {number: leaves.get((port.device, _ROOT | number + 1)) for number in port.queues}
                if None in seen.values():
                    # A kernel without leaves: each class counts its own drops.
                    seen |= {(htb.id & 0xFFFF) - 1: htb.backlog for htb in tc.classes(port.device) if not htb.leaf}
                for number, uuid in port.queues.items():
                    if (backlog := seen.get(number)) is not None:
                        self._dropped[uuid] = backlog.dropped
                        self._waited[uuid] = self._waited.get(uuid, 0.0) + (past if backlog.waiting else 0.0)

    def _read_delivered(self, now: float) -> None:
        """Read what reserved flows have sent, at the ports that have queues of such."""
        ports = [port for port in self._ports.values() if any(number >= FIRST_RESERVED for number in port.queues)]
        self._delivered.read(
            (
                ((htb.id & 0xFFFF) - 1, port.device, htb.sent)
                for port in ports
                for htb in tc.classes(port.device)
                if (htb.id & 0xFFFF) - 1 >= FIRST_RESERVED and (htb.id & 0xFFFF) - 1 in port.queues
            ),
            now,
        )

    def _write(self) -> None:
        with self._lock:
            seen = {uuid: (round(self._waited[uuid]), self._dropped.get(uuid, 0)) for uuid in self._waited}
            changed = {uuid: counts for uuid, counts in seen.items() if counts != self._written.get(uuid, (0, 0))}
            if not changed:
                return
            command: list[str] = []
            for uuid, (waited, dropped) in changed.items():
                counts = (f"external_ids:{WAITED}={waited}", f"external_ids:{DROPPED}={dropped}")
                command += ["--", "--if-exists", "set", "queue", uuid, *counts]
            run(["ovs-vsctl", "--timeout=10", "--no-wait", f"--db={self._database}", *command[1:]])
            self._written |= changed


def attach_leaves(found: Iterable[tc.HtbClass]) -> tuple[int, str]:
    """Give a device's classes leaves and quanta where they lack them; returns how many leaves, and what failed."""
    leaves = [htb for htb in found if htb.parent != tc.TC_H_ROOT]
    attached, trouble = 0, ""
    for htb, quantum in zip(leaves, quanta([(htb.rate, htb.ceiling) for htb in leaves]), strict=True):
        try:
            if len(leaves) > 1 and htb.quantum != quantum:
                tc.set_quantum(htb, quantum)
            if not htb.leaf:
                _add_leaf(htb)
                attached += 1
        except NetworkError as error:
            trouble = f"class {htb.id >> 16:x}:{htb.id & 0xFFFF:x}: {error}"
    return attached, trouble


def _add_leaf(htb: tc.HtbClass) -> None:
    target = codel_target(htb.ceiling)
    interval = target * INTERVAL // TARGET
    try:
        tc.add_cake(htb, target, interval, split=htb.ceiling <= SPLIT)
    except NetworkError:
        tc.add_fq_codel(htb, target, interval)


def codel_target(ceiling: int) -> int:
    """The target of a leaf whose class sends up to ``ceiling`` bytes a second, in microseconds."""
    return max(TARGET, FRAMES * 1_000_000 // max(ceiling, 1))


def quanta(rates: Sequence[tuple[int, int]]) -> list[int]:
    """The quantum of each of a device's classes (bytes), by their guarantees and ceilings (bytes a second).

    They are in proportion to the guarantees, for turns of 4, 8 or 16 ms: the shortest in which each class that may have
    more than its guarantee sends its longest packet. A quantum is two frames at least.
    """
    borrowers = [(rate, most) for rate, most in rates if most > rate]
    least = max(((FRAMES if most <= SPLIT else JOINED) / max(rate, 1) for rate, most in borrowers), default=0.0)
    turn = next((turn for turn in TURNS if turn >= least), TURNS[-1])
    return [min(max(round(rate * turn), FRAMES), MOST_TURN) for rate, _ in rates]


def marked_ports(database: str) -> dict[str, Port]:
    """The ports that have queues of the controller's. Raises NetworkError."""
    shown = run(
        [
            "ovs-vsctl", "--timeout=10", f"--db={database}", "--format=json",
            "--columns=_uuid,external_ids,queues", "list", "qos", "--", "--columns=name,qos", "list", "port",
        ]
    )  # fmt: skip
    qos, ports = (json.loads(line)["data"] for line in shown.splitlines())
    ours: dict[str, dict[int, str]] = {
        uuid[1]: {number: queue[1] for number, queue in queues[1]}
        for uuid, ids, queues in qos
        if any(key == MARK for key, _ in ids[1])
    }
    found = {}
    for name, used in ports:
        if used[0] == "uuid" and used[1] in ours:
            # A device that is gone has no classes either.
            with contextlib.suppress(OSError, ValueError):
                found[name] = Port(int(Path("/sys/class/net", name, "ifindex").read_text()), ours[used[1]])
    return found
