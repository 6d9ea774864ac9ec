"""The worker's own bridge: made once, an interface moved into it with its addresses and routes, and taken apart again.

What is needed to undo it is on disk before anything is changed. Everything goes through iproute2, ``ovs-vsctl`` and,
for a bridge in user space, ``nft``.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from lark_worker.errors import NetworkError
from lark_worker.network.bridge_checks import (
    DEVICES,
    check_card,
    check_names,
    check_open_vswitch,
    check_rights,
    unusable,
    without_carrier,
)
from lark_worker.network.commands import ip_batch, run
from lark_worker.network.ovs_bridge import Bridge
from lark_worker.records.atomic_file import write_atomically

KINDS: Final = ("ovs", "ovs-userspace", "linux")
BASE_FLOWS: Final = "lark-base-flows"
# Routes that the kernel makes by itself with an address, or that a router's advertisement brings again; and the types
# of those that it keeps for its own addresses (ip-route(8)).
_NOT_OURS: Final = frozenset({"kernel", "ra"})
_OWN_TYPES: Final = frozenset({"local", "broadcast", "anycast", "multicast"})
# Words of a route that is shown that are no part of it, and those of which one more follows.
_STATES: Final = frozenset({"linkdown", "dead", "offload", "trap", "rt_offload", "rt_trap", "rt_offload_failed"})
_STATES_WITH: Final = frozenset({"expires", "nhid", "error"})
_TRY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Moved:
    """The former settings of an interface: addresses and routes as arguments of ip(8), and the routers of its default
    routes. ``table`` is the nftables table that was made with the bridge; ``""``: none. ``datapath`` is the bridge's
    datapath id, of Open vSwitch's as it was made."""

    bridge: str
    interface: str
    kind: str
    addresses: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()
    routers: tuple[str, ...] = ()
    table: str = ""
    datapath: str = ""


