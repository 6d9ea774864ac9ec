"""Marks the IPv6 packets that jobs send themselves, in the flow label (SciTags): a table in each job's own network.

There all that a job sends passes, whatever its NetworkType, and a job has no rights in its network that root has not
given it. The five bits that are the sender's entropy stay as they are.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Mapping
from ipaddress import IPv6Network, collapse_addresses
from pathlib import Path
from typing import Final, NamedTuple

from lark_common import log
from lark_common.runs import Network
from lark_common.scitags import Scitag
from lark_worker.errors import NetworkError
from lark_worker.network.commands import inside, run
from lark_worker.rules.table import braces, delete
from lark_worker.transfers.labels import FAMILY, set_label

# Seconds until a network that did not take its table is given it again.
AGAIN_SECONDS: Final = 60.0
# Loopback, link-local and multicast: never beyond a job's link.
_NEAR: Final = (IPv6Network("::1/128"), IPv6Network("fe80::/10"), IPv6Network("ff00::/8"))


class Label(NamedTuple):
    """A mark, and the networks to which packets go without it."""

    mark: Scitag
    silent: tuple[Network, ...]


class OwnLabels:
    """The tables in the networks of a worker's jobs; not thread-safe. ``prefix`` begins their name.

    ``marker`` is a file that is there while a job's network may have a table, so that a service that begins anew finds
    it.
    """

    def __init__(self, prefix: str, marker: Path) -> None:
        self.name = f"{prefix}_scitags"
        self._marker = marker
        # None: not known, as after a service that was killed.
        self._held: dict[str, Label] | None = None if marker.exists() else {}
        self._not_before: dict[str, float] = {}

    def __len__(self) -> int:
        """The number of jobs whose packets are marked."""
        return len(self._held or ())

    def put(self, wanted: Mapping[str, Label], live: Collection[str]) -> None:
        """Mark what leaves these networks, and no other; ``live`` are all that there are."""
        held = self._held
        if held is None:
            # The table that an earlier service has left is replaced, or goes.
            held = {}
            for namespace in live:
                if namespace not in wanted:
                    self._run(namespace, delete(FAMILY, self.name))
        self._held = held
        if wanted and not self._marker.exists():
            self._marker.touch()
        for namespace in [each for each in held if each not in wanted]:
            del held[namespace]
            if namespace in live:
                self._run(namespace, delete(FAMILY, self.name))
        self._not_before = {each: at for each, at in self._not_before.items() if each in live}
        for namespace, label in wanted.items():
            if held.get(namespace) == label or time.monotonic() < self._not_before.get(namespace, 0.0):
                continue
            if self._run(namespace, "".join(f"{line}\n" for line in script(self.name, label))):
                held[namespace] = label
            else:
                held.pop(namespace, None)
                self._not_before[namespace] = time.monotonic() + AGAIN_SECONDS
        if not wanted:
            with contextlib.suppress(FileNotFoundError):
                self._marker.unlink()

    @staticmethod
    def _run(namespace: str, text: str) -> bool:
        def put() -> None:
            run(["nft", "-f", "-"], text)

        try:
            inside(namespace, put)
        except NetworkError as error:
            log.event("a job's flow labels are not set; it is tried again", level=log.WARNING, reason=error)
            return False
        return True


def script(name: str, label: Label) -> Iterator[str]:
    """The lines for nft(8) that make a job's table, in place of the one that there may be."""
    where = f"{FAMILY} {name}"
    near = collapse_addresses([*_NEAR, *(each for each in label.silent if isinstance(each, IPv6Network))])
    yield delete(FAMILY, name).rstrip("\n")
    yield f"add table {where}"
    yield f"add chain {where} leaving {{ type filter hook postrouting priority 0; }}"
    yield f"add rule {where} leaving ip6 daddr {braces(near)} return"
    yield f"add rule {where} leaving {set_label(label.mark)}"
