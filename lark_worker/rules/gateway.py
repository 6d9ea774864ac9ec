"""``lark-worker gateway``: keeps a plain Linux gateway's translation of external addresses as the controller has it.

It asks for what has changed, and waits a while for that; only these addresses are touched, and what the kernel has is
confirmed. While the controller is away everything stays. The rules stay when the program ends, so a restart changes
nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from typing import Any, Final, NamedTuple

from lark_common import log
from lark_common.client import Client
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError, NetworkError
from lark_worker.network.commands import run
from lark_worker.rules import one_to_one
from lark_worker.rules.one_to_one import Mapped
from lark_worker.rules.table import Table, change, read

TABLE: Final = "lark-gateway"
# External addresses of all pools that are read, page by page.
MOST_ADDRESSES: Final = 1 << 17
_MOST_PAGES: Final = 64
# Those that are listed as lacking.
_MOST_LACKING: Final = 2048
# Seconds after a change before the next one is asked for, until a controller that is away is asked again at most, and
# the longest that is waited for a change.
_SETTLE: Final = 0.05
_AGAIN: Final = 2.0
_LONGEST_WAIT: Final = 60.0


@dataclass(frozen=True, slots=True)
class Place:
    """A gateway: the interface that leads outside, its external addresses, and the networks of jobs. An external
    address may have ``connections`` from outside open at a time, and a job as many of its own (0: any number)."""

    wan: str
    pools: tuple[IPv4Network, ...]
    jobs: tuple[IPv4Network, ...]
    connections: int = 0


class Told(NamedTuple):
    """The controller's word: the revision, whether that is everything, and each address that is concerned (None:
    it leads nowhere here), and all that lead to what is no job's of here."""

    revision: str
    whole: bool
    mapped: dict[IPv4Address, Mapped | None]
    lacks: set[IPv4Address]


def networks(words: Sequence[str]) -> tuple[IPv4Network, ...]:
    """IPv4 networks out of words. Raises NetworkError."""
    try:
        return tuple(map(IPv4Network, words))
    except (AddressValueError, NetmaskValueError, ValueError) as error:
        raise NetworkError(f"{error}; an IPv4 network such as 198.51.100.64/27 is accepted") from None


class Step(Enum):
    """The outcome of a question: a change or the first word of a controller, nothing new, or a failure."""

    NEWS = "news"
    SAME = "same"
    FAILED = "failed"