class OwnBridge:
    """Bridges of this worker that were made by :meth:`make`; ``state_dir`` remembers them."""

    def __init__(self, state_dir: Path, ovs_database: str) -> None:
        self._folder = state_dir / "bridges"
        self._database = ovs_database

    def make(self, bridge: str, interface: str, kind: str, datapath_id: str = "", patience: float = 15.0) -> Moved:
        """Make a bridge and move an interface into it, with its addresses and routes. Idempotent.

        After a restart of the machine, where the system has configured the interface as ever, all is moved again. A
        bridge of Open vSwitch that is there gets ``datapath_id`` (16 hexadecimal digits) if it has another one.
        Where a step fails, or no router of its default routes answers within ``patience`` seconds (0: nobody is
        asked), all is as it was. Raises NetworkError.
        """
        check_names(bridge, interface)
        check_rights(self._folder)
        table = _table_of(bridge) if kind == "ovs-userspace" else ""
        if table:
            _check_filter(table, interface)
        known = self._known(bridge)
        if known is not None and self._stands(known):
            if (known.interface, known.kind) != (interface, kind):
                raise NetworkError(
                    f"{bridge} was made with {known.interface} (--kind {known.kind}); take it apart first: "
                    f"lark-worker bridge undo {bridge}"
                )
            if _is_done(known):
                # Its table does not outlive a restart; one that an earlier version made has none.
                known = replace(known, table=table)
                self._keep(known)
                _filter(known)
                return self._named(known, datapath_id)
            if kind == "linux" or (known.addresses and not _addresses(interface)):
                # It broke off while addresses moved.
                self.undo(bridge)
                known = None
        # The machine has started anew. Open vSwitch's bridges outlive that; the kernel's, and all addresses, do not.
        is_there = known is not None and kind != "linux" and self._has_port(bridge, interface)
        if not is_there:
            self._check(bridge, interface, kind)
        moved = Moved(bridge, interface, kind, *_read(interface), table)
        self._keep(moved)
        try:
            self._add(moved, datapath_id, is_there=is_there)
            ip_batch([*_gone(moved, interface), *_come(moved, bridge)])
            _filter(moved)
            if patience and moved.routers:
                _answering(moved, patience)
            return self._named(moved, datapath_id)
        except NetworkError as error:
            try:
                self.undo(bridge)
            except NetworkError as further:
                raise NetworkError(f"{error}; {further}; repeat it: lark-worker bridge undo {bridge}") from None
            how = f"{bridge} is no more, and {interface} is as it was" if is_there else "all is as it was"
            raise NetworkError(f"{error}; {how}") from None

    def undo(self, bridge: str) -> Moved:
        """Take a bridge apart that was made here: the interface has its addresses and routes again.

        Raises NetworkError where it was not, or something cannot be undone; what can be is undone all the same.
        """
        check_names(bridge)
        check_rights(self._folder)
        moved = self._known(bridge)
        if moved is None:
            raise NetworkError(f"{bridge} was not made by this command (nothing in {self._folder})")
        failed = []
        steps: list[list[str]] = []
        if moved.kind == "linux":
            steps = [["ip", "link", "set", moved.interface, "nomaster"], ["ip", "link", "del", bridge]]
        else:
            steps = [self._vsctl("--if-exists", "del-br", bridge)]
        if moved.table:
            steps.insert(0, ["nft", _no_table(moved.table)])
        steps.append(["ip", "link", "set", moved.interface, "up"])
        steps += [["ip", *line.split()] for line in _come(moved, moved.interface)]
        for step in steps:
            if step[:3] == ["ip", "link", "del"] and not (DEVICES / bridge).exists():
                continue
            try:
                run(step)
            except NetworkError as error:
                failed.append(str(error))
        if failed:
            raise NetworkError(f"{bridge} is not all undone: {'; '.join(failed)}")
        self._path(bridge).unlink()
        return moved

    def _check(self, bridge: str, interface: str, kind: str) -> None:
        check_card(bridge, interface)
        if kind != "linux":
            check_open_vswitch(bridge, interface, self._vsctl(), self._database)
            # Without any flow such a bridge passes nothing, the worker's own packets included.
            if shutil.which(BASE_FLOWS) is None:
                raise NetworkError(f"{BASE_FLOWS} is not in the path, and without its flows the worker is cut off")

    def _stands(self, moved: Moved) -> bool:
        """True if a bridge that was made here is there, be it that its addresses are not."""
        if moved.kind == "linux":
            return (DEVICES / moved.bridge).exists()
        return self._has_port(moved.bridge, moved.interface)

    def _has_port(self, bridge: str, interface: str) -> bool:
        """True if Open vSwitch has the bridge, and the interface is a port of it."""
        return interface in run(self._vsctl("list-ports", bridge), check=False).split()

    def _add(self, moved: Moved, datapath_id: str, *, is_there: bool) -> None:
        bridge, interface = moved.bridge, moved.interface
        mac = (DEVICES / interface / "address").read_text("ascii").strip()
        mtu = (DEVICES / interface / "mtu").read_text("ascii").strip()
        if moved.kind == "linux":
            ip_batch(
                [
                    # The same address, so that neighbours and the DHCP server know the worker again.
                    f"link add {bridge} address {mac} mtu {mtu} type bridge stp_state 0 forward_delay 0",
                    f"link set {interface} master {bridge}",
                    f"link set {interface} up",
                    f"link set {bridge} up",
                ]
            )
            return
        ids = [f"other-config:datapath-id={datapath_id}"] if datapath_id else []
        ids += ["datapath_type=netdev"] if moved.kind == "ovs-userspace" else []
        if not is_there:
            run(
                self._vsctl(
                    "add-br", bridge, "--", "set", "bridge", bridge, "fail_mode=secure", "protocols=OpenFlow13",
                    "other-config:disable-in-band=true", f'other-config:hwaddr="{mac}"', *ids,
                    "--", "add-port", bridge, interface,
                )
            )  # fmt: skip
        if not (DEVICES / bridge).exists():
            why = (
                "ovs-vswitchd's log has the reason (in user space it needs /dev/net/tun)"
                if moved.kind == "ovs-userspace"
                else "has this kernel no module openvswitch? Without it: --kind ovs-userspace"
            )
            raise NetworkError(f"Open vSwitch cannot make {bridge}: {why}")
        ip_batch([f"link set {interface} up", f"link set {bridge} mtu {mtu} up"])
        # Its programs look for Open vSwitch there.
        where = Path(self._database.removeprefix("unix:")).parent
        run(["env", f"OVS_RUNDIR={where}", shutil.which(BASE_FLOWS) or BASE_FLOWS, bridge, interface])

    def _named(self, moved: Moved, datapath_id: str) -> Moved:
        """The bridge, which has this datapath id from now on; ``""``: the one that it has."""
        if moved.kind == "linux":
            return moved
        ids = Bridge(moved.bridge, self._database)
        if datapath_id and ids.datapath_id() != datapath_id:
            run(self._vsctl("set", "bridge", moved.bridge, f"other-config:datapath-id={datapath_id}"))
        return replace(moved, datapath=ids.datapath_id())

    def _known(self, bridge: str) -> Moved | None:
        with contextlib.suppress(FileNotFoundError):
            found = json.loads(self._path(bridge).read_text("utf-8"))
            addresses, routes, routers = (tuple(found[name]) for name in ("addresses", "routes", "routers"))
            names = found["bridge"], found["interface"], found["kind"]
            return Moved(*names, addresses, routes, routers, table=found.get("table", ""))
        return None

    def _keep(self, moved: Moved) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path(moved.bridge), json.dumps(asdict(moved)))
        except OSError as error:
            raise unusable(self._folder, error) from None

    def _path(self, bridge: str) -> Path:
        return self._folder / f"{bridge}.json"

    def _vsctl(self, *arguments: str) -> list[str]:
        return ["ovs-vsctl", "--timeout=20", f"--db={self._database}", *arguments]


