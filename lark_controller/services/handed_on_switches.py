"""Switches that an instance which stands by reaches, and the active one does not: found, and handed on.

The one that stands by asks every few seconds, with the switches that it keeps. The active one answers with those that
it has missed for a while, and with the listeners where it takes them.
"""

from __future__ import annotations

import json
import struct
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Set
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from lark_common.threads import TurnThread
from lark_controller.api.missed_switches import LONGEST_QUESTION, MOST
from lark_controller.switches.openflow.loop_thread import KeptSwitches
from lark_controller.switches.openflow.relays import Way

# Seconds between two questions, and after one that nobody answered: an active instance of an earlier release.
SECONDS: Final = 2.0
LATER: Final = 10.0
# Seconds for which a switch has been missed before it is handed on: few are those that have lost their way, more than
# FEW those that come to a controller that has just begun.
MISSED_SECONDS: Final = 4.0
MANY_MISSED_SECONDS: Final = 20.0
FEW: Final = 64
# Switches in one answer, and the instances whose questions are remembered.
AT_ONCE: Final = 256
_READERS: Final = 64
_HAND_ON_SECONDS: Final = 60.0

Address = tuple[str, int]


class MissedSwitches:
    """Answers the questions at the active instance. ``expected`` has those of some switches that are declared or have
    jobs. Thread-safe but for the memory of each asker, who asks one question at a time."""

    def __init__(
        self, present: Callable[[], frozenset[int]], listeners: Callable[[], tuple[tuple[Address, ...], ...]],
        expected: Callable[[Iterable[int]], Set[int]], clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._present = present
        self._expected = expected
        self._listeners = listeners
        self._clock = clock
        # Since when each switch of an asker is missed.
        self._missed: OrderedDict[str, dict[int, float]] = OrderedDict()

    def exchange(self, reader: str, question: bytes) -> bytes:
        """The answer to a question. Raises ValueError for one that is none, SwitchError."""
        asked = datapaths_of(question)
        present, now = self._present(), self._clock()
        before = self._missed.pop(reader, {})
        self._missed[reader] = missed = {each: before.get(each, now) for each in asked if each not in present}
        while len(self._missed) > _READERS:
            self._missed.popitem(last=False)
        patience = MISSED_SECONDS if len(missed) <= FEW else MANY_MISSED_SECONDS
        wanted = [each for each, since in missed.items() if now - since >= patience]
        if len(wanted) > AT_ONCE:
            # Strangers at the port of one that stands by may be thousands, and would all have their turns before.
            first = self._expected(wanted)
            wanted = sorted(wanted, key=lambda each: each not in first)[:AT_ONCE]
            # Those that cannot come, for want of a listener, leave the next turn to the others.
            missed.update(dict.fromkeys(wanted, now))
        tcp, tls = self._listeners() if wanted else ((), ())
        return json.dumps({"switches": wanted, "tcp": tcp, "tls": tls}, separators=(",", ":")).encode()


class HandingOn:
    """Asks on the ``thread`` of one that stands by, and hands on what is missed. ``ask`` brings the active instance a
    question and returns its answer, None without one; ``url`` is the active one's."""

    def __init__(self, kept: KeptSwitches, ask: Callable[[bytes], bytes | None], url: Callable[[], str]) -> None:
        self._kept = kept
        self._ask = ask
        self._url = url
        words = "switches could not be handed on to the active controller"
        self.thread = TurnThread("lark-handing-on", self.turn, words, first=SECONDS, later=LATER)

    def turn(self) -> float:
        """Ask once, and hand on what is missed; returns the seconds until the next turn."""
        kept = self._kept.datapaths()
        if not kept:
            return SECONDS
        url = self._url()
        answer = self._ask(question_of(kept))
        if answer is None:
            return LATER
        found = json.loads(answer)
        if found["switches"]:
            self._kept.hand_on(found["switches"], tuple(ways_of(found, url)), _HAND_ON_SECONDS)
        return SECONDS


def question_of(datapaths: Iterable[int]) -> bytes:
    """A question: the datapath ids of switches that are kept, 8 bytes each."""
    found = tuple(datapaths)[:MOST]
    return struct.pack(f">{len(found)}Q", *found)


def datapaths_of(question: bytes) -> tuple[int, ...]:
    """The switches of a question. Raises ValueError."""
    if len(question) % 8 or len(question) > LONGEST_QUESTION:
        raise ValueError(f"{len(question)} bytes are no list of at most {MOST} datapath ids")
    return struct.unpack(f">{len(question) // 8}Q", question)


def ways_of(answer: Mapping[str, list[list[str | int]]], url: str) -> Iterable[Way]:
    """The listeners of an answer as they are reached from elsewhere: one for all of a machine's addresses by the host
    in its ``url``, whose name its certificate has, and one for the machine itself where that is on it too."""
    host = urlsplit(url).hostname or ""
    same = not host or _is_loopback(host)
    for kind in ("tls", "tcp"):
        for listening, port in answer[kind]:
            address = str(listening)
            reached = host if ip_address(address).is_unspecified else address
            # By that address an instance elsewhere would reach itself.
            if reached and (same or not _is_loopback(address)):
                yield Way(reached, int(port), (host or reached) if kind == "tls" else "")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