class Gateway:
    """The translation of one gateway; for one thread."""

    def __init__(self, place: Place, link: ControllerLink) -> None:
        self._place = place
        self._link = link
        self._revision = ""
        # True where the last answer had everything.
        self._was_whole = False
        self._mapped: dict[IPv4Address, Mapped] = {}
        # External addresses by the job's own.
        self._external: dict[IPv4Address, IPv4Address] = {}
        # External addresses of its pools that lead to what is no job's of here.
        self._lacks: set[IPv4Address] = set()
        # The kernel has what is mapped.
        self._stands = False

    def step(self, wait: float = 0.0, pause: float = 0.0) -> Step:
        """Ask once, and wait so long for a change; put it into the kernel's table, and confirm that. What fails is
        logged, and done with the next step, which follows within ``pause`` seconds."""
        try:
            told = self._told(wait)
            gone, come = self._taken(told)
            self._put(gone, come)
            # An answer with everything comes without a wait; the next request is the first that is held. A controller
            # that always answers with everything is not asked without a pause.
            first, self._was_whole = told.whole and not self._was_whole, told.whole
            self._confirm(wait + pause)
        except AwayError as error:
            log.failure("the controller cannot be asked; the translation stays as it is", error)
        except NetworkError as error:
            self._stands = False
            log.failure("the translation cannot be changed", error)
        except Exception as error:  # an unexpected error must not end the translation's changes for good
            self._stands = False
            log.failure("unexpected error; the translation stays as it is", error)
        else:
            return Step.NEWS if gone or come or first else Step.SAME
        return Step.FAILED

    def repeat(self, wait: Callable[[float], bool], seconds: float) -> None:
        """Step until ``wait`` is over: after news at once, after a failure soon, else so many seconds apart."""
        over = False
        while not over:
            began = time.monotonic()
            step = self.step(min(seconds, _LONGEST_WAIT), seconds)
            # Where the controller has no place for those who wait, the answer comes at once.
            left = max(0.0, began + seconds - time.monotonic())
            over = wait({Step.NEWS: _SETTLE, Step.FAILED: min(left, _AGAIN), Step.SAME: left}[step])

    def _told(self, wait: float) -> Told:
        """The changes since the last revision, page by page. Raises AwayError."""
        revision, whole = self._revision, False
        found: dict[IPv4Address, Mapped | None] = {}
        lacks = set(self._lacks)
        for _ in range(_MOST_PAGES):
            answer = self._asked(revision, wait)
            try:
                revision, more = str(answer["revision"]), answer["more"]
                if answer["whole"]:
                    whole, found, lacks = True, {}, set()
                for word in answer["gone"]:
                    if (external := _address(word, self._place.pools)) is not None:
                        found[external] = None
                        lacks.discard(external)
                for each in answer["translations"]:
                    if (external := _address(each["address"], self._place.pools)) is not None:
                        found[external] = self._mapped_of(external, each)
                        (lacks.add if found[external] is None else lacks.discard)(external)
            except (KeyError, TypeError, ValueError):
                raise AwayError("it does not answer as a Lark controller of this version does") from None
            if len(found) > MOST_ADDRESSES:
                break
            if not more:
                return Told(revision, whole, found, lacks)
            wait = 0.0
        raise AwayError(f"it lists more than {MOST_ADDRESSES} external addresses")

    def _asked(self, after: str, wait: float) -> dict[str, Any]:
        return self._passed(lambda client: client.external_translations(after, wait))

    def _confirm(self, seconds: float) -> None:
        """Let the controller know what the kernel has; the next time is within so many seconds. Raises AwayError."""
        lacks = sorted(map(str, self._lacks))
        word = {
            # Of more than can be listed nothing is confirmed.
            "revision": self._revision if len(lacks) <= _MOST_LACKING else "",
            "pools": list(map(str, self._place.pools)),
            "seconds": seconds,
            "lacks": lacks[:_MOST_LACKING],
        }
        self._passed(lambda client: client.confirm_external_translations(word))

    def _passed(self, call: Callable[[Client], dict[str, Any]]) -> dict[str, Any]:
        status, answer = self._link.passed(call)
        if status != 200:
            raise AwayError(str(answer.get("detail", status)))
        return answer

    def _mapped_of(self, external: IPv4Address, given: dict[str, Any]) -> Mapped | None:
        # No other host's packets are taken for a job's.
        own = _address(given["inside"], self._place.jobs)
        opened = one_to_one.opened(given["open"])
        return None if own is None or opened is None else Mapped(external, own, opened)

    def _taken(self, told: Told) -> tuple[list[Mapped], list[Mapped]]:
        """Take over an answer; what goes by it, and what comes."""
        news = dict(told.mapped)
        if told.whole:
            news |= {external: None for external in self._mapped if external not in news}
        news = {external: new for external, new in news.items() if new != self._mapped.get(external)}
        gone = [self._mapped.pop(external) for external in news if external in self._mapped]
        for each in gone:
            del self._external[each.own]
        # By the job's own address: where an answer has one with two jobs, the later one has it.
        come = {new.own: new for new in news.values() if new is not None}
        for own, new in come.items():
            if (other := self._external.get(own)) is not None:
                gone.append(self._mapped.pop(other))
            self._mapped[new.external], self._external[own] = new, new.external
        self._revision, self._lacks = told.revision, told.lacks
        return gone, list(come.values())

    def _put(self, gone: Collection[Mapped], come: Collection[Mapped]) -> None:
        """Let the kernel have what is mapped. Raises NetworkError."""
        there = _is_there()
        if not self._stands or not there:
            self._stands = False
            place = self._place
            most = _countable(place.connections)
            wanted = one_to_one.table(TABLE, place.wan, place.pools, place.jobs, self._mapped.values(), most)
            run(["nft", "-f", "-"], change(wanted, _names() if there else None))
            self._stands = True
            return
        # An entry is gone before another takes its place: some kernels take no span that overlaps one that goes.
        for action, each, other in (("delete", gone, come), ("add", come, gone)):
            if script := one_to_one.script(action, TABLE, each, other):
                run(["nft", "-f", "-"], script)


def _is_there() -> bool:
    """True where the kernel has the table, of this run or an earlier one. Raises NetworkError."""
    # By its chains: nft reads every element of every set before it lists tables.
    listed = json.loads(run(["nft", "-j", "list", "chains", one_to_one.FAMILY]))["nftables"]
    return any(entry.get("chain", {}).get("table") == TABLE for entry in listed)


def _countable(most: int) -> int:
    """The number of connections that an address may have; 0, any number, where the kernel cannot count them."""
    name = f"{one_to_one.FAMILY} {TABLE}_probe"
    parts = (
        f"add table {name}",
        f"add set {name} s {{ {one_to_one.COUNTED} }}",
        f"add chain {name} c",
        f"add rule {name} c add @s {{ ip saddr ct count over 1 }} drop",
        f"delete table {name}",
    )
    try:
        if most:
            run(["nft", "-f", "-"], "".join(f"{part}\n" for part in parts))
    except NetworkError as error:
        log.failure("this kernel cannot limit connections (nft_connlimit)", error)
        return 0
    return most


def _names() -> Table:
    """The names of the kernel's table's parts. Raises NetworkError."""
    listed = json.loads(run(["nft", "-j", "list", "table", one_to_one.FAMILY, TABLE]))
    return read(listed, one_to_one.FAMILY, TABLE)


def _address(word: str | None, networks: Iterable[IPv4Network]) -> IPv4Address | None:
    """The IPv4 address in one of these networks that a word is; None for anything else."""
    try:
        found = None if word is None else IPv4Address(word)
    except AddressValueError:
        return None
    return found if found is not None and any(found in network for network in networks) else None


def totals() -> dict[str, dict[str, int]]:
    """Packets and bytes in and out of each external address, as the kernel counts them. Raises NetworkError."""
    found: dict[str, dict[str, int]] = {}
    for name, words in (("came", ("in_packets", "in_bytes")), ("left", ("out_packets", "out_bytes"))):
        listed = json.loads(run(["nft", "-j", "list", "map", one_to_one.FAMILY, TABLE, name]))["nftables"]
        for entry in listed:
            elements = [pair[0] for pair in entry.get("map", {}).get("elem", ())]
            for external, *numbers in one_to_one.counted(elements):
                found.setdefault(external, {}).update(zip(words, numbers, strict=True))
    return found
