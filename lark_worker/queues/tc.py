"""Linux's traffic control over rtnetlink (rtnetlink(7)): HTB's classes are read, their quantum and leaf are set.

Messages are read and written here because ``tc`` prints a class's bursts rounded: to change one number of a class with
it would change others.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from lark_worker.errors import NetworkError

# linux/rtnetlink.h, linux/netlink.h, linux/pkt_sched.h.
RTM_NEWQDISC, RTM_GETQDISC, RTM_NEWTCLASS, RTM_GETTCLASS = 36, 38, 40, 42
RTMGRP_TC: Final = 1 << 3
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_REQUEST, _ACK, _DUMP, _CREATE, _REPLACE = 0x1, 0x4, 0x300, 0x400, 0x100
TC_H_ROOT: Final = 0xFFFFFFFF
_TCA_KIND, _TCA_OPTIONS, _TCA_STATS2 = 1, 2, 7
_STATS_BASIC, _STATS_QUEUE = 1, 3
_HTB_PARMS, _HTB_RATE64, _HTB_CEIL64 = 1, 6, 7
_FQ_CODEL_TARGET, _FQ_CODEL_INTERVAL = 1, 3
_CAKE_DIFFSERV_MODE, _CAKE_FLOW_MODE, _CAKE_RTT, _CAKE_TARGET, _CAKE_SPLIT_GSO = 3, 5, 7, 8, 17
# Their values: one tin for every DSCP; fair among hosts, then among a host's flows.
_CAKE_BESTEFFORT, _CAKE_TRIPLE = 3, 7
_ETHERNET = 1

_HEADER: Final = struct.Struct("=IHHII")
_TCMSG: Final = struct.Struct("=BxxxiIII")
_ATTRIBUTE: Final = struct.Struct("=HH")
# struct tc_htb_opt: two tc_ratespec (cell_log, linklayer, overhead, cell_align, mpu, rate), then buffers, quantum,
# level, prio.
_HTB: Final = struct.Struct("=BBHhHI BBHhHI IIIII")
_LINKLAYERS: Final = (1, 7)
_RATE, _CEILING, _QUANTUM = 5, 11, 14


@dataclass(frozen=True, slots=True)
class Backlog:
    """Bytes that wait in a queue now, and packets that it has dropped since it was made."""

    waiting: int
    dropped: int


@dataclass(frozen=True, slots=True)
class HtbClass:
    """A class of HTB: its device by index, its id and its parent's, its leaf's handle (0: the kernel's own FIFO).

    ``rate`` (guaranteed) and ``ceiling`` are bytes a second. ``backlog`` is what waits in it and what its leaf did not
    take in, ``sent`` the bytes that have left it. ``options`` are its options as the kernel gave them.
    """

    device: int
    id: int
    parent: int
    leaf: int
    rate: int
    ceiling: int
    quantum: int
    backlog: Backlog
    options: bytes
    sent: int = 0


def leaves() -> dict[tuple[int, int], Backlog]:
    """The backlog of every class's leaf by device (index) and class, in one request.

    A class of HTB counts the packets that its leaf did not take in; those dropped later are counted by the leaf
    alone. The kernel's own FIFOs are not among them. Raises NetworkError.
    """
    found = {}
    for _, body in _ask(RTM_GETQDISC, _DUMP, _TCMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        _, device, _, parent, _ = _TCMSG.unpack_from(body)
        if parent not in (TC_H_ROOT, 0):
            found[device, parent] = _backlog(dict(_attributes(body[_TCMSG.size :])))
    return found


def roots() -> dict[int, tuple[str, int]]:
    """The queueing discipline of every device, by its index: kind, and handle (0 for what the kernel chose itself).

    Raises NetworkError.
    """
    found = {}
    for _, body in _ask(RTM_GETQDISC, _DUMP, _TCMSG.pack(socket.AF_UNSPEC, 0, 0, 0, 0)):
        _, device, handle, parent, _ = _TCMSG.unpack_from(body)
        if parent == TC_H_ROOT:
            kind = dict(_attributes(body[_TCMSG.size :])).get(_TCA_KIND, b"")
            found[device] = (kind.rstrip(b"\0").decode("ascii", "replace"), handle)
    return found


def _sent(attributes: Mapping[int, bytes]) -> int:
    # struct gnet_stats_basic: bytes (64 bits), packets.
    basic = dict(_attributes(attributes.get(_TCA_STATS2, b""))).get(_STATS_BASIC, b"")
    return int(struct.unpack_from("=Q", basic)[0]) if len(basic) >= 8 else 0


def _backlog(attributes: Mapping[int, bytes]) -> Backlog:
    # struct gnet_stats_queue: qlen, backlog, drops, requeues, overlimits.
    queue = dict(_attributes(attributes.get(_TCA_STATS2, b""))).get(_STATS_QUEUE, b"")
    return Backlog(*struct.unpack_from("=III", queue)[1:]) if len(queue) >= 12 else Backlog(0, 0)


def classes(device: int) -> list[HtbClass]:
    """The classes of HTB on a device, by its index. Raises NetworkError."""
    found = []
    message = _TCMSG.pack(socket.AF_UNSPEC, device, 0, 0, 0)
    for _, body in _ask(RTM_GETTCLASS, _DUMP, message):
        _, index, handle, parent, info = _TCMSG.unpack_from(body)
        attributes = dict(_attributes(body[_TCMSG.size :]))
        if attributes.get(_TCA_KIND, b"").rstrip(b"\0") != b"htb" or _TCA_OPTIONS not in attributes:
            continue
        options = dict(_attributes(attributes[_TCA_OPTIONS]))
        if len(options.get(_HTB_PARMS, b"")) < _HTB.size:
            continue
        fields = _HTB.unpack_from(options[_HTB_PARMS])
        rate, ceiling = (
            struct.unpack_from("=Q", options[wide])[0] if len(options.get(wide, b"")) >= 8 else fields[narrow]
            for wide, narrow in ((_HTB_RATE64, _RATE), (_HTB_CEIL64, _CEILING))
        )
        given = attributes[_TCA_OPTIONS]
        backlog = _backlog(attributes)
        sent = _sent(attributes)
        found.append(HtbClass(index, handle, parent, info, rate, ceiling, fields[_QUANTUM], backlog, given, sent))
    return found


def set_quantum(htb: HtbClass, quantum: int) -> None:
    """Change the quantum of a class, the bytes that it sends in its turn, and nothing else. Raises NetworkError."""
    options = b""
    for kind, given in _attributes(htb.options):
        value = given
        if kind == _HTB_PARMS:
            fields = list(_HTB.unpack_from(given))
            fields[_QUANTUM] = quantum
            # With a link layer that is known the kernel needs no table of transmission times.
            for position in _LINKLAYERS:
                fields[position] = fields[position] or _ETHERNET
            value = _HTB.pack(*fields) + given[_HTB.size :]
        options += _attribute(kind, value)
    message = _TCMSG.pack(socket.AF_UNSPEC, htb.device, htb.id, htb.parent, 0)
    message += _attribute(_TCA_KIND, b"htb\0") + _attribute(_TCA_OPTIONS, options)
    _do(RTM_NEWTCLASS, 0, message)


def add_fq_codel(htb: HtbClass, target: int, interval: int) -> None:
    """Give a class a fair-queueing leaf (RFC 8290); ``target`` and ``interval`` are microseconds.

    Raises NetworkError, also where the kernel has no fq_codel.
    """
    _add_leaf(htb, b"fq_codel", ((_FQ_CODEL_TARGET, target), (_FQ_CODEL_INTERVAL, interval)))


def add_cake(htb: HtbClass, target: int, interval: int, *, split: bool) -> None:
    """Give a class a leaf of CAKE without a rate of its own: fair among hosts, then among each host's flows.

    ``target`` and ``interval`` are microseconds. With ``split`` joined packets (GSO) are taken apart, so that none
    waits behind one of 64 KiB. Raises NetworkError, also where the kernel has no CAKE.
    """
    settings = (
        (_CAKE_DIFFSERV_MODE, _CAKE_BESTEFFORT),
        (_CAKE_FLOW_MODE, _CAKE_TRIPLE),
        (_CAKE_RTT, interval),
        (_CAKE_TARGET, target),
        (_CAKE_SPLIT_GSO, int(split)),
    )
    _add_leaf(htb, b"cake", settings)


def _add_leaf(htb: HtbClass, kind: bytes, settings: Iterable[tuple[int, int]]) -> None:
    message = _TCMSG.pack(socket.AF_UNSPEC, htb.device, 0, htb.id, 0)
    options = b"".join(_attribute(name, struct.pack("=I", value)) for name, value in settings)
    message += _attribute(_TCA_KIND, kind + b"\0") + _attribute(_TCA_OPTIONS, options)
    _do(RTM_NEWQDISC, _CREATE | _REPLACE, message)


def listener() -> socket.socket:
    """A socket on which the kernel reports changes of queues, classes or filters; messages need not be read whole."""
    listening = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    listening.bind((0, RTMGRP_TC))
    return listening


def _do(kind: int, flags: int, message: bytes) -> None:
    for _ in _ask(kind, flags | _ACK, message):
        pass


def _ask(kind: int, flags: int, message: bytes) -> Iterator[tuple[int, bytes]]:
    """Send one request and yield the messages that answer it (type and body)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as netlink:
        netlink.settimeout(5.0)
        try:
            netlink.bind((0, 0))
            netlink.send(_HEADER.pack(_HEADER.size + len(message), kind, _REQUEST | flags, 1, 0) + message)
            while True:
                data = netlink.recv(1 << 18)
                position = 0
                while position + _HEADER.size <= len(data):
                    length, answer, _, _, _ = _HEADER.unpack_from(data, position)
                    if length < _HEADER.size:
                        raise NetworkError("traffic control: a message without a length")
                    body = data[position + _HEADER.size : position + length]
                    position += length + -length % 4
                    if answer == _NLMSG_DONE:
                        return
                    if answer == _NLMSG_ERROR:
                        number = -struct.unpack_from("=i", body)[0]
                        if number:
                            raise OSError(number, os.strerror(number))
                        return
                    yield answer, body
        except OSError as error:
            # With the device its classes are gone, too.
            if error.errno != errno.ENODEV:
                raise NetworkError(f"traffic control: {error}") from None


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    position = 0
    while position + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[position + _ATTRIBUTE.size : position + length]
        position += length + -length % 4


def _attribute(kind: int, value: bytes) -> bytes:
    length = _ATTRIBUTE.size + len(value)
    return _ATTRIBUTE.pack(length, kind) + value + b"\0" * (-length % 4)
