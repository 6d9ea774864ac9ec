"""Packets of a DHCP server: ignored, or a lease that an interface can take; nothing else is written anywhere."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from math import isfinite
from random import Random
from typing import Final

from lark_worker.dhcp.apply import resolv_text, steps
from lark_worker.dhcp.message import Kind, Option, decode, payload
from lark_worker.dhcp.protocol import Bound, Client, Send

MAX_BYTES: Final = 1500
MAC: Final = bytes.fromhex("020000000001")
DICTIONARY: Final = (
    b"\x63\x82\x53\x63", b"\x35\x01\x02", b"\x35\x01\x05", b"\x35\x01\x06", b"\x36\x04\x0a\x00\x00\x01",
    b"\x33\x04\x00\x00\x0e\x10", b"\x01\x04\xff\xff\xff\x00", b"\x03\x04\x0a\x00\x00\x01", b"\x34\x01\x03", b"\x79\x05",
    b"\x0f\x03lan", b"\x1a\x02\x05\xdc", b"\x06\x08", b"\xff", b"\x00\x43\x00\x44", MAC,
)  # fmt: skip


def run(data: bytes) -> None:
    """Hand ``data`` to clients in every state, as a packet and as what a packet carries."""
    for packet in (True, False):
        try:
            message = decode(payload(data) if packet else data)
        except ValueError:
            continue
        client = Client(MAC, Random(1))
        client.start(0.0)
        for now in range(1, 5):
            # The transaction is the client's own, so that the rest of the message counts.
            known = replace(message, xid=client._xid, mac=MAC)
            for kind in (known.kind, Kind.OFFER, Kind.ACK):
                for outcome in client.receive(replace(known, kind=kind), float(now)):
                    if isinstance(outcome, Bound):
                        _check(outcome)
                    elif isinstance(outcome, Send):
                        assert len(outcome.message.options.get(Option.SERVER, b"1234")) == 4
            # A client that wakes at infinity holds a lease without an end, and is never woken.
            if isfinite(client.wakes):
                client.tick(client.wakes)


def _check(bound: Bound) -> None:
    lease = bound.lease
    assert lease.renews <= lease.rebinds <= lease.expires
    lines = [*steps(lease, "", "eth0", 1500), *resolv_text(lease, (IPv4Address("192.0.2.53"),)).splitlines()]
    assert len(lines) < 1000
    # One command or server a line, of such words alone: names come from a server and are written to a job's files.
    allowed = set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./: ")
    assert all(set(line) <= allowed for line in lines)
