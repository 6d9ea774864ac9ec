"""``lark-worker gateway``: keeps a plain Linux gateway's translation of external addresses as the controller has it.

It asks every few seconds; while the controller is away everything stays. The rules stay when the program ends, so a
restart changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from itertools import islice
from typing import Final

from lark_common import log
from lark_common.client import Answer
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError, NetworkError
from lark_worker.network.commands import run
from lark_worker.rules import one_to_one
from lark_worker.rules.one_to_one import Mapped
from lark_worker.rules.table import Table, change, read

TABLE: Final = "lark-gateway"
# External addresses of all pools that are read, page by page.
MOST_ADDRESSES: Final = 1 << 17


@dataclass(frozen=True, slots=True)
class Place:
    """A gateway: the interface that leads outside, its external addresses, and the networks of jobs."""

    wan: str
    pools: tuple[IPv4Network, ...]
    jobs: tuple[IPv4Network, ...]


def networks(words: Sequence[str]) -> tuple[IPv4Network, ...]:
    """IPv4 networks out of words. Raises NetworkError."""
    try:
        return tuple(map(IPv4Network, words))
    except (AddressValueError, NetmaskValueError, ValueError) as error:
        raise NetworkError(f"{error}; an IPv4 network such as 198.51.100.64/27 is accepted") from None


class Gateway:
    """The translation of one gateway; for one thread."""

    def __init__(self, place: Place, link: ControllerLink) -> None:
        self._place = place
        self._link = link
        self._held: Table | None = None

    def step(self) -> None:
        """Ask once, and change the kernel's table where it differs; what fails is logged, and done with the next."""
        try:
            mapped = self._wanted()
            self._put(one_to_one.table(TABLE, self._place.wan, self._place.pools, self._place.jobs, mapped))
        except AwayError as error:
            log.failure("the controller cannot be asked; the translation stays as it is", error)
        except NetworkError as error:
            self._held = None
            log.failure("the translation cannot be changed", error)
        except Exception as error:  # an answer that is none must not end the translation's changes for good
            log.failure("unexpected error; the translation stays as it is", error)

    def repeat(self, wait: Callable[[float], bool], seconds: float) -> None:
        """Step until ``wait`` is over."""
        self.step()
        while not wait(seconds):
            self.step()

    def _wanted(self) -> list[Mapped]:
        """All that is open here by the controller's word. Raises AwayError."""
        status, answer = self._link.passed(lambda client: {"addresses": _first(client.external_addresses())})
        if status != 200:
            raise AwayError(str(answer.get("detail", status)))
        # By the job's own address: where one comes with two jobs, the later one has it.
        found: dict[IPv4Address, Mapped] = {}
        try:
            for each in answer["addresses"]:
                external = _address(each["address"], self._place.pools)
                # No other host's packets are taken for a job's.
                own = _address(each["inside"], self._place.jobs)
                opened = one_to_one.opened(each["open"])
                if external is not None and own is not None and opened is not None:
                    found[own] = Mapped(external, own, opened)
        except (KeyError, TypeError):
            raise AwayError("it does not answer as a Lark controller of this version does") from None
        return list(found.values())

    def _put(self, wanted: Table) -> None:
        held = self._known()
        if held is not None and held.chains.keys() == wanted.chains.keys() and held is self._held:
            if script := change(one_to_one.without_new(wanted, held), held):
                self._held = None
                run(["nft", "-f", "-"], script)
            held = one_to_one.without_new(wanted, held)
        if script := change(wanted, held):
            self._held = None
            run(["nft", "-f", "-"], script)
        self._held = wanted

    def _known(self) -> Table | None:
        """The kernel's table: as it was put, or of an earlier run the names of its parts."""
        listed = json.loads(run(["nft", "-j", "list", "tables", one_to_one.FAMILY]))["nftables"]
        if not any(entry.get("table", {}).get("name") == TABLE for entry in listed):
            return None
        if self._held is None:
            return read(
                json.loads(run(["nft", "-j", "list", "table", one_to_one.FAMILY, TABLE])), one_to_one.FAMILY, TABLE
            )
        return self._held


def _first(given: Iterator[Answer]) -> list[Answer]:
    """All addresses that a controller lists. Raises AwayError for more than any has."""
    found = list(islice(given, MOST_ADDRESSES + 1))
    if len(found) > MOST_ADDRESSES:
        raise AwayError(f"it lists more than {MOST_ADDRESSES} external addresses")
    return found


def _address(word: str | None, networks: Collection[IPv4Network]) -> IPv4Address | None:
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
