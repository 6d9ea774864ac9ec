"""Flow labels: packets of marked connections carry the mark and the sender's entropy, seen on the wire."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from ipaddress import ip_address

import pytest

from lark_common.scitags import LABEL_MASK, Scitag
from lark_worker.errors import NetworkError
from lark_worker.transfers.labels import FlowLabels
from tests.fixtures.service import wait

CMS = Scitag(3, 12)
_IPV6 = 0x86DD
PREFIX = f"sct{os.getpid()}"
FAR6 = ip_address("3fff::1")


class Capture:
    """The IPv6 packets that come in by an interface: ports of source and destination, flow label, traffic class."""

    def __init__(self, interface: str) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_IPV6))
        self._socket.bind((interface, _IPV6))
        self._socket.settimeout(0.2)
        self._over = threading.Event()
        self.seen: list[tuple[int, int, int, int]] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.is_set():
            with contextlib.suppress(TimeoutError):
                data = self._socket.recv(65536)
                first, ports = struct.unpack_from(">I", data)[0], struct.unpack_from(">HH", data, 40)
                if data[6] == socket.IPPROTO_TCP:
                    self.seen.append((*ports, first & 0xFFFFF, first >> 20 & 0xFF))

    def labels(self, source: int | None = None, destination: int | None = None) -> list[int]:
        """The flow labels of what was sent from a port, or to one."""
        return [label for from_, to, label, _ in list(self.seen) if from_ == source or to == destination]

    def close(self) -> None:
        self._over.set()
        self._thread.join(20)
        self._socket.close()


@contextmanager
def capturing(interface: str = "lo") -> Iterator[Capture]:
    capture = Capture(interface)
    try:
        yield capture
    finally:
        capture.close()


def later(capture: Capture, source: int, seen: int) -> bool:
    """True once a packet has come from a port after so many."""
    return any(each[0] == source for each in capture.seen[seen:])


def test_packets_of_a_connection_carry_the_mark_and_the_senders_entropy() -> None:
    labels = FlowLabels(PREFIX)
    others = {(ip_address(f"3fff::{each:x}"), 1, FAR6, 2): Scitag(each % 511 + 1, 63) for each in range(1, 600)}
    with capturing() as capture, socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        here = socket.create_connection(server.getsockname()[:2])
        there, _ = server.accept()
        own, port = here.getsockname()[1], server.getsockname()[1]
        ends = (ip_address("::1"), own, ip_address("::1"), port)
        try:
            with here, there:
                here.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, 0x48)
                here.sendall(b"before")
                assert there.recv(9) == b"before"
                wait(lambda: (own, port) in [each[:2] for each in capture.seen])
                before = capture.labels(own)[-1]
                for mark in (CMS, Scitag(511, 63), Scitag(256, 32)):
                    labels.put({**others, ends: mark})
                    assert len(labels) == 600
                    seen = len(capture.seen)
                    here.sendall(b"marked")
                    assert there.recv(9) == b"marked"
                    wait(partial(later, capture, own, seen))
                    (*_, label, traffic_class) = [each for each in capture.seen if each[0] == own][-1]
                    assert label & LABEL_MASK == mark.label
                    assert label & ~LABEL_MASK == before & ~LABEL_MASK
                    assert traffic_class & 0xFC == 0x48
                # The answers are the other's, who marks them or not.
                assert len({each & LABEL_MASK for each in capture.labels(port)}) == 1
                labels.put(others)
                seen = len(capture.seen)
                here.sendall(b"after")
                assert there.recv(9) == b"after"
                wait(partial(later, capture, own, seen))
                assert capture.labels(own)[-1] == before
        finally:
            labels.put({})
    listed = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout
    assert labels.name not in listed


def test_a_table_that_somebody_has_changed_is_made_anew() -> None:
    ends = (ip_address("3fff::1"), 1, FAR6, 2)
    labels = FlowLabels(PREFIX)
    try:
        labels.put({ends: CMS})
        subprocess.run(["nft", "delete", "table", "ip6", labels.name], check=True)
        with pytest.raises(NetworkError):
            labels.put({(FAR6, 7, FAR6, 2): CMS})
        labels.put({ends: Scitag(4, 4)})
        # A service that was killed has left its table.
        again = FlowLabels(PREFIX)
        again.put({ends: CMS})
        text = subprocess.run(["nft", "list", "table", "ip6", labels.name], capture_output=True, text=True, check=True)
        assert "mark_3_12" in text.stdout
        assert "mark_4_4" not in text.stdout
    finally:
        FlowLabels(PREFIX).put({})
