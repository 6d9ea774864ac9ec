"""``lark-worker gateway``: keeps a plain Linux gateway's translation of external addresses as the controller says.

It asks every few seconds; while the controller is away everything stays. The rules stay when the program ends, so a
restart changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv4Network, NetmaskValueError
from typing import Any, Final

from lark_common import log
from lark_worker.controller_link import ControllerLink
from lark_worker.errors import AwayError, NetworkError
from lark_worker.network.commands import run
from lark_worker.rules import one_to_one
from lark_worker.rules.one_to_one import Mapped
from lark_worker.rules.table import Table, change, read

TABLE: Final = "lark-gateway"


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
        # Each association's job's own address: it stays while the association does.
        self._own: dict[str, IPv4Address | None] = {}
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
        """Step until ``wait`` says that it is over."""
        self.step()
        while not wait(seconds):
            self.step()

    def _wanted(self) -> list[Mapped]:
        """All that is open here by the controller's word. Raises AwayError."""
        known, found = self._own, []
        self._own = {}
        for each in self._asked(lambda client: client.external_addresses())["addresses"]:
            try:
                external, opened = IPv4Address(each["address"]), one_to_one.opened(each["open"])
            except ValueError:
                continue
            if not any(external in pool for pool in self._place.pools):
                continue
            own = known.get(each["id"]) or self._own_address(each["job"])
            self._own[each["id"]] = own
            if own is not None:
                found.append(Mapped(external, own, opened))
        return found

    def _own_address(self, job: str) -> IPv4Address | None:
        addresses = self._asked(lambda client: client.job(job)).get("addresses", [])
        for each in addresses:
            try:
                own = IPv4Address(each["address"])
            except ValueError:
                continue
            # No other host's packets are taken for a job's.
            if any(own in network for network in self._place.jobs):
                return own
        return None

    def _asked(self, call: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
        status, answer = self._link.passed(call)
        if status == 404:
            return {}
        if status != 200:
            raise AwayError(str(answer.get("detail", status)))
        return answer

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
