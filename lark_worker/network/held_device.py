"""Hold back what a job's interface sends until its flows are confirmed, by a queueing discipline (rtnetlink(7)).

The kernel sends by itself as soon as the interface is up: reports about multicast groups, router solicitations. A
switch drops that, and Open vSwitch applies the same decision to the job's first packets for some milliseconds.
"""

from __future__ import annotations

import errno
import os
import socket
import struct
from typing import Final

from lark_common import log
from lark_worker.errors import NetworkError

# linux/rtnetlink.h, linux/netlink.h, linux/pkt_sched.h.
_RTM_NEWQDISC, _RTM_DELQDISC = 36, 37
_REQUEST_AND_ACK, _CREATE_ALONE = 0x5, 0x600
_NLMSG_ERROR: Final = 2
_ROOT: Final = 0xFFFFFFFF
_TCA_KIND, _TCA_OPTIONS = 1, 2
# Lark's own, as that of its queues.
_HANDLE: Final = 0x1A4B0000

_HEADER: Final = struct.Struct("=IHHII")
_TCMSG: Final = struct.Struct("=BxxxiIII")
# A FIFO that holds no packet takes none in.
_NONE: Final = struct.pack("=HH8sHHI", 10, _TCA_KIND, b"pfifo", 8, _TCA_OPTIONS, 0)


def hold(device: str) -> None:
    """Let a device of this thread's network namespace send nothing; without the kernel's help it sends as before."""
    if failed := _ask(_RTM_NEWQDISC, _CREATE_ALONE, device, _NONE):
        log.event("a job's interface may send before it is confirmed", level=log.WARNING, reason=os.strerror(failed))


def release(device: str) -> None:
    """Let it send. Idempotent. Raises NetworkError."""
    failed = _ask(_RTM_DELQDISC, 0, device)
    # None is there, or one that the site's script has put in its place.
    if failed not in (0, errno.ENOENT, errno.EINVAL):
        raise NetworkError(f"interface {device} of the job cannot be let send: {os.strerror(failed)}")


def _ask(kind: int, flags: int, device: str, attributes: bytes = b"") -> int:
    """The kernel's error number, 0 for none."""
    try:
        body = _TCMSG.pack(socket.AF_UNSPEC, socket.if_nametoindex(device), _HANDLE, _ROOT, 0) + attributes
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
            kernel.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST_AND_ACK | flags, 1, 0) + body)
            answer = kernel.recv(4096)
    except OSError as error:
        return error.errno or errno.EIO
    _, answered, _, _, _ = _HEADER.unpack_from(answer)
    return -int(struct.unpack_from("=i", answer, _HEADER.size)[0]) if answered == _NLMSG_ERROR else errno.EPROTO
