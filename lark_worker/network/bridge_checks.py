"""The mistakes in what a bridge is to be made of, each as a sentence: what is wrong, and what is accepted."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lark_worker.errors import NetworkError
from lark_worker.network.commands import SEARCHED, run

DEVICES: Final = Path("/sys/class/net")
STATUS: Final = Path("/proc/self/status")
# The names that the kernel takes for devices (dev_valid_name), of printable characters. For one with "%d" it takes a
# number instead, and "all" and "default" are other things in /proc/sys/net.
_NAME: Final = re.compile(r"(?!(?:\.{1,2}|all|default)$)[!-$&-.0-9;-~]{1,15}")
# ARPHRD_ETHER and ARPHRD_LOOPBACK in a device's type.
_ETHERNET: Final = "1"
_LOOPBACK: Final = "772"
_CAP_NET_ADMIN: Final = 12
_SHOWN: Final = 8
_TAKEN: Final = "is there already, and was not made by this command; accepted: a name that is free"
_A_BRIDGE: Final = "is a bridge itself, and no bridge takes another one; name a card of its ports"


def check_names(*names: str) -> None:
    """Raises NetworkError for a name that no device can have."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise NetworkError(
                f"{name!a:.60} is no name of a device; accepted: 1 to 15 characters other than / : and %, and not all "
                "or default"
            )


def check_rights(folder: Path) -> None:
    """Raises NetworkError where this process may not change the machine's network, or not read ``folder``."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)$", STATUS.read_text("utf-8"), re.MULTILINE)
    if found is not None and not int(found[1], 16) >> _CAP_NET_ADMIN & 1:
        how = "in a container it needs the capability NET_ADMIN" if os.geteuid() == 0 else "run it as root (sudo)"
        raise NetworkError(f"this command changes the machine's network, and may not: {how}")
    try:
        list(folder.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise unusable(folder, error) from None


def unusable(folder: Path, error: OSError) -> NetworkError:
    """The error of a folder that cannot be read or written."""
    return NetworkError(f"{folder} cannot be used ({error.strerror}); it is in LARK_WORKER_STATE_DIR")


def check_card(bridge: str, interface: str) -> None:
    """Raises NetworkError for an interface that cannot become a bridge's, and for a bridge of which the name is
    taken."""
    here = DEVICES / interface
    if not here.exists():
        raise NetworkError(f"there is no interface {interface} here; there are: {_others(interface)}")
    if bridge == interface:
        raise NetworkError(f"{bridge} is the interface itself; the bridge needs a name of its own")
    if _read(here, "type") == _LOOPBACK:
        raise NetworkError(f"{interface} is the loopback interface; accepted: a network card ({_others(interface)})")
    if (here / "bridge").exists():
        raise NetworkError(f"{interface} {_A_BRIDGE}")
    if _read(here, "type") != _ETHERNET:
        raise NetworkError(f"{interface} is not of Ethernet; accepted: a network card ({_others(interface)})")
    if (here / "master").exists():
        master = (here / "master").resolve().name
        # The device to which all ports of Open vSwitch's bridges belong.
        inside, undo = f"a part of {master}", f"ip link set {interface} nomaster"
        if master == "ovs-system":
            inside, undo = "a port of Open vSwitch", f"ovs-vsctl del-port {interface}"
        raise NetworkError(f"{interface} is {inside} already; take it out first ({undo}), or name another interface")
    if (DEVICES / bridge).exists():
        raise NetworkError(f"{bridge} {_TAKEN}")


def check_open_vswitch(bridge: str, interface: str, vsctl: Sequence[str], database: str) -> None:
    """Raises NetworkError where Open vSwitch is not here, has that bridge already, or the interface in one."""
    instead = "or make a bridge of the kernel, which needs none: --kind linux"
    if shutil.which(vsctl[0], path=SEARCHED) is None:
        raise NetworkError(f"{vsctl[0]} is not installed; install Open vSwitch (openvswitch-switch), {instead}")
    try:
        bridges = run([*vsctl, "list-br"]).split()
    except NetworkError as error:
        why = str(error).rpartition(": ")[2]
        raise NetworkError(
            f"Open vSwitch's database {database} does not answer ({why}); start Open vSwitch, or set "
            f"LARK_WORKER_OVS_DATABASE, {instead}"
        ) from None
    if bridge in bridges:
        raise NetworkError(f"{bridge} {_TAKEN}")
    if interface in bridges:
        raise NetworkError(f"{interface} {_A_BRIDGE}")
    # A port of a bridge in user space has no master in the kernel.
    if inside := run([*vsctl, "iface-to-br", interface], check=False).strip():
        raise NetworkError(
            f"{interface} is a port of {inside} already; take it out first (ovs-vsctl del-port {inside} {interface}), "
            "or name another interface"
        )


def without_carrier(interface: str) -> str:
    """The end of a sentence on nobody who answers over an interface: it has no carrier; ``""`` where it has."""
    # Of one that is down the file cannot be read.
    dead = _read(DEVICES / interface, "carrier") == "0"
    return f": {interface} has no carrier (its cable, or the other end)" if dead else ""


def _read(device: Path, name: str) -> str:
    try:
        return (device / name).read_text("ascii").strip()
    except OSError:
        return ""


def _others(interface: str) -> str:
    """The network cards of this machine, but for one."""
    found = [each.name for each in sorted(DEVICES.iterdir()) if _read(each, "type") == _ETHERNET]
    shown = [name for name in found if name != interface and not (DEVICES / name / "bridge").exists()]
    more = f" and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
    return f"{', '.join(shown[:_SHOWN]) or 'none'}{more}"
