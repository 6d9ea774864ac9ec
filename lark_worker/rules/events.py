"""Notices the deletion of a table of the packet filter (``nft flush ruleset``, as many sites' own rules begin).

The kernel reports every change of nf_tables on a netlink group (netlink(7), NFNLGRP_NFTABLES).
"""

from __future__ import annotations

import os
import select
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Final

from lark_common import log
from lark_common.threads import StoppableThread

_NETLINK_NETFILTER: Final = 12
_GROUP: Final = 1 << 6
_SUBSYSTEM: Final = 10
_DELETED_TABLE: Final = _SUBSYSTEM << 8 | 2
_NAME: Final = 1
_FAMILIES: Final = {1: "inet", 7: "bridge"}


class TableWatch:
    """Calls a function with the family of each table of one name that is deleted, on a thread of its own."""

    def __init__(self, name: str, call: Callable[[str], None]) -> None:
        self._name = name
        self._call = call
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._socket: socket.socket | None = None
        self._thread = StoppableThread("tables", self._run, wake=lambda: os.eventfd_write(self._wake, 1))

    def start(self) -> None:
        """Start the thread; a kernel without nf_tables has no tables to delete either."""
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETLINK_NETFILTER)
            self._socket.bind((0, _GROUP))
        except OSError:
            return
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._thread.stop()
        if self._socket is not None:
            self._socket.close()
        os.close(self._wake)

    def _run(self) -> None:
        assert self._socket is not None
        while True:
            ready, _, _ = select.select([self._socket.fileno(), self._wake], [], [])
            if self._wake in ready:
                return
            try:
                message = self._socket.recv(1 << 18)
            except OSError:
                # Messages were lost; one of them may have been a deletion.
                families = list(_FAMILIES.values())
            else:
                families = [family for family, name in deleted(message) if name == self._name]
            for family in families:
                try:
                    self._call(family)
                except Exception as error:  # an unexpected error must not stop this thread
                    log.failure("a deleted table of rules is not made again", error, family=family)


def deleted(message: bytes) -> Iterator[tuple[str, str]]:
    """The families and names of the deleted tables in netlink messages."""
    at = 0
    while at + 16 <= len(message):
        size, kind = struct.unpack_from("=IH", message, at)
        if size < 16:
            return
        if kind == _DELETED_TABLE and at + 24 <= len(message) and message[at + 16] in _FAMILIES:
            # After the family's header the attributes follow, of which the name is the first.
            length, attribute = struct.unpack_from("=HH", message, at + 20)
            if attribute == _NAME:
                name = message[at + 24 : at + 20 + length].rstrip(b"\0").decode("ascii", "replace")
                yield _FAMILIES[message[at + 16]], name
        at += size + 3 & ~3