def _table_of(bridge: str) -> str:
    """The name of the table of a bridge, whose own may have characters that nft takes in no name."""
    return "lark_bridge_" + re.sub("[^A-Za-z0-9_.-]", lambda found: f"/{ord(found[0]):x}", bridge)


def _no_table(table: str) -> str:
    """The nft script after which there is no such table, whether there was one or not."""
    return f"add table inet {table}; delete table inet {table}"


def _filter_script(table: str, interface: str) -> str:
    """The nft script that has the kernel drop what arrives at a port of a bridge in user space.

    Open vSwitch reads a copy there, and hands the worker what is for it at the bridge. The kernel goes on with its own:
    of UDP and pings the worker had each packet twice. Before connections are tracked, or what ``nat`` jobs receive
    would come twice as well.
    """
    chain = f'type filter hook prerouting priority raw; iifname "{interface}" drop'
    return f"{_no_table(table)}\ntable inet {table} {{ chain arriving {{ {chain}; }}; }}\n"


def _check_filter(table: str, interface: str) -> None:
    """Raises NetworkError where that cannot be made here."""
    try:
        run(["nft", "--check", "-f", "-"], _filter_script(table, interface))
    except NetworkError as error:
        raise NetworkError(
            f"a bridge in user space needs nftables, or this worker receives pings and UDP twice: {error}"
        ) from None


def _filter(moved: Moved) -> None:
    if moved.table:
        run(["nft", "-f", "-"], _filter_script(moved.table, moved.interface))


def _is_done(moved: Moved) -> bool:
    if moved.kind == "linux" and not (DEVICES / moved.bridge / "brif" / moved.interface).exists():
        return False
    # A port of the userspace datapath has no master.
    there = (DEVICES / moved.bridge).exists() and not _addresses(moved.interface)
    return there and (not moved.addresses or bool(_addresses(moved.bridge)))


def _read(interface: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """The addresses of an interface, its routes in all tables, and the routers of its default routes."""
    routes: list[str] = []
    routers: list[str] = []
    for family in ("-4", "-6"):
        for line in run(["ip", family, "-oneline", "route", "show", "table", "all"]).splitlines():
            words = line.replace("\\", " ").split()
            if ("dev", interface) not in pairwise(words) or words[0] in _OWN_TYPES:
                continue
            if _NOT_OURS.isdisjoint(after for before, after in pairwise(words) if before == "proto"):
                routes.append(" ".join([family, *_route(words)]))
                routers += _routers(words, interface) if "default" in words[:2] else []
    # A route that another one's gateway is reached by comes before it.
    ordered = sorted(routes, key=lambda text: " via " in text)
    return tuple(_addresses(interface)), tuple(ordered), tuple(routers)


def _addresses(interface: str) -> list[str]:
    shown = json.loads(run(["ip", "-json", "address", "show", "dev", interface]))
    return [
        " ".join(_address(each, interface))
        for each in (shown[0]["addr_info"] if shown else [])
        # Link-local ones of IPv6 and those from a router's advertisement come by themselves on the bridge.
        if each["family"] == "inet" or not (each["scope"] == "link" or each.get("dynamic"))
    ]


def _address(shown: dict[str, Any], interface: str) -> Iterator[str]:
    """An address as arguments of ip(8)."""
    if "address" in shown:
        yield from (shown["local"], "peer", f"{shown['address']}/{shown['prefixlen']}")
    else:
        yield f"{shown['local']}/{shown['prefixlen']}"
    if "broadcast" in shown:
        yield from ("broadcast", shown["broadcast"])
    if shown["family"] == "inet":
        yield from ("scope", shown["scope"])
    if shown.get("label", interface) != interface:
        yield from ("label", shown["label"])
    if "metric" in shown:
        yield from ("metric", str(shown["metric"]))
    if shown.get("deprecated"):
        yield from ("preferred_lft", "0")
    if shown.get("noprefixroute"):
        yield "noprefixroute"


def _route(words: Sequence[str]) -> Iterator[str]:
    """The words of a route that is shown, without those about its state."""
    rest = iter(words)
    for word in rest:
        if word in _STATES_WITH:
            next(rest, None)
        elif word not in _STATES:
            yield word


def _routers(words: Sequence[str], interface: str) -> Iterator[str]:
    """The routers behind an interface by which a route leads there: of each next hop, where it has several."""
    for place, word in enumerate(words):
        if word == "via":
            at = place + 1 + (words[place + 1] in {"inet", "inet6"})
            if words[at + 1 : at + 3] == ["dev", interface]:
                yield words[at]


def _gone(moved: Moved, device: str) -> Iterator[str]:
    # The last one first: with the first of a network the kernel takes away those that follow, or promotes one of them.
    for address in reversed(moved.addresses):
        words = address.split()
        yield f"address del {' '.join(words[: 3 if 'peer' in words else 1])} dev {device}"


def _come(moved: Moved, device: str) -> Iterator[str]:
    for address in moved.addresses:
        given = address.replace(f" label {moved.interface}:", f" label {device}:")
        yield f"address replace {given} dev {device}{' nodad' if ':' in address.split()[0] else ''}"
    for route in moved.routes:
        family, _, rest = route.partition(" ")
        # Every next hop names its own device; what an earlier version has noted names none.
        there = f" {rest} ".replace(f" dev {moved.interface} ", f" dev {device} ").strip()
        there += "" if " dev " in f" {there} " else f" dev {device}"
        # In a batch ip(8) takes no option of a single command, and distinguishes the families by what is written.
        yield f"route replace {_explicit(family, there)}"


def _explicit(family: str, route: str) -> str:
    everywhere = "0.0.0.0/0" if family == "-4" else "::/0"
    return " ".join(everywhere if word == "default" else word for word in route.split())


def _answering(moved: Moved, patience: float) -> None:
    """Wait until a router of the default routes is a neighbour on the bridge. Raises NetworkError."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        for router in moved.routers:
            version = "-6" if ":" in router else "-4"
            # An address on the link is enough; it need not answer pings.
            run(["ping", version, "-n", "-q", "-c1", "-W1", "-I", moved.bridge, router], check=False)
            shown = json.loads(run(["ip", "-json", "neigh", "show", router, "dev", moved.bridge]) or "[]")
            if any("lladdr" in each and "FAILED" not in each.get("state", ()) for each in shown):
                return
        time.sleep(_TRY)
    raise NetworkError(
        f"no router ({', '.join(moved.routers)}) answers over {moved.bridge}{without_carrier(moved.interface)}"
    )


def messages(moved: Moved, *, made: bool) -> Iterable[str]:
    """Lines for the operator about a bridge that was made or taken apart."""
    to = moved.bridge if made else moved.interface
    yield f"{moved.interface} is {'a port' if made else 'no longer a port'} of {moved.bridge}"
    if moved.table:
        drops = "drops" if made else "no longer drops"
        yield f"nftables table inet {moved.table} {drops} what the kernel receives at {moved.interface} as well"
    if made and moved.datapath:
        yield f"datapath id of {moved.bridge}: {moved.datapath}"
    yield f"addresses of {to}: {', '.join(each.split()[0] for each in moved.addresses) or 'none'}"
    if made:
        yield (
            f"write the same into the machine's own network settings (addresses and routes at {moved.bridge}, none at "
            f"{moved.interface}): with those of before it is cut off after its next start"
        )
        yield f"undo it with: lark-worker bridge undo {moved.bridge}"
